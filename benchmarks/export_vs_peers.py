"""This project's export beside what others do with the same checkpoint: size, memory, time, distance from fp32.

    python benchmarks/export_vs_peers.py                             ALBERT-base with random weights
    python benchmarks/export_vs_peers.py --model my-albert --output result.json

Every figure comes from a process that did nothing else, and the routes take turns (A B C A B C …), so that a machine
that gets slower for a while does so for all of them. Times are CPU times on one thread; a ratio within one run is worth
more than any time. The rows are in benchmarks/peers/rows.py. Needs the dev extra (torch, transformers); the rows of
torch.onnx.export's newer exporter also want onnxscript, those of TFLite ai-edge-litert. The TensorFlow row wants an
interpreter with tensorflow 2.16 or newer and safetensors, named by EDGE_ALBERT_TF_PYTHON. Takes about ten minutes.

onnx2tf, the other way to TFLite, has no row: its packages exclude those of the others. Measured by itself on the same
model it made 358 MB of fp32, 333 MB of anonymous memory (669 MB at its peak) and 220 ms at 128 tokens.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from peers.install_size import export_extra_bytes
from peers.measure import ROOT, Outcome, Plan, run_plan
from peers.model_folder import prepare, read_config
from peers.report import to_markdown
from peers.rows import BASE, ROWS, Row
from peers.torch_side import LENGTH, SEQUENCES

from edge_albert.atomic import write_file_atomic
from edge_albert.cli import run_command
from edge_albert.errors import EdgeAlbertError
from edge_albert.reports.machine import describe_machine

SCHEMA = "edge_albert.export_vs_peers"
SCHEMA_VERSION = 1
_MARK = ".edge-albert-benchmark"  # a work folder has it
_WORK = Path(tempfile.gettempdir()) / "edge-albert-export-vs-peers"


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python benchmarks/export_vs_peers.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("--model", type=Path, metavar="DIR", help="Hugging Face folder (default: made, random weights)")
    out.add_argument(
        "--tokenizer", type=Path, metavar="FILE", help="spiece.model (default: the folder's, or a stand-in)"
    )
    out.add_argument("--output", type=Path, metavar="JSON", help="write everything that was measured here")
    out.add_argument("--work", type=Path, metavar="DIR", default=_WORK, help="for models and caches (%(default)s)")
    out.add_argument("--lengths", type=_numbers, default=(16, 128, 512), help="tokens (default 16,128,512)")
    out.add_argument("--rounds", type=_number, default=5, help="processes per row (default 5)")
    out.add_argument("--runs", type=_number, default=10, help="timed runs of each length in a process (default 10)")
    out.add_argument("--rows", type=_rows, default=ROWS, help=f"of {','.join(row.name for row in ROWS)} (default: all)")
    out.add_argument("--install-size", action="store_true", help="also weigh the export extra, installed by pip")
    return out


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark. Returns 0, or 1 when a row failed."""
    options = parser().parse_args(argv)
    for module in ("torch", "transformers", "onnxruntime"):
        if not find_spec(module):
            raise EdgeAlbertError(f"the package {module} is not installed: pip install -e '.[dev]'")
    work = _work_folder(options.work)
    folder = prepare(options.model, options.tokenizer, work)
    config = read_config(folder)
    if max(options.lengths) > config["max_position_embeddings"]:
        raise EdgeAlbertError(f"--lengths: {folder} takes at most {config['max_position_embeddings']} tokens")
    plan = Plan(options.rows, folder, work, options.lengths, options.rounds, options.runs, config["vocab_size"])
    installed = export_extra_bytes(ROOT, work) if options.install_size else None
    outcome = run_plan(plan, say=lambda line: print(line, file=sys.stderr, flush=True))
    model = "ALBERT-base, random weights" if options.model is None else options.model.resolve().name
    result = {**_result(plan, outcome), "model": model, "install_bytes": installed}
    print(to_markdown(result), end="", flush=True)
    if options.output is not None:
        write_file_atomic(options.output, json.dumps(result, indent=1) + "\n")
    return 1 if outcome.failed else 0


def _work_folder(folder: Path) -> Path:
    """The folder, made if need be. One that holds other things is refused: folders in it are replaced."""
    folder = folder.resolve()
    if folder.is_dir() and any(folder.iterdir()) and not (folder / _MARK).is_file():
        raise EdgeAlbertError(f"{folder}: is not empty and not this benchmark's: name a new folder with --work")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _MARK).touch()
    except OSError as error:
        raise EdgeAlbertError(f"{folder}: cannot be written ({error.strerror}): name another with --work") from None
    return folder


def _result(plan: Plan, outcome: Outcome) -> dict[str, Any]:
    machine = describe_machine()
    for package in ("transformers", "onnxscript"):
        if find_spec(package):
            machine["packages"][package] = metadata.version(package)
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": machine,
        "threads": 1,
        "rounds": plan.rounds,
        "runs": plan.runs,
        "agreement_sequences": f"{SEQUENCES} × {LENGTH}",
        "base": BASE,
        "rows": outcome.measured,
        "skipped": outcome.skipped,
        "failed": outcome.failed,
    }


def _commit() -> str | None:
    """The commit that is checked out, with "-dirty" behind it when tracked files differ from it; None without git."""
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(_number(part) for part in text.split(","))


def _rows(text: str) -> tuple[Row, ...]:
    names = text.split(",")
    known = {row.name: row for row in ROWS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"no row is called {', '.join(unknown)}: choose from {', '.join(known)}")
    return tuple(row for row in ROWS if row.name in names)


if __name__ == "__main__":
    run_command(main)
