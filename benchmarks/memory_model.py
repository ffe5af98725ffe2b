"""Fit the constants of the memory model (edge_albert/runtime/budget.py) and say how far it is from what is measured.

    python benchmarks/memory_model.py                    fit: prints the tables of budget.py
    python benchmarks/memory_model.py --check BUNDLE     the model beside measurement, for a bundle of your own

Fitting exports four shapes of ALBERT with random weights in three precisions and opens each with both engines, with
weights packed at the start and with weights mapped from a cache: 48 fresh processes, about four minutes. Each process
tells its anonymous memory (edge_albert/runtime/memory.py) step by step: as it begins, with the engine imported, with
the tokenizer, at the peak of opening the model, and at the peak of running each batch and length. The peak of
anonymous memory is that of all resident memory less the file-backed part, which only grows meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from edge_albert.bundle import Bundle, open_bundle
from edge_albert.cli import run_command
from edge_albert.config import AlbertConfig, preset
from edge_albert.errors import EdgeAlbertError
from edge_albert.reports.tables import markdown_table
from edge_albert.runtime.budget import Cost, needed, weight_bytes

MB = 1e6
SHAPES = ("albert-base-v2", "small", "mini", "tiny")
PRECISIONS = ("fp32", "fp16", "int8")
ENGINES = ("onnx", "tflite")
RUNS = ((1, 16), (1, 128), (1, 256), (1, 512), (8, 64), (8, 128))  # (batch, length)
# what opening a model imports, without and with weights from a cache
_MODULES = {
    "onnx": ("edge_albert.runtime.onnx_engine",),
    "tflite": ("edge_albert.runtime.tflite_engine", "ai_edge_litert.interpreter"),
}
_MAPPING_MODULES = {"onnx": (), "tflite": ("edge_albert.runtime.litert_session", "ai_edge_litert.compiled_model")}

_CHILD = """
import json, sys
import edge_albert.runtime.load
from edge_albert.runtime.memory import read_memory, reset_peak

def peak():
    now = read_memory()
    return now.peak - now.file

bundle, engine, cache, runs = sys.argv[1], sys.argv[2], sys.argv[3] or None, json.loads(sys.argv[4])
out = {"process": read_memory().anon}
for module in sys.argv[5].split():
    __import__(module)
out["engine"] = read_memory().anon
from edge_albert.bundle import open_bundle
from edge_albert.runtime.engine import open_engine
from edge_albert.tokenizer import Tokenizer
opened = open_bundle(bundle)
tokenizer = Tokenizer.from_rules(opened.folder, opened.tokenizer_rules)
out["tokenizer"] = read_memory().anon
reset_peak()
model = open_engine(opened.model_path(engine), engine=engine, threads=int(sys.argv[6]), cache_dir=cache)
out["opening"] = peak()
import numpy as np

