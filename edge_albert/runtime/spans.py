"""Answers that are places in a text: token classification and question answering.

Both read one row of output per token and give character offsets into the original text. Texts longer than the model are
read in windows that overlap by `stride` tokens, so nothing has to be cut off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edge_albert.errors import DataError
from edge_albert.runtime.classify import softmax
from edge_albert.runtime.session import Depth, Session
from edge_albert.tags import entities
from edge_albert.tokenizer import Encoding


@dataclass(frozen=True)
class Entity:
    """A labelled stretch of the text: text[start:end], and the mean probability of the label over its words.

    iterations: how many the text took, of the window that took most; None for a model without early exit.
    """

    label: str
    text: str
    start: int
    end: int
    score: float
    iterations: int | None = None


@dataclass(frozen=True)
class Answer:
    """context[start:end] answers the question; empty when the model says that the context does not.

    score: probability among the candidate spans (and "no answer", where that is allowed) of all windows.
    windows: how many the context was read in.
    """

    text: str
    start: int
    end: int
    score: float
    windows: int = 1


@dataclass(frozen=True)
class _Word:
    start: int
    end: int
    label: str
    score: float


class TokenClassifier:
    """model("a text") ► [Entity, …]; model(["a", "b"]) ► a list each.

    A word takes the label of its first piece, as in training; edge_albert/tags.py makes entities of the labels.
    """

    def __init__(self, session: Session) -> None:
        self.session = session

    def __call__(
        self,
        text: str | list[str],
        *,
        stride: int | None = None,
        depth: int | None = None,
        exit_threshold: float | str | None = None,
    ) -> list[Entity] | list[list[Entity]]:
        """depth, exit_threshold: of a model with early exit, as for `edge_albert.load`."""
        given = Depth(depth, exit_threshold)
        if isinstance(text, str):
            return self._entities(text, "text", stride, given)
        return [self._entities(one, f"text {i + 1}", stride, given) for i, one in enumerate(text)]

    def _entities(self, text: str, name: str, stride: int | None, depth: Depth) -> list[Entity]:
        self.session.check_text(text, name)
        shared = _stride(self.session, stride)
        windows = self.session.tokenizer.encode_windows(text, max_length=self.session.max_length, stride=shared)
        outputs = self.session.outputs(windows, depth)
        offsets, scores = _stitch(windows, [output.row for output in outputs], shared)
        used = [output.iterations for output in outputs if output.iterations is not None]
        most = max(used, default=None)
        return [replace(entity, iterations=most) for entity in _join(text, list(self._words(text, offsets, scores)))]

    def _words(self, text: str, offsets: Sequence[tuple[int, int]], scores: np.ndarray) -> Iterator[_Word]:
        """Pieces grouped into words. offsets: of T pieces; scores: (T, num_labels) probabilities."""
        groups: list[list[int]] = []
        for i in range(len(offsets)):
            if groups and _continues(text, offsets[groups[-1][-1]], offsets[i]):
                groups[-1].append(i)
            else:
                groups.append([i])
        for group in groups:
            visible = [i for i in group if not _blank(text, offsets[i])]
            if visible:
                best = int(np.argmax(scores[group[0]]))
                label, score = self.session.bundle.labels[best], float(scores[group[0], best])
                yield _Word(offsets[visible[0]][0], offsets[visible[-1]][1], label, score)


def _stride(session: Session, wanted: int | None) -> int:
    return session.stride if wanted is None else wanted


def _stitch(
    windows: Sequence[Encoding], outputs: Sequence[np.ndarray], stride: int
) -> tuple[list[tuple[int, int]], np.ndarray]:
    """Offsets and probabilities of all T pieces; one in several windows is taken where it stands farthest from an
    edge."""
    offsets: list[tuple[int, int]] = []
    scores: list[np.ndarray] = []
    margins: list[int] = []
    at = 0
    for encoding, logits in zip(windows, outputs, strict=True):
        tokens = [i for i, part in enumerate(encoding.sequence_ids) if part == 0]
        rows = softmax(logits[tokens])
        for k, token in enumerate(tokens):
            margin = min(k, len(tokens) - 1 - k)
            if at + k == len(offsets):
                offsets.append(encoding.offsets[token])
                scores.append(rows[k])
                margins.append(margin)
            elif margin > margins[at + k]:
                scores[at + k], margins[at + k] = rows[k], margin
        at += len(tokens) - stride
    return offsets, np.array(scores)


def _blank(text: str, offsets: tuple[int, int]) -> bool:
    """Whether a piece stands for no visible character, as SentencePiece's lone word boundary does."""
    return not text[slice(*offsets)].strip()


