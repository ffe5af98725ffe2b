"""The distill command from files to a folder that transformers opens; killed runs; refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# ruff: noqa: E402 (imports that need torch stand below the skip)
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from distill_helpers import (
    SUBJECTS,
    albert_teacher,
    bert_teacher,
    rows,
    same_weights,
    write_pairs,
    write_rows,
    write_texts,
)
from tiny_spiece import train_tiny_spiece

from edge_albert.checkpoint import read_checkpoint
from edge_albert.cli import COMMANDS
from edge_albert.distill import main
from edge_albert.errors import CheckpointError, ConfigError, DataError, EdgeAlbertError, TokenizerError
from edge_albert.tokenizer import load_tokenizer
from edge_albert.training.distillation.run import Request, distill
from edge_albert.training.distillation.student import StudentRequest, build_student, find_student
from edge_albert.training.distillation.teacher import Teacher, find_teacher


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train.tsv, dev.tsv, pairs.tsv, texts.txt; the teachers albert, bert and encoder; a tokenizer; a cache."""
    folder = tmp_path_factory.mktemp("data")
    write_rows(folder / "train.tsv", rows(64, 0, 3))
    write_rows(folder / "dev.tsv", rows(16, 1))
    write_texts(folder / "texts.txt", 64)
    write_pairs(folder / "pairs.tsv")
    albert_teacher(folder / "albert")
    bert_teacher(folder / "bert")
    bert_teacher(folder / "encoder", kind="BertModel")
    train_tiny_spiece(folder / "tokenizer")
    return folder


def arguments(data: Path, output: Path, *more: str, teacher: str = "bert", train: bool = True) -> list[str]:
    words = ["--task", "text-classification", "--teacher", str(data / teacher), "--output", str(output)]
    words += ["--dev", str(data / "dev.tsv"), "--teacher-cache", str(data / "cache"), "--epochs", "1"]
    if train:
        words += ["--train", str(data / "train.tsv")]
    if not {"--student", "--init-from-teacher"} & set(more):
        words += ["--student", str(data / "albert"), "--tokenizer", str(data / "tokenizer")]
    return words + list(more)


def end_of(capsys: pytest.CaptureFixture[str], words: list[str]) -> dict[str, Any]:
    """The figures the command prints as JSON."""
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]


def refusal(words: list[str], kind: type[EdgeAlbertError], said: str) -> None:
    with pytest.raises(kind, match=said) as caught:
        main(words)
    assert "\n" not in str(caught.value)
    assert not Path(words[words.index("--output") + 1]).exists()


# -- what comes out ----------------------------------------------------------------------------------------------------


