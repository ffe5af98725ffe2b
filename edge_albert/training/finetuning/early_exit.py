"""Training for early exit: an answer after every iteration, all of them in one loss.

The loss is the mean of the losses of all iterations, iteration t weighing t (PABEE, Zhou et al. 2020, arXiv 2006.04152,
equation 3): late answers matter most, since the hard inputs get there. Self-distillation adds, with the same weights,
the divergence of every early answer from the last one of the same step, which is held fixed (FastBERT, Liu et al. 2020,
arXiv 2004.02178, section 3.2.2; there the early heads alone are trained with it, here the shared layer is too).

Whatever the task's objective, it gets the last answer alone to predict from, so that the epoch kept is the one that is
best at full depth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from edge_albert.config import EXIT_HEADS
from edge_albert.model import AlbertForSequenceClassification, AlbertForTask, AlbertForTokenClassification, AlbertOutput
from edge_albert.training.data.batches import Inputs
from edge_albert.training.finetuning.objectives import Objective
from edge_albert.training.finetuning.tagging import NO_TAG

DEFAULT_HEADS = EXIT_HEADS[0]


@dataclass(frozen=True)
class ExitTraining:
    """heads: one of EXIT_HEADS. distill: weight of self-distillation from the last iteration, 0 for none.

    docs/early_exit.md says what the defaults were measured against.
    """

    heads: str = DEFAULT_HEADS
    distill: float = 0.0


def all_logits(model: AlbertForTask, inputs: Inputs) -> Tensor:
    """The model's answer after every iteration: (N, B, C), or (N, B, S, C) for token labels."""
    texts = (inputs["input_ids"], inputs["attention_mask"], inputs["token_type_ids"])
    return exit_logits(model, model.encode(*texts, output_hidden_states=True))


def exit_logits(model: AlbertForTask, encoded: AlbertOutput) -> Tensor:
    """The same from an encoding that has its hidden states."""
    assert isinstance(model, AlbertForSequenceClassification | AlbertForTokenClassification)
    states = encoded.hidden_states[:: model.config.inner_group_num][1:]  # N of (B, S, H)
    heads = [*model.exits, model.classifier] if len(model.exits) else [model.classifier] * len(states)
    pooled = [model.albert.pool(hidden) for hidden in states]
    read = [hidden if first is None else first for hidden, first in zip(states, pooled, strict=True)]
    return torch.stack([head(model.dropout(x)) for head, x in zip(heads, read, strict=True)])


def with_exits(objective: Objective, training: ExitTraining) -> Objective:
    """The objective of a task, asked of every iteration. Its loss gets (N, B, …, C), its predictions the last of N."""

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        total = weighted([objective.loss(answer, labels) for answer in logits])
        if training.distill:
            known = logits[:, labels != NO_TAG] if logits.ndim == 4 else logits  # of a sentence, the labelled tokens
            total = total + training.distill * self_distillation(known)
        return total

    return replace(objective, forward=all_logits, loss=loss, predict=lambda logits: objective.predict(logits[-1]))


def weighted(losses: list[Tensor]) -> Tensor:
    """Σ t·loss_t / Σ t over the iterations t = 1 … N; losses may be of each row, (B,)."""
    weights = [*range(1, len(losses) + 1)]
    return torch.stack([t * loss for t, loss in zip(weights, losses, strict=True)]).sum(dim=0) / sum(weights)


def self_distillation(logits: Tensor) -> Tensor:
    """How far the early answers are from the last: logits (N, R, C) ► the weighted mean over iterations 1 … N - 1.

    KL(last ‖ early) of the labels' probabilities, the mean over the R rows; for a regression (C = 1) the squared
    difference.
    """
    last = logits[-1].detach()
    divergence: Callable[[Tensor], Tensor] = (
        (lambda answer: F.mse_loss(answer, last))
        if logits.shape[-1] == 1
        else (lambda answer: _divergence(answer, last))
    )
    return weighted([divergence(answer) for answer in logits[:-1]]) if len(logits) > 1 else logits.new_zeros(())


def _divergence(mine: Tensor, its: Tensor) -> Tensor:
    log_mine, log_its = (F.log_softmax(x, dim=-1) for x in (mine, its))
    return F.kl_div(log_mine, log_its, reduction="batchmean", log_target=True)
