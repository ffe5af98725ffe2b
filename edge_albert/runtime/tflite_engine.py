"""Runs model.tflite with LiteRT, or with one of the packages that TensorFlow Lite came in before.

A row is run at its own length: padding after its last token is cut off, so that a text's answer does not depend, not
in the last bit, on what else is in its batch, and no time is spent on padding. Rows run one after another, in order of
length, since the file takes a batch of 1 and setting another length costs something.

Which package: ai_edge_litert, else tflite_runtime (the only one with wheels for 32-bit ARM), else tensorflow. The last
two set the length of a file with a WHILE loop, or with fp16 weights, correctly once per interpreter, so there an
interpreter is opened for every length. With a cache folder and a LiteRT that offers it, packed weights are mapped from
a file (litert_session.py).

The file is checked before an engine maps it: engines follow its offsets blindly, and a damaged one ends the process.
int4 weights go to LiteRT from 2.1 on only: 2.0 multiplies them wrongly without a word, and tflite_runtime 2.14 ends the
process.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np

from edge_albert.bundle import file_hash
from edge_albert.early_exit import DEPTH, THRESHOLD
from edge_albert.errors import EngineError
from edge_albert.flatbuffer import FlatbufferError
from edge_albert.runtime.engine import PACKAGES
from edge_albert.runtime.memory import give_back_freed_memory
from edge_albert.runtime.quiet import quiet_engine
from edge_albert.tflite_format import INPUT_DEFAULTS, OPERATOR_NAMES, TENSOR_TYPES, check_model, operator_number

_INTERPRETERS = {
    "ai_edge_litert": "ai_edge_litert.interpreter",
    "tflite_runtime": "tflite_runtime.interpreter",
    "tensorflow": "tensorflow.lite.python.interpreter",
}
_INPUTS = {"input_ids", "attention_mask", "token_type_ids"}
_NUMBERS = {THRESHOLD: np.float32, DEPTH: np.int32}  # inputs of models with early exit, one number each
_SIDES = ("inputs", "outputs")
_KEEP_TOKENS = 128  # the memory for rows up to this long is kept between rows
_INT4_NEEDS = (2, 1)  # of ai-edge-litert
_TOO_OLD = re.compile(r"builtin opcode '(\w+)' version '(\d+)'|Type '(\w+)' is not supported by (\w+)")


@dataclass(frozen=True)
class Package:
    """The package that runs the file: its name and version for people, and the module with its Interpreter."""

    name: str
    version: str
    module: Any


class Session(Protocol):
    """An open file that takes one row, {input: (1, S) int32}, and gives {output: (1, …) float32}."""

    def run(self, row: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]: ...

    def reopen(self) -> None:
        """Begin anew, with none of the memory that rows so far have needed."""
        ...

    def close(self) -> None: ...


class TfliteEngine:
    """An open .tflite file of this project; see `edge_albert.runtime.engine.Engine`. Safe to call from several threads.

    Raises EngineError: no package installed, file missing, damaged or refused, engine too old for an operator.
    """

    name = "tflite"
    max_batch: int | None = None

    def __init__(
        self, path: str | Path, *, threads: int, cache_dir: Path | None = None, model_hash: str | None = None
    ) -> None:
        self._path = Path(path)
        self._facts = _check_file(self._path)
        self._package = _find_package()
        self.version = f"{self._package.name} {self._package.version}"
        self._check_int4()
        self._lock = Lock()  # an interpreter has one set of buffers
        self._last_length = 0
        try:
            cached = self._open_cached(cache_dir, model_hash, threads) if cache_dir is not None else None
            self._session: Session | None = cached or self._open_interpreter(threads)
        except (RuntimeError, ValueError) as error:
            raise self._refused(error) from None
        give_back_freed_memory()

    def _check_int4(self) -> None:
        """Before the engine sees the file."""
        known = tuple(int(part) for part in re.findall(r"\d+", self._package.version)[:2])
        if self._facts.int4 and (self._package.name != "ai-edge-litert" or known < _INT4_NEEDS):
            raise EngineError(
                f"{self._path}: {self.version} does not multiply int4 weights rightly: install ai-edge-litert>="
                f"{'.'.join(map(str, _INT4_NEEDS))}, or export the model again with --int8"
            )

    def _open_interpreter(self, threads: int) -> Session:
        resizes = self._package.name == "ai-edge-litert"

        def new() -> Any:
            return self._package.module.Interpreter(model_path=str(self._path), num_threads=threads)

        return _InterpreterSession(new, resizes)

    def _open_cached(self, cache_dir: Path, model_hash: str | None, threads: int) -> Session | None:
        """A session on the packed weights in `cache_dir`; None when there can be none."""
        if self._package.name != "ai-edge-litert" or self._facts.repacked:
            return None
        from edge_albert.runtime.litert_session import open_cached

        return open_cached(self._path, cache_dir, model_hash or file_hash(self._path), self.version, threads)

    @property
    def packed(self) -> Path | None:
        """The cache entry that the weights are mapped from."""
        return getattr(self._session, "packed", None)

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """feeds: input_ids, attention_mask, token_type_ids, each (B, S) of whole numbers ► {output: float32 array}.

        Outputs per token, (B, S, C), are 0 after a row's last token. Inputs that are one number may be left out: then
        the file's own defaults hold. Raises EngineError for S over the model's maximum
        and for token numbers outside its vocabulary.
        """
        numbers = {
            name: np.full(1, feeds.get(name, default), _NUMBERS[name]) for name, default in self._facts.defaults.items()
        }
        feeds = {name: feeds[name] for name in _INPUTS}
        mask = np.asarray(feeds["attention_mask"])
        batch, length = mask.shape
        lengths = [int(row.nonzero()[0].max(initial=0)) + 1 for row in mask]
        self._check_feeds(feeds, lengths)
        rows: dict[int, dict[str, np.ndarray]] = {}
        with self._lock:
            for index in sorted(range(batch), key=lengths.__getitem__):
                place = np.s_[index : index + 1, : lengths[index]]
                texts = {name: np.ascontiguousarray(a[place], np.int32) for name, a in feeds.items()}
                rows[index] = self._run_row({**texts, **numbers})
        return {name: _stack([rows[index][name] for index in range(batch)], length) for name in self._facts.outputs}

    def _run_row(self, row: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if self._session is None:
            raise EngineError(f"{self._path}: the model is closed: load it again")
        length = row["input_ids"].shape[1]
        try:
            if self._last_length > _KEEP_TOKENS >= length:  # engines keep the memory of the longest row there was
                self._session.reopen()
                give_back_freed_memory()
            grown = length > self._last_length
            self._last_length = length
            outputs = self._session.run(row)
            if grown:  # what the shorter rows had is free now
                give_back_freed_memory()
            return outputs
        except (RuntimeError, ValueError) as error:
            raise self._refused(error) from None

    def _check_feeds(self, feeds: Mapping[str, np.ndarray], lengths: list[int]) -> None:
        if not feeds["attention_mask"].size:
            raise EngineError(f"{self._path}: nothing to run: give at least one text of at least one token")
        if max(lengths) > self._facts.max_length:
            raise EngineError(
                f"{self._path}: {max(lengths)} tokens are more than the {self._facts.max_length} the model takes: "
                "truncate the text or run it in overlapping parts"
            )
        for name, limit in self._facts.limits.items():
            if feeds[name].min() < 0 or feeds[name].max() >= limit:
                raise EngineError(
                    f"{self._path}: {name} must be 0 to {limit - 1}, found {feeds[name].min()} to {feeds[name].max()}: "
                    "is the tokenizer that of this model?"
                )

    def _refused(self, error: Exception) -> EngineError:
        text = str(error)
        if found := _TOO_OLD.search(text):
            operator, version, dtype, kernel = found.groups()
            what = f"{operator} version {version}" if operator else f"{kernel.upper()} of {dtype}"
            return EngineError(
                f"{self._path}: {self.version} is too old for the operator {what}: install ai-edge-litert>=2.0, "
                "or export the model again with --tflite-compat"
            )
        reason = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
        return EngineError(f"{self._path}: {self.version} refuses the file: {reason}")

    def close(self) -> None:
        """Let go of the file and the engine's memory; `run` raises EngineError from then on."""
        with self._lock:
            if self._session is not None:
                self._session.close()
                self._session = None
                give_back_freed_memory()


