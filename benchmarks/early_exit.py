"""Does leaving early pay? One model at full depth, with early exit, against shallower students and the expert peer.

    python benchmarks/early_exit.py --model sst2-exits --eval SST-2/dev.tsv --students sst2-4 sst2-3 --work runs/exits

MODEL was trained with `finetune --early-exit`; the students are checkpoints of fewer iterations, full depth only. All
files are int8. Criterion and threshold are chosen on half of the evaluation file, for each of the --drops (points that
may be lost); every row of the table, peer and students too, is measured on the other half. The expert peer is the route
of benchmarks/peers/rows.py: torch.onnx.export, quant_pre_process, quantize_dynamic per channel, of the same model.

Time is CPU time of one input at a time on one thread, in a fresh process for every row and round; the rows take turns,
and each input's time is its median over the rounds. Texts are tokenised beforehand.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from peers.rows import BASE, ROWS

from calibration.exits import ExitModel, choose, inputs_of, part_of, split_rows, trials
from calibration.gate import Evaluation, read_evaluation
from calibration.texts import TextFile
from converters.convert import convert
from edge_albert.atomic import write_file_atomic
from edge_albert.checkpoint_formats.tensors import head_outputs
from edge_albert.cli import run_command
from edge_albert.data_options import add_columns, text_file
from edge_albert.early_exit import Exits, criteria_for
from edge_albert.errors import EdgeAlbertError
from edge_albert.exporting.source import Source, read_source
from edge_albert.reports.machine import describe_machine
from edge_albert.reports.tables import markdown_table
from edge_albert.runtime.child import environment

ROOT = Path(__file__).resolve().parents[1]
_CHILD = Path(__file__).parent / "exits" / "child.py"


@dataclass(frozen=True)
class Contender:
    """A row of the table. evaluation: of the half that judges; inputs: which those are; depth: of the model's loop."""

    name: str
    file: Path
    engine: str
    plain: bool
    depth: int
    evaluation: Evaluation
    inputs: np.ndarray


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python benchmarks/early_exit.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("--model", required=True, metavar="DIR", help="a checkpoint with exit heads")
    out.add_argument("--eval", required=True, type=Path, metavar="FILE", help="labelled rows of its task")
    out.add_argument("--students", nargs="*", default=[], metavar="DIR", help="checkpoints of fewer iterations")
    out.add_argument("--drops", type=_numbers, default=(0.25, 0.5, 1.0), help="points allowed (0.25,0.5,1.0)")
    out.add_argument("--formats", default="onnx,tflite", help="(onnx,tflite)")
    out.add_argument("--metric", metavar="NAME", help="the task's usual one")
    out.add_argument("--rounds", type=int, default=3, help="processes per row (%(default)s)")
    out.add_argument("--work", required=True, type=Path, metavar="DIR", help="folder for the files that are made")
    out.add_argument("--output", type=Path, metavar="JSON", help="write everything that was measured here")
    out.add_argument("--no-peer", dest="peer", action="store_false", help="leave the expert peer out")
    add_columns(out.add_argument_group("columns of the evaluation file"))
    return out


def main(argv: list[str] | None = None) -> int:
    """Print the table in Markdown; returns the exit status."""
    options = parser().parse_args(argv)
    options.work.mkdir(parents=True, exist_ok=True)
    file = text_file(options.eval, options)
    assert file is not None
    contenders, choices = _contenders(options, file)
    times: dict[str, list[dict[str, Any]]] = {one.name: [] for one in contenders}
    for number in range(options.rounds):
        for one in contenders:
            print(f"round {number + 1} of {options.rounds}: {one.name}", file=sys.stderr, flush=True)
            times[one.name].append(_run(one))
    rows = [_row(one, times[one.name]) for one in contenders]
    result = {"machine": describe_machine(), "eval": options.eval.name, "choices": choices, "rows": rows}
    print(to_markdown(result))
    if options.output is not None:
        write_file_atomic(options.output, json.dumps(result, indent=1) + "\n")
    return 0


# -- making the files --------------------------------------------------------------------------------------------------


def _contenders(options: argparse.Namespace, file: TextFile) -> tuple[list[Contender], list[dict[str, Any]]]:
    given, evaluation = _read(options.model, file, options.metric)
    halves = split_rows(evaluation)
    if len(evaluation.judged.gold) != len(evaluation.judged.encodings):
        raise EdgeAlbertError(f"{options.eval}: has texts longer than the model takes: leave them out")
    config = given.checkpoint.config
    if config.exit_heads is None:
        raise EdgeAlbertError(f"{options.model}: has no exit heads: train it with finetune --early-exit")
    if options.peer and given.task.per_token:
        raise EdgeAlbertError(f"{options.model}: the expert peer exports models with an answer per text: add --no-peer")
    answers = ExitModel(config, given.checkpoint.tensors, given.task).rows(evaluation.judged.encodings)
    tried = trials(answers, criteria_for(given.task.name), config)
    found: list[tuple[str, Source, Evaluation, Exits | None]] = [("full depth", given, evaluation, None)]
    choices: list[dict[str, Any]] = []
    for drop in options.drops:
        try:
            chosen = choose(tried, answers, evaluation, halves, drop).chosen
        except EdgeAlbertError as error:
            choices.append({"allowed": drop, "refused": str(error)})
            continue
        choices.append({"allowed": drop, "criterion": chosen.criterion, "threshold": chosen.threshold})
        if {**choices[-1], "allowed": 0} in [{**one, "allowed": 0} for one in choices[:-1]]:
            continue  # the same rule as for fewer points
        labels = head_outputs(config, given.task.name)
        exits = Exits(chosen.criterion, chosen.threshold, config.num_hidden_layers, labels)
        found.append(
            (f"early exit, {drop:g} allowed: {chosen.criterion} {chosen.threshold:g}", given, evaluation, exits)
        )
    for folder in options.students:
        student, its = _read(folder, file, options.metric)
        found.append((f"student {Path(folder).name}", student, its, None))
    out = [_expert(options, given, evaluation, halves[1])] if options.peer else []
    for number, (name, source, judged, exits) in enumerate(found):
        for format in options.formats.split(","):
            path = options.work / f"{number}.{format}"
            path.write_bytes(_converted(source, format, exits))
            depth = source.checkpoint.config.num_hidden_layers
            out.append(_contender(f"{name}, {format}", path, format, False, depth, judged, halves[1]))
    return out, choices


