"""What is run: tasks, sizes, kinds of student, seeds, and where everything lies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_albert.atomic import write_file_atomic
from edge_albert.errors import EdgeAlbertError


@dataclass(frozen=True)
class TaskPlan:
    """One task. metric: the dev set's, which keeps an epoch and stands in the table. columns: of the TSV files.

    teacher_epochs: of fine-tuning the teacher, 0 for the encoder as it comes. epochs: of fine-tuning a student.
    distilled: epochs of distilling one, 0 where the distilled kind is fine-tuned too; with that dropout, so many steps
    between two looks at dev (0 for an epoch), and that many sentences of the corpus besides, the nearest to the task's
    rows, joins of two rows and exchanges of phrases, each that many, all of which the teacher labels.
    """

    name: str
    kind: str
    metric: str
    columns: tuple[str, ...]
    teacher_epochs: int
    epochs: int
    distilled: int = 0
    dropout: float = 0.0
    look: int = 0
    sentences: int = 0
    joins: int = 0
    exchanges: int = 0


_TEXT, _PAIR = ("text", "label"), ("sentence1", "sentence2", "score")
TASKS: dict[str, TaskPlan] = {
    task.name: task
    for task in (
        TaskPlan(
            "sst2", "text-classification", "accuracy", _TEXT, 1, 2,
            distilled=1, dropout=0.1, look=620, sentences=8_000, joins=4_000, exchanges=120_000,
        ),
        TaskPlan("snips", "text-classification", "accuracy", _TEXT, 3, 4, distilled=3, sentences=8_000),
        TaskPlan("sms", "text-classification", "f1", _TEXT, 4, 5, distilled=4, sentences=3_000),
        TaskPlan("stsb", "sentence-embedding", "spearman", _PAIR, 0, 3),
    )
}  # fmt: skip
HUGE_PAGES = (  # see docs/pretraining.md
    "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=8589934592"
)
EMBEDDING_SIZES: dict[str, int | None] = {"tiny": 64, "mini": None}  # what the pre-trained one is shrunk to
KINDS = ("scratch", "pretrained", "distilled")


@dataclass(frozen=True)
class Student:
    """One run of the matrix."""

    task: TaskPlan
    size: str
    kind: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.task.name}-{self.size}-{self.kind}-{self.seed}"


@dataclass(frozen=True)
class Places:
    """What lies where below the work folder."""

    work: Path

    def file(self, task: str, part: str) -> Path:
        return self.work / "data" / task / f"{part}.tsv"

    def parts(self, task: str) -> list[str]:
        """Which of dev and test there are."""
        return [part for part in ("dev", "test") if self.file(task, part).exists()]

    def fine_tuned(self, task: TaskPlan) -> Path:
        """The teacher of a task that has labels of its own."""
        return self.work / "teachers" / task.name

    def base(self, size: str, kind: str) -> Path:
        """What a student of that kind begins with."""
        return self.work / "bases" / f"{size}-{kind}"

    def student(self, student: Student) -> Path:
        return self.work / "students" / student.name

    @property
    def unlabelled(self) -> Path:
        return self.work / "data" / "sentences.txt"

    @property
    def own_sentences(self) -> Path:
        """Those of STS-B's training rows, without their scores."""
        return self.work / "data" / "stsb-sentences.txt"

    @property
    def near(self) -> Path:
        """The texts of all training rows, which the encoder's vectors are taught of too."""
        return self.work / "data" / "near.txt"

    def task_unlabelled(self, task: TaskPlan) -> Path:
        return self.work / "data" / task.name / "near-sentences.txt"

    @property
    def cache(self) -> Path:
        return self.work / "answers"

    @property
    def results(self) -> Path:
        return self.work / "results.jsonl"


@dataclass(frozen=True)
class Plan(Places):
    """What is done, and from what. rows: of every data file, None for all; sentences: of the corpus for the encoder's
    vectors."""

    data: Path
    corpus: Path
    encoder: Path
    pretrained: Path
    rows: int | None
    sentences: int
    tasks: tuple[str, ...]
    sizes: tuple[str, ...]
    kinds: tuple[str, ...]
    seeds: tuple[int, ...]

    def students(self) -> Iterator[Student]:
        for task in self.tasks:
            for size in self.sizes:
                for kind in self.kinds:
                    for seed in self.seeds:
                        yield Student(TASKS[task], size, kind, seed)

    def teacher(self, task: TaskPlan) -> Path:
        return self.fine_tuned(task) if task.teacher_epochs else self.encoder


def run(command: str, *words: object) -> None:
    """One of the package's commands, in a process of its own. Raises EdgeAlbertError when it fails."""
    print(f"$ python -m edge_albert.{command} {' '.join(map(str, words))}", flush=True)
    environment = {"GLIBC_TUNABLES": HUGE_PAGES, **os.environ}
    done = subprocess.run(
        [sys.executable, "-m", f"edge_albert.{command}", *map(str, words)], check=False, env=environment
    )
    if done.returncode:
        raise EdgeAlbertError(f"python -m edge_albert.{command} ended with status {done.returncode}")


def read_records(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file that may not be there yet; a last line that a kill cut short is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines]


def add_record(path: Path, record: dict[str, Any]) -> None:
    """Append one, after whatever is whole."""
    whole = "".join(json.dumps(old) + "\n" for old in read_records(path))
    write_file_atomic(path, whole + json.dumps(record) + "\n")