def _continues(text: str, before: tuple[int, int], here: tuple[int, int]) -> bool:
    """Whether two neighbouring pieces belong to one word: they touch, and letters or digits meet."""
    if _blank(text, before) or here[0] < before[1]:  # a lone word boundary; two pieces of one character, such as "ﬁ"
        return True
    return here[0] == before[1] and text[before[1] - 1].isalnum() and text[here[0] : here[0] + 1].isalnum()


def _join(text: str, words: Sequence[_Word]) -> Iterator[Entity]:
    for first, last, kind in entities([word.label for word in words]):
        start, end = words[first].start, words[last].end
        score = float(np.mean([word.score for word in words[first : last + 1]]))
        yield Entity(kind, text[start:end], start, end, score)


class QuestionAnswerer:
    """model("the question", "the context") ► Answer.

    null_threshold: None always answers; a number allows "no answer" (SQuAD 2.0), given when the score of the empty
    answer exceeds that of the best span by more than it. By default what the bundle's config says under
    `null_threshold`.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.null_threshold: float | None = session.bundle.config.extra.get("null_threshold")

    def __call__(
        self,
        question: str,
        context: str,
        *,
        max_answer_tokens: int = 30,
        stride: int | None = None,
        candidates: int = 20,
    ) -> Answer:
        self.session.check_text(question, "question")
        self.session.check_text(context, "context")
        windows = self._windows(question, context, _stride(self.session, stride))
        found: dict[tuple[int, int], float] = {}  # (start, end) in characters of the context ► best score over windows
        empty = np.inf  # the window that is least sure of having no answer decides, as in the SQuAD 2.0 recipe
        for encoding, logits in zip(windows, self.session.infer(windows), strict=True):
            for score, start, end in best_spans(encoding, logits, max_answer_tokens, candidates):
                found[start, end] = max(score, found.get((start, end), -np.inf))
            empty = min(empty, float(logits[0, 0] + logits[0, 1]))
        spans = sorted(found.items(), key=lambda item: (-item[1], item[0]))[:candidates]
        (start, end), best = spans[0]
        if self.null_threshold is None:
            return Answer(
                context[start:end], start, end, float(softmax(np.array([score for _, score in spans]))[0]), len(windows)
            )
        scores = softmax(np.array([empty, *(score for _, score in spans)]))
        if empty - best > self.null_threshold:
            return Answer("", 0, 0, float(scores[0]), len(windows))
        return Answer(context[start:end], start, end, float(scores[1]), len(windows))

    def _windows(self, question: str, context: str, stride: int) -> list[Encoding]:
        room = self.session.max_length - len(self.session.tokenizer.encode(question, max_length=None).input_ids) - 1
        if room <= stride:
            raise DataError(
                f"question: leaves {max(room, 0)} of {self.session.max_length} tokens for the context, "
                f"more than {stride} are needed: shorten the question"
            )
        return self.session.tokenizer.encode_windows(
            question, context, max_length=self.session.max_length, stride=stride
        )


def best_spans(encoding: Encoding, logits: np.ndarray, longest: int, count: int) -> Iterator[tuple[float, int, int]]:
    """The best (start + end logit, start, end) of one window, spans inside the context only. logits: (S, 2).

    Starts and ends are the `count` best of each, as in the SQuAD recipe; where every such end lies before every such
    start, the one best span of all is left, so that every window with a token of the context has an answer.
    """
    inside = [i for i, part in enumerate(encoding.sequence_ids) if part == 1]
    starts = sorted(inside, key=lambda i: -logits[i, 0])[:count]
    ends = sorted(inside, key=lambda i: -logits[i, 1])[:count]
    spans = [(first, last) for first in starts for last in ends if first <= last < first + longest]
    if inside and not spans:
        spans = [_best_span(inside, logits, longest)]
    for first, last in spans:
        score = float(logits[first, 0] + logits[last, 1])
        yield score, encoding.offsets[first][0], encoding.offsets[last][1]


def _best_span(inside: Sequence[int], logits: np.ndarray, longest: int) -> tuple[int, int]:
    every = ((first, last) for first in inside for last in range(first, min(first + longest, inside[-1] + 1)))
    return max(every, key=lambda span: float(logits[span[0], 0] + logits[span[1], 1]))
