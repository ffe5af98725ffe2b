"""The tasks that can be fine-tuned, as one table: how data is read and tokenised, what is optimised, what is kept.

A new task is a new row: a reader (source ► examples), an encoder (examples ► `EncodedRows`, which make the batches) and
an `Objective`. What its checkpoint and its exported graph look like stands in edge_albert/tasks.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edge_albert.config import AlbertConfig
from edge_albert.tokenizer import Tokenizer
from edge_albert.training.data.batches import EncodedRows, encode_examples
from edge_albert.training.data.examples import (
    Columns,
    Example,
    Examples,
    any_label,
    number_fault,
    own_label,
    read_examples,
)
from edge_albert.training.data.rows import Source
from edge_albert.training.finetuning import embedding, multiple_choice, question_answering, tagging
from edge_albert.training.finetuning.objectives import OBJECTIVES, Figures, Objective


@dataclass(frozen=True)
class Lengths:
    """How texts are made to fit, in tokens. stride: what two windows over a long text share."""

    max_length: int
    stride: int


Labels = Sequence[str]
Read = Callable[[Source, Columns, bool], Examples[Any]]
Encode = Callable[[Tokenizer, Sequence[Any], Labels, Lengths], EncodedRows]
LengthFault = Callable[[Tokenizer, Any, Lengths], str | None]
Settle = Callable[[AlbertConfig, Figures], tuple[Objective, AlbertConfig]]


@dataclass(frozen=True)
class FinetuneTask:
    """One task. read: source, columns, whether to skip bad rows ► examples. encode: tokenizer, examples, label names,
    lengths ► rows for the loop. objective: number of labels ► Objective.

    labels_of: the label names of an example; None where the outputs bear no names, `outputs` says how many there are
    then (None: no head). options: those of the command that the task heeds beside what all do. settle: config and the
    figures of the dev set ► the objective that judges the test set, and the config to write. length_fault: why an
    example cannot be made to fit, None if it can.
    """

    read: Read
    encode: Encode
    objective: Callable[[int], Objective]
    labels_of: Callable[[Any], Iterable[str]] | None = None
    outputs: int | None = None
    problem_type: str | None = None
    options: tuple[str, ...] = ()
    settle: Settle | None = None
    length_fault: LengthFault | None = None


def _read_numbers(source: Source, columns: Columns, skip_bad: bool) -> Examples[Example]:
    return read_examples(source, columns, number_fault, skip_bad=skip_bad)


def _read_pairs(source: Source, columns: Columns, skip_bad: bool) -> Examples[Example]:
    return read_examples(source, columns, number_fault, skip_bad=skip_bad, needs_pair=True)


def _encode_classes(tokenizer: Tokenizer, rows: Sequence[Example], labels: Labels, lengths: Lengths) -> EncodedRows:
    numbers = {label: i for i, label in enumerate(labels)}
    targets = np.array([numbers[row.label] for row in rows], dtype=np.int64)
    return encode_examples(tokenizer, rows, targets, lengths.max_length)


def _encode_numbers(tokenizer: Tokenizer, rows: Sequence[Example], labels: Labels, lengths: Lengths) -> EncodedRows:
    targets = np.array([float(row.label) for row in rows], dtype=np.float32)
    return encode_examples(tokenizer, rows, targets, lengths.max_length)


def _settle_null_threshold(config: AlbertConfig, dev: Figures) -> tuple[Objective, AlbertConfig]:
    """The dev set's threshold judges the test set and goes into config.json, where the runtime looks for it."""
    name = question_answering.NULL_THRESHOLD
    threshold = dev.get(name)
    extra = {key: value for key, value in config.extra.items() if key != name}
    if threshold is not None:
        extra[name] = threshold
    objective = question_answering.question_answering(best=False, threshold=threshold)
    return objective, replace(config, extra=extra)


_TABLE = ("text-column", "pair-column", "label-column", "no-header")

FINETUNE_TASKS: dict[str, FinetuneTask] = {
    "text-classification": FinetuneTask(
        read=lambda source, columns, skip: read_examples(source, columns, any_label, skip_bad=skip),
        encode=_encode_classes,
        objective=OBJECTIVES["text-classification"],
        labels_of=own_label,
        problem_type="single_label_classification",
        options=_TABLE,
    ),
    "text-regression": FinetuneTask(
        read=_read_numbers,
        encode=_encode_numbers,
        objective=OBJECTIVES["text-regression"],
        outputs=1,
        options=_TABLE,
    ),
    "token-classification": FinetuneTask(
        read=lambda source, columns, skip: tagging.read_sentences(source, columns, skip_bad=skip),
        encode=lambda tokenizer, rows, labels, lengths: tagging.encode_sentences(
            tokenizer, rows, labels, lengths.max_length, lengths.stride
        ),
        objective=tagging.token_classification,
        labels_of=tagging.tags_of,
        options=("text-column", "label-column", "stride"),
    ),
    "question-answering": FinetuneTask(
        read=lambda source, columns, skip: question_answering.read_questions(source, skip_bad=skip),
        encode=lambda tokenizer, rows, labels, lengths: question_answering.encode_questions(
            tokenizer, rows, lengths.max_length, lengths.stride
        ),
        objective=question_answering.question_answering,
        outputs=2,
        options=("stride",),
        settle=_settle_null_threshold,
        length_fault=lambda tokenizer, question, lengths: question_answering.length_fault(
            tokenizer, question, lengths.max_length, lengths.stride
        ),
    ),
    "multiple-choice": FinetuneTask(
        read=lambda source, columns, skip: multiple_choice.read_choices(source, skip_bad=skip),
        encode=lambda tokenizer, rows, labels, lengths: multiple_choice.encode_choices(
            tokenizer, rows, lengths.max_length
        ),
        objective=multiple_choice.multiple_choice,
        outputs=1,
    ),
    "sentence-embedding": FinetuneTask(
        read=_read_pairs,
        encode=lambda tokenizer, rows, labels, lengths: embedding.encode_pairs(tokenizer, rows, lengths.max_length),
        objective=embedding.sentence_embedding,
        options=_TABLE,
    ),
}
