"""A finished .tflite file, ours or another tool's, read back as plain facts for the audit.

Sub-graphs, operators and fields that the schema of edge_albert/tflite_format.py does not know are skipped, so that
files written by TensorFlow's converter and others can be read too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from converters.stored_file import StoredFile, StoredTensor
from edge_albert.errors import EngineError
from edge_albert.flatbuffer import FlatbufferError
from edge_albert.tflite_format import OPERATOR_NAMES, TYPE_NAMES, operator_number, read_model, tensor_bytes

# products with a constant operand: operator ► which input that is (CONV_2D is how some converters say it)
_PRODUCTS = {"FULLY_CONNECTED": 1, "BATCH_MATMUL": 1, "CONV_2D": 1}
_NAMES = {**OPERATOR_NAMES, 3: "CONV_2D"}
_TRANSPARENT = ("DEQUANTIZE", "RESHAPE", "TRANSPOSE", "CAST")  # through these, a constant is still the same weight


@dataclass(frozen=True)
class TfliteTensor:
    """A constant of one sub-graph. buffer: two tensors with the same number share their bytes in the file.

    values: int4 as int8; nbytes: in the file.
    scale, zero_point: as many as there are channels along `axis`, or one; empty when the tensor is not quantised, or by
    block.
    """

    name: str
    dtype: str
    values: np.ndarray
    nbytes: int
    buffer: int
    subgraph: str
    scale: np.ndarray
    zero_point: np.ndarray
    axis: int


@dataclass(frozen=True)
class TfliteOperator:
    """One operator: its name, the names of its input and output tensors, and the sub-graph it stands in."""

    name: str
    version: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    subgraph: str


@dataclass(frozen=True)
class TfliteFile:
    """Every constant of every sub-graph, and every operator, in the file's order."""

    constants: tuple[TfliteTensor, ...]
    operators: tuple[TfliteOperator, ...]
    description: str


def read_tflite(source: str | Path | bytes) -> TfliteFile:
    """Read a .tflite file, or its bytes. Raises EngineError when it cannot be read or is damaged."""
    name = "the TFLite model" if isinstance(source, bytes) else str(source)
    try:
        data = source if isinstance(source, bytes) else Path(source).read_bytes()
        model = read_model(data, strict=False)
        return _facts(model)
    except OSError as error:
        raise EngineError(f"{name}: cannot be read ({error.strerror})") from None
    except (ValueError, IndexError) as error:  # a FlatbufferError, or numbers that point nowhere
        raise EngineError(f"{name}: not a readable TFLite file ({error}): export or copy it again") from None


def read_stored_tflite(path: Path) -> StoredFile:
    """The same as what the audit compares across formats: every buffer once, under the first name it has."""
    file = read_tflite(path)
    first: dict[int, TfliteTensor] = {}
    for constant in file.constants:
        first.setdefault(constant.buffer, constant)
    tensors = tuple(StoredTensor(c.name, c.dtype, c.values, c.nbytes) for c in first.values())
    loops = sum(operator.name == "WHILE" for operator in file.operators)
    return StoredFile(tensors, tuple(_products(file)), loops)


def _facts(model: dict[str, Any]) -> TfliteFile:
    constants, operators = [], []
    codes = model["operator_codes"]
    for graph in model["subgraphs"]:
        tensors = graph["tensors"]
        for tensor in tensors:
            data = model["buffers"][tensor["buffer"]]["data"]
            if len(data):
                constants.append(_constant(tensor, data, graph["name"]))
        for operator in graph["operators"]:
            code = codes[operator["opcode_index"]]
            operators.append(
                TfliteOperator(
                    name=_NAMES.get(operator_number(code), f"operator {operator_number(code)}"),
                    version=code["version"],
                    inputs=tuple(tensors[i]["name"] for i in operator["inputs"] if i >= 0),
                    outputs=tuple(tensors[i]["name"] for i in operator["outputs"] if i >= 0),
                    subgraph=graph["name"],
                )
            )
    return TfliteFile(tuple(constants), tuple(operators), model["description"])


def _constant(tensor: dict[str, Any], data: np.ndarray, subgraph: str) -> TfliteTensor:
    dtype = TYPE_NAMES.get(tensor["type"], f"type {tensor['type']}")
    quantization = tensor["quantization"] or {}
    values = data
    if tensor["type"] in TYPE_NAMES:
        if len(data) != tensor_bytes(tensor["shape"], dtype):
            raise FlatbufferError(f"tensor {tensor['name']} has another size than its shape says")
        values = _unpacked(data, tensor["shape"]) if dtype == "int4" else data.view(dtype).reshape(tensor["shape"])
    return TfliteTensor(
        name=tensor["name"],
        dtype=dtype,
        values=values,
        nbytes=len(data),
        buffer=tensor["buffer"],
        subgraph=subgraph,
        scale=quantization.get("scale", np.zeros(0, np.float32)),
        zero_point=quantization.get("zero_point", np.zeros(0, np.int64)),
        axis=quantization.get("quantized_dimension", 0),
    )


def _unpacked(data: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """int4, two to a byte with the left one in the low half ► int8 of `shape`."""
    both = np.stack([data << 4, data], axis=1).view(np.int8) >> 4  # a shift to the right keeps the sign
    return both.reshape(-1)[: int(np.prod(shape, dtype=np.int64))].reshape(shape)


def _products(file: TfliteFile) -> list[tuple[str, bool]]:
    """(name of the result, is the weight quantised?) of every product with a constant operand."""
    quantized = {(c.subgraph, c.name): not c.dtype.startswith("float") for c in file.constants}
    found = []
    for operator in file.operators:
        keys = [(operator.subgraph, name) for name in operator.inputs]
        if operator.name in _TRANSPARENT and keys[:1] and keys[0] in quantized:
            quantized[operator.subgraph, operator.outputs[0]] = quantized[keys[0]]
        position = _PRODUCTS.get(operator.name)
        if position is not None and position < len(keys) and keys[position] in quantized:
            found.append((operator.outputs[0], quantized[keys[position]]))
    return found
