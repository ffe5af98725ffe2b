"""GraphWriter ► TFLite.

One `WHILE` operator per group holds the shared layer as its body, a sub-graph of its own, so that the weights stand
once in the file and XNNPACK packs them once in memory. With `unroll` the body is repeated instead; the weights still
stand once in the file, but the engine packs every use.

Shapes: the batch is 1 and the length is dynamic, 1 to max_position_embeddings, set with `resize_tensor_input` (of all
three inputs) before `allocate_tensors`. Every other shape follows from it without an operator that computes shapes: a
shape that is only known while running would keep XNNPACK out of the whole graph. That is also why the batch is 1:
TFLite's RESHAPE can infer one size, not two.

int8: matrix products are FULLY_CONNECTED with float input and int8 weights, one scale per output channel, activations
quantised on the fly per row ("dynamic range"); embedding tables are int8 with one scale per row. fp16: weights are
stored as fp16 with a DEQUANTIZE each, as TensorFlow's converter does; they are float32 in memory. Biases, norms and
the task head stay float32 everywhere.

compat: for tflite-runtime 2.14 and TensorFlow Lite up to 2.16, also inside the Task Library. They misread per-channel
weights in FULLY_CONNECTED; told that it is version 5, 2.16 answers wrongly without a word. So the weights get the one
scale 1, and the scales of the channels are multiplied in afterwards: the same numbers for two small operators more.
They cannot look up fp16 rows, so the whole table is dequantised first. And they can set the length of a file with
WHILE once per interpreter: a second length after a run fails, and what follows is wrong without a word. So compat
implies unroll, which costs those engines little, since they do not pack int8 weights. (2.14 takes an fp16 file at one
length per interpreter even so.) Without compat FULLY_CONNECTED says version 12, and an engine that cannot run it
refuses the file.

Operator versions are the lowest that the operands need (op_version.cc in the LiteRT repository).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from converters.graph import BATCH, LENGTH, PRECISIONS, Linear, Norm, Shape, Tensor
from converters.quantize import WeightRecorder
from converters.tflite_metadata import BUFFER_NAME, INPUTS, model_metadata
from converters.tflite_model import GraphBuilder, ModelBuilder
from edge_albert.errors import EdgeAlbertError
from edge_albert.tasks import Task
from edge_albert.tflite_format import TENSOR_TYPES

_SIZES = {BATCH: 1, LENGTH: -1}
_TYPES = {"float": "float32", "int": "int32", "bool": "bool"}
_MASKED = 1e4  # subtracted from the scores of padding: exp(-10000) is 0 in float32
_FLOAT, _INT, _INT8 = (TENSOR_TYPES[name] for name in ("float32", "int32", "int8"))


class TfliteWriter:
    """Writes one .tflite file.

    precision: fp32, fp16 or int8. unroll: repeat the loop's body instead of a WHILE operator. compat: a file that
    tflite-runtime 2.14 and TensorFlow Lite 2.16 run correctly, which includes unroll. description: of the file. task,
    tokenizer_file: what the TFLite metadata tells of; without a task there is no metadata.
    """

    def __init__(
        self,
        precision: str = "int8",
        *,
        unroll: bool = False,
        compat: bool = False,
        description: str = "edge_albert",
        task: Task | None = None,
        tokenizer_file: str = "spiece.model",
    ) -> None:
        if precision not in PRECISIONS:
            raise EdgeAlbertError(f"precision {precision!r} is not one of {', '.join(PRECISIONS)}")
        self._stored = WeightRecorder()
        self.records = self._stored.records
        self._precision = precision
        self._unroll = unroll or compat
        self._compat = compat
        self._description = description
        self._metadata: dict[str, bytes] = {}
        if task is not None:
            card = model_metadata(task, description=description, tokenizer_file=tokenizer_file)
            self._metadata[BUFFER_NAME] = card
        self._model = ModelBuilder()
        self._graph = self._model.graph("main")  # the sub-graph being written
        self._inputs = {name: self._graph.tensor(name, (1, -1), "int32") for name in INPUTS}
        self._values = dict(self._inputs)  # the computed tensors of that sub-graph by name
        self._outputs: dict[str, int] = {}
        self._prefix = ""

    # -- plumbing ------------------------------------------------------------------------------------------------------

    def _new(self, name: str, shape: Shape, dtype: str = "float") -> Tensor:
        """A tensor to be computed in the sub-graph being written."""
        sizes = [_SIZES[size] if isinstance(size, str) else size for size in shape]
        self._values[name] = self._graph.tensor(name, sizes, _TYPES.get(dtype, dtype))
        return Tensor(name, shape, dtype)

    def _op(
        self, kind: str, name: str, inputs: Sequence[Tensor | int], shape: Shape, dtype: str = "float", **options: Any
    ) -> Tensor:
        """Append an operator with one output, called as the operator. Inputs: values, or numbers of constants."""
        numbers = [self._values[item.name] if isinstance(item, Tensor) else item for item in inputs]
        result = self._new(self._prefix + name, shape, dtype)
        self._graph.operator(kind, numbers, [self._values[result.name]], **options)
        return result

    def _weight(self, name: str, weight: np.ndarray) -> int:
        """A weight as float32: stored so, or stored as fp16 and dequantised once per sub-graph."""
        if self._precision != "fp16":
            return self._graph.constant(name, self._stored.fp32(name, weight))
        wide = f"{name}.float"
        if wide not in self._values:
            stored = self._graph.constant(name, self._stored.fp16(name, weight))
            self._values[wide] = self._graph.tensor(wide, weight.shape, "float32")
            self._graph.operator("DEQUANTIZE", [stored], [self._values[wide]], version=3)
        return self._values[wide]

    def _scalar(self, value: float) -> int:
        return self._graph.constant(f"const.float.{value:g}", np.float32(value))

    def _ints(self, *values: int) -> int:
        return self._graph.constant("const.ints." + "_".join(map(str, values)), np.array(values, np.int32))

    def _int(self, value: int) -> int:
        return self._graph.constant(f"const.int.{value}", np.int32(value))

    def _reshape(self, name: str, x: Tensor, shape: Shape) -> Tensor:
        sizes = [_SIZES[size] if isinstance(size, str) else size for size in shape]
        return self._op("RESHAPE", name, [x, self._ints(*sizes)], shape, x.dtype)

    # -- GraphWriter ---------------------------------------------------------------------------------------------------

    def input(self, name: str) -> Tensor:
        if name not in self._inputs:
            raise ValueError(f"{name} is not an input that a TFLite file of this project has")
        return Tensor(name, (BATCH, LENGTH), "int")

    def embedding(self, name: str, table: np.ndarray, ids: Tensor) -> Tensor:
        shape = (*ids.shape, table.shape[1])
        weight = f"{name}.weight"
        if self._precision == "fp16" and not self._compat:
            stored = self._graph.constant(weight, self._stored.fp16(weight, table))
            rows = self._op("GATHER", f"{name}.rows", [stored, ids], shape, "float16", axis=0)
            return self._op("DEQUANTIZE", name, [rows], shape, version=3)
        if self._precision != "int8":
            return self._op("GATHER", name, [self._weight(weight, table), ids], shape, axis=0)
        quantized = self._stored.int8(weight, table)
        values = self._graph.constant(f"{weight}.int8", quantized.values)
        scales = self._graph.constant(f"{weight}.scale", quantized.scale[:, None])
        rows = self._op("GATHER", f"{name}.rows", [values, ids], shape, "int8", version=2, axis=0)
        scale = self._op("GATHER", f"{name}.scale", [scales, ids], (*ids.shape, 1), axis=0)
        floats = self._op("CAST", f"{name}.float", [rows], shape, version=3, in_data_type=_INT8, out_data_type=_FLOAT)
        return self._op("MUL", name, [floats, scale], shape)

    def positions(self, name: str, table: np.ndarray, like: Tensor) -> Tensor:
        """0, 1, 2, … as the running sum of ones, which has its shape from `like`; then an ordinary look-up."""
        zeros = self._op("MUL", f"{name}.zeros", [like, self._int(0)], like.shape, "int")
        ones = self._op("ADD", f"{name}.ones", [zeros, self._int(1)], like.shape, "int")
        numbers = self._op("CUMSUM", f"{name}.ids", [ones, self._int(1)], like.shape, "int", exclusive=True)
        return self.embedding(name, table, numbers)

    def add(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        return self._op("ADD", name, [a, b], a.shape)

    def layer_norm(self, x: Tensor, norm: Norm) -> Tensor:
        axis = self._ints(len(x.shape) - 1)
        column = (*x.shape[:-1], 1)
        gamma = self._graph.constant(f"{norm.name}.weight", norm.gamma)
        beta = self._graph.constant(f"{norm.name}.bias", norm.beta)
        mean = self._op("MEAN", f"{norm.name}.mean", [x, axis], column, keep_dims=True)
        squares = self._op("SQUARED_DIFFERENCE", f"{norm.name}.squares", [x, mean], x.shape)
        variance = self._op("MEAN", f"{norm.name}.variance", [squares, axis], column, keep_dims=True)
        guarded = self._op("ADD", f"{norm.name}.guarded", [variance, self._scalar(norm.eps)], column)
        factor = self._op("RSQRT", f"{norm.name}.factor", [guarded], column)
        centred = self._op("SUB", f"{norm.name}.centred", [x, mean], x.shape)
        unit = self._op("MUL", f"{norm.name}.unit", [centred, factor], x.shape)
        scaled = self._op("MUL", f"{norm.name}.scaled", [unit, gamma], x.shape)
        return self._op("ADD", norm.name, [scaled, beta], x.shape)

    def linears(self, x: Tensor, layers: Sequence[Linear]) -> list[Tensor]:
        return [self._linear(x, layer) for layer in layers]

    def _linear(self, x: Tensor, layer: Linear) -> Tensor:
        name = f"{layer.name}.weight"
        if self._precision != "int8":
            return self._fully_connected(layer.name, x, self._weight(name, layer.weight), layer.bias)
        quantized = self._stored.int8(name, layer.weight)
        if not self._compat:
            weight = self._graph.constant(f"{name}.int8", quantized.values, quantized.scale, bias=layer.bias)
            return self._fully_connected(layer.name, x, weight, layer.bias, version=12)
        weight = self._graph.constant(f"{name}.int8", quantized.values, np.ones(1, np.float32))
        product = self._fully_connected(f"{layer.name}.product", x, weight, np.zeros_like(layer.bias))
        scale = self._graph.constant(f"{name}.scale", quantized.scale)
        scaled = self._op("MUL", f"{layer.name}.scaled", [product, scale], product.shape)
        bias = self._graph.constant(f"{layer.name}.bias", layer.bias)
        return self._op("ADD", layer.name, [scaled, bias], scaled.shape)

    def small_linear(self, x: Tensor, layer: Linear) -> Tensor:
        name = f"{layer.name}.weight"
        weight = self._graph.constant(name, self._stored.fp32(name, layer.weight))
        return self._fully_connected(layer.name, x, weight, layer.bias)

    def _fully_connected(self, name: str, x: Tensor, weight: int, bias: np.ndarray, version: int = 5) -> Tensor:
        constant = self._graph.constant(f"{name}.bias", bias)
        shape = (*x.shape[:-1], len(bias))
        return self._op("FULLY_CONNECTED", name, [x, weight, constant], shape, version=version, keep_num_dims=True)

    def activation(self, name: str, kind: str, x: Tensor) -> Tensor:
        if kind in ("relu", "tanh"):
            return self._op(kind.upper(), name, [x], x.shape)
        return self._op("GELU", name, [x], x.shape, approximate={"gelu": False, "gelu_new": True}[kind])

    def attention_mask(self, mask: Tensor) -> Tensor:
        """mask (B, S) ► what is added to the scores, (B, 1, 1, S): 0 for tokens, -10000 for padding."""
        flags = self._float("attention_mask.float", mask)
        scaled = self._op("MUL", "attention_mask.scaled", [flags, self._scalar(_MASKED)], mask.shape)
        bias = self._op("SUB", "attention_mask.bias", [scaled, self._scalar(_MASKED)], mask.shape)
        return self._reshape("attention_mask.additive", bias, (mask.shape[0], 1, 1, mask.shape[1]))

    def _float(self, name: str, x: Tensor) -> Tensor:
        return self._op("CAST", name, [x], x.shape, in_data_type=_INT, out_data_type=_FLOAT)

    def attention(self, name: str, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, heads: int) -> Tensor:
        batch, length, width = q.shape
        assert isinstance(width, int)
        size = width // heads
        scaled = self._op("MUL", f"{name}.scaled_query", [q, self._scalar(size**-0.5)], q.shape)
        query, key, value = (
            self._heads(f"{name}.{part}", x, heads) for part, x in (("query", scaled), ("key", k), ("value", v))
        )
        scores = (batch, heads, length, length)
        products = self._op("BATCH_MATMUL", f"{name}.scores", [query, key], scores, adj_y=True)
        masked = self._op("ADD", f"{name}.masked_scores", [products, mask], scores)
        probabilities = self._op("SOFTMAX", f"{name}.probabilities", [masked], scores, beta=1.0)
        context = self._op("BATCH_MATMUL", f"{name}.context", [probabilities, value], (batch, heads, length, size))
        rows = self._transpose(f"{name}.context_rows", context, (batch, length, heads, size))
        return self._reshape(name, rows, q.shape)

    def _heads(self, name: str, x: Tensor, heads: int) -> Tensor:
        """(B, S, H) ► (B, A, S, H/A)"""
        batch, length, width = x.shape
        assert isinstance(width, int)
        split = self._reshape(f"{name}_split", x, (batch, length, heads, width // heads))
        return self._transpose(f"{name}_heads", split, (batch, heads, length, width // heads))

    def _transpose(self, name: str, x: Tensor, shape: Shape) -> Tensor:
        """The middle two of four axes exchanged."""
        return self._op("TRANSPOSE", name, [x, self._ints(0, 2, 1, 3)], shape)

    def loop(
        self, name: str, times: int, x: Tensor, constant: Tensor, body: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        if times == 1:
            return body(x, constant)
        if self._unroll:
            for iteration in range(times):
                self._prefix = f"iteration_{iteration}."
                x = body(x, constant)
            self._prefix = ""
            return x
        outer, outer_values = self._graph, self._values
        condition = self._condition(name, times, x, constant)
        layer = self._body(name, x, constant, body)
        self._graph, self._values = outer, outer_values
        inputs = [self._int(0), self._values[x.name], self._values[constant.name]]
        results = [
            self._new(f"{name}.iterations", (), "int"),
            self._new(name, x.shape),
            self._new(f"{name}.constant", constant.shape),
        ]
        self._graph.operator(
            "WHILE",
            inputs,
            [self._values[result.name] for result in results],
            cond_subgraph_index=condition.index,
            body_subgraph_index=layer.index,
        )
        return results[1]

    def _enter(self, name: str, x: Tensor, constant: Tensor) -> tuple[GraphBuilder, list[Tensor]]:
        """Begin a sub-graph whose inputs are the loop's state: (iteration, x, constant)."""
        self._graph, self._values = self._model.graph(name), {}
        state = [self._new("iteration", (), "int"), self._new("input", x.shape), self._new("constant", constant.shape)]
        self._graph.inputs = [self._values[value.name] for value in state]
        return self._graph, state

    def _condition(self, name: str, times: int, x: Tensor, constant: Tensor) -> GraphBuilder:
        graph, state = self._enter(f"{name}.condition", x, constant)
        more = self._op("LESS", "more", [state[0], self._int(times)], (), "bool")
        graph.outputs = [self._values[more.name]]
        return graph

    def _body(self, name: str, x: Tensor, constant: Tensor, body: Callable[[Tensor, Tensor], Tensor]) -> GraphBuilder:
        graph, state = self._enter(f"{name}.layer", x, constant)
        result = body(state[1], state[2])
        following = self._op("ADD", "next_iteration", [state[0], self._int(1)], (), "int")
        graph.outputs = [self._values[value.name] for value in (following, result, state[2])]
        return graph

    def first_token(self, name: str, x: Tensor) -> Tensor:
        return self._op("GATHER", name, [x, self._int(0)], (x.shape[0], x.shape[2]), axis=1)

    def masked_sum(self, name: str, x: Tensor, mask: Tensor) -> Tensor:
        flags = self._float(f"{name}.mask", mask)
        column = self._reshape(f"{name}.column", flags, (*mask.shape, 1))
        kept = self._op("MUL", f"{name}.kept", [x, column], x.shape)
        return self._op("SUM", name, [kept, self._ints(1)], (x.shape[0], x.shape[2]), keep_dims=False)

    def l2_normalize(self, name: str, x: Tensor) -> Tensor:
        return self._op("L2_NORMALIZATION", name, [x], x.shape)

    def output(self, name: str, x: Tensor) -> None:
        self._graph.rename(self._values[x.name], name)
        self._outputs[name] = self._values[x.name]

    def finish(self) -> bytes:
        return self._model.finish(self._inputs, self._outputs, description=self._description, metadata=self._metadata)
