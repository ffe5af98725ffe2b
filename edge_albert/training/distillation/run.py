"""A distillation from files to a folder: read rows, find the teacher, collect its answers, train the student, write.

The output folder appears whole when the run has ended well, and not at all otherwise: a Hugging Face checkpoint with
its tokenizer, and log.jsonl with a record for the start, every look at the dev set, and the end.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edge_albert import __version__
from edge_albert.atomic import atomic_folder
from edge_albert.checkpoint import write_checkpoint
from edge_albert.early_exit import check_shape, criteria_for
from edge_albert.errors import DataError, EdgeAlbertError
from edge_albert.model import AlbertWithHead
from edge_albert.training.data.batches import EncodedRows, encode_examples, evenly
from edge_albert.training.data.examples import (
    Columns,
    Example,
    Examples,
    any_label,
    label_names,
    number_fault,
    read_examples,
    refuse_unseen_labels,
)
from edge_albert.training.device import make_deterministic, pick_device
from edge_albert.training.distillation.lessons import Lesson, label_order, make_lesson, names_of, read_unlabelled
from edge_albert.training.distillation.loop import Distiller, Exam, Keeper, Lessons, Report
from edge_albert.training.distillation.loss import DistillationLoss, Matching, principal_axes
from edge_albert.training.distillation.student import Beginning, StudentRequest, build_student, find_student
from edge_albert.training.distillation.teacher import Teacher, find_teacher
from edge_albert.training.distillation.teacher_cache import Answers, Wanted, cached_answers, texts_digest
from edge_albert.training.finetuning.embedding import encode_pairs, sentence_embedding
from edge_albert.training.finetuning.loop import Recipe, evaluate
from edge_albert.training.finetuning.objectives import Objective, classification, regression
from edge_albert.training.not_finite import batch_saved
from edge_albert.training.weights import arrays_of

LOG = "log.jsonl"
TASKS = ("text-classification", "text-regression", "sentence-embedding")
_SAMPLED = 20_000  # of the teacher's vectors, to find their principal axes


@dataclass(frozen=True)
class Request:
    """What to distil. teacher: a folder or a hub name. train: labelled rows; unlabelled: files with a text a line; one
    of both is needed, and sentence embedding knows the latter alone. early_exit: which heads answer after every
    iteration of the student, one of EXIT_HEADS.

    cache: where the teacher's answers stay; None forgets them. checkpoints: where the run can be taken up again.
    every: steps between two looks at the dev set; None: an epoch. max_length: tokens; None: what the student takes.
    """

    task: str
    teacher: str
    student: StudentRequest
    output: Path
    dev: Path
    matching: Matching
    train: Path | None = None
    test: Path | None = None
    unlabelled: tuple[Path, ...] = ()
    columns: Columns = field(default_factory=Columns)
    skip_bad: bool = False
    recipe: Recipe = field(default_factory=Recipe)
    metric: str | None = None
    max_length: int | None = None
    early_exit: str | None = None
    every: int | None = None
    cache: Path | None = None
    checkpoints: Path | None = None
    force: bool = False


def distill(request: Request, report: Report = lambda record: None) -> dict[str, Any]:
    """Distil and write `request.output`; return the record of the end. `report` gets every record of the log.

    Raises EdgeAlbertError (DataError, CheckpointError, …), and then leaves nothing behind but cache, checkpoints and
    the batch of a loss that is not finite.
    """
    matching = request.matching.checked(request.task)
    _refuse_inside_output(request)
    if request.early_exit is not None:
        criteria_for(request.task)
    with (
        batch_saved(request.output),
        atomic_folder(request.output, force=request.force) as folder,
        open(folder / LOG, "w", encoding="utf-8") as log,
    ):

        def note(record: dict[str, Any]) -> None:
            log.write(json.dumps(record, ensure_ascii=False) + "\n")
            log.flush()
            report(record)

        teacher = find_teacher(request.teacher, request.task)
        data = _read(request, teacher)
        begun = find_student(request.student, teacher, request.task, data.labels)
        begun = replace(begun, config=begun.config.with_exits(request.early_exit))
        if request.early_exit is not None:
            check_shape(begun.config)
        matching = _fit(matching, teacher, begun)
        end = _train(request, matching, teacher, data, begun, folder, note)
        note(end)
    return end


def _refuse_inside_output(request: Request) -> None:
    """EdgeAlbertError for a cache or checkpoints in the output folder, which appears whole at the end of the run."""
    output = request.output.resolve()
    for option, path in (("--teacher-cache", request.cache), ("--checkpoints", request.checkpoints)):
        if path is not None and path.resolve().is_relative_to(output):
            raise EdgeAlbertError(f"{option} {path}: lies in --output {request.output}, which this run replaces")


# -- the rows ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Data:
    """labels: the names of a classification, else ()."""

    train: Examples[Example] | None
    judged: dict[str, Examples[Example]]
    unlabelled: list[Example]
    labels: tuple[str, ...]


def _read(request: Request, teacher: Teacher) -> _Data:
    """Every row of the data. Raises DataError."""
    if request.train is None and not request.unlabelled:
        raise DataError("there is nothing to learn from: name --train, --unlabelled or both")
    embeds = request.task == "sentence-embedding"
    if embeds and request.train is not None:
        raise DataError("--train: a sentence embedding is distilled from sentences alone: name them with --unlabelled")
    check = any_label if request.task == "text-classification" else number_fault

    def read(path: Path) -> Examples[Example]:
        return read_examples(path, request.columns, check, skip_bad=request.skip_bad, needs_pair=embeds)

    train = None if request.train is None else read(request.train)
    paths = {"dev": request.dev, "test": request.test}
    judged = {name: read(path) for name, path in paths.items() if path is not None}
    labels: list[str] = []
    if request.task == "text-classification":
        seen = [label for part in judged.values() for label in label_names(part.rows)]
        labels = names_of(teacher, seen) if train is None else label_names(train.rows)
        for part in judged.values():
            if train is None:
                refuse_unseen_labels(part, labels, "is none of the teacher's: it has")
            else:
                refuse_unseen_labels(part, labels)
    return _Data(train, judged, read_unlabelled(request.unlabelled), tuple(labels))


def _lesson(request: Request, data: _Data, labels: tuple[str, ...]) -> Lesson:
    labelled = [] if data.train is None else data.train.rows
    return make_lesson(labelled, _numbers(request.task, labelled, labels), data.unlabelled)


def _numbers(task: str, rows: list[Example], labels: tuple[str, ...]) -> np.ndarray:
    """What the loss compares with: (N,) int64 label numbers, or float32 for anything else."""
    if task != "text-classification":
        return np.array([float(row.label) for row in rows], dtype=np.float32)
    numbers = {label: i for i, label in enumerate(labels)}
    return np.array([numbers[row.label] for row in rows], dtype=np.int64)


def _exam(task: str, rows: list[Example], begun: Beginning, max_length: int) -> EncodedRows:
    if task == "sentence-embedding":
        return encode_pairs(begun.tokenizer, rows, max_length)
    return encode_examples(begun.tokenizer, rows, _numbers(task, rows, begun.config.labels), max_length)


def _objective(task: str, begun: Beginning) -> Objective:
    if task == "text-classification":
        return classification(begun.config.num_labels)
    return regression() if task == "text-regression" else sentence_embedding()


# -- the run -----------------------------------------------------------------------------------------------------------


def _fit(matching: Matching, teacher: Teacher, begun: Beginning) -> Matching:
    """With its layers settled, once it is sure that the student's tokens can be shown to the teacher."""
    if not matching.by_layer:
        return matching
    teacher.check_tokenisation(begun.tokenizer)
    return matching.with_layers(begun.config.num_hidden_layers * begun.config.inner_group_num, teacher)


