"""The parts of an ONNX file while it is being put together: constants by content, nodes of the scope being written.

Equal constants are stored once, whatever they are called and whichever scope asks for them: a loop's body reads them
from the outer scope. That is how a weight stands once in the file in every form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from converters.graph import Shape, State, Tensor

OPSET = 17
IR_VERSION = 8
CONTRIB = "com.microsoft"

_TYPES = {
    "float": TensorProto.FLOAT, "int": TensorProto.INT64, "int32": TensorProto.INT32, "bool": TensorProto.BOOL,
    "int8": TensorProto.INT8, "uint8": TensorProto.UINT8, "float16": TensorProto.FLOAT16,
}  # fmt: skip


class OnnxGraph:
    """One file. iteration: of the loop being written, its number when unrolled, its counter in a Loop, else None."""

    def __init__(self, producer: str) -> None:
        self.iteration: int | Tensor | None = None
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self._producer = producer
        self._nodes: list[onnx.NodeProto] = []  # of the scope being written: the graph, or a loop's body
        self._main = self._nodes
        self._values: list[onnx.ValueInfoProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}
        self._by_content: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._hoisted: dict[str, str] = {}

    @property
    def prefix(self) -> str:
        """What an unrolled iteration's nodes are called by, before their names."""
        return f"iteration_{self.iteration}." if isinstance(self.iteration, int) else ""

    # -- constants -----------------------------------------------------------------------------------------------------

    def constant(self, name: str, array: np.ndarray) -> str:
        """An initialiser. Equal content is stored once, whatever it is called: tied groups keep their one copy."""
        array = np.asarray(array).copy(order="C")  # not ascontiguousarray, which would turn a scalar into a vector
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._by_content:
            if name in self._constants:
                raise ValueError(f"two different constants are called {name}")
            self._by_content[key] = name
            self._constants[name] = numpy_helper.from_array(array, name)
        return self._by_content[key]

    def half_constant(self, name: str, array: np.ndarray) -> str:
        """An initialiser stored as fp16 and cast to float32 once, at the top of the graph: engines do it at load."""
        stored = self.constant(name, array.astype(np.float16))
        if stored not in self._hoisted:
            wide = self._hoisted[stored] = f"{stored}.float"
            self._main.append(helper.make_node("Cast", [stored], [wide], name=wide, to=TensorProto.FLOAT))
        return self._hoisted[stored]

    def scalar(self, value: float) -> str:
        return self.constant(f"const.{value:g}", np.float32(value))

    def axes(self, *axes: int) -> str:
        return self.constant("const.axes." + "_".join(map(str, axes)), np.array(axes, np.int64))

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def op(self, op: str, name: str, inputs: Sequence[str], shape: Shape, dtype: str = "float", **attributes) -> Tensor:
        """Append one node with one output, called as the node."""
        return self.ops(op, name, inputs, [Tensor(name, shape, dtype)], **attributes)[0]

    def ops(self, op: str, name: str, inputs: Sequence[str], outputs: Sequence[Tensor], **attributes) -> list[Tensor]:
        """Append one node with several outputs."""
        results = [Tensor(self.prefix + out.name, out.shape, out.dtype) for out in outputs]
        names = [result.name for result in results]
        self._nodes.append(helper.make_node(op, list(inputs), names, name=self.prefix + name, **attributes))
        self._values += [_value_info(result) for result in results]
        return results

    def cast(self, name: str, x: Tensor, dtype: str = "float") -> Tensor:
        return self.op("Cast", name, [x.name], x.shape, dtype, to=_TYPES[dtype])

    def input(self, value: Tensor, default: np.ndarray | None = None) -> Tensor:
        """A graph input; with a default, an initialiser of its name, which ONNX lets callers override."""
        self.inputs.append(value)
        if default is not None:  # never shared with an equal constant, which must not change
            self._constants[value.name] = numpy_helper.from_array(default, value.name)
        return value

    def output(self, name: str, x: Tensor) -> None:
        self._nodes.append(helper.make_node("Identity", [x.name], [name], name=f"{name}.output"))
        self.outputs.append(Tensor(name, x.shape, x.dtype))

    # -- scopes --------------------------------------------------------------------------------------------------------

    @contextmanager
    def unrolled(self, iteration: int) -> Iterator[None]:
        """What is written inside belongs to one iteration of an unrolled loop."""
        self.iteration = iteration
        yield
        self.iteration = None

    def loop_body(
        self, name: str, state: State, body: Callable[[Tensor, State], tuple[State, Tensor | None]]
    ) -> onnx.GraphProto:
        """The sub-graph of a Loop: (iteration, go on?, *state) ► (go on, *state); all else comes from the outer scope.

        body: iteration, state ► the next state, and whether to go on (bool); None goes on as long as the Loop counts.
        """
        outer_nodes, outer_values = self._nodes, self._values
        self._nodes, self._values = [], []
        iteration, condition = Tensor(f"{name}.iteration", (), "int"), Tensor(f"{name}.condition", (), "bool")
        entries = {key: Tensor(f"{name}.{key}", value.shape, value.dtype) for key, value in state.items()}
        self.iteration = iteration
        results, go_on = body(iteration, entries)
        self.iteration = None
        if go_on is None:
            go_on = Tensor(f"{name}.go_on", (), "bool")
            self._nodes.append(helper.make_node("Identity", [condition.name], [go_on.name], name=go_on.name))
        outputs = [go_on, *(results[key] for key in state)]
        named = {value.name for value in outputs}
        graph = helper.make_graph(
            self._nodes,
            f"{name}.layer",
            [_value_info(value) for value in (iteration, condition, *entries.values())],
            [_value_info(value) for value in outputs],
            value_info=[value for value in self._values if value.name not in named],
        )
        self._nodes, self._values = outer_nodes, outer_values
        return graph

    def finish(self) -> bytes:
        graph = helper.make_graph(
            self._nodes,
            "albert",
            [_value_info(value) for value in self.inputs],
            [_value_info(value) for value in self.outputs],
            initializer=list(self._constants.values()),
            value_info=self._values,
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)],
            ir_version=IR_VERSION,
            producer_name=self._producer,
        )
        return model.SerializeToString(deterministic=True)


def _value_info(value: Tensor) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(value.name, _TYPES[value.dtype], list(value.shape))
