"""WordPiece with BERT's rules, for ALBERTs that come with a vocab.txt (the Chinese ones), and for BERT-like teachers.

The reference is transformers 5's `BertTokenizer` (tokenizers-backed, as was 4.x's fast one): control characters and
U+FFFD dropped, whitespace as spaces, every CJK character and every punctuation mark a word of its own, accents
(category Mn after NFD) dropped, lower case; then, word by word, the longest piece of the vocabulary from the left,
later ones with "##"; a word with no such segmentation, or of more than 100 characters, is one [UNK].

Ids equal the reference's for every character that its library's tables knew (Unicode 8). This module goes by the
interpreter's own tables, which differ for some 560 newer marks and punctuation signs that no vocabulary holds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edge_albert.errors import TokenizerError
from edge_albert.tokenization.pieces import Pieces, SpecialTokens
from edge_albert.tokenization.text_rules import bert_table, replace_surrogates, trace_bert
from edge_albert.tokenization.tokenizer_json import vocabulary_bytes

CONTINUED = "##"
MAX_WORD_LENGTH = 100  # characters; a longer word is [UNK], as in BERT
_CACHED_WORDS = 100_000
_WORD = re.compile("[^ ]+")


class WordPieceModel:
    """A vocab.txt and BERT's rules.

    `special_tokens` maps the roles pad, unk, cls, sep and (optional) mask to entries of the file. `tokens` has every
    entry in the order of the ids. Raises TokenizerError if the file cannot be read or lacks one of them.
    """

    kind = "wordpiece"

    def __init__(
        self,
        path: Path,
        special_tokens: Mapping[str, str],
        *,
        do_lower_case: bool = True,
        strip_accents: bool = True,
        tokenize_chinese_chars: bool = True,
    ) -> None:
        self.path = path
        self.options: dict[str, Any] = {
            "do_lower_case": do_lower_case, "strip_accents": strip_accents,
            "tokenize_chinese_chars": tokenize_chinese_chars,
        }  # fmt: skip
        self._table = bert_table(
            do_lower_case=do_lower_case, strip_accents=strip_accents, tokenize_chinese_chars=tokenize_chinese_chars
        )
        self.tokens = _read_vocabulary(path)
        self.special = SpecialTokens.find(self.tokens, special_tokens, path)
        forbidden = set(self.special.ids.values())
        self._ids = {token: i for i, token in enumerate(self.tokens) if token and i not in forbidden}
        self._cache: dict[str, list[tuple[int, int]]] = {}

    def tokenize(self, text: str) -> list[str]:
        """The pieces as entries of the vocabulary; a word that cannot be segmented is the unknown token."""
        return [self.tokens[i] for i in self.ids(text)]

    def ids(self, text: str) -> list[int]:
        """The ids alone: `split` without the work of finding places."""
        words = _WORD.findall(replace_surrogates(text).translate(self._table))
        return [i for word in words for i, _ in self._segment(word)]

    def split(self, text: str) -> Pieces:
        """Ids and places in `text`, without special tokens. Lone surrogates count as U+FFFD."""
        text = replace_surrogates(text)
        cleaned = text.translate(self._table)
        ids: list[int] = []
        stops: list[int] = []
        lengths: list[int] = []
        for word in _WORD.finditer(cleaned):
            stop = word.start()
            for i, length in self._segment(word[0]):
                stop += length
                ids.append(i)
                stops.append(stop)
                lengths.append(length)
        trace = trace_bert(text, cleaned, self._table)
        ends = np.array(stops, dtype=np.int64)
        begins = ends - np.array(lengths, dtype=np.int64)
        return Pieces(np.array(ids, dtype=np.int32), trace.starts[begins], trace.ends[ends - 1])

    def decode(self, tokens: list[str]) -> str:
        """Pieces as text again: words apart by one space, "##" joined to the piece before."""
        return " ".join(tokens).replace(f" {CONTINUED}", "")

    def _segment(self, word: str) -> list[tuple[int, int]]:
        """(id, length in characters) of each piece of a word; remembered, for most words come again."""
        if len(word) > MAX_WORD_LENGTH:
            return [(self.special.ids["unk"], len(word))]
        pieces = self._cache.get(word)
        if pieces is None:
            if len(self._cache) >= _CACHED_WORDS:
                self._cache.clear()
            pieces = self._cache[word] = self._longest_match(word)
        return pieces

    def _longest_match(self, word: str) -> list[tuple[int, int]]:
        pieces: list[tuple[int, int]] = []
        start = 0
        while start < len(word):
            prefix = CONTINUED if start else ""
            for end in range(len(word), start, -1):
                i = self._ids.get(prefix + word[start:end])
                if i is not None:
                    pieces.append((i, end - start))
                    start = end
                    break
            else:
                return [(self.special.ids["unk"], len(word))]
        return pieces


def _read_vocabulary(path: Path) -> list[str]:
    """One entry a line; the line number is the id."""
    try:
        lines = re.split("\r\n|\n|\r", vocabulary_bytes(path).decode("utf-8"))
    except OSError as error:
        raise TokenizerError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise TokenizerError(f"{path}: not UTF-8 text: fetch the file again") from None
    if lines[-1] == "":
        lines.pop()
    return [line.rstrip() for line in lines]