def _read(folder: str, file: TextFile, metric: str | None) -> tuple[Source, Evaluation]:
    given = read_source(folder, None)
    return given, read_evaluation(file, metric, given.checkpoint.config, given.task, given.tokenizer)


def _converted(given: Source, format: str, exits: Exits | None) -> bytes:
    checkpoint = given.checkpoint
    return convert(
        checkpoint.config, checkpoint.tensors, given.task, format=format, precision="int8", exits=exits
    ).content


def _expert(options: argparse.Namespace, given: Source, evaluation: Evaluation, half: np.ndarray) -> Contender:
    row = next(row for row in ROWS if row.name == BASE)
    output = (options.work / row.name).resolve()
    output.mkdir(exist_ok=True)
    command = [word.format(model=given.checkpoint.folder.resolve(), output=output) for word in row.command]
    done = subprocess.run([row.interpreter, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EdgeAlbertError(f"the expert peer's export failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    depth = given.checkpoint.config.num_hidden_layers
    return _contender(f"{BASE} peer, onnx", output / row.file, "onnx", True, depth, evaluation, half)


def _contender(
    name: str, file: Path, engine: str, plain: bool, depth: int, evaluation: Evaluation, half: np.ndarray
) -> Contender:
    return Contender(name, file, engine, plain, depth, part_of(evaluation, half), inputs_of(evaluation, half))


# -- measuring ---------------------------------------------------------------------------------------------------------


def _run(one: Contender) -> dict[str, Any]:
    encodings = [one.evaluation.judged.encodings[i] for i in np.flatnonzero(one.inputs)]
    inputs = [(encoding.input_ids, encoding.token_type_ids) for encoding in encodings]
    job = {"file": str(one.file), "engine": one.engine, "plain": one.plain, "inputs": inputs}
    done = subprocess.run(
        [sys.executable, str(_CHILD)],
        input=json.dumps(job), capture_output=True, text=True, check=False, env=environment(1),
    )  # fmt: skip
    if done.returncode:
        raise EdgeAlbertError(f"{one.name}: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}")
    return json.loads(done.stdout)


def _row(one: Contender, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Metric, mean iterations, and times: each input's median over the rounds, then mean and percentiles."""
    cpu = np.median([run["cpu_ms"] for run in runs], axis=0)
    used = [one.depth if count is None else count for count in runs[0]["iterations"]]
    labels = np.shape(runs[0]["logits"][0])[-1]
    per_token = np.ndim(runs[0]["logits"][0]) == 2
    outputs = [  # of those that were not asked too, which `predict` looks at and the half leaves out
        np.zeros((len(encoding.input_ids), labels) if per_token else labels, np.float32)
        for encoding in one.evaluation.judged.encodings
    ]
    for place, row in zip(np.flatnonzero(one.inputs), runs[0]["logits"], strict=True):
        outputs[place] = np.array(row, np.float32)
    judged = one.evaluation.judged
    points = 100 * one.evaluation.measure(judged.gold, judged.predict(outputs))
    return {
        "name": one.name,
        "metric": one.evaluation.metric,
        "inputs": len(cpu),
        "points": points,
        "iterations": float(np.mean(used)),
        "cpu_ms": float(cpu.mean()),
        "p50": float(np.percentile(cpu, 50, method="inverted_cdf")),
        "p90": float(np.percentile(cpu, 90, method="inverted_cdf")),
        "p99": float(np.percentile(cpu, 99, method="inverted_cdf")),
        "file_bytes": one.file.stat().st_size,
    }


def to_markdown(result: dict[str, Any]) -> str:
    """The table, times relative to the first row: the expert peer, where it was measured."""
    rows, base = result["rows"], result["rows"][0]
    full = next(row["points"] for row in rows if row["name"].startswith("full depth"))
    lines = [
        (
            row["name"],
            f"{row['iterations']:.2f}",
            f"{row['points']:.2f}",
            f"{full - row['points']:+.2f}",
            f"{row['cpu_ms']:.2f}",
            f"{row['cpu_ms'] / base['cpu_ms']:.2f}",
            *(f"{row[name]:.2f}" for name in ("p50", "p90", "p99")),
        )
        for row in rows
    ]
    header = ("", "iterations", f"{base['metric']} × 100", "lost", "CPU ms", f"× {base['name']}", "p50", "p90", "p99")
    refused = [f"{one['allowed']:g} points: {one['refused']}" for one in result["choices"] if "refused" in one]
    machine = result["machine"]
    said = f"{base['inputs']} inputs of {result['eval']}, {machine['cpu']}, one thread."
    return "\n\n".join([said, markdown_table(header, lines), *refused])


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as 0.25,0.5") from None


if __name__ == "__main__":
    run_command(main)
