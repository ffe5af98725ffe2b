"""benchmarks/early_exit.py on a tiny model: every row is measured, on the half that chose nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("ai_edge_litert")

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import early_exit  # noqa: E402
import exit_depths  # noqa: E402
from distill_helpers import rows  # noqa: E402
from tiny_models import tiny_checkpoint  # noqa: E402

from calibration.exits import ExitModel  # noqa: E402
from edge_albert import distill  # noqa: E402
from edge_albert.checkpoint import read_checkpoint, write_checkpoint  # noqa: E402
from edge_albert.errors import EdgeAlbertError  # noqa: E402
from edge_albert.tasks import TASKS  # noqa: E402
from edge_albert.tokenizer import load_tokenizer  # noqa: E402


def row(name: str, points: float, iterations: float, cpu_ms: float) -> dict:
    figures = {"points": points, "iterations": iterations, "cpu_ms": cpu_ms}
    same = {"metric": "f1", "inputs": 10, "p50": 1.0, "p90": 1.0, "p99": 1.0, "file_bytes": 1}
    return {"name": name, **figures, **same}


RESULT = {
    "machine": {"cpu": "a Xeon"}, "eval": "dev.tsv",
    "choices": [
        {"allowed": 0.25, "criterion": "confidence", "threshold": 0.9},
        {"allowed": 0.5, "criterion": "confidence", "threshold": 0.9},
        {"allowed": 1.0, "criterion": "entropy", "threshold": 0.2},
    ],
    "rows": [
        row("expert peer, onnx", 95.0, 6, 2.0),
        *(
            row(f"{name}, {format}", *figures)
            for name, figures in {
                "full depth": (95.0, 6, 1.5),
                "early exit, 0.25 allowed: confidence 0.9": (94.75, 2.25, 0.8),
                "early exit, 1 allowed: entropy 0.2": (94.25, 1.5, 0.5),
                "student 2-iterations-1": (94.0, 2, 0.65),
                "student 3-iterations-1": (95.5, 3, 0.9),
            }.items()
            for format in ("onnx", "tflite")
        ),
    ],
}  # fmt: skip


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extra = {"early_exit": {"heads": "shared"}}
    source = tiny_checkpoint(tmp_path / "model", num_hidden_layers=4, extra=extra)
    student = tiny_checkpoint(tmp_path / "student", num_hidden_layers=2)
    read, tokenizer = read_checkpoint(source), load_tokenizer(source)
    texts = [text for text, _ in rows(40)]
    answers = ExitModel(read.config, read.tensors, TASKS["text-classification"]).rows(
        [tokenizer.encode(text) for text in texts]
    )
    labels = [read.config.labels[int(answer[-1].argmax())] for answer in answers]
    lines = "".join(f"{text}\t{label}\n" for text, label in zip(texts, labels, strict=True))
    (tmp_path / "eval.tsv").write_text("sentence\tlabel\n" + lines, encoding="utf-8")
    words = ["--model", str(source), "--eval", str(tmp_path / "eval.tsv"), "--students", str(student), "--rounds", "1"]
    words += ["--drops", "60,60", "--no-peer", "--work", str(tmp_path / "work"), "--output", str(tmp_path / "out.json")]
    assert early_exit.main(words) == 0
    page, result = capsys.readouterr().out, json.loads((tmp_path / "out.json").read_text())
    names = [row["name"] for row in result["rows"]]
    assert [name.partition(",")[0] for name in names] == ["full depth"] * 2 + ["early exit"] * 2 + [
        "student student"
    ] * 2
    by_name = dict(zip(names, result["rows"], strict=True))
    assert by_name["full depth, onnx"]["iterations"] == 4
    assert by_name["full depth, onnx"]["points"] > 90, "the labels are the float model's own"
    assert by_name["student student, tflite"]["iterations"] == 2
    early = [row for row in result["rows"] if row["name"].startswith("early exit")]
    assert all(row["iterations"] < 4 for row in early)
    assert {row["inputs"] for row in result["rows"]} < set(range(10, 31)), "one half"
    assert result["choices"][0] == result["choices"][1], "the same rule stands once in the table"
    assert page.count("| early exit, 60 allowed") == 2
    with pytest.raises(EdgeAlbertError, match="has no exit heads"):
        early_exit.main(["--model", str(student), *words[2:]])


def test_a_tagger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its answers are as long as its texts, in the half that is not asked too; the peer has no export for it."""
    extra = {"early_exit": {"heads": "shared"}}
    read = read_checkpoint(tiny_checkpoint(tmp_path / "bare", "token-classification", num_hidden_layers=3, extra=extra))
    source, config = tmp_path / "model", read.config.with_labels(["O", "B-X", "I-X"])
    write_checkpoint(source, config, read.tensors, task="token-classification", tokenizer_folder=read.folder)
    sentences = ["".join(f"{word}\tB-X\n" for word in text.split()) for text, _ in rows(20)]
    (tmp_path / "eval.conll").write_text("\n".join(sentences), encoding="utf-8")
    words = ["--model", str(source), "--eval", str(tmp_path / "eval.conll"), "--rounds", "1", "--drops", "100"]
    words += ["--formats", "onnx", "--work", str(tmp_path / "work")]
    assert early_exit.main([*words, "--no-peer"]) == 0
    assert "| full depth, onnx | 3.00 |" in capsys.readouterr().out
    with pytest.raises(EdgeAlbertError, match="add --no-peer"):
        early_exit.main(words)


