"""What each precision costs and loses, in both engines: the table of docs/calibration.md.

    python benchmarks/quantization_table.py --messages SMSSpamCollection --work runs/quantization
    python benchmarks/quantization_table.py --case sst2-albert SST-2/dev.tsv accuracy --planted --work runs/quantization

`--messages` is the embedded default model on the test part of the SMS Spam Collection (the split of
benchmarks/train_default.py). `--case FOLDER FILE METRIC` is a checkpoint with labelled rows. `--planted` is an
ALBERT-base with random weights, made by transformers, whose norms multiply three channels by 30. It has no task: the
right labels are the float model's own, on this project's sentences cut in half and joined anew, and its bias is set so
that either label is given to half of them.

Every row is one export: the files of both formats, judged by their engines, measured in fresh processes on one thread
(times are CPU time). Calibration uses this project's own sentences, never the rows that judge. `mixed` may be as large
as halfway between int4 and int8. A second table has static int8 by every method of choosing ranges, in ONNX Runtime:
the Kullback-Leibler divergence from the float model's answers on the rows that judge, and the cosine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from calibration.agreement import compare, default_texts, run_reference
from calibration.collect import FILE, collect, read_calibration
from calibration.gate import read_evaluation
from calibration.ranges import METHODS
from calibration.reference import ReferenceModel
from calibration.sensitivity import compare_cost, measure_sensitivity
from calibration.texts import TextFile, calibration_set, encode, spread
from converters.convert import convert
from edge_albert.bundle import to_json
from edge_albert.checkpoint import read_checkpoint, write_checkpoint
from edge_albert.cli import run_command
from edge_albert.errors import EdgeAlbertError
from edge_albert.exporter import DEFAULT_MODEL, Request, export_bundle
from edge_albert.exporting.model_file import run_engine
from edge_albert.exporting.source import read_source
from edge_albert.reports.machine import describe_machine
from edge_albert.reports.tables import markdown_table
from edge_albert.runtime.engine import open_engine
from edge_albert.tasks import get_task
from edge_albert.tokenizer import load_tokenizer

FORMATS = ("onnx", "tflite")
ROWS = {  # name ► what the request says beside the model
    "fp32": {"precision": "fp32"},
    "int8 dynamic": {"precision": "int8"},
    "int8 static, a range per iteration": {"precision": "int8-static"},
    "int8 static, one range": {"precision": "int8-static", "per_iteration": False},
    "int4": {"precision": "int4"},
}
MIXED = "mixed"
_GAIN = 30.0


@dataclass(frozen=True)
class Case:
    """One model with the rows that judge it. texts: to calibrate on, None for all of this project's sentences."""

    name: str
    model: Path
    rows: Path
    metric: str
    texts: Path | None = None

    @property
    def calibration_data(self) -> TextFile | None:
        return None if self.texts is None else TextFile(self.texts)


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python benchmarks/quantization_table.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("--messages", type=Path, metavar="FILE", help="the UCI SMS Spam Collection, one file")
    out.add_argument("--case", nargs=3, action="append", default=[], metavar=("FOLDER", "FILE", "METRIC"))
    out.add_argument("--planted", action="store_true", help="an ALBERT-base with planted outlier channels")
    out.add_argument(
        "--texts", type=int, default=320, metavar="N", help="of --planted: to calibrate on, and to judge by (320)"
    )
    out.add_argument("--work", type=Path, required=True, help="folder for everything on the way, a new one")
    return out


def main(argv: list[str] | None = None) -> int:
    """Run every case and print the tables in Markdown; returns the exit status."""
    options = parser().parse_args(argv)
    options.work.mkdir(parents=True, exist_ok=True)
    if any(options.work.iterdir()):
        raise EdgeAlbertError(f"{options.work}: is not empty: name a new folder with --work")
    for case in _cases(options):
        work = options.work / case.name
        print(f"## {case.name}\n\n{table(case, work)}\n", flush=True)
    machine = describe_machine()
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    print(f"{machine['cpu']} ({', '.join(machine['int8_instructions'])}), one thread; {packages}.")
    return 0


