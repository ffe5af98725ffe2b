"""Reads a finished file back and says what stands in it: bytes per tensor, copies of each weight, products left in
float.

It trusts neither our writers nor anyone's names: a weight is found by its content. Each row of the checkpoint's matrix
is compared with the rows and columns of every stored tensor by correlation, which no per-channel scale, zero point,
transposition or joining with a neighbour can hide; by correlation within pieces of 32 columns, so that scales per block
cannot either. Bytes are also read as two 4-bit values. So the same audit counts the copies in a file another tool made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from converters.graph_files import read_model_file
from converters.stored_file import StoredFile, StoredTensor

_MATCH = 0.93  # correlation of a row with its quantised self: int8 > 0.999, int4 > 0.98, error compensated > 0.95
_PIECE = 32  # columns, the smallest block with a scale of its own
_PROBES = 3  # rows of a weight that must match


@dataclass(frozen=True)
class Audit:
    """What stands in a model file. Sizes in bytes.

    copies: {weight of the checkpoint: names of the stored tensors that hold it}; one name is what we promise.
    float_products: matrix products whose constant operand is float, as "operator name".
    """

    path: str
    file_bytes: int
    tensors: tuple[StoredTensor, ...]
    copies: Mapping[str, tuple[str, ...]]
    quantized_products: tuple[str, ...]
    float_products: tuple[str, ...]
    loops: int
    floor_bytes: int

    @property
    def tensor_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def repeated(self) -> dict[str, int]:
        """Weights that stand more than once, or not at all: {name: copies}. Empty is the promise kept."""
        return {name: len(places) for name, places in self.copies.items() if len(places) != 1}


def audit_file(path: str | Path, weights: Mapping[str, np.ndarray], *, floor_bytes: int) -> Audit:
    """Audit a .onnx or .tflite file against the checkpoint's `weights` {name: array}; only matrices are looked for.

    Tied tensors (equal content under two names) count as one weight. Raises EngineError for a file that cannot be
    parsed.
    """
    stored = read_model_file(path)
    return Audit(
        path=str(path),
        file_bytes=Path(path).stat().st_size,
        tensors=stored.tensors,
        copies=_find_copies(stored, weights),
        quantized_products=tuple(name for name, quantized in stored.products if quantized),
        float_products=tuple(name for name, quantized in stored.products if not quantized),
        loops=stored.loops,
        floor_bytes=floor_bytes,
    )


def unique_matrices(weights: Mapping[str, np.ndarray], smallest: int = 1024) -> dict[str, np.ndarray]:
    """The matrices of a checkpoint worth counting: two axes, at least `smallest` elements, equal content once."""
    seen: set[tuple[tuple[int, ...], bytes]] = set()
    out = {}
    for name in sorted(weights):
        array = weights[name]
        if array.ndim != 2 or array.size < smallest:
            continue
        key = (array.shape, array.tobytes())
        if key not in seen:
            seen.add(key)
            out[name] = array
    return out


def _find_copies(stored: StoredFile, weights: Mapping[str, np.ndarray]) -> dict[str, tuple[str, ...]]:
    views = [(tensor.name, view) for tensor in stored.tensors for view in _views(tensor)]
    unit_rows: dict[int, np.ndarray] = {}  # by view, made when a weight of that width is looked for
    copies = {}
    for name, weight in unique_matrices(weights).items():
        places = set()
        for index, (place, view) in enumerate(views):
            if view.shape[1] != weight.shape[1] or view.shape[0] < weight.shape[0]:
                continue
            if index not in unit_rows:
                unit_rows[index] = _unit_rows(view)
            if _holds(unit_rows[index], weight):
                places.add(place)
        copies[name] = tuple(sorted(places))
    return copies


def _views(tensor: StoredTensor) -> Sequence[np.ndarray]:
    """A stored tensor as matrices whose rows may be rows of a weight: as it lies, transposed, and as 4-bit values."""
    values = tensor.values
    if values.size < 512 or values.ndim not in (2, 3):
        return ()
    rows = values.reshape(len(values), -1)  # MatMulNBits has a third axis, for the blocks
    packed = _four_bits(rows) if values.itemsize == 1 and tensor.dtype.lower() != "int4" else ()
    return (values, values.T, *packed) if values.ndim == 2 else packed


def _four_bits(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bytes (rows, columns) ► (rows, 2 · columns) in the two orders there are: halves of a row, and neighbours."""
    unsigned = rows.view(np.uint8) ^ np.uint8(128 if rows.dtype == np.int8 else 0)
    low, high = unsigned & 15, unsigned >> 4
    return np.concatenate([low, high], axis=1), np.stack([low, high], axis=2).reshape(len(rows), -1)


def _unit_rows(matrix: np.ndarray) -> np.ndarray:
    """Every piece of a row centred and scaled to equal length, the row to unit length, float32; constants become 0."""
    rows = matrix.astype(np.float32)
    pieces = range(0, rows.shape[1], _PIECE)
    for start in pieces:
        piece = rows[:, start : start + _PIECE]  # a view
        piece -= piece.mean(axis=1, keepdims=True)
        norm = np.linalg.norm(piece, axis=1, keepdims=True) * np.sqrt(len(pieces))
        np.divide(piece, norm, out=piece, where=norm > 0)
    return rows


def _holds(rows: np.ndarray, weight: np.ndarray) -> bool:
    """Whether some rows of `weight` are all among `rows`, in the same order and spacing."""
    picks = np.linspace(weight.shape[0] // 8, weight.shape[0] - 1, _PROBES).astype(int)
    probes = _unit_rows(weight[picks])
    found = rows @ probes.T  # (rows, probes)
    places = found.argmax(axis=0)
    return bool((found.max(axis=0) > _MATCH).all() and (np.diff(places) == np.diff(picks)).all())
