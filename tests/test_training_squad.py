"""SQuAD's files, the windows made of them, and what the model learns: against transformers, and by eye."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import tiny_checkpoint, tiny_config
from tiny_spiece import train_tiny_spiece

# ruff: noqa: E402 (imports that need torch stand below the skip)
torch = pytest.importorskip("torch")

from edge_albert.errors import DataError
from edge_albert.model import build_model
from edge_albert.tokenizer import Tokenizer, load_tokenizer
from edge_albert.training.finetuning.question_answering import (
    NULL_THRESHOLD,
    Question,
    encode_questions,
    length_fault,
    question_answering,
    read_questions,
)
from edge_albert.training.metrics.squad import Prediction

CPU = torch.device("cpu")
CONTEXT = "the baker paints the blue door in the morning. a small dog carries two letters from london without help!"


def question(context: str = CONTEXT, answer: str | None = "two letters", text: str = "what?") -> Question:
    start = None if answer is None else context.index(answer)
    return Question(text, context, () if answer is None else (answer,), start, 1)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(train_tiny_spiece(tmp_path_factory.mktemp("tokenizer")).parent)


def squad(tmp_path: Path, *questions: dict[str, Any], context: str = CONTEXT) -> Path:
    path = tmp_path / "squad.json"
    paragraphs = [{"context": context, "qas": list(questions)}]
    path.write_text(json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}))
    return path


# -- reading -----------------------------------------------------------------------------------------------------------


def test_both_versions(tmp_path: Path) -> None:
    old = {"id": "q1", "question": "who?", "answers": [{"text": "the baker", "answer_start": 0}]}
    new = {"id": "q2", "question": "why?", "answers": [], "is_impossible": True, "plausible_answers": [{}]}
    found = read_questions(squad(tmp_path, old, new), skip_bad=False).rows
    assert found == [
        Question("who?", CONTEXT, ("the baker",), 0, "question q1"),
        Question("why?", CONTEXT, (), None, "question q2"),
    ]


def test_rows_of_hugging_face(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    answers = [{"text": ["the baker", "baker"], "answer_start": [0, 4]}, {"text": [], "answer_start": []}]
    lines = [json.dumps({"id": "x", "question": "who?", "context": CONTEXT, "answers": one}) for one in answers]
    path.write_text("\n".join(lines))
    found = read_questions(path, skip_bad=False).rows
    assert [(row.answers, row.start, row.line) for row in found] == [(("the baker", "baker"), 0, 1), ((), None, 2)]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"question": " "}, "empty question"),
        ({"answers": [{"text": "baker", "answer_start": 5}]}, "answer 'baker' does not stand at character 5"),
        ({"answers": [{"text": "wit", "answer_start": -9}]}, "answer 'wit' does not stand at character -9"),
        ({"answers": [{"text": "baker"}]}, "answer 'baker' does not stand at character None"),
        ({"answers": {"text": ["baker"], "answer_start": []}}, "answer 'baker' does not stand at character  of"),
        ({"answers": {"text": None}}, "answer '' does not stand at character None"),
        ({"answers": [3]}, "answer '' does not stand at character None"),
        ({"answers": []}, "no answer, and not is_impossible"),
        ({"is_impossible": True}, "is_impossible, and has answers"),
        ({"answers": "baker"}, "no list of answers"),
        ({"answers": None}, "no list of answers"),
    ],
)
def test_bad_questions(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    good = {"id": "q1", "question": "who?", "answers": [{"text": "baker", "answer_start": 4}]}
    path = squad(tmp_path, good, {**good, "id": "q2", **changes})
    with pytest.raises(DataError, match=f"1 bad row: .*squad.json:question q2: {reason}"):
        read_questions(path, skip_bad=False)
    skipped = read_questions(path, skip_bad=True)
    assert (len(skipped.rows), len(skipped.bad)) == (1, 1)


def test_rows_without_answers_are_not_unanswerable(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    row = {"question": "who?", "context": CONTEXT}
    path.write_text(json.dumps({**row, "answer": "the baker"}) + "\n" + json.dumps({**row, "is_impossible": True}))
    with pytest.raises(DataError, match=r"1 bad row: .*rows\.jsonl:1: no list of answers"):
        read_questions(path, skip_bad=False)
    assert [row.answers for row in read_questions(path, skip_bad=True).rows] == [()]


@pytest.mark.parametrize("content", ["[1]", '{"data": [{}]}', "{", '{"data": [{"paragraphs": [{"qas": [3]}]}]}'])
def test_not_squad(tmp_path: Path, content: str) -> None:
    path = tmp_path / "squad.json"
    path.write_text(content)
    with pytest.raises(DataError, match=r"squad.json: not SQuAD's JSON"):
        read_questions(path, skip_bad=False)


# -- windows -----------------------------------------------------------------------------------------------------------


def learnt(windows: Any, row: int) -> str | None:
    """The characters that the window's positions mark, by its offsets; None where they mark [CLS]."""
    first, last = windows.positions[row]
    if (first, last) == (0, 0):
        return None
    before = len(windows.input_ids[row]) - len(windows.offsets[row]) - 1
    context = windows.labels[windows.question_of[row]].context
    return context[windows.offsets[row][first - before][0] : windows.offsets[row][last - before][1]]


