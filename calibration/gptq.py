"""int4 rounding by error compensation, for a layer that is applied many times.

Rounding a weight to the nearest step is best for the weight, not for what it is multiplied with. GPTQ goes through the
columns of a matrix, rounds one, and moves the columns that are still to come so that they make up for the error, as far
as the inputs of the calibration set let them: it minimises ‖(W - Ŵ) X‖², for which all it needs of the inputs is
H = Σ x xᵀ. In an ALBERT one matrix has N different inputs, one per iteration, so H sums over all of them: Ŵ is right
for the layer's whole life, and not for its first iteration only. The inputs are those of the float model.

The mean of an input is left to the bias, which is float and can make up for it exactly: b' = b + (W - Ŵ) E[x], and the
columns only have to care for what varies, H = Σ (x - E[x]) (x - E[x])ᵀ. That is worth most where a few channels lie far
from zero in every token, as trained transformers have them.

A row of an embedding table is read through the norm and the projection behind it, which care for some directions more
than for others: their weights give an H without any calibration text, so tables are rounded the same way.

Source: Frantar et al., "GPTQ" (arXiv 2210.17323), algorithm 1 and section 3.3, with a scale for every block of a row,
worked out when its first column comes up. Columns are taken in their order ("act-order" would scatter the blocks).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibration.agreement import batches
from calibration.reference import ReferenceModel
from calibration.sensitivity import canonical_weights
from converters.quantize import BlockQuantized, block_scales, fitting_block, round_to_int4
from edge_albert.checkpoint import Checkpoint
from edge_albert.errors import CheckpointError
from edge_albert.progress import Progress
from edge_albert.sites import quantizable_weights
from edge_albert.tasks import Task
from edge_albert.tokenizer import Encoding

DAMPING = 0.01  # of the mean of H's diagonal, added to it: the paper's choice
_STRIPE = 128  # columns whose errors are passed on to the rest of the matrix in one product
_ROWS = 1024  # inputs that are waited for before they are added up: one large product, not many small ones
_CLIPS = np.linspace(1.0, 0.7, 7)  # shares of a block's largest value that are tried as the end of its range


@dataclass(frozen=True)
class Inputs:
    """What is kept of the inputs x of a product: mean (in,) and H = Σ (x - mean)(x - mean)ᵀ, (in, in); float64."""

    count: int
    mean: np.ndarray
    hessian: np.ndarray

    def joined(self, other: Inputs) -> Inputs:
        """Those of both (the pairwise update of Chan et al., 1979)."""
        count = self.count + other.count
        apart = other.mean - self.mean
        hessian = self.hessian + other.hessian + np.outer(apart, apart) * (self.count * other.count / count)
        return Inputs(count, self.mean + apart * (other.count / count), hessian)


class _Sums:
    """Adds up one site's inputs, a few batches at a time, as distances from the mean of the first ones: in float32."""

    def __init__(self) -> None:
        self._waiting: list[np.ndarray] = []
        self._count = 0
        self._origin: np.ndarray | None = None

    def add(self, rows: np.ndarray) -> None:
        self._waiting.append(rows.copy())
        if sum(map(len, self._waiting)) >= _ROWS:
            self._flush()

    def _flush(self) -> None:
        rows = np.concatenate(self._waiting)
        self._waiting.clear()
        if self._origin is None:
            self._origin = rows.mean(axis=0)
            self._sum = np.zeros(rows.shape[1])
            self._products = np.zeros((rows.shape[1], rows.shape[1]))
        rows -= self._origin
        self._count += len(rows)
        self._sum += rows.sum(axis=0, dtype=np.float64)
        self._products += rows.T @ rows

    def inputs(self) -> Inputs:
        if self._waiting:
            self._flush()
        assert self._origin is not None
        mean = self._sum / self._count
        self._products -= self._count * np.outer(mean, mean)
        return Inputs(self._count, self._origin + mean, self._products)


def compensated_weights(
    checkpoint: Checkpoint, task: Task, encodings: Sequence[Encoding], names: Iterable[str], *, block_size: int = 64
) -> dict[str, BlockQuantized]:
    """int4 values, scales and shifts of those of the weights `names` that have a fitting block size.

    encodings: of the calibration set, run through the float model once. Memory: one (in, in) float64 array for every
    distinct input, 110 MB for an ALBERT-base, however many texts there are. Tied weights are rounded as one.
    """
    sites = quantizable_weights(checkpoint.config, pooled=task.pooled)
    full = canonical_weights(checkpoint, task)
    weights = {name: checkpoint.float32(full[name]) for name in names}
    weights = {name: w for name, w in weights.items() if fitting_block(w.shape[1], block_size) is not None}
    tied: dict[bytes, list[str]] = {}
    for name, weight in weights.items():
        tied.setdefault(weight.tobytes(), []).append(name)
    wanted = {sites[name] for name in weights} - {""}
    inputs = collect_inputs(checkpoint, task, encodings, wanted) if wanted else {}
    inputs[""] = table_readers(checkpoint)
    out: dict[str, BlockQuantized] = {}
    with Progress(len(tied), "round") as bar:
        for alike in tied.values():
            first, *others = sorted({sites[name] for name in alike})
            seen = inputs[first]
            for site in others:
                seen = seen.joined(inputs[site])
            out.update(dict.fromkeys(alike, _rounded(weights[alike[0]], seen, block_size)))
            bar.update()
    return out


