"""One weight ► int8 per row, and what that costs.

Symmetric quantisation: w ≈ q · scale with q in [-127, 127] and one scale per row of the float array. A row of a linear
layer's weight (out, in) is an output channel; a row of an embedding table is one token. All-zero rows (the padding
token's) get scale 1, so that nothing is divided by zero and they stay zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Quantized:
    """values (rows, columns) int8 and scale (rows,) float32, with values · scale ≈ the float array."""

    values: np.ndarray
    scale: np.ndarray

    def dequantize(self) -> np.ndarray:
        return self.values.astype(np.float32) * self.scale[:, None]


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


def relative_error(weight: np.ndarray, approximation: np.ndarray) -> float:
    """‖w − ŵ‖ / ‖w‖ (Frobenius), 0 for an all-zero weight."""
    norm = float(np.linalg.norm(weight))
    return float(np.linalg.norm(weight - approximation)) / norm if norm else 0.0
