"""When an input may leave: the criteria against SciPy and against the papers' own loops; config.json and tensors."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tiny_models import tiny_checkpoint, tiny_config, tiny_tensors

from edge_albert.checkpoint import read_checkpoint, write_checkpoint
from edge_albert.config import AlbertConfig
from edge_albert.early_exit import (
    CRITERIA,
    NEVER,
    Exits,
    confidence,
    counted_tokens,
    criteria_for,
    entropy,
    exit_iterations,
    exit_outputs,
)
from edge_albert.errors import CheckpointError, ConfigError, EdgeAlbertError

RNG = np.random.default_rng(9)
LOGITS = RNG.normal(scale=2, size=(6, 500, 3))  # (N, B, C)


def test_confidence_and_entropy_are_scipys() -> None:
    special, stats = pytest.importorskip("scipy.special"), pytest.importorskip("scipy.stats")
    probabilities = special.softmax(LOGITS, axis=-1)
    np.testing.assert_allclose(confidence(LOGITS), probabilities.max(axis=-1), rtol=1e-12)
    np.testing.assert_allclose(entropy(LOGITS), stats.entropy(probabilities, axis=-1), rtol=1e-9)
    assert entropy(np.array([[200.0, 0.0, -200.0]])) == pytest.approx(0, abs=1e-12)


def left_by_loop(logits: np.ndarray, leaves, depth: int) -> list[int]:
    """One input at a time, iteration after iteration, as the papers' listings run it. leaves: answers so far ► bool."""
    out = []
    for row in range(logits.shape[1]):
        iteration = 1
        while iteration < depth and not leaves(logits[:iteration, row]):
            iteration += 1
        out.append(iteration)
    return out


def pabee(k: int):
    """Zhou et al. 2020, algorithm of section 3.2: a counter of unchanged answers, set back by a change."""

    def leaves(answers: np.ndarray) -> bool:
        count, labels = 0, answers.argmax(axis=-1)
        for before, now in pairwise(labels):
            count = count + 1 if now == before else 0
        return count >= k

    return leaves


@pytest.mark.parametrize("depth", [1, 4, 6])
def test_exits_are_those_of_a_loop_over_one_input(depth: int) -> None:
    special = pytest.importorskip("scipy.special")
    rules = {
        ("confidence", 0.8): lambda answers: special.softmax(answers[-1]).max() >= 0.8,
        ("entropy", 0.5): lambda answers: special.entr(special.softmax(answers[-1])).sum() <= 0.5,
        ("patience", 1.0): pabee(1),
        ("patience", 2.0): pabee(2),
    }
    for (name, threshold), leaves in rules.items():
        found = exit_iterations(LOGITS, CRITERIA[name], threshold, depth=depth)
        assert found.tolist() == left_by_loop(LOGITS, leaves, depth), name
        assert depth == 1 or len(set(found.tolist())) > 1, "inputs leave at different depths"


def test_a_regression_leaves_when_it_has_settled() -> None:
    values = LOGITS[..., :1]
    found = exit_iterations(values, CRITERIA["change"], 0.7)
    expected = left_by_loop(values, lambda a: len(a) > 1 and abs(a[-1, 0] - a[-2, 0]) <= 0.7, 6)
    assert found.tolist() == expected
    assert found.min() == 2, "nothing has settled before there is something to compare with"
    outputs = exit_outputs(values, found)
    assert all(outputs[row, 0] == values[found[row] - 1, row, 0] for row in range(500))


@pytest.mark.parametrize("name", ["confidence", "entropy", "patience"])
def test_a_sentence_leaves_with_its_least_certain_token(name: str) -> None:
    logits = RNG.normal(scale=4, size=(6, 1, 5, 3))
    threshold = {"confidence": 0.6, "entropy": 0.8, "patience": 1.0}[name]
    mask = np.array([[1, 1, 1, 1, 0]])  # [CLS] two tokens [SEP], padding
    assert counted_tokens(mask).tolist() == [[False, True, True, False, False]]
    found = exit_iterations(logits, CRITERIA[name], threshold, counted=counted_tokens(mask))[0]
    if name == "patience":
        labels = logits[:, 0, 1:3].argmax(axis=-1)
        settled = [t for t in range(1, 6) if (labels[t] == labels[t - 1]).all()]
        assert found == (settled[0] + 1 if settled else 6)
        return
    alone = [exit_iterations(logits[:, :, token], CRITERIA[name], threshold) for token in (1, 2)]
    scores = [CRITERIA[name].score(logits[:, :, token], None)[:, 0] for token in (1, 2)]
    both = [t for t in range(6) if all((s[t] >= threshold) == CRITERIA[name].at_least for s in scores)]
    assert found >= max(one[0] for one in alone) or both
    assert found == (both[0] + 1 if both else 6)


