"""Early exit: an input leaves the loop once its answer is settled, instead of after all N iterations.

An ALBERT of N iterations computes as much as a BERT of N layers; leaving early is what makes it faster. A head answers
after every iteration (edge_albert/training/finetuning/early_exit.py trains it), and a criterion says whether that will
do:

    confidence   the largest softmax probability is at least the threshold (Schwartz et al. 2020, arXiv 2004.07453)
    entropy      the softmax's entropy, in nats, is at most the threshold (BranchyNet, Teerapittayanon et al. 2016,
                 arXiv 1709.01686; DeeBERT, Xin et al. 2020, arXiv 2004.12993)
    patience     the answer has stayed the same that many times running, so with patience 1 after two equal answers
                 (PABEE, Zhou et al. 2020, arXiv 2006.04152)
    change       a regression's value has moved by at most the threshold since the iteration before (PABEE's form for
                 regression, with a patience of 1)

A sentence of token labels leaves as a whole, when its least certain token may (SENTEE, Li et al. 2021, arXiv
2105.13878); [CLS] and [SEP] have no label to be certain of, and do not count.

This is the definition, in NumPy: graphs (converters/exit_graph.py) are held against it, thresholds are chosen with it
(calibration/exits.py), the runtime checks thresholds with it. Iterations are numbered from 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_albert.config import AlbertConfig
from edge_albert.errors import BundleError, EdgeAlbertError

THRESHOLD, DEPTH, ITERATIONS = "exit_threshold", "max_depth", "iterations"  # what an exported graph calls them
NEVER = "never"  # as a threshold: no input leaves early

CANNOT_EXIT = {
    "question-answering": "an answer is the best of all spans and windows, and scores of different depths do not "
    "compare",
    "multiple-choice": "the options are compared with each other, and each would leave at a depth of its own",
    "sentence-embedding": "vectors are compared with each other, and those of different depths do not compare",
}


# -- the papers' measures ----------------------------------------------------------------------------------------------


def confidence(logits: np.ndarray) -> np.ndarray:
    """The largest probability of softmax(logits): (…, C) ► (…)."""
    return _softmax(logits).max(axis=-1)


def entropy(logits: np.ndarray) -> np.ndarray:
    """-Σ p·ln p of p = softmax(logits), in nats, from 0 to ln C: (…, C) ► (…)."""
    p = _softmax(logits)
    return -(p * np.log(np.maximum(p, np.finfo(np.float32).tiny))).sum(axis=-1)


def patience(same: np.ndarray) -> np.ndarray:
    """How many times running the answer has stayed. same (N, B): is iteration t's answer that of t - 1? ► (N, B)."""
    counts = np.zeros(same.shape, np.int64)
    for t in range(1, len(same)):
        counts[t] = np.where(same[t], counts[t - 1] + 1, 0)
    return counts


def change(values: np.ndarray) -> np.ndarray:
    """How far a regression has moved since the iteration before: (N, B) ► (N, B), the first infinite."""
    moved = np.abs(np.diff(values, axis=0))
    return np.concatenate([np.full_like(values[:1], np.inf), moved])


def _softmax(logits: np.ndarray) -> np.ndarray:
    exp = np.exp(np.asarray(logits, np.float64) - np.max(logits, axis=-1, keepdims=True))
    return exp / exp.sum(axis=-1, keepdims=True)


# -- criteria ----------------------------------------------------------------------------------------------------------

Score = Callable[[np.ndarray, np.ndarray | None], np.ndarray]


@dataclass(frozen=True)
class Criterion:
    """score: logits after every iteration, (N, B, C), and None ► (N, B); for token labels (N, B, S, C) and `counted`
    (B, S). An input leaves where its score is at least the threshold (`at_least`), or else at most.

    limits: number of labels, of iterations ► the smallest and the largest threshold that makes sense.
    """

    name: str
    score: Score
    at_least: bool
    limits: Callable[[int, int], tuple[float, float]]
    unit: str

    @property
    def never(self) -> float:
        """The threshold that no score reaches."""
        return math.inf if self.at_least else -math.inf

    def check(self, threshold: float, labels: int, iterations: int, option: str = "exit_threshold") -> float:
        """The threshold, as a float. EdgeAlbertError, naming the option, when it is out of range."""
        low, high = self.limits(labels, iterations)
        if not low <= threshold <= high or (self.name == "patience" and threshold != int(threshold)):
            down = math.floor(1000 * high) / 1000  # what is named must be taken
            raise EdgeAlbertError(
                f"{option} {threshold:g}: the {self.name} criterion takes {self.unit} from {low:g} to {down:g}"
            )
        return float(threshold)


def _least_certain(measure: Callable[[np.ndarray], np.ndarray], at_least: bool) -> Score:
    """The measure of a text, or of the token that is least certain by it."""

    def score(logits: np.ndarray, counted: np.ndarray | None) -> np.ndarray:
        values = measure(logits)
        if counted is None:
            return values
        if at_least:
            return np.where(counted, values, np.inf).min(axis=-1)
        return np.where(counted, values, -np.inf).max(axis=-1)

    return score


