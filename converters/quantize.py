"""One weight ► int8 per row or int4 per block, and what that costs; one activation ► its scale and zero point.

Symmetric quantisation of weights: w ≈ q · scale. int8: q in [-127, 127] and one scale per row of the float array. A row
of a linear layer's weight (out, in) is an output channel; a row of an embedding table is one token. All-zero rows (the
padding token's) get scale 1, so that nothing is divided by zero and they stay zero. int4: q in [-7, 7] and one scale
for every block of 32, 64 or 128 neighbours in a row, which is a float16: both formats can then store it so.

Activations of static int8 are asymmetric: x ≈ (q - zero point) · scale, q in [-128, 127].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

BLOCK_SIZES = (32, 64, 128)
_INT4_MAX = 7
_SMALLEST_SCALE, _LARGEST_SCALE = np.float32(2**-14), np.float32(65504)  # of the normal float16


@dataclass(frozen=True)
class Quantized:
    """values (rows, columns) int8 and scale (rows,) float32, with values · scale ≈ the float array."""

    values: np.ndarray
    scale: np.ndarray

    def dequantize(self) -> np.ndarray:
        return self.values.astype(np.float32) * self.scale[:, None]


@dataclass(frozen=True)
class BlockQuantized:
    """int4 by block: values (rows, columns) int8 in [-7, 7], scales (rows, blocks) float32 that are float16 numbers.

    A block is columns / blocks neighbours in a row. shift (rows,) float32: what error compensation adds to the bias of
    the product, for what rounding does to the mean of the inputs.
    """

    values: np.ndarray
    scales: np.ndarray
    shift: np.ndarray | None = None

    @property
    def block_size(self) -> int:
        return self.values.shape[1] // self.scales.shape[1]

    def dequantize(self) -> np.ndarray:
        return self.values.astype(np.float32) * np.repeat(self.scales, self.block_size, axis=1)


@dataclass(frozen=True)
class ActivationRanges:
    """What the activations of static int8 span: {site of edge_albert/sites.py: (iterations or 1, 2) minimum, maximum}.

    One row holds for all iterations; several rows are for the iterations that pass the site, in order.
    """

    spans: Mapping[str, np.ndarray]

    def rows(self, site: str) -> np.ndarray:
        """(iterations or 1, 2) float32. KeyError for a site that was not recorded."""
        return np.asarray(self.spans[site], np.float32).reshape(-1, 2)

    def of_iteration(self, site: str, iteration: int | None) -> np.ndarray:
        """(2,) float32: the span in one iteration; with None, or where one row holds for all, over all of them."""
        rows = self.rows(site)
        if iteration is not None and len(rows) > 1:
            return rows[iteration]
        return np.array([rows[:, 0].min(), rows[:, 1].max()], np.float32)


@dataclass(frozen=True)
class WeightRecord:
    """How a writer stored one weight: its scheme in words, and ‖w − ŵ‖ / ‖w‖ of what stands in the file."""

    scheme: str
    relative_error: float


def quantize_rows(weight: np.ndarray) -> Quantized:
    """int8 with one scale per row of `weight` (rows, columns) float32."""
    peak = np.abs(weight).max(axis=1)
    scale = np.where(peak > 0, peak / 127.0, 1.0).astype(np.float32)
    values = np.clip(np.rint(weight / scale[:, None]), -127, 127).astype(np.int8)
    return Quantized(values, scale)


def fitting_block(columns: int, wanted: int) -> int | None:
    """The largest block size up to `wanted` that divides a row of `columns`; None where there is none: no int4 then."""
    return max((size for size in BLOCK_SIZES if size <= wanted and columns % size == 0), default=None)


def block_scales(weight: np.ndarray, block_size: int) -> np.ndarray:
    """Scales (rows, columns / block_size) with which each block's largest value becomes 7; rounded to float16."""
    rows, columns = weight.shape
    peak = np.abs(weight).reshape(rows, columns // block_size, block_size).max(axis=2)
    scales = np.where(peak > 0, np.clip(peak / _INT4_MAX, _SMALLEST_SCALE, _LARGEST_SCALE), 1.0)
    return scales.astype(np.float16).astype(np.float32)


def round_to_int4(weight: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """weight / scale to the nearest of -7 … 7, int8; `scale` broadcasts."""
    return np.clip(np.rint(weight / scale), -_INT4_MAX, _INT4_MAX).astype(np.int8)


def quantize_blocks(weight: np.ndarray, block_size: int) -> BlockQuantized:
    """int4 by plain rounding. weight (rows, columns) float32; `block_size` divides columns (see `fitting_block`)."""
    scales = block_scales(weight, block_size)
    return BlockQuantized(round_to_int4(weight, np.repeat(scales, block_size, axis=1)), scales)


def pack_nibbles(values: np.ndarray) -> np.ndarray:
    """int8 (rows, columns) ► uint8 (rows, columns / 2): neighbours in a byte, the left one in the low half."""
    nibbles = values.view(np.uint8) & 15
    return nibbles[:, ::2] | nibbles[:, 1::2] << 4


def pack_halves(values: np.ndarray) -> np.ndarray:
    """int4 (rows, columns) ► int8 (rows, columns / 2) = 16 · right + left + 8, from the two halves of each row.

    Chosen so that a graph gets them back by arithmetic: right = floor(byte / 16), left = byte - 16 · right - 8.
    """
    left, right = np.split(values, 2, axis=1)
    return (16 * right + left + 8).astype(np.int8)


def activation_parameters(spans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Spans (n, 2) ► scale (n,) float32 and zero point (n,) int8, such that 0 is exact and the span is covered."""
    low, high = np.minimum(spans[:, 0], 0.0), np.maximum(spans[:, 1], 0.0)
    width = (high - low).astype(np.float32)
    scale = np.where(width > 0, width / 255.0, 1.0).astype(np.float32)
    return scale, np.clip(np.rint(-128 - low / scale), -128, 127).astype(np.int8)


def relative_error(weight: np.ndarray, approximation: np.ndarray) -> float:
    """‖w − ŵ‖ / ‖w‖ (Frobenius), 0 for an all-zero weight."""
    norm = float(np.linalg.norm(weight))
    return float(np.linalg.norm(weight - approximation)) / norm if norm else 0.0
