"""Export an ALBERT checkpoint as a bundle for phones and Raspberry Pis: `python -m edge_albert.export --int8`."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

from edge_albert.arguments import byte_count, points
from edge_albert.cli import leave_without, run_command
from edge_albert.errors import EdgeAlbertError

try:
    from calibration.collect import FILE
    from calibration.ranges import METHODS
    from converters.convert import FORMATS
    from converters.quantize import BLOCK_SIZES
    from edge_albert.android import check_assets, copy_bundle_to_assets
    from edge_albert.data_options import add_columns, text_file
    from edge_albert.early_exit import CRITERIA
    from edge_albert.exporter import DEFAULT_MODEL, Request, export_bundle
    from edge_albert.exporting.request import AUTO, MIXED, RANGES
    from edge_albert.reports.export_report import held, refusal, to_text
    from edge_albert.runtime.engine import installed
    from edge_albert.tasks import TASKS
except ModuleNotFoundError as error:
    leave_without(error, __name__)

REFUSED = 3  # exit status when the gate has refused the export

_EPILOG = """\
examples:
  python -m edge_albert.export --int8                              the embedded default model ► ./bundle
  python -m edge_albert.export --model my-albert --int8 --output spam-bundle
  python -m edge_albert.export --model albert-base-v2 --task sentence-embedding --fp16
then:
  python -m edge_albert.run bundle "You have won a holiday. Call now to claim your prize"

Smaller, and checked (docs/calibration.md explains it):
  python -m edge_albert.export --model my-albert --int4 --calibration-data reviews.txt
  python -m edge_albert.export --model my-albert --int8-static --per-tensor --ranges percentile
  python -m edge_albert.export --model my-albert --mixed 7000000       the best model file of at most 7 MB
  python -m edge_albert.export --model my-albert --int4 --eval dev.tsv --max-drop 0.5 --fallback

Faster, for a model trained with finetune --early-exit (docs/early_exit.md):
  python -m edge_albert.export --model my-albert --early-exit auto --eval dev.tsv --max-drop 0.5
  python -m edge_albert.export --model my-albert --early-exit confidence --exit-threshold 0.9

The bundle is written whole or not at all. Exit status 2: bad input, said in one line. Exit status 3: the export lost
more than --max-drop allows; the output folder then holds report.json and report.md, and no bundle.
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
    _add_precision(out.add_argument_group("precision"))
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
    _add_exits(out.add_argument_group("early exit, for a model trained with finetune --early-exit"))
    _add_calibration(out.add_argument_group("calibration, for --int4, --int8-static, --mixed and --max-loss"))
    _add_gate(out.add_argument_group("the gate"))
    add_columns(out.add_argument_group("columns of --eval and --calibration-data files"))
    return out


def _add_precision(group: argparse._ArgumentGroup) -> None:
    precision = group.add_mutually_exclusive_group()
    for name, note in (
        ("int8", "8-bit weights, activations quantised on the fly (default)"),
        ("int8-static", "8-bit weights and activations, by ranges recorded beforehand: for accelerators"),
        ("int4", "4-bit weights by block, rounded to suit the calibration texts"),
        ("fp16", "16-bit weights, computed in 32-bit: half the file, not half the memory"),
        ("fp32", "32-bit weights"),
    ):
        precision.add_argument(f"--{name}", dest="precision", action="store_const", const=name, help=note)
    precision.add_argument(
        "--mixed",
        type=byte_count,
        metavar="BYTES",
        help="fp32, int8 or int4 for each matrix, a model file of at most BYTES",
    )
    precision.add_argument(
        "--max-loss",
        type=points,
        metavar="POINTS",
        help="the same, the smallest whose weights change at most POINTS of 100 answers on the calibration texts",
    )
    group.add_argument(
        "--block-size", type=int, choices=BLOCK_SIZES, default=64, help="weights that share a scale in int4 (64)"
    )


def _add_calibration(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--calibration", type=Path, metavar="FILE", help=f"the {FILE} that python -m edge_albert.calibrate has written"
    )
    group.add_argument(
        "--calibration-data",
        type=Path,
        metavar="FILE",
        help=".txt, .tsv, .csv or .jsonl; no labels needed (default: sentences of this project)",
    )
    group.add_argument(
        "--ranges", choices=tuple(METHODS), help=f"how much of an activation --int8-static covers ({RANGES})"
    )
    group.add_argument(
        "--per-tensor",
        action="store_true",
        help="one range of --int8-static for all iterations (default: one for each, where the format allows)",
    )


def _add_exits(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--early-exit",
        choices=(AUTO, *CRITERIA),
        help="let an input leave once its answer is settled, by this criterion; auto: chosen on half of --eval so that "
        "--max-drop holds, judged on the other half",
    )
    group.add_argument(
        "--exit-threshold",
        type=float,
        metavar="X",
        help="of the criterion: a probability, an entropy in nats, a count, a difference; may be changed at run time",
    )


