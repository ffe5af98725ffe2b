"""benchmarks/results/exchange.py: phrases change places between whole sentences."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from results.exchange import exchanges, sentences

_FRAME = "{} film is {} and it never loses its way"
_SUBJECTS, _PRAISE = ("this", "that odd", "the new"), ("very good", "dull", "a quiet joy", "too long")
_ROWS = [_FRAME.format(s, p) for s, p in zip(_SUBJECTS, _PRAISE, strict=False)] + [*_SUBJECTS, *_PRAISE, "dull and it"]


def test_whole_sentences_and_the_rows_in_them() -> None:
    spans = sentences({tuple(row.split()) for row in _ROWS})
    assert {" ".join(words) for words in spans} == set(_ROWS[:3])
    words = tuple(_ROWS[1].split())
    assert [" ".join(words[i:j]) for i, j in spans[words]] == ["that odd", "dull", "dull and it"]


def test_phrases_come_from_the_same_places_of_other_sentences() -> None:
    made = exchanges(_ROWS, 6)
    assert made == exchanges(list(reversed(_ROWS)), 6)
    assert len(set(made)) == len(made) > 3
    assert not set(made) & set(_ROWS)
    for text in made:
        assert any(text.startswith(f"{subject} film is ") for subject in _SUBJECTS)
        assert any(phrase in text for phrase in _PRAISE[:3])


def test_few_rows_end_it_and_rows_without_sentences_give_nothing() -> None:
    assert 3 < len(exchanges(_ROWS, 10_000)) < 100
    assert exchanges(["good", "very good"], 5) == []
