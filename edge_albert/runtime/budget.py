"""How much memory a bundle will take, worked out before anything is loaded, and a plan that fits a budget.

`memory_mb` is what a memory cgroup (`MemoryMax=` of systemd, `docker run --memory`) should be set to for the whole
process to run at its normal speed, Python included, in MB of 10^6 bytes. It is the sum of

    anonymous   heap and stacks of the whole process, at the peak: the interpreter and all that it holds already, the
                engine, the tokenizer, the weights that are not mapped, and the larger of what opening the model takes
                for a moment and the activations of the largest batch. It cannot be dropped; too little of it and the
                kernel ends the process.
    mapped      weights read from a mapped file at every inference. The kernel may drop them; then they are read from
                the disk again, at every inference.
    code        the part of the interpreter and the libraries that an inference touches, likewise file-backed; with
                less than that a process crawls (benchmarks/memory_cap.py).

File pages that are read once, at the start, are not counted: the kernel drops them without a loss.

The model of memory, per engine and precision, for a batch of B rows of S tokens:

    engine(mapped) + tokenizer(vocab_size) + fixed + table · T + layers · L
    + max(loading · L, per_token · B·S·intermediate_size + per_score · B·num_attention_heads·S²)

T and L are the bytes of the word table and of everything else in the model file. TFLite runs a batch row by row, so
that B is 1 there. benchmarks/memory_model.py fits the constants and compares the model with measurement, as
tests/test_budget.py does; they were fitted on x86-64 with CPython 3.11. See docs/memory.md.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge_albert.bundle import Bundle
from edge_albert.errors import EngineError
from edge_albert.runtime.engine import PACKAGES, choose_engine, installed, thread_count
from edge_albert.runtime.memory import read_memory

MB = 1_000_000
SHORTEST = 16  # tokens that a plan must have room for, or as many as the model takes


@dataclass(frozen=True)
class Cost:
    """Constants of one engine and precision, see the top of this file.

    fixed: MB; table, layers, loading: bytes per byte of the file; per_token, per_score: bytes.
    """

    fixed: float
    table: float
    layers: float
    loading: float
    per_token: float
    per_score: float


_INTERPRETER = 18.6  # MB of CPython with NumPy, SentencePiece and this package, where the system does not tell
_CODE = 20.0  # MB
_THREAD = 0.1  # MB of every thread beyond the first
_ENGINES = {("onnx", False): 8.0, ("onnx", True): 8.0, ("tflite", False): 1.1, ("tflite", True): 1.9}  # MB
_TOKENIZER = (1.64, 409.0)  # MB, and bytes an entry of the vocabulary
# (engine, precision, mapped) ► fixed, table, layers, loading, per_token, per_score
_COSTS = {
    ("onnx", "fp32", False): Cost(1.31, 0.96, 1.02, 0.97, 15.56, 2.70),
    ("onnx", "fp32", True): Cost(1.10, 0.00, 0.00, 1.23, 15.49, 2.61),
    ("onnx", "fp16", False): Cost(1.20, 0.92, 2.03, 2.51, 16.28, 2.41),
    ("onnx", "fp16", True): Cost(1.12, 0.00, 0.00, 2.43, 15.56, 2.61),
    ("onnx", "int8", False): Cost(1.38, 0.82, 1.08, 0.93, 15.12, 2.46),
    ("onnx", "int8", True): Cost(1.21, 0.00, 0.00, 1.16, 15.12, 2.44),
    ("tflite", "fp32", False): Cost(0.00, 0.00, 0.97, 0.01, 6.69, 5.03),
    ("tflite", "fp32", True): Cost(0.08, 0.00, 0.00, 0.09, 6.00, 5.35),
    ("tflite", "fp16", False): Cost(0.00, 0.00, 2.23, 0.47, 9.59, 3.31),
    ("tflite", "fp16", True): Cost(0.00, 0.00, 2.23, 0.47, 9.55, 3.34),
    ("tflite", "int8", False): Cost(0.00, 0.00, 0.90, 0.00, 6.53, 5.10),
    ("tflite", "int8", True): Cost(0.20, 0.00, 0.00, 0.38, 6.48, 5.11),
}
_BYTES = {"fp32": 4.0, "fp16": 2.0, "int8": 1.0, "int8-static": 1.0, "int4": 0.5}  # of an entry of the word table
_LIKE = {"int8-static": "int8", "int4": "int8"}  # precisions whose constants are those of another
_UNPACKED = {"fp16": 2.0}  # layers that are computed in fp32 are mapped so


@dataclass(frozen=True)
class Need:
    """Bytes, part by part, of running batches of one size; see the top of this file."""

    process: float
    engine: float
    tokenizer: float
    weights: float
    loading: float
    activations: float
    mapped: float
    code: float

    @property
    def anonymous(self) -> float:
        """The peak of anonymous memory of the whole process."""
        return self.process + self.engine + self.tokenizer + self.weights + max(self.loading, self.activations)

    @property
    def total(self) -> float:
        """What a memory cgroup must hold."""
        return self.anonymous + self.mapped + self.code


@dataclass(frozen=True)
class Plan:
    """How a bundle is run within a budget.

    engine: "onnx" or "tflite". mapped: weights are mapped from a cache. max_length: tokens of the longest text that
    fits; batch_size: rows of that length that fit together, at most as many as were asked for. need: of such a batch.
    """

    engine: str
    mapped: bool
    threads: int
    max_length: int
    batch_size: int
    budget: int
    need: Need


def needed(
    bundle: Bundle, engine: str, *, mapped: bool, threads: int, batch: int, length: int, process: float | None = None
) -> Need:
    """What running batches of `batch` texts of `length` tokens takes.

    process: bytes of anonymous memory of a process that has neither engine nor bundle; by default what this one holds
    now, with or without the engine.
    """
    config = bundle.config
    cost = _cost(bundle, engine, mapped)
    table, layers = weight_bytes(bundle, engine)
    fixed, per_entry = _TOKENIZER
    tokens = length if engine == "tflite" else batch * length
    scores = tokens * length * config.num_attention_heads
    return Need(
        process=_held() if process is None else process,
        engine=0.0 if process is None and _imported(engine) else _ENGINES[engine, mapped] * MB,
        tokenizer=fixed * MB + per_entry * config.vocab_size,
        weights=cost.fixed * MB + cost.table * table + cost.layers * layers + (threads - 1) * _THREAD * MB,
        loading=cost.loading * layers,
        activations=cost.per_token * tokens * config.intermediate_size + cost.per_score * scores,
        mapped=layers * _UNPACKED.get(_precision(bundle, engine), 1.0) if mapped else 0.0,
        code=_CODE * MB,
    )


def weight_bytes(bundle: Bundle, engine: str) -> tuple[float, float]:
    """Bytes of the word table in the model file, and of the rest of the file."""
    config = bundle.config
    size = bundle.model_path(engine).stat().st_size
    table = config.vocab_size * config.embedding_size * _BYTES.get(_precision(bundle, engine), 1.0)
    return min(table, size), max(size - table, 0.0)


def make_plan(
    bundle: Bundle,
    memory_mb: float,
    *,
    engine: str | None = None,
    threads: int | None = None,
    mapped: Sequence[str] = (),
    batch_size: int = 1,
) -> Plan:
    """The engine, length and batch with which the bundle runs within `memory_mb`, without loading anything.

    engine: None for the one that fits the longest texts, the bundle's first at a tie. mapped: engines whose weights
    would be mapped from a cache. Raises EngineError, with the number that would be enough, when nothing fits, and as
    `choose_engine` does.
    """
    if not isinstance(memory_mb, int | float) or isinstance(memory_mb, bool) or not 0 < memory_mb < math.inf:
        raise EngineError(f"memory_mb is {memory_mb!r}: give a number of MB above 0")
    first = choose_engine(bundle.formats, engine)
    engines = (
        [first] if engine else [first, *(n for n in bundle.formats if n in PACKAGES and n != first and installed(n))]
    )
    count = thread_count(threads)
    budget = int(memory_mb * MB)

    longest = bundle.config.max_position_embeddings

    def need(name: str, batch: int, length: int) -> Need:
        return needed(bundle, name, mapped=name in mapped, threads=count, batch=batch, length=length)

    def longest_that_fits(name: str) -> int:
        return _largest(longest, lambda length: need(name, 1, length).total <= budget)

    lengths = {name: longest_that_fits(name) for name in engines}
    best = max(engines, key=lengths.__getitem__)
    shortest = min(SHORTEST, longest)
    if lengths[best] < shortest:
        raise _too_small(bundle, memory_mb, {name: need(name, 1, shortest).total for name in engines}, shortest)
    length = lengths[best]
    batch = _largest(batch_size, lambda rows: need(best, rows, length).total <= budget)
    return Plan(best, best in mapped, count, length, batch, budget, need(best, batch, length))


def packing_fits(plan: Plan) -> bool:
    """Whether weights can be packed within the budget: by a child process, before this one opens its engine."""
    need, beside = plan.need, _INTERPRETER * MB
    child = beside + need.engine + need.weights + need.loading
    return need.process + need.tokenizer + child + need.code <= plan.budget


def _largest(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `limit` that fits, 0 when 1 does not; what fits, fits for all smaller ones too."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _too_small(bundle: Bundle, memory_mb: float, totals: dict[str, float], length: int) -> EngineError:
    said = " or ".join(f"{math.ceil(total / MB)} with {name}" for name, total in totals.items())
    return EngineError(
        f"{bundle.folder}: does not fit into memory_mb {memory_mb:g}: a text of {length} tokens needs {said} "
        "(the whole process, see docs/memory.md)"
    )


def _cost(bundle: Bundle, engine: str, mapped: bool) -> Cost:
    precision = _precision(bundle, engine)
    return _COSTS[engine, _LIKE.get(precision, precision), mapped]


def _precision(bundle: Bundle, engine: str) -> str:
    """As the manifest says; fp32, the largest, for one that this version does not know."""
    precision = bundle.manifest["models"][engine].get("precision")
    return precision if precision in _BYTES else "fp32"


def _held() -> float:
    """Anonymous memory that this process has now."""
    anon = read_memory().anon
    return _INTERPRETER * MB if anon is None else float(anon)


def _imported(engine: str) -> bool:
    return any(package in sys.modules for package in PACKAGES[engine])
