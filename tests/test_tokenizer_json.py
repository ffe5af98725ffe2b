"""A folder that transformers 5 saved has tokenizer.json alone: its ids are those of the file it was made from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_models import tiny_checkpoint
from tiny_spiece import tiny_corpus, train_tiny_spiece

import edge_albert
from edge_albert.errors import TokenizerError
from edge_albert.export import main
from edge_albert.tokenizer import load_tokenizer

transformers = pytest.importorskip("transformers")
LINES = ["9,000 bricks, 92,000, and falsé (twice).", "\u1100\u1161 \ufb01re № ½ \u200b``so''", "[SEP] a-b – £5 €6", ""]


def saved_by_transformers(source: Path, folder: Path) -> Path:
    """What `save_pretrained` leaves of a tokenizer today."""
    transformers.AlbertTokenizer.from_pretrained(str(source)).save_pretrained(str(folder))
    assert (folder / "tokenizer.json").is_file()
    assert not (folder / "spiece.model").exists()
    return folder


def penalise(folder: Path) -> None:
    """The scores as transformers' converter writes them for the hub: 100 less for pieces such as "9,"."""
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    for entry in data["model"]["vocab"]:
        if len(entry[0]) > 1 and entry[0][-1] == "," and entry[0][-2].isdigit():
            entry[1] -= 100
    path.write_text(json.dumps(data), encoding="utf-8")


@pytest.mark.parametrize("hub", [False, True])
def test_ids_equal_those_of_the_original(tmp_path, hub):
    original = load_tokenizer(train_tiny_spiece(tmp_path / "original").parent)
    folder = saved_by_transformers(original.path.parent, tmp_path / "saved")
    if hub:
        penalise(folder)
    found = load_tokenizer(folder)
    assert found.rules == original.rules
    for line in [*tiny_corpus()[::7], *LINES]:
        assert found.encode(line) == original.encode(line), line


@pytest.mark.parametrize("hub", [False, True])
def test_genuine_model(tmp_path, genuine_spiece, shared_data, hub):
    (tmp_path / "original").mkdir()
    (tmp_path / "original" / "spiece.model").write_bytes(genuine_spiece.read_bytes())
    original = load_tokenizer(tmp_path / "original")
    folder = saved_by_transformers(tmp_path / "original", tmp_path / "saved")
    if hub:
        penalise(folder)
    found = load_tokenizer(folder)
    lines = (shared_data / "sms_spam" / "SMSSpamCollection").read_text(encoding="utf-8").splitlines()
    assert [found.ids(line) for line in lines] == [original.ids(line) for line in lines]


def test_wordpiece(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "blue", "door", "##s", "我", "们"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    original = load_tokenizer(tmp_path)
    transformers.BertTokenizer.from_pretrained(str(tmp_path)).save_pretrained(str(tmp_path / "saved"))
    (tmp_path / "saved" / "vocab.txt").unlink(missing_ok=True)
    found = load_tokenizer(tmp_path / "saved")
    assert found.rules["file"] == "vocab.txt"
    assert found.ids("The blue doors 我们") == original.ids("The blue doors 我们") == [5, 6, 7, 8, 9, 10]


def test_the_bundle_has_a_spiece_model(tmp_path, capsys):
    source = tiny_checkpoint(tmp_path / "source")
    text = "the baker painted 9,000 doors"
    expected = load_tokenizer(source).encode(text)
    saved_by_transformers(source, tmp_path / "saved")
    (source / "spiece.model").unlink()
    for path in (tmp_path / "saved").iterdir():
        path.rename(source / path.name)
    main(["--model", str(source), "--output", str(tmp_path / "bundle"), "--no-measure"])
    assert "transformers cuts texts at ( )" in capsys.readouterr().out
    assert (tmp_path / "bundle" / "spiece.model").is_file()
    assert edge_albert.load(tmp_path / "bundle").session.tokenizer.encode(text) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("{}", "nameless"),
        ('{"model": {"type": "BPE"}}', "holds a BPE model"),
        ('{"model": {"type": "Unigram", "vocab": [["a"]], "unk_id": 0}}', "cannot be read"),
        ('{"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 0}}', "not a SentencePiece model"),
        ('{"model": {"type": "WordPiece", "vocab": {"a": 3}}}', "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(tmp_path, content, message):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match=rf"tokenizer\.json.*{message}"):
        load_tokenizer(tmp_path)
