"""What happens to the characters of a text before a vocabulary is consulted, and the way back to the original.

Both kinds of ALBERT tokenizer clean a text first: ALBERT's own rules (google-research/albert `preprocess_text`, then
transformers' `AlbertTokenizer`) before SentencePiece, BERT's (`BertNormalizer` and `BertPreTokenizer` of the tokenizers
library) before WordPiece. All of it but whitespace and paired quotes maps ONE character to zero or more characters,
whatever stands beside it. So a table does the cleaning (`str.translate`), and the way back needs one number per
character of the original: how many cleaned characters it became. Both are linear in the length of the text.

Lower-casing is by character too, as in both kinds of transformers' tokenizer: "Σ" is always "σ", never a final "ς".
"""

from __future__ import annotations

import re
import string
import sys
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

_UNMET, _SPACE, _LENGTH = 0xFF, 0x80, 0x7F  # in CharTable; the longest replacement, NFKD of U+FDFA, has 18 characters
_SURROGATES = re.compile("[\ud800-\udfff]")
_PAIRED_QUOTES = re.compile("``|''")
_ASCII_PUNCTUATION = frozenset(string.punctuation)
# The blocks whose characters BERT's multilingual and Chinese vocabularies hold one by one.
_CJK_RANGES = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


@dataclass(frozen=True)
class CleanText:
    """A cleaned text and where each of its characters comes from.

    `starts` (len(text) + 1,) and `ends` (len(text),) are indices into the original: cleaned character k stands for
    original[starts[k]:ends[k]]. Dropped characters (combining marks, control characters) belong to the character before
    them. The last of `starts` is where the text ended.
    """

    text: str
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


class CharTable(dict[int, str]):
    """Code point ► replacement for `str.translate`; `rule` works an entry out when it is first met."""

    def __init__(self, rule: Callable[[str], str]) -> None:
        super().__init__()
        self.rule = rule
        self._facts = np.full(sys.maxunicode + 1, _UNMET, dtype=np.uint8)  # replacement's length | _SPACE

    def __missing__(self, code: int) -> str:
        value = self[code] = self.rule(chr(code))
        return value

    def count(self, text: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """For each character of `text`: how many characters replace it, and whether it is whitespace itself."""
        codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
        facts = self._facts[codes]
        unmet = facts == _UNMET
        if unmet.any():
            for code in set(codes[unmet].tolist()):
                self._facts[code] = len(self[code]) | (_SPACE if chr(code).isspace() else 0)
            facts = self._facts[codes]
        return (facts & _LENGTH).astype(np.int64), facts >= _SPACE


def replace_surrogates(text: str) -> str:
    """Lone surrogates become U+FFFD one for one: they have no UTF-8 form, and indices must not move."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


# -- ALBERT ------------------------------------------------------------------------------------------------------------


def albert_table(*, do_lower_case: bool, keep_accents: bool) -> CharTable:
    """NFKD without combining marks unless `keep_accents`; lower case, before and after, as transformers does."""
    return CharTable(partial(_albert_char, do_lower_case=do_lower_case, keep_accents=keep_accents))


def _albert_char(char: str, *, do_lower_case: bool, keep_accents: bool) -> str:
    out = char.lower() if do_lower_case else char
    if not keep_accents:
        out = "".join(c for c in unicodedata.normalize("NFKD", out) if not unicodedata.combining(c))
    return out.lower() if do_lower_case else out


def clean_albert(text: str, table: CharTable, *, remove_space: bool) -> str:
    """Collapsed whitespace, `` and '' as ", then the table."""
    if remove_space:
        text = " ".join(text.split())
    return text.replace("``", '"').replace("''", '"').translate(table)


def trace_albert(text: str, cleaned: str, table: CharTable, *, remove_space: bool) -> CleanText:
    """The same `cleaned` text with its way back to `text`."""
    if len(cleaned) == len(text) and text.isascii():  # every rule either keeps ASCII's length or shortens it
        return _identity(cleaned)
    counts, spaces = table.count(text)
    if remove_space:
        counts[spaces] = 1
        counts[1:][spaces[1:] & spaces[:-1]] = 0
        words = np.flatnonzero(~spaces)
        first, last = (words[0], words[-1]) if len(words) else (len(text), -1)
        counts[:first] = 0
        counts[last + 1 :] = 0
    for pair in _PAIRED_QUOTES.finditer(text):
        counts[pair.start() + 1] = 0
    return _traced(cleaned, counts, spaces)


# -- BERT --------------------------------------------------------------------------------------------------------------


def bert_table(*, do_lower_case: bool, strip_accents: bool, tokenize_chinese_chars: bool) -> CharTable:
    """Control characters dropped, whitespace as " ", CJK and punctuation set apart by spaces, accents and case."""
    rule = partial(
        _bert_char,
        do_lower_case=do_lower_case,
        strip_accents=strip_accents,
        tokenize_chinese_chars=tokenize_chinese_chars,
    )
    return CharTable(rule)


def _bert_char(char: str, *, do_lower_case: bool, strip_accents: bool, tokenize_chinese_chars: bool) -> str:
    if char.isspace() and char not in "\x0b\x0c\x1c\x1d\x1e\x1f\x85":  # those are control characters to BERT
        return " "
    if char == "\ufffd" or unicodedata.category(char) in ("Cc", "Cf", "Co"):
        return ""
    out = char
    if strip_accents:
        out = "".join(c for c in unicodedata.normalize("NFD", out) if unicodedata.category(c) != "Mn")
    if do_lower_case:
        out = out.lower()
    out = "".join(f" {c} " if _is_punctuation(c) else c for c in out)
    return f" {out} " if tokenize_chinese_chars and _is_cjk(ord(char)) else out


def _is_punctuation(char: str) -> bool:
    return char in _ASCII_PUNCTUATION or unicodedata.category(char).startswith("P")


def _is_cjk(code: int) -> bool:
    return any(low <= code <= high for low, high in _CJK_RANGES)


def trace_bert(text: str, cleaned: str, table: CharTable) -> CleanText:
    """The `cleaned` text (`text.translate(table)`) with its way back to `text`."""
    if len(cleaned) == len(text) and text.isascii() and text.isprintable():
        return _identity(cleaned)
    counts, spaces = table.count(text)
    return _traced(cleaned, counts, spaces)


# -- the way back ------------------------------------------------------------------------------------------------------


def _traced(cleaned: str, counts: NDArray[np.int64], spaces: NDArray[np.bool_]) -> CleanText:
    repeats = counts.astype(np.intp, copy=False)  # a 32-bit system's repeat refuses int64
    source = np.repeat(np.arange(len(counts)), repeats)  # (len(cleaned),) the original character behind each
    anchors = np.flatnonzero((counts > 0) | spaces)  # what is not one of these belongs to the character before it
    stops = np.append(anchors, len(counts))
    ends = stops[np.searchsorted(anchors, source, side="right")]
    return CleanText(cleaned, np.append(source, ends[-1] if len(ends) else 0), ends)


def _identity(cleaned: str) -> CleanText:
    places = np.arange(len(cleaned) + 1)
    return CleanText(cleaned, places, places[1:])
