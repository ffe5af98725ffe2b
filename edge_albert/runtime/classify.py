"""Answers of one row per text: classification, regression, multiple choice, sentence embedding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from edge_albert.errors import DataError
from edge_albert.runtime.session import Session


@dataclass(frozen=True)
class Label:
    """A class and its probability (softmax over the classes)."""

    label: str
    score: float


@dataclass(frozen=True)
class Score:
    """A regression's value, on the scale of the training data."""

    score: float


@dataclass(frozen=True)
class Choice:
    """The chosen text of a multiple-choice question, its index among the choices, and its probability."""

    text: str
    index: int
    score: float


def softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis, in float64."""
    exp = np.exp(np.asarray(logits, np.float64) - np.max(logits, axis=-1, keepdims=True))
    return exp / exp.sum(axis=-1, keepdims=True)


def _encode_all(session: Session, texts: Sequence[str], pairs: Sequence[str] | None, truncate: bool) -> list:
    if pairs is not None and len(pairs) != len(texts):
        raise DataError(f"{len(texts)} texts and {len(pairs)} pairs: each text needs its second part")
    return [
        session.encode(text, pairs[i] if pairs is not None else None, truncate=truncate, name=f"text {i + 1}")
        for i, text in enumerate(texts)
    ]


class TextClassifier:
    """model("a text") ► Label; model(["a", "b"]) ► [Label, Label]. `pair` is the second part of a text pair."""

    def __init__(self, session: Session) -> None:
        self.session = session

    @overload
    def __call__(self, text: str, pair: str | None = None, *, truncate: bool = False) -> Label: ...

    @overload
    def __call__(self, text: list[str], pair: list[str] | None = None, *, truncate: bool = False) -> list[Label]: ...

    def __call__(self, text, pair=None, *, truncate=False):
        if isinstance(text, str):
            return self.top(text, pair, k=1, truncate=truncate)[0]
        encodings = _encode_all(self.session, text, pair, truncate)
        return [self._ranked(row)[0] for row in self.session.infer(encodings)]

    def top(self, text: str, pair: str | None = None, *, k: int, truncate: bool = False) -> list[Label]:
        """The k most probable classes of one text, most probable first."""
        if k < 1:
            raise DataError(f"top {k}: at least 1 is needed")
        encoding = self.session.encode(text, pair, truncate=truncate)
        return self._ranked(self.session.infer([encoding])[0])[:k]

    def _ranked(self, logits: np.ndarray) -> list[Label]:
        scores = softmax(logits)
        return [Label(self.session.bundle.labels[i], float(scores[i])) for i in np.argsort(-scores, kind="stable")]


class TextRegressor:
    """model("a text") or model("a text", "its pair") ► Score; lists give lists."""

    def __init__(self, session: Session) -> None:
        self.session = session

    @overload
    def __call__(self, text: str, pair: str | None = None, *, truncate: bool = False) -> Score: ...

    @overload
    def __call__(self, text: list[str], pair: list[str] | None = None, *, truncate: bool = False) -> list[Score]: ...

    def __call__(self, text, pair=None, *, truncate=False):
        single = isinstance(text, str)
        texts, pairs = ([text], None if pair is None else [pair]) if single else (text, pair)
        scores = [Score(float(row[0])) for row in self.session.infer(_encode_all(self.session, texts, pairs, truncate))]
        return scores[0] if single else scores


class MultipleChoice:
    """model("the passage and question", ["first", "second", …]) ► Choice."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def __call__(self, prompt: str, choices: list[str], *, truncate: bool = False) -> Choice:
        if len(choices) < 2:
            raise DataError(f"{len(choices)} choices: at least 2 are needed")
        encodings = _encode_all(self.session, [prompt] * len(choices), choices, truncate)
        scores = softmax(np.concatenate(self.session.infer(encodings)))
        best = int(np.argmax(scores))
        return Choice(choices[best], best, float(scores[best]))


class SentenceEmbedder:
    """model("a text") ► unit vector (H,) float32; model(["a", "b"]) ► (2, H). Their dot product is the cosine."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def __call__(self, text: str | list[str], *, truncate: bool = False) -> np.ndarray:
        single = isinstance(text, str)
        texts = [text] if isinstance(text, str) else text
        if not texts:
            return np.zeros((0, self.session.bundle.config.hidden_size), np.float32)
        rows = np.stack(self.session.infer(_encode_all(self.session, texts, None, truncate)))
        return rows[0] if single else rows
