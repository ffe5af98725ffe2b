"""Choosing where inputs leave: every criterion and threshold tried on one half of labelled rows, judged on the other.

The float model answers once after every iteration; from those answers every threshold's result follows, so that trying
all of them costs one pass. Rows are halved by the hash of their inputs, so that a row stays in its half whatever the
order of the file, and a row that is there twice is not in both. On the first half the cheapest setting is taken that
loses at most half of what is allowed: of many settings tried the best looks better than it is, and the other half is
there to say so. What the gate then judges is the exported file, on the second half.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibration.agreement import Rows, batches
from calibration.gate import Evaluation
from calibration.reference import ReferenceModel, Tensors
from edge_albert.checkpoint_formats.tensors import exit_head
from edge_albert.config import AlbertConfig
from edge_albert.early_exit import (
    CRITERIA,
    Criterion,
    counted_tokens,
    exit_iterations,
    exit_outputs,
)
from edge_albert.errors import DataError, EdgeAlbertError
from edge_albert.tasks import Task
from edge_albert.tokenizer import Encoding

_SPENT_CHOOSING = 0.5  # of the points that may be lost, on the half that chooses
_CONFIDENCES = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999)
_SHARES = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # of the largest entropy


# -- the float model after every iteration -----------------------------------------------------------------------------


class ExitModel:
    """The float model with its answer after every iteration."""

    def __init__(self, config: AlbertConfig, tensors: Tensors, task: Task) -> None:
        self.config, self.task = config, task
        tensors = {name: np.asarray(tensor, np.float32) for name, tensor in tensors.items()}  # once for all heads
        self._model = ReferenceModel(config, tensors, task)
        self._heads = [self._model] * config.num_hidden_layers
        for i in range(config.num_hidden_layers - 1 if config.exit_heads == "per-iteration" else 0):
            own = {f"{task.head}.{part}": tensors[f"{exit_head(i)}.{part}"] for part in ("weight", "bias")}
            self._heads[i] = ReferenceModel(config, {**tensors, **own}, task)

    def __call__(self, input_ids: np.ndarray, attention_mask: np.ndarray, token_type_ids: np.ndarray) -> np.ndarray:
        """(B, S) each ► logits (N, B, C), or (N, B, S, C) for token labels."""
        x = self._model.embed(input_ids, attention_mask, token_type_ids)
        answers = []
        for iteration, head in enumerate(self._heads):
            x = self._model.iterate(x, attention_mask, iteration)
            answers.append(head.head(x, attention_mask))
        return np.stack(answers)

    def rows(self, encodings: Sequence[Encoding]) -> Rows:
        """Each input's answers, (N, C) or (N, S, C) without padding, in the order of `encodings`."""
        out: Rows = [np.empty(0)] * len(encodings)
        for batch, feeds in batches(encodings, self.config.pad_token_id):
            answers = self(**feeds)
            for place, index in enumerate(batch):
                row = answers[:, place]
                out[index] = row[:, : len(encodings[index].input_ids)] if self.task.per_token else row
        return out


def leave(rows: Rows, criterion: Criterion, threshold: float, *, depth: int | None = None) -> tuple[Rows, np.ndarray]:
    """The answer of every input where it leaves, and after which iteration. rows: as `ExitModel.rows` gives them."""
    if rows[0].ndim == 2:
        answers = np.stack(rows, axis=1)  # (N, B, C)
        used = exit_iterations(answers, criterion, threshold, depth=depth)
        return list(exit_outputs(answers, used)), used
    outputs, iterations = [], np.zeros(len(rows), np.int64)
    for index, row in enumerate(rows):  # (N, S, C), each with its own S
        counted = counted_tokens(np.ones((1, row.shape[1]), np.int64))
        used = exit_iterations(row[:, None], criterion, threshold, depth=depth, counted=counted)
        outputs.append(exit_outputs(row[:, None], used)[0])
        iterations[index] = used[0]
    return outputs, iterations


# -- choosing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """A criterion and threshold with what they do on some rows: mean iterations, the metric in points, its drop."""

    criterion: str
    threshold: float
    mean_iterations: float
    points: float
    drop: float


@dataclass(frozen=True)
class Choice:
    """chosen: the setting, as it did on the half that chose; confirmed: the same on the other half.

    rows: how many each half has.
    """

    chosen: Setting
    confirmed: Setting
    rows: tuple[int, int]


@dataclass(frozen=True)
class Trial:
    """A criterion and threshold with the answer of every input, and after which iteration it left."""

    criterion: str
    threshold: float
    outputs: Rows
    iterations: np.ndarray


