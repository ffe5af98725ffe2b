"""SQuAD's exact match and F1, and the threshold for "no answer" that is best on a development set.

The rules are those of the official evaluation scripts, evaluate-v1.1 (Rajpurkar et al. 2016) and evaluate-v2.0
(Rajpurkar et al. 2018): answers are compared in lower case, without ASCII punctuation, without the words a, an and the,
and with single spaces; F1 counts common words; of several gold answers the best counts; a question without an answer is
right when nothing was predicted. Figures here are shares of 1 where the scripts print per cent.

The threshold follows the script's `find_best_thresh`, whose F1 it reaches, with three changes. It lies half way between
the last question that is answered and the first that is not, where the script gives the score of the former: it is kept
for texts yet to come. Questions of equal scores fall on one side together, as the rule that applies the threshold has
it. And where it is best to answer nothing it lies below every score, where the script gives 0, which means that for
probabilities only.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class Prediction:
    """The best answer's text, and by how much the score of "no answer" exceeds that answer's."""

    text: str
    null_score: float


@lru_cache(maxsize=1 << 16)
def normalize_answer(text: str) -> str:
    """Lower case, no punctuation, no articles, single spaces; in this order."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def exact_match(gold: str, predicted: str) -> float:
    """1 when both are the same once normalised, else 0."""
    return float(normalize_answer(gold) == normalize_answer(predicted))


def word_f1(gold: str, predicted: str) -> float:
    """Harmonic mean of precision and recall of the words; where one side has none, whether both have none."""
    gold_words, words = normalize_answer(gold).split(), normalize_answer(predicted).split()
    if not gold_words or not words:
        return float(gold_words == words)
    common = sum((Counter(gold_words) & Counter(words)).values())
    return 2 * common / (len(gold_words) + len(words))


def best_of(measure: str, answers: Sequence[str], predicted: str) -> float:
    """`measure` ("exact" or "f1") against the best of the gold answers; none, or only empty ones, stand for ""."""
    compare = {"exact": exact_match, "f1": word_f1}[measure]
    return max(compare(gold, predicted) for gold in [a for a in answers if normalize_answer(a)] or [""])


def best_threshold(answers: Sequence[Sequence[str]], predicted: Sequence[Prediction]) -> float:
    """The null score above which giving no answer makes the mean F1 highest.

    answers: the gold answers of each question, empty where it has none.
    """
    null_scores = np.array([p.null_score for p in predicted])
    order = np.argsort(null_scores, kind="stable")
    # What answering changes against giving no answer, which is right where there is none.
    gain = [best_of("f1", gold, p.text) - (0.0 if gold else 1.0) for gold, p in zip(answers, predicted, strict=True)]
    total = np.cumsum(np.array(gain)[order])  # when all questions up to here are answered
    ordered = null_scores[order]
    last_of_equals = np.append(ordered[1:] != ordered[:-1], True)
    best = int(np.argmax(np.where(last_of_equals, total, -np.inf)))
    if total[best] <= 0:
        return float(ordered[0]) - 1
    return float(ordered[best : best + 2].mean())  # at the last question, its own score


def scores(
    measure: str, answers: Sequence[Sequence[str]], predicted: Sequence[Prediction], threshold: float | None
) -> np.ndarray:
    """(N,) "exact" or "f1" of every question; null scores above `threshold` mean no answer (None: always answer)."""
    found = []
    for gold, prediction in zip(answers, predicted, strict=True):
        silent = threshold is not None and prediction.null_score > threshold
        found.append(float(not gold) if silent else best_of(measure, gold, prediction.text))
    return np.array(found)