# -- a bundle's exits --------------------------------------------------------------------------------------------------


def test_feeds_and_their_refusals() -> None:
    exits = Exits("confidence", 0.9, iterations=6, labels=2)
    feeds = exits.feeds()
    assert (feeds["exit_threshold"], feeds["max_depth"]) == (np.float32(0.9), 6)
    assert exits.feeds(0.5, depth=2)["max_depth"] == 2
    assert exits.feeds(NEVER)["exit_threshold"] > 1
    assert Exits("entropy", 0.1, 6, 2).feeds(NEVER)["exit_threshold"] < 0
    for threshold, criterion in ((1.2, "confidence"), (-0.1, "entropy"), (0.7, "entropy"), (0, "patience")):
        with pytest.raises(EdgeAlbertError, match=f"exit_threshold {threshold}: the {criterion} criterion takes"):
            Exits(criterion, 1, 6, 2).feeds(threshold)
    with pytest.raises(EdgeAlbertError, match="whole number of equal answers"):
        Exits("patience", 1, 6, 2).feeds(1.5)
    with pytest.raises(EdgeAlbertError, match="takes a probability"):
        exits.feeds(math.nan)
    for depth in (0, 7):
        with pytest.raises(EdgeAlbertError, match="the model has 1 to 6 iterations"):
            exits.feeds(depth=depth)
    with pytest.raises(EdgeAlbertError, match="a number is needed, or 'never'"):
        exits.feeds("always")


@pytest.mark.parametrize("task", ["question-answering", "multiple-choice", "sentence-embedding"])
def test_tasks_that_cannot_exit_say_why(task: str) -> None:
    with pytest.raises(EdgeAlbertError, match=f"{task} cannot leave early: .* compare"):
        criteria_for(task)


# -- checkpoints -------------------------------------------------------------------------------------------------------


def test_config_keeps_the_field(tmp_path: Path) -> None:
    config = tiny_config("text-classification").with_exits("shared")
    assert config.exit_heads == "shared"
    assert AlbertConfig.from_dict(config.to_dict()).exit_heads == "shared"
    assert config.with_exits(None).exit_heads is None
    for said in ({"heads": "none"}, "shared", {}):
        with pytest.raises(ConfigError, match="heads must be one of shared, per-iteration"):
            replace(config, extra={"early_exit": said})


def test_heads_per_iteration_are_tensors_of_the_checkpoint(tmp_path: Path) -> None:
    config = tiny_config("text-classification").with_exits("per-iteration")
    tensors = tiny_tensors(config, "text-classification")
    assert sorted(name for name in tensors if name.startswith("exits.")) == [
        "exits.0.bias", "exits.0.weight", "exits.1.bias", "exits.1.weight",
    ]  # fmt: skip
    write_checkpoint(tmp_path / "model", config, tensors, task="text-classification")
    read = read_checkpoint(tmp_path / "model")
    np.testing.assert_array_equal(read.tensors["exits.1.weight"], tensors["exits.1.weight"])
    assert not [
        name for name in read_checkpoint(tmp_path / "model", task="sentence-embedding").tensors if "exit" in name
    ]
    short = {name: tensor for name, tensor in tensors.items() if name != "exits.1.bias"}
    with pytest.raises(CheckpointError, match=r"missing: exits.1.bias"):
        write_checkpoint(tmp_path / "other", config, short, task="text-classification")


@pytest.mark.parametrize("heads", ["shared", "per-iteration"])
def test_transformers_loads_the_full_depth_model(tmp_path: Path, heads: str) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from calibration.exits import ExitModel
    from edge_albert.tasks import TASKS

    folder = tiny_checkpoint(tmp_path / "model", extra={"early_exit": {"heads": heads}})
    theirs = transformers.AlbertForSequenceClassification.from_pretrained(folder).eval()
    read = read_checkpoint(folder)
    ids = RNG.integers(5, read.config.vocab_size, (4, 12))
    ones, zeros = np.ones_like(ids), np.zeros_like(ids)
    mine = ExitModel(read.config, read.tensors, TASKS["text-classification"])(ids, ones, zeros)
    with torch.no_grad():
        expected = theirs(torch.tensor(ids)).logits.numpy()
        states = theirs.albert(torch.tensor(ids), output_hidden_states=True).hidden_states
        first = torch.tanh(theirs.albert.pooler(states[1][:, 0]))
    np.testing.assert_allclose(mine[-1], expected, atol=1e-5)
    name = "classifier" if heads == "shared" else "exits.0"
    early = first.numpy() @ read.tensors[f"{name}.weight"].T + read.tensors[f"{name}.bias"]
    np.testing.assert_allclose(mine[0], early, atol=1e-5)
    assert json.loads((folder / "config.json").read_text())["early_exit"] == {"heads": heads}
