"""The parts of benchmarks/real_results.py that do arithmetic, on figures worked out elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import real_results
from results.data import sample
from results.plan import add_record, read_records
from results.table import table

from edge_albert.errors import EdgeAlbertError


def record(kind: str, seed: int, value: float, size: str = "tiny") -> dict:
    figures = {"dev": value}
    sizes = {"onnx": 1_490_000, "tflite": 1_500_000}
    more = {} if kind == "teacher" else {"onnx": figures, "tflite": figures, "bytes": sizes, "parameters": 1_418_000}
    return {"task": "sst2", "size": size, "kind": kind, "seed": seed, "fp32": figures, **more}


def test_means_and_standard_errors_beside_scipy() -> None:
    sem = pytest.importorskip("scipy.stats").sem
    values = [0.801, 0.812, 0.834]
    text = table([record("teacher", 1, 0.901, ""), *(record("distilled", i, value) for i, value in enumerate(values))])
    teacher, student = text.splitlines()[2:]
    assert teacher.startswith("| SST-2, accuracy | teacher |")
    assert "| 90.1 |" in teacher
    said = f"{100 * np.mean(values):.1f} ± {100 * sem(values):.1f}"
    assert (
        student
        == f"| SST-2, accuracy | distilled | tiny | 1,418,000 | {said} | {said} | {said} | 1.49 MB / 1.50 MB | 3 |"
    )


def test_records_survive_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    assert read_records(path) == []
    add_record(path, {"a": 1})
    path.write_text(path.read_text() + '{"b": ')
    add_record(path, {"c": 3})
    assert read_records(path) == [{"a": 1}, {"c": 3}]


def test_a_larger_sample_holds_the_smaller(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    lines = [f"This is sentence number {i} of a long and dull book." for i in range(60)]
    corpus.write_text("\n".join([*lines, "Short.", "x" * 300, lines[0]]), encoding="utf-8")
    whole = sample(corpus, 1000)
    assert sorted(whole) == sorted(lines)
    assert sample(corpus, 10) == whole[:10]


def test_inputs_that_a_step_needs_are_named(tmp_path: Path) -> None:
    with pytest.raises(EdgeAlbertError, match="the step data needs --data, --corpus, --encoder, --pretrained"):
        real_results.main(["data", "--work", str(tmp_path)])