def _train(
    request: Request,
    matching: Matching,
    teacher: Teacher,
    data: _Data,
    begun: Beginning,
    folder: Path,
    note: Report,
) -> dict[str, Any]:
    max_length = _max_length(request, matching, teacher, begun)
    lesson = _lesson(request, data, begun.config.labels)
    order = label_order(teacher, begun.config.labels) if matching.soft and teacher.labels else None
    texts = lesson.encode(begun.tokenizer, max_length)
    objective = _objective(request.task, begun)
    metric = objective.metric_name(request.metric)
    parts = {name: _exam(request.task, part.rows, begun, max_length) for name, part in data.judged.items()}

    device = pick_device()
    make_deterministic(request.recipe.seed, device)
    student, fresh = build_student(
        begun,
        request.student,
        request.task,
        lambda: np.bincount(np.concatenate(texts.input_ids), minlength=begun.config.vocab_size) + 1,
    )
    note(_start_record(request, matching, teacher, data, student, fresh, metric, device))
    with _answers(request, matching, teacher, lesson) as answers:
        loss = DistillationLoss(student.config, request.task, matching, teacher, _basis(student, teacher, answers))
        distiller = Distiller(
            student.to(device), loss.to(device), Lessons(texts, answers, order), teacher, request.recipe, request.every
        )
        best = distiller.fit(Exam(parts["dev"], objective, metric), note, _keeper(request, lesson, teacher, begun))
    _write_student(request.task, begun, folder / "checkpoint", student)
    for path in list((folder / "checkpoint").iterdir()):
        path.rename(folder / path.name)
    (folder / "checkpoint").rmdir()
    figures = {name: evaluate(student, rows, objective, request.recipe.batch_size) for name, rows in parts.items()}
    end = {"event": "end", "output": str(request.output), "task": request.task, **figures, "best_look": best.epoch}
    return {**end, "metric": metric, "labels": list(begun.config.labels) if teacher.labels else []}


