"""The engines that run a bundle's model, behind one small interface.

An engine is imported when it is opened and not before, so that a device needs only the one it uses. `max_batch` says
how many rows one `run` takes (None: any number); callers split larger batches.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from edge_albert.errors import EngineError

# engine ► the packages that bring it, in order of preference, and the extra that installs the first
PACKAGES = {"onnx": ("onnxruntime",), "tflite": ("ai_edge_litert", "tflite_runtime", "tensorflow")}


class Engine(Protocol):
    """An open model. name: "onnx" or "tflite"; version: of the package, as in "onnxruntime 1.32.0"."""

    name: str
    version: str
    max_batch: int | None

    @property
    def packed(self) -> Path | None:
        """The cache entry that the weights are mapped from."""
        ...

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """feeds: input_ids, attention_mask, token_type_ids, each (B, S) of whole numbers ► {output name: float32
        array}.

        A model with early exit also takes what `edge_albert.early_exit.Exits.feeds` makes; its defaults otherwise.
        """
        ...

    def close(self) -> None: ...


def installed(engine: str) -> bool:
    """Whether one of the engine's packages can be imported here; nothing is imported."""
    return any(importlib.util.find_spec(package) is not None for package in PACKAGES[engine])


def choose_engine(formats: Sequence[str], wanted: str | None = None) -> str:
    """Which engine to run a bundle of these formats with. EngineError says what to install when none can."""
    if wanted is not None:
        if wanted not in PACKAGES:
            raise EngineError(f"engine {wanted!r} is not one of {', '.join(PACKAGES)}")
        if wanted not in formats:
            raise EngineError(
                f"engine {wanted!r} cannot run this bundle ({', '.join(formats)}): export with --format {wanted}"
            )
        formats = [wanted]
    for name in formats:
        if name in PACKAGES and installed(name):
            return name
    extras = " or ".join(f"pip install 'edge-albert[{name}]'" for name in formats if name in PACKAGES)
    raise EngineError(f"no engine for {', '.join(formats)} is installed here: {extras}")


def default_threads() -> int:
    """As many threads as there are processors to run on, four at most: phones and Pis have four fast cores."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(4, available)


def thread_count(threads: int | None) -> int:
    """`threads`, or `default_threads()` for None. EngineError below 1."""
    if threads is not None and threads < 1:
        raise EngineError(f"threads is {threads}: at least 1 is needed")
    return default_threads() if threads is None else threads


def open_engine(
    path: str | Path,
    *,
    engine: str | None = None,
    threads: int | None = None,
    cache_dir: str | Path | None = None,
    model_hash: str | None = None,
) -> Engine:
    """Open a model file. The engine follows the file's name (.onnx, .tflite) unless given.

    threads: of one inference, None for `default_threads()`. cache_dir: where pre-packed weights may be kept, None for
    no cache. model_hash: sha256 of the file where the caller knows it, for the cache. Raises EngineError when the
    engine is missing, too old, or refuses the file.
    """
    path = Path(path)
    name = engine or path.suffix.lstrip(".")
    count = thread_count(threads)
    if name not in PACKAGES:
        raise EngineError(f"{path}: no engine is called {name!r}: choose one of {', '.join(PACKAGES)}")
    choose_engine([name])
    cache = None if cache_dir is None else Path(cache_dir)
    if name == "onnx":
        from edge_albert.runtime.onnx_engine import OnnxEngine

        return OnnxEngine(path, threads=count, cache_dir=cache, model_hash=model_hash)
    from edge_albert.runtime.tflite_engine import TfliteEngine

    return TfliteEngine(path, threads=count, cache_dir=cache, model_hash=model_hash)
