"""The texts a model is calibrated on or judged by: the project's own sentences, or a user's file, as inputs of a model.

A .txt file holds one text a line. TSV, CSV and JSONL are read as for training. For calibration labels are optional and
not used; but a label that the model does not know, or one that is no number where it gives numbers, gives a file of
another task away.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from calibration.agreement import Example, as_inputs, default_texts
from edge_albert.config import AlbertConfig, count_macs
from edge_albert.errors import DataError
from edge_albert.tasks import Task
from edge_albert.tokenizer import Encoding, Tokenizer
from edge_albert.training.data.examples import (
    LABEL_COLUMNS,
    TEXT_COLUMNS,
    Columns,
    Examples,
    any_label,
    column_names,
    number_fault,
    read_examples,
)

FEW = 16  # fewer texts are a warning
MOST_TEXTS = 512
MOST_MACS = 1e12  # multiply-adds of one pass of the float model over the set: half a minute on a laptop
_Item = TypeVar("_Item")
_PAIRS = ("question-answering", "multiple-choice")  # tasks that read two texts


@dataclass(frozen=True)
class TextFile:
    """A user's file and how to read it; `columns` and `skip_bad` as `read_examples` has them."""

    path: Path
    columns: Columns = field(default_factory=Columns)
    skip_bad: bool = False


@dataclass(frozen=True)
class TextSet:
    """Inputs of one model. source: the file's name; offered: how many texts it has, of which `examples` are used."""

    source: str
    offered: int
    examples: Sequence[Example]

    @property
    def encodings(self) -> list[Encoding]:
        return [example.encoding for example in self.examples]

    @property
    def sha256(self) -> str:
        """Of the texts that are used, in their order."""
        texts = [[example.text, example.pair] for example in self.examples]
        return hashlib.sha256(json.dumps(texts, ensure_ascii=False).encode()).hexdigest()

    @property
    def warning(self) -> str | None:
        """What to say before the figures are believed, or None."""
        if self.offered >= FEW:
            return None
        return f"{self.source}: only {self.offered} texts: ranges and sensitivities from fewer than {FEW} are guesses"


def calibration_set(file: TextFile | None, config: AlbertConfig, task: Task, tokenizer: Tokenizer) -> TextSet:
    """The project's own sentences, or those of `file`: at most MOST_TEXTS and MOST_MACS, evenly spaced over it.

    Raises DataError for a file that is empty or belongs to another task.
    """
    if file is None:
        source, rows = "the project's own sentences", as_inputs(default_texts(), task)
    else:
        source, rows = file.path.name, _read_texts(file, config, task)
    kept = spread(rows, MOST_TEXTS)
    examples = [encode(text, pair, config, tokenizer) for text, pair in kept]
    macs = sum(count_macs(config, len(example.encoding.input_ids)) for example in examples)
    return TextSet(source, len(rows), spread(examples, max(FEW, int(len(examples) * min(1.0, MOST_MACS / macs)))))


def encode(text: str, pair: str | None, config: AlbertConfig, tokenizer: Tokenizer) -> Example:
    """One input of the model, cut to what the model takes."""
    longest = config.max_position_embeddings
    return Example(
        text, pair, tokenizer.encode(text, pair, max_length=min(longest, tokenizer.model_max_length or longest))
    )


def label_numbers(examples: Examples, config: AlbertConfig) -> np.ndarray:
    """(N,) int64: each row's label as the model's output counts it. Raises DataError for one that the model lacks.

    A model whose labels are called LABEL_0, LABEL_1, …, as Hugging Face's are when nobody named them, takes the bare
    numbers too.
    """
    numbers = {label: i for i, label in enumerate(config.labels)}
    if all(label == f"LABEL_{i}" for label, i in numbers.items()):
        numbers |= {str(i): i for i in range(len(numbers))}
    for row in examples.rows:
        if row.label not in numbers:
            raise DataError(
                f"{examples.path}:{row.line}: the model has no label {row.label!r}, only {', '.join(config.labels)}: "
                "the file is for another task, or its label column has another name (--label-column)"
            )
    return np.array([numbers[row.label] for row in examples.rows], dtype=np.int64)