def _max_length(request: Request, matching: Matching, teacher: Teacher, begun: Beginning) -> int:
    longest = begun.config.max_position_embeddings
    out = request.max_length or min(longest, begun.tokenizer.model_max_length or longest)
    if out > longest:
        raise EdgeAlbertError(f"--max-length {out}: the student takes at most {longest} tokens")
    if matching.by_layer and out > teacher.longest:
        raise EdgeAlbertError(
            f"--max-length {out}: the teacher sees the same tokens, and takes at most {teacher.longest}"
        )
    return out


@contextmanager
def _answers(request: Request, matching: Matching, teacher: Teacher, lesson: Lesson) -> Iterator[Answers]:
    """The teacher's answers to all rows; without a cache they lie in a temporary folder while this lasts."""
    wanted = Wanted(matching.soft > 0, matching.teachers_vector if matching.sentence > 0 else None)
    if not (wanted.outputs or wanted.vector):
        yield Answers(None, None)
    elif request.cache is not None:
        yield cached_answers(request.cache, teacher, lesson.texts, wanted)
    else:
        with tempfile.TemporaryDirectory(prefix="edge-albert-") as scratch:
            yield cached_answers(Path(scratch), teacher, lesson.texts, wanted)


def _basis(student: AlbertWithHead, teacher: Teacher, answers: Answers) -> torch.Tensor | None:
    mine = student.config.hidden_size
    if answers.vectors is None or mine >= teacher.hidden_size:
        return None
    chosen = evenly(len(answers.vectors), _SAMPLED)
    return principal_axes(torch.from_numpy(answers.vectors[chosen].astype(np.float32)), mine)


# -- files -------------------------------------------------------------------------------------------------------------


def _keeper(request: Request, lesson: Lesson, teacher: Teacher, begun: Beginning) -> Keeper | None:
    if request.checkpoints is None:
        return None
    digest = hashlib.sha256(teacher.digest.encode())
    said = replace(request, output=Path(), cache=None, checkpoints=None, force=False)
    digest.update(json.dumps(asdict(said), default=str, sort_keys=True).encode())
    digest.update(texts_digest(lesson.texts).encode() + lesson.labels.tobytes())
    for name in sorted(begun.tensors):
        digest.update(np.ascontiguousarray(begun.tensors[name]).tobytes())
    return Keeper(
        request.checkpoints,
        digest.hexdigest(),
        lambda folder, student: _write_student(request.task, begun, folder, student),
    )


def _write_student(task: str, begun: Beginning, folder: Path, student: AlbertWithHead) -> None:
    problem = "single_label_classification" if task == "text-classification" else None
    write_checkpoint(
        folder,
        replace(student.config, problem_type=problem),
        arrays_of(student),
        task=task,
        tokenizer_folder=begun.tokenizer_folder,
        dtype="float32",
    )


def _start_record(
    request: Request,
    matching: Matching,
    teacher: Teacher,
    data: _Data,
    student: AlbertWithHead,
    fresh: list[str],
    metric: str,
    device: torch.device,
) -> dict[str, Any]:
    rows = {} if data.train is None else {"train": len(data.train.rows)}
    rows |= {"unlabelled": len(data.unlabelled)} | {name: len(part.rows) for name, part in data.judged.items()}
    read = [part for part in (data.train, *data.judged.values()) if part is not None]
    return {
        "event": "start",
        "edge_albert": __version__,
        "task": request.task,
        "teacher": teacher.source,
        "student": request.student.source or teacher.source,
        "parameters": sum(p.numel() for p in student.parameters()),
        "fresh": fresh,
        "device": str(device),
        "metric": metric,
        "matching": asdict(matching),
        "recipe": asdict(request.recipe),
        "rows": rows,
        "skipped": [reason for part in read for reason in part.bad],
    }
