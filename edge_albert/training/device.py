"""Where training runs, in which precision, and how two runs with one seed come out the same."""

from __future__ import annotations

import os
import random
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch


def pick_device() -> torch.device:
    """The first CUDA GPU where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def autocast(device: torch.device) -> AbstractContextManager[object]:
    """bfloat16 matrix products on a GPU that has them; float32 everywhere else."""
    if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.autocast("cuda", dtype=torch.bfloat16)
    return nullcontext()


def make_deterministic(seed: int, device: torch.device) -> None:
    """Seed every generator and ask for deterministic kernels.

    On a CPU the same seed then gives the same weights to the last bit, for the same number of threads. On a GPU a
    kernel without a deterministic form (the fused attention's backward pass) warns and is used all the same.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=device.type == "cuda")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a debugging aid: 3–5 %


def seed_step(seed: int, step: int, rank: int) -> None:
    """Make the step's dropout a function of these three, so that no generator's state has to be saved."""
    torch.manual_seed(int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0]))
