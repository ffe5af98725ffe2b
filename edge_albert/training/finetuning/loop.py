"""The fine-tuning loop: epochs over length-bucketed batches, the dev set after each, the best weights kept.

Nothing here knows the task: an `Objective` brings loss and metrics. AdamW with linear warm-up and decay, the
gradient's norm clipped, as in BERT and ALBERT (Devlin et al. 2019, appendix A.3; Lan et al. 2020, appendix A.4).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edge_albert.errors import EdgeAlbertError
from edge_albert.model import AlbertForTask
from edge_albert.progress import Progress
from edge_albert.training.data.batches import EncodedRows, epoch_batches, sorted_batches
from edge_albert.training.device import autocast
from edge_albert.training.finetuning.objectives import Figures, Objective
from edge_albert.training.not_finite import NotFiniteError
from edge_albert.training.optim import adamw, linear_schedule, update


@dataclass(frozen=True)
class Recipe:
    """How to train. learning_rate: the peak. warmup: share of all steps. patience: epochs without a better dev set."""

    epochs: int = 5
    batch_size: int = 32
    learning_rate: float = 3e-5
    warmup: float = 0.1
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    patience: int = 2
    seed: int = 0


@dataclass
class Best:
    """The best epoch so far: the highest metric and, between equals, the lowest dev loss."""

    epoch: int = 0
    score: tuple[float, float] = (-math.inf, -math.inf)
    figures: Figures = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)

    def offer(self, epoch: int, metric: str, figures: Figures, model: AlbertForTask) -> None:
        score = (figures[metric], -figures["loss"])
        if score > self.score:
            self.epoch, self.score, self.figures = epoch, score, figures
            self.weights = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}


class Trainer:
    """One run: the model where it lies, its optimizer and learning rate, and the rows it learns from."""

    def __init__(self, model: AlbertForTask, objective: Objective, recipe: Recipe, train: EncodedRows) -> None:
        self.model, self.objective, self.recipe, self.train = model, objective, recipe, train
        self.device = next(model.parameters()).device
        self.optimizer = adamw(model, recipe.learning_rate, recipe.weight_decay)
        steps = recipe.epochs * math.ceil(len(train) / recipe.batch_size)
        self.schedule = linear_schedule(self.optimizer, steps, recipe.warmup)

    def fit(self, dev: EncodedRows, metric: str, report: Callable[[dict[str, Any]], None]) -> Best:
        """Train, stop early, and leave the model with its best weights, in evaluation mode.

        metric: one of the objective's, looked at after every epoch. report: gets one JSON-able record per epoch.
        Dropout draws from torch's generator, batches from the recipe's seed. Raises NotFiniteError.
        """
        best = Best()
        for epoch in range(1, self.recipe.epochs + 1):
            started = time.monotonic()
            loss = self.train_epoch(epoch)
            figures = evaluate(self.model, dev, self.objective, self.recipe.batch_size)
            if not math.isfinite(figures["loss"]):
                raise EdgeAlbertError(f"the dev loss is {figures['loss']} after epoch {epoch}: try a lower --lr")
            best.offer(epoch, metric, figures, self.model)
            record = {"event": "epoch", "epoch": epoch, "step": self.schedule.last_epoch, "train_loss": loss}
            rate, seconds = self.schedule.get_last_lr()[0], time.monotonic() - started
            report({**record, "dev": figures, "best_epoch": best.epoch, "learning_rate": rate, "seconds": seconds})
            if epoch - best.epoch >= self.recipe.patience:
                break
        self.model.load_state_dict(best.weights)
        self.model.eval()
        return best

    def train_epoch(self, epoch: int) -> float:
        """One pass over the training rows; the mean loss per row."""
        batches = epoch_batches(self.train.lengths, self.recipe.batch_size, self.recipe.seed, epoch)
        total = 0.0
        self.model.train()
        with Progress(len(batches), f"epoch {epoch}/{self.recipe.epochs}") as bar:
            for rows in batches:
                loss = self.step(rows)
                total += loss * len(rows)
                bar.update(loss=loss)
        return total / len(self.train)

    def step(self, rows: np.ndarray) -> float:
        """One update from these rows; their mean loss, which must be finite."""
        inputs, labels = self.train.collate(rows, self.device)
        with autocast(self.device):
            logits = self.objective.forward(self.model, inputs)
        loss = self.objective.loss(logits.float(), labels)

        def fault(value: float, norm: float | None) -> NotFiniteError:
            lines = self.train.lines[rows]
            return NotFiniteError(value, norm, self.schedule, lines, inputs["input_ids"], "training data")

        parameters, clip_norm = self.model.parameters(), self.recipe.clip_norm
        return update(loss, parameters, self.optimizer, self.schedule, clip_norm, fault)


@torch.no_grad()
def evaluate(model: AlbertForTask, texts: EncodedRows, objective: Objective, batch_size: int) -> Figures:
    """The mean loss per row and every metric, in evaluation mode."""
    device = next(model.parameters()).device
    outputs: dict[int, np.ndarray] = {}
    total = 0.0
    model.eval()
    for rows in sorted_batches(texts.lengths, batch_size):
        inputs, labels = texts.collate(rows, device)
        with autocast(device):
            logits = objective.forward(model, inputs)
        logits = logits.float()
        total += objective.loss(logits, labels).item() * len(rows)
        outputs |= zip(rows.tolist(), objective.predict(logits).cpu().numpy(), strict=True)
    predicted = texts.assemble([outputs[row] for row in range(len(texts))])
    return {"loss": total / len(texts), **objective.judge(texts.labels, predicted)}
