"""What every activation spans and what every matrix costs in fewer bits: `python -m edge_albert.calibrate`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TextIO

from edge_albert.cli import leave_without, run_command

try:
    from calibration.collect import FILE, Calibration, collect
    from calibration.sensitivity import measure_sensitivity
    from calibration.texts import calibration_set
    from edge_albert.atomic import atomic_folder
    from edge_albert.bundle import to_json
    from edge_albert.data_options import add_columns, text_file
    from edge_albert.exporting.source import DEFAULT_MODEL, Source, read_source, said
    from edge_albert.reports.calibration_report import (
        HEAT_MAP,
        calibration_page,
        ranges_table,
        sensitivity_picture,
        sensitivity_table,
    )
    from edge_albert.tasks import TASKS
except ModuleNotFoundError as error:
    leave_without(error, __name__)

_EPILOG = """\
examples:
  python -m edge_albert.calibrate                                    the embedded default model ► ./calibration-report
  python -m edge_albert.calibrate --model my-albert --data reviews.tsv --text-column body --output reviews-calibration
then:
  python -m edge_albert.export --model my-albert --int8-static --calibration reviews-calibration/calibration.json
  python -m edge_albert.export --model my-albert --mixed 7000000 --calibration reviews-calibration/calibration.json

The output folder holds calibration.json (ranges and sensitivities, for later exports of the same weights), report.md
and, unless --no-sensitivity, sensitivity.svg. It is written whole or not at all. Exit status 2: bad input, in one line.
"""


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python -m edge_albert.calibrate",
        description="Record what every activation of the float model spans, iteration by iteration, and what every "
        "matrix costs when it is rounded.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("--model", metavar="DIR_OR_NAME", help="as for export (default: the built-in spam filter)")
    out.add_argument("--task", choices=tuple(TASKS), help="default: what the checkpoint was fine-tuned for")
    out.add_argument(
        "--output",
        metavar="DIR",
        type=Path,
        default=Path("calibration-report"),
        help="folder to write (default: calibration-report)",
    )
    out.add_argument("--force", action="store_true", help="replace the output folder if it exists")
    out.add_argument(
        "--no-sensitivity",
        dest="sensitivity",
        action="store_false",
        help="activation ranges alone, which is the smaller part of the time",
    )
    out.add_argument("--json", action="store_true", help="print calibration.json on standard output")
    data = out.add_argument_group("texts")
    data.add_argument(
        "--data",
        type=Path,
        metavar="FILE",
        help=".txt with a text a line, .tsv, .csv or .jsonl; no labels needed (default: sentences of this project)",
    )
    add_columns(data)
    return out


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = parser().parse_args(argv)
    lines = sys.stderr if options.json else sys.stdout
    with atomic_folder(options.output, force=options.force) as folder:
        given = read_source(options.model or str(DEFAULT_MODEL), options.task)
        print(f"read     {said(given)}", file=lines, flush=True)
        found = _calibrate(given, options, lines)
        content = found.content
        (folder / FILE).write_text(to_json(content), encoding="utf-8")
        (folder / "report.md").write_text(calibration_page(content), encoding="utf-8")
        if options.sensitivity:
            (folder / HEAT_MAP).write_text(sensitivity_picture(content["sensitivity"]), encoding="utf-8")
    if options.json:
        print(json.dumps(content, indent=1, sort_keys=True))
        return 0
    print(ranges_table(content["sites"]))
    if options.sensitivity:
        print(f"\n{sensitivity_table(content['sensitivity'])}")
    print(f"\nwrote    {options.output} (report: {options.output / 'report.md'})")
    return 0


def _calibrate(given: Source, options: argparse.Namespace, lines: TextIO) -> Calibration:
    """Ranges, and sensitivities if they are wanted."""
    checkpoint, task = given.checkpoint, given.task
    texts = calibration_set(text_file(options.data, options), checkpoint.config, task, given.tokenizer)
    if texts.warning:
        print(f"note     {texts.warning}", file=lines)
    print(f"collect  {len(texts.examples)} of {texts.offered} texts of {texts.source}", file=lines, flush=True)
    found = collect(checkpoint, task, texts)
    if not options.sensitivity:
        return found
    print("study    each matrix in fewer bits, in each iteration", file=lines, flush=True)
    return found.with_sensitivity(measure_sensitivity(checkpoint, task, texts.encodings))


if __name__ == "__main__":
    run_command(main)
