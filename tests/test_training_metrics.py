"""GLUE's metrics against scikit-learn and scipy."""

from __future__ import annotations

import numpy as np
import pytest

from edge_albert.training.metrics import glue

sklearn_metrics = pytest.importorskip("sklearn.metrics")
stats = pytest.importorskip("scipy.stats")
RANDOM = np.random.default_rng(0)


@pytest.mark.filterwarnings("ignore:A single label was found")
@pytest.mark.parametrize("labels", [2, 3, 7])
@pytest.mark.parametrize("size", [1, 2, 5, 400])
def test_labels_against_scikit_learn(labels: int, size: int) -> None:
    for _ in range(5):
        gold, other = RANDOM.integers(0, labels, (2, size))
        predicted = np.where(RANDOM.random(size) < 0.6, gold, other)
        assert glue.accuracy(gold, predicted) == pytest.approx(sklearn_metrics.accuracy_score(gold, predicted))
        macro = sklearn_metrics.f1_score(gold, predicted, average="macro", zero_division=0)
        assert glue.macro_f1(gold, predicted) == pytest.approx(macro)
        assert glue.matthews(gold, predicted) == pytest.approx(sklearn_metrics.matthews_corrcoef(gold, predicted))
        for label in range(labels):
            single = sklearn_metrics.f1_score(gold == label, predicted == label, zero_division=0)
            assert glue.label_f1(gold, predicted, label) == pytest.approx(single)
        assert glue.f1(gold, predicted) == glue.label_f1(gold, predicted, 1)


@pytest.mark.parametrize("ties", [False, True])
def test_correlations_against_scipy(ties: bool) -> None:
    for size in (3, 10, 500):
        gold = RANDOM.normal(size=size)
        predicted = gold + RANDOM.normal(size=size)
        if ties:  # STS-B's scores, in steps of 0.2
            gold, predicted = np.round(gold, 1), np.round(predicted)
            gold[0] = gold[1] + 1
            predicted[0] = predicted[1] + 1
        single, double = gold.astype(np.float32), predicted.astype(np.float32)
        assert glue.pearson(single, double) == pytest.approx(stats.pearsonr(gold, predicted)[0], abs=1e-6)
        assert glue.spearman(single, double) == pytest.approx(stats.spearmanr(gold, predicted)[0], abs=1e-6)


def test_large_offset_costs_no_precision() -> None:
    gold = RANDOM.normal(size=100)
    assert glue.pearson(gold + 1e6, gold) == pytest.approx(stats.pearsonr(gold + 1e6, gold)[0], abs=1e-9)
    assert glue.pearson(gold, -2 * gold) == pytest.approx(-1)


@pytest.mark.parametrize("metric", [glue.matthews, glue.pearson, glue.spearman])
def test_undefined_is_zero(metric: object) -> None:
    constant, other = np.ones(4), np.array([0.0, 1, 1, 0])
    assert metric(constant, other) == 0  # type: ignore[operator]
    assert metric(other, constant) == 0  # type: ignore[operator]


def test_f1_without_a_positive_is_zero() -> None:
    assert glue.f1(np.zeros(3), np.zeros(3)) == 0
