"""Pre-training: examples, batches, the loss against transformers, LAMB against its paper, and the command."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from pretrain_helpers import NO_DROPOUT, SHAPE, arguments, losses, make_shards  # noqa: E402
from tiny_spiece import tiny_corpus  # noqa: E402

from edge_albert.config import AlbertConfig  # noqa: E402
from edge_albert.errors import DataError, EdgeAlbertError  # noqa: E402
from edge_albert.model import build_model  # noqa: E402
from edge_albert.pretrain import main  # noqa: E402
from edge_albert.tokenizer import Tokenizer, load_tokenizer  # noqa: E402
from edge_albert.train_vocab import train_spiece  # noqa: E402
from edge_albert.training.pretraining.examples import (  # noqa: E402
    HELD_OUT_EVERY,
    EpochBatches,
    ExampleMaker,
    collate,
    pack,
)
from edge_albert.training.pretraining.loop import Pretrainer  # noqa: E402
from edge_albert.training.pretraining.loss import PretrainingLoss  # noqa: E402
from edge_albert.training.pretraining.optimizer import make_optimizer  # noqa: E402
from edge_albert.training.pretraining.recipe import PretrainRecipe  # noqa: E402
from edge_albert.training.pretraining.run import Plan  # noqa: E402
from edge_albert.training.pretraining.shards import TokenStore  # noqa: E402

Made = tuple[Path, Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_shards(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def tokenizer(made: Made) -> Tokenizer:
    return load_tokenizer(made[0])


@pytest.fixture(scope="module")
def store(made: Made) -> TokenStore:
    return TokenStore(made[1])


# -- packing -----------------------------------------------------------------------------------------------------------


def test_every_token_is_in_one_example(store: TokenStore) -> None:
    shard = store.shards[0]
    seen = np.zeros(len(shard.tokens), dtype=int)
    for held_out in (False, True):
        spans = pack(store, 20, seed=0, epoch=0, held_out=held_out)
        for document, start, stop in zip(spans.document, spans.start, spans.stop, strict=True):
            seen[start:stop] += 1
            first, last = shard.sentences[shard.documents[document : document + 2]]
            assert first <= start < stop <= last  # within its document
            assert 8 <= stop - start <= 20
            assert (document % HELD_OUT_EVERY == 0) == held_out
    assert seen.max() == 1
    ends = shard.sentences[shard.documents[1:]]
    for place in np.flatnonzero(seen == 0):
        assert (ends > place).any()
        assert ends[ends > place].min() - place < 8  # only an end too short for an example


def test_one_in_ten_is_short(tmp_path: Path, tokenizer: Tokenizer) -> None:
    from edge_albert.training.pretraining.corpus import Corpus
    from edge_albert.training.pretraining.shards import write_shards

    (tmp_path / "long.txt").write_text("the baker paints the door. " * 20_000)
    write_shards(Corpus([tmp_path / "long.txt"]), tokenizer.path.parent, tmp_path / "shards")
    spans = pack(TokenStore(tmp_path / "shards"), 100, seed=0, epoch=0)
    lengths = spans.stop - spans.start
    # a short one is 8 … 100 long, so that a few of them are not short
    assert (lengths < 85).mean() == pytest.approx(0.1 * (85 - 8) / 93, abs=0.03)
    assert lengths.max() <= 100


def test_epochs_differ_and_return(store: TokenStore) -> None:
    first, second = (pack(store, 20, seed=0, epoch=epoch) for epoch in (0, 1))
    assert not np.array_equal(first.start, second.start)
    again = pack(store, 20, seed=0, epoch=1)
    assert np.array_equal(second.start, again.start)


# -- examples ----------------------------------------------------------------------------------------------------------


def text_of(example: object, tokenizer: Tokenizer) -> list[list[int]]:
    """The segments of an example with the masking undone."""
    ids = example.input_ids.copy()  # type: ignore[attr-defined]
    ids[example.positions] = example.labels  # type: ignore[attr-defined]
    assert ids[0] == tokenizer.cls_id
    assert ids[-1] == tokenizer.sep_id
    seps = np.flatnonzero(ids == tokenizer.sep_id).tolist()
    starts = [1, *(sep + 1 for sep in seps)]
    types = example.token_type_ids  # type: ignore[attr-defined]
    assert types.tolist() == [0] * (seps[0] + 1) + [1] * (len(ids) - seps[0] - 1)
    return [ids[start:sep].tolist() for start, sep in zip(starts, seps, strict=False)]


def test_sop_swaps_half_of_the_pairs(store: TokenStore, tokenizer: Tokenizer) -> None:
    maker, spans = ExampleMaker.of(store, tokenizer, "sop", 0), pack(store, 45, seed=0, epoch=0)
    shard = store.shards[0]
    orders = []
    for number in range(len(spans)):
        example = maker.make(spans, 0, number)
        first, second = text_of(example, tokenizer)
        orders.append(example.order)
        if example.order == 1:
            first, second = second, first
        start, stop = spans.start[number], spans.stop[number]
        assert first + second == shard.tokens[start:stop].tolist()
        inner = shard.sentences[(shard.sentences > start) & (shard.sentences < stop)]
        if len(inner):  # the seam is a sentence's end
            assert start + len(first) in inner
    assert len(orders) > 250
    assert np.mean(orders) == pytest.approx(0.5, abs=0.1)


def test_nsp_takes_half_of_the_second_segments_from_elsewhere(store: TokenStore, tokenizer: Tokenizer) -> None:
    maker, spans = ExampleMaker.of(store, tokenizer, "nsp", 0), pack(store, 45, seed=0, epoch=0)
    tokens = store.shards[0].tokens
    orders = []
    for number in range(len(spans)):
        example = maker.make(spans, 0, number)
        first, second = text_of(example, tokenizer)
        own = tokens[spans.start[number] : spans.stop[number]].tolist()
        assert own[: len(first)] == first
        orders.append(example.order)
        if example.order == 0:
            assert first + second == own
        else:
            begins = [tokens[s : s + len(second)].tolist() for s in spans.start]
            assert second in begins
            assert len(first) + len(second) <= len(own)
    assert np.mean(orders) == pytest.approx(0.5, abs=0.1)


def test_no_order_objective_has_one_segment(store: TokenStore, tokenizer: Tokenizer) -> None:
    maker, spans = ExampleMaker.of(store, tokenizer, "none", 0), pack(store, 46, seed=0, epoch=0)
    for number in range(20):
        (text,) = text_of(maker.make(spans, 0, number), tokenizer)
        assert text == store.shards[0].tokens[spans.start[number] : spans.stop[number]].tolist()


def batches(store: TokenStore, tokenizer: Tokenizer, *, batch_size: int = 32, **options: int) -> EpochBatches:
    maker, spans = ExampleMaker.of(store, tokenizer, "sop", 0), pack(store, 45, seed=0, epoch=0)
    return EpochBatches(maker, spans, epoch=0, batch_size=batch_size, micro_batch=8, pad_id=tokenizer.pad_id, **options)


def test_processes_share_a_batch_between_them(store: TokenStore, tokenizer: Tokenizer) -> None:
    whole = batches(store, tokenizer)
    shares = [batches(store, tokenizer, rank=rank, world=2) for rank in (0, 1)]
    for step in range(len(whole)):
        rows = [[tuple(row.tolist()) for part in share[step] for row in part.labels.split(1)] for share in shares]
        assert len(shares[0][step]) == len(shares[1][step]) == 2
        together = Counter(rows[0] + rows[1])
        assert together == Counter(tuple(row.tolist()) for part in whole[step] for row in part.labels.split(1))
    numbers = np.concatenate([whole.numbers(step) for step in range(len(whole))])
    assert len(set(numbers.tolist())) == len(numbers) == 32 * len(whole)  # no example twice in an epoch


def test_a_corpus_too_small_for_a_batch(store: TokenStore, tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match="make no batch of 5000"):
        batches(store, tokenizer, batch_size=5000)


# -- loss and optimizer ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["sop", "none"])
def test_loss_is_that_of_transformers(store: TokenStore, tokenizer: Tokenizer, objective: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = AlbertConfig(vocab_size=tokenizer.vocab_size, **SHAPE)
    torch.manual_seed(0)
    model = build_model(config, "pretraining").eval()
    theirs = transformers.AlbertForPreTraining(transformers.AlbertConfig(**config.to_dict())).eval()
    theirs.load_state_dict(model.state_dict())
    maker, spans = ExampleMaker.of(store, tokenizer, objective, 0), pack(store, 45, seed=0, epoch=0)
    batch = collate([maker.make(spans, 0, number) for number in range(12)], tokenizer.pad_id)
    assert 0 < batch.attention_mask.sum() < batch.attention_mask.numel()  # some are padded
    mlm, order, right = PretrainingLoss(model, objective)(batch)

    labels = torch.full_like(batch.input_ids, -100)
    labels.view(-1)[batch.masked] = batch.labels
    out = theirs(
        input_ids=batch.input_ids, attention_mask=batch.attention_mask, token_type_ids=batch.token_type_ids,
        labels=labels, sentence_order_label=batch.order,
    )  # fmt: skip
    order_logits = out.sop_logits if objective == "sop" else torch.zeros(12, 2)
    expected = (
        out.loss if objective == "sop" else out.loss - torch.nn.functional.cross_entropy(out.sop_logits, batch.order)
    )
    mine = mlm / len(batch.labels) + order / len(batch.order)
    assert mine.item() == pytest.approx(expected.item(), abs=2e-5)
    hits = (out.prediction_logits.argmax(-1) == labels).sum()
    order_hits = (order_logits.argmax(-1) == batch.order).sum() if objective == "sop" else 0
    assert right.tolist() == [hits, order_hits]


def test_without_an_order_objective_its_head_stays(store: TokenStore, tokenizer: Tokenizer) -> None:
    model = build_model(AlbertConfig(vocab_size=tokenizer.vocab_size, **SHAPE), "pretraining")
    maker, spans = ExampleMaker.of(store, tokenizer, "none", 0), pack(store, 46, seed=0, epoch=0)
    loss, _, _ = PretrainingLoss(model, "none")(collate([maker.make(spans, 0, 0)], tokenizer.pad_id))
    loss.backward()
    untouched = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    assert untouched == {
        "sop_classifier.classifier.weight", "sop_classifier.classifier.bias", "albert.pooler.weight",
        "albert.pooler.bias",
    }  # fmt: skip


def test_lamb_is_that_of_its_paper() -> None:
    """Algorithm 2 of arXiv 1904.00962v3 in NumPy: Adam's direction, decay added, scaled by ‖w‖ / ‖update‖."""
    pytest.importorskip("pytorch_optimizer", reason="the package pytorch-optimizer is not installed")
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 3)
    recipe = PretrainRecipe(steps=1, optimizer="lamb", learning_rate=0.01, weight_decay=0.0)
    optimizer = make_optimizer(layer, recipe)
    weight = layer.weight.detach().numpy().astype(np.float64)
    m, v = np.zeros_like(weight), np.zeros_like(weight)
    for step in range(3):
        gradient = np.random.default_rng(step).normal(size=weight.shape)
        layer.weight.grad = torch.tensor(gradient, dtype=torch.float32)
        layer.bias.grad = torch.zeros(3)
        optimizer.step()
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        update = m / (np.sqrt(v) + 1e-6)
        weight = weight - 0.01 * np.linalg.norm(weight) / np.linalg.norm(update) * update
        assert layer.weight.detach().numpy() == pytest.approx(weight, abs=1e-6)


