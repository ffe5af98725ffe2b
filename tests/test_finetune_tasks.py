"""The finetune command for every task but the plain ones: it learns, exports, runs, and refuses what it cannot use."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import tiny_checkpoint
from tiny_spiece import tiny_corpus

# ruff: noqa: E402 (imports that need torch stand below the skip)
torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from edge_albert.checkpoint import read_checkpoint
from edge_albert.errors import DataError, EdgeAlbertError
from edge_albert.finetune import main

SUBJECTS = ("the baker", "a small dog", "my neighbour", "nobody")
# the first words of each sentence: short texts train fast
LINES = [" ".join(line.split()[:5]) for line in tiny_corpus()]
FOUND = [(line, subject) for line in LINES for subject in SUBJECTS if line.startswith(subject)]


def who(split: str, count: int) -> list[tuple[str, str]]:
    """Sentences of the tiny grammar with their subject; those of dev are none of train's."""
    return [row for i, row in enumerate(FOUND) if (i % 7 == 1) == (split == "dev")][:count]


def squad_data(folder: Path, split: str, count: int) -> Path:
    """Who did it? For every third sentence the context does not say."""
    asked = []
    for i, (line, subject) in enumerate(who(split, count)):
        context = line if i % 3 else line.removeprefix(subject).strip()
        answers = [{"text": subject, "answer_start": 0}] if i % 3 else []
        entry = {"id": f"{i}", "question": "nobody?", "answers": answers, "is_impossible": not answers}
        asked.append({"context": context, "qas": [entry]})
    path = folder / f"{split}.json"
    path.write_text(json.dumps({"version": "v2.0", "data": [{"title": "", "paragraphs": asked}]}))
    return path


def tag_data(folder: Path, split: str, count: int) -> Path:
    rows = []
    for line, subject in who(split, count):
        words, first = line.split(), len(subject.split())
        tags = ["B-WHO", "I-WHO", "I-WHO"][:first] + ["O"] * (len(words) - first)
        rows.append("".join(f"{word} {tag}\n" for word, tag in zip(words, tags, strict=True)))
    path = folder / f"{split}.conll"
    path.write_text("\n".join(rows))
    return path


def choice_data(folder: Path, split: str, count: int) -> Path:
    path = folder / f"{split}.jsonl"
    with path.open("w") as file:
        for i, (line, subject) in enumerate(who(split, count)):
            others = [one for one in SUBJECTS if one != subject][:2]
            others.insert(i % 3, subject)
            file.write(json.dumps({"article": line, "question": "", "options": others, "answer": i % 3}) + "\n")
    return path


def pair_data(folder: Path, split: str, count: int) -> Path:
    path = folder / f"{split}.tsv"
    rows, draw = who(split, count), random.Random(0)
    pairs = [(row, draw.choice([row, *rows])) for row in rows for _ in range(2)]
    lines = [f"{a}\t{b}\t{5 * (x == y)}" for (a, x), (b, y) in pairs]
    path.write_text("\n".join(["sentence1\tsentence2\tscore", *lines]))
    return path


DATA = {
    "question-answering": squad_data,
    "token-classification": tag_data,
    "multiple-choice": choice_data,
    "sentence-embedding": pair_data,
}


def arguments(folder: Path, task: str, *more: str, train: int = 150, dev: int = 40) -> list[str]:
    model = folder / "model"
    if not model.exists():
        tiny_checkpoint(model)
    words = ["--task", task, "--model", str(model), "--output", str(folder / "out"), "--batch-size", "16"]
    for split, count in (("train", train), ("dev", dev)):
        words += [f"--{split}", str(DATA[task](folder, split, count))]
    return [*words, *more]


