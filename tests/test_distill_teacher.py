"""Teachers beside transformers, and the cache of their answers: read once, refused when damaged."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# ruff: noqa: E402 (imports that need torch stand below the skip)
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from distill_helpers import SUBJECTS, albert_teacher, bert_teacher, rows, unit
from tiny_spiece import train_tiny_spiece

from edge_albert.errors import CheckpointError, TokenizerError
from edge_albert.tokenizer import load_tokenizer
from edge_albert.training.distillation import teacher_cache
from edge_albert.training.distillation.lessons import label_order
from edge_albert.training.distillation.teacher import Teacher, Text, find_teacher
from edge_albert.training.distillation.teacher_cache import Wanted, cached_answers

TEXTS: list[Text] = [(text, None) for text, _ in rows(30, 0, 1)]
PAIRS: list[Text] = [(text, other) for (text, _), (other, _) in zip(TEXTS, TEXTS[::-1], strict=True)]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bert_teacher(tmp_path_factory.mktemp("bert") / "teacher")


@pytest.fixture(scope="module")
def albert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return albert_teacher(tmp_path_factory.mktemp("albert") / "teacher")


# -- what a teacher says -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("texts", [TEXTS, PAIRS], ids=["texts", "pairs"])
def test_a_bert_answers_as_its_pipeline_does(bert: Path, texts: list[Text]) -> None:
    """The pipeline reads text by text, so padding and batching are held to nothing too."""
    teacher = find_teacher(str(bert), "text-classification")
    outputs, vectors = teacher.answer(texts, "mean")
    pipe = transformers.pipeline("text-classification", str(bert), top_k=None, function_to_apply="none")
    for (text, pair), found in zip(texts, outputs, strict=True):
        rows_said = pipe({"text": text, "text_pair": pair} if pair else text)
        rows_said = rows_said[0] if isinstance(rows_said[0], list) else rows_said
        said = {row["label"]: row["score"] for row in rows_said}
        assert found == pytest.approx([said[label] for label in teacher.labels], abs=1e-4)
    assert vectors.shape == (len(texts), 48)


def test_an_albert_answers_as_in_transformers(albert: Path) -> None:
    teacher = find_teacher(str(albert), "text-classification")
    tokenizer = load_tokenizer(albert)
    model = transformers.AlbertForSequenceClassification.from_pretrained(albert).eval()
    outputs, vectors = teacher.answer(TEXTS, "cls")
    for (text, _), logits, vector in zip(TEXTS, outputs, vectors, strict=True):
        with torch.no_grad():
            said = model(torch.tensor([tokenizer.encode(text).input_ids]), output_hidden_states=True)
        assert logits == pytest.approx(said.logits[0].numpy(), abs=1e-4)
        assert vector == pytest.approx(unit(said.hidden_states[-1][0, 0].numpy()), abs=1e-4)


def test_a_sentence_encoder_is_its_mean(tmp_path: Path) -> None:
    folder = bert_teacher(tmp_path / "encoder", kind="BertModel")
    teacher = find_teacher(str(folder), "sentence-embedding")
    outputs, vectors = teacher.answer(TEXTS, "mean")
    assert outputs is None
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    for (text, _), vector in zip(TEXTS, vectors, strict=True):
        with torch.no_grad():
            hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        assert vector == pytest.approx(unit(hidden.mean(dim=0).numpy()), abs=1e-4)


@pytest.mark.parametrize("kind", ["albert", "bert"])
def test_layers_as_in_transformers(kind: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(kind)
    teacher = find_teacher(str(folder), "text-classification")
    inputs = teacher.network.tokenize(TEXTS[:5])
    auto = transformers.AutoModelForSequenceClassification
    model = auto.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        said = model(**inputs, output_hidden_states=True, output_attentions=True)
    found = teacher.look(inputs)
    assert len(found.hidden_states) == teacher.layers + 1
    assert len(found.attentions) == teacher.layers
    mask = inputs["attention_mask"].bool()
    for mine, its in zip(found.hidden_states, said.hidden_states, strict=True):
        assert torch.allclose(mine[mask], its[mask], atol=1e-4)
    for mine, its in zip(found.attentions, said.attentions, strict=True):
        assert torch.allclose(mine.transpose(1, 2)[mask], its.transpose(1, 2)[mask], atol=1e-4)


# -- what a teacher must be --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "task", "said"),
    [
        ("BertForTokenClassification", "text-classification", "no sequence classifier"),
        ("BertModel", "text-classification", "BertModel, no sequence classifier"),
        ("BertForSequenceClassification", "text-regression", "has 4 outputs for text-classification"),
    ],
)
def test_a_transformers_teacher_of_another_task(tmp_path: Path, kind: str, task: str, said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        find_teacher(str(bert_teacher(tmp_path / "t", kind=kind)), task)


@pytest.mark.parametrize(
    ("task", "said"), [("token-classification", "a head for token-classification"), ("sentence-embedding", "no head")]
)
def test_an_albert_of_another_task(tmp_path: Path, task: str, said: str) -> None:
    with pytest.raises(CheckpointError, match=f"has {said}, the task is text-classification: fine-tune"):
        find_teacher(str(albert_teacher(tmp_path / "t", task=task)), "text-classification")


def test_no_teacher_at_all(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        find_teacher(str(tmp_path / "nowhere"), "text-classification")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        find_teacher(str(tmp_path), "text-classification")
    (tmp_path / "config.json").write_text('{"model_type": "nonesuch"}')
    with pytest.raises(CheckpointError, match="names no hidden size"):
        find_teacher(str(tmp_path), "sentence-embedding")


def test_weights_that_are_not_whole(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = bert_teacher(tmp_path / "t")
    tensors = load_file(folder / "model.safetensors")
    del tensors["classifier.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    teacher = find_teacher(str(folder), "text-classification")
    with pytest.raises(CheckpointError, match=r"lack classifier.weight: not a whole model"):
        teacher.answer(TEXTS, "mean")
    (folder / "model.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="transformers cannot open it"):
        find_teacher(str(folder), "text-classification").answer(TEXTS, "mean")


def test_labels_in_another_order_are_put_in_order(bert: Path) -> None:
    teacher = find_teacher(str(bert), "text-classification")
    wanted = [SUBJECTS[i] for i in (2, 0, 3, 1)]
    assert list(label_order(teacher, wanted)) == [2, 0, 3, 1]
    with pytest.raises(CheckpointError, match=r"its labels are a small dog, .*, the training rows' are a cat"):
        label_order(teacher, ["a cat", *SUBJECTS[1:]])
    with pytest.raises(CheckpointError, match="the training rows' are nobody"):
        label_order(teacher, ["nobody"])


def test_placeholders_stand_for_numbers(tmp_path: Path) -> None:
    folder = bert_teacher(tmp_path / "t", labels=[f"LABEL_{i}" for i in range(3)])
    teacher = find_teacher(str(folder), "text-classification")
    assert list(label_order(teacher, ["0", "1", "2"])) == [0, 1, 2]
    with pytest.raises(CheckpointError, match="name them alike"):
        label_order(teacher, ["bad", "fine", "good"])


def test_tokenisation(albert: Path, bert: Path, tmp_path: Path) -> None:
    tiny = load_tokenizer(train_tiny_spiece(tmp_path).parent)
    find_teacher(str(albert), "text-classification").check_tokenisation(tiny)
    teacher = find_teacher(str(bert), "text-classification")
    teacher.check_tokenisation(load_tokenizer(bert))
    with pytest.raises(TokenizerError, match="tokenises otherwise"):
        teacher.check_tokenisation(tiny)


# -- the cache ---------------------------------------------------------------------------------------------------------


class Counter:
    """Counts the texts a teacher is asked about; after `limit` of them it is killed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limit: int = 10**9) -> None:
        self.asked, self.limit = 0, limit
        answer = Teacher.answer

        def counted(teacher: Teacher, texts: list[Text], vector: str) -> Any:
            self.asked += len(texts)
            if self.asked > self.limit:
                raise KeyboardInterrupt
            return answer(teacher, texts, vector)

        monkeypatch.setattr(Teacher, "answer", counted)


