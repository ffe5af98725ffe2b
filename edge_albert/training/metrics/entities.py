"""Precision, recall and F1 of entities, by seqeval's default rules (those of CoNLL's conlleval script).

An entity counts when its kind and both its ends are right. Sequences that break the scheme are read leniently: an I-
that nothing of its kind stands before begins an entity. Prefixes are B, I, E and S (BIO and IOBES); a label without a
prefix is a kind by itself, and equal neighbours are one entity, which seqeval knows only for names that do not begin
with one of its own letters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Tags = Sequence[str]
Span = tuple[int, int, str]


def entities(tags: Tags) -> Iterator[Span]:
    """(first word, last word, kind) of every entity of a sentence."""
    start, running = 0, None  # the kind that may go on
    for i, tag in enumerate(tags):
        prefix, kind = split_tag(tag)
        begins = kind is not None and (prefix in ("B", "S") or kind != running)
        if running is not None and (begins or kind is None):
            yield start, i - 1, running
        if begins:
            start = i
        running = kind
        if kind is not None and prefix in ("E", "S"):
            yield start, i, kind
            running = None
    if running is not None:
        yield start, len(tags) - 1, running


def split_tag(tag: str) -> tuple[str, str | None]:
    """B-PER ► ("B", "PER"); PER ► ("", "PER"); O ► ("", None)"""
    prefix, dash, kind = tag.partition("-")
    if dash and prefix in ("B", "I", "E", "S"):
        return prefix, kind
    return "", None if tag == "O" else tag


def precision(gold: Sequence[Tags], predicted: Sequence[Tags]) -> float:
    """The share of predicted entities that are right; 0 where there are none."""
    right, _, said = _counts(gold, predicted)
    return right / said if said else 0.0


def recall(gold: Sequence[Tags], predicted: Sequence[Tags]) -> float:
    """The share of gold entities that were found; 0 where there are none."""
    right, there, _ = _counts(gold, predicted)
    return right / there if there else 0.0


def entity_f1(gold: Sequence[Tags], predicted: Sequence[Tags]) -> float:
    """The harmonic mean of both, over all sentences and kinds together."""
    right, there, said = _counts(gold, predicted)
    return 2 * right / (there + said) if there + said else 0.0


def tag_accuracy(gold: Sequence[Tags], predicted: Sequence[Tags]) -> float:
    """The share of words whose tag is right."""
    pairs = [(a, b) for tags, said in zip(gold, predicted, strict=True) for a, b in zip(tags, said, strict=True)]
    return sum(a == b for a, b in pairs) / len(pairs)


def _counts(gold: Sequence[Tags], predicted: Sequence[Tags]) -> tuple[int, int, int]:
    """How many entities are right, how many there are, and how many were predicted."""
    right = there = said = 0
    for one, other in zip(gold, predicted, strict=True):
        true, found = set(entities(one)), set(entities(other))
        right, there, said = right + len(true & found), there + len(true), said + len(found)
    return right, there, said
