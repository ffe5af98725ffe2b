"""What the gate judges each task by: how rows are read and become inputs, what outputs predict, and the metrics.

A metric here takes one entry per row of the data, so that rows can be drawn again: the label of a text, the score of
an answer, how many entities of a sentence were found. Token classification, question answering and multiple choice read
their data as `finetune` does, with code that needs PyTorch; the others need NumPy alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from calibration.agreement import Rows
from calibration.texts import TextFile, encode, read_labelled
from edge_albert.config import AlbertConfig
from edge_albert.errors import DataError
from edge_albert.runtime.session import STRIDE
from edge_albert.tasks import Task
from edge_albert.tokenizer import Encoding, Tokenizer
from edge_albert.training.metrics import glue

Metric = Callable[[np.ndarray, np.ndarray], float]


@dataclass(frozen=True)
class Judged:
    """Rows of data as inputs of one model. gold: (N, …), an entry per row; predict: outputs for `encodings` ►
    predicted (N, …); sha256: of the rows. texts: what each encoding was made of, for people; may be empty.
    windows_of: for each encoding the entry that it is a window of; empty where each is an entry of its own."""

    encodings: Sequence[Encoding]
    gold: np.ndarray
    predict: Callable[[Rows], np.ndarray]
    sha256: str
    texts: Sequence[str] = ()
    windows_of: Sequence[int] = ()

    @property
    def entry_of(self) -> np.ndarray:
        """The entry that each encoding belongs to, (number of encodings,)."""
        return np.array(self.windows_of or range(len(self.encodings)), np.int64)


def task_metrics(task: Task, config: AlbertConfig) -> Mapping[str, Metric]:
    """The metrics of a task by name, its usual one first; each takes gold and predicted as `Judged` has them."""
    if task.name == "text-classification":
        f1 = glue.f1 if config.num_labels == 2 else glue.macro_f1
        return {"accuracy": glue.accuracy, "f1": f1, "matthews": glue.matthews}
    if task.name == "token-classification":
        return {"f1": _entity_f1}
    if task.name == "question-answering":
        return {"f1": _mean_of_predicted, "exact": _mean_of_predicted}
    if task.name == "multiple-choice":
        return {"accuracy": glue.accuracy}
    return {"spearman": glue.spearman, "pearson": glue.pearson}


def read_judged(file: TextFile, metric: str, config: AlbertConfig, task: Task, tokenizer: Tokenizer) -> Judged:
    """Raises DataError for rows that do not fit the model."""
    readers = {"token-classification": _tagged, "question-answering": _questions, "multiple-choice": _choices}
    if task.name in readers:
        return readers[task.name](file, metric, config, tokenizer)
    examples, gold = read_labelled(file, config, task)
    if task.head is None:
        if examples.rows[0].pair is None:
            raise DataError(
                f"{examples.path}: single texts, and an embedding is judged by how alike two are: a file with two "
                "texts and a score in each row is needed (--pair-column names the second)"
            )
        inputs = [(text, None) for row in examples.rows for text in (row.text, row.pair or "")]
        predict: Callable[[Rows], np.ndarray] = _cosines
    else:
        inputs = [(row.text, row.pair) for row in examples.rows]
        predict = _labels if task.name == "text-classification" else _numbers
    encodings = [encode(text, pair, config, tokenizer).encoding for text, pair in inputs]
    texts = [text if pair is None else f"{text} | {pair}" for text, pair in inputs]
    return Judged(encodings, gold, predict, _hash(examples.rows), texts)


def _hash(rows: Sequence[Any]) -> str:
    """Of rows that are dataclasses of texts and numbers."""
    return hashlib.sha256(repr(list(rows)).encode()).hexdigest()


# -- one output per text -----------------------------------------------------------------------------------------------


def _labels(outputs: Rows) -> np.ndarray:
    return np.array([int(row.argmax()) for row in outputs])


def _numbers(outputs: Rows) -> np.ndarray:
    return np.array([float(row[0]) for row in outputs])


def _cosines(outputs: Rows) -> np.ndarray:
    """Of rows 0 and 1, 2 and 3, …, unit vectors: (2N, H) ► (N,)"""
    units = np.stack(outputs)
    return np.sum(units[0::2] * units[1::2], axis=1)


# -- windows and options -----------------------------------------------------------------------------------------------


def _longest(config: AlbertConfig, tokenizer: Tokenizer) -> int:
    return min(config.max_position_embeddings, tokenizer.model_max_length or config.max_position_embeddings)


def _encodings(ids: Sequence[np.ndarray], types: Sequence[np.ndarray]) -> list[Encoding]:
    """What the engine needs of an encoding; the data's own object keeps the rest."""
    return [Encoding(a.tolist(), b.tolist(), [], [], []) for a, b in zip(ids, types, strict=True)]


