"""What a fine-tuning task optimises and how it is judged.

An `Objective` is everything the loop knows of a task: how the model's outputs come about, their loss, and the metrics.
Here are those of one label or one number per text; the others stand beside their data (question_answering.py,
multiple_choice.py, tagging.py, embedding.py), and finetune_tasks.py has the table of all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from edge_albert.errors import EdgeAlbertError
from edge_albert.model import AlbertForTask
from edge_albert.training.data.batches import Inputs
from edge_albert.training.metrics import glue

Figures = dict[str, float]
Metric = Callable[[Any, Any], float]


def model_outputs(model: AlbertForTask, inputs: Inputs) -> Tensor:
    """The usual `Objective.forward`: what the model makes of its inputs."""
    return model(**inputs)


def no_notes(gold: Any, predicted: Any) -> Figures:
    """The usual `Objective.notes`."""
    return {}


@dataclass(frozen=True)
class Objective:
    """loss: logits, labels ► a scalar, the mean over the batch. predict: logits ► what the metrics compare with labels,
    one entry per row of the batch; `EncodedRows.assemble` puts the rows of a data set together.

    metrics: name ► function of (gold, predicted), higher is better; the first is the usual one for early stopping.
    forward: model and inputs ► the logits that loss and predict get. notes: (gold, predicted) ► figures that are told
    beside the metrics and are no measure to stop by.
    """

    loss: Callable[[Tensor, Tensor], Tensor]
    predict: Callable[[Tensor], Tensor]
    metrics: Mapping[str, Metric]
    forward: Callable[[AlbertForTask, Inputs], Tensor] = model_outputs
    notes: Callable[[Any, Any], Figures] = no_notes

    def metric_name(self, wanted: str | None) -> str:
        """The metric to stop by: `wanted`, or the usual one. Raises EdgeAlbertError that lists them."""
        if wanted is not None and wanted not in self.metrics:
            raise EdgeAlbertError(f"unknown metric {wanted!r} for this task: choose one of {', '.join(self.metrics)}")
        return wanted or next(iter(self.metrics))

    def judge(self, gold: Any, predicted: Any) -> Figures:
        """Every metric's figure, then the notes."""
        return {name: metric(gold, predicted) for name, metric in self.metrics.items()} | self.notes(gold, predicted)


def classification(num_labels: int) -> Objective:
    """One label of several: logits (B, num_labels), labels (B,) int64."""
    f1 = glue.f1 if num_labels == 2 else glue.macro_f1
    return Objective(
        loss=F.cross_entropy,
        predict=lambda logits: logits.argmax(dim=-1),
        metrics={"accuracy": glue.accuracy, "f1": f1, "matthews": glue.matthews},
    )


def regression(num_labels: int = 1) -> Objective:
    """A number: logits (B, 1), labels (B,) float32."""
    return Objective(
        loss=lambda logits, labels: F.mse_loss(logits.squeeze(-1), labels),
        predict=lambda logits: logits.squeeze(-1),
        metrics={"spearman": glue.spearman, "pearson": glue.pearson},
    )


OBJECTIVES: dict[str, Callable[[int], Objective]] = {
    "text-classification": classification,
    "text-regression": regression,
}
