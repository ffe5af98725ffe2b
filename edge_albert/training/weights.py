"""Between a PyTorch model and a checkpoint's arrays: {canonical name: array} in, the same out."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from edge_albert.model import AlbertForTask, AlbertModel


def load_arrays(model: AlbertForTask, tensors: Mapping[str, np.ndarray]) -> list[str]:
    """Fill the model with every array that it has a parameter of that name and shape for; return the names left as
    they were.

    Names are a `Checkpoint`'s, with `albert.` in front. Arrays the model has no place for are left out: the checkpoint
    reader has already refused what does not belong to an ALBERT.
    """
    prefix = "albert." if isinstance(model, AlbertModel) else ""
    left = []
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            array = tensors.get(prefix + name)
            if array is not None and array.shape == tuple(parameter.shape):
                parameter.copy_(torch.from_numpy(np.asarray(array, dtype=np.float32)))
            else:
                left.append(prefix + name)
    return left


def arrays_of(model: AlbertForTask) -> dict[str, np.ndarray]:
    """Every tensor of the model as a float32 array under a `Checkpoint`'s names, ready for `write_checkpoint`."""
    prefix = "albert." if isinstance(model, AlbertModel) else ""
    return {prefix + name: tensor.detach().float().cpu().numpy() for name, tensor in model.state_dict().items()}
