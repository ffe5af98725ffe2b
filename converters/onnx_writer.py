"""GraphWriter ► ONNX.

One `Loop` holds the shared layer; its body reads the weights from the outer scope, so that they stand once in the
file and once in memory on every ONNX Runtime from 1.18 on. With `unroll` the body is repeated instead, for
accelerators that take no control flow; the initialisers are the same ones, so the weights still stand once in the
file.

int8: matrix products are com.microsoft `DynamicQuantizeMatMul` (activations quantised on the fly, weights per output
channel); embedding tables are int8 with one scale per row. fp16: weights are stored as fp16 and cast once at load,
which halves the file and not the memory. Biases, norms and the task head stay float32 everywhere.

Opset 17 and IR 8 with operators of both domains that ONNX Runtime 1.18 has. `SkipLayerNormalization` is left out on
purpose: it is many times slower than Add + LayerNormalization on CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from converters.graph import BATCH, LENGTH, PRECISIONS, Linear, Norm, Shape, Tensor
from converters.quantize import WeightRecorder
from edge_albert.errors import EdgeAlbertError

OPSET = 17
IR_VERSION = 8
_CONTRIB = "com.microsoft"
_TYPES = {"float": TensorProto.FLOAT, "int": TensorProto.INT64, "int32": TensorProto.INT32, "bool": TensorProto.BOOL}
_LENGTH_AXES = (1, 2)  # of a (B, S) mask: where the heads and the queries go


class OnnxWriter:
    """Writes one ONNX file. precision: fp32, fp16 or int8; unroll: repeat the loop's body instead of a Loop."""

    def __init__(self, precision: str = "int8", *, unroll: bool = False, producer: str = "edge_albert") -> None:
        if precision not in PRECISIONS:
            raise EdgeAlbertError(f"precision {precision!r} is not one of {', '.join(PRECISIONS)}")
        self._stored = WeightRecorder()
        self.records = self._stored.records
        self._precision = precision
        self._unroll = unroll
        self._producer = producer
        self._nodes: list[onnx.NodeProto] = []  # of the scope being written: the graph, or a loop's body
        self._main = self._nodes
        self._values: list[onnx.ValueInfoProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}
        self._by_content: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._inputs: list[Tensor] = []
        self._outputs: list[Tensor] = []
        self._prefix = ""

    # -- plumbing -----------------------------------------------------------------------------------------------------

    def _constant(self, name: str, array: np.ndarray) -> str:
        """An initialiser. Equal content is stored once, whatever it is called: tied groups keep their one copy."""
        array = np.asarray(array).copy(order="C")  # not ascontiguousarray, which would turn a scalar into a vector
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._by_content:
            if name in self._constants:
                raise ValueError(f"two different constants are called {name}")
            self._by_content[key] = name
            self._constants[name] = numpy_helper.from_array(array, name)
        return self._by_content[key]

    def _weight(self, name: str, weight: np.ndarray) -> str:
        """A float weight (out, in) as (in, out): fp16, cast once at the top of the graph, or float32."""
        if self._precision != "fp16":
            return self._constant(name, self._stored.fp32(name, weight).T)
        stored = self._constant(name, self._stored.fp16(name, weight).T)
        cast = stored + ".float"
        if not any(node.output[0] == cast for node in self._main if node.op_type == "Cast"):
            self._main.append(helper.make_node("Cast", [stored], [cast], name=cast, to=TensorProto.FLOAT))
        return cast

    def _scalar(self, value: float) -> str:
        return self._constant(f"const.{value:g}", np.float32(value))

    def _axes(self, *axes: int) -> str:
        return self._constant("const.axes." + "_".join(map(str, axes)), np.array(axes, np.int64))

    def _op(
        self, op: str, name: str, inputs: Sequence[str], shape: Shape, dtype: str = "float", **attributes
    ) -> Tensor:
        """Append one node with one output, called as the node."""
        name = self._prefix + name
        self._nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return self._declare(Tensor(name, shape, dtype))

    def _declare(self, value: Tensor) -> Tensor:
        self._values.append(_value_info(value))
        return value

    # -- GraphWriter --------------------------------------------------------------------------------------------------

    def input(self, name: str) -> Tensor:
        value = Tensor(name, (BATCH, LENGTH), "int")
        self._inputs.append(value)
        return value

    def embedding(self, name: str, table: np.ndarray, ids: Tensor) -> Tensor:
        shape = (*ids.shape, table.shape[1])
        return self._rows(
            name, table, shape, lambda part, source, wide: self._op("Gather", part, [source, ids.name], wide)
        )

    def positions(self, name: str, table: np.ndarray, like: Tensor) -> Tensor:
        length = self._op("Shape", f"{name}.length", [like.name], (1,), "int", start=1, end=2)
        start = self._axes(0)
        rows = self._rows(
            name,
            table,
            (LENGTH, table.shape[1]),
            lambda part, source, wide: self._op("Slice", part, [source, start, length.name, start], wide),
        )
        return self._op("Unsqueeze", f"{name}.batch", [rows.name, start], (1, LENGTH, table.shape[1]))

    def _rows(self, name: str, table: np.ndarray, shape: Shape, pick: Callable[[str, str, Shape], Tensor]) -> Tensor:
        """Rows of a table in this precision, chosen by `pick(node name, table name, shape)`."""
        weight = f"{name}.weight"
        if self._precision == "fp32":
            return pick(name, self._constant(weight, self._stored.fp32(weight, table)), shape)
        if self._precision == "fp16":
            rows = self._undeclared(
                pick(f"{name}.rows", self._constant(weight, self._stored.fp16(weight, table)), shape)
            )
            return self._op("Cast", name, [rows], shape, to=TensorProto.FLOAT)
        quantized = self._stored.int8(weight, table)
        rows = self._undeclared(pick(f"{name}.rows", self._constant(f"{weight}.int8", quantized.values), shape))
        scale_name = self._constant(f"{weight}.scale", quantized.scale[:, None])
        scale = pick(f"{name}.scale", scale_name, (*shape[:-1], 1))
        floats = self._op("Cast", f"{name}.float", [rows], shape, to=TensorProto.FLOAT)
        return self._op("Mul", name, [floats.name, scale.name], shape)

    def _undeclared(self, value: Tensor) -> str:
        """The name of a value that is not float, taken out of the declared types again."""
        self._values.pop()
        return value.name

    def add(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        return self._op("Add", name, [a.name, b.name], a.shape)

    def layer_norm(self, x: Tensor, norm: Norm) -> Tensor:
        gamma = self._constant(f"{norm.name}.weight", norm.gamma)
        beta = self._constant(f"{norm.name}.bias", norm.beta)
        return self._op("LayerNormalization", norm.name, [x.name, gamma, beta], x.shape, epsilon=norm.eps, axis=-1)

    def linears(self, x: Tensor, layers: Sequence[Linear]) -> list[Tensor]:
        """Projections of one input are one product of the joined weights, so that x is quantised and read once."""
        if len(layers) == 1:
            return [self._linear(x, layers[0])]
        joined = Linear(
            _joined_name([layer.name for layer in layers]),
            np.concatenate([layer.weight for layer in layers]),
            np.concatenate([layer.bias for layer in layers]),
        )
        product = self._linear(x, joined)
        parts = [Tensor(self._prefix + layer.name, (*x.shape[:-1], len(layer.bias))) for layer in layers]
        sizes = self._constant(f"{joined.name}.sizes", np.array([len(layer.bias) for layer in layers], np.int64))
        self._nodes.append(
            helper.make_node(
                "Split", [product.name, sizes], [part.name for part in parts], name=product.name + ".split", axis=-1
            )
        )
        return [self._declare(part) for part in parts]

    def _linear(self, x: Tensor, layer: Linear) -> Tensor:
        shape = (*x.shape[:-1], len(layer.bias))
        bias = self._constant(f"{layer.name}.bias", layer.bias)
        if self._precision == "int8":
            quantized = self._stored.int8(f"{layer.name}.weight", layer.weight)
            values = self._constant(f"{layer.name}.weight.int8", quantized.values.T)  # (in, out)
            scale = self._constant(f"{layer.name}.weight.scale", quantized.scale)
            inputs = [x.name, values, scale, "", bias]  # no zero point: the weights are symmetric
            return self._op("DynamicQuantizeMatMul", layer.name, inputs, shape, domain=_CONTRIB)
        return self._matmul(x, layer.name, self._weight(f"{layer.name}.weight", layer.weight), bias, shape)

    def small_linear(self, x: Tensor, layer: Linear) -> Tensor:
        name = f"{layer.name}.weight"
        weight = self._constant(name, self._stored.fp32(name, layer.weight).T)
        bias = self._constant(f"{layer.name}.bias", layer.bias)
        return self._matmul(x, layer.name, weight, bias, (*x.shape[:-1], len(layer.bias)))

    def _matmul(self, x: Tensor, name: str, weight: str, bias: str, shape: Shape) -> Tensor:
        product = self._op("MatMul", f"{name}.product", [x.name, weight], shape)
        return self._op("Add", name, [product.name, bias], shape)

    def activation(self, name: str, kind: str, x: Tensor) -> Tensor:
        op, domain = {
            "gelu": ("Gelu", _CONTRIB),
            "gelu_new": ("FastGelu", _CONTRIB),
            "relu": ("Relu", ""),
            "tanh": ("Tanh", ""),
        }[kind]
        return self._op(op, name, [x.name], x.shape, domain=domain)

    def attention_mask(self, mask: Tensor) -> Tensor:
        return self._op("Cast", "attention_mask.int32", [mask.name], mask.shape, "int32", to=TensorProto.INT32)

    def attention(self, name: str, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, heads: int) -> Tensor:
        inputs = [q.name, k.name, v.name, "", mask.name]
        return self._op("MultiHeadAttention", name, inputs, q.shape, domain=_CONTRIB, num_heads=heads)

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
        graph = self._body(name, x, constant, body)
        inputs = [
            self._constant(f"{name}.times", np.int64(times)),
            self._constant("const.true", np.array(True)),
            x.name,
        ]
        return self._op("Loop", name, inputs, x.shape, body=graph)

    def _body(
        self, name: str, x: Tensor, constant: Tensor, body: Callable[[Tensor, Tensor], Tensor]
    ) -> onnx.GraphProto:
        """The loop's sub-graph: (iteration, go on?, x) ► (go on, body(x)); weights and `constant` come from outside."""
        outer_nodes, outer_values = self._nodes, self._values
        self._nodes, self._values = [], []
        inputs = [
            Tensor(f"{name}.iteration", (), "int"),
            Tensor(f"{name}.condition", (), "bool"),
            Tensor(f"{name}.input", x.shape),
        ]
        result = body(inputs[2], constant)
        go_on = Tensor(f"{name}.go_on", (), "bool")
        self._nodes.append(helper.make_node("Identity", [inputs[1].name], [go_on.name], name=go_on.name))
        inner_values = [value for value in self._values if value.name != result.name]
        graph = helper.make_graph(
            self._nodes,
            f"{name}.layer",
            [_value_info(value) for value in inputs],
            [_value_info(go_on), _value_info(result)],
            value_info=inner_values,
        )
        self._nodes, self._values = outer_nodes, outer_values
        return graph

    def first_token(self, name: str, x: Tensor) -> Tensor:
        index = self._constant("const.first", np.int64(0))
        return self._op("Gather", name, [x.name, index], (x.shape[0], x.shape[2]), axis=1)

    def masked_sum(self, name: str, x: Tensor, mask: Tensor) -> Tensor:
        flags = self._op("Cast", f"{name}.mask", [mask.name], mask.shape, to=TensorProto.FLOAT)
        column = self._op("Unsqueeze", f"{name}.column", [flags.name, self._axes(-1)], (*mask.shape, 1))
        kept = self._op("Mul", f"{name}.kept", [x.name, column.name], x.shape)
        return self._op("ReduceSum", name, [kept.name, self._axes(1)], (x.shape[0], x.shape[2]), keepdims=0)

    def l2_normalize(self, name: str, x: Tensor) -> Tensor:
        norm = self._op("ReduceL2", f"{name}.norm", [x.name], (x.shape[0], 1), axes=[-1], keepdims=1)
        return self._op("Div", name, [x.name, norm.name], x.shape)

    def output(self, name: str, x: Tensor) -> None:
        value = Tensor(name, x.shape, x.dtype)
        self._nodes.append(helper.make_node("Identity", [x.name], [name], name=f"{name}.output"))
        self._outputs.append(value)

    def finish(self) -> bytes:
        graph = helper.make_graph(
            self._nodes,
            "albert",
            [_value_info(value) for value in self._inputs],
            [_value_info(value) for value in self._outputs],
            initializer=list(self._constants.values()),
            value_info=self._values,
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(_CONTRIB, 1)],
            ir_version=IR_VERSION,
            producer_name=self._producer,
        )
        return model.SerializeToString(deterministic=True)


def _value_info(value: Tensor) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(value.name, _TYPES[value.dtype], list(value.shape))


def _joined_name(names: list[str]) -> str:
    """layer.attention.query, .key, .value ► layer.attention.query_key_value"""
    stem = names[0].rpartition(".")[0]
    return f"{stem}.{'_'.join(name.rpartition('.')[2] for name in names)}"
