"""The parts of a .tflite file while it is being put together: buffers by content, operator codes, sub-graphs.

A TFLite model is a list of sub-graphs whose operators read and write numbered tensors; a constant tensor points to one
of the file's buffers. Here equal bytes become one buffer, whichever tensor of whichever sub-graph asks for them: that
is how a weight stands once in the file in every form.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from converters.flatbuffer import write_flatbuffer
from converters.quantize import BlockQuantized, pack_nibbles
from edge_albert.tflite_format import LARGEST_OLD_OPERATOR, MODEL_SCHEMA, OPERATORS, TENSOR_TYPES, VERSION

SIGNATURE = "serving_default"


class ModelBuilder:
    """One file. Sub-graph 0 is the one that is run; `graph` appends further ones."""

    def __init__(self) -> None:
        self._buffers: list[dict[str, Any]] = [{}]  # the first is the empty one of all tensors that are computed
        self._buffer_of: dict[bytes, int] = {}
        self._codes: list[tuple[int, int]] = []
        self._graphs: list[GraphBuilder] = []

    def graph(self, name: str) -> GraphBuilder:
        self._graphs.append(GraphBuilder(self, name, len(self._graphs)))
        return self._graphs[-1]

    def buffer(self, data: np.ndarray, apart: bytes = b"") -> int:
        """The number of the buffer with the bytes of this array. Equal arrays share one, unless `apart` differs."""
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        key = hashlib.blake2b(raw.data, digest_size=16).digest() + apart
        if key not in self._buffer_of:
            self._buffer_of[key] = len(self._buffers)
            self._buffers.append({"data": raw})
        return self._buffer_of[key]

    def code(self, operator: str, version: int) -> int:
        key = (OPERATORS[operator][0], version)
        if key not in self._codes:
            self._codes.append(key)
        return self._codes.index(key)

    def finish(
        self, inputs: Mapping[str, int], outputs: Mapping[str, int], *, description: str, metadata: Mapping[str, bytes]
    ) -> bytes:
        """The file. inputs, outputs: {name in the signature: tensor of sub-graph 0}; metadata: {name: content}."""
        self._graphs[0].inputs, self._graphs[0].outputs = list(inputs.values()), list(outputs.values())
        entries = [
            {"name": name, "buffer": self.buffer(np.frombuffer(data, np.uint8))} for name, data in metadata.items()
        ]
        model = {
            "version": VERSION,
            "operator_codes": [
                {
                    "deprecated_builtin_code": min(number, LARGEST_OLD_OPERATOR),
                    "builtin_code": number,
                    "version": version,
                }
                for number, version in self._codes
            ],
            "subgraphs": [graph.table() for graph in self._graphs],
            "description": description,
            "buffers": self._buffers,
            "metadata": entries,
            "signature_defs": [
                {
                    "inputs": [{"name": name, "tensor_index": index} for name, index in inputs.items()],
                    "outputs": [{"name": name, "tensor_index": index} for name, index in outputs.items()],
                    "signature_key": SIGNATURE,
                    "subgraph_index": 0,
                }
            ],
        }
        return write_flatbuffer(model, MODEL_SCHEMA)


class GraphBuilder:
    """One sub-graph. Tensors are numbered in the order they are made; `inputs` and `outputs` are set by the caller."""

    def __init__(self, model: ModelBuilder, name: str, index: int) -> None:
        self.name = name
        self.index = index
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        self._model = model
        self._tensors: list[dict[str, Any]] = []
        self._operators: list[dict[str, Any]] = []
        self._constants: dict[tuple[Any, ...], int] = {}

    def tensor(self, name: str, shape: Sequence[int], dtype: str, quantization: tuple[float, int] | None = None) -> int:
        """A computed tensor. -1 in `shape` is a size known only when running; until it is resized it is 1.

        quantization: scale and zero point of an int8 tensor.
        """
        table = {"name": name, "type": TENSOR_TYPES[dtype], "has_rank": True, "shape": [abs(size) for size in shape]}
        if -1 in shape:
            table["shape_signature"] = list(shape)
        if quantization is not None:
            scale, zero = quantization
            table["quantization"] = {"scale": np.array([scale], np.float32), "zero_point": np.array([zero], np.int64)}
        self._tensors.append(table)
        return len(self._tensors) - 1

    def constant(
        self, name: str, array: np.ndarray, scale: np.ndarray | None = None, *, bias: np.ndarray | None = None
    ) -> int:
        """A constant, stored once for the file and listed once in this sub-graph.

        scale: for int8, float32 of size 1, or one per row (axis 0); the zero points are 0. bias: of the product that a
        filter is for. XNNPACK's cache takes two int8 filters in one buffer for the same even where their biases or
        scales differ, and gives wrong answers without a word; so such filters get a buffer each.
        """
        apart = b"" if bias is None or scale is None else bias.tobytes() + scale.tobytes()
        buffer = self._model.buffer(array, apart)
        key = (buffer, str(array.dtype), array.shape, None if scale is None else scale.tobytes())
        if key not in self._constants:
            self._constants[key] = self.tensor(name, array.shape, str(array.dtype))
            table = self._tensors[-1]
            table["buffer"] = buffer
            if scale is not None:
                table["quantization"] = {"scale": scale, "zero_point": np.zeros(len(scale), np.int64)}
        return self._constants[key]

    def int4_constant(self, name: str, weight: BlockQuantized, bias: np.ndarray) -> int:
        """A filter (rows, columns) of two int4 values a byte, with a float16 scale for every block of a row.

        bias: of its product; see `constant`.
        """
        packed = pack_nibbles(weight.values)
        scales = self.constant(f"{name}.scale", weight.scales.astype(np.float16))
        key = (
            self._model.buffer(packed, bias.tobytes() + weight.scales.tobytes()),
            "int4",
            weight.values.shape,
            scales,
        )
        if key not in self._constants:
            self._constants[key] = self.tensor(name, weight.values.shape, "int4")
            blocks = {"scales": scales, "zero_points": -1, "block_size": weight.block_size}
            self._tensors[-1]["buffer"] = key[0]
            self._tensors[-1]["quantization"] = {"details": ("BlockwiseQuantization", blocks)}
        return self._constants[key]

    def operator(
        self, kind: str, inputs: Sequence[int], outputs: Sequence[int], *, version: int = 1, **options: Any
    ) -> None:
        """Append an operator; `options` are the fields of its options table."""
        table = OPERATORS[kind][1]
        self._operators.append(
            {
                "opcode_index": self._model.code(kind, version),
                "inputs": list(inputs),
                "outputs": list(outputs),
                "builtin_options": (table, options) if table else None,
            }
        )

    def rename(self, tensor: int, name: str) -> None:
        self._tensors[tensor]["name"] = name

    def table(self) -> dict[str, Any]:
        return {
            "tensors": self._tensors,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "operators": self._operators,
            "name": self.name,
        }
