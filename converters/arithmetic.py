"""Small arithmetic for the exit of a loop, in both formats: float32 values, flags of 0 and 1, the last axis reduced.

`Arithmetic` is what converters/exit_graph.py needs beside the operations of converters/graph.py. Names are those of the
operators' results in the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from converters.graph import Shape, Tensor
from edge_albert.tflite_format import TENSOR_TYPES

if TYPE_CHECKING:
    from converters.onnx_graph import OnnxGraph
    from converters.tflite_graph import TfliteGraph

Operand = Tensor | float


class Arithmetic(Protocol):
    """Two operands broadcast as in NumPy."""

    def constant(self, name: str, array: np.ndarray) -> Tensor: ...

    def add(self, name: str, a: Tensor, b: Operand) -> Tensor: ...

    def sub(self, name: str, a: Tensor, b: Operand) -> Tensor: ...

    def mul(self, name: str, a: Tensor, b: Operand) -> Tensor: ...

    def min(self, name: str, a: Tensor, b: Operand) -> Tensor: ...

    def max(self, name: str, a: Tensor, b: Operand) -> Tensor: ...

    def less(self, name: str, a: Tensor, b: Operand) -> Tensor:
        """1 where a < b, else 0."""
        ...

    def abs(self, name: str, x: Tensor) -> Tensor: ...

    def log(self, name: str, x: Tensor) -> Tensor: ...

    def softmax(self, name: str, x: Tensor) -> Tensor: ...

    def reduce_max(self, name: str, x: Tensor) -> Tensor: ...

    def reduce_sum(self, name: str, x: Tensor) -> Tensor: ...

    def argmax(self, name: str, x: Tensor) -> Tensor:
        """The number of the largest along the last axis, as float32."""
        ...

    def running_sum(self, name: str, x: Tensor) -> Tensor:
        """(B, S) ► (B, S): the sum of each element and those before it."""
        ...

    def cast(self, name: str, x: Tensor) -> Tensor:
        """Whole numbers or flags as float32."""
        ...

    def column(self, name: str, x: Tensor, rank: int) -> Tensor:
        """Axes of size 1 appended until there are `rank`."""
        ...

    def pick(self, name: str, x: Tensor, parts: int, index: Tensor) -> Tensor:
        """Of the `parts` equal parts of the last axis the one numbered by the scalar `index`: (…, P·C) ► (…, C)."""
        ...


def broadcast(a: Shape, b: Shape) -> Shape:
    """The shape of an operation on both; a symbol goes with itself and with 1."""
    rank = max(len(a), len(b))
    wide = [(1,) * (rank - len(shape)) + tuple(shape) for shape in (a, b)]
    return tuple(right if left == 1 else left for left, right in zip(*wide, strict=True))


class OnnxArithmetic:
    """`Arithmetic` in ONNX's operators."""

    def __init__(self, graph: OnnxGraph) -> None:
        self._graph = graph

    def constant(self, name: str, array: np.ndarray) -> Tensor:
        return Tensor(self._graph.constant(name, array), array.shape)

    def add(self, name: str, a: Tensor, b: Operand) -> Tensor:
        return self._binary("Add", name, a, b)

    def sub(self, name: str, a: Tensor, b: Operand) -> Tensor:
        return self._binary("Sub", name, a, b)

    def mul(self, name: str, a: Tensor, b: Operand) -> Tensor:
        return self._binary("Mul", name, a, b)

    def min(self, name: str, a: Tensor, b: Operand) -> Tensor:
        return self._binary("Min", name, a, b)

    def max(self, name: str, a: Tensor, b: Operand) -> Tensor:
        return self._binary("Max", name, a, b)

    def less(self, name: str, a: Tensor, b: Operand) -> Tensor:
        return self.cast(name, self._binary("Less", f"{name}.flag", a, b, "bool"))

    def abs(self, name: str, x: Tensor) -> Tensor:
        return self._unary("Abs", name, x, x.shape)

    def log(self, name: str, x: Tensor) -> Tensor:
        return self._unary("Log", name, x, x.shape)

    def softmax(self, name: str, x: Tensor) -> Tensor:
        return self._unary("Softmax", name, x, x.shape, axis=-1)

    def reduce_max(self, name: str, x: Tensor) -> Tensor:
        return self._unary("ReduceMax", name, x, x.shape[:-1], axes=[-1], keepdims=0)

    def reduce_sum(self, name: str, x: Tensor) -> Tensor:
        axes = self._graph.axes(-1)
        return self._graph.op("ReduceSum", name, [x.name, axes], x.shape[:-1], keepdims=0)

    def argmax(self, name: str, x: Tensor) -> Tensor:
        shape = x.shape[:-1]
        return self.cast(name, self._graph.op("ArgMax", f"{name}.number", [x.name], shape, "int", axis=-1, keepdims=0))

    def running_sum(self, name: str, x: Tensor) -> Tensor:
        return self._graph.op("CumSum", name, [x.name, self._graph.axes(1)], x.shape)

    def cast(self, name: str, x: Tensor) -> Tensor:
        return self._graph.cast(name, x)

    def column(self, name: str, x: Tensor, rank: int) -> Tensor:
        axes = self._graph.axes(*range(len(x.shape), rank))
        return self._graph.op("Unsqueeze", name, [x.name, axes], (*x.shape, *[1] * (rank - len(x.shape))))

    def pick(self, name: str, x: Tensor, parts: int, index: Tensor) -> Tensor:
        size = int(x.shape[-1]) // parts
        cut = self._graph.constant(f"{name}.parts", np.array([0] * (len(x.shape) - 1) + [parts, size], np.int64))
        split = self._graph.op("Reshape", f"{name}.split", [x.name, cut], (*x.shape[:-1], parts, size))
        return self._graph.op("Gather", name, [split.name, index.name], (*x.shape[:-1], size), axis=len(x.shape) - 1)

    def _unary(self, op: str, name: str, x: Tensor, shape: Shape, **attributes: Any) -> Tensor:
        return self._graph.op(op, name, [x.name], shape, **attributes)

    def _binary(self, op: str, name: str, a: Tensor, b: Operand, dtype: str = "float") -> Tensor:
        other = b if isinstance(b, Tensor) else Tensor(self._graph.scalar(b), ())
        return self._graph.op(op, name, [a.name, other.name], broadcast(a.shape, other.shape), dtype)


