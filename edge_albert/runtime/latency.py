"""A budget of milliseconds as a limit on iterations, by what the benchmark has measured on this device.

An inference costs about as much as it has iterations: the embedding and the head are a few per cent. So of N iterations
that took t milliseconds, N · budget / t fit. The benchmark times every iteration of inputs of several lengths; an input
counts as long as the next longer one that was timed. The times are 90th percentiles, so one inference in ten may be
later than the budget. They hold for the engine, the model and the number of threads that were timed, and for one input
at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from edge_albert.errors import DataError, EngineError


@dataclass(frozen=True)
class LatencyRequest:
    """What somebody wants. ms: for one inference. benchmark: what `python -m edge_albert.bench --output` wrote."""

    ms: float
    benchmark: str | Path

    @classmethod
    def of(cls, ms: float | None, benchmark: str | Path | None) -> LatencyRequest | None:
        """None when no budget is asked for. EngineError for half a request, or a time that is none."""
        if ms is None:
            if benchmark is not None:
                raise EngineError("benchmark: says nothing without a budget: give latency_ms (--latency-ms) too")
            return None
        if not 0 < ms < math.inf:
            raise EngineError(f"latency_ms {ms:g}: must be a number above 0")
        if benchmark is None:
            raise EngineError(
                "latency_ms: needs the times of this device (--benchmark): python -m edge_albert.bench BUNDLE "
                "--output JSON"
            )
        return cls(ms, benchmark)


@dataclass(frozen=True)
class LatencyBudget:
    """ms: for one inference. times: (tokens, milliseconds of all iterations), the shortest first; threads: theirs."""

    ms: float
    times: tuple[tuple[int, float], ...]
    threads: int

    def iterations(self, tokens: int, all_of_them: int) -> int:
        """How many of the model's iterations fit, at least 1. DataError for an input of which not even one does."""
        longest, most = self.times[-1]
        full = next((time for length, time in self.times if length >= tokens), most * tokens / longest)
        if full > self.ms * all_of_them:
            raise DataError(
                f"latency_ms {self.ms:g}: one iteration of {tokens} tokens takes about {full / all_of_them:.1f} ms on "
                "this device: allow more, or shorten the text"
            )
        return min(all_of_them, int(self.ms * all_of_them / full))


def read_budget(request: LatencyRequest, *, engine: str, threads: int | None, model_sha256: str) -> LatencyBudget:
    """The budget by the times of this model, in this engine, with so many threads; None: as many as it was timed with.

    DataError for a file of another kind, EngineError when it has no such times.
    """
    from edge_albert.runtime.benchmark import read_result

    rows = read_result(Path(request.benchmark))["configurations"]
    remedy = f"run python -m edge_albert.bench on this bundle with --engine {engine}"
    rows = [row for row in rows if row["engine"] == engine and row["lengths"]]
    if not rows:
        raise EngineError(f"{request.benchmark}: has no times of the engine {engine!r}: {remedy}")
    rows = [row for row in rows if row["model_sha256"] == model_sha256]
    if not rows:
        raise EngineError(f"{request.benchmark}: has the times of another model: {remedy}")
    counted = [row["threads"] for row in rows]
    rows = [row for row in rows if threads in (None, row["threads"])]
    if not rows:
        timed = ", ".join(map(str, counted))
        raise EngineError(
            f"{request.benchmark}: has times with {timed} threads, not {threads}: take as many, or {remedy} "
            f"--threads {threads}"
        )
    times = sorted((int(one["length"]), float(one["ms"]["p90"])) for one in rows[0]["lengths"])
    return LatencyBudget(request.ms, tuple(times), int(rows[0]["threads"]))