def test_transformers_opens_the_student(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another vocabulary, labelled and unlabelled rows, a student from random weights; the dev figure is counted."""
    out = tmp_path / "out"
    words = arguments(data, out, "--student", "tiny", "--tokenizer", str(data / "tokenizer"))
    end = end_of(capsys, [*words, "--unlabelled", str(data / "texts.txt"), "--sentence", "0.5", "--epochs", "2"])
    start, *looks, _ = records(out)
    assert start["rows"] == {"train": 64, "unlabelled": 64, "dev": 16}
    assert {name for look in looks for name in look["train"]} == {"loss", "soft", "hard", "sentence"}
    model = transformers.AlbertForSequenceClassification.from_pretrained(out).eval()
    tokenizer = load_tokenizer(out)
    assert list(model.config.id2label.values()) == list(SUBJECTS)
    with torch.no_grad():
        found = [
            int(model(torch.tensor([tokenizer.encode(text).input_ids])).logits.argmax()) for text, _ in rows(16, 1)
        ]
    right = np.mean([SUBJECTS[i] == label for i, (_, label) in zip(found, rows(16, 1), strict=True)])
    assert end["dev"]["accuracy"] == pytest.approx(right)


def test_a_student_comes_to_agree_with_its_teacher(data: Path, tmp_path: Path) -> None:
    """Unlabelled text alone; the teacher's own layer, applied twice instead of three times."""
    out = tmp_path / "out"
    words = arguments(
        data, out, "--init-from-teacher", "--iterations", "2", "--unlabelled", str(data / "texts.txt"), "--lr", "2e-3",
        "--epochs", "25", "--patience", "25", "--batch-size", "16", "--evaluate-every", "20", teacher="albert",
        train=False,
    )  # fmt: skip
    assert main(words) == 0
    losses = [record["train"]["soft"] for record in records(out) if record["event"] == "look"]
    assert losses[-1] < 0.35 * losses[0]
    assert read_checkpoint(out).config.num_hidden_layers == 2


def test_the_order_of_the_teachers_labels_is_of_no_importance(data: Path, tmp_path: Path) -> None:
    for name, labels in (("same", SUBJECTS), ("other", SUBJECTS[::-1])):
        albert_teacher(tmp_path / name, labels)
        assert main([*arguments(data, tmp_path / f"{name}-out"), "--teacher", str(tmp_path / name)]) == 0
    assert read_checkpoint(tmp_path / "other").config.labels == SUBJECTS[::-1]
    assert same_weights(tmp_path / "same-out", tmp_path / "other-out")


def test_every_part_with_an_albert_teacher(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    parts = ["--hidden", "1", "--attention", "1", "--sentence", "1", "--sentence-vector", "cls", "--layers", "0:0,2:3"]
    assert main(arguments(data, out, "--init-from-teacher", "--iterations", "2", *parts, teacher="albert")) == 0
    start, look, _ = records(out)
    assert start["matching"]["layers"] == [[0, 0], [2, 3]]
    assert set(look["train"]) == {"loss", "soft", "hard", "hidden", "attention", "sentence"}


def test_dropout_of_the_student(data: Path, tmp_path: Path) -> None:
    said = {}
    for name, more in (("none", ["--dropout", "0"]), ("some", ["--dropout", "0.3"])):
        assert main(arguments(data, tmp_path / name, *more)) == 0
        config = read_checkpoint(tmp_path / name).config
        said[name] = (config.hidden_dropout_prob, config.attention_probs_dropout_prob, config.classifier_dropout_prob)
    assert said["none"] == (0, 0, 0)
    assert said["some"] == (0.3, 0.3, 0.3)
    assert not same_weights(tmp_path / "none", tmp_path / "some")


def test_hidden_states_of_the_same_model_are_met_at_once(data: Path, tmp_path: Path) -> None:
    """A student that is its teacher, with the projection begun as identity, has nothing to learn."""
    out = tmp_path / "out"
    only = ["--soft", "0", "--hard", "0", "--hidden", "1", "--attention", "1", "--sentence", "1", "--lr", "1e-9"]
    assert main(arguments(data, out, "--init-from-teacher", *only, teacher="albert")) == 0
    [look] = [record for record in records(out) if record["event"] == "look"]
    # not quite nothing: the head's dropout is not in what is matched, and hidden dropout is 0
    assert all(abs(value) < 1e-4 for value in look["train"].values())


def test_a_transformers_teacher_of_the_same_vocabulary(data: Path, tmp_path: Path) -> None:
    """A WordPiece student beside a BERT: ids are shared, so its layers can be matched."""
    out = tmp_path / "out"
    student = ["--student", "tiny", "--tokenizer", str(data / "bert"), "--hidden", "1", "--attention", "1"]
    assert main(arguments(data, out, *student, "--max-length", "48")) == 0
    assert {"hidden", "attention"} < set(records(out)[1]["train"])


def test_regression(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    teacher = albert_teacher(tmp_path / "teacher", ["LABEL_0"], "text-regression")
    words = arguments(data, tmp_path / "out", "--student", "tiny", "--tokenizer", str(data / "tokenizer"), train=False)
    words += ["--task", "text-regression", "--teacher", str(teacher), "--dev", str(data / "pairs.tsv")]
    pairs = tmp_path / "pairs.txt"
    pairs.write_text("the baker walks\ta small dog\nnobody\tthe lamp\n", encoding="utf-8")
    end = end_of(capsys, [*words, "--train", str(data / "pairs.tsv"), "--unlabelled", str(pairs)])
    assert set(end["dev"]) == {"loss", "spearman", "pearson"}
    assert np.isfinite(list(records(tmp_path / "out")[1]["train"].values())).all()
    assert transformers.AlbertForSequenceClassification.from_pretrained(tmp_path / "out").config.num_labels == 1


def embedding(data: Path, output: Path, *more: str) -> list[str]:
    words = ["--task", "sentence-embedding", "--teacher", str(data / "encoder"), "--dev", str(data / "pairs.tsv")]
    words += ["--unlabelled", str(data / "texts.txt"), "--output", str(output), "--student", str(data / "albert")]
    return [*words, "--lr", "3e-3", "--batch-size", "16", *more]


def test_sentence_embedding(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """64 against 48: the student's vectors come near the teacher's, and so do their cosines for unseen texts."""
    texts = [text for text, _ in rows(40, 0, 1, 2)]
    _, its = find_teacher(str(data / "encoder"), "sentence-embedding").answer([(text, None) for text in texts], "mean")
    dev = tmp_path / "dev.tsv"
    lines = [f"{texts[i]}\t{texts[i + 20]}\t{its[i] @ its[i + 20]}\n" for i in range(20)]
    dev.write_text("sentence1\tsentence2\tscore\n" + "".join(lines), encoding="utf-8")
    words = embedding(data, tmp_path / "out", "--epochs", "12", "--patience", "12", "--dev", str(dev))
    end = end_of(capsys, words)
    looks = [record for record in records(tmp_path / "out") if record["event"] == "look"]
    assert looks[-1]["train"]["sentence"] < 0.6 * looks[0]["train"]["sentence"]
    assert end["dev"]["spearman"] > looks[0]["dev"]["spearman"]
    assert end["metric"] == "spearman"
    vectors = transformers.AlbertModel.from_pretrained(tmp_path / "out", add_pooling_layer=False)
    assert vectors.config.architectures == ["AlbertModel"]


# -- students ----------------------------------------------------------------------------------------------------------


def test_a_student_begins_as_its_teacher(data: Path) -> None:
    teacher = find_teacher(str(data / "albert"), "text-classification")
    request = StudentRequest(None, iterations=1)
    begun = find_student(request, teacher, teacher.task, SUBJECTS)
    student, fresh = build_student(begun, request, teacher.task, lambda: np.ones(1))
    expected = read_checkpoint(data / "albert").tensors
    assert not fresh
    assert student.config.num_hidden_layers == 1
    for name, tensor in student.state_dict().items():
        assert np.array_equal(tensor.numpy(), expected[name]), name


def test_a_smaller_embedding(data: Path, tmp_path: Path) -> None:
    assert main(arguments(data, tmp_path / "out", "--embedding-size", "8")) == 0
    student = read_checkpoint(tmp_path / "out")
    assert student.config.embedding_size == 8
    assert student.tensors["albert.embeddings.word_embeddings.weight"].shape[1] == 8
    assert records(tmp_path / "out")[0]["fresh"] == []


def test_the_same_seed_gives_the_same_student(data: Path, tmp_path: Path) -> None:
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        assert main(arguments(data, tmp_path / name, "--seed", seed)) == 0
    assert same_weights(tmp_path / "a", tmp_path / "b")
    assert not same_weights(tmp_path / "a", tmp_path / "c")


# -- a run that is killed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["text-classification", "sentence-embedding"])
def test_a_killed_run_ends_as_if_it_had_not_been(data: Path, tmp_path: Path, task: str) -> None:
    make = arguments if task == "text-classification" else embedding
    more = ["--epochs", "4", "--evaluate-every", "3", "--patience", "9", "--batch-size", "24", "--sentence", "1"]
    assert main([*make(data, tmp_path / "whole"), *more]) == 0

    words = [*make(data, tmp_path / "killed"), *more, "--checkpoints", str(tmp_path / "checkpoints")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edge_albert.distill._said", _killed_at_step(6))
        with pytest.raises(KeyboardInterrupt):
            main(words)
    assert not (tmp_path / "killed").exists()
    assert main(words) == 0
    assert same_weights(tmp_path / "whole", tmp_path / "killed")
    assert _looks(tmp_path / "whole") == _looks(tmp_path / "killed")

    with pytest.raises(EdgeAlbertError, match="holds the checkpoints of another run"):
        main([*words, "--seed", "5", "--force"])


def _killed_at_step(step: int) -> Any:
    def said(record: dict[str, Any]) -> str:
        if record["event"] == "look" and record["step"] == step:
            raise KeyboardInterrupt
        return ""

    return said


def _looks(folder: Path) -> list[dict[str, Any]]:
    return [record for record in records(folder) if record["event"] == "look"]


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_teachers_that_do_not_fit(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    others = albert_teacher(tmp_path / "others", ["cat", "dog", "fish", "horse"])
    fewer = albert_teacher(tmp_path / "fewer", SUBJECTS[:2])
    tags = albert_teacher(tmp_path / "tags", task="token-classification")
    refusal(arguments(data, out, "--teacher", str(others)), CheckpointError, "its labels are cat, dog, fish, horse")
    refusal(arguments(data, out, "--teacher", str(fewer)), CheckpointError, "the training rows' are a small dog")
    refusal(arguments(data, out, "--teacher", str(tags)), CheckpointError, "has a head for token-classification")
    refusal(arguments(data, out, teacher="nowhere"), CheckpointError, "no such folder")
    refusal(arguments(data, out, "--init-from-teacher"), CheckpointError, "is no ALBERT")
    refusal(arguments(data, out, "--task", "text-regression"), CheckpointError, "has 4 outputs for text-classification")


@pytest.mark.parametrize("part", ["--hidden", "--attention"])
def test_tokens_that_do_not_match(data: Path, tmp_path: Path, part: str) -> None:
    refusal(arguments(data, tmp_path / "out", part, "1"), TokenizerError, "tokenises otherwise than .*spiece.model")


def test_text_that_cannot_be_used(data: Path, tmp_path: Path) -> None:
    out, text = tmp_path / "out", tmp_path / "text.txt"
    words = arguments(data, out, "--unlabelled", str(text))
    refusal(words, DataError, "text.txt: cannot be read")
    for content, said in (
        ("", "text.txt: holds no text"),
        (" \n\n", "text.txt: holds no text"),
        ("one\ntwo\t\n", "text.txt:2: half a pair"),
        ("one\ttwo\n", "are not of the kind of the labelled ones"),
    ):
        text.write_text(content, encoding="utf-8")
        refusal(words, DataError, said)
    text.write_bytes(b"fine\n\xff\n")
    refusal(words, DataError, "text.txt:2: not UTF-8")
    refusal(arguments(data, out, train=False), DataError, "nothing to learn from")
    refusal(embedding(data, out, "--train", str(data / "train.tsv")), DataError, "from sentences alone")
    unseen = write_rows(tmp_path / "unseen.tsv", [("the baker walks", "a cat")])
    refusal(arguments(data, out, "--dev", str(unseen)), DataError, "label 'a cat' occurs in no training row")
    text.write_text("the baker sings\n", encoding="utf-8")
    alone = arguments(data, out, "--dev", str(unseen), "--unlabelled", str(text), train=False)
    refusal(alone, DataError, "label 'a cat' is none of the teacher's: it has a small dog")
    text.write_text("one\ntwo\none\ttwo\n", encoding="utf-8")
    refusal(embedding(data, out, "--unlabelled", str(text)), DataError, "not all of one kind: .*; line 3: 'one'")
    for option in ("--teacher-cache", "--checkpoints"):
        inside = arguments(data, out, option, str(out / "inside"))
        refusal(inside, EdgeAlbertError, f"{option} .*inside: lies in --output .*out, which this run replaces")


def test_placeholders_of_a_teacher_without_training_rows(data: Path, tmp_path: Path) -> None:
    """LABEL_0 … are 0 … where the dev set says so, whether there are training rows or not."""
    teacher = albert_teacher(tmp_path / "teacher", [f"LABEL_{i}" for i in range(4)])
    dev = write_rows(tmp_path / "dev.tsv", [(text, str(i % 3)) for i, (text, _) in enumerate(rows(12, 1))])
    texts = write_texts(tmp_path / "texts.txt", 40)
    words = ["--teacher", str(teacher), "--dev", str(dev), "--unlabelled", str(texts), "--epochs", "1"]
    assert main(arguments(data, tmp_path / "out", *words, train=False)) == 0
    assert list(read_checkpoint(tmp_path / "out").config.labels) == ["0", "1", "2", "3"]


def test_students_that_do_not_fit(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    refusal(arguments(data, out, "--student", "tiny"), TokenizerError, "the preset tiny has no tokenizer")
    bert = str(data / "bert")
    refusal(arguments(data, out, "--tokenizer", bert), TokenizerError, "they belong to different models")
    refusal(arguments(data, out, "--embedding-size", "64"), ConfigError, "can be shrunk to 2 … 15")
    refusal(arguments(data, out, "--max-length", "65"), EdgeAlbertError, "takes at most 64 tokens")


def test_weights_and_numbers(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    refusal(
        arguments(data, out, "--soft", "0", "--hard", "0"), EdgeAlbertError, "all weights are 0: give one of --soft"
    )
    refusal(embedding(data, out, "--soft", "1"), EdgeAlbertError, "a sentence embedding has none")
    for words in (
        ["--temperature", "0"],
        ["--temperature", "-1"],
        ["--soft", "-1"],
        ["--layers", "1-2"],
        ["--lr", "x"],
    ):
        with pytest.raises(SystemExit) as caught:
            main(arguments(data, out, *words))
        assert caught.value.code == 2
        assert words[0] in capsys.readouterr().err


def test_a_loss_that_is_not_finite(data: Path, tmp_path: Path) -> None:
    words = arguments(data, tmp_path / "out", "--hard", "1e38")
    with pytest.raises(EdgeAlbertError, match=r"loss is inf at step 1, learning rate .*, lines .*--force"):
        main(words)
    (path,) = (tmp_path / "out").iterdir()
    batch = json.loads(path.read_text())
    assert len(batch["input_ids"]) == 32
    assert 1 <= len(batch["lines"]) <= 32


def test_a_cache_serves_the_second_run(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = arguments(data, tmp_path / "a", "--teacher-cache", str(tmp_path / "cache"), "--sentence", "1")
    assert main(words) == 0

    def never(*_: Any) -> Any:
        raise AssertionError("the teacher was run")

    monkeypatch.setattr(Teacher, "answer", never)
    assert main([*words, "--output", str(tmp_path / "b")]) == 0
    assert same_weights(tmp_path / "a", tmp_path / "b")


def test_help_has_a_worked_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    assert "python -m edge_albert.distill --task text-classification --teacher" in capsys.readouterr().out
    assert "distill" in COMMANDS


def test_as_a_function(data: Path, tmp_path: Path) -> None:
    """The library's way in, with the defaults of `Matching` refused: nothing would be learnt."""
    from edge_albert.training.distillation.loss import Matching

    student = StudentRequest(str(data / "albert"))
    request = Request(
        "text-classification", str(data / "bert"), student, tmp_path / "out", data / "dev.tsv", Matching()
    )
    with pytest.raises(EdgeAlbertError, match="all weights are 0"):
        distill(request)