def run(batch, length):
    ids = np.full((batch, length), 7)
    model.run({"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)})

out["runs"] = []
for batch, length in runs:
    run(1, 16)  # lets go of what a longer run before has left
    reset_peak()
    run(batch, length)
    out["runs"].append(peak())
names = [str(opened.model_path(engine)), *([str(model.packed)] if model.packed else [])]
out["mapped"], mine = 0, False
for line in open("/proc/self/smaps"):
    words = line.split()
    if "-" in words[0] and len(words) >= 5:
        mine = any(words[-1].startswith(name) for name in names)
    elif mine and words[0] == "Rss:":
        out["mapped"] += int(words[1]) * 1024
print(json.dumps(out))
"""


def measure(bundle: Path, engine: str, cache: Path | None, *, threads: int = 1) -> dict[str, Any]:
    """Bytes of anonymous memory of a fresh process after each step, see `_CHILD`; "mapped": of model and cache files.

    With a cache, a process before it makes it. Raises EdgeAlbertError when the process fails.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", _CHILD, str(bundle), engine, str(cache or ""), json.dumps(RUNS)]
    command += [" ".join(_MODULES[engine] + (_MAPPING_MODULES[engine] if cache else ())), str(threads)]
    for _ in range(1 if cache is None else 2):
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise EdgeAlbertError(f"{bundle}: measuring it failed: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout)


def predicted(bundle: Bundle, engine: str, mapped: bool, measured: dict[str, Any], batch: int, length: int) -> float:
    """Anonymous bytes by the model, for a process that began with what the measured one began with."""
    need = needed(bundle, engine, mapped=mapped, threads=1, batch=batch, length=length, process=measured["process"])
    return need.anonymous


# -- fitting -----------------------------------------------------------------------------------------------------------


def make_bundles(work: Path) -> dict[tuple[str, str], Path]:
    """{(shape, precision): bundle} of every shape and precision."""
    from edge_albert.exporter import Request, export_bundle

    out = {}
    for shape in SHAPES:
        source = make_source(shape, work)
        for precision in PRECISIONS:
            folder = work / f"{shape}-{precision}"
            export_bundle(
                Request(source=str(source), output=folder, precision=precision, formats=ENGINES, measure=False)
            )
            out[shape, precision] = folder
            print(f"made {folder.name}", file=sys.stderr, flush=True)
    return out


def make_source(shape: str, work: Path) -> Path:
    """A Hugging Face folder of a named shape: random weights, a stand-in tokenizer with the shape's vocabulary."""
    from peers.model_folder import stand_in_tokenizer

    from edge_albert.checkpoint import expected_shapes, write_checkpoint

    task, config = "text-classification", _with_labels(preset(shape))
    rng = np.random.default_rng(0)
    tensors = {
        name: (rng.standard_normal(size) * 0.02 + name.lower().endswith("norm.weight")).astype(np.float32)
        for name, size in expected_shapes(config, task).items()
    }
    vocabulary = work / f"{shape}-tokenizer"
    vocabulary.mkdir(parents=True)
    (vocabulary / "spiece.model").write_bytes(stand_in_tokenizer(config.vocab_size))
    write_checkpoint(work / f"{shape}-source", config, tensors, task=task, tokenizer_folder=vocabulary)
    return work / f"{shape}-source"


def _with_labels(config: AlbertConfig) -> AlbertConfig:
    return replace(config, architectures=("AlbertForSequenceClassification",)).with_labels(["no", "yes"])


def fit(bundles: dict[tuple[str, str], Path], work: Path) -> dict[str, Any]:
    """Measure every bundle and solve for the constants, in the order in which `_print_fit` prints them."""
    rows: dict[tuple[str, str, bool], list[tuple[Bundle, dict[str, Any]]]] = {}
    for (_, precision), folder in bundles.items():
        for engine in ENGINES:
            for mapped in (False, True):
                measured = measure(folder, engine, work / "cache" if mapped else None)
                rows.setdefault((engine, precision, mapped), []).append((open_bundle(folder), measured))
                print(f"measured {folder.name} {engine}{' mapped' * mapped}", file=sys.stderr, flush=True)
    everything = [pair for pairs in rows.values() for pair in pairs]
    per_entry, fixed = _line(
        [bundle.config.vocab_size for bundle, _ in everything], [m["tokenizer"] - m["engine"] for _, m in everything]
    )
    engines = {
        (engine, mapped): float(np.median([m["engine"] - m["process"] for key, pairs in rows.items() for _, m in pairs
                                           if (key[0], key[2]) == (engine, mapped)]))
        for engine in ENGINES for mapped in (False, True)
    }  # fmt: skip
    largest = bundles["albert-base-v2", "int8"]
    one, four = (measure(largest, "onnx", None, threads=threads)["runs"][0] for threads in (1, 4))
    return {
        "thread": (four - one) / 3,
        "process": float(np.median([m["process"] for _, m in everything])),
        "engine": engines,
        "tokenizer": (fixed, per_entry),
        "costs": {key: _cost(*key, pairs) for key, pairs in rows.items()},
        "rows": rows,
    }


def _line(x: list[float], y: list[float]) -> tuple[float, float]:
    slope, fixed = np.polyfit(x, y, 1)
    return float(slope), float(fixed)


def _cost(engine: str, precision: str, mapped: bool, pairs: list[tuple[Bundle, dict[str, Any]]]) -> Cost:
    """Least squares with no negative constant. Opening: fixed + table + layers; running: per token and per score."""
    parts = np.array([(1.0, *weight_bytes(bundle, engine)) for bundle, _ in pairs])
    first_run = [m["runs"][0] - m["tokenizer"] for _, m in pairs]  # (1, 16): nearly no activations
    fixed, table, layers = _non_negative(parts, np.array(first_run))
    opening = [
        max(0.0, m["opening"] - m["tokenizer"] - steady) for (_, m), steady in zip(pairs, first_run, strict=True)
    ]
    loading = _non_negative(parts[:, 2:], np.array(opening))[0]
    units, values = [], []
    for (bundle, m), steady in zip(pairs, first_run, strict=True):
        for (batch, length), peak in zip(RUNS, m["runs"], strict=True):
            if engine == "tflite" and batch > 1:  # row by row: costs what one row does
                continue
            config = bundle.config
            tokens = batch * length
            scores = tokens * length * config.num_attention_heads
            units.append((tokens * config.intermediate_size, scores))
            values.append(peak - m["tokenizer"] - steady)
    per_token, per_score = _non_negative(np.array(units, float), np.array(values))
    figures = [fixed / MB, table, layers, loading, per_token, per_score]
    return Cost(*(round(figure, 2) for figure in figures))


def _non_negative(a: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Least squares with non-negative coefficients: a column whose coefficient is negative is left out."""
    keep = list(range(a.shape[1]))
    scale = np.abs(a).max(axis=0)
    while keep:
        found, *_ = np.linalg.lstsq(a[:, keep] / scale[keep], y, rcond=None)
        if (found >= 0).all():
            break
        keep.pop(int(np.argmin(found)))
    out = np.zeros(a.shape[1])
    if keep:
        out[keep] = found / scale[keep]
    return out


# -- the command -------------------------------------------------------------------------------------------------------


def check(folder: Path, work: Path) -> tuple[str, float]:
    """A Markdown table of model and measurement for every engine of the bundle, and the largest relative error."""
    bundle = open_bundle(folder)
    lines, worst = [], 0.0
    for engine in bundle.formats:
        for mapped in (False, True):
            measured = measure(folder, engine, work / "cache" if mapped else None)
            for (batch, length), peak in zip(RUNS, measured["runs"], strict=True):
                peak = max(peak, measured["opening"])
                said = predicted(bundle, engine, mapped, measured, batch, length)
                worst = max(worst, abs(said / peak - 1))
                lines.append((f"{engine}{', mapped' * mapped}", batch, length, f"{said / MB:.1f}", f"{peak / MB:.1f}",
                              f"{100 * (said / peak - 1):+.1f} %"))  # fmt: skip
    return markdown_table(("engine", "batch", "tokens", "model MB", "measured MB", "error"), lines), worst


def _print_fit(found: dict[str, Any]) -> None:
    print(f"_INTERPRETER = {found['process'] / MB:.1f}")
    print(f"_THREAD = {found['thread'] / MB:.1f}")
    print("_ENGINES =", {key: round(value / MB, 1) for key, value in found["engine"].items()})
    print(f"_TOKENIZER = ({found['tokenizer'][0] / MB:.2f} MB, {found['tokenizer'][1]:.0f} bytes an entry)")
    for key, cost in found["costs"].items():
        print(f"    {key}: Cost({', '.join(map(str, asdict(cost).values()))}),")
    for (engine, precision, mapped), pairs in found["rows"].items():
        print(engine, precision, mapped, "mapped MB:", [round(m["mapped"] / MB, 1) for _, m in pairs])


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python benchmarks/memory_model.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("--check", type=Path, metavar="BUNDLE", help="compare the model with this bundle's memory")
    return out


def main(argv: list[str] | None = None) -> int:
    """Run the command. With --check the status is 1 when the model is off by more than 15 %."""
    options = parser().parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="edge-albert-memory-") as name:
        work = Path(name)
        if options.check is not None:
            table, worst = check(options.check, work)
            print(f"{table}\n\nlargest error {100 * worst:.1f} %")
            return 0 if worst <= 0.15 else 1
        _print_fit(fit(make_bundles(work), work))
    return 0


if __name__ == "__main__":
    run_command(main)
