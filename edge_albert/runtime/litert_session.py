"""LiteRT's CompiledModel, for its one advantage here: it maps XNNPACK's packed weights from a cache file.

XNNPACK notices a cache file of another version, but not a damaged weight in one, which gives wrong answers without a
word; `cache.cached_files` checks the content's hash before the file gets here. It ends the process when it cannot
write the file, on a full disk for instance, so the file is made by a process of its own.

An output's buffer has the size that LiteRT worked out last. Made before a new length is worked out, it is too small
for outputs that have a row per token, hence the order in `_set_length`.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from edge_albert.runtime import cache
from edge_albert.runtime.quiet import quiet_at_exit, quiet_engine

_SIGNATURE = "serving_default"
_WEIGHTS = "weights.xnnpack"
_NEEDED = ("resize_input_tensor_by_name", "get_output_tensor_details", "create_output_buffer_by_name", "run_by_name")


def open_cached(path: Path, cache_dir: Path, model_hash: str, engine: str, threads: int) -> CompiledSession | None:
    """Open the model with its packed weights mapped from `cache_dir`, packed now if need be.

    None where that cannot be had: a LiteRT that does not offer it, a folder that cannot be written (with a warning), or
    weights that are whole and refused all the same.
    """
    litert = _compiled_model_module()
    if litert is None:
        return None

    def make(folder: Path) -> None:
        cache.pack_in_child(__name__, path.resolve(), folder)

    entry = cache.cached_files(cache_dir, model_hash, engine, make)
    if entry is None:
        return None
    try:
        return CompiledSession(litert, path, entry / _WEIGHTS, threads)
    except RuntimeError:
        cache.drop(entry)
        return None


def _compiled_model_module() -> Any:
    """The module with CompiledModel and its options, or None where this LiteRT has not all that is used here."""
    try:
        from ai_edge_litert import compiled_model
    except ImportError:
        return None
    model = getattr(compiled_model, "CompiledModel", None)
    options = getattr(getattr(compiled_model, "CpuOptions", None), "__dataclass_fields__", {})
    fits = "xnnpack_weight_cache_path" in options and all(hasattr(model, name) for name in _NEEDED)
    return compiled_model if fits else None


class CompiledSession:
    """A model opened with CompiledModel and a weight cache file; see `tflite_engine.Session`."""

    def __init__(self, litert: Any, path: Path, weights: Path, threads: int) -> None:
        self.packed: Path | None = weights.parent
        cpu = litert.CpuOptions(num_threads=threads, xnnpack_weight_cache_path=str(weights))
        self._new = partial(litert.CompiledModel.from_file, str(path), options=litert.Options(cpu_options=cpu))
        self._has_run = False
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, Any] = {}
        self._model: list[Any] = []  # of one; a list, so that the finalizer can empty it
        self._finalizer = weakref.finalize(self, _release, self._inputs, self._outputs, self._model)
        self.reopen()

    def reopen(self) -> None:
        _release(self._inputs, self._outputs, self._model)
        self._length = 0
        with quiet_engine():
            self._model.append(self._new())

    def run(self, row: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if not self._model:  # an attempt to reopen it has failed
            self.reopen()
        model = self._model[0]
        length = row["input_ids"].shape[1]
        if length != self._length:
            self._length = 0  # if setting it fails, the next run sets it anew
            self._set_length(model, row, length)
            self._length = length
        for name, value in row.items():
            self._inputs[name].write(value)
        model.run_by_name(_SIGNATURE, self._inputs, self._outputs)
        if not self._has_run:  # LiteRT's accelerators are there now, and would be logged when the process ends
            self._has_run = True
            quiet_at_exit()
        return {
            name: self._outputs[name].read(prod(shape), np.float32).reshape(shape)
            for name, shape in self._shapes.items()
        }

    def _set_length(self, model: Any, row: Mapping[str, np.ndarray], length: int) -> None:
        """Buffers for rows of another length. Asking for the outputs' shapes makes LiteRT work them out first."""
        for name in (key for key, value in row.items() if value.ndim == 2):
            model.resize_input_tensor_by_name(_SIGNATURE, name, [1, length])
        details = model.get_output_tensor_details(_SIGNATURE)
        self._shapes.update({name: tuple(detail["shape"]) for name, detail in details.items()})
        with quiet_engine():  # the first buffer written to makes LiteRT report on its accelerators
            for name, value in row.items():
                self._inputs[name] = model.create_input_buffer_by_name(_SIGNATURE, name)
                self._inputs[name].write(value)
            for name in details:
                self._outputs[name] = model.create_output_buffer_by_name(_SIGNATURE, name)

    def close(self) -> None:
        self._finalizer()


def _release(inputs: dict[str, Any], outputs: dict[str, Any], model: list[Any]) -> None:
    """Let go of a model and its buffers, at the latest when Python ends; LiteRT reports that too."""
    with quiet_engine():
        inputs.clear()
        outputs.clear()
        model.clear()


if __name__ == "__main__":
    _, model_file, cache_folder = sys.argv
    CompiledSession(_compiled_model_module(), Path(model_file), Path(cache_folder) / _WEIGHTS, threads=1).close()
