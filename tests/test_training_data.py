"""Reading labelled text: the formats, GLUE's own files, and rows that cannot be used."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from edge_albert.errors import DataError
from edge_albert.training.data.examples import (
    Columns,
    Examples,
    any_label,
    label_names,
    number_fault,
    read_examples,
    refuse_unseen_labels,
)

NUMBERED = Columns(text="2", label="1", header=False)


def read(path: Path, columns: Columns | None = None, *, number: bool = False, skip: bool = False) -> Examples:
    return read_examples(path, columns or Columns(), number_fault if number else any_label, skip_bad=skip)


def write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def rows(examples: Examples) -> list[tuple[str, str | None, str, int]]:
    return [(row.text, row.pair, row.label, row.line) for row in examples.rows]


# -- the data sets themselves, read a second way by Python's csv module ----------------------------------------------


@pytest.mark.parametrize(
    ("name", "columns", "count"),
    [
        ("SST-2/train.tsv", ("sentence", None, "label"), 67349),
        ("SST-2/dev.tsv", ("sentence", None, "label"), 872),
        ("STS-B/train.tsv", ("sentence1", "sentence2", "score"), 5749),
        ("STS-B/dev.tsv", ("sentence1", "sentence2", "score"), 1500),
        ("WNLI/train.tsv", ("sentence1", "sentence2", "label"), 635),
    ],
)
def test_glue(shared_data: Path, name: str, columns: tuple[str, str | None, str], count: int) -> None:
    path = shared_data / "glue" / name
    found = read(path, number="score" in columns)
    with path.open(encoding="utf-8", newline="\n") as file:
        table = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    text, pair, label = columns
    assert [row[:3] for row in rows(found)] == [(r[text], pair and r[pair], r[label]) for r in table]
    assert (len(found.rows), found.bad) == (count, [])


def test_cola_and_sms_have_no_header(shared_data: Path) -> None:
    cola = read(shared_data / "glue" / "CoLA" / "dev.tsv", Columns(text="4", label="2", header=False))
    assert (len(cola.rows), label_names(cola.rows)) == (1043, ["0", "1"])
    sms = read(shared_data / "sms_spam" / "SMSSpamCollection", NUMBERED)
    assert (len(sms.rows), label_names(sms.rows)) == (5574, ["ham", "spam"])
    assert sum(row.label == "spam" for row in sms.rows) == 747  # as published
    assert not any(row.text.endswith("\r") for row in sms.rows)


# -- formats -----------------------------------------------------------------------------------------------------------


def test_tsv_takes_quotes_and_separators_as_text(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", '\ufefflabel\tsentence\r\n1\t"open\r\n0\ta\u2028b\x85c "d"\r\n')
    assert rows(read(path)) == [('"open', None, "1", 2), ('a\u2028b\x85c "d"', None, "0", 3)]


def test_csv_fields_span_lines(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", 'text,label\n"one, ""two""\nthree",x\nfour,y\n')
    assert rows(read(path)) == [('one, "two"\nthree', None, "x", 2), ("four", None, "y", 4)]


def test_csv_field_larger_than_the_csv_modules_limit(tmp_path: Path) -> None:
    long = "a" * 200_000
    assert read(write(tmp_path, "a.csv", f"text,label\n{long},x\n")).rows[0].text == long


def test_json_lines(tmp_path: Path) -> None:
    lines = [{"text": "a", "label": 1}, {"label": 2.5, "text": "b\n", "more": [1]}, {"text": "c", "label": True}]
    path = write(tmp_path, "a.jsonl", "\n".join(map(json.dumps, lines)))
    assert rows(read(path)) == [("a", None, "1", 1), ("b\n", None, "2.5", 2), ("c", None, "true", 3)]


def test_named_columns_and_pairs(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", "premise\thypothesis\tgold\np\th\tyes\n")
    columns = Columns("premise", "hypothesis", "gold")
    assert rows(read(path, columns)) == [("p", "h", "yes", 2)]
    assert rows(read(path, Columns("hypothesis", None, "gold"))) == [("h", None, "yes", 2)]


def test_a_pair_is_guessed_only_beside_a_guessed_text(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", "sentence1\tsentence2\tlabel\na\tb\t1\n")
    assert rows(read(path)) == [("a", "b", "1", 2)]
    assert rows(read(path, Columns(text="sentence1"))) == [("a", None, "1", 2)]


@pytest.mark.parametrize(
    ("first", "second"), [("question", "sentence"), ("premise", "hypothesis"), ("question1", "question2")]
)
def test_pairs_by_the_names_of_glue(tmp_path: Path, first: str, second: str) -> None:
    path = write(tmp_path, "a.tsv", f"index\t{first}\t{second}\tlabel\n0\ta\tb\t1\n")
    assert rows(read(path)) == [("a", "b", "1", 2)]
    assert rows(read(path, Columns(text=second))) == [("b", None, "1", 2)]


def test_columns_are_those_of_the_first_row_that_has_them(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", '{"text": "no label"}\n{"text": "a", "label": 1}\n')
    with pytest.raises(DataError, match="no label or score column for the label: name one of text"):
        read(path)
    found = read(path, skip=True)
    assert rows(found) == [("a", None, "1", 2)]
    assert found.bad == [f"{path}:1: no label or score column for the label: name one of text with --label-column"]
    with pytest.raises(DataError, match=r"holds no usable row: 1 bad row: .*no label or score column"):
        read(write(tmp_path, "b.jsonl", '{"text": "no label"}\n'), skip=True)


# -- what cannot be used ---------------------------------------------------------------------------------------------

BAD = "label\tsentence\n1\tgood\n\tno label\n0\t \nalone\n\n0\ttoo\tmany\n0\tfine\n"
REASONS = ["3: empty label", "4: empty text", "5: 1 fields where the header has 2", "6: empty row", "7: 3 fields where"]


def test_bad_rows_are_refused_by_line(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", BAD)
    with pytest.raises(DataError, match=r"5 bad rows: .*--bad-rows skip") as caught:
        read(path)
    assert all(f"{path}:{reason}" in str(caught.value) for reason in REASONS)
    assert "\n" not in str(caught.value)


def test_bad_rows_are_skipped_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", BAD)
    found = read(path, skip=True)
    assert [row.line for row in found.rows] == [2, 8]
    assert [reason.startswith(f"{path}:{begin}") for reason, begin in zip(found.bad, REASONS, strict=True)] == [
        True
    ] * 5


def test_many_bad_rows_are_counted_not_listed(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", "label\tsentence\n" + "1\t\n" * 50)
    with pytest.raises(DataError, match=r"50 bad rows.*and 45 more"):
        read(path)
    with pytest.raises(DataError, match="holds no usable row: 50 bad rows"):
        read(path, skip=True)


@pytest.mark.parametrize("label", ["nan", "inf", "-Infinity", "high", "1,5"])
def test_numbers_that_are_none(tmp_path: Path, label: str) -> None:
    path = write(tmp_path, "a.tsv", f"score\tsentence\n3.5\tgood\n{label}\tbad\n")
    with pytest.raises(DataError, match=f"a.tsv:3: label '{label}' is not a finite number"):
        read(path, number=True)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"text": "a", "label": "x"}\n{"text": "b"\n', r"a\.jsonl:2: not JSON"),
        ("a.jsonl", '{"text": "a", "label": "x"}\n[1]\n', r"a\.jsonl:2: not a JSON object"),
        ("a.jsonl", '{"text": "a", "label": "x"}\n{"text": null, "label": "x"}\n', r"a\.jsonl:2: empty text"),
        ("a.jsonl", '{"text": "a", "label": "x"}\n{"text": "b"}\n', r"a\.jsonl:2: empty label"),
        ("a.jsonl", '{"sentence1": "a", "sentence2": "", "label": "x"}', r"a\.jsonl:1: empty second text"),
        ("a.tsv", "", r"a\.tsv: holds no usable row"),
        ("a.tsv", "label\tsentence\n", r"a\.tsv: holds no usable row"),
        (
            "a.tsv",
            "words\tlabel\na\tb\n",
            r"no sentence or text or sentence1 column for the text: name one of words, la",
        ),
        ("a.tsv", "text\ttext\na\tb\n", r"the header names text more than once"),
        ("a.csv", 'text,label\n"a"b,c\n', r"a\.csv:2: not CSV"),
        ("a.csv", 'text,label\nx,y\n"a,c\n', r"a\.csv:3: not CSV"),
        ("a.tsv", b"label\tsentence\n1\t\xff\n", r"a\.tsv:2: not UTF-8 \(byte 0xff\)"),
    ],
)
def test_refusals_name_the_place(tmp_path: Path, name: str, text: str | bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(write(tmp_path, name, text))


def test_missing_column_and_file(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", "label\tsentence\n1\ta\n")
    with pytest.raises(
        DataError, match="no column 'body' for the text: name one of label, sentence with --text-column"
    ):
        read(path, Columns(text="body"))
    with pytest.raises(DataError, match="no column '3' for the label: name one of 1, 2"):
        read(path, Columns(text="1", label="3", header=False))
    with pytest.raises(DataError, match="cannot be read"):
        read(tmp_path / "missing.tsv")


def test_label_seen_only_in_dev(tmp_path: Path) -> None:
    dev = read(write(tmp_path, "dev.tsv", "label\tsentence\nham\ta\neggs\tb\n"))
    with pytest.raises(DataError, match=r"dev\.tsv:3: label 'eggs' occurs in no training row.* ham, spam"):
        refuse_unseen_labels(dev, ["ham", "spam"])


@pytest.mark.parametrize(
    ("labels", "order"),
    [
        (["10", "9", "-1", "0"], ["-1", "0", "9", "10"]),
        (["b", "a", "10", "9"], ["10", "9", "a", "b"]),
        (["01", "1"], ["01", "1"]),
        (["--1", "²", "1"], ["--1", "1", "²"]),
    ],
)
def test_label_order(tmp_path: Path, labels: list[str], order: list[str]) -> None:
    path = write(tmp_path, "a.tsv", "label\tsentence\n" + "".join(f"{label}\tx\n" for label in labels))
    assert label_names(read(path).rows) == order
