"""Ids on real and generated lines: equal to transformers' slow AlbertTokenizer, and where transformers 5 differs.

The digests were recorded with transformers 4.57.1 (the last with a slow tokenizer), `AlbertTokenizer` of Google's
30k-clean.model, sentencepiece 0.2.3, Python 3.11, over every line that tokenizer_lines.py gives: 99,877 in all.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import sentencepiece
from tiny_spiece import train_tiny_spiece
from tokenizer_lines import CORPORA, digest, generated_lines
from tokenizer_references import fast_albert, score_of, slow_ids, slow_pieces, slow_text

from edge_albert.tokenization.spiece import SpieceModel
from edge_albert.tokenization.text_rules import albert_table
from edge_albert.tokenizer import Tokenizer, load_tokenizer

SLOW_4_57 = {
    "sst2": (68221, "8d900d8af7411cc13e9c8a2bddb41763c43dadc2f6a7c75090bb78610bdbe2ee"),
    "snips": (14484, "b347fd058383dc656ff8bef8b4bbc534c394a4698bce1ba645f06eb79a1f0975"),
    "sms": (5574, "929487907f45b7adb73cd59f0958c7f919d88132ca5da2306ac1c02328da569c"),
    "squad": (1598, "02782b99b83ccfba506aed0b30f2ca1cbf7e41ee02135f973a60a380824f6744"),
}
SLOW_4_57_GENERATED = {
    "": "251c5a1254dd85a5c1bc0a54e24b7a55b988f6595c719a72f9f3de2c6928f61b",
    "do_lower_case=False": "13f6b08ccd350426d2e9172f921dc324cd6dda63a4131b582c0190b38d172512",
    "keep_accents=True": "7f3dea8ef631a7eea43962306d1725f945960e5db0d8dac407dd6cfd089067e5",
    "do_lower_case=False keep_accents=True": "875cc023ece833fa5644559de5c607ca09ede05e61f847f5a12e4ec3cdf0ec72",
    "remove_space=False": "c84faa4a012ec5783e2f74128db7a07ccde73656839cbe846b6607d4e6772e5b",
}
SPECIAL = {"pad": "<pad>", "unk": "<unk>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
USER_DEFINED = set('()".–£€-')
needs_recorded_version = pytest.mark.skipif(
    sentencepiece.__version__ != "0.2.3", reason="the digests were recorded with sentencepiece 0.2.3"
)


@pytest.fixture(scope="module")
def tokenizer(genuine_spiece: Path) -> Tokenizer:
    return load_tokenizer(genuine_spiece.parent)  # Google's file name, no configuration: ALBERT's defaults


@pytest.fixture(scope="module")
def processor(genuine_spiece: Path) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_file=str(genuine_spiece))


@pytest.fixture(scope="module")
def real_lines(shared_data: Path) -> list[str]:
    """About 27,000 lines: everything but SST-2, of which every twelfth."""
    return [line for name, read in CORPORA.items() for line in list(read(shared_data))[:: 12 if name == "sst2" else 1]]


def options_of(name: str) -> dict[str, bool]:
    return {key: value == "True" for key, value in (part.split("=") for part in name.split())}


# -- the slow tokenizer ------------------------------------------------------------------------------------------------


def test_golden_values(tokenizer: Tokenizer, genuine_spiece: Path) -> None:
    """Google's model, ids as google-research/albert and transformers' own tests have them."""
    assert tokenizer.vocab_size == 30000
    assert tokenizer.ids("this is a test") == [48, 25, 21, 1289]
    line = "i was born in 92000, and this is falsé."
    assert tokenizer.ids(line) == [31, 23, 386, 19, 561, 3050, 15, 17, 48, 25, 4997, 9]
    accents = SpieceModel(genuine_spiece, SPECIAL, keep_accents=True)
    assert accents.ids(line) == [31, 23, 386, 19, 561, 3050, 15, 17, 48, 25, 8256, 18, 1, 9]
    assert tokenizer.encode('I paid £5, €1,000.50 – ok ("yes")').input_ids == [
        2, 31, 2192, 13, 11, 264, 15, 13, 12, 12055, 9, 2290, 13, 10, 5854, 13, 5, 7, 1714, 7, 6, 3,
    ]  # fmt: skip


@needs_recorded_version
@pytest.mark.parametrize("name", SLOW_4_57)
def test_ids_equal_transformers_slow_on_real_lines(tokenizer: Tokenizer, shared_data: Path, name: str) -> None:
    lines = list(CORPORA[name](shared_data))
    assert (len(lines), digest(map(tokenizer.ids, lines))) == SLOW_4_57[name]


@needs_recorded_version
@pytest.mark.parametrize("settings", SLOW_4_57_GENERATED)
def test_ids_equal_transformers_slow_on_generated_lines(genuine_spiece: Path, settings: str) -> None:
    model = SpieceModel(genuine_spiece, SPECIAL, **options_of(settings))
    assert digest(map(model.ids, generated_lines(10_000))) == SLOW_4_57_GENERATED[settings]


def test_pieces_equal_the_written_out_rules(
    tokenizer: Tokenizer, processor: sentencepiece.SentencePieceProcessor, real_lines: list[str]
) -> None:
    """Whatever the version of sentencepiece; and the pieces, not only the ids."""
    assert len(real_lines) > 20_000
    for line in [*real_lines[::4], *generated_lines(2000, seed=1)]:
        assert tokenizer.tokenize(line) == slow_pieces(processor, line), ascii(line)


@pytest.mark.parametrize("settings", SLOW_4_57_GENERATED)
def test_ids_equal_the_written_out_rules_with_a_tiny_model(tmp_path: Path, settings: str) -> None:
    """The same without the shared data; in this vocabulary most characters are unknown."""
    path, options = train_tiny_spiece(tmp_path), options_of(settings)
    model, processor = SpieceModel(path, SPECIAL, **options), sentencepiece.SentencePieceProcessor(model_file=str(path))
    for line in generated_lines(3000, seed=2):
        assert model.ids(line) == slow_ids(processor, line, **options), ascii(line)


def test_digit_comma_pieces_inside_a_word(tmp_path: Path) -> None:
    """Google's vocabulary has "▁9," and the like at the start of words only; here "9," and "5," are pieces anywhere."""
    content = train_tiny_spiece(tmp_path).read_bytes()
    for old, new in ((b"th", b"9,"), (b"nd", b"5,")):
        assert content.count(b"\n\x02" + old) == 1
        content = content.replace(b"\n\x02" + old, b"\n\x02" + new)
    (tmp_path / "spiece.model").write_bytes(content)
    model = SpieceModel(tmp_path / "spiece.model", SPECIAL)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model.path))
    assert processor.encode("x9,5,", out_type=str)[-2:] == ["9,", "5,"]
    # both ways that the rule takes the dummy prefix off again
    assert [processor.encode(digit, out_type=str) for digit in "95"] == [["▁9"], ["▁", "5"]]
    for text in ("the x9, y5, 9, 5, 15,9,", "9,9,9,", "a5,5,b", "٣, 9,٣,"):
        pieces = model.split(text)
        assert model.tokenize(text) == slow_pieces(processor, text)
        assert pieces.ids.tolist() == model.ids(text) == slow_ids(processor, text)
        surfaces = [text[start:end] for start, end in zip(pieces.starts, pieces.ends, strict=True)]
        assert surfaces == [piece.lstrip("▁") for piece in model.tokenize(text)]


