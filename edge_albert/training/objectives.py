"""What a fine-tuning task optimises and how it is judged: one row per task, so that a new task is a new row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from edge_albert.errors import EdgeAlbertError
from edge_albert.training import metrics

Metric = Callable[[np.ndarray, np.ndarray], float]


@dataclass(frozen=True)
class Objective:
    """loss: logits, labels ► a scalar, the mean over the batch. predict: logits ► what the metrics compare with labels.

    metrics: name ► function of (gold, predicted), higher is better; the first is the usual one for early stopping.
    """

    loss: Callable[[Tensor, Tensor], Tensor]
    predict: Callable[[Tensor], Tensor]
    metrics: Mapping[str, Metric]

    def metric_name(self, wanted: str | None) -> str:
        """The metric to stop by: `wanted`, or the usual one. Raises EdgeAlbertError that lists them."""
        if wanted is not None and wanted not in self.metrics:
            raise EdgeAlbertError(f"unknown metric {wanted!r} for this task: choose one of {', '.join(self.metrics)}")
        return wanted or next(iter(self.metrics))

    def judge(self, gold: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
        """Every metric's figure."""
        return {name: metric(gold, predicted) for name, metric in self.metrics.items()}


def classification(num_labels: int) -> Objective:
    """One label of several: logits (B, num_labels), labels (B,) int64."""
    f1 = metrics.f1 if num_labels == 2 else metrics.macro_f1
    return Objective(
        loss=F.cross_entropy,
        predict=lambda logits: logits.argmax(dim=-1),
        metrics={"accuracy": metrics.accuracy, "f1": f1, "matthews": metrics.matthews},
    )


def regression(num_labels: int = 1) -> Objective:
    """A number: logits (B, 1), labels (B,) float32."""
    return Objective(
        loss=lambda logits, labels: F.mse_loss(logits.squeeze(-1), labels),
        predict=lambda logits: logits.squeeze(-1),
        metrics={"spearman": metrics.spearman, "pearson": metrics.pearson},
    )


OBJECTIVES: dict[str, Callable[[int], Objective]] = {
    "text-classification": classification,
    "text-regression": regression,
}
