"""Question answering on SQuAD: its files, windows over long contexts, and what the model learns from them.

A context that does not fit is read in windows that overlap by `stride` tokens. A window learns the first gold answer
where it holds it whole, and [CLS] where not, as in BERT and ALBERT (Devlin et al. 2019, section 4.3). The best span of
a question is found by the code that answers on the device (runtime/spans.py), so a figure here is a figure there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from edge_albert.errors import DataError
from edge_albert.model import AlbertForTask
from edge_albert.progress import Progress
from edge_albert.runtime.spans import best_spans
from edge_albert.tokenizer import Encoding, Tokenizer
from edge_albert.training.data.batches import Inputs, TokenRows, on_device, padded
from edge_albert.training.data.examples import Examples, collect, text_of
from edge_albert.training.data.rows import Place, Row, Rows, Source, read_text, structured_rows
from edge_albert.training.finetuning.objectives import Figures, Objective
from edge_albert.training.metrics.squad import Prediction, best_threshold, scores

NULL_THRESHOLD = "null_threshold"  # a figure here, and the field of config.json that the runtime reads
MAX_ANSWER_TOKENS, CANDIDATES = 30, 20  # as QuestionAnswerer has them
_NEVER = float(np.finfo(np.float32).max)  # the null score of a question for which no span could be formed


@dataclass(frozen=True)
class Question:
    """A question about a context. answers: gold texts; start: of the first, in characters, None without an answer."""

    question: str
    context: str
    answers: tuple[str, ...]
    start: int | None
    line: Place


# -- reading -----------------------------------------------------------------------------------------------------------


def read_questions(source: Source, *, skip_bad: bool) -> Examples[Question]:
    """SQuAD's JSON (1.1 or 2.0), or rows with question, context and answers: .jsonl, .parquet, a data set's split.

    A question is bad when it or its context is empty, when an answer does not stand where it is said to, and when
    is_impossible contradicts the answers. Raises DataError as `collect` does.
    """
    return collect(source, structured_rows(source, _squad_rows, (".jsonl",)), _parse, skip_bad=skip_bad)


def _squad_rows(path: Path) -> Rows:
    """{"data": [{"paragraphs": [{"context", "qas": [{"id", "question", "answers"}]}]}]} ► a row for each question."""
    try:
        paragraphs = [one for article in json.loads(read_text(path))["data"] for one in article["paragraphs"]]
        asked = [(question, one["context"]) for one in paragraphs for question in one["qas"]]
        for number, (question, context) in enumerate(asked, start=1):
            row = {"is_impossible": False, **question, "context": context}
            yield f"question {question.get('id', number)}", row
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not SQuAD's JSON ({type(error).__name__}: {error})") from None


def _parse(row: Row, place: Place) -> Question | str:
    question, context = text_of(row.get("question")), text_of(row.get("context"))
    if not question.strip() or not context.strip():
        return f"empty {'context' if question.strip() else 'question'}"
    said, impossible = row.get("answers"), row.get("is_impossible")
    if not isinstance(said, list | Mapping) and not impossible:
        return "no list of answers: [{text, answer_start}, …], or an empty one where there is none"
    answers = list(_answers(said))
    if impossible is not None and bool(impossible) == bool(answers):
        return "is_impossible, and has answers" if answers else "no answer, and not is_impossible"
    for text, start in answers:
        stands = isinstance(start, int) and start >= 0 and context[start : start + len(text)] == text
        if not stands or not text.strip():
            return f"answer {text!r} does not stand at character {start} of the context"
    first = answers[0][1] if answers else None
    return Question(question, context, tuple(text for text, _ in answers), first, place)


def _answers(said: Any) -> Iterator[tuple[str, Any]]:
    """(text, start) from a list of {text, answer_start}, or from Hugging Face's {text: […], answer_start: […]}."""
    if isinstance(said, Mapping):
        texts, starts = (said.get(name) for name in ("text", "answer_start"))
        if isinstance(texts, list) and isinstance(starts, list):
            yield from zip_longest(map(text_of, texts), starts, fillvalue="")
        else:
            yield text_of(texts), starts
    elif isinstance(said, list):
        for answer in said:
            one = answer if isinstance(answer, Mapping) else {}
            yield text_of(one.get("text")), one.get("answer_start")


