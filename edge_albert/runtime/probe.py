"""What a model costs on this machine: load time, time per inference, memory; measured in a process of its own.

    python -m edge_albert.runtime.probe --model bundle/model.onnx --lengths 16,128,512

A figure of memory is only good in a fresh process: an allocator keeps what an earlier model left behind. The parent's
side is `probe_in_fresh_process`; the child runs this module.

**Memory** is counted over a baseline: the interpreter with NumPy, the engine's package and the inputs in it, nothing of
the model. `anon_bytes` is the growth of anonymous memory (edge_albert/runtime/memory.py), which cannot be dropped; this
project's runtime modules count as part of what a model costs. Peaks are of the whole process.

**Time** is taken of single runs, after WARM_UP runs, as wall time and as CPU time (of all threads together). On a
machine that others use too, wall time is noise: compare CPU times, and only within one run of a benchmark. Importing
modules is not part of the load time.

Token ids are random but always the same; every position is attended to, and the batch is one sequence.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edge_albert.cli import run_command
from edge_albert.early_exit import DEPTH, THRESHOLD
from edge_albert.errors import EngineError
from edge_albert.runtime import child
from edge_albert.runtime.engine import PACKAGES, choose_engine, open_engine
from edge_albert.runtime.memory import Memory, read_memory, reset_peak
from edge_albert.runtime.timing import statistics

WARM_UP = 2
LENGTHS = (16, 128, 512)
RUNS = 20
VOCAB_SIZE = 30000  # of every released English ALBERT
_FIRST_ORDINARY_ID = 5  # after <pad> <unk> [CLS] [SEP] [MASK]
_CLS, _SEP = 2, 3

# package ► the module whose import loads its native library
_LIBRARIES = {
    "onnxruntime": ("onnxruntime",),
    "ai_edge_litert": ("ai_edge_litert.interpreter", "ai_edge_litert.compiled_model"),
    "tflite_runtime": ("tflite_runtime.interpreter",),
    "tensorflow": ("tensorflow.lite.python.interpreter",),
}
# what ONNX calls an input's type
_DTYPES: dict[str, type[np.generic]] = {
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(float)": np.float32,
}

Feeds = dict[str, np.ndarray]
Run = Callable[[Feeds], object]

# -- the parent's side -------------------------------------------------------------------------------------------------


def probe_in_fresh_process(
    model: str | Path,
    *,
    engine: str | None = None,
    threads: int = 1,
    lengths: Sequence[int] = LENGTHS,
    runs: int = RUNS,
    vocab_size: int = VOCAB_SIZE,
    cache_dir: str | Path | None = None,
    plain: bool = False,
    exit_threshold: float | None = None,
    max_depth: int | None = None,
) -> dict[str, Any]:
    """Measure a model file in a new process and return what `measure` returns there; the arguments are the same.

    Raises EngineError when the child fails.
    """
    command = [sys.executable, "-m", "edge_albert.runtime.probe", "--json", "--model", str(model)]
    command += ["--threads", str(threads), "--runs", str(runs), "--vocab-size", str(vocab_size)]
    command += ["--lengths", ",".join(map(str, lengths))]
    command += ["--engine", engine] if engine else []
    command += ["--cache", str(cache_dir)] if cache_dir else []
    command += ["--plain"] if plain else []
    command += [] if exit_threshold is None else [f"--exit-threshold={exit_threshold}"]
    command += [] if max_depth is None else ["--max-depth", str(max_depth)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=child.environment(threads))
    if done.returncode:
        raise EngineError(child.failure(model, done.returncode, done.stderr))
    return json.loads(done.stdout)


# -- the child's side --------------------------------------------------------------------------------------------------


def measure(
    model: Path,
    *,
    engine: str | None,
    threads: int,
    lengths: Sequence[int],
    runs: int,
    vocab_size: int,
    cache_dir: Path | None,
    plain: bool,
    exit_threshold: float | None = None,
    max_depth: int | None = None,
) -> dict[str, Any]:
    """Measure a model file in this process, which should have done nothing else. Returns numbers as JSON takes them.

    engine: "onnx" or "tflite", None to follow the file's name. lengths: tokens, run in this order. runs: timed runs of
    each. vocab_size: ids are drawn below it. cache_dir: of packed weights, made on the first start; probe twice to
    measure the second. plain: open the file with the engine's own defaults apart from threads, as its documentation
    does, and not with this project's runtime; its inputs may then have other names. exit_threshold, max_depth: for a
    file with early exit, about which random tokens say nothing: the criterion's, and the iterations after which every
    input leaves; None for its own, or for a file without.

    Bytes end in `_bytes`, milliseconds in `_ms`; what the system does not tell is None. `anon_bytes` at the top is the
    largest seen after loading or after any length. A length's `peak_rss_bytes` is its own where the system lets the
    peak be reset, otherwise the peak so far. Raises EngineError for a file or an engine that cannot be used.
    """
    name = _checked_engine(model, engine, plain)
    feeds = {length: random_feeds(length, vocab_size) for length in lengths}
    for one in feeds.values():
        one |= {} if exit_threshold is None else {THRESHOLD: np.array(exit_threshold, np.float32)}
        one |= {} if max_depth is None else {DEPTH: np.array(max_depth, np.int64)}
    _import_engine(name)
    gc.collect()
    baseline = read_memory()
    if not plain:
        importlib.import_module(f"edge_albert.runtime.{name}_engine")
    wall, cpu = time.perf_counter(), time.process_time()
    version, run = open_plain(model, name, threads) if plain else _open_ours(model, name, threads, cache_dir)
    load_wall, load_cpu = time.perf_counter() - wall, time.process_time() - cpu
    loaded = read_memory()
    rows = [_measure_length(run, length, feeds[length], runs, baseline) for length in lengths]
    load_anon = _growth(loaded, baseline)
    return {
        "schema": "edge_albert.probe",
        "schema_version": 1,
        "file": model.name,
        "file_bytes": model.stat().st_size,
        "engine": version,
        "threads": threads,
        "baseline_rss_bytes": baseline.rss,
        "baseline_anon_bytes": baseline.anon,
        "load_ms": load_wall * 1e3,
        "load_cpu_ms": load_cpu * 1e3,
        "load_anon_bytes": load_anon,
        "anon_bytes": _largest([load_anon, *(row["anon_bytes"] for row in rows)]),
        "peak_rss_bytes": _largest([loaded.peak, *(row["peak_rss_bytes"] for row in rows)]),
        "runs": rows,
    }


def _checked_engine(model: Path, engine: str | None, plain: bool) -> str:
    name = engine or model.suffix.lstrip(".")
    if not model.is_file():
        raise EngineError(f"{model}: no such file: name a .onnx or .tflite model")
    if name not in PACKAGES:
        raise EngineError(f"{model}: no engine is called {name!r}: choose one of {', '.join(PACKAGES)} with --engine")
    return choose_engine([name])


def _import_engine(name: str) -> None:
    """Import the engine's own modules, so that they count as part of the baseline."""
    package = next(package for package in PACKAGES[name] if importlib.util.find_spec(package))
    for module in _LIBRARIES[package]:
        if importlib.util.find_spec(module):  # compiled_model: from ai-edge-litert 1.2 on
            importlib.import_module(module)


