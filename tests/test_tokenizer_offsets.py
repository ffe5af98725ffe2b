"""Offsets count in characters of the original text, whatever cleaning and normalisation did to it in between."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
import sentencepiece
from tiny_spiece import tiny_corpus, train_tiny_spiece
from tokenizer_lines import CORPORA, generated_lines
from tokenizer_references import fast_albert, slow_text

from edge_albert.tokenization.spiece import SPACE, SpieceModel
from edge_albert.tokenization.text_rules import albert_table, clean_albert, trace_albert
from edge_albert.tokenizer import Tokenizer, load_tokenizer

SPECIAL = {"pad": "<pad>", "unk": "<unk>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(train_tiny_spiece(tmp_path_factory.mktemp("tiny")).parent)


def processor_of(tokenizer: Tokenizer) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_file=str(tokenizer.path))


@pytest.mark.parametrize(
    ("text", "stretches"),
    [
        ("the  baker", ["the", "baker"]),
        (" \t the\n\nbaker \n", ["the", "baker"]),
        ("\u200bthe\u200b \u200bbaker\u3000", ["the", "baker"]),  # zero-width space is a space to nmt_nfkc
        ("The BAKER", ["The", "BAKER"]),
        ("the bâkér", ["the", "bâkér"]),
        ("the ba\u0302ke\u0301r", ["the", "ba\u0302ke\u0301r"]),  # a dropped mark goes with its letter
        ("the b\u0302\u0301aker\u0301", ["the", "b\u0302\u0301aker\u0301"]),
        ("the ｂａｋｅｒ", ["the", "ｂａｋｅｒ"]),
        ("the ba\u00adker", ["the", "ba\u00adker"]),  # soft hyphen
        ("the baker\x01 the", ["the", "baker\x01", "the"]),  # a control character goes with the letter before
        ("``the''", ["``", "the", "''"]),
        ("`the baker''", ["`", "the", "baker", "''"]),
        ("the baker.", ["the", "baker", "."]),
        ("the \U0001f600\U0001f600 baker", ["the", "\U0001f600\U0001f600", "baker"]),
    ],
)
def test_hard_cases(tiny: Tokenizer, text: str, stretches: list[str]) -> None:
    """The tokens cover these stretches of the text, from the first character to the last, and nothing else."""
    spans = [(start, end) for start, end in tiny.encode(text).offsets[1:-1] if start < end]
    at = 0
    for stretch in stretches:
        at = text.index(stretch, at)
        inside = [span for span in spans if at <= span[0] and span[1] <= at + len(stretch)]
        assert (inside[0][0], inside[-1][1]) == (at, at + len(stretch))
        spans = spans[len(inside) :]
        at += len(stretch)
    assert not spans


def test_a_letter_that_grows_and_a_syllable_that_is_taken_apart(tiny: Tokenizer) -> None:
    """İ lower-cases to two characters; NFKD makes three jamo of a syllable and SentencePiece one character again."""
    accents = SpieceModel(tiny.path, SPECIAL, keep_accents=True)
    istanbul = accents.split("İstanbul x")
    assert (istanbul.starts[-1], istanbul.ends[-1]) == (9, 10)
    composed = "한글"
    for hangul, length in ((composed, 2), (unicodedata.normalize("NFD", composed), 6)):
        encoding = tiny.encode(f"a {hangul} b")
        assert len(hangul) == length
        assert (2, 2 + length) in encoding.offsets
        assert encoding.offsets[-2][1] == 2 + length + 2


def test_pieces_of_one_character_share_it(tiny: Tokenizer) -> None:
    """½ becomes 1⁄2: three pieces, one character. The same where SentencePiece, not this package, takes it apart."""
    for model in (SpieceModel(tiny.path, SPECIAL), SpieceModel(tiny.path, SPECIAL, keep_accents=True)):
        pieces = model.split("a ½ b")
        inner = [(int(s), int(e)) for s, e in zip(pieces.starts, pieces.ends, strict=True) if e > s][1:-1]
        assert inner
        assert set(inner) == {(2, 3)}


def test_a_normalisation_that_ends_in_a_space(tmp_path: Path) -> None:
    """A user's own rules may make "star " of ★; at the end of a text SentencePiece trims that space."""
    (tmp_path / "rules.tsv").write_text("2605\t73 74 61 72 20\n")
    with (tmp_path / "spiece.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([*tiny_corpus(), "star of stars"]), model_writer=file, vocab_size=100, pad_id=0,
            unk_id=1, bos_id=-1, eos_id=-1, control_symbols=["[CLS]", "[SEP]", "[MASK]"], minloglevel=2,
            normalization_rule_tsv=str(tmp_path / "rules.tsv"),
        )  # fmt: skip
    encoding = load_tokenizer(tmp_path).encode("a ★b ★")
    assert {span for span in encoding.offsets[1:-1] if span[0] < span[1]} == {(0, 1), (2, 3), (3, 4), (5, 6)}


