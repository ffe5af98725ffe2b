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
from edge_albert.runtime.session import Session
from edge_albert.tokenizer import Encoding


@dataclass(frozen=True)
class Label:
    """A class and its probability (softmax over the classes); windows: how many the text was read in."""

    label: str
    score: float
    windows: int = 1


@dataclass(frozen=True)
class Score:
    """A regression's value, on the scale of the training data; windows: how many the text was read in."""

    score: float
    windows: int = 1


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


def _read(
    session: Session,
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    *,
    truncate: bool,
    windows: bool,
    each: Callable[[np.ndarray], np.ndarray] = np.asarray,
) -> list[tuple[np.ndarray, int]]:
    """(row, windows it was averaged over) for every text. each: applied to a window's row before averaging."""
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
    rows = iter(session.infer([encoding for group in groups for encoding in group]))
    return [(_average([each(next(rows)) for _ in group], group), len(group)) for group in groups]


def _average(rows: Sequence[np.ndarray], windows: Sequence[Encoding]) -> np.ndarray:
    """rows: one (C,) per window ► (C,), weighted by the windows' tokens."""
    return rows[0] if len(rows) == 1 else np.average(rows, axis=0, weights=[len(window) for window in windows])


class TextClassifier:
    """model("a text") ► Label; model(["a", "b"]) ► [Label, Label]. `pair` is the second part of a text pair.

    truncate, windows: what to do with texts that are too long, see the top of this file.
    """

    def __init__(self, session: Session) -> None:
        self.session = session

    @overload
    def __call__(
        self, text: str, pair: str | None = None, *, truncate: bool = False, windows: bool = False
    ) -> Label: ...

    @overload
    def __call__(
        self, text: list[str], pair: list[str] | None = None, *, truncate: bool = False, windows: bool = False
    ) -> list[Label]: ...

    def __call__(self, text, pair=None, *, truncate=False, windows=False):
        if isinstance(text, str):
            return self.top(text, pair, k=1, truncate=truncate, windows=windows)[0]
        return [ranked[0] for ranked in self._ranked(text, pair, truncate, windows)]

    def top(
        self, text: str, pair: str | None = None, *, k: int, truncate: bool = False, windows: bool = False
    ) -> list[Label]:
        """The k most probable classes of one text, most probable first."""
        if k < 1:
            raise DataError(f"top {k}: at least 1 is needed")
        return self._ranked([text], None if pair is None else [pair], truncate, windows)[0][:k]

    def _ranked(self, texts: list[str], pairs: list[str] | None, truncate: bool, windows: bool) -> list[list[Label]]:
        labels = self.session.bundle.labels
        return [
            [Label(labels[i], float(scores[i]), count) for i in np.argsort(-scores, kind="stable")]
            for scores, count in _read(self.session, texts, pairs, truncate=truncate, windows=windows, each=softmax)
        ]


class TextRegressor:
    """model("a text") or model("a text", "its pair") ► Score; lists give lists."""

    def __init__(self, session: Session) -> None:
        self.session = session

    @overload
    def __call__(
        self, text: str, pair: str | None = None, *, truncate: bool = False, windows: bool = False
    ) -> Score: ...

    @overload
    def __call__(
        self, text: list[str], pair: list[str] | None = None, *, truncate: bool = False, windows: bool = False
    ) -> list[Score]: ...

    def __call__(self, text, pair=None, *, truncate=False, windows=False):
        single = isinstance(text, str)
        texts, pairs = ([text], None if pair is None else [pair]) if single else (text, pair)
        rows = _read(self.session, texts, pairs, truncate=truncate, windows=windows)
        scores = [Score(float(row[0]), count) for row, count in rows]
        return scores[0] if single else scores


class MultipleChoice:
    """model("the passage and question", ["first", "second", …]) ► Choice."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def __call__(self, prompt: str, choices: list[str], *, truncate: bool = False, windows: bool = False) -> Choice:
        if len(choices) < 2:
            raise DataError(f"{len(choices)} choices: at least 2 are needed")
        prompts = [prompt] * len(choices)
        rows, counts = zip(*_read(self.session, prompts, choices, truncate=truncate, windows=windows), strict=True)
        scores = softmax(np.concatenate(rows))
        best = int(np.argmax(scores))
        return Choice(choices[best], best, float(scores[best]), max(counts))


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
            row if count == 1 else (row / np.linalg.norm(row)).astype(np.float32)
            for row, count in _read(self.session, texts, None, truncate=truncate, windows=windows)
        ]
        return rows[0] if single else np.stack(rows)

    def count_windows(self, text: str) -> int:
        """How many windows a text is read in when `windows` is asked for."""
        return len(self.session.encode_windows(text))
