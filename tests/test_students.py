"""The table of students: the documented one is the computed one, and every student stays within its class."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("onnx")
pytest.importorskip("flatbuffers")

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import students_table  # noqa: E402

from edge_albert.config import count_parameters  # noqa: E402


@pytest.fixture(scope="module")
def table() -> str:
    return students_table.table()


def test_the_documented_table_is_the_computed_one(table: str) -> None:
    """Remake it with `python benchmarks/students_table.py`."""
    assert table in (ROOT / "docs" / "distillation.md").read_text(encoding="utf-8")


def test_every_student_is_within_its_class() -> None:
    for name, limit, config in students_table.STUDENTS:
        assert count_parameters(config, head_outputs=2).total <= limit * 1e6, name


def test_parameters_beside_transformers(table: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    for name, _, config in students_table.STUDENTS:
        with torch.device("meta"):
            model = transformers.AlbertForSequenceClassification(transformers.AlbertConfig.from_dict(config.to_dict()))
        [row] = [line for line in table.splitlines() if line.startswith(f"| {name} |")]
        assert f"| {sum(p.numel() for p in model.parameters()):,} |" in row


def test_int8_files_are_little_more_than_a_byte_a_parameter() -> None:
    _, _, config = students_table.STUDENTS[0]
    parameters = count_parameters(config, head_outputs=2).total
    for format in students_table.FORMATS:
        assert parameters < students_table.int8_bytes(config, format) < 1.1 * parameters