def table_readers(checkpoint: Checkpoint) -> Inputs:
    """What the rows e of the embedding tables are read by: H such that e H eᵀ is what the projection makes of e.

    That is W g (e - mean(e)), with the norm's weights g and the projection's W (H, E); the division by the row's own
    deviation, which the norm does besides, weighs all directions alike.
    """
    gamma = checkpoint.float32("albert.embeddings.LayerNorm.weight").astype(np.float64)
    projection = checkpoint.float32("albert.encoder.embedding_hidden_mapping_in.weight") * gamma  # (H, E)
    centred = projection - projection.mean(axis=1, keepdims=True)
    return Inputs(0, np.zeros(len(gamma)), centred.T @ centred)


def collect_inputs(
    checkpoint: Checkpoint, task: Task, encodings: Sequence[Encoding], sites: set[str]
) -> dict[str, Inputs]:
    """{site: its inputs over the tokens of all texts and all iterations}."""
    sums = {site: _Sums() for site in sites}

    def observe(site: str, iteration: int, rows: np.ndarray) -> None:
        if site in sums:
            sums[site].add(rows)

    model = ReferenceModel(checkpoint.config, checkpoint.tensors, task, observe=observe)
    with Progress(len(encodings), "inputs") as bar:
        for indices, feeds in batches(encodings, checkpoint.config.pad_token_id):
            model(**feeds)
            bar.update(len(indices))
    found = {site: sums[site].inputs() for site in sites}
    for site, inputs in found.items():
        if not np.isfinite(inputs.hessian).all():
            raise CheckpointError(
                f"{checkpoint.source}: {site} is not finite on ordinary text: the weights are damaged; train it again"
            )
    return found


def _rounded(weight: np.ndarray, inputs: Inputs, block_size: int) -> BlockQuantized:
    """One matrix, with what its rounding adds to the bias; a table, which has neither a mean nor a bias, without."""
    size = fitting_block(weight.shape[1], block_size)
    assert size is not None
    quantized = compensate(weight, inputs.hessian, size)
    if not inputs.mean.any():
        return quantized
    shift = (weight.astype(np.float64) - quantized.dequantize()) @ inputs.mean
    return replace(quantized, shift=shift.astype(np.float32))


def compensate(weight: np.ndarray, hessian: np.ndarray, block_size: int, *, damping: float = DAMPING) -> BlockQuantized:
    """Round weight (out, in) float32 to int4, given H (in, in) of its inputs; `block_size` divides in."""
    rows, columns = weight.shape
    left = weight.astype(np.float64)  # what is still to be rounded, corrections included
    factor = _inverse_factor(hessian, damping)
    importance = np.diag(hessian)
    values = np.empty((rows, columns), np.int8)
    scales = np.empty((rows, columns // block_size), np.float32)
    stripe = max(block_size, _STRIPE)
    for start in range(0, columns, stripe):
        end = min(start + stripe, columns)
        errors = np.empty((rows, end - start))
        for column in range(start, end):
            block = column // block_size
            if column % block_size == 0:
                span = np.s_[column : column + block_size]
                scales[:, block] = _best_scales(left[:, span], importance[span])
            scale = scales[:, block]
            values[:, column] = round_to_int4(left[:, column], scale)
            error = (left[:, column] - values[:, column] * scale.astype(np.float64)) / factor[column, column]
            left[:, column:end] -= np.outer(error, factor[column, column:end])
            errors[:, column - start] = error
        left[:, end:] -= errors @ factor[start:end, end:]
    return BlockQuantized(values, scales)


def _inverse_factor(hessian: np.ndarray, damping: float) -> np.ndarray:
    """The upper triangular R with RᵀR = H⁻¹, H damped. An input that is always 0 gets nothing from others."""
    damped = hessian.astype(np.float64)
    diagonal = np.diag(damped).copy()
    mean = float(diagonal.mean()) or 1.0
    damped[np.diag_indices_from(damped)] += np.where(diagonal > 0, damping * mean, mean)
    lower = np.linalg.cholesky(damped[::-1, ::-1])  # of H backwards, so that its inverse, turned round, is upper
    return _lower_inverse(lower)[::-1, ::-1]


def _lower_inverse(lower: np.ndarray) -> np.ndarray:
    """Of a lower triangular matrix, by halves: a sixth of the work of an inverse that does not know the shape."""
    half = len(lower) // 2
    if half < 64:
        return np.linalg.inv(lower)
    out = np.zeros_like(lower)
    out[:half, :half] = above = _lower_inverse(lower[:half, :half])
    out[half:, half:] = below = _lower_inverse(lower[half:, half:])
    out[half:, :half] = -below @ lower[half:, :half] @ above
    return out


def _best_scales(block: np.ndarray, importance: np.ndarray) -> np.ndarray:
    """(rows,) scales of one block (rows, size): of the ranges tried, the one with the least error at its inputs."""
    full = block_scales(block.astype(np.float32), block.shape[1])  # (rows, 1)
    best, least = full[:, 0], np.full(len(block), np.inf)
    for share in _CLIPS:
        scale = (full * share).astype(np.float16).astype(np.float32)
        loss = ((block - round_to_int4(block, scale) * scale) ** 2) @ importance
        best, least = np.where(loss < least, scale[:, 0], best), np.minimum(loss, least)
    return best
