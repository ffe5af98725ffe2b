"""Files ► rows: TSV, CSV, JSON lines, Parquet, a split of a data set, and the folders of the SNIPS benchmark.

A row maps column names to values and comes with its place in its source: the line, from 1, in a file that has lines.
What cannot be read as a row comes out as the reason why, so that the caller can count and name it.

TSV is GLUE's: a header, tabs, and no quoting, so a quotation mark is a character like any other. CSV quotes as
spreadsheets do, and a quoted field may span lines. JSON lines hold one object each. A file without a header (the SMS
Spam Collection) has its columns numbered from 1. A SNIPS folder holds three files with a line for each utterance:
seq.in (words), seq.out (a BIO tag for each word) and label (the intent).
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from edge_albert.errors import DataError
from edge_albert.training.data.datasets import DatasetSplit, parquet_rows

Place = int | str
Row = Mapping[str, Any]
Rows = Iterator[tuple[Place, Row | str]]
Source = Path | DatasetSplit

JSON_LINES = (".jsonl", ".json")
_SNIPS = ("seq.in", "seq.out", "label")


def structured_rows(source: Source, other: Callable[[Path], Rows], json_lines: tuple[str, ...] = JSON_LINES) -> Rows:
    """The rows of a data set's split, a Parquet file, or a file of JSON lines; `other` reads any other path."""
    if isinstance(source, DatasetSplit):
        return source.rows()
    if source.suffix.lower() == ".parquet":
        return parquet_rows(source)
    if source.suffix.lower() in json_lines and not source.is_dir():
        return json_rows(read_text(source))
    return other(source)


def text_rows(source: Source, header: bool) -> Rows:
    """Rows with a text and a label, of any form that `structured_rows` reads, a SNIPS folder, a .csv or a TSV file."""
    return structured_rows(source, lambda path: snips_rows(path) if path.is_dir() else _table_rows(path, header))


def read_text(path: Path) -> str:
    """A file's content. Raises DataError when it cannot be read or is not UTF-8."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{line}: not UTF-8 (byte {content[error.start]:#04x}): convert the file") from None


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines, ended by LF or CRLF alone: other separators, such as U+2028, belong to the text."""
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return ((number, line.removesuffix("\r")) for number, line in enumerate(lines, start=1))


def json_rows(text: str) -> Rows:
    """One JSON object a line."""
    for number, line in numbered_lines(text):
        if not line.strip():
            yield number, "empty row"
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            yield number, f"not JSON ({error})"
            continue
        yield number, row if isinstance(row, dict) else "not a JSON object"


def snips_rows(folder: Path) -> Rows:
    """Rows with text, label, tokens and tags. Raises DataError for a folder that is not of this form."""
    if missing := [name for name in _SNIPS if not (folder / name).is_file()]:
        raise DataError(
            f"{folder}: a folder of labelled utterances holds {', '.join(_SNIPS)}; missing: {', '.join(missing)}"
        )
    columns = [[line for _, line in numbered_lines(read_text(folder / name))] for name in _SNIPS]
    if len({len(column) for column in columns}) > 1:
        counts = ", ".join(f"{name} {len(column)}" for name, column in zip(_SNIPS, columns, strict=True))
        raise DataError(f"{folder}: its files have different numbers of lines ({counts})")
    for number, (words, tags, label) in enumerate(zip(*columns, strict=True), start=1):
        yield number, {"text": words.strip(), "label": label, "tokens": words.split(), "tags": tags.split()}


# -- tables ------------------------------------------------------------------------------------------------------------


def _table_rows(path: Path, header: bool) -> Rows:
    text = read_text(path)
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


def _tsv_lines(text: str) -> Iterator[tuple[int, list[str]]]:
    return ((number, line.split("\t")) for number, line in numbered_lines(text))


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


def _check_header(names: list[str], path: Path) -> None:
    doubled = {name for name in names if names.count(name) > 1}
    if doubled:
        raise DataError(
            f"{path}:1: the header names {', '.join(sorted(doubled))} more than once (no header? --no-header)"
        )
