"""GraphWriter ► ONNX.

One `Loop` holds the shared layer; its body reads the weights from the outer scope, so that they stand once in the
file and once in memory on every ONNX Runtime from 1.18 on. With `unroll` the body is repeated instead, for
accelerators that take no control flow; the initialisers are the same ones, so the weights still stand once in the
file. How a weight is stored and multiplied in each precision: converters/onnx_weights.py. Biases, norms and the task
head stay float32 everywhere.

Opset 17 and IR 8 with operators of both domains that ONNX Runtime 1.18 has. `SkipLayerNormalization` is left out on
purpose: it is many times slower than Add + LayerNormalization on CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from converters.arithmetic import OnnxArithmetic
from converters.graph import BATCH, LENGTH, Linear, Norm, Shape, State, Tensor
from converters.onnx_graph import CONTRIB, OnnxGraph
from converters.onnx_weights import OnnxWeights
from converters.scheme import Scheme


class OnnxWriter:
    """Writes one ONNX file. unroll: repeat the loop's body instead of a Loop."""

    def __init__(self, scheme: Scheme, *, unroll: bool = False, producer: str = "edge_albert") -> None:
        self._graph = OnnxGraph(producer)
        self._weights = OnnxWeights(self._graph, scheme)
        self.math = OnnxArithmetic(self._graph)
        self.records = self._weights.stored.records
        self._unroll = unroll

    def input(self, name: str) -> Tensor:
        return self._graph.input(Tensor(name, (BATCH, LENGTH), "int"))

    def scalar_input(self, name: str, default: np.generic) -> Tensor:
        value = Tensor(name, (), "float" if default.dtype.kind == "f" else "int")
        return self._graph.input(value, np.asarray(default))

    def embedding(self, name: str, table: np.ndarray, ids: Tensor) -> Tensor:
        def pick(part: str, source: str, shape: Shape, dtype: str) -> Tensor:
            return self._op("Gather", part, [source, ids.name], shape, dtype)

        return self._weights.rows(name, table, (*ids.shape, table.shape[1]), pick)

    def positions(self, name: str, table: np.ndarray, like: Tensor) -> Tensor:
        length = self._op("Shape", f"{name}.length", [like.name], (1,), "int", start=1, end=2)
        start = self._graph.axes(0)

        def pick(part: str, source: str, shape: Shape, dtype: str) -> Tensor:
            return self._op("Slice", part, [source, start, length.name, start], shape, dtype)

        rows = self._weights.rows(name, table, (LENGTH, table.shape[1]), pick)
        return self._op("Unsqueeze", f"{name}.batch", [rows.name, start], (1, LENGTH, table.shape[1]))

    def linears(self, x: Tensor, layers: Sequence[Linear]) -> list[Tensor]:
        return self._weights.linears(x, layers)

    def small_linear(self, x: Tensor, layer: Linear) -> Tensor:
        return self._weights.small_linear(x, layer)

    def add(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        return self._op("Add", name, [a.name, b.name], a.shape)

    def layer_norm(self, x: Tensor, norm: Norm) -> Tensor:
        gamma = self._graph.constant(f"{norm.name}.weight", norm.gamma)
        beta = self._graph.constant(f"{norm.name}.bias", norm.beta)
        return self._op("LayerNormalization", norm.name, [x.name, gamma, beta], x.shape, epsilon=norm.eps, axis=-1)

    def activation(self, name: str, kind: str, x: Tensor) -> Tensor:
        op, domain = {
            "gelu": ("Gelu", CONTRIB),
            "gelu_new": ("FastGelu", CONTRIB),
            "relu": ("Relu", ""),
            "tanh": ("Tanh", ""),
        }[kind]
        return self._op(op, name, [x.name], x.shape, domain=domain)

    def attention_mask(self, mask: Tensor) -> Tensor:
        return self._graph.cast("attention_mask.int32", mask, "int32")

    def attention(self, name: str, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, heads: int) -> Tensor:
        inputs = [q.name, k.name, v.name, "", mask.name]
        return self._op("MultiHeadAttention", name, inputs, q.shape, domain=CONTRIB, num_heads=heads)

    def loop(
        self, name: str, times: int, x: Tensor, constant: Tensor, body: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        if times == 1:
            return body(x, constant)
        if self._unroll:
            for iteration in range(times):
                with self._graph.unrolled(iteration):
                    x = body(x, constant)
            return x
        graph = self._graph.loop_body(
            name, {"input": x}, lambda _, state: ({"input": body(state["input"], constant)}, None)
        )
        return self._op("Loop", name, [*self._loop_start(name, times), x.name], x.shape, body=graph)

    def _loop_start(self, name: str, times: int) -> tuple[str, str]:
        count = self._graph.constant(f"{name}.times", np.int64(times))
        return count, self._graph.constant("const.true", np.array(True))

    def exit_loop(
        self,
        name: str,
        times: int,
        state: State,
        constants: Sequence[Tensor],
        body: Callable[[Tensor, State, Sequence[Tensor]], tuple[State, Tensor]],
    ) -> State:
        def with_condition(iteration: Tensor, state: State) -> tuple[State, Tensor]:
            following, more = body(iteration, state, constants)
            none = self._graph.scalar(0)
            return following, self._op("Greater", f"{name}.go_on", [more.name, none], (), "bool")

        graph = self._graph.loop_body(name, state, with_condition)
        inputs = [*self._loop_start(name, times), *(value.name for value in state.values())]
        outputs = [Tensor(f"{name}.{key}.last", value.shape, value.dtype) for key, value in state.items()]
        results = self._graph.ops("Loop", name, inputs, outputs, body=graph)
        return dict(zip(state, results, strict=True))

    def first_token(self, name: str, x: Tensor) -> Tensor:
        index = self._graph.constant("const.first", np.int64(0))
        return self._op("Gather", name, [x.name, index], (x.shape[0], x.shape[2]), axis=1)

    def masked_sum(self, name: str, x: Tensor, mask: Tensor) -> Tensor:
        flags = self._graph.cast(f"{name}.mask", mask)
        column = self._op("Unsqueeze", f"{name}.column", [flags.name, self._graph.axes(-1)], (*mask.shape, 1))
        kept = self._op("Mul", f"{name}.kept", [x.name, column.name], x.shape)
        return self._op("ReduceSum", name, [kept.name, self._graph.axes(1)], (x.shape[0], x.shape[2]), keepdims=0)

    def l2_normalize(self, name: str, x: Tensor) -> Tensor:
        norm = self._op("ReduceL2", f"{name}.norm", [x.name], (x.shape[0], 1), axes=[-1], keepdims=1)
        return self._op("Div", name, [x.name, norm.name], x.shape)

    def output(self, name: str, x: Tensor) -> None:
        self._graph.output(name, x)

    def finish(self) -> bytes:
        return self._graph.finish()

    def _op(
        self, op: str, name: str, inputs: Sequence[str], shape: Shape, dtype: str = "float", **attributes
    ) -> Tensor:
        return self._graph.op(op, name, inputs, shape, dtype, **attributes)
