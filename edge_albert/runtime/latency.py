"""A budget of milliseconds as a limit on iterations, by what the benchmark has measured on this device.

An inference costs about as much as it has iterations: the embedding and the head are a few per cent. So of N iterations
that took t milliseconds, N · budget / t fit. The benchmark times every iteration of inputs of several lengths; an input
counts as long as the next longer one that was timed. The times are 90th percentiles, so one inference in ten may be
later than the budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edge_albert.errors import EngineError


@dataclass(frozen=True)
class LatencyBudget:
    """ms: for one inference. times: (tokens, milliseconds of all iterations), the shortest first."""

    ms: float
    times: tuple[tuple[int, float], ...]

    def iterations(self, tokens: int, all_of_them: int) -> int:
        """How many of the model's iterations fit, at least 1. EngineError when not even one does."""
        longest, most = self.times[-1]
        full = next((time for length, time in self.times if length >= tokens), most * tokens / longest)
        if full > self.ms * all_of_them:
            raise EngineError(
                f"latency_ms {self.ms:g}: one iteration of {tokens} tokens takes about {full / all_of_them:.1f} ms on "
                "this device: allow more, or shorten the text"
            )
        return min(all_of_them, int(self.ms * all_of_them / full))


def read_budget(benchmark: str | Path | None, ms: float, engine: str | None) -> LatencyBudget:
    """The budget by the times of an engine in a result of `python -m edge_albert.bench --output`; None: of the first.

    DataError for a file of another kind, EngineError when it has no times of that engine.
    """
    if benchmark is None:
        raise EngineError(
            "latency_ms: needs the times of this device (--benchmark): python -m edge_albert.bench BUNDLE --output JSON"
        )
    if not ms > 0:
        raise EngineError(f"latency_ms {ms:g}: must be above 0")
    from edge_albert.runtime.benchmark import read_result

    rows = [row for row in read_result(Path(benchmark))["configurations"] if engine in (None, row["engine"])]
    times = sorted((int(one["length"]), float(one["ms"]["p90"])) for row in rows[:1] for one in row["lengths"])
    if not times:
        raise EngineError(f"{benchmark}: has no times of the engine {engine!r}: run the benchmark with it")
    return LatencyBudget(ms, tuple(times))
