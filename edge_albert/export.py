"""Export an ALBERT checkpoint as a bundle for phones and Raspberry Pis: `python -m edge_albert.export --int8`."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

from edge_albert.cli import leave_without, run_command

try:
    from converters.convert import FORMATS
    from edge_albert.android import check_assets, copy_bundle_to_assets
    from edge_albert.exporter import DEFAULT_MODEL, Request, export_bundle
    from edge_albert.reports.export_report import to_text
    from edge_albert.runtime.engine import installed
    from edge_albert.tasks import TASKS
except ModuleNotFoundError as error:
    leave_without(error, __name__)

_EPILOG = """\
examples:
  python -m edge_albert.export --int8                              the embedded default model ► ./bundle
  python -m edge_albert.export --model my-albert --int8 --output spam-bundle
  python -m edge_albert.export --model albert-base-v2 --task sentence-embedding --fp16
then:
  python -m edge_albert.run bundle "You have won a free phone, call now"

The bundle is written whole or not at all. Exit status 2: bad input, said in one line.
"""


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python -m edge_albert.export",
        description="Export an ALBERT checkpoint as a folder that a phone or a Raspberry Pi runs without PyTorch.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument(
        "--model",
        metavar="DIR_OR_NAME",
        help="Hugging Face folder, hub name, Google TF1 or TF-Hub folder (default: the built-in spam filter)",
    )
    out.add_argument("--task", choices=tuple(TASKS), help="default: what the checkpoint was fine-tuned for")
    precision = out.add_mutually_exclusive_group()
    for name, note in (
        ("int8", "8-bit weights, activations quantised on the fly (default)"),
        ("fp16", "16-bit weights, computed in 32-bit: half the file, not half the memory"),
        ("fp32", "32-bit weights"),
    ):
        precision.add_argument(f"--{name}", dest="precision", action="store_const", const=name, help=note)
    out.add_argument(
        "--unroll",
        action="store_true",
        help="repeat the layer instead of a loop, for accelerators without control flow",
    )
    out.add_argument(
        "--format",
        dest="formats",
        type=_formats,
        metavar="onnx,tflite",
        help="what to write (default: every format whose engine is installed)",
    )
    out.add_argument(
        "--tflite-compat",
        dest="compat",
        action="store_true",
        help="a TFLite file that engines up to TensorFlow Lite 2.16 and tflite-runtime 2.14 run correctly",
    )
    out.add_argument(
        "--output", metavar="DIR", type=Path, default=Path("bundle"), help="folder to write (default: bundle)"
    )
    out.add_argument("--force", action="store_true", help="replace the output folder if it exists")
    out.add_argument(
        "--android", metavar="DIR", type=Path, help="also put what an app needs into DIR/bundle, DIR being its assets"
    )
    out.add_argument(
        "--no-measure", dest="measure", action="store_false", help="leave out load time, latency and memory"
    )
    out.add_argument("--json", action="store_true", help="print the report as JSON on standard output")
    return out


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = parser().parse_args(argv)
    request = Request(
        source=options.model or str(DEFAULT_MODEL),
        output=options.output,
        task=options.task,
        precision=options.precision or "int8",
        formats=options.formats or _installed_formats(),
        unroll=options.unroll,
        compat=options.compat,
        force=options.force,
        measure=options.measure,
        android=options.android is not None,
        command=_command(options),
    )
    if options.android is not None:
        check_assets(options.android, force=options.force)
    stages = sys.stderr if options.json else sys.stdout
    report = export_bundle(request, progress=lambda line: print(line, file=stages, flush=True))
    if options.android is not None:
        assets = copy_bundle_to_assets(options.output, options.android, force=options.force)
        print(f"android  {assets}", file=stages)
    print(json.dumps(report, indent=1, sort_keys=True) if options.json else to_text(report, options.output))
    return 0


def _formats(text: str) -> tuple[str, ...]:
    """onnx,tflite ► ("onnx", "tflite")"""
    wanted = tuple(dict.fromkeys(text.split(",")))
    if unknown := [name for name in wanted if name not in FORMATS]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown) or 'nothing'}: choose from {', '.join(FORMATS)}")
    return wanted


def _installed_formats() -> tuple[str, ...]:
    """Every export is run once by its engine, so a format needs one; with none installed the error will say so."""
    return tuple(name for name in FORMATS if installed(name)) or FORMATS


def _command(options: argparse.Namespace) -> str:
    """The command as the manifest remembers it: what decides the bundle's content, not where it went."""
    words = ["python", "-m", "edge_albert.export"]
    if options.model:
        words += ["--model", Path(options.model).name if Path(options.model).is_dir() else options.model]
    if options.task:
        words += ["--task", options.task]
    words += [f"--{options.precision or 'int8'}"]
    words += ["--format", ",".join(options.formats)] if options.formats else []
    words += [flag for flag, wanted in (("--unroll", options.unroll), ("--tflite-compat", options.compat)) if wanted]
    return shlex.join(words)


if __name__ == "__main__":
    run_command(main)
