"""The optimizers of pre-training: LAMB, as in the paper, and AdamW for small batches."""

from __future__ import annotations

import torch
from torch import nn

from edge_albert.errors import EdgeAlbertError
from edge_albert.training.optim import decay_groups
from edge_albert.training.pretraining.recipe import PretrainRecipe


def make_optimizer(model: nn.Module, recipe: PretrainRecipe) -> torch.optim.Optimizer:
    """LAMB (You et al. 2020, arXiv 1904.00962v3: no bias correction), or AdamW with RoBERTa's β₂ of 0.98.

    Raises EdgeAlbertError when LAMB's package is not installed.
    """
    groups = decay_groups(model, recipe.weight_decay)
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.98), eps=1e-6)
    try:
        from pytorch_optimizer import Lamb
    except ModuleNotFoundError:
        raise EdgeAlbertError(
            "LAMB needs a package that is not installed: pip install pytorch-optimizer, or --optimizer adamw"
        ) from None
    # adam_debias leaves out a division by 1 - β₁ᵗ, which would make the first steps' rate ten times what was asked for
    return Lamb(groups, lr=recipe.learning_rate, betas=(0.9, 0.999), eps=1e-6, adam_debias=True)
