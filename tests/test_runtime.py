"""Bundles answer: every task, any mix of lengths, in a process that has neither torch nor onnx nor transformers."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from tiny_models import tiny_bundle

import edge_albert
from edge_albert.errors import BundleError, DataError, EngineError
from edge_albert.runtime import cache
from edge_albert.runtime.classify import Label, softmax
from edge_albert.runtime.engine import choose_engine, open_engine
from edge_albert.runtime.session import BATCH_TOLERANCE, Session
from edge_albert.runtime.spans import _join, _Word, best_spans

pytest.importorskip("onnxruntime")
TEXTS = [
    "the baker painted the blue door in the morning.",
    "nobody?",
    "my neighbour reads two letters from london, again? a small dog wants a quiet phone without help!",
    "(twice).",
]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory) -> dict[str, Path]:
    """One bundle per task, made when it is first asked for."""
    root = tmp_path_factory.mktemp("bundles")

    class Made(dict):
        def __missing__(self, task: str) -> Path:
            self[task] = tiny_bundle(root / task, task)
            return self[task]

    return Made()


def expected_logits(folder: Path, text: str, pair: str | None = None) -> np.ndarray:
    """The engine's own answer to the tokenizer's ids, without the runtime in between."""
    import onnxruntime as ort

    opened = Session(folder)
    encoding = opened.tokenizer.encode(text, pair, max_length=None)
    ids = np.array([encoding.input_ids])
    feeds = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "token_type_ids": np.array([encoding.token_type_ids]),
    }
    session = ort.InferenceSession(str(folder / "model.onnx"))
    return session.run(None, feeds)[0][0]


# -- tasks ------------------------------------------------------------------------------------------------------------


def test_classification_is_softmax_of_the_logits(bundles):
    model = edge_albert.load(bundles["text-classification"])
    scores = softmax(expected_logits(bundles["text-classification"], TEXTS[0]))
    best = int(scores.argmax())
    answer = model(TEXTS[0])
    assert answer.label == f"label {best}"
    assert answer.score == pytest.approx(scores[best], abs=1e-4)
    ranked = model.top(TEXTS[0], k=3)
    assert [one.label for one in ranked] == [f"label {i}" for i in np.argsort(-scores)]
    assert sum(one.score for one in ranked) == pytest.approx(1)
    assert model.top(TEXTS[0], k=1) == [answer]


def test_pairs_reach_the_second_segment(bundles):
    model = edge_albert.load(bundles["text-classification"])
    scores = softmax(expected_logits(bundles["text-classification"], TEXTS[0], TEXTS[1]))
    assert model(TEXTS[0], TEXTS[1]).score == pytest.approx(scores.max(), abs=1e-4)
    assert model([TEXTS[0]], [TEXTS[1]]) == [model(TEXTS[0], TEXTS[1])]
    with pytest.raises(DataError, match="1 texts and 2 pairs"):
        model([TEXTS[0]], [TEXTS[1], TEXTS[2]])


def test_regression(bundles):
    model = edge_albert.load(bundles["text-regression"])
    assert model(TEXTS[0]).score == pytest.approx(
        float(expected_logits(bundles["text-regression"], TEXTS[0])[0]), abs=1e-4
    )
    assert model(TEXTS)[2] == model(TEXTS[2])


def test_multiple_choice_compares_the_choices(bundles):
    model = edge_albert.load(bundles["multiple-choice"])
    choices = ["the blue door", "two letters", "a map"]
    scores = softmax(np.array([expected_logits(bundles["multiple-choice"], TEXTS[0], c)[0] for c in choices]))
    answer = model(TEXTS[0], choices)
    assert (answer.index, answer.text) == (int(scores.argmax()), choices[scores.argmax()])
    assert answer.score == pytest.approx(scores.max(), abs=1e-3)
    with pytest.raises(DataError, match="at least 2"):
        model(TEXTS[0], ["one"])


def test_embeddings_have_unit_length(bundles):
    model = edge_albert.load(bundles["sentence-embedding"])
    rows = model(TEXTS)
    assert rows.shape == (4, 64)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(model(TEXTS[1]), rows[1])
    assert model([]).shape == (0, 64)


def test_token_classification_covers_the_text_with_right_offsets(bundles):
    model = edge_albert.load(bundles["token-classification"])
    text = "the baker painted  the blue door, again?"
    entities = model(text)
    assert all(one.text == text[one.start : one.end] for one in entities)
    assert "".join(one.text for one in entities).replace(" ", "") == text.replace(" ", "")  # no label here is O


def test_long_texts_are_read_in_windows(bundles):
    model = edge_albert.load(bundles["token-classification"])
    text = " ".join(TEXTS * 10)
    entities = model(text, stride=16)
    assert "".join(one.text for one in entities).replace(" ", "") == text.replace(" ", "")
    assert entities[0].start == 0
    assert entities[-1].end == len(text)


def test_question_answering_gives_a_span_of_the_context(bundles):
    model = edge_albert.load(bundles["question-answering"])
    context = " ".join(TEXTS * 8)
    answer = model("who reads the letters?", context, stride=16)
    assert answer.text == context[answer.start : answer.end]
    assert 0 < answer.score <= 1
    model.null_threshold = -1000.0  # any empty answer wins
    assert model("who reads the letters?", context, stride=16).text == ""
    model.null_threshold = 1000.0
    assert model("who reads the letters?", context, stride=16).text == answer.text
    with pytest.raises(DataError, match="shorten the question"):
        model(context, context)


def test_spans_start_before_they_end_and_stay_in_the_context(bundles):
    with Session(bundles["question-answering"]) as session:
        encoding = session.tokenizer.encode("the door", "a map and a lamp")
        first = encoding.sequence_ids.index(1)
        logits = np.zeros((len(encoding.input_ids), 2), np.float32)
        logits[0] = 50  # [CLS] is no place in the context
        logits[first + 3, 0] = logits[first + 1, 1] = 9  # an end before its start is no span
        best = max(best_spans(encoding, logits, longest=30, count=5))
        assert best[0] == pytest.approx(9)
        assert best[1] < best[2]


def test_ends_that_all_lie_before_the_starts_leave_the_best_span(bundles):
    """As little training has it: the good ends, then the good starts, and no span between them."""
    model = edge_albert.load(bundles["question-answering"])
    encoding = model.session.tokenizer.encode("the door", "a map and a lamp on a table")
    inside = [i for i, part in enumerate(encoding.sequence_ids) if part == 1]
    logits = np.zeros((len(encoding.input_ids), 2), np.float32)
    logits[inside[:3], 1] = logits[inside[3:], 0] = 9
    logits[inside[5], 1] = 5
    (found,) = best_spans(encoding, logits, longest=3, count=3)
    assert found == (14, encoding.offsets[inside[3]][0], encoding.offsets[inside[5]][1])
    model.session.infer = lambda windows: [logits for _ in windows]
    answer = model("the door", "a map and a lamp on a table", stride=4, max_answer_tokens=3, candidates=3)
    assert (answer.start, answer.end) == found[1:]


def test_words_are_joined_by_bio_labels():
    text = "Anna Lee met Bob in Rome"
    words = [
        _Word(0, 4, "B-PER", 0.9),
        _Word(5, 8, "I-PER", 0.7),
        _Word(9, 12, "O", 1.0),
        _Word(13, 16, "B-PER", 0.8),
        _Word(17, 19, "O", 1.0),
        _Word(20, 24, "I-LOC", 0.6),
    ]
    found = [(one.label, one.text, round(one.score, 2)) for one in _join(text, words)]
    assert found == [("PER", "Anna Lee", 0.8), ("PER", "Bob", 0.8), ("LOC", "Rome", 0.6)]
    touching = [_Word(0, 4, "B-PER", 1.0), _Word(5, 8, "B-PER", 1.0), _Word(9, 12, "I-LOC", 1.0)]
    assert [one.text for one in _join(text, touching)] == ["Anna", "Lee", "met"]
    ends = [_Word(0, 4, "B-PER", 1.0), _Word(5, 8, "E-PER", 0.5), _Word(9, 12, "S-PER", 1.0), _Word(13, 16, "O", 1.0)]
    assert [(one.text, one.score) for one in _join(text, ends)] == [("Anna Lee", 0.75), ("met", 1.0)]


# -- batches ----------------------------------------------------------------------------------------------------------


def test_alone_and_among_others_is_the_same(bundles):
    model = edge_albert.load(bundles["text-classification"])
    assert model(TEXTS) == [model(text) for text in TEXTS]
    assert model(list(reversed(TEXTS))) == list(reversed(model(TEXTS)))
    assert model([]) == []


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("int8", BATCH_TOLERANCE)])
def test_larger_batches_stay_within_the_stated_tolerance(tmp_path, precision, tolerance):
    folder = tiny_bundle(tmp_path / "bundle", precision=precision)
    with Session(folder) as alone, Session(folder, batch_size=4) as together:
        encodings = [alone.encode(text) for text in TEXTS]
        for one, other in zip(alone.infer(encodings), together.infer(encodings), strict=True):
            assert np.abs(one - other).max() <= tolerance * np.abs(one).max()


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        (" \n\t", "empty"),
        ("☃☃☃ ☃", "nothing in it is in the model's vocabulary"),
        ("the door " * 200, "the model takes 64"),
    ],
)
def test_texts_without_an_answer(bundles, text, message):
    model = edge_albert.load(bundles["text-classification"])
    with pytest.raises(DataError, match=f"text: .*{message}"):
        model(text)
    with pytest.raises(DataError, match=f"text 2: .*{message}"):
        model([TEXTS[0], text])


def test_truncation_is_on_request(bundles):
    model = edge_albert.load(bundles["text-classification"])
    assert isinstance(model("the door " * 200, truncate=True), Label)


def test_bad_options(bundles, tmp_path):
    folder = bundles["text-classification"]
    with pytest.raises(EngineError, match="threads is 0"):
        edge_albert.load(folder, threads=0)
    with pytest.raises(EngineError, match="batch_size is 0"):
        edge_albert.load(folder, batch_size=0)
    with pytest.raises(EngineError, match="'coreml' is not one of"):
        edge_albert.load(folder, engine="coreml")
    with pytest.raises(EngineError, match="--format tflite"):
        choose_engine(("onnx",), "tflite")
    with pytest.raises(BundleError, match="no such folder"):
        edge_albert.load(tmp_path / "absent")
    with pytest.raises(DataError, match="top 0"):
        edge_albert.load(folder).top("a map", k=0)


def test_a_file_that_is_no_model_is_refused(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"not a model")
    with pytest.raises(EngineError, match=r"model\.onnx: ONNX Runtime .* refused it"):
        open_engine(path)


def test_closed_is_closed_and_closing_twice_is_fine(bundles):
    model = edge_albert.load(bundles["text-classification"])
    model.session.close()
    model.session.close()
    with pytest.raises(EngineError, match="closed"):
        model(TEXTS[0])


def test_threads_may_share_a_model(bundles):
    model = edge_albert.load(bundles["text-classification"], threads=1)
    expected = [model(text) for text in TEXTS]
    found: list = [None] * 8

    def ask(i: int) -> None:
        found[i] = [model(text) for text in TEXTS for _ in range(5)][::5]

    workers = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(answers == expected for answers in found)


# -- the cache of packed weights --------------------------------------------------------------------------------------


def packed(folder: Path, cache_dir: Path) -> tuple[Path | None, Label]:
    model = edge_albert.load(folder, cache_dir=cache_dir)
    return model.session.engine.packed, model(TEXTS[0])


def test_cache_is_made_once_and_changes_no_answer(bundles, tmp_path):
    folder = bundles["text-classification"]
    plain = edge_albert.load(folder)(TEXTS[0])
    entry, first = packed(folder, tmp_path / "cache")
    made = entry.stat().st_mtime_ns
    again, second = packed(folder, tmp_path / "cache")
    assert again == entry
    assert entry.stat().st_mtime_ns == made
    assert first == second == plain


@pytest.mark.parametrize("name", ["model.onnx", "model.data", "cache.json"])
def test_damaged_cache_is_made_again(bundles, tmp_path, name):
    folder = bundles["text-classification"]
    entry, first = packed(folder, tmp_path / "cache")
    content = bytearray((entry / name).read_bytes())
    content[len(content) // 2] ^= 0xFF
    (entry / name).write_bytes(content)
    again, second = packed(folder, tmp_path / "cache")
    assert again == entry
    assert second == first
    assert (entry / name).read_bytes() != bytes(content)


def test_cache_of_another_processor_or_engine_is_another_entry(bundles, tmp_path, monkeypatch):
    folder = bundles["text-classification"]
    entry, _ = packed(folder, tmp_path / "cache")
    monkeypatch.setattr(cache, "processor", lambda: "another")
    other, _ = packed(folder, tmp_path / "cache")
    assert other != entry


def test_unwritable_cache_means_one_warning_and_an_answer(bundles, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="no cache of packed weights") as warned:
        entry, answer = packed(bundles["text-classification"], tmp_path / "file" / "cache")
    assert len(warned) == 1
    assert entry is None
    assert answer == edge_albert.load(bundles["text-classification"])(TEXTS[0])


# -- what it takes ----------------------------------------------------------------------------------------------------

_FRESH = """
import json, sys
import edge_albert
model = edge_albert.load(sys.argv[1])
answer = model("the baker painted the blue door")
heavy = ("torch", "onnx", "transformers", "tensorflow", "safetensors", "tokenizers", "converters", "calibration")
print(json.dumps({"label": answer.label, "heavy": [name for name in heavy if name in sys.modules]}))
"""


def test_a_fresh_interpreter_loads_nothing_heavy(bundles):
    done = subprocess.run(
        [sys.executable, "-c", _FRESH, str(bundles["text-classification"])], capture_output=True, text=True, check=True
    )
    out = json.loads(done.stdout)
    assert out["heavy"] == []
    assert out["label"] == edge_albert.load(bundles["text-classification"])("the baker painted the blue door").label
