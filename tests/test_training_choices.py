"""Multiple choice: RACE's folder and rows, options that differ in number, and the loss of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import tiny_config
from tiny_spiece import train_tiny_spiece

# ruff: noqa: E402 (imports that need torch stand below the skip)
torch = pytest.importorskip("torch")

from edge_albert.errors import DataError
from edge_albert.model import build_model
from edge_albert.tokenizer import Tokenizer, load_tokenizer
from edge_albert.training.finetuning.multiple_choice import (
    ChoiceQuestion,
    encode_choices,
    multiple_choice,
    option_text,
    read_choices,
)

CPU = torch.device("cpu")
GOOD: dict[str, Any] = {"article": "a map", "question": "what?", "options": ["a map", "a lamp"], "answer": "A"}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(train_tiny_spiece(tmp_path_factory.mktemp("tokenizer")).parent)


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_race_folder(tmp_path: Path) -> None:
    for level, answers in (("middle", ["B"]), ("high", ["A", "D"])):
        (tmp_path / level).mkdir()
        options = [["one", "two", "three", "four"]] * len(answers)
        questions = [f"{level} {i}?" for i in range(len(answers))]
        passage = {"article": "text", "questions": questions, "options": options, "answers": answers, "id": "1.txt"}
        (tmp_path / level / "1.txt").write_text(json.dumps(passage))
    found = read_choices(tmp_path, skip_bad=False).rows
    assert [(row.question, row.answer, row.line) for row in found] == [
        ("high 0?", 0, "high/1.txt question 1"),
        ("high 1?", 3, "high/1.txt question 2"),
        ("middle 0?", 1, "middle/1.txt question 1"),
    ]


def test_race_rows(shared_data: Path) -> None:
    path = shared_data / "race" / "race_500.jsonl"
    found = read_choices(path, skip_bad=False).rows
    letters = [json.loads(line)["answer"] for line in path.read_text(encoding="utf-8").splitlines()]
    assert ["ABCD"[row.answer] for row in found] == letters
    assert {len(row.options) for row in found} == {4}


def test_other_names_and_numbers(tmp_path: Path) -> None:
    rows = [{"context": "it rained", "choices": ["wet", "dry", "9"], "label": label} for label in (0, "2", "b")]
    found = read_choices(write(tmp_path / "a.jsonl", *rows), skip_bad=False).rows
    assert found[0] == ChoiceQuestion("it rained", "", ("wet", "dry", "9"), 0, 1)
    assert [row.answer for row in found] == [0, 2, 1]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"article": ""}, "empty article or context"),
        ({"options": ["a"]}, "1 options: at least 2"),
        ({"options": "a b"}, "0 options: at least 2"),
        ({"options": ["a", " "]}, "empty option"),
        ({"answer": "C"}, "answer 'C' names none of 2 options"),
        ({"answer": 2}, "answer 2 names none"),
        ({"answer": -1}, "answer -1 names none"),
        ({"answer": "ß"}, "answer 'ß' names none"),
        ({"answer": "9" * 5000}, "answer '99"),
        ({"answer": None}, "answer None names none"),
    ],
)
def test_bad_questions(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    path = write(tmp_path / "a.jsonl", GOOD, {**GOOD, **changes})
    with pytest.raises(DataError, match=f"1 bad row: .*a.jsonl:2: {reason}"):
        read_choices(path, skip_bad=False)
    assert len(read_choices(path, skip_bad=True).rows) == 1


def test_not_race(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"not a folder with RACE's \.txt files"):
        read_choices(tmp_path, skip_bad=False)
    (tmp_path / "1.txt").write_text('{"article": "x"}')
    with pytest.raises(DataError, match=r":1\.txt: not RACE's JSON"):
        read_choices(tmp_path, skip_bad=False)


def test_option_text() -> None:
    assert option_text("The hotel is made of _ .", "ice") == "The hotel is made of ice ."
    assert option_text("What is it made of?", "ice") == "What is it made of? ice"
    assert option_text("", "so it was wet") == "so it was wet"
    assert option_text("It is made of ____.", r"i\1ce") == r"It is made of i\1ce."
    assert option_text("What does my_var hold?", "1") == "What does my_var hold? 1"


def test_loss_is_transformers(tokenizer: Tokenizer) -> None:
    transformers = pytest.importorskip("transformers")
    config = tiny_config("multiple-choice")
    model = build_model(config, "multiple-choice").eval()
    theirs = transformers.AlbertForMultipleChoice(transformers.AlbertConfig(**config.to_dict())).eval()
    theirs.load_state_dict(model.state_dict())
    questions = [ChoiceQuestion("the blue door", "what?", ("a map", "a small dog"), right, 1) for right in (1, 0)]
    inputs, labels = encode_choices(tokenizer, questions, 64).collate(np.array([0, 1]), CPU)
    objective = multiple_choice()
    found = objective.loss(objective.forward(model, inputs), labels)
    del inputs["is_option"]
    assert found.item() == pytest.approx(theirs(**inputs, labels=labels).loss.item(), rel=1e-5)


def test_options_that_differ_in_number(tokenizer: Tokenizer) -> None:
    model = build_model(tiny_config("multiple-choice"), "multiple-choice").train()
    options = (("a map", "a lamp"), ("a map", "two letters", "a small dog", "help"))
    encoded = encode_choices(tokenizer, [ChoiceQuestion("it is", "", one, 1, 1) for one in options], 64)
    objective = multiple_choice()

    def logits(rows: list[int]) -> Any:
        return objective.forward(model, encoded.collate(np.array(rows), CPU)[0])

    model.eval()
    both = logits([0, 1])
    assert both[0, 2:].tolist() == [-np.inf, -np.inf]
    assert torch.allclose(both[0, :2], logits([0])[0], atol=1e-5)
    assert torch.allclose(both[1], logits([1])[0], atol=1e-5)
    objective.loss(both, encoded.collate(np.array([0, 1]), CPU)[1]).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
