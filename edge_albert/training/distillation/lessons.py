"""The texts of a distillation: labelled rows, and unlabelled ones that only the teacher has an opinion of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge_albert.errors import CheckpointError, DataError
from edge_albert.tokenizer import Tokenizer
from edge_albert.training.data.batches import EncodedTexts, encode_examples
from edge_albert.training.data.examples import Example
from edge_albert.training.data.rows import numbered_lines, read_text
from edge_albert.training.distillation.loss import UNLABELLED
from edge_albert.training.distillation.teacher import Teacher, Text


@dataclass(frozen=True)
class Lesson:
    """All rows a student learns from, labelled ones first. labels: (N,) int64, UNLABELLED for those without; for a
    regression float32, NaN for those without."""

    rows: list[Example]
    labels: np.ndarray

    @property
    def texts(self) -> list[Text]:
        return [(row.text, row.pair) for row in self.rows]

    def encode(self, tokenizer: Tokenizer, max_length: int) -> EncodedTexts:
        return encode_examples(tokenizer, self.rows, self.labels, max_length)


def make_lesson(labelled: Sequence[Example], labels: np.ndarray, unlabelled: Sequence[Example]) -> Lesson:
    """labels: (N,) of the labelled rows. Raises DataError when single texts and pairs are mixed."""
    rows = [*labelled, *unlabelled]
    odd = next((row for row in rows if (row.pair is None) != (rows[0].pair is None)), None)
    if odd is not None:
        raise DataError(
            "the unlabelled texts are not of the kind of the labelled ones, or not all of one kind: for pairs, a line "
            f"holds both texts with a tab between; for single texts it holds none; line {odd.line}: {odd.text[:40]!r}"
        )
    filler = np.nan if labels.dtype == np.float32 else UNLABELLED
    return Lesson(rows, np.concatenate([labels, np.full(len(unlabelled), filler, dtype=labels.dtype)]))


def read_unlabelled(paths: Sequence[Path]) -> list[Example]:
    """One text a line, or a pair with a tab between; blank lines are passed over.

    Raises DataError for a file that cannot be read, one without a text, and a line that is half a pair, naming it.
    """
    out: list[Example] = []
    for path in paths:
        before = len(out)
        for number, line in numbered_lines(read_text(path)):
            text, tab, pair = line.partition("\t")
            if not line.strip():
                continue
            if tab and not (text.strip() and pair.strip()):
                raise DataError(f"{path}:{number}: half a pair: a line holds one text, or two with a tab between")
            out.append(Example(text.strip(), pair.strip() if tab else None, "", number))
        if len(out) == before:
            raise DataError(f"{path}: holds no text: an unlabelled file has one text a line")
    return out


def names_of(teacher: Teacher, labels: Iterable[str]) -> list[str]:
    """The teacher's labels by number; transformers' placeholders are called 0, 1 … where `labels` are."""
    names = list(teacher.labels)
    numbers = [str(i) for i in range(len(names))]
    if names == [f"LABEL_{i}" for i in range(len(names))] and set(labels) <= set(numbers):
        return numbers
    return names


def label_order(teacher: Teacher, labels: Sequence[str]) -> np.ndarray:
    """Which of the teacher's outputs is each label's, (K,): the same labels in another order are put in order.

    transformers' placeholders LABEL_0, LABEL_1 … stand for labels that are called 0, 1 … Raises CheckpointError when
    the teacher's labels are others.
    """
    names = names_of(teacher, labels)
    if sorted(names) != sorted(labels):
        raise CheckpointError(
            f"{teacher.source}: its labels are {', '.join(names)}, the training rows' are {', '.join(labels)}: name "
            "them alike (id2label in its config.json), or take a teacher of these labels"
        )
    return np.array([names.index(label) for label in labels])
