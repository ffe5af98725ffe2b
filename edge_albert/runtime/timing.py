"""What a series of measured times says."""

from __future__ import annotations

import numpy as np


def statistics(values: np.ndarray) -> dict[str, float]:
    """min, mean, p50, p90, p95, p99, max and std (of the population) of some times, (n,), n ≥ 1, in their unit.

    Percentiles are by nearest rank, so each is a time that was observed.
    """
    shares = (50, 90, 95, 99)
    ranks = np.percentile(values, shares, method="inverted_cdf").tolist()
    return {
        "min": float(values.min()),
        "mean": float(values.mean()),
        **{f"p{share}": rank for share, rank in zip(shares, ranks, strict=True)},
        "max": float(values.max()),
        "std": float(values.std()),
    }
