"""The distillation loop: steps over length-bucketed batches, the dev set at every look, the best weights kept.

Beside the fine-tuning loop it needs two things: a teacher's targets with every batch, and to be stopped. A million
sentences take hours, so every look may leave a checkpoint, and a run goes on from the newest with the same numbers to
the last bit: batches are a function of (seed, epoch), dropout of (seed, step).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from edge_albert.checkpoint import read_checkpoint
from edge_albert.errors import EdgeAlbertError
from edge_albert.model import AlbertWithHead
from edge_albert.progress import Progress
from edge_albert.training import resume
from edge_albert.training.data.batches import EncodedRows, EncodedTexts, epoch_batches
from edge_albert.training.device import autocast, seed_step
from edge_albert.training.distillation.loss import DistillationLoss, Targets
from edge_albert.training.distillation.teacher import Teacher
from edge_albert.training.distillation.teacher_cache import Answers
from edge_albert.training.finetuning.early_exit import exit_logits
from edge_albert.training.finetuning.loop import Best, Recipe, evaluate
from edge_albert.training.finetuning.objectives import Objective
from edge_albert.training.not_finite import NotFiniteError
from edge_albert.training.optim import adamw, linear_schedule, update
from edge_albert.training.weights import load_arrays

Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Lessons:
    """What the student sees: N texts, and what the teacher says of each. order: which of the teacher's outputs is each
    of the student's labels, (K,)."""

    texts: EncodedTexts
    answers: Answers
    order: np.ndarray | None

    def targets(self, rows: np.ndarray, labels: Tensor) -> Targets:
        """labels: (B,), on the device where the rest goes too."""
        outputs, vectors = (
            None if array is None else torch.from_numpy(array[rows].astype(np.float32)).to(labels.device)
            for array in (self.answers.outputs, self.answers.vectors)
        )
        if outputs is not None and self.order is not None:
            outputs = outputs[:, torch.from_numpy(self.order).to(outputs.device)]
        return Targets(labels, outputs, vectors)


@dataclass(frozen=True)
class Exam:
    """How the student is judged: rows of the dev set, what they are scored by, and the metric that decides."""

    rows: EncodedRows
    objective: Objective
    metric: str


@dataclass
class Place:
    """Where a run is: steps done, the next batch and its epoch, the sums of the loss since the last look, the records
    reported so far."""

    step: int = 0
    epoch: int = 1
    batch: int = 0
    rows: int = 0
    losses: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    records: list[dict[str, Any]] = field(default_factory=list)


