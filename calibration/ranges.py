"""Which part of an activation's distribution eight bits shall cover: four answers, from one histogram.

minmax      everything that occurred. One freak value makes all steps wide.
percentile  all but 0.005 % at either end (99.99 % kept; ONNX Runtime's calibrator cuts the same way).
entropy     the cut whose quantised distribution is nearest to the true one by Kullback-Leibler divergence: Migacz,
            "8-bit Inference with TensorRT" (GTC 2017), also in ONNX Runtime. It judges how often values occur, not how
            large they are, so it gives up rare outliers, those that carry the signal too.
mse         the cut with the least mean squared error: rounding noise step²/12 inside, the distance to the cut outside
            (Banner et al., "Post training 4-bit quantization", NeurIPS 2019). It gives up outliers only as far as the
            finer steps repay it.

Every answer holds zero, since zero must be exact, and lies within the extremes that occurred.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from calibration.histogram import HALF, Histogram

LEVELS = 256
PERCENTILE = 99.99
_STRIDE = 16  # bins between two cuts that entropy tries: 128 cuts in all
_SMOOTH = 1e-4  # count given to empty bins, so that a divergence is finite (as in ONNX Runtime)
_CUTS = 400  # that mse tries, evenly between nothing and everything

Range = tuple[float, float]


def minmax(histogram: Histogram) -> Range:
    return _with_zero(histogram.low, histogram.high)


def percentile(histogram: Histogram, percent: float = PERCENTILE) -> Range:
    """What is left when (100 - percent) / 2 of the values are cut off at either end."""
    cut = (100 - percent) / 2
    return _with_zero(histogram.percentile(cut), histogram.percentile(100 - cut))


def entropy(histogram: Histogram) -> Range:
    """The cut, the same on both sides of zero but never beyond the extremes, of least divergence."""
    first, last = _occupied(histogram)
    best, least = HALF, np.inf
    for half in range(LEVELS // 2, HALF + 1, _STRIDE):
        start, end = max(first, HALF - half), min(last, HALF + half)
        if end - start < LEVELS:
            continue  # fewer bins than levels: nothing is lost that a histogram could show
        divergence = _divergence(histogram.counts, start, end)
        if divergence < least:
            best, least = half, divergence
    return _cut(histogram, best * histogram.width)


def mse(histogram: Histogram) -> Range:
    """The cut, the same on both sides of zero but never beyond the extremes, of least mean squared error."""
    peak = max(-histogram.low, histogram.high)
    if peak <= 0:
        return 0.0, 0.0
    centres, counts = histogram.centres, histogram.counts / histogram.total
    occupied = counts > 0
    centres, counts = centres[occupied], counts[occupied]
    best, least = peak, np.inf
    for cut in np.linspace(peak, 0, _CUTS, endpoint=False):
        low, high = _cut(histogram, float(cut))
        outside = np.maximum(np.maximum(centres - high, low - centres), 0)
        noise = ((high - low) / (LEVELS - 1)) ** 2 / 12
        error = float(counts @ np.where(outside > 0, outside * outside, noise))
        if error < least:
            best, least = float(cut), error
    return _cut(histogram, best)


METHODS: dict[str, Callable[[Histogram], Range]] = {
    "minmax": minmax,
    "percentile": percentile,
    "entropy": entropy,
    "mse": mse,
}


def _with_zero(low: float, high: float) -> Range:
    return min(low, 0.0), max(high, 0.0)


def _cut(histogram: Histogram, cut: float) -> Range:
    return _with_zero(max(histogram.low, -cut), min(histogram.high, cut))


def _occupied(histogram: Histogram) -> tuple[int, int]:
    """The bins from the smallest value or zero to the largest value or zero: [first, last)."""
    bins = np.flatnonzero(histogram.counts)
    return min(int(bins[0]), HALF), max(int(bins[-1]) + 1, HALF)


def _divergence(counts: np.ndarray, start: int, end: int) -> float:
    """KL(p ‖ q): p the counts with what is cut off added at the ends, q those inside at LEVELS levels."""
    inside = counts[start:end].astype(np.float64)
    p = inside.copy()
    p[0] += counts[:start].sum()
    p[-1] += counts[end:].sum()
    edges = np.arange(LEVELS) * len(inside) // LEVELS  # the first bin of each level
    occupied = p > 0
    level_counts = np.add.reduceat(inside, edges)
    level_bins = np.add.reduceat(occupied.astype(np.float64), edges)
    mean = np.divide(level_counts, level_bins, out=np.zeros(LEVELS), where=level_bins > 0)
    q = np.where(occupied, np.repeat(mean, np.diff(edges, append=len(inside))), 0.0)
    p, q = _smoothed(p), _smoothed(q)
    p, q = p / p.sum(), q / q.sum()
    return float(np.sum(p * np.log(p / q)))


def _smoothed(counts: np.ndarray) -> np.ndarray:
    """Empty bins get a little, taken evenly from the others."""
    empty = counts == 0
    taken = _SMOOTH * empty.sum() / max(1, (~empty).sum())
    return np.where(empty, _SMOOTH, np.maximum(counts - taken, _SMOOTH))