@pytest.mark.parametrize("settings", ["", "do_lower_case=False", "keep_accents=True"])
def test_every_character_by_the_written_out_rules(settings: str) -> None:
    """All of Unicode but surrogates, unassigned planes and private use."""
    options = options_of(settings)
    table = albert_table(**{"do_lower_case": True, "keep_accents": False, **options})
    for char in map(chr, [*range(0xD800), *range(0xF900, 0x3FFFF), *range(0xE0000, 0xE1000)]):
        if not char.isspace():
            assert char.translate(table) == slow_text(char, **options), hex(ord(char))


def test_encode_and_ids_agree(tokenizer: Tokenizer, real_lines: list[str]) -> None:
    """The way with offsets and the way without give the same ids."""
    for line in [*real_lines[::20], *generated_lines(1000, seed=3)]:
        assert tokenizer.encode(line, max_length=None).input_ids[1:-1] == tokenizer.ids(line), ascii(line)


# -- transformers 5 ----------------------------------------------------------------------------------------------------


def causes(processor: sentencepiece.SentencePieceProcessor, line: str, ours: list[int], theirs: list[int]) -> set[str]:
    """Which of the known differences to a tokenizer.json from the hub this line can show."""
    decomposed = unicodedata.normalize("NFKD", line)
    found = set()
    if any(unicodedata.category(char)[0] == "M" and not unicodedata.combining(char) for char in decomposed):
        found.add("mark without combining class")
    if any(char in "\x0b\x1c\x1d\x1e\x1f" for char in line):
        found.add("control whitespace")
    if len(ours) == len(theirs) and abs(score_of(processor, ours) - score_of(processor, theirs)) < 0.01:
        found.add("tie")
    return found


