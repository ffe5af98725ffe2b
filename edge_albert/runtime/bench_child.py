"""One configuration of the benchmark, measured in this process, which does nothing else.

    python -m edge_albert.runtime.bench_child '{"bundle": "bundle", "engine": "onnx", "threads": 1, …}'

The parent's side is edge_albert/runtime/benchmark.py. Everything known so far is printed as one JSON line after every
stage, so that a parent which is stopped keeps what there was; the last line says `"complete": true`. docs/benchmark.md
describes the fields. Modules are imported late: their time and their memory are part of what is measured.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from edge_albert.cli import run_command

if TYPE_CHECKING:
    from edge_albert.runtime.load import Runner
    from edge_albert.runtime.session import Session

Result = dict[str, Any]


def measure(request: Result) -> None:
    """Measure what `request` says (the fields of benchmark.Request) and print as it goes."""
    model, result = _load(request)
    session = model.session
    result |= _facts(session)
    result["first_ms"] = _first(session, request)
    _say(result)
    for length in _lengths(session, request["lengths"]):
        result["lengths"].append(_length(session, length, request))
        _say(result)
    result["texts"] = _texts(session, request)
    result["self_check"] = _self_check(session)
    result["memory"] |= _peaks(result)
    _say({**result, "complete": True})


def _say(result: Result) -> None:
    print(json.dumps(result), flush=True)


def _load(request: Result) -> tuple[Runner, Result]:
    """The open bundle, with the times of getting there and the memory it holds."""
    started = time.perf_counter()
    from edge_albert.runtime.load import load
    from edge_albert.runtime.memory import read_memory

    imported = time.perf_counter()
    before = read_memory()
    model = load(
        request["bundle"],
        engine=request["engine"],
        threads=request["threads"],
        cache_dir=request["cache_dir"],
        memory_mb=request["memory_mb"],
    )
    loaded = time.perf_counter()
    after = read_memory()
    milliseconds = {"import_ms": imported - started, "load_ms": loaded - imported, "total_ms": loaded - started}
    return model, {
        "complete": False,
        "init": {name: seconds * 1e3 for name, seconds in milliseconds.items()},
        "memory": {
            "imported_anon_bytes": before.anon,
            "loaded_rss_bytes": after.rss,
            "loaded_anon_bytes": after.anon,
            "peak_rss_bytes": after.peak,
            "peak_anon_bytes": after.anon,
        },
        "lengths": [],
    }


def _facts(session: Session) -> Result:
    from dataclasses import asdict

    bundle, format = session.bundle, session.format
    packed = session.engine.packed
    return {
        "engine_version": session.engine.version,
        "model_sha256": bundle.model_hash(format),
        "model_bytes": bundle.model_path(format).stat().st_size,
        "mapped": packed is not None,
        "max_length": session.max_length,
        "plan": None if session.plan is None else asdict(session.plan),
    }


def _lengths(session: Session, wanted: list[int] | None) -> list[int]:
    """What was asked for, or of the usual lengths those that fit."""
    from edge_albert.errors import EngineError
    from edge_albert.runtime.probe import LENGTHS

    if wanted is None:
        return [length for length in LENGTHS if length <= session.max_length] or [session.max_length]
    if max(wanted) > session.max_length:
        raise EngineError(f"--lengths {max(wanted)}: {session.bundle.folder} takes at most {session.max_length} tokens")
    return wanted


def _feeds(session: Session, length: int) -> dict[str, Any]:
    """Random tokens. They say nothing about when real ones leave, so a model with early exit runs every iteration."""
    from edge_albert.early_exit import NEVER
    from edge_albert.runtime.probe import random_feeds

    exits = session.bundle.exits
    feeds: dict[str, Any] = random_feeds(length, session.bundle.config.vocab_size)
    return feeds if exits is None else {**feeds, **exits.feeds(NEVER)}


def _first(session: Session, request: Result) -> float:
    """Milliseconds of the first inference, at the first length: buffers are made, mapped pages are read."""
    feeds = _feeds(session, _lengths(session, request["lengths"])[0])
    started = time.perf_counter()
    session.engine.run(feeds)
    return (time.perf_counter() - started) * 1e3


def _length(session: Session, length: int, request: Result) -> Result:
    """Times of `runs` inferences of random tokens, batch 1, and the peak of memory meanwhile."""
    import numpy as np

    from edge_albert.runtime.memory import read_memory, reset_peak
    from edge_albert.runtime.timing import statistics

    feeds, runs = _feeds(session, length), request["runs"]
    own_peak = reset_peak()
    for _ in range(request["warm_up"]):
        session.engine.run(feeds)
    wall, cpu = np.empty(runs), np.empty(runs)
    for i in range(runs):
        started, worked = time.perf_counter(), time.process_time()
        session.engine.run(feeds)
        wall[i], cpu[i] = time.perf_counter() - started, time.process_time() - worked
    now = read_memory()
    known = own_peak and now.peak is not None and now.file is not None
    return {
        "length": length,
        "runs": runs,
        "ms": statistics(wall * 1e3),
        "cpu_ms": statistics(cpu * 1e3),
        "peak_rss_bytes": now.peak,
        "peak_anon_bytes": now.peak - now.file if known else now.anon,  # type: ignore[operator]
    }


def _texts(session: Session, request: Result) -> Result:
    """Real texts, one after another in turn: milliseconds to tokenise, to infer, and both together."""
    import numpy as np

    from edge_albert.runtime.timing import statistics

    pairs = request["texts"] or [(example["text"], example["pair"]) for example in session.bundle.golden()["examples"]]
    tokenise, infer, counts = np.empty(request["runs"]), np.empty(request["runs"]), []
    for i in range(-request["warm_up"], request["runs"]):
        text, pair = pairs[i % len(pairs)]
        started = time.perf_counter()
        encoding = session.encode(text, pair, truncate=True)
        tokenised = time.perf_counter()
        session.infer([encoding])
        ended = time.perf_counter()
        if i >= 0:
            tokenise[i], infer[i] = tokenised - started, ended - tokenised
            counts.append(len(encoding))
    return {
        "source": "file" if request["texts"] else "golden",
        "count": len(pairs),
        "runs": request["runs"],
        "mean_tokens": float(np.mean(counts)),
        "tokenise_ms": statistics(tokenise * 1e3),
        "infer_ms": statistics(infer * 1e3),
        "end_to_end_ms": statistics((tokenise + infer) * 1e3),
    }


def _self_check(session: Session) -> Result:
    from dataclasses import asdict

    from edge_albert.runtime.selfcheck import self_check

    found = self_check(session)
    return {"passed": found.passed, **asdict(found)}


def _peaks(result: Result) -> Result:
    """The largest of loading and of all lengths; None where the system does not tell."""
    out = {}
    for name in ("peak_rss_bytes", "peak_anon_bytes"):
        known = [part[name] for part in (result["memory"], *result["lengths"]) if part[name] is not None]
        out[name] = max(known) if known else None
    return out


def main(argv: list[str] | None = None) -> int:
    """The one argument is the request, as JSON."""
    (request,) = sys.argv[1:] if argv is None else argv
    measure(json.loads(request))
    return 0


if __name__ == "__main__":
    run_command(main)