def _add_gate(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--eval", type=Path, metavar="FILE", help="labelled rows to judge the file by: .tsv, .csv, .jsonl"
    )
    group.add_argument("--metric", metavar="NAME", help="accuracy, f1 or matthews; spearman or pearson (the first)")
    group.add_argument(
        "--max-drop", type=points, metavar="POINTS", help="refuse a file that loses more on --eval (exit status 3)"
    )
    group.add_argument(
        "--fallback", action="store_true", help="then retry, with more bits for the most sensitive matrices"
    )


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = parser().parse_args(argv)
    _refuse_idle_options(options)
    request = _request(options)
    if options.android is not None:
        check_assets(options.android, force=options.force)
    stages = sys.stderr if options.json else sys.stdout
    report = export_bundle(request, progress=lambda line: print(line, file=stages, flush=True))
    if options.android is not None and held(report):
        assets = copy_bundle_to_assets(options.output, options.android, force=options.force)
        print(f"android  {assets}", file=stages)
    print(json.dumps(report, indent=1, sort_keys=True) if options.json else to_text(report, options.output))
    if not held(report):
        print(f"edge_albert: {refusal(report)}", file=sys.stderr)
        return REFUSED
    return 0


def _request(options: argparse.Namespace) -> Request:
    return Request(
        source=options.model or str(DEFAULT_MODEL),
        output=options.output,
        task=options.task,
        precision=_precision(options),
        formats=options.formats or _installed_formats(),
        unroll=options.unroll,
        compat=options.compat,
        block_size=options.block_size,
        per_iteration=not options.per_tensor,
        ranges=options.ranges or RANGES,
        calibration=options.calibration,
        calibration_data=text_file(options.calibration_data, options),
        mixed_bytes=options.mixed,
        max_loss=options.max_loss,
        evaluation=text_file(options.eval, options),
        metric=options.metric,
        max_drop=options.max_drop,
        fallback=options.fallback,
        early_exit=options.early_exit,
        exit_threshold=options.exit_threshold,
        force=options.force,
        measure=options.measure,
        android=options.android is not None,
        command=_command(options),
    )


def _precision(options: argparse.Namespace) -> str:
    return MIXED if options.mixed is not None or options.max_loss is not None else options.precision or "int8"


def _refuse_idle_options(options: argparse.Namespace) -> None:
    """EdgeAlbertError for an option that would do nothing, so that nobody believes it did."""
    precision = _precision(options)
    if precision != "int8-static" and (options.ranges or options.per_tensor):
        raise EdgeAlbertError("--ranges and --per-tensor are about the activations of --int8-static: add it")
    if options.compat and precision in ("int8-static", "int4", MIXED):
        raise EdgeAlbertError(
            "--tflite-compat: engines up to TensorFlow Lite 2.16 have kernels neither for int4 nor for static int8: "
            "leave one of the two out"
        )
    studied = precision in ("int8-static", MIXED) or options.fallback
    if options.calibration and not studied:
        raise EdgeAlbertError(
            f"--calibration: --{precision} uses neither ranges nor sensitivities: leave it out, or choose "
            "--int8-static, --mixed or --max-loss"
        )
    if options.calibration_data and not (studied or precision == "int4"):
        raise EdgeAlbertError(f"--calibration-data: --{precision} needs no texts: leave it out")


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
    words += _precision_words(options)
    words += ["--early-exit", options.early_exit] if options.early_exit else []
    words += ["--exit-threshold", f"{options.exit_threshold:g}"] if options.exit_threshold is not None else []
    words += ["--format", ",".join(options.formats)] if options.formats else []
    words += [flag for flag, wanted in (("--unroll", options.unroll), ("--tflite-compat", options.compat)) if wanted]
    return shlex.join(words)


def _precision_words(options: argparse.Namespace) -> list[str]:
    """What decides the numbers in the file: precision, and files by their names alone."""
    words = [f"--{options.precision or 'int8'}"]
    if options.mixed is not None:
        words = ["--mixed", str(options.mixed)]
    elif options.max_loss is not None:
        words = ["--max-loss", f"{options.max_loss:g}"]
    words += ["--block-size", str(options.block_size)] if options.block_size != 64 else []
    words += ["--ranges", options.ranges] if options.ranges else []
    words += ["--per-tensor"] if options.per_tensor else []
    for flag, path in (("--calibration", options.calibration), ("--calibration-data", options.calibration_data)):
        words += [flag, path.name] if path is not None else []
    decided = options.fallback or options.early_exit == AUTO  # by the labelled rows
    if decided and options.eval is not None and options.max_drop is not None:
        words += ["--eval", options.eval.name, "--max-drop", f"{options.max_drop:g}"]
        words += ["--fallback"] if options.fallback else []
    return words


if __name__ == "__main__":
    run_command(main)