# -- benchmarks/exit_depths.py -----------------------------------------------------------------------------------------


def test_the_same_recipe_for_every_depth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven models of a task; only iterations and exits differ. One that is there is not trained again."""
    asked = []
    monkeypatch.setattr(exit_depths, "run", lambda command, *words: asked.append([command, *map(str, words)]))
    (tmp_path / "depths" / "models" / "sms" / "3-iterations-1").mkdir(parents=True)
    (tmp_path / "data" / "sms").mkdir(parents=True)
    (tmp_path / "data" / "sms" / "dev.tsv").touch()
    assert (
        exit_depths.main(["train", "--results", str(tmp_path), "--work", str(tmp_path / "depths"), "--tasks", "sms"])
        == 0
    )
    given = [distill.parser().parse_args(words) for command, *words in asked]
    assert [command for command, *_ in asked] == ["distill"] * 6
    assert [(one.iterations, one.early_exit is not None) for one in given] == [
        (6, True), (6, False), (12, True), (12, False), (2, False), (4, False),
    ]  # fmt: skip
    same = [{**vars(one), "iterations": 0, "early_exit": None, "output": None, "checkpoints": None} for one in given]
    assert all(one == same[0] for one in same)


def test_what_early_exit_costs_at_full_depth(tmp_path: Path) -> None:
    """The test set's points where there is one, dev's otherwise."""
    task = exit_depths.TASKS["sst2"]
    for depth in exit_depths.DEPTHS:
        for exits, dev, test in ((False, 0.5, 0.9), (True, 0.6, 0.875)):
            for seed in (1, 2):
                folder = exit_depths.model(tmp_path, task, depth, exits, seed)
                folder.mkdir(parents=True)
                figures = {"dev": {"accuracy": dev}} | (
                    {"test": {"accuracy": test - seed / 100}} if depth == 12 else {}
                )
                (folder / "log.jsonl").write_text(json.dumps({"event": "end", **figures}) + "\n", encoding="utf-8")

    def table(seeds: list[int]) -> list[list[str]]:
        found = [exit_depths.full_depth(tmp_path, task, depth, seeds) for depth in exit_depths.DEPTHS]
        _, text = exit_depths.to_markdown({"measured": [], "full_depth": found})
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]

    assert table([1]) == [
        ["SST-2, accuracy × 100", "6", "50.00", "60.00", "-10.00"],
        ["SST-2, accuracy × 100", "12", "89.00", "86.50", "+2.50"],
    ]
    assert table([1, 2])[1] == [
        "SST-2, accuracy × 100", "12", "88.50 (88.00 … 89.00)", "86.00 (85.50 … 86.50)", "+2.50",
    ]  # fmt: skip


def test_measure_writes_what_the_document_is_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exit_depths, "measure", lambda *given: RESULT)
    task = exit_depths.TASKS["sms"]
    for depth in exit_depths.DEPTHS:
        for exits in (False, True):
            folder = exit_depths.model(tmp_path, task, depth, exits, 1)
            folder.mkdir(parents=True)
            (folder / "log.jsonl").write_text('{"event": "end", "dev": {"f1": 0.5}}\n', encoding="utf-8")
    words = ["measure", "--results", str(tmp_path), "--work", str(tmp_path), "--tasks", "sms"]
    assert exit_depths.main(words) == 0
    result = json.loads((tmp_path / "depths.json").read_text(encoding="utf-8"))
    printed = capsys.readouterr().out
    tables = exit_depths.to_markdown(result)
    assert len(tables) == 4
    assert all(table in printed for table in tables)
    assert "SMS spam, 12 iterations: 10 inputs of dev.tsv, a Xeon, one thread." in tables[3]


def test_the_summary_sets_early_exit_beside_the_student_nearest_in_time() -> None:
    refused = {**RESULT, "choices": [{"allowed": 0.5, "refused": "loses too much"}]}
    text = exit_depths.summary([
        {"task": "sms", "iterations": 6, "result": RESULT},
        {"task": "sms", "iterations": 12, "result": refused},
    ])  # fmt: skip
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    assert lines[0] == [
        "SMS spam", "6", "onnx", "confidence 0.9", "2.25", "+0.25", "0.40", "3 iterations", "-0.50", "0.45",
    ]  # fmt: skip
    assert lines[1][2] == "tflite"
    assert lines[2] == ["SMS spam", "12", "onnx", "refused", "", "", "", "", "", ""]


def test_the_documents_say_what_was_measured() -> None:
    docs = ROOT / "docs"
    result = json.loads((docs / "early_exit" / "depths.json").read_text(encoding="utf-8"))
    summary, cost, *tables = exit_depths.to_markdown(result)
    page = (docs / "early_exit.md").read_text(encoding="utf-8")
    assert summary in page
    assert cost in page
    assert len(tables) == 6
    assert all(table in (docs / "early_exit" / "depths.md").read_text(encoding="utf-8") for table in tables)
