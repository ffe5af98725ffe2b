"""A bundle's report as one HTML page, with an APK that carries the bundle: `python -m edge_albert.report BUNDLE`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from edge_albert.atomic import write_file_atomic
from edge_albert.bundle import Bundle, open_bundle
from edge_albert.cli import run_command
from edge_albert.documents import read_document
from edge_albert.errors import BundleError, EdgeAlbertError
from edge_albert.reports.apk import read_apk
from edge_albert.reports.html.apk_page import apk_section
from edge_albert.reports.html.bench_page import bench_section
from edge_albert.reports.html.export_page import to_html
from edge_albert.runtime.benchmark import read_result

SCHEMA, VERSION = "edge_albert.export_report", 1
_EPILOG = """\
example:
  python -m edge_albert.report bundle --bench pi4.json --bench pi5.json --apk edge_albert.apk --output spam.html

Every export writes report.html already; this command adds what was measured later.
"""


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python -m edge_albert.report",
        description="A bundle's report as one self-contained HTML page, with what was measured after the export.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("bundle", type=Path, help="folder written by python -m edge_albert.export")
    out.add_argument(
        "--bench",
        type=Path,
        metavar="FILE",
        action="append",
        default=[],
        help="JSON of python -m edge_albert.bench; may be given again",
    )
    out.add_argument("--apk", type=Path, metavar="FILE", help="an APK that carries this bundle")
    out.add_argument("--output", type=Path, required=True, metavar="FILE", help="the page to write")
    out.add_argument("--force", action="store_true", help="replace the page if it exists")
    out.add_argument("--json", action="store_true", help="print the figures as JSON on standard output")
    return out


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = parser().parse_args(argv)
    bundle = open_bundle(options.bundle)
    report = read_report(bundle)
    sections = []
    if options.bench:
        report["benchmarks"] = [read_result(path) for path in options.bench]
        named = zip(report["benchmarks"], options.bench, strict=True)
        sections += [bench_section(bench, path.stem) for bench, path in named]
    if options.apk:
        report["apk"] = read_apk(options.apk, bundle)
        sections.append(apk_section(report["apk"]))
    if options.output.exists() and not options.force:
        raise EdgeAlbertError(f"{options.output}: exists already: name another file, or replace it with --force")
    write_file_atomic(options.output, to_html(report, *sections))
    print(json.dumps(report, ensure_ascii=False) if options.json else f"wrote {options.output}")
    return 0


def read_report(bundle: Bundle) -> dict[str, Any]:
    """The content of the bundle's report.json. BundleError where it is missing, damaged or of another version."""
    remedy = "export the bundle again with this version"
    return read_document(bundle.folder / "report.json", SCHEMA, VERSION, remedy, BundleError)


if __name__ == "__main__":
    run_command(main)
