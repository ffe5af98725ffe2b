"""WordPiece: ids and offsets equal transformers 5's BertTokenizer on real lines, generated ones and all of Unicode."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from tokenizer_lines import CORPORA, generated_lines

from edge_albert.errors import TokenizerError
from edge_albert.tokenization.text_rules import bert_table
from edge_albert.tokenizer import Tokenizer, load_tokenizer

TINY_VOCABULARY = (
    "[PAD] [unused1] [UNK] [CLS] [SEP] [MASK] the bake ##r ##rs ##y , . [ ] ! ' "
    "你 好 世 cafe naive in ##habit mask un ##able"
)
# In Unicode 3.2 already, but of another class in the reference's tables than in newer ones (U+1885: letter, now mark).
RECLASSIFIED = {"\u166d", "\u1734", "\u1885", "\u1886"}


@pytest.fixture
def tiny(tmp_path: Path) -> Tokenizer:
    (tmp_path / "vocab.txt").write_text("\n".join(TINY_VOCABULARY.split()) + "\n", encoding="utf-8")
    return load_tokenizer(tmp_path)


@pytest.fixture(scope="module")
def vocabulary(shared_data: Path) -> Path:
    return shared_data / "tokenizer" / "bert-base-uncased-vocab.txt"


def load_pair(vocabulary: Path, folder: Path, **options: Any) -> tuple[Tokenizer, Any]:
    """Ours, from a folder with a configuration, and transformers' with the same settings."""
    transformers = pytest.importorskip("transformers", minversion="5.0")
    (folder / "vocab.txt").write_bytes(vocabulary.read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **options}))
    return load_tokenizer(folder), transformers.BertTokenizer.from_pretrained(folder)


def lines_of(shared_data: Path) -> list[str]:
    real = [line for name, read in CORPORA.items() for line in list(read(shared_data))[:: 24 if name == "sst2" else 4]]
    return [*real, *generated_lines(4000, seed=9)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"do_lower_case": False},
        {"strip_accents": False},
        {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False},
    ],
)
def test_ids_and_offsets_equal_transformers(
    vocabulary: Path, shared_data: Path, tmp_path: Path, options: dict[str, bool]
) -> None:
    ours, theirs = load_pair(vocabulary, tmp_path, **options)
    lines = lines_of(shared_data)[:: 1 if not options else 8]
    reference = theirs(lines, return_offsets_mapping=True)
    for i, line in enumerate(lines):
        encoding = ours.encode(line, max_length=None)
        assert encoding.input_ids == reference["input_ids"][i], ascii(line)
        assert encoding.input_ids[1:-1] == ours.ids(line)
        for mine, other in zip(encoding.offsets, map(tuple, reference["offset_mapping"][i]), strict=True):
            # ours take in what was dropped after a character (marks, control characters)
            assert mine[0] == other[0], (ascii(line), mine, other)
            assert mine[1] >= other[1], (ascii(line), mine, other)
            assert not visible(line[other[1] : mine[1]]), (ascii(line), mine, other)


def visible(text: str) -> str:
    return "".join(
        char for char in text if unicodedata.category(char) not in ("Mn", "Cc", "Cf", "Co") and char != "\ufffd"
    )


@pytest.mark.slow
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("strip", [True, False])
def test_every_character_of_unicode(lower: bool, strip: bool) -> None:
    """Word by word equal to the reference's normaliser and pre-tokeniser; newer characters may differ, no others do."""
    tokenizers = pytest.importorskip("tokenizers")
    normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lower, strip_accents=strip)
    splitter = tokenizers.pre_tokenizers.BertPreTokenizer()
    table = bert_table(do_lower_case=lower, strip_accents=strip, tokenize_chinese_chars=True)
    newer = 0
    for char in map(chr, [*range(0xD800), *range(0xE000, 0x110000)]):
        text = f"a{char}b"
        expected = [word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))]
        if [word for word in text.translate(table).split(" ") if word] != expected:
            assert unicodedata.ucd_3_2_0.category(char) == "Cn" or char in RECLASSIFIED, hex(ord(char))
            newer += 1
    assert newer < 1000  # 559 at most with Unicode 14 here and tokenizers 0.23.3


# -- the rules themselves, without the shared data ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("The bakers, the bakery!", ["the", "bake", "##rs", ",", "the", "bake", "##r", "##y", "!"]),
        ("你好 世", ["你", "好", "世"]),
        ("你好the世", ["你", "好", "the", "世"]),
        ("CAFÉ cafe\u0301 Naïve", ["cafe", "cafe", "naive"]),
        ("inhabit\x00ers\u200b", ["[UNK]"]),
        ("in\x01habit", ["in", "##habit"]),
        ("in\u00a0habit\u2028the", ["in", "[UNK]", "the"]),
        ("the\ufffd", ["the"]),
        ("zebra", ["[UNK]"]),
        ("bake" + "r" * 96, ["bake", *["##r"] * 96]),
        ("bake" + "r" * 97, ["[UNK]"]),  # 101 characters
        ("[MASK]", ["[", "mask", "]"]),
        ("[unused1]", ["[", "[UNK]", "]"]),
        ("", []),
        (" \t\n", []),
    ],
)
def test_pieces(tiny: Tokenizer, text: str, pieces: list[str]) -> None:
    assert tiny.tokenize(text) == pieces


