"""The finetune command from files to a folder that transformers opens, its refusals, and the model in the package."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# ruff: noqa: E402 (imports that need torch stand below the skip)
torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from tiny_models import tiny_checkpoint
from tiny_spiece import TINY_VOCAB_SIZE, tiny_corpus, train_tiny_spiece

from edge_albert.checkpoint import read_checkpoint
from edge_albert.errors import CheckpointError, DataError, EdgeAlbertError, TokenizerError
from edge_albert.finetune import main
from edge_albert.tokenizer import load_tokenizer

SUBJECTS = ("the baker", "a small dog", "my neighbour", "nobody")


def rows(count: int, *remainders: int) -> list[tuple[str, str]]:
    """Sentences of the tiny grammar, those whose number mod 7 is one of `remainders`: who is it about?"""
    found = [(line, subject) for line in tiny_corpus() for subject in SUBJECTS if line.startswith(subject)]
    return [row for i, row in enumerate(found) if i % 7 in (remainders or (0,))][:count]


def write_rows(path: Path, found: list[tuple[str, str]], header: str = "sentence\tlabel\n") -> Path:
    path.write_text(header + "".join(f"{text}\t{label}\n" for text, label in found), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.tsv, dev.tsv, test.tsv and a checkpoint `model` trained for something else."""
    folder = tmp_path_factory.mktemp("data")
    write_rows(folder / "train.tsv", rows(240, 0, 3, 4))
    write_rows(folder / "dev.tsv", rows(24, 1))
    write_rows(folder / "test.tsv", rows(24, 2))
    tiny_checkpoint(folder / "model")
    return folder


def arguments(data: Path, output: Path, *more: str, model: str = "model") -> list[str]:
    source = str(data / "model") if model == "model" else model
    words = ["--task", "text-classification", "--model", source, "--output", str(output)]
    words += ["--train", str(data / "train.tsv"), "--dev", str(data / "dev.tsv"), "--lr", "2e-3", "--epochs", "1"]
    return words + list(more)


