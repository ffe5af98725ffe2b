"""The table of docs/distillation.md, from results.jsonl."""

from __future__ import annotations

import math
from typing import Any

from edge_albert.reports.tables import markdown_table, megabytes
from results.plan import TASKS, TaskPlan
from results.scores import ENGINES

KIND_NAMES = {"scratch": "from scratch", "pretrained": "pre-trained", "distilled": "distilled"}
TASK_NAMES = {"sst2": "SST-2", "snips": "SNIPS intents", "sms": "SMS spam", "stsb": "STS-B"}


def table(records: list[dict[str, Any]], part: str = "dev") -> str:
    """A row per task, size and kind: means over the seeds with the standard error of the mean, in per cent."""
    rows = []
    for task in TASKS.values():
        found = [r for r in records if r["task"] == task.name and part in r["fp32"]]
        rows += [
            [_named(task), "teacher", "", "", _mean([r["fp32"][part]]), "", "", "", "1"]
            for r in found
            if r["kind"] == "teacher"
        ]
        for size in ("tiny", "mini"):
            for kind, name in KIND_NAMES.items():
                runs = [r for r in found if (r["size"], r["kind"]) == (size, kind)]
                if runs:
                    rows.append(_row(task, size, name, runs, part))
    header = ["task", "model", "size", "parameters", "fp32", "int8 ONNX", "int8 TFLite", "bytes ONNX / TFLite", "seeds"]
    return markdown_table(header, rows)


def _row(task: TaskPlan, size: str, name: str, runs: list[dict[str, Any]], part: str) -> list[str]:
    figures = [_mean([r[form][part] for r in runs]) for form in ("fp32", *ENGINES)]
    sizes = " / ".join(megabytes(runs[0]["bytes"][engine]) for engine in ENGINES)
    return [_named(task), name, size, f"{runs[0]['parameters']:,}", *figures, sizes, str(len(runs))]


def _named(task: TaskPlan) -> str:
    return f"{TASK_NAMES[task.name]}, {task.metric}"


def _mean(values: list[float]) -> str:
    mean = sum(values) / len(values)
    if len(values) == 1:
        return f"{100 * mean:.1f}"
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
    return f"{100 * mean:.1f} ± {100 * spread / math.sqrt(len(values)):.1f}"
