"""GLUE's metrics, in NumPy: each takes what is right and what was predicted, both (N,), and gives one number.

Accuracy, F1 and Matthews take label numbers; Pearson and Spearman take real values. Where a figure is undefined (no
positive anywhere, one side constant) it is 0, as in scikit-learn, so that a training run can always compare two
epochs. The definitions are those of GLUE (Wang et al., 2019, arXiv 1804.07461); the tests hold them against
scikit-learn and scipy.
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def accuracy(gold: Array, predicted: Array) -> float:
    """The share of labels that are right."""
    return float(np.mean(gold == predicted))


def f1(gold: Array, predicted: Array) -> float:
    """F1 of label 1: of two labels, GLUE's positive one (MRPC, QQP)."""
    return label_f1(gold, predicted, 1)


def macro_f1(gold: Array, predicted: Array) -> float:
    """The plain mean of the F1 of every label that occurs."""
    return float(np.mean([label_f1(gold, predicted, label) for label in np.union1d(gold, predicted)]))


def label_f1(gold: Array, predicted: Array, label: int) -> float:
    """Harmonic mean of one label's precision and recall."""
    hits = np.sum((gold == label) & (predicted == label))
    either = np.sum(gold == label) + np.sum(predicted == label)
    return float(2 * hits / either) if either else 0.0


def matthews(gold: Array, predicted: Array) -> float:
    """Matthews' correlation of two labellings, for any number of labels (Gorodkin 2004)."""
    _, numbers = np.unique(np.concatenate([gold, predicted]), return_inverse=True)
    one_hot = np.eye(numbers.max() + 1)[numbers]  # (2N, labels)
    return _correlation(one_hot[: len(gold)], one_hot[len(gold) :])


def pearson(gold: Array, predicted: Array) -> float:
    """Linear correlation of two real-valued columns."""
    return _correlation(gold[:, None], predicted[:, None])


def spearman(gold: Array, predicted: Array) -> float:
    """Pearson's correlation of the ranks; equal values share the mean of their ranks."""
    return pearson(_ranks(gold), _ranks(predicted))


def _correlation(a: Array, b: Array) -> float:
    """Covariance over the root of both variances, columns summed: (N, K), (N, K) ► a number."""
    a, b = (x.astype(np.float64) - x.mean(axis=0, dtype=np.float64) for x in (a, b))
    spread = np.sqrt(np.sum(a * a) * np.sum(b * b))
    return float(np.sum(a * b) / spread) if spread > 0 else 0.0


def _ranks(values: Array) -> Array:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)  # the rank, from 1, of the last value of each kind
    return (last - (count - 1) / 2)[place]