# -- the command -------------------------------------------------------------------------------------------------------


def test_it_learns_and_leaves_a_checkpoint_that_transformers_reads(tmp_path: Path, made: Made) -> None:
    run = tmp_path / "run"
    assert main(arguments(made, run, steps=60, learning_rate=5e-3, log_every=20, checkpoint_every=30)) == 0
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    evaluations = [record for record in records if record["event"] == "evaluation"]
    assert [record["step"] for record in evaluations] == [30, 60]
    # 176 pieces: ln 176 = 5.17 nats for a model that knows nothing, 4.1 for one that knows how common each piece is
    assert evaluations[-1]["mlm_loss"] < 4.4
    assert [record["step"] for record in records if record["event"] == "step"] == [20, 40, 60]
    transformers = pytest.importorskip("transformers")
    model, report = transformers.AlbertForPreTraining.from_pretrained(run / "model", output_loading_info=True)
    assert not any(report.values())
    assert model.config.vocab_size == 176
    assert transformers.AutoTokenizer.from_pretrained(run / "model").vocab_size == 176


def test_lamb_and_init_and_objectives(tmp_path: Path, made: Made) -> None:
    """A second run begins with the first one's weights; each objective logs what it optimises."""
    pytest.importorskip("pytorch_optimizer", reason="the package pytorch-optimizer is not installed")
    first, second = tmp_path / "first", tmp_path / "second"
    main(arguments(made, first, steps=40, learning_rate=3e-2, optimizer="lamb", objective="nsp"))
    learned = losses(first)
    options = ["--init", str(first / "model"), "--shards", str(made[1]), "--output", str(second)]
    main([*options, "--steps", "2", "--batch-size", "32", "--micro-batch", "16", "--max-length", "48", "--log-every",
          "1", "--objective", "none", "--optimizer", "adamw"])  # fmt: skip
    begun = losses(second)
    assert learned[-1][1] < learned[0][1] - 0.3
    assert begun[0][1] < learned[0][1] - 0.3
    assert [order for _, _, order, _ in begun] == [0.0, 0.0]
    assert all(order > 0.3 for _, _, order, _ in learned)


