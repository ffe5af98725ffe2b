"""A finished model file, read back as plain facts: what tensors it stores and which matrix products it has.

ONNX is read here; TFLite by converters/tflite_reader.py. Used by the audit, which must not trust the writers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from converters.stored_file import StoredFile, StoredTensor
from edge_albert.errors import EngineError

# constant operand of a product ► through these, a float weight is still the same weight
_TRANSPARENT = {"Identity", "Transpose", "Cast", "Reshape", "Squeeze", "Unsqueeze"}
_FLOAT_PRODUCTS = {"MatMul", "Gemm", "FusedMatMul"}
_QUANTIZED_PRODUCTS = {
    "DynamicQuantizeMatMul",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "QLinearMatMul",
    "MatMulNBits",
    "QGemm",
}


def read_model_file(path: str | Path) -> StoredFile:
    """Read a .onnx or .tflite file. Raises EngineError when it cannot be parsed."""
    path = Path(path)
    if path.suffix == ".tflite":
        from converters.tflite_reader import read_stored_tflite

        return read_stored_tflite(path)
    return _read_onnx(path)


def _read_onnx(path: Path) -> StoredFile:
    import onnx
    from google.protobuf.message import DecodeError
    from onnx import numpy_helper

    try:
        model = onnx.load(str(path))
    except (DecodeError, OSError, ValueError) as error:
        raise EngineError(f"{path}: not a readable ONNX file ({error})") from None
    graphs = list(_graphs(model.graph))
    tensors = []
    for graph in graphs:
        for tensor in graph.initializer:
            values = numpy_helper.to_array(tensor)
            tensors.append(
                StoredTensor(tensor.name, onnx.TensorProto.DataType.Name(tensor.data_type), values, values.nbytes)
            )
    loops = sum(node.op_type == "Loop" for graph in graphs for node in graph.node)
    return StoredFile(tuple(tensors), tuple(_products(graphs)), loops)


def _graphs(graph) -> Iterator:
    """A graph and every sub-graph in its nodes' attributes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _products(graphs: list) -> Iterator[tuple[str, bool]]:
    constants = {tensor.name for graph in graphs for tensor in graph.initializer}
    dequantized: set[str] = set()
    for graph in graphs:
        for node in graph.node:
            if node.op_type in _TRANSPARENT and node.input[0] in constants:
                constants.update(node.output)
            elif node.op_type == "DequantizeLinear" and node.input[0] in constants:
                dequantized.update(node.output)
    for graph in graphs:
        for node in graph.node:
            name = node.name or node.output[0]
            if node.op_type in _QUANTIZED_PRODUCTS or (
                node.op_type in _FLOAT_PRODUCTS and dequantized & set(node.input)
            ):
                yield name, True
            elif node.op_type in _FLOAT_PRODUCTS and constants & set(node.input):
                yield name, False