def _cases(options: argparse.Namespace) -> Iterator[Case]:
    if options.messages is not None:
        yield Case("sms-spam", DEFAULT_MODEL, _test_messages(options.messages, options.work), "f1")
    for folder, rows, metric in options.case:
        yield Case(Path(folder).name, Path(folder), Path(rows), metric)
    if options.planted:
        yield planted_base(options.work, options.texts)


def table(case: Case, work: Path) -> str:
    """One line per precision and engine."""
    work.mkdir()
    calibration = _calibrate(case, work)
    reports = {}
    for name, asked in ROWS.items():
        print(f"{case.name}: {name}", file=sys.stderr, flush=True)
        reports[name] = _export(case, work / name.replace(" ", "-"), calibration, **asked)
    sizes = [reports[name]["formats"][FORMATS[0]]["file_bytes"] for name in ("int4", "int8 dynamic")]
    asked = {"precision": "mixed", "mixed_bytes": sum(sizes) // 2}
    reports[MIXED] = _export(case, work / MIXED, calibration, **asked)
    metric = next(iter(reports["fp32"]["gate"]["formats"].values()))
    header = (
        "precision", "engine", "bytes", f"{metric['metric']} (float {metric['float_points']:.2f})", "lost (95 %)",
        "cosine", "CPU ms, 128 tokens", "memory MB",
    )  # fmt: skip
    parts = [markdown_table(header, _lines(reports)), _chosen(reports[MIXED]), ranges_table(case, work, calibration)]
    return "\n\n".join(parts)


def ranges_table(case: Case, work: Path, calibration: Path) -> str:
    """Static int8 by every method, with a range per iteration and with one for all, in ONNX Runtime."""
    given = read_source(str(case.model), None)
    config, tensors, task = given.checkpoint.config, given.checkpoint.tensors, given.task
    found = read_calibration(calibration, given.checkpoint, task)
    encodings = read_evaluation(TextFile(case.rows), case.metric, config, task, given.tokenizer).judged.encodings
    reference = ReferenceModel(config, tensors, task)
    expected = run_reference(reference, encodings, config.pad_token_id, task.per_token)
    rows = []
    for method in METHODS:
        cells = []
        for per_iteration in (True, False):
            ranges = found.ranges(method, per_iteration=per_iteration)
            path = work / f"{method}-{per_iteration}.onnx"
            path.write_bytes(convert(config, tensors, task, precision="int8-static", ranges=ranges).content)
            engine = open_engine(path, threads=1)
            outputs = run_engine(engine, encodings, given)
            engine.close()
            cosine = compare(expected, outputs, task).mean_cosine
            cells += [f"{compare_cost(expected, outputs, task).loss:.1e}", f"{cosine:.5f}"]
        rows.append((method, *cells))
    header = ("ranges", "per iteration: loss", "cosine", "one for all: loss", "cosine")
    return markdown_table(header, rows)


def _lines(reports: dict[str, dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for name, report in reports.items():
        for format, facts in report["formats"].items():
            verdict, runtime = report["gate"]["formats"][format], facts["runtime"]
            low, high = verdict["interval"]
            longest = max((row for row in runtime["runs"] if row["length"] <= 128), key=lambda row: row["length"])
            yield (
                name,
                format,
                f"{facts['file_bytes']:,}",
                f"{verdict['exported_points']:.2f}",
                f"{verdict['drop']:.2f} ({low:.2f} … {high:.2f})",
                f"{facts['agreement']['mean_cosine']:.5f}",
                f"{longest['cpu_ms']['p50']:.2f}",
                f"{runtime['anon_bytes'] / 1e6:.1f}",
            )


def _chosen(report: dict[str, Any]) -> str:
    kinds: dict[str, list[str]] = {}
    for name, precision in report["choice"]["precisions"].items():
        kinds.setdefault(precision, []).append(f"`{name.removesuffix('.weight')}`")
    parts = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in sorted(kinds.items()))
    return f"Mixed, at most {report['choice']['asked']['bytes']:,} bytes: {parts}."


def _calibrate(case: Case, work: Path) -> Path:
    """calibration.json with ranges and sensitivities, once for all rows."""
    given = read_source(str(case.model), None)
    texts = calibration_set(case.calibration_data, given.checkpoint.config, given.task, given.tokenizer)
    found = collect(given.checkpoint, given.task, texts)
    study = measure_sensitivity(given.checkpoint, given.task, texts.encodings, by_iteration=False)
    (work / FILE).write_text(to_json(found.with_sensitivity(study).content), encoding="utf-8")
    return work / FILE


def _export(case: Case, output: Path, calibration: Path, **asked: Any) -> dict[str, Any]:
    request = Request(
        source=str(case.model), output=output, formats=FORMATS, calibration=calibration,
        calibration_data=case.calibration_data, evaluation=TextFile(case.rows), metric=case.metric,
    )  # fmt: skip
    return export_bundle(replace(request, **asked), progress=lambda line: print(f"  {line}", file=sys.stderr))


# -- models and rows ---------------------------------------------------------------------------------------------------


def _test_messages(path: Path, work: Path) -> Path:
    from train_default import split_messages

    out = work / "sms-test.tsv"
    rows = [f"{label}\t{text}\n" for label, text in split_messages(path)["test"]]
    out.write_text("label\ttext\n" + "".join(rows), encoding="utf-8")
    return out


def planted_base(work: Path, count: int) -> Case:
    """ALBERT-base as transformers initialises it, three channels of every norm inside the layer times 30."""
    from peers.model_folder import prepare

    source = prepare(None, None, work)
    checkpoint = read_checkpoint(source, task="text-classification")
    tensors = {name: np.array(tensor, np.float32) for name, tensor in checkpoint.tensors.items()}
    channels = np.random.default_rng(6).choice(checkpoint.config.hidden_size, 3, replace=False)
    for name in tensors:
        if name.endswith(("attention.LayerNorm.weight", "full_layer_layer_norm.weight")):
            tensors[name][channels] *= _GAIN
    config, task, tokenizer = checkpoint.config, get_task("text-classification"), load_tokenizer(source)
    (work / "calibration.txt").write_text("\n".join(spread(default_texts(), count)), encoding="utf-8")
    texts = spread(_rejoined(default_texts()), count)
    encodings = [encode(text, None, config, tokenizer).encoding for text in texts]
    rows = np.stack(
        run_reference(ReferenceModel(config, tensors, task), encodings, config.pad_token_id, per_token=False)
    )
    middle = np.median(rows[:, 1] - rows[:, 0])
    tensors["classifier.bias"] += np.array([middle, 0], np.float32)
    labels = [config.labels[int(row[1] - row[0] > middle)] for row in rows]
    judged = work / "planted.tsv"
    lines = [f"{label}\t{text}\n" for label, text in zip(labels, texts, strict=True)]
    judged.write_text("label\ttext\n" + "".join(lines), encoding="utf-8")
    model = work / "albert-base-with-outliers"
    write_checkpoint(model, config, tensors, task=task.name, tokenizer_folder=source)
    return Case("albert-base-planted", model, judged, "accuracy", work / "calibration.txt")


def _rejoined(texts: list[str]) -> list[str]:
    """The end of each text behind the beginning of the next."""
    words = [text.split() for text in texts]
    pairs = zip(words, [*words[1:], words[0]], strict=True)
    return [" ".join([*after[: len(after) // 2], *before[len(before) // 2 :]]) for before, after in pairs]


if __name__ == "__main__":
    run_command(main)
