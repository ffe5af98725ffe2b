"""GraphWriter ► TFLite.

One `WHILE` operator per group holds the shared layer as its body, a sub-graph of its own, so that the weights stand
once in the file and XNNPACK packs them once in memory. With `unroll` the body is repeated instead; the weights still
stand once in the file, but the engine packs every use.

Shapes: the batch is 1 and the length is dynamic, 1 to max_position_embeddings, set with `resize_tensor_input` (of all
three inputs) before `allocate_tensors`. Every other shape follows from it without an operator that computes shapes: a
shape that is only known while running would keep XNNPACK out of the whole graph. That is also why the batch is 1:
TFLite's RESHAPE can infer one size, not two.

How a weight is stored and multiplied in each precision: converters/tflite_weights.py. Biases, norms and the task head
stay float32 everywhere.

compat: for tflite-runtime 2.14 and TensorFlow Lite up to 2.16, also inside the Task Library. They misread per-channel
weights in FULLY_CONNECTED; told that it is version 5, 2.16 answers wrongly without a word. So the weights get the one
scale 1, and the scales of the channels are multiplied in afterwards: the same numbers for two small operators more.
They cannot look up fp16 rows, so the whole table is dequantised first. And they can set the length of a file with
WHILE once per interpreter: a second length after a run fails, and what follows is wrong without a word. So compat
implies unroll, which costs those engines little, since they do not pack int8 weights. (2.14 takes an fp16 file at one
length per interpreter even so.) Without compat FULLY_CONNECTED says version 12, and an engine that cannot run it
refuses the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from converters.arithmetic import TfliteArithmetic
from converters.graph import Linear, Norm, Shape, State, Tensor
from converters.scheme import Scheme
from converters.tflite_graph import TfliteGraph
from converters.tflite_metadata import BUFFER_NAME, INPUTS, model_metadata
from converters.tflite_weights import TfliteWeights
from edge_albert.tasks import Task
from edge_albert.tflite_format import INPUT_DEFAULTS

_MASKED = 1e4  # subtracted from the scores of padding: exp(-10000) is 0 in float32


class TfliteWriter:
    """Writes one .tflite file.

    unroll: repeat the loop's body instead of a WHILE operator. compat: a file that tflite-runtime 2.14 and TensorFlow
    Lite 2.16 run correctly, which includes unroll. description: of the file. task, tokenizer_file: what the TFLite
    metadata tells of; without a task there is no metadata.
    """

    def __init__(
        self,
        scheme: Scheme,
        *,
        unroll: bool = False,
        compat: bool = False,
        description: str = "edge_albert",
        task: Task | None = None,
        tokenizer_file: str = "spiece.model",
    ) -> None:
        self._graph = TfliteGraph(tuple(INPUTS))
        self._weights = TfliteWeights(self._graph, scheme, compat=compat)
        self.math = TfliteArithmetic(self._graph)
        self.records = self._weights.stored.records
        self._unroll = unroll or compat
        self._description = description
        self._metadata: dict[str, bytes] = {}
        self._defaults: dict[str, float] = {}  # of inputs that are one number
        if task is not None:
            card = model_metadata(task, description=description, tokenizer_file=tokenizer_file)
            self._metadata[BUFFER_NAME] = card

    def input(self, name: str) -> Tensor:
        return self._graph.input(name)

    def scalar_input(self, name: str, default: np.generic) -> Tensor:
        """TFLite inputs have no defaults: this one goes into the file's metadata, where the runtime finds it."""
        self._defaults[name] = default.item()
        return self._graph.scalar_input(name, "float" if default.dtype.kind == "f" else "int")

    def embedding(self, name: str, table: np.ndarray, ids: Tensor) -> Tensor:
        return self._weights.rows(name, table, ids)

    def positions(self, name: str, table: np.ndarray, like: Tensor) -> Tensor:
        """0, 1, 2, … as the running sum of ones, which has its shape from `like`; then an ordinary look-up."""
        zeros = self._op("MUL", f"{name}.zeros", [like, self._int(0)], like.shape, "int")
        ones = self._op("ADD", f"{name}.ones", [zeros, self._int(1)], like.shape, "int")
        numbers = self._op("CUMSUM", f"{name}.ids", [ones, self._int(1)], like.shape, "int", exclusive=True)
        return self.embedding(name, table, numbers)

    def linears(self, x: Tensor, layers: Sequence[Linear]) -> list[Tensor]:
        return self._weights.linears(x, layers)

    def small_linear(self, x: Tensor, layer: Linear) -> Tensor:
        return self._weights.small_linear(x, layer)

    def add(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        return self._op("ADD", name, [a, b], a.shape)

    def layer_norm(self, x: Tensor, norm: Norm) -> Tensor:
        axis = self._graph.ints(len(x.shape) - 1)
        column = (*x.shape[:-1], 1)
        gamma = self._graph.builder.constant(f"{norm.name}.weight", norm.gamma)
        beta = self._graph.builder.constant(f"{norm.name}.bias", norm.beta)
        mean = self._op("MEAN", f"{norm.name}.mean", [x, axis], column, keep_dims=True)
        squares = self._op("SQUARED_DIFFERENCE", f"{norm.name}.squares", [x, mean], x.shape)
        variance = self._op("MEAN", f"{norm.name}.variance", [squares, axis], column, keep_dims=True)
        guarded = self._op("ADD", f"{norm.name}.guarded", [variance, self._graph.scalar(norm.eps)], column)
        factor = self._op("RSQRT", f"{norm.name}.factor", [guarded], column)
        centred = self._op("SUB", f"{norm.name}.centred", [x, mean], x.shape)
        unit = self._op("MUL", f"{norm.name}.unit", [centred, factor], x.shape)
        scaled = self._op("MUL", f"{norm.name}.scaled", [unit, gamma], x.shape)
        return self._op("ADD", norm.name, [scaled, beta], x.shape)

    def activation(self, name: str, kind: str, x: Tensor) -> Tensor:
        if kind in ("relu", "tanh"):
            return self._op(kind.upper(), name, [x], x.shape)
        return self._op("GELU", name, [x], x.shape, approximate={"gelu": False, "gelu_new": True}[kind])

    def attention_mask(self, mask: Tensor) -> Tensor:
        """mask (B, S) ► what is added to the scores, (B, 1, 1, S): 0 for tokens, -10000 for padding."""
        flags = self._graph.cast("attention_mask.float", mask)
        scaled = self._op("MUL", "attention_mask.scaled", [flags, self._graph.scalar(_MASKED)], mask.shape)
        bias = self._op("SUB", "attention_mask.bias", [scaled, self._graph.scalar(_MASKED)], mask.shape)
        return self._graph.reshape("attention_mask.additive", bias, (mask.shape[0], 1, 1, mask.shape[1]))

    def attention(self, name: str, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, heads: int) -> Tensor:
        batch, length, width = q.shape
        assert isinstance(width, int)
        size = width // heads
        scaled = self._op("MUL", f"{name}.scaled_query", [q, self._graph.scalar(size**-0.5)], q.shape)
        query, key, value = (
            self._heads(f"{name}.{part}", x, heads) for part, x in (("query", scaled), ("key", k), ("value", v))
        )
        scores = (batch, heads, length, length)
        products = self._op("BATCH_MATMUL", f"{name}.scores", [query, key], scores, adj_y=True)
        masked = self._op("ADD", f"{name}.masked_scores", [products, mask], scores)
        probabilities = self._op("SOFTMAX", f"{name}.probabilities", [masked], scores, beta=1.0)
        context = self._op("BATCH_MATMUL", f"{name}.context", [probabilities, value], (batch, heads, length, size))
        rows = self._transpose(f"{name}.context_rows", context, (batch, length, heads, size))
        return self._graph.reshape(name, rows, q.shape)

    def _heads(self, name: str, x: Tensor, heads: int) -> Tensor:
        """(B, S, H) ► (B, A, S, H/A)"""
        batch, length, width = x.shape
        assert isinstance(width, int)
        split = self._graph.reshape(f"{name}_split", x, (batch, length, heads, width // heads))
        return self._transpose(f"{name}_heads", split, (batch, heads, length, width // heads))

    def _transpose(self, name: str, x: Tensor, shape: Shape) -> Tensor:
        """The middle two of four axes exchanged."""
        return self._op("TRANSPOSE", name, [x, self._graph.ints(0, 2, 1, 3)], shape)

    def loop(
        self, name: str, times: int, x: Tensor, constant: Tensor, body: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        if times == 1:
            return body(x, constant)
        if not self._unroll:
            return self._graph.loop(name, times, x, constant, body)
        for iteration in range(times):
            with self._graph.unrolled(iteration):
                x = body(x, constant)
        return x

    def exit_loop(
        self,
        name: str,
        times: int,
        state: State,
        constants: Sequence[Tensor],
        body: Callable[[Tensor, State, Sequence[Tensor]], tuple[State, Tensor]],
    ) -> State:
        return self._graph.exit_loop(name, times, state, constants, body)

    def first_token(self, name: str, x: Tensor) -> Tensor:
        return self._op("GATHER", name, [x, self._int(0)], (x.shape[0], x.shape[2]), axis=1)

    def masked_sum(self, name: str, x: Tensor, mask: Tensor) -> Tensor:
        flags = self._graph.cast(f"{name}.mask", mask)
        column = self._graph.reshape(f"{name}.column", flags, (*mask.shape, 1))
        kept = self._op("MUL", f"{name}.kept", [x, column], x.shape)
        return self._op("SUM", name, [kept, self._graph.ints(1)], (x.shape[0], x.shape[2]), keep_dims=False)

    def l2_normalize(self, name: str, x: Tensor) -> Tensor:
        return self._op("L2_NORMALIZATION", name, [x], x.shape)

    def output(self, name: str, x: Tensor) -> None:
        self._graph.output(name, x)

    def finish(self) -> bytes:
        metadata = dict(self._metadata)
        if self._defaults:
            metadata[INPUT_DEFAULTS] = json.dumps(self._defaults, sort_keys=True).encode()
        return self._graph.finish(description=self._description, metadata=metadata)

    def _op(
        self, kind: str, name: str, inputs: Sequence[Tensor | int], shape: Shape, dtype: str = "float", **options: Any
    ) -> Tensor:
        return self._graph.op(kind, name, inputs, shape, dtype, **options)

    def _int(self, value: int) -> int:
        return self._graph.number(value)