# -- windows -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class QuestionWindows(TokenRows):
    """N windows over the contexts of `labels`, the questions. question_of: the number of the question of each.

    positions: the tokens where the answer starts and ends, 0 where the window has none. offsets: of each window's
    context tokens, (tokens, 2) characters; they stand behind [CLS] question [SEP] and before the last [SEP].
    """

    labels: list[Question]
    question_of: list[int]
    input_ids: list[np.ndarray]
    token_type_ids: list[np.ndarray]
    offsets: list[np.ndarray]
    positions: list[tuple[int, int]]
    pad_id: int

    def add(self, encoding: Encoding, number: int, *, first: bool, last: bool) -> None:
        """One window of question `number`; whether it is the first and the last of its context."""
        context = [i for i, part in enumerate(encoding.sequence_ids) if part == 1]
        offsets = np.array([encoding.offsets[i] for i in context], dtype=np.int32).reshape(-1, 2)
        question = self.labels[number]
        covered = (0 if first else int(offsets[0, 0]), len(question.context) if last else int(offsets[-1, 1]))
        found = _answer_tokens(offsets, covered, question)
        self.question_of.append(number)
        self.input_ids.append(np.array(encoding.input_ids, dtype=np.int32))
        self.token_type_ids.append(np.array(encoding.token_type_ids, dtype=np.int32))
        self.offsets.append(offsets)
        self.positions.append((0, 0) if found is None else (context[0] + found[0], context[0] + found[1]))

    @property
    def lines(self) -> np.ndarray:
        return np.array([self.labels[number].line for number in self.question_of])

    def collate(self, rows: np.ndarray, device: torch.device) -> tuple[Inputs, Tensor]:
        """The windows, (B, S), and their positions, (B, 2)."""
        ids, types = [self.input_ids[row] for row in rows], [self.token_type_ids[row] for row in rows]
        positions = np.array([self.positions[row] for row in rows])
        return padded(ids, types, self.pad_id, device), on_device(positions, device)

    def assemble(self, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        """Logits (S, 2) of each window ► the best answer to each question, as `QuestionAnswerer` finds it."""
        found: list[dict[tuple[int, int], float]] = [{} for _ in self.labels]
        empty = np.full(len(self.labels), np.inf)
        for window, (number, logits) in enumerate(zip(self.question_of, outputs, strict=True)):
            spans = found[number]
            for score, start, end in best_spans(self._encoding(window), logits, MAX_ANSWER_TOKENS, CANDIDATES):
                spans[start, end] = max(score, spans.get((start, end), -np.inf))
            empty[number] = min(empty[number], float(logits[0, 0] + logits[0, 1]))
        return [_best(*one) for one in zip(self.labels, found, empty.tolist(), strict=True)]

    def _encoding(self, window: int) -> Encoding:
        """The window as the runtime knows it, without the offsets of the question."""
        ids, types = self.input_ids[window].tolist(), self.token_type_ids[window].tolist()
        offsets = self.offsets[window].tolist()
        before = len(ids) - len(offsets) - 1
        return Encoding(
            input_ids=ids,
            token_type_ids=types,
            offsets=[(0, 0)] * before + [(start, end) for start, end in offsets] + [(0, 0)],
            sequence_ids=[None] * before + [1] * len(offsets) + [None],
            special_tokens_mask=[],
        )


def _best(question: Question, spans: Mapping[tuple[int, int], float], empty: float) -> Prediction:
    if not spans:
        return Prediction("", _NEVER)
    (start, end), score = min(spans.items(), key=lambda item: (-item[1], item[0]))
    return Prediction(question.context[start:end], empty - score)


def length_fault(tokenizer: Tokenizer, question: Question, max_length: int, stride: int) -> str | None:
    """Why a question is too long: a window over the context must be longer than `stride`. None where it is not."""
    room = max_length - len(tokenizer.ids(question.question)) - tokenizer.num_special_tokens(pair=True)
    if room > stride:
        return None
    return (
        f"the question leaves {max(room, 0)} of {max_length} tokens for the context, more than {stride} are needed: "
        "shorten it, raise --max-length or lower --stride"
    )


def encode_questions(
    tokenizer: Tokenizer, questions: Sequence[Question], max_length: int, stride: int
) -> QuestionWindows:
    """Tokenise every question with as many windows of `max_length` tokens as its context needs.

    Raises TokenizerError for a question that `length_fault` would have named.
    """
    windows = QuestionWindows(list(questions), [], [], [], [], [], tokenizer.pad_id)
    with Progress(len(questions), "questions") as bar:
        for number, question in enumerate(questions):
            found = tokenizer.encode_windows(question.question, question.context, max_length=max_length, stride=stride)
            for i, encoding in enumerate(found):
                windows.add(encoding, number, first=i == 0, last=i == len(found) - 1)
            bar.update()
    return windows


def _answer_tokens(offsets: np.ndarray, covered: tuple[int, int], question: Question) -> tuple[int, int] | None:
    """The context tokens in which the first gold answer starts and ends; None when the window does not hold it whole.

    offsets: (tokens, 2). covered: the characters of the context that the window answers for.
    """
    if question.start is None:
        return None
    start, end = question.start, question.start + len(question.answers[0])
    touching = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < end))
    if covered[0] > start or covered[1] < end or not len(touching):
        return None
    return int(touching[0]), int(touching[-1])


