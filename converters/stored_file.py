"""What a finished model file stores, as plain facts: the audit looks at nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class StoredTensor:
    """A constant in the file: its name, type as the format calls it, values as stored, and bytes on disk."""

    name: str
    dtype: str
    values: np.ndarray
    nbytes: int


@dataclass(frozen=True)
class StoredFile:
    """tensors: every constant once; products: (operator name, quantised?) of those with a constant operand."""

    tensors: tuple[StoredTensor, ...]
    products: tuple[tuple[str, bool], ...]
    loops: int
