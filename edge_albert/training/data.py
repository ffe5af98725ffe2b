"""Labelled text from files: TSV, CSV and JSON lines become `Example`s; rows that cannot be used are named by line.

TSV is GLUE's: a header, tabs, and no quoting, so a quotation mark is a character like any other. CSV quotes as
spreadsheets do, and a quoted field may span lines. JSON lines hold one object each. A file without a header (the SMS
Spam Collection) has its columns numbered from 1.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_albert.errors import DataError

# Where the columns are when nobody says: the names GLUE's files have, the first that is there.
TEXT_COLUMNS = ("sentence", "text", "sentence1")
PAIR_COLUMNS = ("sentence2",)
LABEL_COLUMNS = ("label", "score")
_NAMED = 5  # bad rows named in a message; the rest is counted

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Columns:
    """Which column holds what: a name from the header or the JSON object, a number from 1 in a file without one.

    None looks for GLUE's names (sentence, text, sentence1 with sentence2; label, score).
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
    line: int


@dataclass(frozen=True)
class Examples:
    """A file's usable rows, and why each of the others is not (`file:line: reason`)."""

    path: Path
    rows: list[Example]
    bad: list[str]


def read_examples(
    path: str | Path, columns: Columns, check_label: Callable[[str], str | None], *, skip_bad: bool
) -> Examples:
    """Read a .csv file, a .jsonl (.json) file, or a TSV file under any other ending.

    check_label gives the reason why a label cannot be used, or None. A row is bad when its number of fields is not the
    header's, its text or its label is empty, or that check fails. Raises DataError, naming lines, when there are bad
    rows and not skip_bad, for a file that cannot be read at all, and for one without a usable row.
    """
    path = Path(path)
    found = Examples(path, [], [])
    chosen: tuple[str, str | None, str] | None = None
    for line, row in _rows(path, columns.header):
        if isinstance(row, str):
            found.bad.append(f"{path}:{line}: {row}")
            continue
        chosen = chosen or _choose(columns, list(row), path)
        example = Example(
            text=_text_of(row.get(chosen[0])),
            pair=None if chosen[1] is None else _text_of(row.get(chosen[1])),
            label=_text_of(row.get(chosen[2])).strip(),
            line=line,
        )
        reason = _fault(example, check_label)
        if reason is None:
            found.rows.append(example)
        else:
            found.bad.append(f"{path}:{line}: {reason}")
    if found.bad and not skip_bad:
        raise DataError(f"{describe_bad(found.bad)}; correct them, or leave them out with --bad-rows skip")
    if not found.rows:
        raise DataError(f"{path}: holds no usable row{': ' + describe_bad(found.bad) if found.bad else ''}")
    return found


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


def label_names(train: Iterable[Example]) -> list[str]:
    """The labels of the training rows in a fixed order: whole numbers by value, otherwise by name."""
    names = {row.label for row in train}
    numeric = all(re.fullmatch("-?[0-9]+", name) for name in names)
    return sorted(names, key=lambda name: (int(name), name)) if numeric else sorted(names)


def refuse_unseen_labels(examples: Examples, labels: list[str]) -> None:
    """Raise DataError when a development or test row has a label that no training row has, naming label and line."""
    for row in examples.rows:
        if row.label not in labels:
            raise DataError(
                f"{examples.path}:{row.line}: label {row.label!r} occurs in no training row: the training file has "
                f"{', '.join(labels)}"
            )


# -- rows of a file ----------------------------------------------------------------------------------------------------


def _rows(path: Path, header: bool) -> Iterator[tuple[int, Row | str]]:
    """(line number, column ► value), or (line number, why the row cannot be read)."""
    text = _read_text(path)
    if path.suffix.lower() in (".jsonl", ".json"):
        yield from _json_rows(text)
        return
    lines = _csv_lines(text, path) if path.suffix.lower() == ".csv" else _tsv_lines(text)
    names: list[str] | None = None
    for line, fields in lines:
        if names is None:
            names = fields if header else [str(i + 1) for i in range(len(fields))]
            if header:
                _check_header(names, path)
                continue
        if len(fields) == len(names):
            yield line, dict(zip(names, fields, strict=True))
        elif fields in ([], [""]):
            yield line, "empty row"
        else:
            yield line, f"{len(fields)} fields where {'the header' if header else 'the first row'} has {len(names)}"


def _read_text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{line}: not UTF-8 (byte {content[error.start]:#04x}): convert the file") from None


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines, ended by LF or CRLF alone: other separators, such as U+2028, belong to the text."""
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return ((number, line.removesuffix("\r")) for number, line in enumerate(lines, start=1))


def _tsv_lines(text: str) -> Iterator[tuple[int, list[str]]]:
    return ((number, line.split("\t")) for number, line in _lines(text))


def _csv_lines(text: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """A row's line is its first, even where a quoted field spans several."""
    csv.field_size_limit(max(csv.field_size_limit(), len(text) + 1))
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(f"{path}:{line}: not CSV ({error})") from None
        yield line, fields


def _json_rows(text: str) -> Iterator[tuple[int, Row | str]]:
    for number, line in _lines(text):
        if not line.strip():
            yield number, "empty row"
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            yield number, f"not JSON ({error})"
            continue
        yield number, row if isinstance(row, dict) else "not a JSON object"


def _check_header(names: list[str], path: Path) -> None:
    doubled = {name for name in names if names.count(name) > 1}
    if doubled:
        raise DataError(
            f"{path}:1: the header names {', '.join(sorted(doubled))} more than once (no header? --no-header)"
        )


# -- the fields of a row -----------------------------------------------------------------------------------------------


def _choose(columns: Columns, names: list[str], path: Path) -> tuple[str, str | None, str]:
    """The names of the text, pair and label columns among `names`. Raises DataError that lists what there is."""
    text = _pick("text", columns.text, TEXT_COLUMNS, names, path)
    guess_pair = columns.pair is None and columns.text is None and text == "sentence1"
    pair = _pick("pair", columns.pair, PAIR_COLUMNS, names, path) if guess_pair or columns.pair is not None else None
    return text, pair, _pick("label", columns.label, LABEL_COLUMNS, names, path)


def _pick(role: str, wanted: str | None, usual: tuple[str, ...], names: list[str], path: Path) -> str:
    for name in usual if wanted is None else (wanted,):
        if name in names:
            return name
    sought = f"no {' or '.join(usual)} column" if wanted is None else f"no column {wanted!r}"
    raise DataError(f"{path}: {sought} for the {role}: name one of {', '.join(names)} with --{role}-column")


def _text_of(value: Any) -> str:
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
