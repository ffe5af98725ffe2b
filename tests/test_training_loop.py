"""The loop against an independent one: transformers' model, PyTorch's AdamW, transformers' schedule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

# ruff: noqa: E402 (imports that need torch stand below the skip)
torch = pytest.importorskip("torch")

from edge_albert.config import AlbertConfig
from edge_albert.errors import EdgeAlbertError
from edge_albert.model import build_model
from edge_albert.training.data.batches import EncodedTexts, collate, epoch_batches
from edge_albert.training.device import make_deterministic, pick_device
from edge_albert.training.finetuning.loop import Best, Recipe, Trainer, evaluate
from edge_albert.training.finetuning.objectives import OBJECTIVES, classification, regression
from edge_albert.training.not_finite import NotFiniteError
from edge_albert.training.optim import decay_groups, linear_schedule
from edge_albert.training.weights import arrays_of, load_arrays

CONFIG = AlbertConfig(
    vocab_size=40, embedding_size=8, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
    max_position_embeddings=16, classifier_dropout_prob=0.0, id2label={0: "a", 1: "b", 2: "c"},
)  # fmt: skip
CPU = torch.device("cpu")


def texts(rows: int, labels: int = 3, seed: int = 0) -> EncodedTexts:
    """Random token ids; the label is how many of the first tokens are odd, which can be learnt."""
    random = np.random.default_rng(seed)
    ids = [random.integers(5, CONFIG.vocab_size, random.integers(4, 12)).astype(np.int32) for _ in range(rows)]
    gold = np.array([sum(row[: labels - 1] % 2) for row in ids], dtype=np.int64)
    return EncodedTexts(ids, [np.zeros_like(row) for row in ids], gold, np.arange(2, rows + 2), pad_id=0)


def trainer(recipe: Recipe, train: EncodedTexts, config: AlbertConfig = CONFIG) -> Trainer:
    make_deterministic(recipe.seed, CPU)
    model = build_model(config, "text-classification")
    return Trainer(model, classification(config.num_labels), recipe, train)


def weights(model: Any) -> dict[str, Any]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_steps_equal_an_independent_loop() -> None:
    transformers = pytest.importorskip("transformers")
    recipe = Recipe(epochs=1, batch_size=8, learning_rate=1e-2, warmup=0.0, weight_decay=0.1, clip_norm=0.3)
    train = texts(40)
    ours = trainer(recipe, train)
    theirs = transformers.AlbertForSequenceClassification(transformers.AlbertConfig(**CONFIG.to_dict()))
    theirs.load_state_dict(ours.model.state_dict())
    no_decay = [p for name, p in theirs.named_parameters() if "norm" in name.lower() or name.endswith("bias")]
    decay = [p for p in theirs.parameters() if not any(p is q for q in no_decay)]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, eps=1e-6)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 0, 5)
    for rows in epoch_batches(train.lengths, 8, recipe.seed, 1):
        inputs, labels = collate(train, rows, CPU)
        loss = theirs(**inputs, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.3)
        optimizer.step()
        schedule.step()
    ours.train_epoch(1)
    expected = theirs.state_dict()
    for name, tensor in ours.model.state_dict().items():
        assert (tensor - expected[name]).abs().max() < 1e-5, name


def test_schedule() -> None:
    transformers = pytest.importorskip("transformers")
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizers = [torch.optim.SGD([parameter], lr=1.0) for _ in range(2)]
    ours, theirs = linear_schedule(optimizers[0], 20, 0.25), None
    theirs = transformers.get_linear_schedule_with_warmup(optimizers[1], 5, 20)
    rates = []
    for step in range(20):
        rates.append(ours.get_last_lr()[0])
        if step >= 5:  # before, transformers starts from 0 and loses the first step
            assert rates[-1] == pytest.approx(theirs.get_last_lr()[0])
        for optimizer, schedule in zip(optimizers, (ours, theirs), strict=True):
            optimizer.step()
            schedule.step()
    assert rates[:6] == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1])
    assert ours.get_last_lr() == [0]
    for warmup in (0.0, 0.5, 1.0):  # a single step moves at the full rate, whatever the share
        assert linear_schedule(torch.optim.SGD([parameter], lr=1.0), 1, warmup).get_last_lr()[0] >= 0.5


def test_biases_and_norms_do_not_decay() -> None:
    model = build_model(CONFIG, "text-classification")
    decay, rest = (group["params"] for group in decay_groups(model, 0.1))
    names = {id(p): name for name, p in model.named_parameters()}
    assert len(decay) + len(rest) == len(names)
    assert all("norm" in names[id(p)].lower() or names[id(p)].endswith("bias") for p in rest)
    assert not any("norm" in names[id(p)].lower() or names[id(p)].endswith("bias") for p in decay)


def test_same_seed_same_weights() -> None:
    config = replace(CONFIG, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)
    recipe = Recipe(epochs=2, batch_size=8, learning_rate=1e-2, seed=5)
    runs = []
    for seed in (5, 5, 6):
        run = trainer(replace(recipe, seed=seed), texts(50), config)
        run.fit(texts(20, seed=1), "accuracy", lambda record: None)
        runs.append(weights(run.model))
    assert all(torch.equal(tensor, runs[1][name]) for name, tensor in runs[0].items())
    assert not all(torch.equal(tensor, runs[2][name]) for name, tensor in runs[0].items())


def test_it_learns_keeps_the_best_epoch_and_stops() -> None:
    records: list[dict[str, Any]] = []
    run = trainer(Recipe(epochs=25, batch_size=16, learning_rate=1e-2, patience=5), texts(250))
    dev = texts(100, seed=1)
    best = run.fit(dev, "accuracy", records.append)
    scores = [record["dev"]["accuracy"] for record in records]
    assert max(scores) > 0.8  # chance is 0.5
    assert scores[best.epoch - 1] == max(scores)
    assert len(records) == min(25, best.epoch + 5)
    again = evaluate(run.model, dev, run.objective, batch_size=7)
    assert again["accuracy"] == best.figures["accuracy"] == max(scores)
    assert again["loss"] == pytest.approx(best.figures["loss"], abs=1e-6)
    assert not run.model.training


def test_between_equal_scores_the_lower_loss_wins() -> None:
    best, model = Best(), build_model(CONFIG, "text-classification")
    for epoch, (score, loss) in enumerate([(0.5, 2.0), (0.5, 1.0), (0.5, 1.5), (0.4, 0.1)], start=1):
        best.offer(epoch, "f1", {"f1": score, "loss": loss}, model)
    assert best.epoch == 2


def test_loss_that_is_not_finite_stops_the_run() -> None:
    run = trainer(Recipe(batch_size=8), texts(16))
    with torch.no_grad():
        run.model.classifier.weight.fill_(float("nan"))
    with pytest.raises(
        NotFiniteError, match=r"training loss is nan at step 1, learning rate .*, lines \d+, .*lower --lr"
    ) as caught:
        run.train_epoch(1)
    assert np.array(caught.value.batch["input_ids"]).shape[0] == 8


def test_gradient_that_is_not_finite_leaves_the_weights() -> None:
    """The loss may be finite and its gradient overflow."""
    run = trainer(Recipe(batch_size=8), texts(16))
    for parameter in run.model.parameters():
        parameter.register_hook(lambda gradient: gradient + float("inf"))
    before = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    with pytest.raises(NotFiniteError, match=r"the training loss's gradient is (inf|nan) at step 1, ") as caught:
        run.train_epoch(1)
    assert float(caught.value.batch["loss"]) < 10
    assert all(torch.equal(tensor, before[name]) for name, tensor in run.model.state_dict().items())


def test_metric_names() -> None:
    assert classification(2).metric_name(None) == "accuracy"
    assert regression().metric_name("pearson") == "pearson"
    with pytest.raises(EdgeAlbertError, match="unknown metric 'bleu' for this task: choose one of accuracy, f1"):
        classification(2).metric_name("bleu")
    two, three = classification(2), classification(3)
    gold, predicted = np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1])
    assert two.judge(gold, predicted)["f1"] == pytest.approx(2 / 3)
    assert three.judge(gold, predicted)["f1"] == pytest.approx((4 / 5 + 2 / 3) / 2)
    assert set(OBJECTIVES) == {"text-classification", "text-regression"}


def test_regression_objective() -> None:
    objective, logits = regression(), torch.tensor([[1.0], [3.0]])
    assert objective.loss(logits, torch.tensor([1.0, 1.0])).item() == pytest.approx(2.0)
    assert objective.predict(logits).tolist() == [1, 3]


@pytest.mark.parametrize("task", ["text-classification", "pretraining", "sentence-embedding", None])
def test_arrays_there_and_back(task: str | None) -> None:
    config = CONFIG.with_sharing("attention")
    source, target = build_model(config, task), build_model(config, task)
    assert load_arrays(target, arrays_of(source)) == []
    assert all(
        torch.equal(a, b) for a, b in zip(source.state_dict().values(), target.state_dict().values(), strict=True)
    )
    assert all(name.startswith(("albert.", "classifier.", "predictions.", "sop_")) for name in arrays_of(source))


def test_arrays_that_do_not_fit_are_left_and_named() -> None:
    model = build_model(CONFIG, "text-classification")
    before = weights(model)
    arrays = arrays_of(build_model(CONFIG.with_labels(["a", "b"]), "text-classification"))
    assert load_arrays(model, arrays) == ["classifier.weight", "classifier.bias"]
    assert torch.equal(model.classifier.weight, before["classifier.weight"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_on_a_gpu() -> None:
    device = pick_device()
    make_deterministic(0, device)
    model = build_model(CONFIG, "text-classification").to(device)
    run = Trainer(model, classification(3), Recipe(epochs=40, batch_size=16, learning_rate=1e-2), texts(300))
    best = run.fit(texts(100, seed=1), "accuracy", lambda record: None)
    assert best.figures["accuracy"] > 0.9
