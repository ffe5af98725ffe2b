"""Training an answer after every iteration: the loss by hand and by torch.distributions, and the finetune command."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

# ruff: noqa: E402 (imports that need torch stand below the skip)
torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from distill_helpers import albert_teacher, rows, write_rows
from tiny_models import tiny_checkpoint, tiny_config

from calibration.exits import ExitModel
from edge_albert.checkpoint import read_checkpoint
from edge_albert.distill import main as distill_main
from edge_albert.errors import EdgeAlbertError
from edge_albert.finetune import main
from edge_albert.model import build_model
from edge_albert.tasks import TASKS
from edge_albert.training.distillation.loss import DistillationLoss, Matching, Targets
from edge_albert.training.finetuning.early_exit import ExitTraining, all_logits, self_distillation, with_exits
from edge_albert.training.finetuning.objectives import classification, regression
from edge_albert.training.finetuning.tagging import token_classification
from edge_albert.training.weights import arrays_of


@pytest.mark.parametrize("heads", ["shared", "per-iteration"])
@pytest.mark.parametrize("task", ["text-classification", "text-regression", "token-classification"])
def test_answers_are_those_of_the_reference(task: str, heads: str) -> None:
    config = tiny_config(task, inner_group_num=2).with_exits(heads)
    model = build_model(config, task).eval()
    rng = np.random.default_rng(0)
    ids = rng.integers(5, config.vocab_size, (3, 9))
    mask, types = np.ones_like(ids), np.zeros_like(ids)
    mask[1, 6:] = 0
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    with torch.no_grad():
        found = all_logits(model, {name: torch.tensor(array) for name, array in inputs.items()}).numpy()
    expected = ExitModel(config, arrays_of(model), TASKS[task])(**inputs)
    assert found.shape == expected.shape == (3, 3, *((9,) if TASKS[task].per_token else ()), config.num_labels)
    np.testing.assert_allclose(found[:, mask > 0] if found.ndim == 4 else found,
                               expected[:, mask > 0] if found.ndim == 4 else expected, atol=1e-5)  # fmt: skip
    with torch.no_grad():
        last = model(**{name: torch.tensor(array) for name, array in inputs.items()}).numpy()
    np.testing.assert_allclose(found[-1], last, atol=1e-6)


def test_late_answers_weigh_more() -> None:
    logits, labels = torch.randn(4, 6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    objective = with_exits(classification(3), ExitTraining(distill=0))
    by_hand = sum(t * torch.nn.functional.cross_entropy(logits[t - 1], labels) for t in range(1, 5)) / (1 + 2 + 3 + 4)
    assert objective.loss(logits, labels).item() == pytest.approx(by_hand.item(), rel=1e-6)
    assert torch.equal(objective.predict(logits), logits[-1].argmax(dim=-1)), "judged at full depth"


def test_self_distillation_holds_the_last_answer_fixed() -> None:
    logits = torch.randn(3, 5, 4, requires_grad=True)
    kinds = [torch.distributions.Categorical(logits=answer) for answer in logits]
    divergences = [torch.distributions.kl_divergence(kinds[-1], kind).mean() for kind in kinds[:-1]]
    expected = (1 * divergences[0] + 2 * divergences[1]) / 3
    found = self_distillation(logits)
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    (gradient,) = torch.autograd.grad(found, logits)
    assert gradient[:-1].abs().sum() > 0
    assert gradient[-1].abs().sum() == 0
    values = torch.tensor([[[1.0]], [[3.0]], [[2.0]]])  # a regression's
    assert self_distillation(values).item() == pytest.approx((1 * 1 + 2 * 1) / 3)
    plain, more = (with_exits(regression(), ExitTraining(distill=weight)) for weight in (0.0, 0.5))
    extra = more.loss(values, torch.tensor([2.0])) - plain.loss(values, torch.tensor([2.0]))
    assert extra.item() == pytest.approx(0.5)


def test_tokens_without_a_tag_do_not_count() -> None:
    logits, labels = torch.randn(3, 2, 4, 3), torch.tensor([[-100, 1, 2, -100], [-100, 0, -100, -100]])
    objective = with_exits(token_classification(3), ExitTraining(distill=1))
    moved = logits.clone()
    moved[:, labels == -100] += 5 * torch.randn(3, 5, 3)
    assert objective.loss(moved, labels).item() == pytest.approx(objective.loss(logits, labels).item())


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train.tsv, dev.tsv, and a checkpoint `model` trained for something else."""
    folder = tmp_path_factory.mktemp("exits")
    write_rows(folder / "train.tsv", rows(240, 0, 3, 4))
    write_rows(folder / "dev.tsv", rows(24, 1))
    tiny_checkpoint(folder / "model")
    return folder


def words(data: Path, output: Path, *more: str, model: Path | None = None) -> list[str]:
    files = ["--train", str(data / "train.tsv"), "--dev", str(data / "dev.tsv"), "--output", str(output)]
    source = str(model or data / "model")
    return ["--task", "text-classification", "--model", source, "--lr", "2e-3", "--epochs", "2", *files, *more]


