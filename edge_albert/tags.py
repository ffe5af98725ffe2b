"""Entities from the tags of words, by seqeval's default rules (those of CoNLL's conlleval script).

Prefixes are B, I, E and S (BIO and IOBES). Sequences that break the scheme are read leniently: an I- that nothing of
its kind stands before begins an entity. A label without a prefix is a kind by itself, and equal neighbours are one
entity, which seqeval knows only for names that do not begin with one of its own letters. Training judges by these
entities, and the runtime answers with them; the app's TaggedWords.kt has the same rules.
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