class _InterpreterSession:
    """The interpreter that all packages have. resizes: whether one may be set to several lengths in turn."""

    def __init__(self, new: Callable[[], Any], resizes: bool) -> None:
        self._new = new
        self._resizes = resizes
        self.reopen()

    def reopen(self) -> None:
        """A new interpreter. What it cannot run it refuses at the latest when it first allocates."""
        with quiet_engine():
            self._interpreter = self._new()
            self._interpreter.allocate_tensors()
        self._length = 0
        self._inputs = {detail["name"]: detail["index"] for detail in self._interpreter.get_input_details()}
        self._outputs = {detail["name"]: detail["index"] for detail in self._interpreter.get_output_details()}

    def run(self, row: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        self._set_length(row["input_ids"].shape[1])
        for name, value in row.items():
            self._interpreter.set_tensor(self._inputs[name], value)
        self._interpreter.invoke()
        return {name: self._interpreter.get_tensor(index) for name, index in self._outputs.items()}

    def _set_length(self, length: int) -> None:
        if length == self._length:
            return
        if self._length and not self._resizes:
            self.reopen()
        self._length = 0  # if setting it fails, the next run sets it anew
        for name in _INPUTS:
            self._interpreter.resize_tensor_input(self._inputs[name], (1, length))
        with quiet_engine():
            self._interpreter.allocate_tensors()
        self._length = length

    def close(self) -> None:
        self._interpreter = None


def _stack(rows: list[np.ndarray], length: int) -> np.ndarray:
    """Rows (1, C) ► (B, C); rows per token (1, S of the row, C) ► (B, S, C) with zeros after each row's end."""
    if rows[0].ndim < 3:
        return np.concatenate(rows)
    out = np.zeros((len(rows), length, rows[0].shape[2]), rows[0].dtype)
    for place, row in zip(out, rows, strict=True):
        place[: row.shape[1]] = row[0]
    return out


@dataclass(frozen=True)
class _Facts:
    """outputs: their names. limits: {input: how many rows the table has that it looks up}. max_length: in tokens.

    defaults: {input that is one number: its value when none is given}.
    int4: some weights are. repacked: XNNPACK packs a weight for several ranges of inputs, which its cache mixes up.
    """

    outputs: tuple[str, ...]
    limits: Mapping[str, int]
    max_length: int
    defaults: Mapping[str, float]
    int4: bool
    repacked: bool


def _check_file(path: Path) -> _Facts:
    """Check the file's structure, which keeps nothing of it in memory, and note what `run` needs to know."""
    try:
        return _facts(check_model(np.memmap(path, np.uint8, "r")))
    except OSError as error:
        raise EngineError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, IndexError) as error:  # a FlatbufferError, an empty file, or a look-up with odd operands
        raise EngineError(f"{path}: not a TFLite model of this project ({error}): export or copy it again") from None