BOTH = Wanted(outputs=True, vector="mean")


def test_a_second_run_never_runs_the_teacher(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor opens it: a teacher found anew has no network."""
    teacher = find_teacher(str(bert), "text-classification")
    outputs, vectors = teacher.answer(TEXTS, "mean")
    first = cached_answers(tmp_path / "cache", teacher, TEXTS, BOTH)
    assert first.outputs == pytest.approx(outputs, abs=1e-4)
    assert first.vectors == pytest.approx(vectors, abs=1e-3)
    counter = Counter(monkeypatch)
    again = find_teacher(str(bert), "text-classification")
    second = cached_answers(tmp_path / "cache", again, TEXTS, BOTH)
    assert isinstance(second.outputs, np.memmap)
    assert np.array_equal(first.outputs, second.outputs)
    assert np.array_equal(first.vectors, second.vectors)
    assert (counter.asked, "network" in vars(again)) == (0, False)


def test_what_is_asked_names_the_entry(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other texts, another order of them, another teacher, another vector: never a stale answer."""
    teacher = find_teacher(str(bert), "text-classification")
    cached_answers(tmp_path, teacher, TEXTS, BOTH)
    other = bert_teacher(tmp_path / "other", labels=SUBJECTS[::-1])
    counter = Counter(monkeypatch)
    for changed, texts, wanted in (
        (teacher, TEXTS[::-1], BOTH),
        (teacher, TEXTS[:-1], BOTH),
        (teacher, PAIRS, BOTH),
        (teacher, TEXTS, Wanted(True, "cls")),
        (teacher, TEXTS, Wanted(True, None)),
        (find_teacher(str(other), "text-classification"), TEXTS, BOTH),
    ):
        before = counter.asked
        cached_answers(tmp_path, changed, texts, wanted)
        assert counter.asked - before == len(texts)


def test_a_killed_run_goes_on(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    teacher = find_teacher(str(bert), "text-classification")
    whole = cached_answers(tmp_path / "whole", teacher, TEXTS, BOTH)
    monkeypatch.setattr(teacher_cache, "BLOCK", 8)
    with monkeypatch.context() as patch:
        Counter(patch, limit=20)
        with pytest.raises(KeyboardInterrupt):
            cached_answers(tmp_path / "killed", teacher, TEXTS, BOTH)
    counter = Counter(monkeypatch)
    rest = cached_answers(tmp_path / "killed", teacher, TEXTS, BOTH)
    assert counter.asked == len(TEXTS) - 16
    assert rest.outputs == pytest.approx(whole.outputs, abs=1e-4)
    assert rest.vectors == pytest.approx(whole.vectors, abs=1e-3)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 0x40
    path.write_bytes(content)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def _claim(path: Path) -> None:
    """An entry that says it holds another teacher's answers."""
    note = json.loads((path.parent / "entry.json").read_text())
    (path.parent / "entry.json").write_text(json.dumps({**note, "teacher": "another"}))


@pytest.mark.parametrize("damage", [_flip, _cut, Path.unlink, _claim, lambda path: path.write_bytes(b"\0" * 64)])
@pytest.mark.parametrize("name", ["vectors.npy", "outputs.npy"])
def test_a_damaged_entry_is_made_anew(
    bert: Path, tmp_path: Path, damage: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = find_teacher(str(bert), "text-classification")
    whole = cached_answers(tmp_path, teacher, TEXTS[:6], BOTH)
    expected = np.array(whole.outputs)
    del whole
    [entry] = tmp_path.iterdir()
    damage(entry / name)
    counter = Counter(monkeypatch)
    with pytest.warns(UserWarning, match=f"{entry.name}: .*: the teacher answers anew"):
        found = cached_answers(tmp_path, teacher, TEXTS[:6], BOTH)
    assert counter.asked == 6
    assert found.outputs == pytest.approx(expected, abs=1e-5)


def test_an_entry_that_says_nothing(bert: Path, tmp_path: Path) -> None:
    teacher = find_teacher(str(bert), "text-classification")
    cached_answers(tmp_path, teacher, TEXTS[:6], BOTH)
    [entry] = tmp_path.iterdir()
    for content in ("", "[]", '{"done": 6}'):
        (entry / "entry.json").write_text(content)
        with pytest.warns(UserWarning, match="the teacher answers anew"):
            cached_answers(tmp_path, teacher, TEXTS[:6], BOTH)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cached_answers(tmp_path, teacher, TEXTS[:6], BOTH)
