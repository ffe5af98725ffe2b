"""Labelled text from rows: what a row must hold to be an `Example`, and which rows cannot be used, named by line.

`collect` is how every task reads: rows of any source (`rows.py`) go through the task's parser, and what the parser
refuses is counted and named, and refused or left out. `Example` is one text, or a pair of texts, with a label.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from edge_albert.errors import DataError
from edge_albert.training.data.datasets import ClassName
from edge_albert.training.data.rows import Place, Row, Rows, Source, text_rows

# Where the columns are when nobody says: the names GLUE's files have, the first that is there.
TEXT_COLUMNS = ("sentence", "text", "sentence1")
PAIR_COLUMNS = ("sentence2",)
PAIRS = (("question", "sentence"), ("premise", "hypothesis"), ("question1", "question2"))  # QNLI; MNLI and others; QQP
LABEL_COLUMNS = ("label", "score")
_NAMED = 5  # bad rows named in a message; the rest is counted

R = TypeVar("R")


@dataclass(frozen=True)
class Columns:
    """Which column holds what: a name from the header or the JSON object, a number from 1 in a file without one.

    None looks for GLUE's names (sentence, text, sentence1 with sentence2, question with sentence, premise with
    hypothesis, question1 with question2; label, score).
    """

    text: str | None = None
    pair: str | None = None
    label: str | None = None
    header: bool = True


@dataclass(frozen=True)
class Example:
    """One labelled text, or pair of texts. `line`, from 1, is where it stands in its file."""

    text: str
    pair: str | None
    label: str
    line: Place


@dataclass(frozen=True)
class Examples(Generic[R]):
    """A source's usable rows, and why each of the others is not (`file:line: reason`)."""

    path: Source
    rows: list[R]
    bad: list[str]


def collect(source: Source, rows: Rows, parse: Callable[[Row, Place], R | str], *, skip_bad: bool) -> Examples[R]:
    """What `parse` makes of every row; a string from it, or in place of a row, is the reason why it cannot be used.

    Raises DataError, naming places, when there are bad rows and not skip_bad, and for a source without a usable row.
    """
    found: Examples[R] = Examples(source, [], [])
    for place, row in rows:
        made = row if isinstance(row, str) else parse(row, place)
        if isinstance(made, str):
            found.bad.append(f"{source}:{place}: {made}")
        else:
            found.rows.append(made)
    return _usable(found, skip_bad)


def without_faults(part: Examples[R], fault_of: Callable[[R], str | None], *, skip_bad: bool) -> Examples[R]:
    """`part` without the rows in which `fault_of` finds one; each has a `line`. Raises DataError as `collect` does."""
    left: Examples[R] = Examples(part.path, [], list(part.bad))
    for row in part.rows:
        fault = fault_of(row)
        if fault is None:
            left.rows.append(row)
        else:
            left.bad.append(f"{part.path}:{row.line}: {fault}")  # type: ignore[attr-defined]
    return _usable(left, skip_bad)


def _usable(found: Examples[R], skip_bad: bool) -> Examples[R]:
    if found.bad and not skip_bad:
        raise DataError(f"{describe_bad(found.bad)}; correct them, or leave them out with --bad-rows skip")
    if not found.rows:
        raise DataError(f"{found.path}: holds no usable row{': ' + describe_bad(found.bad) if found.bad else ''}")
    return found


def read_examples(
    path: str | Source,
    columns: Columns,
    check_label: Callable[[str], str | None],
    *,
    skip_bad: bool,
    needs_pair: bool = False,
) -> Examples[Example]:
    """Read a .csv file, .jsonl (.json), .parquet, a SNIPS folder, a data set's split, or a TSV file of any other name.

    check_label gives the reason why a label cannot be used, or None. A row is bad when its number of fields is not the
    header's, its text or its label is empty, or that check fails. Raises DataError as `collect` does, for a file that
    cannot be read at all, and for columns that are not there; needs_pair: the second text's is one of them.
    """
    source = Path(path) if isinstance(path, str) else path
    choose = ColumnChoice(source, lambda names: _choose(columns, names, source, needs_pair), skip_bad)

    def parse(row: Row, place: Place) -> Example | str:
        chosen = choose(row)
        if isinstance(chosen, str):
            return chosen
        text, pair, label = chosen
        example = Example(
            text=text_of(row.get(text)),
            pair=None if pair is None else text_of(row.get(pair)),
            label=_label_of(row.get(label)),
            line=place,
        )
        return _fault(example, check_label) or example

    return collect(source, text_rows(source, columns.header), parse, skip_bad=skip_bad)