def _facts(model: Mapping[str, Any]) -> _Facts:
    graph = model["subgraphs"][0]
    names = [tensor["name"] for tensor in graph["tensors"]]
    inputs, outputs = ([names[index] for index in graph[side]] for side in _SIDES)
    signed = {side: sorted(entry["name"] for one in model["signature_defs"] for entry in one[side]) for side in _SIDES}
    defaults = _defaults(model)
    if set(inputs) != _INPUTS | defaults.keys() or signed != {"inputs": sorted(inputs), "outputs": sorted(outputs)}:
        raise FlatbufferError("its inputs and outputs are not those of a model of this project")
    rows: dict[str, int] = {}  # by name of the tensor that holds the row numbers
    sums: list[str] = []  # running ones; positions are looked up by theirs
    for operator in graph["operators"]:
        kind = OPERATOR_NAMES[operator_number(model["operator_codes"][operator["opcode_index"]])]
        if kind == "GATHER":
            table, numbers = operator["inputs"]
            rows.setdefault(names[numbers], int(graph["tensors"][table]["shape"][0]))
        elif kind == "CUMSUM":
            sums.append(names[operator["outputs"][0]])
    positions = next((name for name in sums if name in rows), None)
    if positions is None:
        raise FlatbufferError("it has no table of positions")
    limits = {name: rows[name] for name in inputs if name in rows}
    int4 = any(tensor["type"] == TENSOR_TYPES["int4"] for one in model["subgraphs"] for tensor in one["tensors"])
    return _Facts(tuple(outputs), limits, rows[positions], defaults, int4, _repacked(model))


def _defaults(model: Mapping[str, Any]) -> dict[str, float]:
    """What the file's metadata says of inputs that are one number."""
    for entry in model["metadata"]:
        if entry["name"] == INPUT_DEFAULTS:
            said = json.loads(model["buffers"][entry["buffer"]]["data"].tobytes())
            if not isinstance(said, dict) or not all(type(said.get(name)) in (int, float) for name in _NUMBERS):
                raise FlatbufferError("the defaults of its inputs are damaged")
            return {name: said[name] for name in _NUMBERS}
    return {}


def _repacked(model: Mapping[str, Any]) -> bool:
    """Whether two products of integers share a weight, as in an unrolled graph of static int8."""
    weights = []
    for graph in model["subgraphs"]:
        for operator in graph["operators"]:
            if OPERATOR_NAMES[operator_number(model["operator_codes"][operator["opcode_index"]])] == "FULLY_CONNECTED":
                x, weight = (graph["tensors"][index] for index in operator["inputs"][:2])
                weights += [weight["buffer"]] if x["type"] == TENSOR_TYPES["int8"] else []
    return len(weights) != len(set(weights))


def _find_package() -> Package:
    """The first of the packages that can be imported here."""
    broken = []
    for name in PACKAGES["tflite"]:
        try:
            return Package(name.replace("_", "-"), _version(name), importlib.import_module(_INTERPRETERS[name]))
        except ModuleNotFoundError:
            continue
        except (ImportError, OSError) as error:  # installed, but a library of it cannot be loaded here
            broken.append(f"{name} cannot be imported ({str(error).splitlines()[0]})")
    reason = "; ".join(broken) or "no engine for TFLite models is installed here"
    raise EngineError(f"{reason}: pip install 'edge-albert[tflite]'")


def _version(package: str) -> str:
    """The package's own word; importlib.metadata only without one, since it takes 3 MB of memory."""
    version = getattr(importlib.import_module(package), "__version__", None)
    if version is None:
        from importlib import metadata

        version = metadata.version(package)
    return str(version)