@pytest.mark.parametrize("remove_space", [True, False])
def test_the_way_back_is_as_long_as_the_cleaned_text(remove_space: bool) -> None:
    """One place for every cleaned character, and one for where the text ended."""
    table = albert_table(do_lower_case=True, keep_accents=False)
    for line in ["", " ", "a", "  a  ", *generated_lines(500, seed=12)]:
        cleaned = clean_albert(line, table, remove_space=remove_space)
        trace = trace_albert(line, cleaned, table, remove_space=remove_space)
        assert cleaned == slow_text(line, remove_space=remove_space)
        assert len(trace.ends) == len(trace.starts) - 1 == len(cleaned)
        assert all(trace.starts[:-1] < trace.ends)


def check(tokenizer: Tokenizer, processor: sentencepiece.SentencePieceProcessor, text: str, **options: bool) -> None:
    """What must hold for any text and SentencePiece model."""
    offsets = tokenizer.encode(text, max_length=None).offsets[1:-1]
    pieces = tokenizer.tokenize(text)
    assert len(offsets) == len(pieces)
    covered: set[int] = set()
    before = (0, 0)
    for (start, end), piece in zip(offsets, pieces, strict=True):
        assert before[0] <= start <= end <= len(text)
        assert before[1] <= end
        assert (start == end) == (piece == SPACE)
        behind = processor.normalize(slow_text(text[start:end], **options))
        assert piece.removeprefix(SPACE) in behind, (ascii(piece), ascii(behind))
        covered.update(range(start, end))
        before = (start, end)
    for i, char in enumerate(text):
        visible = unicodedata.category(char)[0] not in "ZCM"
        if visible and processor.normalize(slow_text(char, **options)):
            assert i in covered, (i, ascii(char))


def test_generated_lines_with_a_tiny_model(tiny: Tokenizer) -> None:
    processor = processor_of(tiny)
    for line in generated_lines(2000, seed=5):
        check(tiny, processor, line)


@pytest.mark.parametrize("options", [{}, {"keep_accents": True}, {"do_lower_case": False}, {"remove_space": False}])
def test_generated_lines_with_the_genuine_model(genuine_spiece: Path, options: dict[str, bool]) -> None:
    tokenizer = Tokenizer(SpieceModel(genuine_spiece, SPECIAL, **options))
    processor = processor_of(tokenizer)
    for line in generated_lines(1500, seed=6):
        check(tokenizer, processor, line, **options)


def test_offsets_equal_transformers_on_real_lines(shared_data: Path, genuine_spiece: Path) -> None:
    """But for a lone "▁", empty here and the first character of the word there, and `` of which they have one half."""
    tokenizer = load_tokenizer(genuine_spiece.parent)
    fast = fast_albert(genuine_spiece)
    compared = 0
    for name, read in CORPORA.items():
        lines = list(read(shared_data))[:: 25 if name in ("sst2", "snips") else 5]
        theirs = fast(lines, return_offsets_mapping=True)
        for line, ids, offsets in zip(lines, theirs["input_ids"], theirs["offset_mapping"], strict=True):
            ours = tokenizer.encode(line, max_length=None)
            if ours.input_ids != ids:
                continue
            for i, mine, other in zip(ids, ours.offsets, map(tuple, offsets), strict=True):
                if tokenizer.id_to_token(i) == SPACE:
                    assert mine[0] == mine[1] == other[0] - (line[mine[0] :][:2] in ("``", "''"))
                elif line[slice(*mine)] in ("``", "''"):
                    assert mine[0] <= other[0] < other[1] == mine[1]
                else:
                    assert mine == other, (line, mine, other)
                    compared += 1
    assert compared > 70_000
