"""The parts of benchmarks/real_results.py that do arithmetic, on figures worked out elsewhere."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import real_results
import training_curves
from results.data import sample
from results.near import joins, nearest
from results.plan import add_record, read_records
from results.table import table

from edge_albert.errors import EdgeAlbertError

DOCS = Path(__file__).resolve().parents[1] / "docs"


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
    assert teacher.startswith("| SST-2 dev, accuracy | teacher |")
    assert "| 90.1 |" in teacher
    said = f"{100 * np.mean(values):.1f} ± {100 * sem(values):.1f}"
    assert (
        student
        == f"| SST-2 dev, accuracy | distilled | tiny | 1,418,000 | {said} | {said} | {said} | 1.49 MB / 1.50 MB | 3 |"
    )


def test_the_test_set_is_judged_where_there_is_one() -> None:
    both = record("distilled", 1, 0.5) | {form: {"dev": 0.5, "test": 0.75} for form in ("fp32", "onnx", "tflite")}
    assert "| SST-2 test, accuracy | distilled | tiny | 1,418,000 | 75.0 | 75.0 | 75.0 |" in table([both])


def test_document_says_what_was_measured() -> None:
    records = read_records(DOCS / "distillation" / "results.jsonl")
    assert records
    assert table(records) in (DOCS / "distillation.md").read_text(encoding="utf-8")


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


def test_nearest_beside_a_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("results.near._BLOCK", 7)
    random = np.random.default_rng(0)
    vectors, anchors = (random.standard_normal((n, 5)).astype(np.float16) for n in (40, 3))
    cosines = [max(float(v.astype(float) @ a.astype(float)) for a in anchors) for v in vectors]
    expected = sorted(sorted(range(40), key=lambda i: -cosines[i])[:10])
    assert nearest(vectors, anchors, 10).tolist() == expected


def test_joins_are_of_two_rows_and_always_the_same() -> None:
    rows = ["good", "a long film", "dull"]
    made = joins(rows, 50)
    assert made == joins(rows, 50)
    assert joins(rows, 0) == []
    for text in made:
        ends = [row for row in rows if text.startswith(row)], [row for row in rows if text.endswith(row)]
        assert all(ends)
        assert ends[0] != ends[1]


def test_inputs_that_a_step_needs_are_named(tmp_path: Path) -> None:
    with pytest.raises(EdgeAlbertError, match="the step data needs --data, --corpus, --encoder, --pretrained"):
        real_results.main(["data", "--work", str(tmp_path)])


# -- the curves --------------------------------------------------------------------------------------------------------


def write_log(path: Path, *records: dict) -> None:
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def finetuned(path: Path, *accuracies: float) -> None:
    looks = [{"event": "epoch", "step": 100 * i, "dev": {"accuracy": a}} for i, a in enumerate(accuracies, 1)]
    write_log(path, {"event": "start", "recipe": {"batch_size": 32}}, *looks, {"event": "end"})


def test_a_curve_is_the_mean_of_its_seeds_as_far_as_all_went(tmp_path: Path) -> None:
    finetuned(tmp_path / "1" / "log.jsonl", 0.5, 0.7, 0.9)
    finetuned(tmp_path / "2" / "log.jsonl", 0.6, 0.8)
    rows, values = training_curves._curve([tmp_path / "1" / "log.jsonl", tmp_path / "2" / "log.jsonl"], "accuracy")
    assert rows == pytest.approx([3.2, 6.4])
    assert values == pytest.approx([55, 75])


def test_pictures_of_the_runs_that_are_there(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    finetuned(tmp_path / "students" / "sst2-mini-scratch-1" / "log.jsonl", 0.5, 0.7)
    finetuned(tmp_path / "students" / "sst2-mini-distilled-1" / "log.jsonl", 0.6, 0.8)
    looks = {"event": "look", "step": 100, "dev": {"spearman": 0.7}}
    for base in ("mini-corpus", "mini-distilled"):
        write_log(tmp_path / "bases" / base / "log.jsonl", {"event": "start", "recipe": {"batch_size": 32}}, looks)
    assert training_curves.main(["students", str(tmp_path), str(tmp_path / "students.svg")]) == 0
    text = (tmp_path / "students.svg").read_text(encoding="utf-8")
    assert "mini, of the corpus" in text
    assert "mini, of the tasks’ texts" in text
    assert "SST-2 dev, accuracy × 100 (mini)" in text
    assert "from scratch" in text
    assert "pre-trained<" not in text
    assert "SNIPS" not in text

    figures = {"event": "evaluation", "mlm_loss": 6.0, "mlm_accuracy": 0.14, "order_accuracy": 0.6}
    run = tmp_path / "run"
    write_log(run / "log.jsonl", {"event": "step"}, figures | {"tokens": 10**6}, figures | {"tokens": 2 * 10**6})
    assert training_curves.main(["pretraining", str(run), str(tmp_path / "run.svg")]) == 0
    assert "Masked words guessed" in (tmp_path / "run.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["students"], "usage: "),
        (["students", "{}", "x.png"], "usage: "),
        (["students", "{}", "x.svg"], "no student with a log.jsonl"),
        (["pretraining", "{}", "x.svg"], "no such log"),
    ],
)
def test_a_picture_of_nothing_is_refused(tmp_path: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(EdgeAlbertError, match=message):
        training_curves.main([word.format(tmp_path) for word in arguments])