class TfliteArithmetic:
    """`Arithmetic` in TFLite's operators."""

    def __init__(self, graph: TfliteGraph) -> None:
        self._graph = graph

    def constant(self, name: str, array: np.ndarray) -> Tensor:
        return self._graph.constant_value(name, array)

    def add(self, name: str, a: Tensor, b: Operand) -> Tensor:
        return self._binary("ADD", name, a, b)

    def sub(self, name: str, a: Tensor, b: Operand) -> Tensor:
        return self._binary("SUB", name, a, b)

    def mul(self, name: str, a: Tensor, b: Operand) -> Tensor:
        return self._binary("MUL", name, a, b)

    def min(self, name: str, a: Tensor, b: Operand) -> Tensor:
        return self._binary("MINIMUM", name, a, b)

    def max(self, name: str, a: Tensor, b: Operand) -> Tensor:
        return self._binary("MAXIMUM", name, a, b)

    def less(self, name: str, a: Tensor, b: Operand) -> Tensor:
        return self.cast(name, self._binary("LESS", f"{name}.flag", a, b, "bool"))

    def abs(self, name: str, x: Tensor) -> Tensor:
        return self._graph.op("ABS", name, [x], x.shape)

    def log(self, name: str, x: Tensor) -> Tensor:
        return self._graph.op("LOG", name, [x], x.shape)

    def softmax(self, name: str, x: Tensor) -> Tensor:
        return self._graph.op("SOFTMAX", name, [x], x.shape, beta=1.0)

    def reduce_max(self, name: str, x: Tensor) -> Tensor:
        return self._reduce("REDUCE_MAX", name, x)

    def reduce_sum(self, name: str, x: Tensor) -> Tensor:
        return self._reduce("SUM", name, x)

    def _reduce(self, kind: str, name: str, x: Tensor) -> Tensor:
        axis = self._graph.ints(len(x.shape) - 1)
        return self._graph.op(kind, name, [x, axis], x.shape[:-1], keep_dims=False)

    def argmax(self, name: str, x: Tensor) -> Tensor:
        axis = self._graph.number(len(x.shape) - 1)
        number = self._graph.op(
            "ARG_MAX", f"{name}.number", [x, axis], x.shape[:-1], "int", output_type=TENSOR_TYPES["int32"]
        )
        return self.cast(name, number)

    def running_sum(self, name: str, x: Tensor) -> Tensor:
        return self._graph.op("CUMSUM", name, [x, self._graph.number(1)], x.shape)

    def cast(self, name: str, x: Tensor) -> Tensor:
        return self._graph.cast(name, x)

    def column(self, name: str, x: Tensor, rank: int) -> Tensor:
        return self._graph.reshape(name, x, (*x.shape, *[1] * (rank - len(x.shape))))

    def pick(self, name: str, x: Tensor, parts: int, index: Tensor) -> Tensor:
        size = int(x.shape[-1]) // parts
        split = self._graph.reshape(f"{name}.split", x, (*x.shape[:-1], parts, size))
        return self._graph.op("GATHER", name, [split, index], (*x.shape[:-1], size), axis=len(x.shape) - 1)

    def _binary(self, kind: str, name: str, a: Tensor, b: Operand, dtype: str = "float") -> Tensor:
        other = b if isinstance(b, Tensor) else self._graph.scalar(b)
        shape = broadcast(a.shape, b.shape) if isinstance(b, Tensor) else a.shape
        return self._graph.op(kind, name, [a, other], shape, dtype)