def read_labelled(file: TextFile, config: AlbertConfig, task: Task) -> tuple[Examples, np.ndarray]:
    """A file's rows and what is right for each: label numbers (N,) int64, or for other tasks real values (N,)."""
    if task.name == "text-classification":
        examples = read_examples(file.path, file.columns, any_label, skip_bad=file.skip_bad)
        return examples, label_numbers(examples, config)
    examples = read_examples(file.path, file.columns, number_fault, skip_bad=file.skip_bad)
    return examples, np.array([float(row.label) for row in examples.rows])


def _read_texts(file: TextFile, config: AlbertConfig, task: Task) -> list[tuple[str, str | None]]:
    if file.path.suffix.lower() == ".txt":
        texts = [line.strip() for line in _read_lines(file.path) if line.strip()]
        if not texts:
            raise DataError(f"{file.path}: holds no text: calibration needs at least one, and better hundreds")
        _refuse_without_pair(file, task, None)
        return [(text, None) for text in texts]
    own = _task_texts(file, task)
    if own is not None:
        return own
    names = column_names(file.path, header=file.columns.header)
    columns = _with_usual_pair(file.columns, task, names)
    label = columns.label or next((name for name in LABEL_COLUMNS if name in names), None)
    if label is not None and task.name in ("text-classification", "text-regression"):
        labelled, _ = read_labelled(replace(file, columns=columns), config, task)
        rows = labelled.rows
    else:  # the reader wants a label, which nobody will look at
        text = columns.text or next((name for name in TEXT_COLUMNS if name in names), None)
        rows = read_examples(file.path, replace(columns, label=text), any_label, skip_bad=file.skip_bad).rows
    _refuse_without_pair(file, task, rows[0].pair)
    if task.head is None:  # an embedding reads one text at a time
        return [(text, None) for row in rows for text in (row.text, row.pair) if text is not None]
    return [(row.text, row.pair) for row in rows]


def _task_texts(file: TextFile, task: Task) -> list[tuple[str, str | None]] | None:
    """The texts of a file in the form of the task's own data, which `finetune` reads with code that needs PyTorch:
    SQuAD's JSON, questions with options, words with tags. None for a file of another form."""
    table = file.path.suffix.lower() in (".tsv", ".csv")
    names = set() if table or file.path.is_dir() else _first_names(file)
    if task.name == "question-answering" and file.path.suffix.lower() == ".json":
        from edge_albert.training.finetuning.question_answering import read_questions

        return [(row.question, row.context) for row in read_questions(file.path, skip_bad=file.skip_bad).rows]
    if task.name == "multiple-choice" and (file.path.is_dir() or names & {"options", "choices"}):
        from edge_albert.training.finetuning.multiple_choice import option_text, read_choices

        questions = read_choices(file.path, skip_bad=file.skip_bad).rows
        return [(row.context, option_text(row.question, option)) for row in questions for option in row.options]
    if task.name == "token-classification" and not table and (not names or names & {"tokens", "words"}):
        from edge_albert.training.finetuning.tagging import read_sentences

        sentences = read_sentences(file.path, file.columns, skip_bad=file.skip_bad).rows
        return [(" ".join(row.words), None) for row in sentences]
    return None


def _first_names(file: TextFile) -> set[str]:
    """The columns of a file of JSON lines, none for one of another form."""
    if file.path.suffix.lower() not in (".jsonl", ".parquet"):
        return set()
    return set(column_names(file.path))


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: not UTF-8: convert the file") from None


def _with_usual_pair(columns: Columns, task: Task, names: Sequence[str]) -> Columns:
    """SQuAD's names for a question-answering file without others."""
    usual = columns.text is None and columns.pair is None and {"question", "context"} <= set(names)
    return replace(columns, text="question", pair="context") if usual and task.name in _PAIRS else columns


def _refuse_without_pair(file: TextFile, task: Task, pair: str | None) -> None:
    if task.name in _PAIRS and pair is None:
        raise DataError(
            f"{file.path}: single texts, and {task.name} reads two: a .tsv, .csv or .jsonl file with both "
            "(--text-column and --pair-column name them) is needed"
        )


def spread(items: Sequence[_Item], most: int) -> list[_Item]:
    """At most `most` of the items, evenly spaced, so that a sorted file is not taken from its head."""
    return [items[i] for i in np.unique(np.linspace(0, len(items) - 1, min(most, len(items))).round().astype(int))]