# -- learning ----------------------------------------------------------------------------------------------------------


def question_answering(num_labels: int = 2, *, best: bool = True, threshold: float | None = None) -> Objective:
    """Where the answer starts and ends: logits (B, S, 2), labels (B, 2) int64.

    Figures are those at the null `threshold` (None: always answer); `best` looks for it in the data that is judged and
    notes it as `null_threshold`, if some questions there have no answer.
    """

    def settled(gold: Sequence[Question], predicted: Sequence[Prediction]) -> float | None:
        if not best or all(question.answers for question in gold):
            return threshold
        return best_threshold([question.answers for question in gold], predicted)

    def mean(measure: str, gold: Sequence[Question], predicted: Sequence[Prediction]) -> float:
        answers = [question.answers for question in gold]
        return float(scores(measure, answers, predicted, settled(gold, predicted)).mean())

    def notes(gold: Sequence[Question], predicted: Sequence[Prediction]) -> Figures:
        """The two halves of SQuAD 2.0, and the threshold both were judged at."""
        has_answer = np.array([bool(question.answers) for question in gold])
        used = settled(gold, predicted)
        if has_answer.all() or used is None:
            return {}
        f1 = scores("f1", [question.answers for question in gold], predicted, used)
        halves = {"has_answer_f1": f1[has_answer], "no_answer_f1": f1[~has_answer]}
        return {name: float(half.mean()) for name, half in halves.items() if len(half)} | {NULL_THRESHOLD: used}

    return Objective(
        loss=lambda logits, labels: F.cross_entropy(logits.transpose(1, 2).flatten(0, 1), labels.flatten()),
        predict=lambda logits: logits,
        metrics={"f1": partial(mean, "f1"), "exact": partial(mean, "exact")},
        forward=_forward,
        notes=notes,
    )


def _forward(model: AlbertForTask, inputs: Inputs) -> Tensor:
    """Logits (B, S, 2) in which padding is no candidate, so that the loss does not depend on the batch."""
    padding = inputs["attention_mask"] == 0
    return model(**inputs).float().masked_fill(padding.unsqueeze(-1), float("-inf"))