def finetuned(capsys: pytest.CaptureFixture[str], words: list[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The end's record, and those of the epochs."""
    assert main([*words, "--json"]) == 0
    end = json.loads(capsys.readouterr().out)
    records = [json.loads(line) for line in (Path(end["output"]) / "log.jsonl").read_text("utf-8").splitlines()]
    return end, [record for record in records if record["event"] == "epoch"]


def exported(folder: Path, task: str) -> Any:
    """The finetuned checkpoint as an int8 bundle, loaded."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from edge_albert.exporter import Request, export_bundle
    from edge_albert.runtime.load import load

    source = str(folder / "out")
    export_bundle(Request(source, folder / "bundle", task=task, formats=("onnx",), measure=False))
    return load(folder / "bundle")


# -- finetune ► export ► run -------------------------------------------------------------------------------------------


def test_question_answering(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = str(squad_data(tmp_path, "test", 60))
    words = arguments(
        tmp_path, "question-answering", "--lr", "3e-3", "--epochs", "8", "--patience", "8", "--test", test
    )
    end, epochs = finetuned(capsys, words)
    assert epochs[-1]["train_loss"] < 0.5 * epochs[0]["train_loss"]
    assert end["dev"]["f1"] > 0.8  # silence throughout gives 0.35
    threshold = end["dev"]["null_threshold"]
    assert read_checkpoint(tmp_path / "out").config.extra["null_threshold"] == threshold
    assert end["test"]["null_threshold"] == threshold
    answerer = exported(tmp_path, "question-answering")
    with answerer.session:
        assert answerer.null_threshold == threshold
        right = 0
        asked = json.loads((tmp_path / "dev.json").read_text())["data"][0]["paragraphs"]
        for paragraph in asked:
            gold = [answer["text"] for answer in paragraph["qas"][0]["answers"]] or [""]
            right += answerer("nobody?", paragraph["context"]).text == gold[0]
    assert right / len(asked) == pytest.approx(end["dev"]["exact"], abs=0.08)  # int8 may decide two otherwise


def test_token_classification(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = arguments(tmp_path, "token-classification", "--lr", "2e-3", "--epochs", "5", "--dropout", "0.1")
    end, epochs = finetuned(capsys, words)
    assert epochs[-1]["train_loss"] < 0.5 * epochs[0]["train_loss"]
    assert end["dev"]["f1"] > 0.8
    config = read_checkpoint(tmp_path / "out").config
    assert config.labels == ("B-WHO", "I-WHO", "O")
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.1, 0.1)
    tagger = exported(tmp_path, "token-classification")
    with tagger.session:
        found = [[(one.label, one.text) for one in tagger(line)] for line, _ in who("dev", 40)]
    right = sum(one == [("WHO", subject)] for one, (_, subject) in zip(found, who("dev", 40), strict=True))
    assert right > 0.7 * 40


def test_multiple_choice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = arguments(tmp_path, "multiple-choice", "--lr", "2e-3", "--epochs", "6", "--patience", "6")
    end, epochs = finetuned(capsys, words)
    assert epochs[-1]["train_loss"] < epochs[0]["train_loss"]
    assert end["dev"]["accuracy"] > 0.6  # chance is 1/3
    chooser = exported(tmp_path, "multiple-choice")
    rows = [json.loads(line) for line in (tmp_path / "dev.jsonl").read_text().splitlines()]
    with chooser.session:
        right = sum(chooser(row["article"], row["options"]).index == row["answer"] for row in rows)
    assert right / len(rows) == pytest.approx(end["dev"]["accuracy"], abs=0.08)


def test_sentence_embedding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = arguments(tmp_path, "sentence-embedding", "--lr", "1e-3", "--epochs", "4", "--patience", "4")
    end, epochs = finetuned(capsys, words)
    assert epochs[-1]["train_loss"] < epochs[0]["train_loss"]
    assert end["dev"]["spearman"] > 0.5
    assert set(end["dev"]) == {"loss", "spearman", "pearson"}
    embedder = exported(tmp_path, "sentence-embedding")
    stats = pytest.importorskip("scipy.stats")
    rows = [line.split("\t") for line in (tmp_path / "dev.tsv").read_text().splitlines()[1:]]
    with embedder.session:
        cosines = [float(np.prod([embedder([a, b])], axis=1).sum()) for a, b, _ in rows]
    spearman = stats.spearmanr(cosines, [float(score) for *_, score in rows]).statistic
    assert spearman == pytest.approx(end["dev"]["spearman"], abs=0.05)


# -- what all of them have in common -----------------------------------------------------------------------------------


def test_own_head_is_kept(tmp_path: Path) -> None:
    model = tiny_checkpoint(tmp_path / "model", "question-answering")
    words = arguments(tmp_path, "question-answering", "--lr", "1e-30", "--epochs", "1", train=6, dev=6)
    assert main(words) == 0
    before, after = (read_checkpoint(path).tensors["qa_outputs.weight"] for path in (model, tmp_path / "out"))
    assert np.array_equal(before, after)
    assert main([*words[:-2], "--epochs", "1", "--lr", "1e-30", "--model", str(tmp_path / "out"), "--force"]) == 0


def test_a_threshold_of_before_does_not_stay(tmp_path: Path) -> None:
    """SQuAD 1.1 after 2.0: every question has an answer, so the model must always give one."""
    tiny_checkpoint(tmp_path / "model", "question-answering", extra={"null_threshold": -1.5})
    words = arguments(tmp_path, "question-answering", "--epochs", "1", train=6, dev=6)
    for split in ("train", "dev"):
        path = tmp_path / f"{split}.json"
        data = json.loads(path.read_text())
        paragraphs = data["data"][0]["paragraphs"]
        paragraphs[:] = [one for one in paragraphs if one["qas"][0]["answers"]]
        path.write_text(json.dumps(data))
    assert main(words) == 0
    assert "null_threshold" not in read_checkpoint(tmp_path / "out").config.extra


@pytest.mark.parametrize("task", DATA)
def test_loss_that_is_not_finite(tmp_path: Path, task: str) -> None:
    words = arguments(tmp_path, task, "--lr", "1e30", "--epochs", "2", train=20, dev=6)
    with pytest.raises(
        EdgeAlbertError,
        match=r"training loss is .* at step \d+, learning rate .*, lines .*: try a lower --lr .*--force",
    ):
        main(words)
    (path,) = (tmp_path / "out").iterdir()
    batch = json.loads(path.read_text())
    assert path.name == f"not-finite-{batch['step']:08d}.json"
    assert batch["lines"] == sorted(set(batch["lines"]))
    assert batch["input_ids"]
    words[words.index("--lr") + 1] = "1e-4"
    with pytest.raises(EdgeAlbertError, match="--force"):
        main(words)
    assert main([*words, "--force"]) == 0


@pytest.mark.parametrize("task", DATA)
def test_bad_rows_are_refused_or_skipped(tmp_path: Path, task: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = arguments(tmp_path, task, "--epochs", "1", train=20, dev=6)
    path = Path(words[words.index("--train") + 1])
    spoil = {
        "question-answering": lambda text: text.replace('"id": "3"', '"id": "3", "question": ""', 1).replace(
            '"question": "", "question": "nobody?"', '"question": ""', 1
        ),
        "token-classification": lambda text: text.replace(" B-WHO", "", 1),
        "multiple-choice": lambda text: text.replace('"answer": 0', '"answer": "E"', 1),
        "sentence-embedding": lambda text: text + "\none\ttwo\tmany",
    }
    path.write_text(spoil[task](path.read_text()))
    reason = {
        "question-answering": "question 3: empty question",
        "token-classification": "1: a word without a tag",
        "multiple-choice": "1: answer 'E' names none",
        "sentence-embedding": "42: label 'many' is not a finite number",
    }[task]
    with pytest.raises(DataError, match=f"1 bad row: .*:{reason}.*--bad-rows skip"):
        main(words)
    assert main([*words, "--bad-rows", "skip"]) == 0
    assert f"skipped 1 bad row: {path}:{reason}" in capsys.readouterr().out


def test_overlong_question_is_refused_or_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = arguments(tmp_path, "question-answering", "--epochs", "1", "--max-length", "32", train=20, dev=6)
    path = Path(words[words.index("--train") + 1])
    path.write_text(path.read_text().replace("nobody?", "nobody? " * 30, 1))
    reason = "question 0: the question leaves 0 of 32 tokens for the context, more than 8 are needed"
    with pytest.raises(DataError, match=f"1 bad row: .*:{reason}.*--bad-rows skip"):
        main(words)
    assert main([*words, "--bad-rows", "skip"]) == 0
    assert f"skipped 1 bad row: {path}:{reason}" in capsys.readouterr().out


def test_tag_seen_only_in_dev(tmp_path: Path) -> None:
    words = arguments(tmp_path, "token-classification", train=6, dev=6)
    dev = tmp_path / "dev.conll"
    dev.write_text(dev.read_text() + "\nlondon B-PLACE\n")
    with pytest.raises(DataError, match=r"dev.conll:\d+: label 'B-PLACE' occurs in no training row"):
        main(words)
    train = tmp_path / "train.conll"
    train.write_text("nobody O\n")
    with pytest.raises(DataError, match="every row has the label 'O'"):
        main(words)


@pytest.mark.parametrize(
    ("task", "option"),
    [
        ("question-answering", ["--text-column", "question"]),
        ("multiple-choice", ["--label-column", "answer"]),
        ("multiple-choice", ["--stride", "3"]),
        ("token-classification", ["--pair-column", "x"]),
        ("sentence-embedding", ["--stride", "3"]),
        ("question-answering", ["--no-header"]),
    ],
)
def test_options_that_mean_nothing(tmp_path: Path, task: str, option: list[str]) -> None:
    with pytest.raises(EdgeAlbertError, match=f"{option[0]} means nothing to {task}"):
        main(arguments(tmp_path, task, *option, train=6, dev=6))


def test_embedding_needs_pairs(tmp_path: Path) -> None:
    words = arguments(tmp_path, "sentence-embedding", train=6, dev=6)
    (tmp_path / "train.tsv").write_text("sentence\tscore\na map\t1\n")
    with pytest.raises(DataError, match="no sentence2 column for the pair: name one of sentence, score"):
        main(words)


# -- data sets and TensorBoard -----------------------------------------------------------------------------------------


def test_data_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    splits = {split: [[text, label] for text, label in who(split, 40)] for split in ("train", "dev")}
    (tmp_path / "intents.json").write_text(json.dumps({"train": splits["train"], "validation": splits["dev"]}))
    words = ["--task", "text-classification", "--model", str(tiny_checkpoint(tmp_path / "model")), "--epochs", "1"]
    words += ["--output", str(tmp_path / "out")]
    end, _ = finetuned(capsys, [*words, "--dataset", str(tmp_path / "intents.json")])
    assert end["labels"] == sorted(SUBJECTS)
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert "--train and --dev are needed, or --dataset" in capsys.readouterr().err


def test_tensorboard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
    )
    words = arguments(tmp_path, "multiple-choice", "--epochs", "2", "--tensorboard", "tb", train=20, dev=6)
    _, epochs = finetuned(capsys, words)
    found = events.EventAccumulator(str(tmp_path / "out" / "tb"))
    found.Reload()
    assert [one.value for one in found.Scalars("train/loss")] == pytest.approx([e["train_loss"] for e in epochs])
    assert [one.step for one in found.Scalars("dev/accuracy")] == [epoch["step"] for epoch in epochs]


def test_tensorboard_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = arguments(tmp_path, "multiple-choice", "--tensorboard", train=6, dev=6)
    for name in ("../tb", "config.json", "/tb", ""):
        with pytest.raises(EdgeAlbertError, match="a folder inside the output folder"):
            main([*words, name])
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(
        EdgeAlbertError, match=r"needs the package tensorboard: pip install 'edge-albert\[tensorboard\]'"
    ):
        main([*words, "tb"])
    assert not (tmp_path / "out").exists()
