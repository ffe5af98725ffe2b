"""ONNX Runtime, set up for a small memory.

Measured on an int8 ALBERT-base (docs and command: benchmarks/export_vs_peers.py), each choice below is the better of
two: basic optimisation only (the extended level fuses Add and LayerNormalization into an operator that is slower on
CPU); the file's path rather than its bytes; no memory pattern per length; what loading freed is given back to the
system; after a long input the arena shrinks, so that memory follows the input down again.

A file of static int8 needs the extended level, where ONNX Runtime finds the integer products in it; below, it computes
them in float, five times slower. There the fusion of Add and LayerNormalization is switched off by name.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime as ort

from edge_albert.bundle import file_hash
from edge_albert.early_exit import THRESHOLD
from edge_albert.errors import EngineError
from edge_albert.runtime import cache
from edge_albert.runtime.memory import give_back_freed_memory

_KEEP_TOKENS = 128  # activations of up to this many tokens (batch × length) stay allocated between runs
_PACKED_MODEL, _PACKED_WEIGHTS = "model.onnx", "model.data"
_OLDEST = (1, 18)
_DTYPES = {THRESHOLD: np.float32}  # of inputs that are no whole numbers


class OnnxEngine:
    """An open .onnx model. Takes any batch. Safe to call from several threads; EngineError for a file it refuses."""

    name = "onnx"
    max_batch: int | None = None

    def __init__(
        self, path: Path, *, threads: int, cache_dir: Path | None = None, model_hash: str | None = None
    ) -> None:
        self.version = f"onnxruntime {ort.__version__}"
        _check_version(path)
        self._path = path
        self.packed: Path | None = None  # the cache entry the weights are mapped from
        self._options = _options(path, threads)
        session = self._open_packed(cache_dir, model_hash) if cache_dir is not None else None
        self._session: ort.InferenceSession | None = session or _open(path, self._options)
        self._outputs = [output.name for output in self._session.get_outputs()]
        self._shrink = ort.RunOptions()
        self._shrink.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        give_back_freed_memory()

    def _open_packed(self, cache_dir: Path, model_hash: str | None) -> ort.InferenceSession | None:
        """A session on the packed weights in `cache_dir`; None when there can be none."""

        def make(folder: Path) -> None:
            cache.pack_in_child(__name__, self._path.resolve(), folder)

        entry = cache.cached_files(cache_dir, model_hash or file_hash(self._path), self.version, make)
        if entry is None:
            return None
        try:
            session = _open(entry / _PACKED_MODEL, self._options)
        except EngineError:  # whole, and refused all the same: forget it
            cache.drop(entry)
            return None
        self.packed = entry
        return session

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if self._session is None:
            raise EngineError(f"{self._path}: the model is closed: load it again")
        arrays = {name: np.asarray(array, _DTYPES.get(name, np.int64)) for name, array in feeds.items()}
        large = max(array.size for array in arrays.values()) > _KEEP_TOKENS
        try:
            rows = self._session.run(self._outputs, arrays, self._shrink if large else None)
        except Exception as error:  # ONNX Runtime's own classes share no base but Exception
            raise EngineError(f"{self._path}: ONNX Runtime could not run it ({_first_line(error)})") from None
        if large:
            give_back_freed_memory()
        return dict(zip(self._outputs, rows, strict=True))

    def close(self) -> None:
        if self._session is not None:
            self._session = None
            give_back_freed_memory()


def _options(path: Path, threads: int) -> ort.SessionOptions:
    level = ort.GraphOptimizationLevel
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = level.ORT_ENABLE_EXTENDED if _is_static(path) else level.ORT_ENABLE_BASIC
    options.enable_mem_pattern = False
    options.log_severity_level = 3
    return options


def _is_static(path: Path) -> bool:
    """Whether a file has operators of static int8. Reading the graph as such would take the onnx package."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(b"DequantizeLinear") >= 0
    except (OSError, ValueError):  # missing or empty: the engine says so better
        return False


def _open(path: Path, options: ort.SessionOptions) -> ort.InferenceSession:
    try:
        return ort.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"], disabled_optimizers=["SkipLayerNormFusion"]
        )
    except Exception as error:  # as above
        raise EngineError(f"{path}: ONNX Runtime {ort.__version__} refused it ({_first_line(error)})") from None


def _check_version(path: Path) -> None:
    version = tuple(int(part) for part in ort.__version__.split(".")[:2])
    if version < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise EngineError(
            f"{path}: ONNX Runtime {ort.__version__} is too old for com.microsoft.MultiHeadAttention as used here: "
            f"pip install 'onnxruntime>={oldest}'"
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


# -- packing ----------------------------------------------------------------------------------------------------------


def pack(model: str, folder: str) -> None:
    """In a child process: write `folder`/model.onnx (a few kB) and model.data (raw and packed weights)."""
    options = _options(Path(model), threads=1)
    options.optimized_model_filepath = str(Path(folder) / _PACKED_MODEL)
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", _PACKED_WEIGHTS)
    options.add_session_config_entry("session.save_external_prepacked_constant_initializers", "1")
    _open(Path(model), options)


if __name__ == "__main__":
    pack(*sys.argv[1:])
