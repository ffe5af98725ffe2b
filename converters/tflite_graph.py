"""Writing one operator after another into the sub-graph at hand: named values, shapes with symbols, loops' sub-graphs.

Between converters/tflite_model.py, which numbers things, and the writer, which knows what an ALBERT is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from converters.graph import BATCH, LENGTH, Shape, State, Tensor
from converters.tflite_model import GraphBuilder, ModelBuilder
from edge_albert.tflite_format import TENSOR_TYPES

_SIZES = {BATCH: 1, LENGTH: -1}
_TYPES = {"float": "float32", "int": "int32", "bool": "bool"}
_MORE = "more_to_do"  # the entry of a loop's state that ends it


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

    def constant_value(self, name: str, array: np.ndarray) -> Tensor:
        """A constant that stands where a value may."""
        self._values[name] = self.builder.constant(name, array)
        return Tensor(name, array.shape)

    # -- operators -----------------------------------------------------------------------------------------------------

    def input(self, name: str) -> Tensor:
        if name not in self._inputs:
            raise ValueError(f"{name} is not an input that a TFLite file of this project has")
        return Tensor(name, (BATCH, LENGTH), "int")

    def scalar_input(self, name: str, dtype: str) -> Tensor:
        """One more input of the file, a vector of one number. Such inputs stand behind the others."""
        self._inputs[name] = self._values[name] = self.builder.tensor(name, (1,), _TYPES[dtype])
        return Tensor(name, (1,), dtype)

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
        """x ◄ body(x, constant), `times` times."""

        def layer(_: Tensor, state: State) -> State:
            return {"input": body(state["input"], state["constant"]), "constant": state["constant"]}

        return self._while(name, times, {"input": x, "constant": constant}, layer, {"input": name})["input"]

    def exit_loop(
        self,
        name: str,
        times: int,
        state: State,
        constants: Sequence[Tensor],
        body: Callable[[Tensor, State, Sequence[Tensor]], tuple[State, Tensor]],
    ) -> State:
        """As `converters.graph.GraphWriter.exit_loop`: constants and the word to go on are part of the loop's state."""
        fixed = {f"constant_{i}": value for i, value in enumerate(constants)}

        def layer(iteration: Tensor, state: State) -> State:
            held = [state[key] for key in fixed]
            following, more = body(iteration, {key: state[key] for key in names}, held)
            return {**following, **dict(zip(fixed, held, strict=True)), _MORE: more}

        names = list(state)
        return self._while(name, times, {**state, **fixed, _MORE: self.constant_value(_MORE, np.float32(1))}, layer, {})

    def _while(
        self,
        name: str,
        times: int,
        state: State,
        body: Callable[[Tensor, State], State],
        called: Mapping[str, str],
    ) -> State:
        """A WHILE over (iteration, *state), with a sub-graph each for its condition and its body.

        It ends after `times` iterations, or when the state's _MORE, if it has one, is 0. called: names of results.
        """
        outer, outer_values = self.builder, self._values
        condition = self._condition(f"{name}.condition", times, state)
        layer = self._body(f"{name}.layer", state, body)
        self.builder, self._values = outer, outer_values
        inputs = [self.number(0), *(self._values[value.name] for value in state.values())]
        results = {
            key: self.new(called.get(key, f"{name}.{key}"), value.shape, value.dtype) for key, value in state.items()
        }
        counted = self.new(f"{name}.iterations", (), "int")
        self.builder.operator(
            "WHILE",
            inputs,
            [self._values[value.name] for value in (counted, *results.values())],
            cond_subgraph_index=condition.index,
            body_subgraph_index=layer.index,
        )
        return results

    def _enter(self, name: str, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        """Begin a sub-graph whose inputs are the loop's state: the iteration, and a value for each entry."""
        self.builder, self._values = self._model.graph(name), {}
        iteration = self.new("iteration", (), "int")
        entries = {key: self.new(key, value.shape, value.dtype) for key, value in state.items()}
        self.builder.inputs = [self._values[value.name] for value in (iteration, *entries.values())]
        return iteration, entries

    def _condition(self, name: str, times: int, state: State) -> GraphBuilder:
        iteration, entries = self._enter(name, state)
        more = self.op("LESS", "more", [iteration, self.number(times)], (), "bool")
        if _MORE in entries:
            wanted = self.op("LESS", "wanted", [self.scalar(0), entries[_MORE]], (), "bool")
            more = self.op("LOGICAL_AND", "both", [more, wanted], (), "bool")
        self.builder.outputs = [self._values[more.name]]
        return self.builder

    def _body(self, name: str, state: State, body: Callable[[Tensor, State], State]) -> GraphBuilder:
        iteration, entries = self._enter(name, state)
        results = body(iteration, entries)
        following = self.op("ADD", "next_iteration", [iteration, self.number(1)], (), "int")
        outputs = [following, *(results[key] for key in state)]
        self.builder.outputs = [self._values[value.name] for value in outputs]
        return self.builder
