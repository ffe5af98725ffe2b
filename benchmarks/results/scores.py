"""Scores: every student exported in int8 and asked through both engines, as a device would ask it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import edge_albert
from edge_albert.bundle import MODEL_FILES
from edge_albert.checkpoint import read_checkpoint
from edge_albert.config import count_parameters
from edge_albert.runtime.classify import SentenceEmbedder, TextClassifier
from edge_albert.training.data.examples import Columns, Example, any_label, number_fault, read_examples
from edge_albert.training.finetuning.objectives import classification
from edge_albert.training.metrics.glue import spearman
from results.plan import Plan, Student, TaskPlan, add_record, read_records, run

ENGINES = ("onnx", "tflite")


def score(plan: Plan) -> None:
    """Score every student that is trained and has no record yet."""
    noted = {(r["task"], r["size"], r["kind"], r["seed"]) for r in read_records(plan.results)}
    for student in plan.students():
        key = (student.task.name, student.size, student.kind, student.seed)
        if key not in noted and plan.student(student).exists():
            record = dict(zip(("task", "size", "kind", "seed"), key, strict=True)) | _figures(plan, student)
            add_record(plan.results, record)
            print(json.dumps(record), flush=True)


def _figures(plan: Plan, student: Student) -> dict[str, Any]:
    folder, task = plan.student(student), student.task
    config = read_checkpoint(folder).config
    embeds = task.kind == "sentence-embedding"
    end = read_records(folder / "log.jsonl")[-1]
    parts = plan.parts(task.name)
    out: dict[str, Any] = {
        "parameters": count_parameters(
            config, pooler=not embeds, head_outputs=0 if embeds else config.num_labels
        ).total,
        "fp32": {part: end[part][task.metric] for part in parts},
        "bytes": {},
    }
    with tempfile.TemporaryDirectory(dir=plan.work) as scratch:
        bundle = Path(scratch) / "bundle"
        run("export", "--model", folder, "--task", task.kind, "--int8", "--no-measure", "--output", bundle)
        for engine in ENGINES:
            out["bytes"][engine] = (bundle / MODEL_FILES[engine]).stat().st_size
            out[engine] = {part: judge(bundle, engine, task, plan.file(task.name, part)) for part in parts}
    return out


def judge(bundle: Path, engine: str, task: TaskPlan, path: Path) -> float:
    """The task's metric of a bundle's answers to a file's rows."""
    embeds = task.kind == "sentence-embedding"
    check = number_fault if embeds else any_label
    rows = read_examples(path, Columns(), check, skip_bad=False, needs_pair=embeds).rows
    model = edge_albert.load(bundle, engine=engine, threads=1)
    try:
        return _spearman(model, rows) if isinstance(model, SentenceEmbedder) else _labels(model, rows, task.metric)
    finally:
        model.session.close()


def _labels(model: Any, rows: list[Example], metric: str) -> float:
    assert isinstance(model, TextClassifier)
    names = model.session.bundle.labels
    answers = model([row.text for row in rows], truncate=True)
    gold = np.array([names.index(row.label) for row in rows])
    predicted = np.array([names.index(answer.label) for answer in answers])
    return classification(len(names)).judge(gold, predicted)[metric]


def _spearman(model: SentenceEmbedder, rows: list[Example]) -> float:
    first = model([row.text for row in rows], truncate=True)
    second = model([row.pair or "" for row in rows], truncate=True)
    return spearman(np.array([float(row.label) for row in rows]), (first * second).sum(axis=1))
