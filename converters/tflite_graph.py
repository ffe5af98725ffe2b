"""Writing one operator after another into the sub-graph at hand: named values, shapes with symbols, loops' sub-graphs.

Between converters/tflite_model.py, which numbers things, and the writer, which knows what an ALBERT is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from converters.graph import BATCH, LENGTH, Shape, Tensor
from converters.tflite_model import GraphBuilder, ModelBuilder
from edge_albert.tflite_format import TENSOR_TYPES

_SIZES = {BATCH: 1, LENGTH: -1}
_TYPES = {"float": "float32", "int": "int32", "bool": "bool"}


class TfliteGraph:
    """The file being written. iteration: of an unrolled loop, while it is being written.

    builder: the sub-graph at hand; constants are asked of it, and tensors that are no values of the description.
    """

    def __init__(self, inputs: Sequence[str]) -> None:
        self.iteration: int | None = None
        self._model = ModelBuilder()
        self.builder = self._model.graph("main")
        self._inputs = {name: self.builder.tensor(name, (1, -1), "int32") for name in inputs}
        self._values = dict(self._inputs)  # the computed tensors of the sub-graph at hand, by name
        self._outputs: dict[str, int] = {}

    @property
    def prefix(self) -> str:
        """What an unrolled iteration's values are called by, before their names."""
        return "" if self.iteration is None else f"iteration_{self.iteration}."

    # -- constants -----------------------------------------------------------------------------------------------------

    def scalar(self, value: float) -> int:
        return self.builder.constant(f"const.float.{value:g}", np.float32(value))

    def ints(self, *values: int) -> int:
        return self.builder.constant("const.ints." + "_".join(map(str, values)), np.array(values, np.int32))

    def number(self, value: int) -> int:
        return self.builder.constant(f"const.int.{value}", np.int32(value))

    def half_constant(self, name: str, array: np.ndarray) -> int:
        """A constant stored as fp16 and dequantised once per sub-graph."""
        wide = f"{name}.float"
        if wide not in self._values:
            stored = self.builder.constant(name, array)
            self._values[wide] = self.builder.tensor(wide, array.shape, "float32")
            self.builder.operator("DEQUANTIZE", [stored], [self._values[wide]], version=3)
        return self._values[wide]

    # -- operators -----------------------------------------------------------------------------------------------------

    def input(self, name: str) -> Tensor:
        if name not in self._inputs:
            raise ValueError(f"{name} is not an input that a TFLite file of this project has")
        return Tensor(name, (BATCH, LENGTH), "int")

    def new(
        self, name: str, shape: Shape, dtype: str = "float", quantization: tuple[float, int] | None = None
    ) -> Tensor:
        """A tensor to be computed in the sub-graph at hand. quantization: scale and zero point of an int8 one."""
        sizes = [_SIZES[size] if isinstance(size, str) else size for size in shape]
        self._values[name] = self.builder.tensor(name, sizes, _TYPES.get(dtype, dtype), quantization)
        return Tensor(name, shape, dtype)

    def op(
        self,
        kind: str,
        name: str,
        inputs: Sequence[Tensor | int],
        shape: Shape,
        dtype: str = "float",
        quantization: tuple[float, int] | None = None,
        **options: Any,
    ) -> Tensor:
        """Append an operator with one output, called as the operator. Inputs: values, or numbers of constants."""
        numbers = [self._values[item.name] if isinstance(item, Tensor) else item for item in inputs]
        result = self.new(self.prefix + name, shape, dtype, quantization)
        self.builder.operator(kind, numbers, [self._values[result.name]], **options)
        return result

    def reshape(self, name: str, x: Tensor, shape: Shape) -> Tensor:
        sizes = [_SIZES[size] if isinstance(size, str) else size for size in shape]
        return self.op("RESHAPE", name, [x, self.ints(*sizes)], shape, x.dtype)

    def cast(self, name: str, x: Tensor, **options: Any) -> Tensor:
        """To float32."""
        source = TENSOR_TYPES[_TYPES.get(x.dtype, x.dtype)]
        return self.op(
            "CAST", name, [x], x.shape, in_data_type=source, out_data_type=TENSOR_TYPES["float32"], **options
        )

    def output(self, name: str, x: Tensor) -> None:
        self.builder.rename(self._values[x.name], name)
        self._outputs[name] = self._values[x.name]

    def finish(self, *, description: str, metadata: dict[str, bytes]) -> bytes:
        return self._model.finish(self._inputs, self._outputs, description=description, metadata=metadata)

    # -- loops ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def unrolled(self, iteration: int) -> Iterator[None]:
        """What is written inside belongs to one iteration of an unrolled loop."""
        self.iteration = iteration
        yield
        self.iteration = None

    def loop(
        self, name: str, times: int, x: Tensor, constant: Tensor, body: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """A WHILE over the state (iteration, x, constant), with a sub-graph each for its condition and its body."""
        outer, outer_values = self.builder, self._values
        condition = self._condition(f"{name}.condition", times, x, constant)
        layer = self._body(f"{name}.layer", x, constant, body)
        self.builder, self._values = outer, outer_values
        inputs = [self.number(0), self._values[x.name], self._values[constant.name]]
        results = [
            self.new(f"{name}.iterations", (), "int"),
            self.new(name, x.shape),
            self.new(f"{name}.constant", constant.shape),
        ]
        self.builder.operator(
            "WHILE",
            inputs,
            [self._values[result.name] for result in results],
            cond_subgraph_index=condition.index,
            body_subgraph_index=layer.index,
        )
        return results[1]

    def _enter(self, name: str, x: Tensor, constant: Tensor) -> list[Tensor]:
        """Begin a sub-graph whose inputs are the loop's state: (iteration, x, constant)."""
        self.builder, self._values = self._model.graph(name), {}
        state = [self.new("iteration", (), "int"), self.new("input", x.shape), self.new("constant", constant.shape)]
        self.builder.inputs = [self._values[value.name] for value in state]
        return state

    def _condition(self, name: str, times: int, x: Tensor, constant: Tensor) -> GraphBuilder:
        state = self._enter(name, x, constant)
        more = self.op("LESS", "more", [state[0], self.number(times)], (), "bool")
        self.builder.outputs = [self._values[more.name]]
        return self.builder

    def _body(self, name: str, x: Tensor, constant: Tensor, body: Callable[[Tensor, Tensor], Tensor]) -> GraphBuilder:
        state = self._enter(name, x, constant)
        result = body(state[1], state[2])
        following = self.op("ADD", "next_iteration", [state[0], self.number(1)], (), "int")
        self.builder.outputs = [self._values[value.name] for value in (following, result, state[2])]
        return self.builder