def _unchanged(logits: np.ndarray, counted: np.ndarray | None) -> np.ndarray:
    answers = logits.argmax(axis=-1)  # (N, B) or (N, B, S)
    same = np.concatenate([np.zeros_like(answers[:1], bool), answers[1:] == answers[:-1]])
    return patience(same if counted is None else (same | ~counted).all(axis=-1))


CRITERIA: dict[str, Criterion] = {
    row.name: row
    for row in (
        Criterion("confidence", _least_certain(confidence, True), True, lambda c, n: (0.0, 1.0), "a probability"),
        Criterion("entropy", _least_certain(entropy, False), False, lambda c, n: (0.0, math.log(c)), "nats"),
        Criterion("patience", _unchanged, True, lambda c, n: (1, max(1, n - 1)), "a whole number of equal answers"),
        Criterion("change", lambda y, counted: change(y[..., 0]), False, lambda c, n: (0.0, 1e30), "a difference"),
    )
}
_BY_TASK = {
    "text-classification": ("confidence", "entropy", "patience"),
    "token-classification": ("confidence", "entropy", "patience"),
    "text-regression": ("change",),
}


def criteria_for(task: str) -> tuple[str, ...]:
    """The criteria that fit the task. EdgeAlbertError with the reason for a task whose inputs cannot leave early."""
    if task in CANNOT_EXIT:
        raise EdgeAlbertError(f"--early-exit: {task} cannot leave early: {CANNOT_EXIT[task]}")
    return _BY_TASK[task]


def check_shape(config: AlbertConfig) -> None:
    """EdgeAlbertError for a model of one iteration, or of several groups of layers: nothing can leave early."""
    if config.num_hidden_layers == 1 or config.num_hidden_groups > 1:
        raise EdgeAlbertError(
            f"--early-exit: needs one shared layer applied several times; this model has {config.num_hidden_groups} "
            f"group{'s' * (config.num_hidden_groups > 1)} over {config.num_hidden_layers} "
            f"iteration{'s' * (config.num_hidden_layers > 1)}"
        )


def counted_tokens(attention_mask: np.ndarray) -> np.ndarray:
    """Which tokens have a label: all but [CLS], [SEP] and padding. (B, S), padded on the right ► (B, S) bool."""
    place = np.cumsum(attention_mask, axis=1)
    return (place > 1) & (place < attention_mask.sum(axis=1, keepdims=True))


def exit_iterations(
    logits: np.ndarray,
    criterion: Criterion,
    threshold: float,
    *,
    depth: int | None = None,
    counted: np.ndarray | None = None,
) -> np.ndarray:
    """After which iteration each input leaves, (B,) from 1 to `depth` (all N by default). logits: (N, B, …, C)."""
    scores = criterion.score(logits, counted)  # (N, B)
    leaves = scores >= threshold if criterion.at_least else scores <= threshold
    leaves[(len(leaves) if depth is None else depth) - 1 :] = True
    return leaves.argmax(axis=0) + 1


def exit_outputs(logits: np.ndarray, iterations: np.ndarray) -> np.ndarray:
    """Every input's answer, frozen where it left: (N, B, …, C), (B,) ► (B, …, C)."""
    return logits[iterations - 1, np.arange(logits.shape[1])]


# -- a bundle's exits --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exits:
    """How the inputs of an exported model leave: by which criterion and threshold, of how many iterations and labels.

    Threshold and depth are inputs of the graph; these are what it takes when nothing else is said.
    """

    criterion: str
    threshold: float
    iterations: int
    labels: int

    @classmethod
    def from_json(cls, said: Any, source: str) -> Exits:
        """As `dataclasses.asdict` wrote them. BundleError, naming `source`, when they are damaged."""
        try:
            exits = cls(said["criterion"], said["threshold"], said["iterations"], said["labels"])
            exits.feeds()
        except (KeyError, TypeError, EdgeAlbertError):
            raise BundleError(f"{source}: early_exit is damaged: copy or export the bundle again") from None
        return exits

    def feeds(self, threshold: float | str | None = None, depth: int | None = None) -> dict[str, np.ndarray]:
        """The graph's inputs for a threshold (NEVER: no early exit) and a depth of at most that many iterations.

        EdgeAlbertError for values out of range.
        """
        rule = CRITERIA[self.criterion]
        if threshold == NEVER:
            value = math.copysign(np.finfo(np.float32).max, rule.never)
        else:
            value = rule.check(self._number(threshold), self.labels, self.iterations)
        if depth is not None and not (isinstance(depth, int) and 1 <= depth <= self.iterations):
            raise EdgeAlbertError(f"depth {depth}: the model has 1 to {self.iterations} iterations")
        return {THRESHOLD: np.array(value, np.float32), DEPTH: np.array(depth or self.iterations, np.int64)}

    def _number(self, threshold: float | str | None) -> float:
        if threshold is None:
            return self.threshold
        if isinstance(threshold, str):
            raise EdgeAlbertError(f"exit_threshold {threshold!r}: a number is needed, or {NEVER!r}")
        return threshold
