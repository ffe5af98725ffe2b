"""Answers of one row per text: classification, regression, multiple choice, sentence embedding.

A text that is too long is an error, unless the caller asks for one of two things. `truncate` cuts it off. `windows`
reads it in overlapping windows and averages what they say, each window weighing as many as it has tokens: the
probabilities of a classification, the value of a regression, the logit of a choice, the vector of an embedding (which
is brought to unit length again). A model was trained on whole texts, so that an average is an approximation; the answer
says how many windows it stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from edge_albert.errors import DataError
from edge_albert.runtime.session import Depth, Output, Session
from edge_albert.tokenizer import Encoding


@dataclass(frozen=True)
class Label:
    """A class and its probability (softmax over the classes); windows: how many the text was read in.

    iterations: how many it took, of the window that took most; None for a model without early exit.
    """

    label: str
    score: float
    windows: int = 1
    iterations: int | None = None


@dataclass(frozen=True)
class Score:
    """A regression's value, on the scale of the training data; windows, iterations: as for a Label."""

    score: float
    windows: int = 1
    iterations: int | None = None


@dataclass(frozen=True)
class Choice:
    """The chosen text of a multiple-choice question, its index among the choices, and its probability.

    windows: how many the prompt was read in, for the choice that needed most.
    """

    text: str
    index: int
    score: float
    windows: int = 1


def softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis, in float64."""
    exp = np.exp(np.asarray(logits, np.float64) - np.max(logits, axis=-1, keepdims=True))
    return exp / exp.sum(axis=-1, keepdims=True)


@dataclass(frozen=True)
class _Text:
    """What a text came to: the average of its windows' rows, how many those were, the most iterations of one."""

    row: np.ndarray
    windows: int
    iterations: int | None


def _read(
    session: Session,
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    *,
    truncate: bool,
    windows: bool,
    each: Callable[[np.ndarray], np.ndarray] = np.asarray,
    depth: Depth | None = None,
) -> list[_Text]:
    """Every text in turn. each: applied to a window's row before averaging."""
    if pairs is not None and len(pairs) != len(texts):
        raise DataError(f"{len(texts)} texts and {len(pairs)} pairs: each text needs its second part")
    if truncate and windows:
        raise DataError("truncate and windows exclude each other: choose one for texts that are too long")
    groups: list[list[Encoding]] = []
    for i, text in enumerate(texts):
        pair, name = (None if pairs is None else pairs[i]), f"text {i + 1}" if len(texts) > 1 else "text"
        if windows:
            groups.append(session.encode_windows(text, pair, name=name))
        else:
            groups.append([session.encode(text, pair, truncate=truncate, name=name)])
    outputs = iter(session.outputs([encoding for group in groups for encoding in group], depth))
    return [_joined([next(outputs) for _ in group], group, each) for group in groups]


def _joined(outputs: Sequence[Output], windows: Sequence[Encoding], each: Callable[[np.ndarray], np.ndarray]) -> _Text:
    used = [output.iterations for output in outputs if output.iterations is not None]
    return _Text(_average([each(one.row) for one in outputs], windows), len(windows), max(used, default=None))


def _average(rows: Sequence[np.ndarray], windows: Sequence[Encoding]) -> np.ndarray:
    """rows: one (C,) per window ► (C,), weighted by the windows' tokens."""
    return rows[0] if len(rows) == 1 else np.average(rows, axis=0, weights=[len(window) for window in windows])