def _open_ours(model: Path, engine: str, threads: int, cache_dir: Path | None) -> tuple[str, Run]:
    opened = open_engine(model, engine=engine, threads=threads, cache_dir=cache_dir)
    return opened.version, opened.run


def open_plain(model: Path, engine: str, threads: int) -> tuple[str, Run]:
    """The engine with its own defaults, whatever the graph calls its inputs. A run gives the list of outputs."""
    return _open_plain_onnx(model, threads) if engine == "onnx" else _open_plain_tflite(model, threads)


def _open_plain_tflite(model: Path, threads: int) -> tuple[str, Run]:
    import ai_edge_litert
    from ai_edge_litert.interpreter import Interpreter

    try:
        interpreter = Interpreter(model_path=str(model), num_threads=threads)
    except (RuntimeError, ValueError) as error:
        raise EngineError(f"{model}: LiteRT refused it ({str(error).splitlines()[0]})") from None
    inputs = [(node["index"], _meaning(node["name"], model), node["dtype"]) for node in interpreter.get_input_details()]
    outputs = [node["index"] for node in interpreter.get_output_details()]
    shapes: list[tuple[int, ...]] = []

    def run(feeds: Feeds) -> object:
        shape = feeds["input_ids"].shape
        if shapes != [shape]:
            for index, _, _ in inputs:
                interpreter.resize_tensor_input(index, shape)
            interpreter.allocate_tensors()
            shapes[:] = [shape]
        for index, meaning, dtype in inputs:
            interpreter.set_tensor(index, feeds[meaning].astype(dtype, copy=False))
        interpreter.invoke()
        return [interpreter.get_tensor(index) for index in outputs]

    return f"ai-edge-litert {ai_edge_litert.__version__}", run


def _open_plain_onnx(model: Path, threads: int) -> tuple[str, Run]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    try:
        session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's own classes share no base but Exception
        raise EngineError(f"{model}: ONNX Runtime {ort.__version__} refused it ({_first_line(error)})") from None
    inputs = [(node.name, _meaning(node.name, model), _dtype(node.type, model)) for node in session.get_inputs()]

    def run(feeds: Feeds) -> object:
        arrays = {name: feeds[meaning].astype(dtype, copy=False) for name, meaning, dtype in inputs}
        try:
            return session.run(None, arrays)
        except Exception as error:  # as above
            raise EngineError(f"{model}: ONNX Runtime could not run it ({_first_line(error)})") from None

    return f"onnxruntime {ort.__version__}", run


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


def _meaning(name: str, model: Path) -> str:
    """Which of ALBERT's three inputs a graph's input is, by the words that exporters use."""
    for word, meaning in (("mask", "attention_mask"), ("type", "token_type_ids"), ("segment", "token_type_ids")):
        if word in name.lower():
            return meaning
    if "id" in name.lower():
        return "input_ids"
    raise EngineError(f"{model}: input {name!r} is none of ids, mask and token types: nothing can be made up for it")


