"""Time and memory of a bundle on this device, in the field's format: `python -m edge_albert.bench BUNDLE`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from edge_albert.arguments import whole, wholes
from edge_albert.atomic import write_file_atomic
from edge_albert.cli import run_command
from edge_albert.errors import DataError
from edge_albert.reports.bench_report import compare, compare_to_markdown, to_lines, to_markdown
from edge_albert.runtime.benchmark import Request, read_result, run_benchmark

_EPILOG = """\
examples:
  python -m edge_albert.bench bundle
  python -m edge_albert.bench bundle --engine all --threads 1,4 --lengths 16,128 --runs 100 --output pi4.json
  python -m edge_albert.bench --compare pi4.json pi5.json

Every engine and number of threads is measured in a fresh process. The result goes to standard output as Markdown, with
one line per configuration that begins with "edge_albert.bench" for grep. Ctrl-C ends it with what there is: status 130.
"""


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python -m edge_albert.bench",
        description="Measure a bundle on this device: start, inference, memory, and whether it answers as exported.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("bundle", nargs="?", help="folder written by python -m edge_albert.export")
    out.add_argument("--compare", nargs=2, type=Path, metavar=("A", "B"), help="two results as ratios B / A, instead")
    out.add_argument("--engine", choices=("onnx", "tflite", "all"), help="default: the first that is installed")
    out.add_argument("--threads", type=wholes, default=(1,), metavar="N,…", help="of one inference (default 1)")
    out.add_argument("--lengths", type=wholes, metavar="N,…", help="tokens (default 16,128,512, as far as they fit)")
    out.add_argument("--runs", type=whole, default=50, help="timed runs of each (default 50)")
    out.add_argument("--warm-up", type=whole, default=5, help="runs before, not timed (default 5)")
    out.add_argument("--texts", type=Path, metavar="FILE", help="one text a line (default: the bundle's golden texts)")
    out.add_argument("--pair", help="second part of every text in FILE, such as a context")
    out.add_argument("--memory-mb", type=float, metavar="MB", help="measure within this budget, see edge_albert.run")
    out.add_argument("--cache", metavar="DIR", help="weights packed for this processor, see edge_albert.prepare")
    out.add_argument("--output", type=Path, metavar="JSON", help="write everything that was measured here")
    out.add_argument("--force", action="store_true", help="replace the output file if it exists")
    out.add_argument("--json", action="store_true", help="JSON on standard output instead of Markdown")
    return out


def main(argv: list[str] | None = None) -> int:
    """Run the command. Returns 0; 1 when a configuration failed; 130 when it was stopped."""
    command = parser()
    options = command.parse_args(argv)
    if options.compare:
        return _compare(*options.compare, as_json=options.json)
    if options.bundle is None:
        command.error("name a bundle, or two results with --compare")
    if options.output is not None and options.output.exists() and not options.force:
        raise DataError(f"{options.output}: already exists: name another file, or replace it with --force")
    request = Request(
        bundle=options.bundle,
        engines=(options.engine,),
        threads=options.threads,
        lengths=options.lengths,
        runs=options.runs,
        warm_up=options.warm_up,
        texts=_read_texts(options.texts, options.pair) if options.texts else (),
        cache_dir=options.cache,
        memory_mb=options.memory_mb,
    )
    result = run_benchmark(request, say=lambda line: print(line, file=sys.stderr, flush=True))
    if options.output is not None:
        write_file_atomic(options.output, json.dumps(result, indent=1) + "\n")
    print(json.dumps(result) if options.json else "\n".join([to_markdown(result), *to_lines(result)]))
    if not result["complete"]:
        print("edge_albert: stopped: this is what had been measured", file=sys.stderr)
        return 130
    return 1 if result["failed"] else 0


def _read_texts(path: Path, pair: str | None) -> tuple[tuple[str, str | None], ...]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}): --texts names a file with one text a line"
        ) from None
    texts = tuple((line, pair) for line in lines if line.strip())
    if not texts:
        raise DataError(f"{path}: no texts in it: --texts names a file with one text a line")
    return texts


def _compare(first: Path, second: Path, *, as_json: bool) -> int:
    a, b = read_result(first), read_result(second)
    if as_json:
        print(json.dumps(compare(a, b)))
    else:
        print(compare_to_markdown(a, b, names=(first.stem, second.stem)), end="")
    return 0


if __name__ == "__main__":
    run_command(main)
