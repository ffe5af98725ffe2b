"""The benchmark's parent: one fresh process per engine and number of threads, one JSON document of them all.

A figure of memory is only good in a fresh process, and so is a start. Configurations are measured one after another;
when the run is stopped, what has been measured so far is kept and `complete` is false. The child is
edge_albert/runtime/bench_child.py, docs/benchmark.md describes the document.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from edge_albert import __version__
from edge_albert.bundle import Bundle, open_bundle
from edge_albert.documents import read_document
from edge_albert.errors import EngineError
from edge_albert.reports.device_state import read_state
from edge_albert.reports.machine import describe_machine
from edge_albert.runtime import child
from edge_albert.runtime.engine import choose_engine, installed

SCHEMA = "edge_albert.bench"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Request:
    """What to measure. engines: names, or ("all",); lengths: tokens, None for the usual ones that fit.

    texts: (text, pair or None), empty for the bundle's golden texts. The other fields are those of `edge_albert.load`.
    """

    bundle: str
    engines: tuple[str | None, ...] = (None,)
    threads: tuple[int, ...] = (1,)
    lengths: tuple[int, ...] | None = None
    runs: int = 50
    warm_up: int = 5
    texts: tuple[tuple[str, str | None], ...] = ()
    cache_dir: str | None = None
    memory_mb: float | None = None


def run_benchmark(request: Request, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Measure every configuration. KeyboardInterrupt ends it early: the document then says `"complete": false`.

    `say` gets a line per configuration. Raises BundleError and EngineError, the latter also when nothing could be
    measured at all; a configuration that fails beside others that do not is listed under `failed`.
    """
    bundle = open_bundle(request.bundle)
    engines = _engines(bundle, request.engines)
    result: dict[str, Any] = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "edge_albert": __version__,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "complete": False,
        "bundle": {"name": bundle.folder.resolve().name, "task": bundle.task.name},
        "machine": describe_machine(),
        "before": read_state(),
        "configurations": [],
        "failed": [],
    }
    try:
        for engine in engines:
            for threads in request.threads:
                say(f"measure  {engine}, {threads} thread{'s' * (threads > 1)}")
                _add(result, bundle, engine, threads, request)
        result["complete"] = True
    except KeyboardInterrupt:
        pass
    result["after"] = read_state()
    if result["failed"] and not result["configurations"]:
        raise EngineError(result["failed"][0]["reason"])
    return result


def _engines(bundle: Bundle, wanted: Sequence[str | None]) -> list[str]:
    if "all" not in wanted:
        return list(dict.fromkeys(choose_engine(bundle.formats, name) for name in wanted))
    choose_engine(bundle.formats)
    return [name for name in bundle.formats if installed(name)]


def _add(result: dict[str, Any], bundle: Bundle, engine: str, threads: int, request: Request) -> None:
    """Measure one configuration in its process and put it, or why it failed, into the document."""
    facts = {"engine": engine, "threads": threads, "precision": bundle.manifest["models"][engine].get("precision")}
    wanted = {**asdict(request), "engine": engine, "threads": threads}
    command = [sys.executable, "-m", "edge_albert.runtime.bench_child", json.dumps(wanted)]
    measured: dict[str, Any] = {}
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=child.environment(threads)
        ) as process,
    ):
        try:
            assert process.stdout is not None
            for line in process.stdout:
                measured = json.loads(line)
            status = process.wait()
        except KeyboardInterrupt:
            process.kill()
            if measured:
                result["configurations"].append({**facts, **measured})
            raise
        if status:
            errors.seek(0)
            reason = child.failure(bundle.folder, status, errors.read())
            result["failed"].append({"engine": engine, "threads": threads, "reason": reason})
        else:
            result["configurations"].append({**facts, **measured})


def read_result(path: Path) -> dict[str, Any]:
    """A document that the command wrote. DataError for a file of another kind or of another schema version."""
    remedy = "name a file that this version's python -m edge_albert.bench --output wrote"
    return read_document(path, SCHEMA, SCHEMA_VERSION, remedy)
