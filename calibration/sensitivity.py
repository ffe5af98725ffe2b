"""Which matrix, in which iteration, costs what: one weight at a time is rounded, and the model's answers compared.

ALBERT's layer is applied N times, so a matrix can be rounded in one iteration alone (a row of the heat map: where the
damage is done) or in all of them (what a file can do, since the weights stand once). The float model runs once per
batch and its state before every iteration is kept; a rounded run starts from there. Everything is NumPy, weights alone:
what quantised activations add is measured on the exported file.

loss: how far answers move, averaged over texts: Kullback-Leibler divergence from the float model's classes, or starts
and ends, in nats; 1 - cosine for an embedding; squared difference over the variance of the float model's numbers for a
regression or a choice. changed: the share of texts (of tokens) whose label changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from calibration.agreement import Rows, batches, same_label
from calibration.reference import ReferenceModel
from calibration.texts import spread
from converters.quantize import fitting_block, quantize_blocks, quantize_rows
from edge_albert.checkpoint import Checkpoint
from edge_albert.config import AlbertConfig, count_macs
from edge_albert.progress import Progress
from edge_albert.sites import quantizable_weights, short_name
from edge_albert.tasks import Task
from edge_albert.tokenizer import Encoding
from edge_albert.training.metrics.glue import pearson

PRECISIONS = ("int8", "int4")
MAP_PRECISION = "int4"  # of the heat map: where int8 hurts too little to be seen, int4 shows the same order
BLOCK_SIZE = 64
MOST_MACS = 1e12  # multiply-adds of the whole study: a minute on a laptop
_LEAST_TEXTS = 8


@dataclass(frozen=True)
class Cost:
    """What one rounding costs; see the module's docstring. changed: in [0, 1], None for a task without labels."""

    loss: float
    changed: float | None


@dataclass(frozen=True)
class Sensitivity:
    """texts: how many were compared. matrices: {weight: {precision: cost in all iterations}}, in the model's order.

    iterations: {weight of the layer: cost of MAP_PRECISION in each iteration alone, None where another group works}.
    """

    texts: int
    matrices: Mapping[str, Mapping[str, Cost]]
    iterations: Mapping[str, Sequence[Cost | None]]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Sensitivity:
        """KeyError or TypeError for a content that `to_json` did not make."""
        return cls(
            content["texts"],
            {name: {p: Cost(**cost) for p, cost in costs.items()} for name, costs in content["matrices"].items()},
            {name: [c and Cost(**c) for c in costs] for name, costs in content["iterations"].items()},
        )


def fake_quantize(weight: np.ndarray, precision: str, block_size: int = BLOCK_SIZE) -> np.ndarray:
    """The weight (rows, columns) as a file of that precision gives it back; int8 where no int4 block fits its rows."""
    if precision == "fp32":
        return weight
    block = fitting_block(weight.shape[1], block_size) if precision == "int4" else None
    return (quantize_rows(weight) if block is None else quantize_blocks(weight, block)).dequantize()


def measure_sensitivity(
    checkpoint: Checkpoint,
    task: Task,
    encodings: Sequence[Encoding],
    *,
    block_size: int = BLOCK_SIZE,
    by_iteration: bool = True,
) -> Sensitivity:
    """Round one matrix at a time, over as many of the texts as MOST_MACS allow, evenly spaced. Shows a progress bar.

    by_iteration: also in each iteration alone, which takes most of the time; False leaves `iterations` empty.
    """
    config = checkpoint.config
    names = canonical_weights(checkpoint, task)
    chosen = _affordable(config, encodings, len(names), by_iteration)
    model = ReferenceModel(config, checkpoint.tensors, task)
    variants = {
        (name, precision): model.with_weight(full, fake_quantize(checkpoint.float32(full), precision, block_size))
        for name, full in names.items()
        for precision in PRECISIONS
    }
    study = _Study(model, task, by_iteration)
    with Progress(len(chosen), "sensitivity") as bar:
        for indices, feeds in batches(chosen, config.pad_token_id):
            lengths = [len(chosen[i].input_ids) for i in indices]
            study.batch(variants, feeds, lengths)
            bar.update(len(indices))
    return study.result(names, len(chosen))


def canonical_weights(checkpoint: Checkpoint, task: Task) -> dict[str, str]:
    """{weight name: the tensor's name in the checkpoint}, of the matrices whose precision can be chosen."""
    wanted = quantizable_weights(checkpoint.config, pooled=task.pooled)
    full = {short_weight_name(name): name for name in checkpoint.tensors}
    return {name: full[name] for name in wanted}


def short_weight_name(name: str) -> str:
    """albert.embeddings.word_embeddings.weight ► embeddings.word.weight, and as `edge_albert.sites.short_name`."""
    return short_name(name).replace("_embeddings.weight", ".weight")