class Distiller:
    """One run. The student and its loss lie where they train. teacher: asked by layer only if the loss looks at layers.

    every: steps between two looks at the dev set; None: an epoch.
    """

    def __init__(
        self,
        student: AlbertWithHead,
        loss: DistillationLoss,
        lessons: Lessons,
        teacher: Teacher,
        recipe: Recipe,
        every: int | None = None,
    ) -> None:
        self.student, self.loss, self.lessons, self.teacher, self.recipe = student, loss, lessons, teacher, recipe
        self.device = next(student.parameters()).device
        self.per_epoch = math.ceil(len(lessons.texts) / recipe.batch_size)
        self.every = every or self.per_epoch
        self._steps = recipe.epochs * self.per_epoch
        self.optimizer = adamw(nn.ModuleList([student, loss]), recipe.learning_rate, recipe.weight_decay)
        self.schedule = linear_schedule(self.optimizer, self._steps, recipe.warmup)
        self.place, self.best = Place(), Best()

    # -- the loop ------------------------------------------------------------------------------------------------------

    def fit(self, exam: Exam, report: Report, keep: Keeper | None = None) -> Best:
        """Train, stop early, and leave the student with its best weights, in evaluation mode.

        report: gets one JSON-able record per look. The recipe's patience counts looks. keep: where checkpoints go.
        Ctrl-C then leaves one before it raises KeyboardInterrupt. Raises NotFiniteError.
        """
        if keep is not None:
            keep.load(self)
            for record in self.place.records:
                report(record)
        with resume.stop_on_request() as asked, Progress(self._steps, "distilling") as bar:
            bar.update(self.place.step)
            for rows in self._batches():
                bar.update(loss=self.step(rows))
                if self._looks_now() and self._look(exam, report, keep):
                    break
                if asked.is_set():
                    if keep is not None:
                        keep.save(self)
                    raise KeyboardInterrupt
        self.student.load_state_dict(self.best.weights)
        self.student.eval()
        return self.best

    def _batches(self) -> Iterator[np.ndarray]:
        place = self.place
        while not self._is_over():
            batches = epoch_batches(self.lessons.texts.lengths, self.recipe.batch_size, self.recipe.seed, place.epoch)
            for rows in batches[place.batch :]:
                place.batch += 1
                yield rows
            place.epoch, place.batch = place.epoch + 1, 0

    def _is_over(self) -> bool:
        looks = len(self.place.records)
        return self.place.epoch > self.recipe.epochs or looks - self.best.epoch >= self.recipe.patience

    def step(self, rows: np.ndarray) -> float:
        """One update from these rows; their loss, which must be finite."""
        seed_step(self.recipe.seed, self.place.step, 0)
        self.student.train()
        self.loss.train()
        inputs, labels = self.lessons.texts.collate(rows, self.device)
        targets = self.lessons.targets(rows, labels)
        by_layer, exits = self.loss.matching.by_layer, self.student.config.exit_heads is not None
        if by_layer:
            targets = Targets(labels, targets.outputs, targets.vectors, self.teacher.look(inputs))
        with autocast(self.device):
            encoded = self.student.encode(
                **inputs, output_hidden_states=by_layer or exits, output_attentions=self.loss.matching.attention > 0
            )
            outputs = exit_logits(self.student, encoded) if exits else self.student.head(encoded)
        loss, parts = self.loss(encoded, outputs, targets)

        def fault(value: float, norm: float | None) -> NotFiniteError:
            lines, data = self.lessons.texts.lines[rows], "training or unlabelled data"
            return NotFiniteError(value, norm, self.schedule, lines, inputs["input_ids"], data)

        parameters, clip_norm = self.student.parameters(), self.recipe.clip_norm
        value = update(loss, parameters, self.optimizer, self.schedule, clip_norm, fault)
        self._count(value, parts, len(rows))
        return value

    def _count(self, value: float, parts: dict[str, Tensor], rows: int) -> None:
        self.place.step += 1
        self.place.rows += rows
        for name, part in {"loss": value, **{name: part.item() for name, part in parts.items()}}.items():
            self.place.losses[name] += part * rows

    def _looks_now(self) -> bool:
        return self.place.step % self.every == 0 or self.place.step == self._steps

    def _look(self, exam: Exam, report: Report, keep: Keeper | None) -> bool:
        """Judge, report, keep; whether that was the last time."""
        place, look = self.place, len(self.place.records) + 1
        figures = evaluate(self.student, exam.rows, exam.objective, self.recipe.batch_size)
        self.best.offer(look, exam.metric, figures, self.student)
        means = {name: total / place.rows for name, total in place.losses.items()}
        record = {
            "event": "look", "look": look, "step": place.step, "epoch": place.epoch, "train": means, "dev": figures,
            "best_look": self.best.epoch, "learning_rate": self.schedule.get_last_lr()[0],
        }  # fmt: skip
        place.rows, place.losses = 0, defaultdict(float)
        place.records.append(record)
        report(record)
        if keep is not None:
            keep.save(self)
        return self._is_over()


# -- checkpoints -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Keeper:
    """Checkpoints in `folder`, the last two kept. run: what the run is made of; another run's are refused.

    write_student: writes the student's folder, which every other command can open.
    """

    folder: Path
    run: str
    write_student: Callable[[Path, AlbertWithHead], None]

    def save(self, distiller: Distiller) -> None:
        place, best = distiller.place, distiller.best
        state = {
            "run": self.run,
            "optimizer": distiller.optimizer.state_dict(),
            "schedule": distiller.schedule.state_dict(),
            "loss": distiller.loss.state_dict(),
            "place": {**vars(place), "losses": dict(place.losses)},
            "best": {**vars(best), "score": list(best.score)},
        }
        resume.save(self.folder, place.step, state, lambda new: self.write_student(new, distiller.student), keep=2)

    def load(self, distiller: Distiller) -> None:
        """Put the run where its newest checkpoint is, if there is one. Raises EdgeAlbertError for another run's."""
        resumed = resume.load_newest(self.folder)
        if resumed is None:
            return
        state = resumed.state
        if state.get("run") != self.run:
            raise EdgeAlbertError(
                f"{self.folder}: holds the checkpoints of another run (other data, teacher, student or recipe): name "
                "another --checkpoints, or remove it"
            )
        load_arrays(distiller.student, read_checkpoint(resumed.model).tensors)
        distiller.optimizer.load_state_dict(state["optimizer"])
        distiller.schedule.load_state_dict(state["schedule"])
        distiller.loss.load_state_dict(state["loss"])
        place = state["place"]
        distiller.place = Place(**{**place, "losses": defaultdict(float, place["losses"])})
        distiller.best = Best(**{**state["best"], "score": tuple(state["best"]["score"])})
