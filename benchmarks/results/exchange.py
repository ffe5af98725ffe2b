"""New sentences of a task's own kind: whole training sentences with phrases exchanged for those of other sentences.

SST-2's rows are the phrases of some six thousand sentences, so a student sees few whole ones, and what "but" or "never"
does to a sentence is learnt from whole ones. A phrase gives way to one that stood, in another sentence, between the
same two words, or where fewer than eight did, after the same word. The teacher labels what comes of it. Nothing here
looks at a label, or at a dev or test set.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Hashable, Sequence

Words = tuple[str, ...]
SHORTEST, LONGEST = 8, 45  # words of a sentence that is changed, and of what comes of it
_CHOICES = 8  # phrases between the same two words, with fewer of which the word before is enough
_TRIES = 10
_GIVE_UP = 50  # draws for each sentence wanted


def exchanges(rows: Sequence[str], count: int) -> list[str]:
    """At most `count` sentences that no row is, none twice, the same at every call."""
    known = {tuple(row.split()) for row in rows}
    spans = sentences(known)
    if not spans:
        return []
    places = _places(spans)
    chance, whole, made = random.Random(1), list(spans), dict[Words, None]()
    for _ in range(count * _GIVE_UP):
        if len(made) == count:
            break
        sentence = whole[chance.randrange(len(whole))]
        changed = _changed(sentence, spans[sentence], places, chance)
        if changed and changed not in known and len(changed) <= LONGEST:
            made.setdefault(changed)
    return [" ".join(words) for words in made]


def sentences(known: set[Words]) -> dict[Words, list[tuple[int, int]]]:
    """The rows that lie in no longer row, the longest first, each with where other rows lie in it: (from, to)."""
    inside: set[Words] = set()
    spans: dict[Words, list[tuple[int, int]]] = {}
    for words in sorted(known, key=lambda words: (-len(words), words)):
        size = len(words)
        if words in inside or size < SHORTEST:
            continue
        parts = ((i, j) for i in range(size) for j in range(i + 1, size + 1) if j - i < size)
        spans[words] = [(i, j) for i, j in parts if words[i:j] in known]
        inside.update(words[i:j] for i, j in spans[words])
    return spans


def _around(words: Words, i: int, j: int) -> tuple[str, str]:
    """The words before and after a phrase; empty at the sentence's ends."""
    return (words[i - 1] if i else "", words[j] if j < len(words) else "")


def _places(spans: dict[Words, list[tuple[int, int]]]) -> dict[Hashable, list[Words]]:
    """Which phrases stood between two words, and which after one."""
    found: dict[Hashable, set[Words]] = defaultdict(set)
    for words, parts in spans.items():
        for i, j in parts:
            around = _around(words, i, j)
            found[around].add(words[i:j])
            found[around[0]].add(words[i:j])
    return {place: sorted(phrases) for place, phrases in found.items()}


def _changed(
    words: Words, parts: list[tuple[int, int]], places: dict[Hashable, list[Words]], chance: random.Random
) -> Words:
    """The sentence with one to three phrases exchanged, which do not overlap; empty where none could be."""
    small = [(i, j) for i, j in parts if j - i <= max(2, 0.7 * len(words))]
    chance.shuffle(small)
    wanted, taken = chance.choice((1, 1, 2, 2, 3)), dict[tuple[int, int], Words]()
    for i, j in small:
        if len(taken) == wanted:
            break
        if any(i < end and begin < j for begin, end in taken):
            continue
        around = _around(words, i, j)
        phrases = places[around]
        if len(phrases) < _CHOICES:
            phrases = places[around[0]]
        drawn = (chance.choice(phrases) for _ in range(_TRIES))
        fits = (p for p in drawn if p != words[i:j] and abs(len(p) - (j - i)) <= max(2, (j - i) // 2))
        other = next(fits, None)
        if other:
            taken[i, j] = other
    changed = list(words)
    for (i, j), other in sorted(taken.items(), reverse=True):
        changed[i:j] = other
    return tuple(changed) if taken else ()
