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

from converters.graph import Shape, Tensor

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

    def input(self, value: Tensor) -> Tensor:
        self.inputs.append(value)
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

    def loop_body(self, name: str, x: Tensor, body: Callable[[Tensor], Tensor]) -> onnx.GraphProto:
        """The sub-graph of a Loop: (iteration, go on?, x) ► (go on, body(x)); all else comes from the outer scope."""
        outer_nodes, outer_values = self._nodes, self._values
        self._nodes, self._values = [], []
        inputs = [
            Tensor(f"{name}.iteration", (), "int"),
            Tensor(f"{name}.condition", (), "bool"),
            Tensor(f"{name}.input", x.shape),
        ]
        self.iteration = inputs[0]
        result = body(inputs[2])
        self.iteration = None
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
