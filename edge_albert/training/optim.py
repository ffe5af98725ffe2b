"""One update: AdamW, clipping, and BERT's and ALBERT's fine-tuning rate, a linear warm-up and then decay to 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Parameter groups for an optimizer: biases and normalisation weights, which are the vectors, do not decay."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]


def adamw(model: nn.Module, learning_rate: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW with the betas and epsilon of BERT's fine-tuning (0.9, 0.999, 1e-6)."""
    return torch.optim.AdamW(decay_groups(model, weight_decay), lr=learning_rate, betas=(0.9, 0.999), eps=1e-6)


def update(
    loss: Tensor,
    parameters: Iterable[Tensor],
    optimizer: torch.optim.Optimizer,
    schedule: LambdaLR,
    clip_norm: float,
    fault: Callable[[float, float | None], Exception],
) -> float:
    """One step down the gradient of `loss`, clipped to `clip_norm`; returns the loss.

    Raises fault(loss, None), or fault(loss, the gradient's norm), where that is not finite; the weights are as before.
    """
    value = loss.item()
    if not math.isfinite(value):
        raise fault(value, None)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(parameters, clip_norm).item()
    if not math.isfinite(norm):
        raise fault(value, norm)
    optimizer.step()
    schedule.step()
    return value


def linear_schedule(optimizer: torch.optim.Optimizer, steps: int, warmup: float) -> LambdaLR:
    """The optimizer's learning rate times 0 ► 1 over the first `warmup` share of `steps`, then 1 ► 0 over the rest.

    The first step already moves: it takes one step's share of the warm-up, not 0.
    """
    rising = round(warmup * steps)

    def factor(step: int) -> float:
        if step < rising:
            return (step + 1) / (rising + 1)
        return (steps - step) / max(1, steps - rising)

    return LambdaLR(optimizer, factor)