def _dtype(kind: str, model: Path) -> type[np.generic]:
    if kind not in _DTYPES:
        raise EngineError(f"{model}: an input is a {kind}: expected one of {', '.join(_DTYPES)}")
    return _DTYPES[kind]


def random_feeds(length: int, vocab_size: int, seed: int = 0) -> Feeds:
    """ALBERT's three inputs for one sequence of random tokens, [CLS] … [SEP]: each (1, length) int64.

    Ids are at least 5, past the special tokens, and below vocab_size. The same arguments give the same ids.
    """
    rng = np.random.default_rng((seed, length))
    ids = rng.integers(_FIRST_ORDINARY_ID, vocab_size, (1, length), dtype=np.int64)
    ids[0, 0], ids[0, -1] = _CLS, _SEP
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


def _measure_length(run: Run, length: int, feeds: Feeds, runs: int, baseline: Memory) -> dict[str, Any]:
    reset_peak()
    for _ in range(WARM_UP):
        run(feeds)
    wall, cpu = np.empty(runs), np.empty(runs)
    for i in range(runs):
        started, worked = time.perf_counter(), time.process_time()
        run(feeds)
        wall[i], cpu[i] = time.perf_counter() - started, time.process_time() - worked
    after = read_memory()
    return {
        "length": length,
        "runs": runs,
        "wall_ms": statistics(wall * 1e3),
        "cpu_ms": statistics(cpu * 1e3),
        "anon_bytes": _growth(after, baseline),
        "rss_bytes": after.rss,
        "peak_rss_bytes": after.peak,
    }


def _growth(now: Memory, baseline: Memory) -> int | None:
    return None if now.anon is None or baseline.anon is None else now.anon - baseline.anon


def _largest(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return max(known) if known else None


# -- the command -------------------------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python -m edge_albert.runtime.probe",
        description="Load time, time per inference and memory of one model file, measured in this fresh process.",
        epilog="example: python -m edge_albert.runtime.probe --model bundle/model.onnx --lengths 16,128,512 --json",
    )
    out.add_argument("--model", type=Path, required=True, metavar="FILE", help="a .onnx or .tflite file")
    out.add_argument("--engine", choices=tuple(PACKAGES), help="default: by the file's name")
    out.add_argument("--threads", type=_positive, default=1, help="of one inference (default 1)")
    out.add_argument("--lengths", type=_lengths, default=LENGTHS, help="tokens, in the order to run (16,128,512)")
    out.add_argument("--runs", type=_positive, default=RUNS, help=f"timed runs of each length (default {RUNS})")
    out.add_argument("--vocab-size", type=_vocab_size, default=VOCAB_SIZE, help=f"ids are below it ({VOCAB_SIZE})")
    out.add_argument("--cache", type=Path, metavar="DIR", help="keep weights packed for this processor in DIR")
    out.add_argument("--plain", action="store_true", help="the engine's own defaults, not this project's runtime")
    out.add_argument("--exit-threshold", type=float, metavar="X", help="of a file with early exit (its own)")
    out.add_argument("--max-depth", type=_positive, metavar="N", help="of a file with early exit: leave after N")
    out.add_argument("--json", action="store_true", help="everything, as JSON on standard output")
    return out


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = parser().parse_args(argv)
    result = measure(
        options.model,
        engine=options.engine,
        threads=options.threads,
        lengths=options.lengths,
        runs=options.runs,
        vocab_size=options.vocab_size,
        cache_dir=options.cache,
        plain=options.plain,
        exit_threshold=options.exit_threshold,
        max_depth=options.max_depth,
    )
    print(json.dumps(result) if options.json else _as_text(result))
    return 0


def _as_text(result: dict[str, Any]) -> str:
    lines = [
        f"{result['file']}: {_mb(result['file_bytes'])}, {result['engine']}, threads {result['threads']}",
        f"load {result['load_ms']:.1f} ms, anonymous memory {_mb(result['load_anon_bytes'])}",
    ]
    for row in result["runs"]:
        lines.append(
            f"{row['length']:4d} tokens: CPU p50 {row['cpu_ms']['p50']:.2f} p90 {row['cpu_ms']['p90']:.2f} ms, "
            f"anonymous memory {_mb(row['anon_bytes'])}, peak of the process {_mb(row['peak_rss_bytes'])}"
        )
    return "\n".join(lines)


def _mb(count: int | None) -> str:
    return "not known" if count is None else f"{count / 1e6:.2f} MB"


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return value


def _lengths(text: str) -> tuple[int, ...]:
    return tuple(_positive(part) for part in text.split(","))


def _vocab_size(text: str) -> int:
    value = int(text)
    if value <= _FIRST_ORDINARY_ID:
        raise argparse.ArgumentTypeError(f"{text}: a vocabulary has more than its {_FIRST_ORDINARY_ID} special entries")
    return value


if __name__ == "__main__":
    run_command(main)