class _Study:
    """The float model's states of one batch after the other, and every variant's answers beside its own."""

    def __init__(self, model: ReferenceModel, task: Task, by_iteration: bool) -> None:
        self._model = model
        self._task = task
        self._by_iteration = by_iteration
        self._expected: Rows = []
        self._found: dict[tuple[str, str, int | None], Rows] = {}  # None: in all iterations

    def batch(
        self, variants: Mapping[tuple[str, str], ReferenceModel], feeds: Mapping[str, np.ndarray], lengths: list[int]
    ) -> None:
        mask = feeds["attention_mask"]
        states = [self._model.embed(**feeds)]
        for iteration in range(self._model.config.num_hidden_layers):
            states.append(self._model.iterate(states[-1], mask, iteration))
        self._expected += self._rows(self._model.head(states[-1], mask), lengths)
        for (name, precision), variant in variants.items():
            for only, output in self._outputs(name, precision, variant, feeds, states):
                rows = self._found.setdefault((name, precision, only), [])
                rows += self._rows(output, lengths)

    def _outputs(
        self,
        name: str,
        precision: str,
        variant: ReferenceModel,
        feeds: Mapping[str, np.ndarray],
        states: Sequence[np.ndarray],
    ) -> Iterator[tuple[int | None, np.ndarray]]:
        """(the one iteration that is rounded, None for all; the answers)"""
        mask, count = feeds["attention_mask"], self._model.config.num_hidden_layers
        in_layer = name.startswith("layer.")
        if name.startswith("pooler."):
            yield None, variant.head(states[-1], mask)
            return
        x = states[0] if in_layer else variant.embed(**feeds)
        for iteration in range(count):
            x = (variant if in_layer else self._model).iterate(x, mask, iteration)
        yield None, self._model.head(x, mask)
        if not (self._by_iteration and in_layer and precision == MAP_PRECISION):
            return
        for only in range(count):
            if not _works_in(name, only, self._model.config):
                continue
            x = variant.iterate(states[only], mask, only)
            for later in range(only + 1, count):
                x = self._model.iterate(x, mask, later)
            yield only, self._model.head(x, mask)

    def _rows(self, output: np.ndarray, lengths: Sequence[int]) -> Rows:
        return [row[:length] if self._task.per_token else row for row, length in zip(output, lengths, strict=True)]

    def result(self, names: Mapping[str, str], texts: int) -> Sensitivity:
        costs = {key: compare_cost(self._expected, rows, self._task) for key, rows in self._found.items()}
        layers = range(self._model.config.num_hidden_layers)
        return Sensitivity(
            texts,
            {name: {p: costs[name, p, None] for p in PRECISIONS} for name in names},
            {
                name: [costs.get((name, MAP_PRECISION, iteration)) for iteration in layers]
                for name in names
                if self._by_iteration and name.startswith("layer.")
            },
        )


def compare_cost(expected: Rows, found: Rows, task: Task) -> Cost:
    """What the answers `found` cost beside the float model's, text by text in the same order."""
    same = [share for a, b in zip(expected, found, strict=True) if (share := same_label(a, b, task)) is not None]
    return Cost(_loss(expected, found, task), 1 - float(np.mean(same)) if same else None)


def points_lost(expected: Rows, found: Rows, task: Task) -> float:
    """How many of 100 answers are no longer the float model's, text by text in the same order.

    With labels: those that change, which no accuracy can fall by more than. Without: 100 × (1 - cosine) of embeddings,
    100 × (1 - correlation) of numbers.
    """
    cost = compare_cost(expected, found, task)
    if cost.changed is not None:
        return 100 * cost.changed
    if task.head is None:
        return 100 * cost.loss
    numbers, others = (np.array([float(row[0]) for row in rows]) for rows in (expected, found))
    return 100 * (1 - pearson(numbers, others))


def _loss(expected: Rows, found: Rows, task: Task) -> float:
    pairs = list(zip(expected, found, strict=True))
    if task.head is None:
        return float(np.mean([max(0.0, 1 - float(a @ b)) for a, b in pairs]))
    if expected[0].shape[-1] == 1:
        numbers, others = (np.array([float(row[0]) for row in rows]) for rows in (expected, found))
        variance = float(numbers.var())
        return float(np.mean((numbers - others) ** 2)) / (variance or 1.0)
    axis = 0 if task.name == "question-answering" else -1  # (S, 2): starts and ends are choices among the tokens
    return float(np.mean([_divergence(a, b, axis) for a, b in pairs]))


def _divergence(a: np.ndarray, b: np.ndarray, axis: int) -> float:
    """KL(softmax a ‖ softmax b) along `axis`, averaged over the other, in nats."""
    p, q = _log_softmax(a, axis), _log_softmax(b, axis)
    return max(0.0, float(np.sum(np.exp(p) * (p - q), axis=axis).mean()))


def _log_softmax(x: np.ndarray, axis: int) -> np.ndarray:
    x = x.astype(np.float64) - x.max(axis=axis, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=axis, keepdims=True))


def _works_in(name: str, iteration: int, config: AlbertConfig) -> bool:
    """Whether the weight `name` of a layer is used in that iteration: layer.1.0.ffn.weight belongs to group 1."""
    group = name.split(".")[1]
    return (int(group) if group.isdigit() else 0) == config.group_of(iteration)


def _affordable(
    config: AlbertConfig, encodings: Sequence[Encoding], weights: int, by_iteration: bool
) -> list[Encoding]:
    """As many texts as MOST_MACS allow: in all iterations each weight runs once per precision, and in one alone
    a triangle of iterations."""
    passes = weights * (len(PRECISIONS) + by_iteration * (config.num_hidden_layers + 1) / 2)
    macs = sum(count_macs(config, len(encoding.input_ids)) for encoding in encodings) * passes
    return spread(encodings, max(_LEAST_TEXTS, int(len(encodings) * min(1.0, MOST_MACS / macs))))