@pytest.mark.parametrize("answer", ["the baker", "two letters", "help!", "london"])
def test_positions_mark_the_answer(tokenizer: Tokenizer, answer: str) -> None:
    whole = encode_questions(tokenizer, [question(answer=answer)], 512, 0)
    assert [learnt(whole, 0)] == [answer]
    windows = encode_questions(tokenizer, [question(answer=answer)], 26, 8)
    assert len(windows) > 2
    marked = [learnt(windows, row) for row in range(len(windows))]
    held = [answer in CONTEXT[w[0, 0] : w[-1, 1]] for w in windows.offsets]
    assert marked == [answer if inside else None for inside in held]
    assert answer in marked


def test_real_questions_are_marked(shared_data: Path, genuine_spiece: Path) -> None:
    path = shared_data / "squad" / "squad2_dev_5articles.json"
    found = read_questions(path, skip_bad=False).rows
    assert sum(not row.answers for row in found) == path.read_text().count('"is_impossible": true')
    assert len(found) == path.read_text().count('"is_impossible"')
    chosen = found[::40]
    windows = encode_questions(load_tokenizer(genuine_spiece.parent), chosen, 384, 128)
    for number, row in enumerate(chosen):
        marked = {learnt(windows, i) for i, of in enumerate(windows.question_of) if of == number}
        assert marked - {None} == set(row.answers[:1]), row


def test_question_that_leaves_no_room(tokenizer: Tokenizer) -> None:
    said = length_fault(tokenizer, question(text="what is it?"), 20, 12)
    assert said is not None
    assert re.search(r"the question leaves \d+ of 20 tokens .* 12 are needed.*--stride", said)
    assert length_fault(tokenizer, question(text="what is it?"), 40, 12) is None


# -- learning ----------------------------------------------------------------------------------------------------------


def test_loss_is_transformers(tokenizer: Tokenizer) -> None:
    transformers = pytest.importorskip("transformers")
    config = replace(tiny_config("question-answering"), max_position_embeddings=128)
    model = build_model(config, "question-answering").eval()
    theirs = transformers.AlbertForQuestionAnswering(transformers.AlbertConfig(**config.to_dict())).eval()
    theirs.load_state_dict(model.state_dict())
    windows = encode_questions(tokenizer, [question(answer="london"), question(answer=None)], 128, 0)
    inputs, labels = windows.collate(np.array([0, 1]), CPU)
    objective = question_answering()
    found = objective.loss(objective.forward(model, inputs), labels)
    expected = theirs(**inputs, start_positions=labels[:, 0], end_positions=labels[:, 1]).loss
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def test_padding_does_not_change_the_loss(tokenizer: Tokenizer) -> None:
    config = replace(tiny_config("question-answering"), max_position_embeddings=128)
    model = build_model(config, "question-answering").eval()
    windows = encode_questions(tokenizer, [question(), question("a map and a lamp", "map")], 128, 0)
    objective = question_answering()

    def loss(rows: list[int]) -> float:
        inputs, labels = windows.collate(np.array(rows), CPU)
        return objective.loss(objective.forward(model, inputs), labels).item()

    assert loss([0, 1]) == pytest.approx((loss([0]) + loss([1])) / 2, rel=1e-5)


def test_figures_and_threshold() -> None:
    gold = [question(answer="london"), question(answer=None), question(answer="the baker")]
    said = [Prediction("London", -2.0), Prediction("a dog", 1.0), Prediction("nobody", 3.0)]
    figures = question_answering().judge(gold, said)
    assert figures == {
        "f1": pytest.approx(2 / 3),
        "exact": pytest.approx(2 / 3),
        "has_answer_f1": 0.5,
        "no_answer_f1": 1.0,
        NULL_THRESHOLD: -0.5,
    }
    fixed = question_answering(best=False, threshold=1.5).judge(gold, said)
    assert (fixed["f1"], fixed[NULL_THRESHOLD]) == (pytest.approx(1 / 3), 1.5)
    answered = question_answering().judge(gold[::2], said[::2])  # SQuAD 1.1: nothing to be silent about
    assert answered == {"f1": 0.5, "exact": 0.5}


def test_answers_are_the_runtimes(tmp_path: Path) -> None:
    """What is judged here is what the exported model answers: text and null score, over several windows."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from edge_albert.checkpoint import read_checkpoint
    from edge_albert.exporter import Request, export_bundle
    from edge_albert.runtime.load import load
    from edge_albert.training.weights import load_arrays

    source = tiny_checkpoint(tmp_path / "model", "question-answering", seed=3)
    export_bundle(Request(str(source), tmp_path / "bundle", precision="fp32", formats=("onnx",), measure=False))
    checkpoint = read_checkpoint(source)
    model = build_model(checkpoint.config, "question-answering").eval()
    load_arrays(model, checkpoint.tensors)
    asked = [question(text=text) for text in ("what?", "nobody opens the door?", "london")]
    windows = encode_questions(load_tokenizer(source), asked, 64, 16)
    assert len(windows) > len(asked)
    objective = question_answering()
    with torch.no_grad():
        outputs = [
            objective.predict(objective.forward(model, windows.collate(np.array([row]), CPU)[0]))[0].numpy()
            for row in range(len(windows))
        ]
    found = windows.assemble(outputs)
    answerer = load(tmp_path / "bundle")
    with answerer.session:
        answerer.null_threshold = None
        assert [answerer(one.question, CONTEXT).text for one in asked] == [one.text for one in found]
        for one, prediction in zip(asked, found, strict=True):
            for margin, text in ((0.01, prediction.text), (-0.01, "")):
                answerer.null_threshold = prediction.null_score + margin
                assert answerer(one.question, CONTEXT).text == text
