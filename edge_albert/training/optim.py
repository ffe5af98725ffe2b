"""AdamW and the learning rate of a fine-tuning run, as in BERT and ALBERT: linear warm-up, then linear decay to 0."""

from __future__ import annotations

import torch
from torch import nn
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