def _tagged(file: TextFile, metric: str, config: AlbertConfig, tokenizer: Tokenizer) -> Judged:
    """Sentences with a tag for each word; predicted: (N, 3) entities that are right, that are there, that were said."""
    from edge_albert.tags import entities
    from edge_albert.training.finetuning.tagging import encode_sentences, read_sentences

    rows = read_sentences(file.path, file.columns, skip_bad=file.skip_bad).rows
    for row in rows:
        if unknown := set(row.tags) - set(config.labels):
            raise DataError(
                f"{file.path}:{row.line}: the model has no tag {min(unknown)!r}, only {', '.join(config.labels)}: "
                "the file is for another task"
            )
    longest = _longest(config, tokenizer)
    windows = encode_sentences(tokenizer, rows, config.labels, longest, min(STRIDE, longest // 4))

    def predict(outputs: Rows) -> np.ndarray:
        said = windows.assemble([output.argmax(axis=-1) for output in outputs])
        pairs = [(set(entities(row.tags)), set(entities(tags))) for row, tags in zip(rows, said, strict=True)]
        return np.array([(len(gold & found), len(gold), len(found)) for gold, found in pairs])

    types = [np.zeros_like(ids) for ids in windows.input_ids]
    entries = windows.sentence_of.tolist()
    texts = [" ".join(rows[entry].words) for entry in entries]
    return Judged(_encodings(windows.input_ids, types), np.zeros(len(rows)), predict, _hash(rows), texts, entries)


def _entity_f1(gold: np.ndarray, predicted: np.ndarray) -> float:
    right, there, said = predicted.sum(axis=0)
    return float(2 * right / (there + said)) if there + said else 0.0


def _questions(file: TextFile, metric: str, config: AlbertConfig, tokenizer: Tokenizer) -> Judged:
    """SQuAD's questions; predicted: (N,) the metric of each answer, "no answer" by the model's own threshold."""
    from edge_albert.training.finetuning.question_answering import NULL_THRESHOLD, encode_questions, read_questions
    from edge_albert.training.metrics.squad import scores

    rows = read_questions(file.path, skip_bad=file.skip_bad).rows
    longest = _longest(config, tokenizer)
    windows = encode_questions(tokenizer, rows, longest, min(STRIDE, longest // 4))
    answers = [row.answers for row in rows]

    def predict(outputs: Rows) -> np.ndarray:
        return scores(metric, answers, windows.assemble(outputs), config.extra.get(NULL_THRESHOLD))

    encodings = _encodings(windows.input_ids, windows.token_type_ids)
    return Judged(encodings, np.zeros(len(rows)), predict, _hash(rows))


def _mean_of_predicted(gold: np.ndarray, predicted: np.ndarray) -> float:
    return float(predicted.mean())


def _choices(file: TextFile, metric: str, config: AlbertConfig, tokenizer: Tokenizer) -> Judged:
    """Questions with options; predicted: (N,) the number of the option with the highest score."""
    from edge_albert.training.finetuning.multiple_choice import encode_choices, read_choices

    rows = read_choices(file.path, skip_bad=file.skip_bad).rows
    encoded = encode_choices(tokenizer, rows, _longest(config, tokenizer))
    starts = np.cumsum([0, *(len(options) for options in encoded.input_ids)])

    def predict(outputs: Rows) -> np.ndarray:
        scores = np.array([float(row[0]) for row in outputs])
        return np.array([int(scores[a:b].argmax()) for a, b in pairwise(starts)])

    ids = [one for options in encoded.input_ids for one in options]
    types = [one for options in encoded.token_type_ids for one in options]
    return Judged(_encodings(ids, types), encoded.labels, predict, _hash(rows))
