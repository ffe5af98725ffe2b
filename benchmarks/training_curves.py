"""The curves of docs/pretraining.md and docs/distillation.md, drawn from the logs that the runs left.

    python benchmarks/training_curves.py pretraining runs/pretrain-mini docs/images/pretraining.svg
    python benchmarks/training_curves.py students runs/results docs/images/students.svg

pretraining: the held-out masked words and sentence order against the tokens read. students: the work folder of
benchmarks/real_results.py; a panel for what is taught before any task, and one for each task, with the dev set's metric
against the rows that were trained on: the mean of the seeds, as far as all of them went.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from results.plan import KINDS, TASKS, read_records
from results.table import KIND_NAMES, TASK_NAMES

from edge_albert.analysis.picture import Panel, curves, draw_svg
from edge_albert.atomic import write_file_atomic
from edge_albert.cli import run_command
from edge_albert.errors import EdgeAlbertError

SIZE = "mini"  # of the students that are drawn


def main(argv: list[str] | None = None) -> int:
    """Draw one of the pictures; returns the exit status."""
    match sys.argv[1:] if argv is None else argv:
        case [("pretraining" | "students") as kind, folder, output] if output.endswith(".svg"):
            picture = pretraining(Path(folder)) if kind == "pretraining" else students(Path(folder))
        case _:
            raise EdgeAlbertError("usage: training_curves.py pretraining|students FOLDER PICTURE.svg")
    write_file_atomic(Path(output), picture)
    return 0


def pretraining(run: Path) -> str:
    """The SVG of a run of pretrain."""
    looks = [record for record in _records(run / "log.jsonl") if record["event"] == "evaluation"]
    millions = [record["tokens"] / 1e6 for record in looks]
    panels = [
        curves(title, [("", millions, [scale * record[name] for record in looks])], "million tokens")
        for title, name, scale in (
            ("Masked words, loss", "mlm_loss", 1),
            ("Masked words guessed, %", "mlm_accuracy", 100),
            ("Order of two halves, %", "order_accuracy", 100),
        )
    ]
    return draw_svg(panels, "Held-out loss and accuracy of masked words, and of sentence order, while pre-training")


def students(work: Path) -> str:
    """The SVG of the students that real_results.py trained in `work`."""
    bases = [(_taught(path.name), _curve([path / "log.jsonl"], "spearman")) for path in _found(work / "bases")]
    panels = [_panel("Taught a large model's vectors: STS-B dev, Spearman × 100", bases)] if bases else []
    for task in TASKS.values():
        lines = []
        for kind in KINDS:
            runs = _found(work / "students", f"{task.name}-{SIZE}-{kind}-")
            if runs:
                lines.append((KIND_NAMES[kind], _curve([run / "log.jsonl" for run in runs], task.metric)))
        if lines:
            panels.append(_panel(f"{TASK_NAMES[task.name]} dev, {task.metric} × 100 ({SIZE})", lines))
    if not panels:
        raise EdgeAlbertError(f"{work}: no student with a log.jsonl; train some with benchmarks/real_results.py")
    return draw_svg(panels, "Dev sets while students learn: from scratch, pre-trained, distilled")


def _taught(base: str) -> str:
    """mini-corpus ► mini, of the corpus: two bases of a size are two lines."""
    size, kind = base.split("-")
    return f"{size}, of the {'corpus' if kind == 'corpus' else 'tasks’ texts'}"


def _found(folder: Path, start: str = "") -> list[Path]:
    return sorted(path.parent for path in folder.glob(f"{start}*/log.jsonl"))


def _records(path: Path) -> list[dict[str, Any]]:
    records = read_records(path)
    if not records:
        raise EdgeAlbertError(f"{path}: no such log, or an empty one; name the folder of a run")
    return records


def _curve(logs: list[Path], metric: str) -> tuple[list[float], list[float]]:
    """Thousands of rows trained on, and the mean over the logs of the dev set's metric × 100."""
    rows: list[float] = []
    values: list[list[float]] = []
    for log in logs:
        start, *others = _records(log)
        looks = [record for record in others if record["event"] in ("epoch", "look")]
        rows = [record["step"] * start["recipe"]["batch_size"] / 1000 for record in looks]
        values.append([100 * record["dev"][metric] for record in looks])
    common = min(map(len, values))
    return rows[:common], np.mean([line[:common] for line in values], axis=0).tolist()


def _panel(title: str, lines: list[tuple[str, tuple[list[float], list[float]]]]) -> Panel:
    return curves(title, [(name, x, y) for name, (x, y) in lines], "thousand rows", legend=True)


if __name__ == "__main__":
    run_command(main)
