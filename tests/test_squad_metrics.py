"""SQuAD's scorer against figures worked by hand, the official script where it is there, and brute force."""

from __future__ import annotations

import random

import pytest

from edge_albert.training.metrics.squad import (
    Prediction,
    best_of,
    best_threshold,
    exact_match,
    normalize_answer,
    scores,
    word_f1,
)


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("The Eiffel Tower.", "eiffel tower"),
        ("an  apple,\ta  day", "apple day"),
        ("theatre and Anna", "theatre and anna"),  # articles are whole words
        ("U.S.", "us"),  # punctuation goes without leaving a space
        ("the-end", "theend"),  # and before the articles
        ("A", ""),
        ("don’t — “so”", "don’t — “so”"),  # only ASCII punctuation
        ("9,500", "9500"),
        ("THE the The", ""),
    ],
)
def test_normalisation(text: str, normalised: str) -> None:
    assert normalize_answer(text) == normalised


@pytest.mark.parametrize(
    ("gold", "predicted", "exact", "f1"),
    [
        ("the Normans", "Normans", 1, 1),
        ("in the 10th and 11th centuries", "10th and 11th centuries", 0, 8 / 9),  # precision 4/4, recall 4/5
        ("Denmark, Iceland and Norway", "Denmark", 0, 2 / 5),  # precision 1, recall 1/4
        ("to be or not to be", "to be to", 0, 2 / 3),  # words count as often as both have them: 3 of 3, 3 of 6
        ("Paris", "London", 0, 0),
        ("", "", 1, 1),
        ("", "Paris", 0, 0),
        ("the", "a", 1, 1),  # nothing is left of either
    ],
)
def test_one_answer(gold: str, predicted: str, exact: float, f1: float) -> None:
    assert exact_match(gold, predicted) == exact
    assert word_f1(gold, predicted) == pytest.approx(f1)


def test_the_best_of_several_answers_counts() -> None:
    answers = ("10th and 11th centuries", "in the 10th and 11th centuries", "the 10th century")
    assert best_of("exact", answers, "10th century") == 1
    assert best_of("f1", answers, "11th century") == pytest.approx(0.5)
    assert best_of("f1", (), "") == 1  # no answer, and none given
    assert best_of("f1", (), "Paris") == 0
    assert best_of("exact", ("the", "Paris"), "a") == 0  # an answer of which nothing is left is none


def test_threshold_by_hand() -> None:
    answers = [("Paris",), (), ("London",), ()]
    predicted = [Prediction("Paris", -3), Prediction("Rome", -1), Prediction("London", 0.5), Prediction("Oslo", 2)]
    # Answering up to -3: 1 right, and 2 rightly silent: 3 of 4. Up to 0.5: Paris, London, Oslo's silence: 3 of 4 too.
    assert best_threshold(answers, predicted) == -2  # half way to the next question
    assert scores("f1", answers, predicted, -2).tolist() == [1, 1, 0, 1]
    assert scores("exact", answers, predicted, 0.5).tolist() == [1, 0, 1, 1]
    assert scores("exact", answers, predicted, None).tolist() == [1, 0, 1, 0]


def test_threshold_when_silence_is_best() -> None:
    predicted = [Prediction("Rome", -7.5), Prediction("Oslo", -6)]
    threshold = best_threshold([(), ()], predicted)
    assert scores("f1", [(), ()], predicted, threshold).tolist() == [1, 1]


def test_equal_scores_fall_on_one_side() -> None:
    answers, predicted = [("a1",), (), ()], [Prediction("a1", 1.0), Prediction("x", 1.0), Prediction("y", 1.0)]
    threshold = best_threshold(answers, predicted)
    assert threshold < 1  # answering one of them means answering all: 1 of 3, silence has 2 of 3
    assert scores("f1", answers, predicted, threshold).sum() == 2


WORDS = ("the", "cat", "dog", "U.S.", "9,5", "theatre", "Ünder", "an", "—")


def made_up(seed: int) -> tuple[list[list[str]], list[Prediction]]:
    draw = random.Random(seed)

    def text() -> str:
        return " ".join(["fox", *(draw.choice(WORDS) for _ in range(draw.randint(0, 5)))])

    count = draw.randint(2, 30)
    answers = [[text() for _ in range(draw.randint(1, 3))] if draw.random() < 0.6 else [] for _ in range(count)]
    return answers, [Prediction(text(), round(draw.gauss(0, 1), 1)) for _ in range(count)]


@pytest.mark.parametrize("seed", range(30))
def test_no_threshold_is_better(seed: int) -> None:
    answers, predicted = made_up(seed)
    found = scores("f1", answers, predicted, best_threshold(answers, predicted)).mean()
    values = [p.null_score for p in predicted]
    tried = [scores("f1", answers, predicted, t).mean() for t in [*values, min(values) - 1]]
    assert found == pytest.approx(max(tried))


def test_the_official_script() -> None:
    official = pytest.importorskip(
        "transformers.data.metrics.squad_metrics", reason="transformers has the official script up to version 4"
    )
    for seed in range(30):
        answers, predicted = made_up(seed)
        predicted = [Prediction(p.text, p.null_score + i * 1e-9) for i, p in enumerate(predicted)]  # it splits ties
        for gold, prediction in zip(answers, predicted, strict=True):
            for answer in gold:
                assert exact_match(answer, prediction.text) == official.compute_exact(answer, prediction.text)
                assert word_f1(answer, prediction.text) == pytest.approx(official.compute_f1(answer, prediction.text))
        texts, null = ({i: getattr(p, name) for i, p in enumerate(predicted)} for name in ("text", "null_score"))
        has_answer = {i: bool(gold) for i, gold in enumerate(answers)}
        raw = dict(enumerate(scores("f1", answers, predicted, None)))
        best, _ = official.find_best_thresh(texts, raw, null, has_answer)
        found = scores("f1", answers, predicted, best_threshold(answers, predicted))
        assert 100 * found.mean() == pytest.approx(best)
        applied = official.apply_no_ans_threshold(raw, null, has_answer, 0.3)
        assert scores("f1", answers, predicted, 0.3).tolist() == pytest.approx(list(applied.values()))
