"""What a vocabulary makes of a text, and what a model gets: `Pieces` without special tokens, `Encoding` with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_albert.errors import TokenizerError


@dataclass(frozen=True)
class SpecialTokens:
    """The tokens that are no part of any text, by role: pad, unk, cls, sep and, in most vocabularies, mask."""

    names: Mapping[str, str]
    ids: Mapping[str, int]

    @staticmethod
    def find(tokens: Sequence[str], names: Mapping[str, str], path: Path) -> SpecialTokens:
        """Look each name up among a vocabulary's tokens; TokenizerError lists those that `path` lacks (mask may be)."""
        places = {token: i for i, token in enumerate(tokens)}
        missing = [name for role, name in names.items() if name not in places and role != "mask"]
        if missing:
            raise TokenizerError(
                f"{path}: lacks the special token {', '.join(missing)}: not the tokenizer of an ALBERT"
            )
        found = {role: name for role, name in names.items() if name in places}
        return SpecialTokens(found, {role: places[name] for role, name in found.items()})


@dataclass(frozen=True)
class Pieces:
    """A text as vocabulary ids, all arrays (n,): piece i is `ids[i]` and stands for text[starts[i]:ends[i]].

    `starts` and `ends` never decrease. A piece may be empty (SentencePiece's lone "▁"), and two pieces may share a
    character that became several ("ﬁ").
    """

    ids: NDArray[np.int32]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, part: slice) -> Pieces:
        return Pieces(self.ids[part], self.starts[part], self.ends[part])

    def shifted(self, by: int) -> Pieces:
        """The same pieces in a text that has `by` more characters in front."""
        return Pieces(self.ids, self.starts + by, self.ends + by)

    @staticmethod
    def concatenate(parts: list[Pieces]) -> Pieces:
        """One after the other; at least one."""
        return Pieces(
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.starts for part in parts]),
            np.concatenate([part.ends for part in parts]),
        )


@dataclass(frozen=True)
class Encoding:
    """One input of the model, not padded; every list has one entry per token.

    input_ids            vocabulary ids, [CLS] and [SEP] included
    token_type_ids       0 for [CLS], the first text and its [SEP]; 1 for the second text and its [SEP]
    offsets              (start, end) in characters of the text the token comes from; (0, 0) for an added token
    sequence_ids         0 or 1: which text; None for an added token
    special_tokens_mask  1 for an added [CLS] or [SEP], else 0
    """

    input_ids: list[int]
    token_type_ids: list[int]
    offsets: list[tuple[int, int]]
    sequence_ids: list[int | None]
    special_tokens_mask: list[int]

    def __len__(self) -> int:
        return len(self.input_ids)


def build_encoding(first: Pieces, second: Pieces | None, *, cls_id: int, sep_id: int) -> Encoding:
    """[CLS] first [SEP], or [CLS] first [SEP] second [SEP] (BERT's and ALBERT's template)."""
    encoding = Encoding([cls_id], [0], [(0, 0)], [None], [1])
    for number, pieces in enumerate([first] if second is None else [first, second]):
        encoding.input_ids.extend([*pieces.ids.tolist(), sep_id])
        encoding.token_type_ids.extend([number] * (len(pieces) + 1))
        encoding.offsets.extend([*zip(pieces.starts.tolist(), pieces.ends.tolist(), strict=True), (0, 0)])
        encoding.sequence_ids.extend([*[number] * len(pieces), None])
        encoding.special_tokens_mask.extend([*[0] * len(pieces), 1])
    return encoding


# -- making a text fit -------------------------------------------------------------------------------------------------

TRUNCATIONS = ("longest_first", "only_first", "only_second", "none")


def kept_lengths(first: int, second: int | None, room: int | None, truncation: str) -> tuple[int, int]:
    """How many pieces of each text stay when both together may have `room` (None: any number).

    The strategies are those of transformers, cut at the end; "longest_first" splits the room as the tokenizers library
    does: evenly when both texts exceed half of it, the odd one to the longer. Raises TokenizerError when the text that
    may be cut is too short to make room.
    """
    if truncation not in TRUNCATIONS:
        raise TokenizerError(f"truncation {truncation!r} is not one of {', '.join(TRUNCATIONS)}")
    other = second or 0
    if truncation == "none" or room is None or first + other <= room:
        return first, other
    if truncation == "longest_first":
        return _longest_first(first, second, room)
    cut = "second" if truncation == "only_second" else "first"
    if cut == "second" and second is None:
        raise TokenizerError("truncation 'only_second' needs a second text")
    fixed = first if cut == "second" else other
    if room - fixed < 1:
        raise TokenizerError(
            f"max_length leaves no room for the {cut} text ({fixed} tokens of the other, room for {room}): "
            "shorten the other text or use truncation 'longest_first'"
        )
    return (first, room - fixed) if cut == "second" else (room - fixed, other)


def _longest_first(first: int, second: int | None, room: int) -> tuple[int, int]:
    if second is None:
        return room, 0
    short, long = sorted((first, second))
    short = min(short, room // 2)
    long = min(long, room - short)
    return (short, long) if first <= second else (long, short)


def window_ranges(length: int, room: int, stride: int) -> list[tuple[int, int]]:
    """(start, end) of windows of at most `room` pieces, each sharing `stride` with the one before, up to `length`."""
    step = room - stride
    if room < 1 or stride < 0 or step < 1:
        raise TokenizerError(
            f"stride {stride} must be at least 0 and smaller than the window's {max(room, 0)} tokens of text"
        )
    starts = range(0, max(length - stride, 1), step)
    return [(start, min(start + room, length)) for start in starts]