def test_offsets_point_into_the_original(tiny: Tokenizer) -> None:
    text = "  Cafe\u0301rs,\t你好 in\x01habit "
    encoding = tiny.encode(text)
    surfaces = [text[start:end] for start, end in encoding.offsets[1:-1]]
    assert surfaces == ["Cafe\u0301", "rs", ",", "你", "好", "in\x01", "habit"]
    assert tiny.tokenize(text) == ["cafe", "##rs", ",", "你", "好", "in", "##habit"]
    assert tiny.encode("\x01\x01.").offsets[1:-1] == [(2, 3)]


def test_special_tokens_in_a_text_are_text(tiny: Tokenizer) -> None:
    special = tiny.special_ids - {tiny.unk_id}
    for token in ("[PAD]", "[CLS]", "[SEP]", "[MASK]"):
        assert not special & set(tiny.ids(f"the {token} baker{token}"))
        marked = tiny.encode(f"the {token} baker", allow_special=True)
        assert marked.input_ids[2] == tiny.token_to_id(token)
        assert marked.offsets[2] == (4, 4 + len(token))
    assert tiny.encode("the [SEP]", allow_special=True).special_tokens_mask == [1, 0, 0, 1]


def test_a_special_token_that_looks_like_a_word_is_never_given(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("pad\n[UNK]\n[CLS]\n[SEP]\nthe\n##d\npa\npadding\n")
    (tmp_path / "tokenizer_config.json").write_text('{"pad_token": "pad", "mask_token": "padding"}')
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.pad_id, tokenizer.mask_id) == (0, 7)
    assert tokenizer.tokenize("the pad") == ["the", "pa", "##d"]
    assert tokenizer.encode("the pad", allow_special=True).input_ids == [2, 4, 0, 3]
    assert tokenizer.encode("padding the", allow_special=True).input_ids == [2, 7, 4, 3]


def test_transformers_reads_special_tokens_in_a_text_the_same_way(vocabulary: Path, tmp_path: Path) -> None:
    ours, theirs = load_pair(vocabulary, tmp_path)
    for text in ("a [MASK] b", "[CLS][SEP] the[MASK]re [UNK]", "[mask] [ MASK ] [[SEP]]", "你[PAD]好"):
        reference = theirs(text, return_offsets_mapping=True)
        encoding = ours.encode(text, allow_special=True)
        assert encoding.input_ids == reference["input_ids"]
        assert encoding.offsets == list(map(tuple, reference["offset_mapping"]))


def test_decode(tiny: Tokenizer) -> None:
    assert tiny.decode(tiny.encode("The bakers, inhabit!").input_ids) == "the bakers , inhabit !"
    assert tiny.decode(tiny.encode("the zebra").input_ids, skip_special_tokens=False) == "[CLS] the [UNK] [SEP]"


def test_rules_round_trip(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(" \r\n".join(TINY_VOCABULARY.split()).encode())  # as Windows editors leave it
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false, "model_max_length": 512}')
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.rules == {
        "kind": "wordpiece", "file": "vocab.txt", "do_lower_case": False, "strip_accents": False,
        "tokenize_chinese_chars": True, "model_max_length": 512,
        "special_tokens": {
            "pad": {"token": "[PAD]", "id": 0}, "unk": {"token": "[UNK]", "id": 2}, "cls": {"token": "[CLS]", "id": 3},
            "sep": {"token": "[SEP]", "id": 4}, "mask": {"token": "[MASK]", "id": 5},
        },
    }  # fmt: skip
    (tmp_path / "tokenizer_config.json").unlink()
    again = Tokenizer.from_rules(tmp_path, tokenizer.rules)
    assert again.rules == tokenizer.rules
    assert again.encode("The bakers").input_ids == tokenizer.encode("The bakers").input_ids == [3, 2, 7, 9, 4]


@pytest.mark.parametrize("missing", ["[UNK]", "[CLS]", "[SEP]", "[PAD]"])
def test_a_vocabulary_without_a_special_token_is_refused(tmp_path: Path, missing: str) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(word for word in TINY_VOCABULARY.split() if word != missing), "utf-8")
    with pytest.raises(TokenizerError, match=rf"vocab.txt: lacks the special token \{missing}"):
        load_tokenizer(tmp_path)


def test_a_vocabulary_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(b"\xff\xfe[PAD]\n")
    with pytest.raises(TokenizerError, match=r"vocab\.txt: not UTF-8"):
        load_tokenizer(tmp_path)
