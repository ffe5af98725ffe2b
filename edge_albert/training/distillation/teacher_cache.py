"""A teacher's answers on the disk, so that it reads every text once, however many students there are.

An entry of the cache is a folder named by what it holds: the teacher's files, the texts in their order, and what was
asked. Another teacher or another text is another entry, so a stale answer cannot be taken for a fresh one.

    entry.json      what it is, how many rows are done and, when all are, the sha256 of both arrays
    outputs.npy     (N, K) float32: logits, or a regression's value; absent for a sentence embedding
    vectors.npy     (N, H) float16: unit vectors of the whole texts; absent unless they are asked for

The arrays are mapped into memory: a million vectors of 384 are 0.8 GB. They are filled in blocks, each flushed before
it is counted as done, so that a killed run goes on at the last block. An entry that is damaged is made anew, with a
warning. Two processes must not fill the same entry at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edge_albert.atomic import write_file_atomic
from edge_albert.bundle import file_hash
from edge_albert.errors import DataError, EdgeAlbertError
from edge_albert.progress import Progress
from edge_albert.training.distillation.teacher import Teacher, Text

FORMAT = 1
BLOCK = 2048  # rows between two notes of what is done
BATCH = 64


@dataclass(frozen=True)
class Wanted:
    """What a run asks of the teacher. vector: mean or cls, whose unit vectors are stored too; None stores none."""

    outputs: bool
    vector: str | None


@dataclass(frozen=True)
class Answers:
    """Row i is what the teacher says of text i. outputs: (N, K) float32; vectors: (N, H) float16; None if not asked."""

    outputs: np.ndarray | None
    vectors: np.ndarray | None


def cached_answers(folder: Path, teacher: Teacher, texts: Sequence[Text], wanted: Wanted) -> Answers:
    """The teacher's answers to all texts, from the cache in `folder` as far as they are there.

    Raises EdgeAlbertError when the folder cannot be written.
    """
    what = {
        "format": FORMAT,
        "teacher": teacher.digest,
        "task": teacher.task,
        "texts": texts_digest(texts),
        "rows": len(texts),
        "longest": teacher.longest,
        "outputs": wanted.outputs,
        "vector": wanted.vector,
    }
    key = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:24]
    entry = folder / key
    if entry.exists():
        trouble = _trouble(entry, what)
        if trouble is not None:
            warnings.warn(f"{entry}: {trouble}: the teacher answers anew", stacklevel=2)
            shutil.rmtree(entry)
    try:
        done = _note(entry)["done"] if entry.exists() else 0
        if done < len(texts):
            _fill(entry, what, teacher, texts, wanted, done)
        return Answers(_mapped(entry, "outputs", wanted.outputs), _mapped(entry, "vectors", wanted.vector is not None))
    except OSError as error:
        raise EdgeAlbertError(f"{entry}: cannot be written ({error.strerror}): name another --teacher-cache") from None


def texts_digest(texts: Sequence[Text]) -> str:
    """sha256 over all texts in their order."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(json.dumps(text).encode())
    return digest.hexdigest()


# -- filling -----------------------------------------------------------------------------------------------------------


def _fill(
    entry: Path, what: dict[str, Any], teacher: Teacher, texts: Sequence[Text], wanted: Wanted, done: int
) -> None:
    arrays = {name: np.lib.format.open_memmap(entry / f"{name}.npy", "r+") for name in _names(wanted) if done}
    with Progress(len(texts), "teacher") as bar:
        bar.update(done)
        for start in range(done, len(texts), BLOCK):
            rows = range(start, min(start + BLOCK, len(texts)))
            found = _answer(teacher, texts, rows, wanted)
            arrays = arrays or _create(entry, found, len(texts))
            for name, values in found.items():
                arrays[name][rows.start : rows.stop] = values
                arrays[name].flush()
            _write_note(entry, {**what, "done": rows.stop})
            bar.update(len(rows))
    sha256 = {name: file_hash(entry / f"{name}.npy") for name in arrays}
    _write_note(entry, {**what, "done": len(texts), "sha256": sha256})


def _answer(teacher: Teacher, texts: Sequence[Text], rows: range, wanted: Wanted) -> dict[str, np.ndarray]:
    """The answers to some rows, {"outputs": (n, K) and/or "vectors": (n, H)}, read in batches of like length."""
    order = sorted(rows, key=lambda row: len(texts[row][0]) + len(texts[row][1] or ""))
    found: dict[str, list[np.ndarray]] = {name: [] for name in _names(wanted)}
    for start in range(0, len(order), BATCH):
        outputs, vectors = teacher.answer([texts[row] for row in order[start : start + BATCH]], wanted.vector or "mean")
        for name, values in (("outputs", outputs), ("vectors", vectors)):
            if name in found and values is not None:
                found[name].append(values)
    back = np.argsort(order)
    out = {name: np.concatenate(parts)[back] for name, parts in found.items()}
    for name, values in out.items():
        if not np.isfinite(values).all():
            raise DataError(f"{teacher.source}: its {name} are not finite: the teacher is damaged")
    return out


def _create(entry: Path, like: dict[str, np.ndarray], rows: int) -> dict[str, np.memmap]:
    entry.mkdir(parents=True, exist_ok=True)
    kinds = {"outputs": np.float32, "vectors": np.float16}
    found = {}
    for name, values in like.items():
        path, shape = entry / f"{name}.npy", (rows, values.shape[1])
        found[name] = np.lib.format.open_memmap(path, "w+", dtype=kinds[name], shape=shape)
        if hasattr(os, "posix_fallocate"):  # a full disk is an error now, not a bus error later
            with open(path, "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return found


# -- reading -----------------------------------------------------------------------------------------------------------


def _names(wanted: Wanted) -> list[str]:
    return [name for name, asked in (("outputs", wanted.outputs), ("vectors", wanted.vector is not None)) if asked]


def _mapped(entry: Path, name: str, asked: bool) -> np.ndarray | None:
    return np.load(entry / f"{name}.npy", mmap_mode="r", allow_pickle=False) if asked else None


def _trouble(entry: Path, what: dict[str, Any]) -> str | None:
    """Why an entry cannot be used, nor gone on with; None when it can."""
    try:
        note = _note(entry)
        if {name: note.get(name) for name in what} != what or not 0 <= note["done"] <= what["rows"]:
            return "entry.json says it is something else"
        for name in _names(Wanted(what["outputs"], what["vector"])):
            array = np.load(entry / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            if len(array) != what["rows"]:
                return f"{name}.npy has {len(array)} rows of {what['rows']}"
            if note["done"] == what["rows"] and note["sha256"][name] != file_hash(entry / f"{name}.npy"):
                return f"{name}.npy has changed since it was written"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        return f"damaged ({' '.join(str(error).split()) or type(error).__name__})"
    return None


def _note(entry: Path) -> dict[str, Any]:
    return json.loads((entry / "entry.json").read_text(encoding="utf-8"))


def _write_note(entry: Path, note: dict[str, Any]) -> None:
    write_file_atomic(entry / "entry.json", json.dumps(note, indent=2) + "\n")