class TextClassifier:
    """model("a text") ► Label; model(["a", "b"]) ► [Label, Label]. `pair` is the second part of a text pair.

    truncate, windows: what to do with texts that are too long, see the top of this file. depth, exit_threshold: of a
    model with early exit, as for `edge_albert.load`.
    """

    def __init__(self, session: Session) -> None:
        self.session = session

    @overload
    def __call__(
        self,
        text: str,
        pair: str | None = None,
        *,
        truncate: bool = False,
        windows: bool = False,
        depth: int | None = None,
        exit_threshold: float | str | None = None,
    ) -> Label: ...

    @overload
    def __call__(
        self,
        text: list[str],
        pair: list[str] | None = None,
        *,
        truncate: bool = False,
        windows: bool = False,
        depth: int | None = None,
        exit_threshold: float | str | None = None,
    ) -> list[Label]: ...

    def __call__(self, text, pair=None, *, truncate=False, windows=False, depth=None, exit_threshold=None):
        single = isinstance(text, str)
        texts, pairs = ([text], None if pair is None else [pair]) if single else (text, pair)
        labels = [ranked[0] for ranked in self._ranked(texts, pairs, truncate, windows, Depth(depth, exit_threshold))]
        return labels[0] if single else labels

    def top(
        self,
        text: str,
        pair: str | None = None,
        *,
        k: int,
        truncate: bool = False,
        windows: bool = False,
        depth: int | None = None,
        exit_threshold: float | str | None = None,
    ) -> list[Label]:
        """The k most probable classes of one text, most probable first."""
        if k < 1:
            raise DataError(f"top {k}: at least 1 is needed")
        pairs = None if pair is None else [pair]
        return self._ranked([text], pairs, truncate, windows, Depth(depth, exit_threshold))[0][:k]

    def _ranked(
        self, texts: list[str], pairs: list[str] | None, truncate: bool, windows: bool, depth: Depth
    ) -> list[list[Label]]:
        labels = self.session.bundle.labels
        found = _read(self.session, texts, pairs, truncate=truncate, windows=windows, each=softmax, depth=depth)
        return [
            [
                Label(labels[i], float(one.row[i]), one.windows, one.iterations)
                for i in np.argsort(-one.row, kind="stable")
            ]
            for one in found
        ]


class TextRegressor:
    """model("a text") or model("a text", "its pair") ► Score; lists give lists."""

    def __init__(self, session: Session) -> None:
        self.session = session

    @overload
    def __call__(
        self,
        text: str,
        pair: str | None = None,
        *,
        truncate: bool = False,
        windows: bool = False,
        depth: int | None = None,
        exit_threshold: float | str | None = None,
    ) -> Score: ...

    @overload
    def __call__(
        self,
        text: list[str],
        pair: list[str] | None = None,
        *,
        truncate: bool = False,
        windows: bool = False,
        depth: int | None = None,
        exit_threshold: float | str | None = None,
    ) -> list[Score]: ...

    def __call__(self, text, pair=None, *, truncate=False, windows=False, depth=None, exit_threshold=None):
        single = isinstance(text, str)
        texts, pairs = ([text], None if pair is None else [pair]) if single else (text, pair)
        given = Depth(depth, exit_threshold)
        found = _read(self.session, texts, pairs, truncate=truncate, windows=windows, depth=given)
        scores = [Score(float(one.row[0]), one.windows, one.iterations) for one in found]
        return scores[0] if single else scores


class MultipleChoice:
    """model("the passage and question", ["first", "second", …]) ► Choice."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def __call__(self, prompt: str, choices: list[str], *, truncate: bool = False, windows: bool = False) -> Choice:
        if len(choices) < 2:
            raise DataError(f"{len(choices)} choices: at least 2 are needed")
        prompts = [prompt] * len(choices)
        texts = _read(self.session, prompts, choices, truncate=truncate, windows=windows)
        scores = softmax(np.concatenate([text.row for text in texts]))
        best = int(np.argmax(scores))
        return Choice(choices[best], best, float(scores[best]), max(text.windows for text in texts))


class SentenceEmbedder:
    """model("a text") ► unit vector (H,) float32; model(["a", "b"]) ► (2, H). Their dot product is the cosine."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def __call__(self, text: str | list[str], *, truncate: bool = False, windows: bool = False) -> np.ndarray:
        """`count_windows` tells how many windows a vector stands for."""
        single = isinstance(text, str)
        texts = [text] if isinstance(text, str) else text
        if not texts:
            return np.zeros((0, self.session.bundle.config.hidden_size), np.float32)
        rows = [
            one.row if one.windows == 1 else (one.row / np.linalg.norm(one.row)).astype(np.float32)
            for one in _read(self.session, texts, None, truncate=truncate, windows=windows)
        ]
        return rows[0] if single else np.stack(rows)

    def count_windows(self, text: str) -> int:
        """How many windows a text is read in when `windows` is asked for."""
        return len(self.session.encode_windows(text))
