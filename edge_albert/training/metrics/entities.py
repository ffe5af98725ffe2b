"""Precision, recall and F1 of entities (edge_albert/tags.py): one counts when its kind and both its ends are right."""

from __future__ import annotations

from collections.abc import Sequence

from edge_albert.tags import Tags, entities


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