def trials(rows: Rows, names: Sequence[str], config: AlbertConfig) -> list[Trial]:
    """Every threshold worth trying of these criteria. rows: as `ExitModel.rows` gives them."""
    last = np.array([row[-1].ravel()[0] for row in rows])
    return [
        Trial(name, threshold, *leave(rows, CRITERIA[name], threshold))
        for name in names
        for threshold in thresholds(name, config.num_labels, last, config.num_hidden_layers)
    ]


def thresholds(criterion: str, labels: int, last: np.ndarray, iterations: int) -> list[float]:
    """The thresholds worth trying. last: a regression's values at full depth, whose spread says what a change means."""
    if criterion == "confidence":
        return list(_CONFIDENCES)
    if criterion == "entropy":
        return [round(share * float(np.log(labels)), 4) for share in _SHARES]
    if criterion == "patience":
        return [float(k) for k in range(1, iterations)]
    return [round(share * float(last.std()), 4) for share in (0.005, *_SHARES)]


def setting(trial: Trial, evaluation: Evaluation, part: np.ndarray, full: float) -> Setting:
    """What a trial comes to on some of the evaluation's entries. full: their points at full depth."""
    points = points_of(evaluation, trial.outputs, part)
    used = float(trial.iterations[inputs_of(evaluation, part)].mean())
    return Setting(trial.criterion, trial.threshold, used, points, full - points)


def choose(
    tried: Sequence[Trial], rows: Rows, evaluation: Evaluation, halves: tuple[np.ndarray, np.ndarray], max_drop: float
) -> Choice:
    """The cheapest setting on the first half, and what it does on the second.

    rows: as `ExitModel.rows` gives them for the evaluation's encodings, `tried` what `trials` made of them. halves: as
    `split_rows` makes them. max_drop: points. EdgeAlbertError when no setting that saves anything loses so little.
    """
    last = [row[-1] for row in rows]
    full = [points_of(evaluation, last, half) for half in halves]
    found = [setting(trial, evaluation, halves[0], full[0]) for trial in tried]
    allowed = _SPENT_CHOOSING * max_drop + 1e-9
    fit = [i for i, one in enumerate(found) if one.drop <= allowed and one.mean_iterations < len(rows[0])]
    if not fit:
        raise EdgeAlbertError(
            f"--early-exit auto: on {int(halves[0].sum())} rows of {evaluation.source} no criterion saves an iteration "
            f"and loses at most {allowed:.2f} points, half of --max-drop: allow more, or export without early exit"
        )
    place = min(fit, key=lambda i: (found[i].mean_iterations, found[i].drop, i))
    counts = int(halves[0].sum()), int(halves[1].sum())
    return Choice(found[place], setting(tried[place], evaluation, halves[1], full[1]), counts)


# -- halves -----------------------------------------------------------------------------------------------------------


def split_rows(evaluation: Evaluation) -> tuple[np.ndarray, np.ndarray]:
    """Two masks over the evaluation's entries, about half each, by the sha256 of each entry's token numbers."""
    judged = evaluation.judged
    tokens: list[list[object]] = [[] for _ in judged.gold]
    for entry, encoding in zip(judged.entry_of, judged.encodings, strict=True):
        tokens[entry] += [encoding.input_ids, encoding.token_type_ids]
    keys = [repr(tuple(inputs)) for inputs in tokens]
    first = np.array([hashlib.sha256(key.encode()).digest()[0] % 2 == 0 for key in keys])
    if first.all() or not first.any():
        raise DataError(
            f"{evaluation.source}: {len(keys)} rows are too few to choose on one half and judge on the other"
        )
    return first, ~first


def part_of(evaluation: Evaluation, half: np.ndarray) -> Evaluation:
    """The evaluation judged on these entries alone; a model still has to answer for all of its inputs."""
    judged = evaluation.judged
    kept = replace(judged, gold=judged.gold[half], predict=lambda outputs: judged.predict(outputs)[half])
    return replace(evaluation, judged=kept)


def inputs_of(evaluation: Evaluation, half: np.ndarray) -> np.ndarray:
    """Which inputs of the model those entries are: each of them, or its windows."""
    return half[evaluation.judged.entry_of]


def points_of(evaluation: Evaluation, outputs: Rows, half: np.ndarray) -> float:
    """The metric in points (100 × the metric) on some entries."""
    return 100 * evaluation.measure(evaluation.judged.gold[half], evaluation.judged.predict(outputs)[half])