def finetuned(capsys: pytest.CaptureFixture[str], words: list[str]) -> dict[str, Any]:
    """The figures the command prints as JSON."""
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_transformers_opens_the_result(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transformers = pytest.importorskip("transformers")
    out = tmp_path / "out"
    end = finetuned(
        capsys,
        arguments(data, out, "--epochs", "10", "--patience", "10", "--lr", "2e-3", "--test", str(data / "test.tsv")),
    )
    model = transformers.AlbertForSequenceClassification.from_pretrained(out)
    tokenizer = load_tokenizer(out)
    assert model.config.id2label == dict(enumerate(sorted(SUBJECTS)))
    assert model.config.problem_type == "single_label_classification"
    right = 0
    for text, label in rows(24, 2):
        logits = model(torch.tensor([tokenizer.encode(text).input_ids])).logits[0]
        right += model.config.id2label[int(logits.argmax())] == label
    assert end["test"]["accuracy"] == pytest.approx(right / 24)
    assert end["dev"]["accuracy"] > 0.6  # chance is 0.25


def test_log_and_folder(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(arguments(data, out, "--epochs", "2", "--seed", "7")) == 0
    records = [json.loads(line) for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [record["event"] for record in records] == ["start", "epoch", "epoch", "end"]
    assert records[0]["rows"] == {"train": 240, "dev": 24}
    assert records[0]["fresh"] == ["classifier.weight", "classifier.bias"]
    assert (records[0]["recipe"]["seed"], records[0]["metric"]) == (7, "accuracy")
    assert sorted(path.name for path in out.iterdir()) == [
        "config.json",
        "log.jsonl",
        "model.safetensors",
        "spiece.model",
    ]
    said = capsys.readouterr().out
    assert "240 train, 24 dev" in said
    assert "2 tensors new" in said
    assert f"{out}: epoch {records[-1]['best_epoch']} kept" in said


def test_same_seed_same_file(data: Path, tmp_path: Path) -> None:
    files = []
    for run, seed in enumerate(["1", "1", "2"]):
        assert main(arguments(data, tmp_path / f"{run}", "--seed", seed)) == 0
        files.append((tmp_path / f"{run}" / "model.safetensors").read_bytes())
    assert files[0] == files[1]
    assert files[0] != files[2]


def test_fp16_is_judged_as_written(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, again = tmp_path / "out", tmp_path / "again"
    end = finetuned(capsys, arguments(data, out, "--dtype", "fp16"))
    checkpoint = read_checkpoint(out)
    assert {str(tensor.dtype) for tensor in checkpoint.tensors.values()} == {"float16"}
    # at a learning rate of nearly nothing, a second run judges what the first one wrote, head included
    read_back = finetuned(capsys, arguments(data, again, "--lr", "1e-30", model=str(out)))
    assert read_back["dev"] == pytest.approx(end["dev"])


def test_preset_takes_the_tokenizers_size(data: Path, tmp_path: Path) -> None:
    spiece = train_tiny_spiece(tmp_path / "tokenizer").rename(tmp_path / "tokenizer" / "any-name.model")
    out = tmp_path / "out"
    assert main(arguments(data, out, "--tokenizer", str(spiece), model="tiny")) == 0
    checkpoint = read_checkpoint(out)
    assert (checkpoint.config.vocab_size, checkpoint.config.hidden_size) == (TINY_VOCAB_SIZE, 192)
    assert load_tokenizer(out).vocab_size == TINY_VOCAB_SIZE


def test_a_released_name_is_looked_up_and_never_random(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """albert-base-v2 names a shape to count and a checkpoint to train."""
    from edge_albert.training.finetuning import run

    def asked(source: str) -> None:
        raise CheckpointError(f"asked for {source}")

    monkeypatch.setattr(run, "read_checkpoint", asked)
    spiece = str(data / "model" / "spiece.model")
    with pytest.raises(CheckpointError, match="asked for albert-base-v2"):
        main(arguments(data, tmp_path / "out", "--tokenizer", spiece, model="albert-base-v2"))


def test_a_tokenizer_file_brings_the_rules_beside_it(data: Path, tmp_path: Path) -> None:
    (tmp_path / "cased").mkdir()
    (tmp_path / "cased" / "spiece.model").write_bytes((data / "model" / "spiece.model").read_bytes())
    (tmp_path / "cased" / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    words = arguments(data, tmp_path / "out", "--tokenizer", str(tmp_path / "cased" / "spiece.model"))
    assert main(words) == 0
    assert load_tokenizer(tmp_path / "out").ids("The baker") != load_tokenizer(tmp_path / "out").ids("the baker")


def test_pairs_and_regression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_checkpoint(tmp_path / "model")
    with (tmp_path / "sts.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["sentence1", "sentence2", "score"])
        table.writerows([a, b, 5.0 * (x == y)] for (a, x), (b, y) in zip(rows(60), rows(60, 5), strict=True))
    words = ["--task", "text-regression", "--model", str(model), "--output", str(tmp_path / "out"), "--epochs", "2"]
    words += ["--train", str(tmp_path / "sts.csv"), "--dev", str(tmp_path / "sts.csv"), "--lr", "1e-3"]
    end = finetuned(capsys, words)
    assert set(end["dev"]) == {"loss", "spearman", "pearson"}
    checkpoint = read_checkpoint(tmp_path / "out")
    assert (checkpoint.task, checkpoint.config.num_labels) == ("text-regression", 1)
    assert checkpoint.config.problem_type == "regression"


def test_own_head_and_label_order_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_checkpoint(tmp_path / "model")  # labels "label 0", "label 1", "label 2"
    path = write_rows(tmp_path / "rows.tsv", [(text, f"label {i % 3}") for i, (text, _) in enumerate(rows(12))])
    words = ["--task", "text-classification", "--model", str(model), "--output", str(tmp_path / "out")]
    words += ["--train", str(path), "--dev", str(path), "--lr", "1e-30", "--epochs", "1"]
    finetuned(capsys, words)
    before, after = read_checkpoint(model), read_checkpoint(tmp_path / "out")
    assert np.array_equal(before.tensors["classifier.weight"], after.tensors["classifier.weight"])
    assert after.config.labels == before.config.labels


def test_pretrained_encoder_gets_a_new_head(data: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    source = read_checkpoint(data / "model")
    config = transformers.AlbertConfig(**source.config.with_labels(["in order", "swapped"]).to_dict())
    encoder = transformers.AlbertForPreTraining(config)
    encoder.save_pretrained(tmp_path / "pretrained")
    words = arguments(data, tmp_path / "out", "--tokenizer", str(data / "model"), "--lr", "1e-30")
    words[words.index("--model") + 1] = str(tmp_path / "pretrained")
    assert main(words) == 0
    found = read_checkpoint(tmp_path / "out").tensors["albert.pooler.weight"]
    assert np.array_equal(found, encoder.albert.pooler.weight.detach().numpy())


def test_bad_rows_are_skipped_and_said(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = write_rows(tmp_path / "train.tsv", [*rows(30), ("no label", "")])
    words = arguments(data, tmp_path / "out", "--train", str(train), "--bad-rows", "skip")
    assert main(words) == 0
    assert f"skipped 1 bad row: {train}:32: empty label" in capsys.readouterr().out


# -- refusals: one line, status 2, nothing left behind -----------------------------------------------------------------


def refusal(words: list[str], kind: type[EdgeAlbertError], message: str, folder: Path) -> None:
    with pytest.raises(kind, match=message) as caught:
        main(words)
    assert "\n" not in str(caught.value)
    assert not (folder / "out").exists()
    assert not list(folder.glob(".edge-albert-*"))


def test_refusals(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    mislabelled = write_rows(tmp_path / "dev.tsv", [*rows(4), ("a map", "a lamp")])
    refusal(
        arguments(data, out, "--dev", str(mislabelled)), DataError, r"dev\.tsv:6: label 'a lamp' occurs in no", tmp_path
    )
    empty = write_rows(tmp_path / "empty.tsv", [*rows(4), ("", "nobody")])
    refusal(arguments(data, out, "--train", str(empty)), DataError, r"1 bad row: .*empty\.tsv:6: empty text", tmp_path)
    single = write_rows(tmp_path / "single.tsv", [("a map", "nobody")])
    refusal(arguments(data, out, "--train", str(single)), DataError, "every row has the label 'nobody'", tmp_path)
    refusal(arguments(data, out, "--train", str(tmp_path / "no.tsv")), DataError, "cannot be read", tmp_path)
    refusal(arguments(data, out, model="nowhere"), CheckpointError, "nowhere", tmp_path)
    refusal(arguments(data, out, model="tiny"), TokenizerError, "tiny has no tokenizer.*--tokenizer", tmp_path)
    missing = str(tmp_path / "no.model")
    refusal(arguments(data, out, "--tokenizer", missing, model="tiny"), TokenizerError, "no such file", tmp_path)
    refusal(arguments(data, out, "--max-length", "65"), EdgeAlbertError, "takes at most 64 tokens", tmp_path)
    refusal(arguments(data, out, "--metric", "bleu"), EdgeAlbertError, "unknown metric 'bleu'", tmp_path)


def test_vocabulary_of_another_size(data: Path, tmp_path: Path, genuine_spiece: Path) -> None:
    words = arguments(data, tmp_path / "out", "--tokenizer", str(genuine_spiece))
    refusal(words, TokenizerError, f"30000 entries, the model's vocab_size is {TINY_VOCAB_SIZE}", tmp_path)


def test_output_that_exists(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    with pytest.raises(EdgeAlbertError, match="already exists and is not empty"):
        main(arguments(data, out))
    assert (out / "notes.txt").read_text() == "mine"
    assert main(arguments(data, out, "--force")) == 0
    assert not (out / "notes.txt").exists()


@pytest.mark.parametrize(
    "words",
    [["--epochs", "0"], ["--lr", "-1"], ["--lr", "nan"], ["--warmup", "2"], ["--seed", "x"], ["--batch-size", "1.5"]],
)
def test_numbers_that_make_no_sense(
    data: Path, tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments(data, tmp_path / "out", *words))
    assert caught.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_as_a_program(data: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "edge_albert.finetune", *arguments(data, tmp_path / "out", model="nowhere")]
    run = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith("edge_albert: error: nowhere")
    assert run.stderr.count("\n") == 1


def test_help_has_a_worked_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    assert "python -m edge_albert.finetune --task text-classification --model" in capsys.readouterr().out
