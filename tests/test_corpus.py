"""Raw text to token shards: every form of corpus, what is refused, and that processes change nothing."""

from __future__ import annotations

import json
import lzma
import pickle
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from pretrain_helpers import write_corpus
from tiny_spiece import train_tiny_spiece

from edge_albert.errors import DataError
from edge_albert.tokenizer import load_tokenizer
from edge_albert.training.pretraining.corpus import Corpus, DatasetSource, split_sentences
from edge_albert.training.pretraining.shards import TokenStore, write_shards

TEXT = "One. Two!\nThree\n\n\n  \nFour? Five.\n"
DOCUMENTS = [["One.", "Two!", "Three"], ["Four?", "Five."]]


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny_spiece(tmp_path_factory.mktemp("tokenizer")).parent


def documents(*paths: Path, **options: str) -> list[list[str]]:
    return list(Corpus(paths, **options).documents())


# -- reading -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "sentences"),
    [
        ("", []),
        ("   \n", []),
        ("no end", ["no end"]),
        ("It rained. Then it did not.", ["It rained.", "Then it did not."]),
        ('He said "no!" Then he left.', ['He said "no!"', "Then he left."]),
        ("Version 2.5 of e.g. this... and on", ["Version 2.5 of e.g. this... and on"]),
        ("Why?? (Because.) 9 of 10.", ["Why??", "(Because.)", "9 of 10."]),
        ("Öl. Über 3 Liter.", ["Öl.", "Über 3 Liter."]),
        ("天気がいい。散歩する。", ["天気がいい。", "散歩する。"]),
    ],
)
def test_sentences(line: str, sentences: list[str]) -> None:
    assert split_sentences(line) == sentences


@pytest.mark.parametrize("line", ["." * 200_000, '."' * 100_000, ". " * 100_000, "." + " " * 200_000 + "x"])
def test_hostile_lines_take_no_quadratic_time(line: str) -> None:
    """A quadratic rule would take hours here, and the test run would be stopped."""
    assert "".join(split_sentences(line)).replace(" ", "") == line.replace(" ", "")


def test_text_and_xz(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.txt.xz").write_bytes(lzma.compress(TEXT.encode()))
    (tmp_path / "c.xz").write_bytes(lzma.compress(TEXT.encode()))
    for name in ("a.txt", "b.txt.xz", "c.xz"):
        assert documents(tmp_path / name) == DOCUMENTS


def test_text_without_blank_lines_does_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_albert.training.pretraining.corpus.LONGEST_DOCUMENT", 2)
    (tmp_path / "a.txt").write_text("One.\nTwo.\nThree.\nFour.\nFive.\n")
    assert documents(tmp_path / "a.txt") == [["One.", "Two."], ["Three.", "Four."], ["Five."]]


def test_windows_line_ends(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(TEXT.replace("\n", "\r\n").encode())
    assert documents(tmp_path / "a.txt") == DOCUMENTS


def test_jsonl(tmp_path: Path) -> None:
    rows = [{"body": "One. Two!\nThree"}, {"body": " "}, {"body": "Four? Five."}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    assert documents(tmp_path / "a.jsonl", text_field="body") == DOCUMENTS


def test_folder_in_order_of_path_and_nothing_else_in_it(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "z.txt").write_text("Last.")
    (tmp_path / "b.jsonl.xz").write_bytes(lzma.compress(b'{"text": "Second."}'))
    (tmp_path / "a.txt").write_text("First.")
    (tmp_path / "readme.md").write_text("not a corpus")
    (tmp_path / "titles.tsv.xz").write_bytes(b"not a corpus")
    corpus = Corpus([tmp_path])
    assert list(corpus.documents()) == [["First."], ["Second."], ["Last."]]
    assert corpus.bytes_read == corpus.total_bytes > 0


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"fine\n\xff\xfe\n", "line 2 is not UTF-8"),
        ("a.txt.xz", lzma.compress(b"text " * 9999)[:-40], "not a whole xz file"),
        ("a.txt.xz", b"plain", "not a whole xz file"),
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', "line 2 is not valid JSON"),
        ("a.jsonl", b'{"text": "x"}\n{"body": "x"}\n', "line 2 has no text in a field 'text'"),
        ("a.jsonl", b'["x"]\n', "line 1 has no text"),
        ("a.csv", b"x", "not a known form of corpus"),
    ],
)
def test_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        documents(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_absent_and_empty_places(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        Corpus([tmp_path / "absent.txt"])
    with pytest.raises(DataError, match="holds no corpus file"):
        Corpus([tmp_path])


def test_data_set_of_hugging_face(tmp_path: Path) -> None:
    """A local data set of two shards, read as a stream."""
    pytest.importorskip("datasets", reason="the package datasets is not installed")
    for number, text in enumerate(["One. Two!\nThree", "Four? Five."]):
        (tmp_path / f"train-{number}.jsonl").write_text(json.dumps({"text": text}) + "\n")
    assert list(Corpus([DatasetSource(str(tmp_path))]).documents()) == DOCUMENTS
    with pytest.raises(DataError, match="cannot be read"):
        list(Corpus([DatasetSource(str(tmp_path), "absent")]).documents())


# -- shards ------------------------------------------------------------------------------------------------------------


def test_shards_hold_the_tokenizers_ids(tmp_path: Path, tokenizer_folder: Path) -> None:
    corpus = Corpus([write_corpus(tmp_path / "c.txt")])
    write_shards(corpus, tokenizer_folder, tmp_path / "shards", shard_tokens=1000)
    store = TokenStore(tmp_path / "shards")
    assert store.documents == 288
    assert all(isinstance(shard.tokens, np.memmap) and shard.tokens.dtype == np.uint16 for shard in store.shards)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer_folder / "spiece.model"))
    read = [
        [shard.tokens[start:stop].tolist() for start, stop in pairwise(ends)]
        for shard in store.shards
        for first, last in pairwise(shard.documents)
        for ends in [shard.sentences[first : last + 1]]
    ]
    expected = [[processor.encode(s) for s in document] for document in corpus.documents()]
    comma = processor.piece_to_id(",")
    for mine, theirs in zip(read, expected, strict=True):
        for ids, reference in zip(mine, theirs, strict=True):
            if comma not in ids:  # the digit-comma rule is ALBERT's, not SentencePiece's
                assert ids == reference


