"""Does early exit pay, for models of 6 and of 12 iterations and three tasks? The tables of docs/early_exit.md.

    python benchmarks/exit_depths.py train --results runs/results --work runs/depths
    python benchmarks/exit_depths.py measure --results runs/results --work runs/depths

RESULTS is the work folder of benchmarks/real_results.py: its data, its teachers and the base that was taught the
encoder's vectors. From that base the same recipe distils, for SST-2, SNIPS and SMS spam, the models of 6 and of 12
iterations (one layer, applied so often), with early exit and without, and students of 2, 3 and 4 iterations. Models
that are there are not trained again. `measure` runs benchmarks/early_exit.py on each, the model trained without exits
among the students; its JSON lies in WORK/measured, and what is there is not measured again. Then all of it is printed
and put into WORK/depths.json, with what early exit costs at full depth, in float: the mean over the --seeds, the lowest
and the highest. The other tables are of the first seed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import early_exit
import numpy as np
from results.plan import TASKS, Places, TaskPlan, read_records, run
from results.students import DISTILLING
from results.table import TASK_NAMES

from edge_albert.atomic import write_file_atomic
from edge_albert.cli import run_command
from edge_albert.errors import EdgeAlbertError
from edge_albert.reports.tables import markdown_table

DEPTHS = (6, 12)
SHALLOWER = (2, 3, 4)
NAMES = ("sst2", "snips", "sms")
ALLOWED = 0.5  # points that may be lost, of the summary
_HERE = Path(__file__).parent


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python benchmarks/exit_depths.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("step", choices=("train", "measure"))
    out.add_argument("--results", type=Path, required=True, help="work folder of real_results.py")
    out.add_argument("--work", type=Path, required=True, help="folder for the models and the measurements")
    out.add_argument("--tasks", nargs="+", choices=NAMES, default=NAMES)
    out.add_argument("--seeds", nargs="+", type=int, default=[1], help="of the models of full depth (%(default)s)")
    out.add_argument("--rounds", type=int, default=7, help="of early_exit.py (%(default)s)")
    return out


def main(argv: list[str] | None = None) -> int:
    """Run a step; returns the exit status."""
    options = parser().parse_args(argv)
    places = Places(options.results)
    tasks = [TASKS[name] for name in options.tasks]
    if options.step == "train":
        for task in tasks:
            for depth, exits, seed in wanted(options.seeds):
                if not model(options.work, task, depth, exits, seed).exists():
                    train(places, options.work, task, depth, exits, seed)
        return 0
    result = {
        "measured": [
            {"task": task.name, "iterations": depth, "result": measure(places, options, task, depth)}
            for task in tasks
            for depth in DEPTHS
        ],
        "full_depth": [full_depth(options.work, task, depth, options.seeds) for task in tasks for depth in DEPTHS],
    }
    write_file_atomic(options.work / "depths.json", json.dumps(result, indent=1) + "\n")
    print("\n\n".join(to_markdown(result)))
    return 0


def wanted(seeds: list[int]) -> list[tuple[int, bool, int]]:
    """(iterations, with early exit?, seed) of every model of a task; the shallower ones have the first seed alone."""
    full = [(depth, exits, seed) for seed in seeds for depth in DEPTHS for exits in (True, False)]
    return full + [(depth, False, seeds[0]) for depth in SHALLOWER]


def model(work: Path, task: TaskPlan, depth: int, exits: bool, seed: int) -> Path:
    return work / "models" / task.name / f"{depth}-iterations{'-exits' if exits else ''}-{seed}"


def train(places: Places, work: Path, task: TaskPlan, depth: int, exits: bool, seed: int) -> None:
    """Distil one model, from the task's rows alone."""
    output = model(work, task, depth, exits, seed)
    files = [
        word for part in ("train", *places.parts(task.name)) for word in (f"--{part}", places.file(task.name, part))
    ]
    run(
        "distill", "--task", task.kind, *files, "--metric", task.metric, "--teacher", places.fine_tuned(task),
        "--student", places.base("mini", "distilled"), "--iterations", depth, *(["--early-exit"] if exits else []),
        "--seed", seed, "--epochs", task.epochs, *DISTILLING,
        "--teacher-cache", places.cache, "--checkpoints", work / "checkpoints" / task.name / output.name,
        "--output", output,
    )  # fmt: skip