def test_micro_batches_change_nothing_but_rounding(tmp_path: Path, made: Made) -> None:
    for size in (8, 32):
        main([*arguments(made, tmp_path / str(size), steps=4, micro_batch=size), *NO_DROPOUT])
    small, large = losses(tmp_path / "8"), losses(tmp_path / "32")
    assert np.array(small) == pytest.approx(np.array(large), rel=1e-4)


def test_share_of_masked_tokens(tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    train_step = Pretrainer._train_step

    def counted(self: Pretrainer, batches: Any, micro: Any) -> Any:
        seen.append(sum(len(b.labels) for b in micro) / sum(int(b.attention_mask.sum()) for b in micro))
        return train_step(self, batches, micro)

    monkeypatch.setattr(Pretrainer, "_train_step", counted)
    run = tmp_path / "run"
    main([*arguments(made, run, steps=2), "--mask-share", "0.4"])
    assert seen == pytest.approx([0.4 * 42 / 45] * 2, abs=0.04)  # special tokens are never masked
    plan = json.loads((run / "run.json").read_text())
    assert plan["recipe"].pop("mask_share") == 0.4
    (run / "run.json").write_text(json.dumps(plan))  # a run of before there was the option
    assert Plan.read(run).recipe.mask_share == 0.15


def test_a_loss_that_is_not_finite_stops_and_saves_the_batch(tmp_path: Path, made: Made) -> None:
    with pytest.raises(EdgeAlbertError, match=r"not finite at step [23] \(learning rate") as caught:
        main(arguments(made, tmp_path / "run", learning_rate=1e30, warmup=0))
    (path,) = (tmp_path / "run").glob("not-finite-*.json")
    assert str(path) in str(caught.value)
    saved = json.loads(path.read_text())
    assert len(saved["examples"]) == len(saved["input_ids"]) == 32
    assert all(ids[0] == 2 for ids in saved["input_ids"])
    assert not (tmp_path / "run" / "model").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 30}, "not a multiple of --micro-batch 8"),
        ({"max_length": 65}, "--max-length 65 must be 11 … max_position_embeddings 64"),
        ({"max_length": 10}, "--max-length 10 must be 11"),
        ({"tokenizer": "absent"}, "no tokenizer"),
        ({"set": "hidden_sizes=3"}, "no field 'hidden_sizes'"),
        ({"set": "hidden_size=wide"}, "hidden_size must be of the kind int"),
        ({"set": "hidden_size=33"}, "not divisible"),
        ({"shards": "absent"}, "no shards there, and no corpus"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, made: Made, changes: dict[str, object], message: str) -> None:
    with pytest.raises(EdgeAlbertError, match=message) as caught:
        main([*arguments(made, tmp_path / "run"), *(f"--{k.replace('_', '-')}={v}" for k, v in changes.items())])
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "model").exists()