def test_shared_head_learns_at_every_depth(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(words(data, out, "--early-exit", "--exit-distill", "1", "--epochs", "8", "--patience", "8")) == 0
    read = read_checkpoint(out)
    assert read.config.exit_heads == "shared"
    start = json.loads((out / "log.jsonl").read_text().splitlines()[0])
    assert start["early_exit"] == {"heads": "shared", "distill": 1.0}
    lines = [line.split("\t") for line in (data / "dev.tsv").read_text().splitlines()[1:]]
    from edge_albert.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(out)
    answers = ExitModel(read.config, read.tensors, TASKS["text-classification"]).rows(
        [tokenizer.encode(text) for text, _ in lines]
    )
    gold = [read.config.labels.index(label) for _, label in lines]
    right = np.mean([answer.argmax(axis=-1) == label for answer, label in zip(answers, gold, strict=True)], axis=0)
    assert (right > 0.5).all(), "chance is 0.25"


def test_heads_per_iteration_go_on_and_go_away(data: Path, tmp_path: Path) -> None:
    first, second, third = tmp_path / "first", tmp_path / "second", tmp_path / "third"
    assert main(words(data, first, "--early-exit", "per-iteration")) == 0
    written = read_checkpoint(first)
    assert written.config.exit_heads == "per-iteration"
    assert written.tensors["exits.1.weight"].shape == (4, 64)
    assert main(words(data, second, "--early-exit", "per-iteration", "--lr", "1e-30", model=first)) == 0
    np.testing.assert_array_equal(read_checkpoint(second).tensors["exits.1.weight"], written.tensors["exits.1.weight"])
    assert main(words(data, third, model=first)) == 0, "trained without, the early answers would go stale"
    plain = read_checkpoint(third)
    assert plain.config.exit_heads is None
    assert not [name for name in plain.tensors if name.startswith("exits.")]


# -- distillation ------------------------------------------------------------------------------------------------------


def test_every_answer_learns_from_the_teacher() -> None:
    """Of the loss on (N, B, K): the weighted mean of what each iteration's logits come to alone."""
    config = tiny_config("text-classification")
    teacher: Any = SimpleNamespace(hidden_size=8)
    loss = DistillationLoss(config, "text-classification", Matching(soft=1.0, hard=0.5), teacher)
    logits, targets = torch.randn(3, 4, 3), Targets(torch.tensor([0, 2, -1, 1]), torch.randn(4, 3))
    encoded: Any = None
    each = [loss(encoded, answer, targets)[0] for answer in logits]
    expected = (1 * each[0] + 2 * each[1] + 3 * each[2]) / 6
    assert loss(encoded, logits, targets)[0].item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_student_with_exits(tmp_path: Path) -> None:
    write_rows(tmp_path / "train.tsv", rows(64, 0, 3))
    write_rows(tmp_path / "dev.tsv", rows(16, 1))
    albert_teacher(tmp_path / "teacher")
    files = ["--train", str(tmp_path / "train.tsv"), "--dev", str(tmp_path / "dev.tsv"), "--init-from-teacher"]
    words = ["--task", "text-classification", "--teacher", str(tmp_path / "teacher"), "--epochs", "1", *files]
    assert distill_main([*words, "--output", str(tmp_path / "student"), "--early-exit"]) == 0
    assert read_checkpoint(tmp_path / "student").config.exit_heads == "shared"
    again = [str(tmp_path / "student") if word == str(tmp_path / "teacher") else word for word in words]
    assert distill_main([*again, "--output", str(tmp_path / "plain")]) == 0
    assert read_checkpoint(tmp_path / "plain").config.exit_heads is None, "its early answers would be stale"
    with pytest.raises(EdgeAlbertError, match="sentence-embedding cannot leave early"):
        distill_main([*_for_embedding(words), "--output", str(tmp_path / "no"), "--early-exit"])
    with pytest.raises(EdgeAlbertError, match="this model has 1 group over 1 iteration"):
        distill_main([*words, "--iterations", "1", "--output", str(tmp_path / "no"), "--early-exit"])


def _for_embedding(words: list[str]) -> list[str]:
    return ["sentence-embedding" if word == "text-classification" else word for word in words]


def test_refusals(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    with pytest.raises(SystemExit):
        main(words(data, out, "--exit-distill", "1"))
    assert "--exit-distill is about the answers that --early-exit trains" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(words(data, out, "--early-exit", "everywhere"))
    with pytest.raises(EdgeAlbertError, match="sentence-embedding cannot leave early: vectors are compared"):
        main([*_for_embedding(words(data, out)), "--early-exit"])
    groups = tiny_checkpoint(tmp_path / "groups", num_hidden_groups=2)
    with pytest.raises(EdgeAlbertError, match="this model has 2 groups over "):
        main(words(data, out, "--early-exit", model=groups))
    assert not out.exists()
