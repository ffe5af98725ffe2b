"""Building every row's file and measuring it: whole processes, in turn, medians over rounds."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from edge_albert.errors import EdgeAlbertError
from edge_albert.runtime.probe import probe_in_fresh_process
from peers.rows import Row

ROOT = Path(__file__).resolve().parents[2]
_TORCH_SIDE = Path(__file__).with_name("torch_side.py")
_EXPORTS = 3  # an export takes seconds, so its time needs fewer repetitions than an inference's

Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What is measured and how. folder: the Hugging Face folder; work: for everything that is written."""

    rows: tuple[Row, ...]
    folder: Path
    work: Path
    lengths: tuple[int, ...]
    rounds: int
    runs: int
    vocab_size: int


@dataclass(frozen=True)
class Outcome:
    """measured: one dictionary per row, in the plan's order. skipped, failed: row name ► why it is not among them."""

    measured: list[dict[str, Any]]
    skipped: dict[str, str]
    failed: dict[str, str]


def run_plan(plan: Plan, say: Say) -> Outcome:
    """Build and measure all rows. A row that fails is reported and the others go on."""
    skipped = {row.name: f"{row.needs} is not installed" for row in plan.rows if not row.possible}
    failed: dict[str, str] = {}
    rows = [row for row in plan.rows if row.name not in skipped]
    exports = _build_all(plan, rows, failed, say)
    agreements = _agreement(plan, [row for row in rows if row.name in exports], failed)
    rows = [row for row in rows if (row.made_by or row.name) in agreements]
    _fill_caches(plan, rows, failed)
    probes: dict[str, list[dict[str, Any]]] = {row.name: [] for row in rows}
    for number in range(plan.rounds):
        for row in rows:
            if row.name in failed:
                continue
            say(f"round {number + 1} of {plan.rounds}: {row.name}")
            try:
                probes[row.name].append(_probe(plan, row, plan.lengths, plan.runs))
            except EdgeAlbertError as error:
                failed[row.name] = str(error)
    measured = [
        _summary(row, probes[row.name], exports.get(row.name, []), agreements[row.made_by or row.name])
        for row in rows
        if row.name not in failed
    ]
    return Outcome(measured, skipped, failed)


def model_file(plan: Plan, row: Row) -> Path:
    return _output(plan, row) / row.file


def _output(plan: Plan, row: Row) -> Path:
    return plan.work / "rows" / (row.made_by or row.name)


def _cache(plan: Plan, row: Row) -> Path | None:
    return plan.work / "caches" / row.name if row.mapped else None


# -- building ----------------------------------------------------------------------------------------------------------


def _build_all(plan: Plan, rows: Sequence[Row], failed: dict[str, str], say: Say) -> dict[str, list[float]]:
    """Make every row's file, in turn and several times. Row name ► seconds of each process; failures go to `failed`."""
    seconds: dict[str, list[float]] = {}
    for number in range(min(plan.rounds, _EXPORTS)):
        for row in rows:
            if not row.command or row.name in failed:
                continue
            say(f"export {number + 1}: {row.name}")
            try:
                seconds.setdefault(row.name, []).append(_build(plan, row))
            except EdgeAlbertError as error:
                failed[row.name] = str(error)
                seconds.pop(row.name, None)
    for row in rows:
        if row.made_by and row.made_by not in seconds:
            failed[row.name] = f"it opens the file of {row.made_by}, which was not made"
    return seconds


def _build(plan: Plan, row: Row) -> float:
    """Seconds from the start of the process to the finished file."""
    output = _output(plan, row)
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    command = [row.interpreter, *(part.format(model=plan.folder, output=output) for part in row.command)]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    seconds = time.perf_counter() - started
    if done.returncode or not model_file(plan, row).is_file():
        raise EdgeAlbertError(f"{row.name}: the export failed: {_last_line(done.stderr)}")
    return seconds


def _agreement(plan: Plan, rows: Sequence[Row], failed: dict[str, str]) -> dict[str, dict[str, float]]:
    """Row name ► distance of its file from the float model; files that do not run go to `failed`."""
    if not rows:
        return {}
    files = {row.name: str(model_file(plan, row)) for row in rows}
    command = [sys.executable, str(_TORCH_SIDE), "agreement", str(plan.folder)]
    command += ["--plain", *(files[row.name] for row in rows if row.plain)]
    command += ["--ours", *(files[row.name] for row in rows if not row.plain)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise EdgeAlbertError(f"{plan.folder}: the comparison with the float model failed: {_last_line(done.stderr)}")
    found = {name: json.loads(done.stdout)[file] for name, file in files.items()}
    failed.update({name: result["error"] for name, result in found.items() if "error" in result})
    return {name: result for name, result in found.items() if name not in failed}


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]


# -- measuring ---------------------------------------------------------------------------------------------------------


def _fill_caches(plan: Plan, rows: Sequence[Row], failed: dict[str, str]) -> None:
    """Start once where weights are mapped from a cache: what is measured is the second start."""
    for row in rows:
        cache = _cache(plan, row)
        if cache is None:
            continue
        shutil.rmtree(cache, ignore_errors=True)
        try:
            _probe(plan, row, plan.lengths[:1], runs=1)
        except EdgeAlbertError as error:
            failed[row.name] = str(error)
            continue
        if not cache.is_dir() or not any(cache.iterdir()):
            failed[row.name] = f"{cache}: the first start left no cache there"


def _probe(plan: Plan, row: Row, lengths: Sequence[int], runs: int) -> dict[str, Any]:
    return probe_in_fresh_process(
        model_file(plan, row),
        lengths=lengths,
        runs=runs,
        threads=1,
        vocab_size=plan.vocab_size,
        cache_dir=_cache(plan, row),
        plain=row.plain,
    )


def _summary(
    row: Row, probes: Sequence[dict[str, Any]], export: Sequence[float], agreement: dict[str, float]
) -> dict[str, Any]:
    """One row's figures, medians over the rounds, with all rounds behind them."""
    lengths = {}
    for index, first in enumerate(probes[0]["runs"]):
        runs = [probe["runs"][index] for probe in probes]
        lengths[str(first["length"])] = {
            "cpu_ms": _median([run["cpu_ms"]["p50"] for run in runs]),
            "wall_ms": _median([run["wall_ms"]["p50"] for run in runs]),
            "anon_bytes": _median([run["anon_bytes"] for run in runs]),
        }
    return {
        "name": row.name,
        "label": row.label,
        "engine": probes[0]["engine"],
        "file_bytes": probes[0]["file_bytes"],
        "export_seconds": _median(export),
        "load_ms": _median([probe["load_ms"] for probe in probes]),
        "load_anon_bytes": _median([probe["load_anon_bytes"] for probe in probes]),
        "peak_rss_bytes": _median([probe["peak_rss_bytes"] for probe in probes]),
        "lengths": lengths,
        "agreement": agreement,
        "exports": list(export),
        "rounds": list(probes),
    }


def _median(values: Sequence[float | None]) -> float | None:
    """Of those that are known; None when none is."""
    known = [value for value in values if value is not None]
    return median(known) if known else None
