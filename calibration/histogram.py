"""One activation's distribution in bounded memory, whatever the number of texts and their order.

Counts lie in 2 × 2,048 bins over [-limit, limit], where limit is a power of two. A value outside doubles the limit as
often as needed: neighbouring bins then fall into one, so nothing is counted twice or guessed (TensorRT's and ONNX
Runtime's calibrators add bins instead, and grow without bound). Because a limit is a power of two and follows from the
largest value alone, the same values give the same histogram in any order, and histograms can be added.
"""

from __future__ import annotations

import numpy as np

HALF = 2048  # bins on each side of zero, as many as TensorRT's calibrator has
_SMALLEST = 2.0**-20  # the first limit; far below any activation that matters


class Histogram:
    """Counts, extremes and the peak of every channel of the arrays handed to `add`.

    counts: (2 · HALF,) int64 over [-limit, limit]. low, high: exact extremes. peaks: (channels,) float32, the largest
    absolute value of each entry of the last axis.
    """

    def __init__(self) -> None:
        self.counts = np.zeros(2 * HALF, np.int64)
        self.limit = _SMALLEST
        self.low = np.inf
        self.high = -np.inf
        self.peaks = np.zeros(0, np.float32)

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    @property
    def width(self) -> float:
        """Of one bin."""
        return self.limit / HALF

    @property
    def centres(self) -> np.ndarray:
        """(2 · HALF,) float64: the middle of every bin."""
        return (np.arange(-HALF, HALF) + 0.5) * self.width

    def add(self, values: np.ndarray) -> None:
        """Count an array (…, channels) of finite floats. ValueError for one that is empty or not finite."""
        if not values.size or not np.isfinite(values).all():
            raise ValueError("an activation is empty or holds a number that is not finite")
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
        peaks = np.abs(values.reshape(-1, values.shape[-1])).max(axis=0).astype(np.float32)
        self.peaks = np.maximum(self.peaks, peaks) if self.peaks.size else peaks
        self._widen(max(-self.low, self.high))
        places = np.floor(values.ravel() * np.float32(1 / self.width)).astype(np.int64) + HALF
        self.counts += np.bincount(np.clip(places, 0, 2 * HALF - 1), minlength=2 * HALF)

    def percentile(self, percent: float) -> float:
        """The value below which `percent` of the values lie, to the width of a bin, never beyond the extremes."""
        wanted = percent / 100 * self.total
        bin_ = int(np.searchsorted(np.cumsum(self.counts), wanted, side="left"))
        edge = (min(bin_, 2 * HALF - 1) - HALF + (percent > 50)) * self.width  # outwards: the bin is inside
        return float(np.clip(edge, self.low, self.high))

    def _widen(self, peak: float) -> None:
        while self.limit < peak:
            merged = self.counts.reshape(HALF, 2).sum(axis=1)  # bins 2i and 2i + 1 fall into one
            self.counts = np.zeros(2 * HALF, np.int64)
            self.counts[HALF // 2 : HALF + HALF // 2] = merged
            self.limit *= 2

    @staticmethod
    def sum(parts: list[Histogram]) -> Histogram:
        """What one histogram over the values of all `parts` would hold."""
        out = Histogram()
        for part in parts:
            other = Histogram()
            other.counts, other.limit = part.counts.copy(), part.limit
            other._widen(out.limit)
            out._widen(other.limit)
            out.counts += other.counts
            out.low, out.high = min(out.low, part.low), max(out.high, part.high)
            out.peaks = np.maximum(out.peaks, part.peaks) if out.peaks.size else part.peaks.copy()
        return out
