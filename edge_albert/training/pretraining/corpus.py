"""Raw text ► documents, each a list of sentences, one at a time: a corpus need not fit in memory.

A source is a file, a folder (every corpus file below it, in order of path) or a `DatasetSource`. The file's name says
its form; each may be compressed with xz (`….txt.xz`, or `….xz` alone for text):

    .txt      documents separated by blank lines (BERT's and ALBERT's form)
    .jsonl    one JSON object a line, its field `text` a document

Lines are cut into sentences by a plain rule: end punctuation, then a space, then something that can begin a sentence.
It cuts "Mr. Smith" too. That costs nothing: a sentence end is only where a training example may begin or end, and
where sentence-order prediction may put its seam (ALBERT section 3.1 asks for segments of text, not for sentences).
"""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from edge_albert.errors import DataError

Document = list[str]  # sentences, none of them empty

TEXT_FIELD = "text"
LONGEST_DOCUMENT = 50_000  # sentences: text without blank lines is cut there, or all of it would have to be in memory
SUFFIXES = (".txt", ".jsonl", ".txt.xz", ".jsonl.xz")
# The look-behind keeps it linear: a run of dots is tried once, from its beginning.
_SENTENCE_END = re.compile(r"(?<![.!?])[.!?]+[\"')\]”’]*\s+(?=[\"'(\[“‘]?[^\W_a-z])|[。！？]+[”」』]*")


def split_sentences(line: str) -> list[str]:
    """The sentences of one line, whitespace at their ends removed; [] for a blank line."""
    cuts = [0, *(match.end() for match in _SENTENCE_END.finditer(line)), len(line)]
    parts = (line[start:end].strip() for start, end in pairwise(cuts))
    return [part for part in parts if part]


@dataclass(frozen=True)
class DatasetSource:
    """A data set of the Hugging Face hub, or a local one (`datasets.load_dataset`'s first argument), read as a stream.

    config: which of its configurations, where it has several.

    Its shards are read one after the other; nothing but the current rows is in memory. Needs the package `datasets`.
    """

    name: str
    split: str = "train"
    config: str | None = None

    def __str__(self) -> str:
        return self.name if self.config is None else f"{self.name}:{self.config}"

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows in order. Raises DataError when there is no such data set, or its files cannot be read."""
        try:
            from datasets import load_dataset
        except ModuleNotFoundError:
            raise DataError(f"data set {self}: needs the package datasets: pip install datasets") from None
        try:
            yield from load_dataset(self.name, self.config, split=self.split, streaming=True)
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise DataError(f"data set {self}, split {self.split}: cannot be read ({reason})") from None


Source = Path | DatasetSource


class Corpus:
    """Documents from files and data sets, in the order given.

    text_field: where a JSONL or data set row holds its text. `total_bytes` is the size of the files on the disk and
    `bytes_read` how much of it has been consumed, for a progress bar; data sets count nothing.
    Raises DataError for a source that is missing, unreadable or of no known form, and for a row that cannot be used,
    naming the line.
    """

    def __init__(self, sources: Sequence[Source], *, text_field: str = TEXT_FIELD) -> None:
        self.sources: list[Source] = []
        for source in sources:
            self.sources += _corpus_files(source) if isinstance(source, Path) else [source]
        self.text_field = text_field
        self.total_bytes = sum(s.stat().st_size for s in self.sources if isinstance(s, Path))
        self.bytes_read = 0

    @property
    def description(self) -> list[str]:
        """One line per source, to tell two corpora apart: a file's name and size, or a data set's name and split; and
        which field of a row is read, unless it is the usual one."""
        return [
            f"{source.name}, {source.stat().st_size} bytes{self._field_of(source)}"
            if isinstance(source, Path)
            else f"{source}, {source.split}{self._field_of(source)}"
            for source in self.sources
        ]

    def _field_of(self, source: Source) -> str:
        has_fields = isinstance(source, DatasetSource) or ".jsonl" in source.name
        return f", field {self.text_field}" if has_fields and self.text_field != TEXT_FIELD else ""

    def documents(self) -> Iterator[Document]:
        """Every document that has a sentence. May be called again, and then begins anew."""
        self.bytes_read = 0
        for source in self.sources:
            if isinstance(source, DatasetSource):
                yield from self._dataset_documents(source)
            else:
                before = self.bytes_read
                yield from self._file_documents(source)
                self.bytes_read = before + source.stat().st_size

    def _file_documents(self, path: Path) -> Iterator[Document]:
        lines = self._lines(path)
        if path.name.removesuffix(".xz").endswith(".jsonl"):
            yield from self._jsonl_documents(path, lines)
        else:
            yield from _text_documents(lines)

    def _lines(self, path: Path) -> Iterator[str]:
        """The decoded lines of a file; keeps `bytes_read` up to date."""
        before, number = self.bytes_read, 0
        try:
            with open(path, "rb") as raw, _unpacked(path, raw) as stream:
                for line in stream:
                    number += 1
                    self.bytes_read = before + raw.tell()
                    yield line.decode("utf-8")
        except UnicodeDecodeError:
            raise DataError(f"{path}: line {number} is not UTF-8: convert the file first (iconv -t utf-8)") from None
        except (lzma.LZMAError, EOFError):
            raise DataError(f"{path}: not a whole xz file (damaged after line {number}): fetch it again") from None
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from None

    def _jsonl_documents(self, path: Path, lines: Iterator[str]) -> Iterator[Document]:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DataError(f"{path}: line {number} is not valid JSON ({error})") from None
            yield from _row_document(row, self.text_field, f"{path}: line {number}")

    def _dataset_documents(self, source: DatasetSource) -> Iterator[Document]:
        for number, row in enumerate(source.rows(), start=1):
            yield from _row_document(row, self.text_field, f"data set {source.name}: row {number}")


def _corpus_files(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.name.endswith(SUFFIXES) and p.is_file())
        if not found:
            raise DataError(f"{path}: holds no corpus file ({', '.join(SUFFIXES)})")
        return found
    if not path.is_file():
        raise DataError(f"{path}: no such file or folder")
    if not path.name.endswith((*SUFFIXES, ".xz")):
        raise DataError(f"{path}: not a known form of corpus: name it {', '.join(SUFFIXES)}")
    return [path]


def _unpacked(path: Path, raw: IO[bytes]) -> AbstractContextManager[IO[bytes]]:
    return lzma.open(raw) if path.suffix == ".xz" else nullcontext(raw)


def _text_documents(lines: Iterator[str]) -> Iterator[Document]:
    document: Document = []
    for line in lines:
        sentences = split_sentences(line)
        document += sentences
        if document and (not sentences or len(document) >= LONGEST_DOCUMENT):
            yield document
            document = []
    if document:
        yield document


def _row_document(row: Any, field: str, where: str) -> Iterator[Document]:
    """The document of one row, if it has any text."""
    text = row.get(field) if isinstance(row, dict) else None
    if not isinstance(text, str):
        raise DataError(f"{where} has no text in a field {field!r}: name the field with --text-field")
    document = [sentence for line in text.splitlines() for sentence in split_sentences(line)]
    if document:
        yield document