def test_runs_are_not_mixed_up(tmp_path: Path, made: Made) -> None:
    run = tmp_path / "run"
    main(arguments(made, run, steps=1))
    with pytest.raises(EdgeAlbertError, match="holds a run already: go on with --resume"):
        main(arguments(made, run, steps=1))
    with pytest.raises(EdgeAlbertError, match="learning-rate cannot be given"):
        main(["--resume", str(run), "--learning-rate", "1e-4"])
    with pytest.raises(EdgeAlbertError, match=r"run\.json: missing or damaged"):
        main(["--resume", str(tmp_path / "absent")])
    other = tmp_path / "other.txt"
    other.write_text("another corpus.\n")
    with pytest.raises(DataError, match="another corpus"):
        main([str(other), *arguments(made, tmp_path / "new")])


def test_missing_packages_are_named(tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("pytorch_optimizer", "datasets"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(EdgeAlbertError, match="pip install pytorch-optimizer, or --optimizer adamw"):
        main(arguments(made, tmp_path / "lamb", optimizer="lamb"))
    with pytest.raises(EdgeAlbertError, match="pip install datasets"):
        main([*arguments((made[0], tmp_path / "shards"), tmp_path / "run", processes=1), "--dataset", "some/corpus"])


def test_init_needs_its_own_vocabulary_and_shape(tmp_path: Path, made: Made) -> None:
    main(arguments(made, tmp_path / "run", steps=1))
    begin = ["--init", str(tmp_path / "run" / "model"), "--steps", "1", "--output", str(tmp_path / "new")]
    with pytest.raises(EdgeAlbertError, match=r"is \(32, 16\), the run's shape needs \(64, 16\)"):
        main([*begin, "--max-length", "48", "--set", "hidden_size=64"])
    with pytest.raises(EdgeAlbertError, match=r"has no albert\.encoder\..*groups\.1\..*, which the run's shape needs"):
        main([*begin, "--max-length", "48", "--set", "num_hidden_groups=2"])
    for name in ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id"):
        with pytest.raises(EdgeAlbertError, match=f"--set {name}=7: {name} is the tokenizer's: leave it out"):
            main([*begin, "--max-length", "48", "--set", f"{name}=7"])
    other = train_spiece(iter(tiny_corpus()), 150)
    (tmp_path / "vocab").mkdir()
    (tmp_path / "vocab" / "spiece.model").write_bytes(other)
    with pytest.raises(EdgeAlbertError, match=r"its vocab_size is 176, and .*spiece\.model has 150 pieces"):
        main([*begin, "--tokenizer", str(tmp_path / "vocab"), "--max-length", "48"])
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_compiled_and_with_workers_it_is_the_same_run(tmp_path: Path, made: Made) -> None:
    main([*arguments(made, tmp_path / "plain"), *NO_DROPOUT])
    main([*arguments(made, tmp_path / "workers"), *NO_DROPOUT, "--workers", "2"])
    assert losses(tmp_path / "workers") == losses(tmp_path / "plain")
    main([*arguments(made, tmp_path / "compiled"), *NO_DROPOUT, "--compile"])
    assert np.array(losses(tmp_path / "compiled")) == pytest.approx(np.array(losses(tmp_path / "plain")), rel=1e-3)
