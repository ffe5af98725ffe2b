"""The data as this recipe reads it: four tasks as TSV, and sentences of the corpus, one a line.

SST-2 and STS-B are GLUE's train and dev files; SNIPS intents has train, dev and test; SMS spam is divided as
benchmarks/train_default.py divides it. The sentences are an even sample of the corpus: of every document those of 20 to
200 characters, none twice, chosen by the hash of their text, so that a larger sample holds the smaller one.
"""

from __future__ import annotations

import hashlib
import heapq
from pathlib import Path

from train_default import split_messages

from edge_albert.atomic import write_file_atomic
from edge_albert.errors import DataError
from edge_albert.training.data.examples import Columns, Example, any_label, number_fault, read_examples
from edge_albert.training.pretraining.corpus import Corpus
from results.plan import TASKS, Plan

_DEV_ROWS = 200  # of a dev set, when --rows cuts the rest


def prepare(plan: Plan) -> None:
    """Write what is missing of all files. Raises DataError for data that is not where it should be."""
    for task in dict.fromkeys((*plan.tasks, "stsb")):  # which judges the bases of the others too
        if not plan.file(task, "dev").exists():
            parts = _READERS[task](plan.data)
            for name in ("train", "test", "dev"):  # dev last: it says that the others are there
                if name in parts:
                    _write(plan, task, name, parts[name])
            print(f"{task}: {', '.join(f'{len(rows)} {name}' for name, rows in parts.items())}", flush=True)
    if not plan.unlabelled.exists():
        sentences = sample(plan.corpus, plan.sentences)
        write_lines(plan.unlabelled, sentences)
        print(f"{len(sentences)} sentences of the corpus", flush=True)
    if not plan.own_sentences.exists():
        write_lines(plan.own_sentences, _texts_of(plan, "stsb"))
    if not plan.near.exists():
        write_lines(plan.near, list(dict.fromkeys(text for task in TASKS for text in _texts_of(plan, task))))


def _texts_of(plan: Plan, task: str) -> list[str]:
    """The texts of a task's training rows, each once; none where the plan leaves the task out."""
    path, pairs = plan.file(task, "train"), task == "stsb"
    if not path.exists():
        return []
    rows = read_examples(path, Columns(), any_label, skip_bad=False, needs_pair=pairs).rows
    return list(dict.fromkeys(text for row in rows for text in ((row.text, row.pair or "") if pairs else (row.text,))))


def write_lines(path: Path, texts: list[str]) -> None:
    """A text a line."""
    write_file_atomic(path, "".join(f"{text}\n" for text in texts))


def sample(corpus: Path, count: int) -> list[str]:
    """That many sentences, the smallest hashes first; fewer where the corpus has no more."""
    found: dict[bytes, str] = {}
    for document in Corpus([corpus]).documents():
        for sentence in document:
            if 20 <= len(sentence) <= 200 and "\t" not in sentence:
                found.setdefault(hashlib.sha256(sentence.encode()).digest()[:12], sentence)
    return [found[key] for key in heapq.nsmallest(count, found)]


def _write(plan: Plan, task: str, name: str, rows: list[Example]) -> None:
    limit = plan.rows if name == "train" or plan.rows is None else min(plan.rows, _DEV_ROWS)
    lines = ["\t".join(TASKS[task].columns)]
    for row in rows[:limit]:
        fields = [row.text, row.pair, row.label] if row.pair is not None else [row.text, row.label]
        lines.append("\t".join(" ".join(field.split()) for field in fields))
    write_file_atomic(plan.file(task, name), "\n".join(lines) + "\n")


def _glue(folder: Path, *, pairs: bool) -> dict[str, list[Example]]:
    check = number_fault if pairs else any_label
    return {
        name: read_examples(folder / f"{name}.tsv", Columns(), check, skip_bad=True, needs_pair=pairs).rows
        for name in ("train", "dev")
    }


def _sst2(data: Path) -> dict[str, list[Example]]:
    return _glue(data / "glue" / "SST-2", pairs=False)


def _stsb(data: Path) -> dict[str, list[Example]]:
    return _glue(data / "glue" / "STS-B", pairs=True)


def _snips(data: Path) -> dict[str, list[Example]]:
    folders = {name: data / "intents" / "snips" / name for name in ("train", "dev", "test")}
    return {name: read_examples(folder, Columns(), any_label, skip_bad=False).rows for name, folder in folders.items()}


def _sms(data: Path) -> dict[str, list[Example]]:
    path = data / "sms_spam" / "SMSSpamCollection"
    if not path.is_file():
        raise DataError(f"{path}: the SMS Spam Collection is missing")
    parts = split_messages(path)
    return {name: [Example(text, None, label, 0) for label, text in rows] for name, rows in parts.items()}


_READERS = {"sst2": _sst2, "snips": _snips, "sms": _sms, "stsb": _stsb}
