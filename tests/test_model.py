"""model.py against transformers' ALBERT: the same weights must give the same logits and the same gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

# ruff: noqa: E402 (imports that need torch stand below the skip)
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from edge_albert.config import PRESETS, AlbertConfig, count_macs, count_parameters, preset
from edge_albert.errors import ConfigError
from edge_albert.model import AlbertModel, build_model
from edge_albert.tasks import TASKS

TOLERANCE = 1e-5
SMALL = AlbertConfig(
    vocab_size=61, embedding_size=16, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=48,
    max_position_embeddings=40, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1,
)  # fmt: skip
HEADS = {
    None: "AlbertModel",
    "pretraining": "AlbertForPreTraining",
    "text-classification": "AlbertForSequenceClassification",
    "text-regression": "AlbertForSequenceClassification",
    "token-classification": "AlbertForTokenClassification",
    "question-answering": "AlbertForQuestionAnswering",
    "multiple-choice": "AlbertForMultipleChoice",
    "sentence-embedding": "AlbertModel",
}
SHAPES = {
    "gelu": replace(SMALL, hidden_act="gelu"),
    "gelu_new": SMALL,
    "relu": replace(SMALL, hidden_act="relu"),
    "groups": replace(SMALL, num_hidden_layers=5, num_hidden_groups=2),
    "inner": replace(SMALL, inner_group_num=2),
    "groups+inner": replace(SMALL, num_hidden_groups=3, inner_group_num=2),
    "unshared": SMALL.with_sharing("none"),
    "tied attention": SMALL.with_sharing("attention"),
    "tied ffn": replace(SMALL.with_sharing("ffn"), inner_group_num=2),
}


def config_for(task: str | None, shape: AlbertConfig) -> AlbertConfig:
    labels = {"text-regression": 1, "text-classification": 3, "token-classification": 5}.get(task or "", 2)
    return shape.with_labels([f"label {i}" for i in range(labels)])


def build_pair(task: str | None, config: AlbertConfig) -> tuple[Any, Any]:
    """Transformers' model with random weights, biases and norms included, and ours filled by load_state_dict."""
    torch.manual_seed(0)
    options = {"add_pooling_layer": False} if task == "sentence-embedding" else {}
    theirs = getattr(transformers, HEADS[task])(transformers.AlbertConfig(**config.to_dict()), **options)
    ours = build_model(config, task)
    if config.tied_across_groups is None:
        with torch.no_grad():
            for parameter in theirs.parameters():
                parameter.normal_(0, 0.2)
        bare(task, ours).load_state_dict(theirs.state_dict())  # strict: the same keys, the same shapes
    else:  # tied halves are equal in every group only in a state dict of ours
        with torch.no_grad():
            for parameter in ours.parameters():
                parameter.normal_(0, 0.2)
        theirs.load_state_dict(bare(task, ours).state_dict())
    return theirs.eval(), ours.eval()


def bare(task: str | None, ours: Any) -> Any:
    """The part of our model that has transformers' keys: all, but a sentence embedding is a bare AlbertModel there."""
    return ours.albert if task == "sentence-embedding" else ours