def measure(places: Places, options: argparse.Namespace, task: TaskPlan, depth: int) -> dict[str, Any]:
    """What early_exit.py says of the model of that depth, on the rows that nothing was trained or kept by, if any."""
    folder = options.work / "measured" / f"{task.name}-{depth}"
    output = folder / "result.json"
    if not output.exists():
        judged = places.file(task.name, places.parts(task.name)[-1])
        seed = options.seeds[0]
        students = [model(options.work, task, fewer, False, seed) for fewer in (*SHALLOWER, depth)]
        command = [
            sys.executable, _HERE / "early_exit.py", "--model", model(options.work, task, depth, True, seed),
            "--eval", judged, "--metric", task.metric, "--students", *students, "--rounds", options.rounds,
            "--work", folder, "--output", output,
        ]  # fmt: skip
        done = subprocess.run(list(map(str, command)), stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise EdgeAlbertError(f"early_exit.py ended with status {done.returncode} for {task.name}, {depth}")
    return json.loads(output.read_text(encoding="utf-8"))


def full_depth(work: Path, task: TaskPlan, depth: int, seeds: list[int]) -> dict[str, Any]:
    """What the models of that depth say at full depth, trained without and with early exit: a figure for each seed."""
    found = {
        name: [points(model(work, task, depth, exits, seed), task) for seed in seeds]
        for name, exits in (("without", False), ("with", True))
    }
    return {"task": task.name, "iterations": depth, "metric": task.metric, **found}


def to_markdown(result: dict[str, Any]) -> list[str]:
    """The tables of depths.json: what it comes to, what early exit costs at full depth, and one of each task and depth
    with all that was measured."""
    tables = [
        f"{TASK_NAMES[one['task']]}, {one['iterations']} iterations: {early_exit.to_markdown(one['result'])}"
        for one in result["measured"]
    ]
    rows: list[Sequence[str]] = []
    for one in result["full_depth"]:
        without, exits = np.array(one["without"]), np.array(one["with"])
        said = f"{TASK_NAMES[one['task']]}, {one['metric']} × 100"
        lost = f"{(without - exits).mean():+.2f}"
        rows.append((said, str(one["iterations"]), _said(without), _said(exits), lost))
    header = ("task", "iterations", "without", "with early exit", "lost")
    return [summary(result["measured"]), markdown_table(header, rows), *tables]


def summary(measured: list[dict[str, Any]]) -> str:
    """Of each task, depth and format: early exit where ALLOWED points may be lost, and the student nearest in time."""
    lines = [_line(one, format) for one in measured for format in ("onnx", "tflite")]
    header = (
        "task", "iterations", "format", "early exit", "mean iterations", "lost", "× peer", "student", "lost", "× peer",
    )  # fmt: skip
    return markdown_table(header, lines)


def _line(one: dict[str, Any], format: str) -> tuple[str, ...]:
    rows = [row for row in one["result"]["rows"] if row["name"].endswith(f", {format}")]
    full = next(row for row in rows if row["name"].startswith("full depth"))
    students = [row for row in rows if row["name"].startswith("student")]
    peer = one["result"]["rows"][0]["cpu_ms"]
    begin = (TASK_NAMES[one["task"]], str(one["iterations"]), format)
    chosen = next(choice for choice in one["result"]["choices"] if choice["allowed"] == ALLOWED)
    if "refused" in chosen:
        return (*begin, "refused", "", "", "", "", "", "")
    rule = f"{chosen['criterion']} {chosen['threshold']:g}"
    exits = next(row for row in rows if row["name"].endswith(f": {rule}, {format}"))
    student = min(students, key=lambda row: abs(row["cpu_ms"] - exits["cpu_ms"]))

    def beside(row: dict[str, Any]) -> tuple[str, str]:
        return f"{full['points'] - row['points']:+.2f}", f"{row['cpu_ms'] / peer:.2f}"

    depth = f"{student['iterations']:.0f} iterations"
    return (*begin, rule, f"{exits['iterations']:.2f}", *beside(exits), depth, *beside(student))


def _said(values: np.ndarray) -> str:
    mean = f"{values.mean():.2f}"
    return mean if len(values) == 1 else f"{mean} ({values.min():.2f} … {values.max():.2f})"


def points(folder: Path, task: TaskPlan) -> float:
    """The metric × 100 of a distilled model on its test set, or on dev where there is none."""
    end: dict[str, Any] = read_records(folder / "log.jsonl")[-1]
    return 100 * end["test" if "test" in end else "dev"][task.metric]


if __name__ == "__main__":
    run_command(main)
