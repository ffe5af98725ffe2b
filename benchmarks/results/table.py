"""The table of docs/distillation.md, from results.jsonl."""

from __future__ import annotations

import math
from typing import Any

from edge_albert.reports.tables import markdown_table, megabytes
from results.plan import TASKS, TaskPlan
from results.scores import ENGINES

KIND_NAMES = {"scratch": "from scratch", "pretrained": "pre-trained", "distilled": "distilled"}
TASK_NAMES = {"sst2": "SST-2", "snips": "SNIPS intents", "sms": "SMS spam", "stsb": "STS-B"}


def table(records: list[dict[str, Any]]) -> str:
    """A row per task, size and kind: means over the seeds with the standard error of the mean, in per cent.

    Of the test set where there is one, else of the dev set.
    """
    rows = []
    for task in TASKS.values():
        found = [r for r in records if r["task"] == task.name]
        rows += [_row(task, "", "teacher", [r]) for r in found if r["kind"] == "teacher"]
        for size in ("tiny", "mini"):
            for kind, name in KIND_NAMES.items():
                runs = [r for r in found if (r["size"], r["kind"]) == (size, kind)]
                if runs:
                    rows.append(_row(task, size, name, runs))
    header = [
        "task, judged on",
        "model",
        "size",
        "parameters",
        "fp32",
        "int8 ONNX",
        "int8 TFLite",
        "bytes ONNX / TFLite",
        "seeds",
    ]
    return markdown_table(header, rows)


def _row(task: TaskPlan, size: str, name: str, runs: list[dict[str, Any]]) -> list[str]:
    part = "test" if "test" in runs[0]["fp32"] else "dev"
    figures = [_mean([r[form][part] for r in runs]) if form in runs[0] else "" for form in ("fp32", *ENGINES)]
    is_exported = "bytes" in runs[0]
    sizes = " / ".join(megabytes(runs[0]["bytes"][engine]) for engine in ENGINES) if is_exported else ""
    parameters = f"{runs[0]['parameters']:,}" if is_exported else ""
    return [f"{TASK_NAMES[task.name]} {part}, {task.metric}", name, size, parameters, *figures, sizes, str(len(runs))]


def _mean(values: list[float]) -> str:
    mean = sum(values) / len(values)
    if len(values) == 1:
        return f"{100 * mean:.1f}"
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
    return f"{100 * mean:.1f} ± {100 * spread / math.sqrt(len(values)):.1f}"
