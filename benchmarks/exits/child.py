"""One file over one set of inputs, in a process of its own: `python benchmarks/exits/child.py < job.json`.

The job: `file`, `engine`, `plain` (a peer's file, opened with the engine's defaults) and `inputs`, a list of
[input_ids, token_type_ids]. Printed: milliseconds of CPU time and logits of every input, and the iterations it used
where the file says them. Every input runs alone on one thread, after one pass over all that is not timed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from edge_albert.early_exit import ITERATIONS
from edge_albert.runtime.engine import open_engine
from edge_albert.runtime.probe import Feeds, open_plain

Run = Callable[[Feeds], tuple[np.ndarray, float | None]]


def measure(job: dict[str, Any]) -> dict[str, Any]:
    run = _plain(job) if job["plain"] else _ours(job)
    feeds = [_feeds(ids, types) for ids, types in job["inputs"]]
    for one in feeds:
        run(one)
    cpu, logits, iterations = [], [], []
    for one in feeds:
        started = time.process_time()
        row, used = run(one)
        cpu.append(1e3 * (time.process_time() - started))
        logits.append(row.tolist())
        iterations.append(used)
    return {"cpu_ms": cpu, "logits": logits, "iterations": iterations}


def _feeds(ids: list[int], types: list[int]) -> Feeds:
    rows = {"input_ids": ids, "attention_mask": [1] * len(ids), "token_type_ids": types}
    return {name: np.array([row], np.int64) for name, row in rows.items()}


def _plain(job: dict[str, Any]) -> Run:
    _, run = open_plain(Path(job["file"]), job["engine"], threads=1)
    return lambda feeds: (run(feeds)[0][0], None)  # type: ignore[index]


def _ours(job: dict[str, Any]) -> Run:
    engine = open_engine(job["file"], threads=1)

    def run(feeds: Feeds) -> tuple[np.ndarray, float | None]:
        found = engine.run(feeds)
        return found["logits"][0], float(found[ITERATIONS][0]) if ITERATIONS in found else None

    return run


if __name__ == "__main__":
    json.dump(measure(json.load(sys.stdin)), sys.stdout)
