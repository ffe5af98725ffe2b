"""Entity F1 against seqeval, and against entities read by eye."""

from __future__ import annotations

import random
import warnings

import pytest

from edge_albert.tags import entities
from edge_albert.training.metrics.entities import entity_f1, precision, recall, tag_accuracy


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("B-PER I-PER O B-LOC", [(0, 1, "PER"), (3, 3, "LOC")]),
        ("B-PER B-PER", [(0, 0, "PER"), (1, 1, "PER")]),
        ("I-PER I-PER I-LOC", [(0, 1, "PER"), (2, 2, "LOC")]),  # lenient: I- without B- begins one
        ("O O", []),
        ("S-PER E-PER B-LOC I-LOC E-LOC I-LOC", [(0, 0, "PER"), (1, 1, "PER"), (2, 4, "LOC"), (5, 5, "LOC")]),
        ("ORG ORG O ORG DATE", [(0, 1, "ORG"), (3, 3, "ORG"), (4, 4, "DATE")]),  # no prefixes
        ("B-A-B I-A-B", [(0, 1, "A-B")]),
    ],
)
def test_entities(tags: str, found: list[tuple[int, int, str]]) -> None:
    assert list(entities(tags.split())) == found


def test_figures_by_hand() -> None:
    gold = [["B-PER", "I-PER", "O"], ["B-LOC", "O", "B-LOC"]]
    said = [["B-PER", "O", "O"], ["B-LOC", "O", "B-LOC"]]  # one end is wrong: 2 of 3 both ways
    assert (precision(gold, said), recall(gold, said)) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert entity_f1(gold, said) == pytest.approx(2 / 3)
    assert tag_accuracy(gold, said) == pytest.approx(5 / 6)
    assert entity_f1([["O"]], [["O"]]) == 0


def test_as_seqeval() -> None:
    seqeval = pytest.importorskip("seqeval.metrics", reason="seqeval is not installed: pip install seqeval")
    draw = random.Random(1)
    tags = ["O"] + [f"{prefix}-{kind}" for prefix in "BIES" for kind in ("PER", "LOC", "A-B")]
    for _ in range(300):
        gold = [[draw.choice(tags) for _ in range(draw.randint(1, 9))] for _ in range(4)]
        said = [[tag if draw.random() < 0.5 else draw.choice(tags) for tag in one] for one in gold]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # seqeval speaks up where a figure is undefined
            assert entity_f1(gold, said) == pytest.approx(seqeval.f1_score(gold, said))
            assert precision(gold, said) == pytest.approx(seqeval.precision_score(gold, said))
            assert recall(gold, said) == pytest.approx(seqeval.recall_score(gold, said))
        assert tag_accuracy(gold, said) == pytest.approx(seqeval.accuracy_score(gold, said))