def test_transformers_5_with_the_hubs_file_differs_on_real_lines_by_ties_only(
    tokenizer: Tokenizer, processor: sentencepiece.SentencePieceProcessor, genuine_spiece: Path, real_lines: list[str]
) -> None:
    fast = fast_albert(genuine_spiece)
    theirs = fast(real_lines, add_special_tokens=False)["input_ids"]
    pairs = zip(real_lines, map(tokenizer.ids, real_lines), theirs, strict=True)
    different = [(line, a, b) for line, a, b in pairs if a != b]
    assert len(different) <= 3  # 1 with tokenizers 0.23.3
    assert all(causes(processor, *found) == {"tie"} for found in different)


def test_transformers_5_with_the_hubs_file_differs_on_generated_lines_for_known_reasons(
    tokenizer: Tokenizer, processor: sentencepiece.SentencePieceProcessor, genuine_spiece: Path
) -> None:
    lines = generated_lines(10_000)
    theirs = fast_albert(genuine_spiece)(lines, add_special_tokens=False)["input_ids"]
    count: Counter[str] = Counter()
    for line, ids, other in zip(lines, map(tokenizer.ids, lines), theirs, strict=True):
        if ids != other:
            why = causes(processor, line, ids, other)
            assert why, ascii(line)
            count.update(why)
            count["lines"] += 1
    assert 300 < count["lines"] < 600  # 457 with tokenizers 0.23.3
    assert count["mark without combining class"] > 300
    assert count["control whitespace"] > 20


def test_transformers_5_made_from_a_spiece_model_cuts_at_user_defined_pieces(
    tokenizer: Tokenizer, genuine_spiece: Path, real_lines: list[str], tmp_path: Path
) -> None:
    """The difference that matters: a folder with spiece.model and no tokenizer.json, opened by transformers 5."""
    transformers = pytest.importorskip("transformers", minversion="5.0")
    pytest.importorskip("google.protobuf")
    (tmp_path / "spiece.model").write_bytes(genuine_spiece.read_bytes())
    converted = transformers.AlbertTokenizer.from_pretrained(tmp_path)
    assert tokenizer.tokenize("a-b") == ["▁a", "-", "b"]
    assert converted.tokenize("a-b") == ["▁a", "-", "▁b"]
    assert tokenizer.tokenize("9, x") == ["▁9", ",", "▁x"]
    assert converted.tokenize("9, x") == ["▁9,", "▁x"]
    theirs = converted(real_lines, add_special_tokens=False)["input_ids"]
    pairs = zip(real_lines, map(tokenizer.ids, real_lines), theirs, strict=True)
    different = [line for line, a, b in pairs if a != b]
    unexplained = [line for line in different if not USER_DEFINED & set(line) and not has_digit_comma(line)]
    assert len(different) > 3000  # about 4,000 of 27,000
    assert len(unexplained) <= 3  # the tie


def has_digit_comma(line: str) -> bool:
    return any(a.isdigit() and b == "," for a, b in pairwise(line))
