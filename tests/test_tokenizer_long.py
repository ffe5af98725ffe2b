"""Work and memory grow with the length of a text and no faster; cutting a long text changes no segmentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tiny_spiece import tiny_corpus, train_tiny_spiece
from tokenizer_lines import generated_lines, squad
from tokenizer_references import score_of, slow_ids, slow_text

from edge_albert.tokenization import spiece
from edge_albert.tokenizer import Tokenizer, load_tokenizer


class Counting:
    """A SentencePiece processor that keeps account of what it is asked."""

    def __init__(self, processor: sentencepiece.SentencePieceProcessor) -> None:
        self._processor = processor
        self.calls = 0
        self.characters = 0
        self.longest = 0

    def encode(self, text: str, **options: Any) -> Any:
        self._note(text)
        return self._processor.encode(text, **options)

    def normalize(self, text: str, **options: Any) -> Any:
        self._note(text)
        return self._processor.normalize(text, **options)

    def _note(self, text: str) -> None:
        self.calls += 1
        self.characters += len(text)
        self.longest = max(self.longest, len(text))


@pytest.fixture
def tiny(tmp_path: Path) -> Tokenizer:
    return load_tokenizer(train_tiny_spiece(tmp_path).parent)


def counted(tokenizer: Tokenizer, text: str) -> Counting:
    """The account of one `encode` of the text."""
    model: Any = tokenizer._model
    original = model._processor
    model._processor = counting = Counting(original)
    try:
        tokenizer.encode(text)
    finally:
        model._processor = original
    return counting


@pytest.mark.parametrize(
    "text", ["the baker opened 92,000 doors, ", "thebaker", "ünïcödé 한국 ", "9,9,9,", "\u0301", " "]
)
def test_work_grows_with_length(tiny: Tokenizer, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Each character is encoded once and normalised once, whatever the length (digit-comma pieces once more)."""
    monkeypatch.setattr(spiece, "BLOCK_LENGTH", 500)
    once, twice = counted(tiny, text * 400), counted(tiny, text * 800)
    for count, length in ((once, 400 * len(text)), (twice, 800 * len(text))):
        assert count.characters <= 3 * length
        assert count.calls <= length + 4
    assert twice.characters <= 2.1 * once.characters + 20
    assert twice.calls <= 2.1 * once.calls + 4


def test_blocks_are_bounded_but_words_stay_whole(tiny: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spiece, "BLOCK_LENGTH", 500)
    spaced = counted(tiny, "the baker " * 1000)
    assert spaced.longest <= 500
    assert spaced.calls <= 2 * (10_000 // 480 + 1)
    assert counted(tiny, "the " + "x" * 5000 + " baker").longest == 5001  # and the space before it
    assert counted(tiny, "x" * 5000).longest == 5000


@pytest.mark.parametrize("length", [1, 2, 7, 50, 300])
def test_cutting_changes_nothing(tiny: Tokenizer, monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    """Ids and offsets of a text in blocks of any length are those of the text in one.

    No "00" in them: this vocabulary has 0 00 and 00 0 for 000, an exact tie that rounding decides.
    """
    lines = [line for line in (*tiny_corpus()[:40], *generated_lines(80, seed=8)) if "00" not in line]
    texts = [" ".join(lines), "  \u200b ".join(lines), "a" * 700, " " * 700, "a " * 700]
    whole = [tiny.encode(text, max_length=None) for text in texts]
    monkeypatch.setattr(spiece, "BLOCK_LENGTH", length)
    assert [tiny.encode(text, max_length=None) for text in texts] == whole
    assert [tiny.ids(text) for text in texts] == [encoding.input_ids[1:-1] for encoding in whole]


def test_a_vocabulary_with_pieces_across_words_is_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where "▁" stands inside pieces, words do interact."""
    with (tmp_path / "spiece.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(tiny_corpus()), model_writer=file, vocab_size=120, split_by_whitespace=False,
            pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=["[CLS]", "[SEP]", "[MASK]"], minloglevel=2,
        )  # fmt: skip
    tokenizer = load_tokenizer(tmp_path)
    text = " ".join(tiny_corpus()[:20])
    whole = tokenizer.ids(text)
    assert any("▁" in tokenizer.id_to_token(i)[1:] for i in whole)
    monkeypatch.setattr(spiece, "BLOCK_LENGTH", 10)
    assert tokenizer.ids(text) == whole


def words_of(tokenizer: Tokenizer, ids: list[int]) -> list[list[int]]:
    words: list[list[int]] = []
    for i in ids:
        if not words or tokenizer.id_to_token(i).startswith("▁"):
            words.append([])
        words[-1].append(i)
    return words


def check_against_one_run(tokenizer: Tokenizer, text: str) -> None:
    """SentencePiece over the whole text in one call: the same words, but for ties within its rounding."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer.path))
    ours, theirs = (words_of(tokenizer, ids) for ids in (tokenizer.ids(text), slow_ids(processor, text)))
    assert len(ours) == len(theirs)
    different = [(a, b) for a, b in zip(ours, theirs, strict=True) if a != b]
    assert len(different) <= len(ours) / 5000
    assert all(abs(score_of(processor, a) - score_of(processor, b)) < 0.02 for a, b in different)


def test_long_real_text_against_one_run(shared_data: Path, genuine_spiece: Path) -> None:
    text = " ".join(squad(shared_data))
    assert len(text) > 3 * spiece.BLOCK_LENGTH
    check_against_one_run(load_tokenizer(genuine_spiece.parent), text)


@pytest.mark.slow
@pytest.mark.parametrize("spaces", ["spaces", "no spaces"])
def test_ten_megabytes_on_one_line(shared_data: Path, genuine_spiece: Path, spaces: str) -> None:
    """About 10 s; transformers #4560 reports the original hanging on such lines."""
    tokenizer = load_tokenizer(genuine_spiece.parent)
    line = " ".join(squad(shared_data))
    line = line if spaces == "spaces" else "".join(line.split())
    line = (line * (10_000_000 // len(line) + 1))[:10_000_000]
    encoding = tokenizer.encode(line, max_length=None)
    assert encoding.input_ids[1:-1] == tokenizer.ids(line)
    starts = [start for start, _ in encoding.offsets[1:-1]]
    assert starts == sorted(starts)
    assert encoding.offsets[-2][1] == len(line.rstrip())
    if spaces == "spaces":
        check_against_one_run(tokenizer, line)
    else:
        assert len(tokenizer.tokenize(slow_text(line))) == len(starts)


@pytest.mark.slow
def test_ten_megabytes_of_wordpiece(shared_data: Path, tmp_path: Path) -> None:
    vocabulary = shared_data / "tokenizer" / "bert-base-uncased-vocab.txt"
    (tmp_path / "vocab.txt").write_bytes(vocabulary.read_bytes())
    tokenizer = load_tokenizer(tmp_path)
    line = " ".join(squad(shared_data))
    line = (line * (10_000_000 // len(line) + 1))[:10_000_000]
    encoding = tokenizer.encode(line, max_length=None)
    assert encoding.input_ids[1:-1] == tokenizer.ids(line)
    assert tokenizer.ids("x" * 10_000_000) == [tokenizer.unk_id]