def inputs(task: str | None, config: AlbertConfig) -> dict[str, Any]:
    """Three sequences of 11 tokens, two of them padded, with both token types."""
    generator = torch.Generator().manual_seed(1)
    shape = (3, 2, 11) if task == "multiple-choice" else (3, 11)
    ids = torch.randint(5, config.vocab_size, shape, generator=generator)
    lengths = torch.tensor([11, 7, 2]).view(3, *[1] * (len(shape) - 1))
    mask = (torch.arange(11) < lengths).long().expand(shape).contiguous()
    types = (torch.arange(11) >= lengths // 2).long().expand(shape) * mask
    return {"input_ids": ids * mask, "attention_mask": mask, "token_type_ids": types}


def their_outputs(task: str | None, output: Any, mask: Any) -> list[Any]:
    """What transformers gave, in the form ours has."""
    if task is None:
        return [output.last_hidden_state, output.pooler_output]
    if task == "pretraining":
        return [output.prediction_logits, output.sop_logits]
    if task == "question-answering":
        return [torch.stack([output.start_logits, output.end_logits], dim=-1)]
    if task == "sentence-embedding":
        means = [row[keep.bool()].mean(dim=0) for row, keep in zip(output.last_hidden_state, mask, strict=True)]
        return [torch.stack([mean / mean.norm() for mean in means])]
    return [output.logits]


def our_outputs(task: str | None, output: Any) -> list[Any]:
    if task is None:
        return [output.last_hidden_state, output.pooler_output]
    return list(output) if task == "pretraining" else [output]


def scalar(outputs: list[Any]) -> Any:
    """A number that every output element moves by another, fixed amount: its gradient sees all of them."""
    generator = torch.Generator().manual_seed(2)
    return sum((out * torch.randn(out.shape, generator=generator)).sum() / out.numel() for out in outputs)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("task", HEADS, ids=str)
def test_logits_and_gradients_equal_transformers(task: str | None, shape: str) -> None:
    config = config_for(task, SHAPES[shape])
    theirs, ours = build_pair(task, config)
    batch = inputs(task, config)
    expected = their_outputs(task, theirs(**batch), batch["attention_mask"])
    found = our_outputs(task, ours(**batch))
    for a, b in zip(expected, found, strict=True):
        assert b.shape == a.shape
        assert (a - b).abs().max() < TOLERANCE
    scalar(expected).backward()
    scalar(found).backward()
    if config.tied_across_groups:
        return assert_tied_gradients(theirs, bare(task, ours))
    expected_gradients = {name: p.grad for name, p in theirs.named_parameters()}
    found_gradients = {name: p.grad for name, p in bare(task, ours).named_parameters()}
    assert set(found_gradients) == set(expected_gradients)
    for name, gradient in expected_gradients.items():
        if gradient is None:  # the pooler of an AlbertModel whose pooled output is not looked at
            assert found_gradients[name] is None
        else:
            assert (gradient - found_gradients[name]).abs().max() < TOLERANCE, name
    return None


def assert_tied_gradients(theirs: Any, ours: Any) -> None:
    """A tied tensor's gradient is the sum of the gradients of transformers' untied copies of it."""
    copies = dict(theirs.named_parameters(remove_duplicate=False))
    names = [(name, p) for name, p in ours.named_parameters(remove_duplicate=False)]
    for _, parameter in ours.named_parameters():
        same = {id(copies[name]): copies[name] for name, other in names if other is parameter}
        expected = sum(copy.grad for copy in same.values())
        assert (expected - parameter.grad).abs().max() < TOLERANCE


@pytest.mark.parametrize("task", HEADS, ids=str)
def test_without_mask_and_types(task: str | None) -> None:
    config = config_for(task, SMALL)
    theirs, ours = build_pair(task, config)
    ids = inputs(task, config)["input_ids"].clamp(min=5)
    everything = torch.ones(ids.shape)
    for a, b in zip(their_outputs(task, theirs(ids), everything), our_outputs(task, ours(ids)), strict=True):
        assert (a - b).abs().max() < TOLERANCE


@pytest.mark.parametrize("shape", ["gelu_new", "groups+inner"])
def test_every_iteration_equals_transformers(shape: str) -> None:
    config = SHAPES[shape]
    theirs, ours = build_pair(None, config)
    theirs.set_attn_implementation("eager")  # the fused kernel keeps its probabilities to itself
    batch = inputs(None, config)
    expected = theirs(**batch, output_hidden_states=True, output_attentions=True)
    found = ours.encode(**batch, output_hidden_states=True, output_attentions=True)
    applications = config.num_hidden_layers * config.inner_group_num
    assert len(found.hidden_states) == applications + 1
    assert len(found.attentions) == applications
    for a, b in zip(expected.hidden_states, found.hidden_states, strict=True):
        assert (a - b).abs().max() < TOLERANCE
    for a, b in zip(expected.attentions, found.attentions, strict=True):
        assert (a - b).abs().max() < TOLERANCE


def test_attention_dropout_is_applied_on_both_paths() -> None:
    config = replace(SMALL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.5)
    model = build_model(config).train()
    batch = inputs(None, config)
    for option in (False, True):
        runs = [model.encode(**batch, output_attentions=option).last_hidden_state for _ in range(2)]
        assert not torch.equal(*runs)
    model.eval()
    still = [model.encode(**batch, output_attentions=option).last_hidden_state for option in (False, True)]
    assert (still[0] - still[1]).abs().max() < TOLERANCE


@pytest.mark.parametrize("name", PRESETS)
def test_parameter_count_of_every_preset(name: str) -> None:
    config = preset(name)
    with torch.device("meta"):
        model = AlbertModel(config)
    assert count_parameters(config).total == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "published"),
    [("base", 11_683_584), ("large", 17_683_968), ("xlarge", 58_724_864), ("xxlarge", 222_595_584)],
)
def test_parameter_count_of_the_released_models(name: str, published: int) -> None:
    for version in ("v1", "v2"):
        config = preset(f"albert-{name}-{version}")
        assert count_parameters(config).total == published
        with torch.device("meta"):
            theirs = transformers.AlbertModel(transformers.AlbertConfig(**config.to_dict()))
        assert theirs.num_parameters() == published


