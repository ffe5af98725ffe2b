"""Token classification: its files, and which piece carries a word's tag, against sentencepiece word by word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from tiny_spiece import train_tiny_spiece

# ruff: noqa: E402 (imports that need torch stand below the skip)
torch = pytest.importorskip("torch")

from edge_albert.errors import DataError
from edge_albert.tokenizer import load_tokenizer
from edge_albert.training.data.examples import Columns
from edge_albert.training.finetuning.tagging import (
    NO_TAG,
    TaggedSentence,
    encode_sentences,
    read_sentences,
    token_classification,
)

CPU = torch.device("cpu")


def read(path: Path, columns: Columns | None = None, *, skip: bool = False) -> list[tuple[str, str, int | str]]:
    found = read_sentences(path, columns or Columns(), skip_bad=skip)
    return [(" ".join(row.words), " ".join(row.tags), row.line) for row in found.rows]


# -- reading -----------------------------------------------------------------------------------------------------------


def test_conll(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text("-DOCSTART- -X- O O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n\nParis\tB-LOC\r\n. O")
    assert read(path) == [("EU rejects", "B-ORG O", 3), ("Paris .", "B-LOC O", 7)]


def test_json_lines_and_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"tokens": ["a", "b"], "ner_tags": ["O", "B-X"], "pos_tags": ["D", "N"]}))
    assert read(path) == [("a b", "O B-X", 1)]
    assert read(path, Columns(label="pos_tags")) == [("a b", "D N", 1)]
    with pytest.raises(DataError, match="no column 'chunk' for the label: name one of tokens, ner_tags, pos_tags"):
        read(path, Columns(label="chunk"))


def test_snips_folder(tmp_path: Path) -> None:
    for name, text in (("seq.in", "play jazz \nhi\n"), ("seq.out", "O B-genre \nO\n"), ("label", "Play\nHi\n")):
        (tmp_path / name).write_text(text)
    assert read(tmp_path) == [("play jazz", "O B-genre", 1), ("hi", "O", 2)]
    (tmp_path / "label").write_text("Play\n")
    with pytest.raises(DataError, match=r"different numbers of lines \(seq.in 2, seq.out 2, label 1\)"):
        read(tmp_path)
    (tmp_path / "label").unlink()
    with pytest.raises(DataError, match="missing: label"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.conll", "one O\n\ntwo O\nthree\nfour\n", "4: a word without a tag"),
        ("a.jsonl", '{"tokens": ["a"], "tags": ["O"]}\n{"tokens": ["a", "b"], "tags": ["O"]}', "2: 2 words and 1 tags"),
        ("a.jsonl", '{"tokens": ["a"], "tags": ["O"]}\n{"tokens": [], "tags": []}', "2: no words"),
        ("a.jsonl", '{"tokens": ["a"], "tags": ["O"]}\n{"tokens": ["a", ""], "tags": ["O", "O"]}', "2: empty word"),
        ("a.jsonl", '{"tokens": ["a"], "tags": ["O"]}\n{"tokens": ["a", "b"], "tags": ["O", null]}', "2: empty tag"),
        ("a.jsonl", '{"tokens": ["a"], "tags": ["O"]}\n{"tokens": "a", "tags": ["O"]}', "2: tokens and tags are not"),
    ],
)
def test_bad_sentences(tmp_path: Path, name: str, text: str, reason: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(DataError, match=f"1 bad row: .*{name}:{reason}"):
        read(path)
    assert len(read(path, skip=True)) == 1


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ([0, 3, 0], r"a\.jsonl: the tags are numbers \(0, 3\), .*write their names, such as O, B-PER, I-PER"),
        (["U-PER", "O", "O"], r"the tag U-PER is BILOU's: write S- for U- and E- for L-"),
        (["O", "B-PER", "L-PER"], "the tag L-PER is BILOU's"),
    ],
)
def test_tags_that_say_nothing_of_entities(tmp_path: Path, tags: list[Any], message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"tokens": ["a", "b", "c"], "tags": tags}))
    with pytest.raises(DataError, match=message):
        read(path)


# -- pieces ------------------------------------------------------------------------------------------------------------

WORDS = ("the", "(unread)", "message", "92,000", '"', "everybody", "loved.", "-", "london", "again?")


def encoded(tmp_path: Path, max_length: int, stride: int, words: tuple[str, ...] = WORDS):
    tokenizer = load_tokenizer(train_tiny_spiece(tmp_path).parent)
    names = [str(i) for i in range(len(words))]
    return tokenizer, encode_sentences(tokenizer, [TaggedSentence(words, tuple(names), 7)], names, max_length, stride)


def test_the_first_piece_carries_the_tag(tmp_path: Path) -> None:
    _, windows = encoded(tmp_path, 512, 0)
    spiece = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    expected = [NO_TAG]
    for i, word in enumerate(WORDS):
        expected += [i] + [NO_TAG] * (len(spiece.encode(word)) - 1)
    assert windows.token_tags[0].tolist() == [*expected, NO_TAG]
    assert windows.lines.tolist() == [7]


def test_every_word_once_over_windows(tmp_path: Path) -> None:
    tokenizer, whole = encoded(tmp_path, 512, 0, WORDS * 5)
    _, windows = encoded(tmp_path, 20, 6, WORDS * 5)
    assert len(windows) > 5
    tagged = np.concatenate(windows.token_tags)
    assert sorted(tagged[tagged != NO_TAG]) == list(range(len(WORDS) * 5))
    assert windows.assemble(windows.token_tags) == whole.assemble(whole.token_tags) == [list(windows.names)]
    for ids, tags in zip(windows.input_ids[1:-1], windows.token_tags[1:-1], strict=True):
        places = np.flatnonzero(tags != NO_TAG)  # away from the edges, by half of what windows share
        assert places.min() >= 1 + 2
        assert places.max() <= len(ids) - 2 - 2
        assert tokenizer.id_to_token(int(ids[places[0]])).startswith("▁")


def test_every_window_knows_its_sentence(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(train_tiny_spiece(tmp_path).parent)
    sentences = [TaggedSentence(words, ("0",) * len(words), 7) for words in (WORDS, ("\u0301",), WORDS * 5)]
    windows = encode_sentences(tokenizer, sentences, ["0"], 20, 6)
    counts = [len(encode_sentences(tokenizer, [sentences[i]], ["0"], 20, 6)) for i in (0, 2)]
    assert windows.sentence_of.tolist() == [0] * counts[0] + [2] * counts[1]


def test_word_without_a_piece(tmp_path: Path) -> None:
    _, windows = encoded(tmp_path, 512, 0, ("a", "\u0301", "map"))  # a lone accent is dropped
    assert windows.place_of[0][1].tolist() == [-1, -1]
    assert windows.assemble(windows.token_tags) == [["0", "O", "2"]]


def test_no_word_with_a_piece(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nor any other has a word the tokenizer knows"):
        encoded(tmp_path, 512, 0, ("\u0301",))


def test_loss_is_the_mean_over_words(tmp_path: Path) -> None:
    _, windows = encoded(tmp_path, 512, 0)
    _, labels = windows.collate(np.array([0]), CPU)
    logits = torch.randn(1, labels.shape[1], len(WORDS), generator=torch.Generator().manual_seed(0))
    place = {int(tag): i for i, tag in enumerate(labels[0]) if tag != NO_TAG}
    expected = -sum(logits[0, place[i]].log_softmax(-1)[i] for i in place) / len(WORDS)
    objective = token_classification(len(WORDS))
    assert objective.loss(logits, labels).item() == pytest.approx(expected.item(), rel=1e-5)
    assert objective.predict(logits).shape == labels.shape
