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


class WeightRecorder:
    """Turns weights into what a file stores and notes how, under the name each has in the file: `records`."""

    def __init__(self) -> None:
        self.records: dict[str, WeightRecord] = {}
        self._quantized: dict[str, Quantized] = {}

    def int8(self, name: str, weight: np.ndarray) -> Quantized:
        """int8 per row, worked out once: an unrolled body asks again for every iteration."""
        if name not in self._quantized:
            quantized = quantize_rows(weight)
            self._quantized[name] = quantized
            self.records[name] = WeightRecord("int8 per row", relative_error(weight, quantized.dequantize()))
        return self._quantized[name]

    def fp16(self, name: str, weight: np.ndarray) -> np.ndarray:
        half = weight.astype(np.float16)
        self.records[name] = WeightRecord("fp16", relative_error(weight, half.astype(np.float32)))
        return half

    def fp32(self, name: str, weight: np.ndarray) -> np.ndarray:
        self.records[name] = WeightRecord("fp32", 0.0)
        return weight