def test_processes_make_the_same_files(tmp_path: Path, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_albert.training.pretraining.shards.BLOCK_CHARACTERS", 2000)
    corpus = Corpus([write_corpus(tmp_path / "c.txt")])
    write_shards(corpus, tokenizer_folder, tmp_path / "one", processes=1)
    write_shards(corpus, tokenizer_folder, tmp_path / "two", processes=2)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == ["00000.documents.npy", "00000.sentences.npy", "00000.tokens.npy", "index.json"]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_another_process_maps_the_files_itself(tmp_path: Path, tokenizer_folder: Path) -> None:
    write_shards(Corpus([write_corpus(tmp_path / "c.txt")]), tokenizer_folder, tmp_path / "shards")
    store = TokenStore(tmp_path / "shards")
    sent = pickle.dumps(store)
    assert len(sent) < 500
    assert isinstance(pickle.loads(sent).shards[0].tokens, np.memmap)


def test_nothing_is_left_of_a_failed_tokenisation(tmp_path: Path, tokenizer_folder: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"fine.\n\n\xff\n")
    with pytest.raises(DataError, match="line 3"):
        write_shards(Corpus([tmp_path / "a.txt"]), tokenizer_folder, tmp_path / "shards")
    (tmp_path / "a.txt").write_bytes(b"\n \n")
    with pytest.raises(DataError, match="no text"):
        write_shards(Corpus([tmp_path / "a.txt"]), tokenizer_folder, tmp_path / "shards")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_shards_of_another_field_are_refused(tmp_path: Path, tokenizer_folder: Path) -> None:
    path, shards = tmp_path / "a.jsonl", tmp_path / "shards"
    path.write_text('{"text": "Nobody sings. The baker walks.", "title": "The river."}\n')
    write_shards(Corpus([path], text_field="title"), tokenizer_folder, shards)
    TokenStore(shards).check_corpus(Corpus([path], text_field="title"))
    with pytest.raises(DataError, match="another corpus"):
        TokenStore(shards).check_corpus(Corpus([path]))
    assert Corpus([path]).description == [f"a.jsonl, {path.stat().st_size} bytes"]


def test_damaged_and_foreign_shards_are_refused(tmp_path: Path, tokenizer_folder: Path) -> None:
    corpus = Corpus([write_corpus(tmp_path / "c.txt")])
    shards = tmp_path / "shards"
    write_shards(corpus, tokenizer_folder, shards)
    store = TokenStore(shards)
    store.check_vocabulary(load_tokenizer(tokenizer_folder))
    store.check_corpus(corpus)
    with pytest.raises(DataError, match="another corpus"):
        store.check_corpus(Corpus([write_corpus(tmp_path / "c.txt", documents=9)]))
    cased = tmp_path / "cased"
    cased.mkdir()
    (cased / "spiece.model").write_bytes((tokenizer_folder / "spiece.model").read_bytes())
    (cased / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    with pytest.raises(DataError, match="another vocabulary"):
        store.check_vocabulary(load_tokenizer(cased))
    tokens = shards / "00000.tokens.npy"
    tokens.write_bytes(tokens.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"00000\.tokens\.npy: cannot be read"):
        TokenStore(shards)
    (shards / "index.json").write_text("{}")
    with pytest.raises(DataError, match="not in format"):
        TokenStore(shards)
    with pytest.raises(DataError, match="missing or damaged"):
        TokenStore(tmp_path / "absent")