class ColumnChoice(Generic[R]):
    """The columns of a source, by the first row that has them. pick: a row's names ► the columns, or DataError.

    skip_bad: a row before that one is bad; otherwise it is an error.
    """

    def __init__(self, source: Source, pick: Callable[[list[str]], R], skip_bad: bool) -> None:
        self._source, self._pick, self._skip_bad = source, pick, skip_bad
        self._found: R | None = None

    def __call__(self, row: Row) -> R | str:
        """The columns, or where bad rows are left out why this row has none. Raises DataError."""
        if self._found is None:
            try:
                self._found = self._pick(list(row))
            except DataError as error:
                if not self._skip_bad:
                    raise
                return str(error).removeprefix(f"{self._source}: ")
        return self._found


def column_names(path: str | Path, *, header: bool = True) -> list[str]:
    """The columns of a data file, from its first row that can be read. Raises DataError for a file without one."""
    for _, row in text_rows(Path(path), header):
        if not isinstance(row, str):
            return list(row)
    raise DataError(f"{path}: holds no usable row")


def describe_bad(bad: list[str]) -> str:
    """The first few of the bad rows, and how many there are, in one line."""
    more = f", and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
    return f"{len(bad)} bad row{'s' if len(bad) > 1 else ''}: {', '.join(bad[:_NAMED])}{more}"


def number_fault(label: str) -> str | None:
    """A `check_label` for regression: the label must be a finite number."""
    try:
        finite = math.isfinite(float(label))
    except ValueError:
        finite = False
    return None if finite else f"label {label!r} is not a finite number"


def any_label(label: str) -> str | None:
    """A `check_label` for classification, where every name is a label."""
    return None


def own_label(row: Example) -> tuple[str, ...]:
    """The labels of a row that has one: what the two functions below ask of it."""
    return (row.label,)


def label_names(train: Iterable[Any], labels_of: Callable[[Any], Iterable[str]] = own_label) -> list[str]:
    """The labels of the training rows in a fixed order: as their data set has them, whole numbers by value, or by name.

    The order matters beyond looks: GLUE's F1 is that of label 1.
    """
    names = {label for row in train for label in labels_of(row)}
    if names and all(isinstance(name, ClassName) for name in names):
        return [str(name) for name in sorted(names, key=lambda name: name.number)]  # type: ignore[attr-defined]
    numeric = all(re.fullmatch("-?[0-9]+", name) for name in names)
    return sorted(names, key=lambda name: (int(name), name)) if numeric else sorted(names)


def refuse_unseen_labels(
    examples: Examples[Any],
    labels: list[str],
    why: str = "occurs in no training row: the training file has",
    *,
    labels_of: Callable[[Any], Iterable[str]] = own_label,
) -> None:
    """Raise DataError when a development or test row has a label that is not among these, naming label and line."""
    known = set(labels)
    for row in examples.rows:
        for label in labels_of(row):
            if label not in known:
                raise DataError(f"{examples.path}:{row.line}: label {label!r} {why} {', '.join(labels)}")


# -- the fields of a row -----------------------------------------------------------------------------------------------


def _choose(columns: Columns, names: list[str], path: Source, needs_pair: bool = False) -> tuple[str, str | None, str]:
    """The names of the text, pair and label columns among `names`. Raises DataError that lists what there is."""
    if columns.text is None and columns.pair is None and "text" not in names:
        for first, second in PAIRS:
            if first in names and second in names:
                return first, second, pick_column("label", columns.label, LABEL_COLUMNS, names, path)
    text = pick_column("text", columns.text, TEXT_COLUMNS, names, path)
    guess_pair = columns.pair is None and columns.text is None and text == "sentence1"
    with_pair = needs_pair or guess_pair or columns.pair is not None
    pair = pick_column("pair", columns.pair, PAIR_COLUMNS, names, path) if with_pair else None
    return text, pair, pick_column("label", columns.label, LABEL_COLUMNS, names, path)


def pick_column(role: str, wanted: str | None, usual: tuple[str, ...], names: list[str], path: Source) -> str:
    """The column for a role: the wanted one, else the first usual one there. Raises DataError that lists all."""
    for name in usual if wanted is None else (wanted,):
        if name in names:
            return name
    sought = f"no {' or '.join(usual)} column" if wanted is None else f"no column {wanted!r}"
    raise DataError(f"{path}: {sought} for the {role}: name one of {', '.join(names)} with --{role}-column")


def _label_of(value: Any) -> str:
    return value if isinstance(value, ClassName) else text_of(value).strip()


def text_of(value: Any) -> str:
    """A field as text: JSON's numbers and booleans as JSON writes them, null and nested values as nothing."""
    if isinstance(value, str):
        return value
    return json.dumps(value) if isinstance(value, bool | int | float) else ""


def _fault(example: Example, check_label: Callable[[str], str | None]) -> str | None:
    if not example.text.strip():
        return "empty text"
    if example.pair is not None and not example.pair.strip():
        return "empty second text"
    return check_label(example.label) if example.label else "empty label"