@pytest.mark.parametrize("sharing", ["all", "attention", "ffn", "none"])
@pytest.mark.parametrize("inner", [1, 2])
def test_parameter_count_under_every_sharing(sharing: str, inner: int) -> None:
    config = replace(SMALL, inner_group_num=inner).with_sharing(sharing)
    assert count_parameters(config).total == sum(p.numel() for p in build_model(config).parameters())


def test_parameter_count_with_heads() -> None:
    classifier = build_model(config_for("text-classification", SMALL), "text-classification")
    assert count_parameters(SMALL, head_outputs=3).total == sum(p.numel() for p in classifier.parameters())
    answering = build_model(SMALL, "question-answering")
    expected = count_parameters(SMALL, pooler=False, head_outputs=2).total
    assert expected == sum(p.numel() for p in answering.parameters())


@pytest.mark.parametrize("shape", ["gelu_new", "groups+inner", "tied ffn"])
@pytest.mark.parametrize("length", [1, 13, 40])
@pytest.mark.parametrize("task", [None, "text-classification", "question-answering", "token-classification"], ids=str)
def test_macs_equal_the_flop_counter(task: str | None, shape: str, length: int) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    config = config_for(task, SHAPES[shape])
    model = build_model(config, task).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.ones(1, length, dtype=torch.long))
    pooled = task is None or TASKS[task].pooled
    outputs = {None: 0, "question-answering": 2}.get(task, config.num_labels)
    per_token = task is not None and TASKS[task].per_token
    macs = count_macs(config, length, pooler=pooled, head_outputs=outputs, per_token=per_token)
    assert counter.get_total_flops() == 2 * macs


def test_macs_of_albert_base() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    config = preset("albert-base-v2")
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        AlbertModel(config)(torch.ones(1, 128, dtype=torch.long))
    assert counter.get_total_flops() == 2 * count_macs(config, 128)


def test_initialisation_is_that_of_transformers() -> None:
    config = replace(preset("tiny"), initializer_range=0.05)
    torch.manual_seed(0)
    ours = dict(build_model(config, "pretraining").named_parameters())
    theirs = transformers.AlbertForPreTraining(transformers.AlbertConfig(**config.to_dict()))
    for name, parameter in theirs.named_parameters():
        assert ours[name].std(correction=0).item() == pytest.approx(parameter.std(correction=0).item(), rel=0.1), name
        assert ours[name].mean().item() == pytest.approx(parameter.mean().item(), abs=0.01), name
    assert ours["albert.embeddings.word_embeddings.weight"][0].abs().max() == 0


def test_padding_changes_nothing() -> None:
    config = SHAPES["groups"]
    _, model = build_pair("text-classification", config)
    batch = inputs(None, config)
    together = model(**batch)
    for row, length in enumerate([11, 7, 2]):
        alone = model(**{name: value[row : row + 1, :length] for name, value in batch.items()})
        assert (alone - together[row]).abs().max() < TOLERANCE


def test_too_many_tokens() -> None:
    model = build_model(SMALL)
    with pytest.raises(ValueError, match="41 tokens exceed max_position_embeddings 40"):
        model(torch.ones(1, 41, dtype=torch.long))


def test_unknown_task_and_labels_that_do_not_fit() -> None:
    with pytest.raises(ConfigError, match="unknown task 'translation'"):
        build_model(SMALL, "translation")
    with pytest.raises(ConfigError, match="names 2 labels"):
        build_model(SMALL, "text-regression")
    assert set(TASKS) <= set(HEADS)
