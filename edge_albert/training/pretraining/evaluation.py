"""Scoring a pre-training model on held-out examples: the sums that make its losses and accuracies."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from edge_albert.training.device import autocast
from edge_albert.training.pretraining.examples import ExampleMaker, Spans, collate
from edge_albert.training.pretraining.loss import PretrainingLoss


@torch.no_grad()
def held_out_sums(
    loss: PretrainingLoss,
    maker: ExampleMaker,
    spans: Spans,
    parts: Iterable[NDArray[np.int64]],
    *,
    pad_id: int,
    epoch: int = 0,
    length: int | None = None,
) -> NDArray[np.float64]:
    """(5,): the MLM loss, the order loss, how many of both were right, and the masked tokens, summed over all examples.

    parts: the numbers of the examples in `spans`, a batch each. epoch: the draw of masks, seams and orders. length:
    pads every example to it. The model is left in evaluation mode.
    """
    device = next(loss.parameters()).device
    loss.eval()
    sums = np.zeros(5)
    for part in parts:
        examples = [maker.make(spans, epoch, int(number)) for number in part]
        batch = collate(examples, pad_id, length).to(device)
        with autocast(device):
            mlm, order, right = loss(batch)
        sums += [mlm.item(), order.item(), *right.tolist(), len(batch.labels)]
    return sums
