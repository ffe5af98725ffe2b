"""What a .tflite file is, as far as this project writes one: its tables as data, its numbers by name, and its check.

`check_model` is what the runtime asks before an engine maps the file: the flatbuffer is whole, and everything that the
engine would follow without asking (tensor, buffer, operator and sub-graph numbers, sizes of constants) points at
something.
Source: the TensorFlow Lite schema, version 3a (schema.fbs in the LiteRT and TensorFlow repositories).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np

from edge_albert.flatbuffer import FlatbufferError, Schema, read_flatbuffer

VERSION = 3
INPUT_DEFAULTS = "edge_albert.input_defaults"  # metadata: JSON, {input of one number: its value when none is given}
MAX_ITERATIONS = 1000  # of one loop: no ALBERT has more layers, and a damaged number shall not keep a device busy

# operator ► (its number, the table with its options)
OPERATORS: dict[str, tuple[int, str | None]] = {
    "ADD": (0, "AddOptions"),
    "CONCATENATION": (2, "ConcatenationOptions"),
    "DEQUANTIZE": (6, "DequantizeOptions"),
    "FLOOR": (8, None),
    "FULLY_CONNECTED": (9, "FullyConnectedOptions"),
    "L2_NORMALIZATION": (11, "L2NormOptions"),
    "MUL": (18, "MulOptions"),
    "RELU": (19, None),
    "RESHAPE": (22, "ReshapeOptions"),
    "SOFTMAX": (25, "SoftmaxOptions"),
    "TANH": (28, None),
    "GATHER": (36, "GatherOptions"),
    "TRANSPOSE": (39, "TransposeOptions"),
    "MEAN": (40, "ReducerOptions"),
    "SUB": (41, "SubOptions"),
    "CAST": (53, "CastOptions"),
    "MAXIMUM": (55, "MaximumMinimumOptions"),
    "ARG_MAX": (56, "ArgMaxOptions"),
    "MINIMUM": (57, "MaximumMinimumOptions"),
    "LESS": (58, "LessOptions"),
    "LOG": (73, None),
    "SUM": (74, "ReducerOptions"),
    "RSQRT": (76, None),
    "REDUCE_MAX": (82, "ReducerOptions"),
    "LOGICAL_AND": (86, "LogicalAndOptions"),
    "SQUARED_DIFFERENCE": (99, "SquaredDifferenceOptions"),
    "ABS": (101, "AbsOptions"),
    "QUANTIZE": (114, "QuantizeOptions"),
    "WHILE": (119, "WhileOptions"),
    "BATCH_MATMUL": (126, "BatchMatMulOptions"),
    "CUMSUM": (128, "CumsumOptions"),
    "GELU": (150, "GeluOptions"),
}
OPERATOR_NAMES = {number: name for name, (number, _) in OPERATORS.items()}
LARGEST_OLD_OPERATOR = 127  # numbers above stand in `builtin_code` only; `deprecated_builtin_code` then says 127

TENSOR_TYPES = {
    "float32": 0, "float16": 1, "int32": 2, "uint8": 3, "int64": 4, "bool": 6, "int16": 7, "int8": 9,
    "int4": 17,
}  # fmt: skip
TYPE_NAMES = {number: name for name, number in TENSOR_TYPES.items()}

_OPTIONS = {
    "FullyConnectedOptions": 8, "SoftmaxOptions": 9, "ConcatenationOptions": 10, "AddOptions": 11, "L2NormOptions": 12,
    "ReshapeOptions": 17, "MulOptions": 21, "GatherOptions": 23, "TransposeOptions": 26, "ReducerOptions": 27,
    "SubOptions": 28, "CastOptions": 37, "DequantizeOptions": 38, "LessOptions": 41, "SquaredDifferenceOptions": 76,
    "QuantizeOptions": 89, "WhileOptions": 93, "BatchMatMulOptions": 101, "CumsumOptions": 102, "GeluOptions": 116,
    "MaximumMinimumOptions": 39, "ArgMaxOptions": 40, "LogicalAndOptions": 65, "AbsOptions": 78,
}  # fmt: skip

MODEL_SCHEMA = Schema(
    """
    Model { version:uint32 operator_codes:[OperatorCode] subgraphs:[SubGraph] description:string buffers:[Buffer]
            metadata_buffer:- metadata:[Metadata] signature_defs:[SignatureDef] }
    OperatorCode { deprecated_builtin_code:int8 custom_code:- version:int32=1 builtin_code:int32 }
    SubGraph { tensors:[Tensor] inputs:[int32] outputs:[int32] operators:[Operator] name:string }
    Tensor { shape:[int32] type:int8 buffer:uint32 name:string quantization:QuantizationParameters is_variable:-
             sparsity:- shape_signature:[int32] has_rank:bool }
    QuantizationParameters { min:- max:- scale:[float32] zero_point:[int64] details:QuantizationDetails
                             quantized_dimension:int32 }
    BlockwiseQuantization { scales:int32 zero_points:int32 block_size:int32 }
    Operator { opcode_index:uint32 inputs:[int32] outputs:[int32] builtin_options:BuiltinOptions }
    Buffer { data:[uint8] }
    Metadata { name:string buffer:uint32 }
    SignatureDef { inputs:[TensorMap] outputs:[TensorMap] signature_key:string reserved:- subgraph_index:uint32 }
    TensorMap { name:string tensor_index:uint32 }

    AddOptions { fused_activation_function:int8 }
    SubOptions { fused_activation_function:int8 }
    MulOptions { fused_activation_function:int8 }
    L2NormOptions { fused_activation_function:int8 }
    FullyConnectedOptions { fused_activation_function:int8 weights_format:int8 keep_num_dims:bool
                            asymmetric_quantize_inputs:bool }
    SoftmaxOptions { beta:float32 }
    ConcatenationOptions { axis:int32 }
    QuantizeOptions { }
    ReshapeOptions { new_shape:[int32] }
    GatherOptions { axis:int32 batch_dims:int32 }
    TransposeOptions { }
    ReducerOptions { keep_dims:bool }
    CastOptions { in_data_type:int8 out_data_type:int8 }
    DequantizeOptions { }
    LessOptions { }
    SquaredDifferenceOptions { }
    WhileOptions { cond_subgraph_index:int32 body_subgraph_index:int32 }
    BatchMatMulOptions { adj_x:bool adj_y:bool asymmetric_quantize_inputs:bool }
    CumsumOptions { exclusive:bool reverse:bool }
    GeluOptions { approximate:bool }
    MaximumMinimumOptions { }
    ArgMaxOptions { output_type:int8 }
    LogicalAndOptions { }
    AbsOptions { }
    """,
    root="Model",
    identifier=b"TFL3",
    unions={"BuiltinOptions": _OPTIONS, "QuantizationDetails": {"BlockwiseQuantization": 2}},
)


def operator_number(code: dict[str, Any]) -> int:
    """The operator that an OperatorCode table means, under the old field or the new one."""
    return max(code["deprecated_builtin_code"], code["builtin_code"])


def read_model(data: bytes | memoryview | np.ndarray, *, strict: bool) -> dict[str, Any]:
    """A .tflite file as nested dicts named as in the schema; see `read_flatbuffer`. Raises FlatbufferError."""
    return read_flatbuffer(data, MODEL_SCHEMA, strict=strict)


def check_model(data: bytes | memoryview | np.ndarray) -> dict[str, Any]:
    """Check a file that this project wrote, and return it as `read_model` does.

    Raises FlatbufferError when it is damaged, or has something in it that this project does not write.
    """
    model = read_model(data, strict=True)
    if model["version"] != VERSION or not model["subgraphs"] or not model["buffers"]:
        raise FlatbufferError("it is not a TFLite model of version 3 with a graph and buffers")
    for code in model["operator_codes"]:
        if operator_number(code) not in OPERATOR_NAMES:
            raise FlatbufferError(f"operator {operator_number(code)} is not one of this project's")
    for entry in model["metadata"]:
        _within([entry["buffer"]], len(model["buffers"]), "metadata")
    for graph in model["subgraphs"]:
        _check_graph(graph, model)
    for index, graph in enumerate(model["subgraphs"]):
        for operator in graph["operators"]:
            if (operator["builtin_options"] or (None,))[0] == "WhileOptions":
                _check_loop(index, operator, model)
    for signature in model["signature_defs"]:
        _within([signature["subgraph_index"]], len(model["subgraphs"]), "a signature")
        count = len(model["subgraphs"][signature["subgraph_index"]]["tensors"])
        _within([entry["tensor_index"] for entry in signature["inputs"] + signature["outputs"]], count, "a signature")
    return model


def _check_graph(graph: dict[str, Any], model: dict[str, Any]) -> None:
    """Tensors and operators are possible, and operators read what is there by then."""
    tensors = graph["tensors"]
    _within(graph["inputs"], len(tensors), "a graph's inputs")
    for tensor in tensors:
        _check_tensor(tensor, tensors, model["buffers"])
    ready = {*graph["inputs"].tolist(), *(index for index, tensor in enumerate(tensors) if tensor["buffer"])}
    for operator in graph["operators"]:
        _within([operator["opcode_index"]], len(model["operator_codes"]), "an operator")
        name = OPERATOR_NAMES[operator_number(model["operator_codes"][operator["opcode_index"]])]
        if (operator["builtin_options"] or (None,))[0] != OPERATORS[name][1]:
            raise FlatbufferError(f"{name} has the options of another operator")
        _within(operator["outputs"], len(tensors), name)
        if not ready.issuperset(operator["inputs"].tolist()):
            raise FlatbufferError(f"{name} reads a tensor that nothing has written")
        if not ready.isdisjoint(operator["outputs"].tolist()):
            raise FlatbufferError(f"{name} writes a tensor that is not its own")
        ready.update(operator["outputs"].tolist())
    if not ready.issuperset(graph["outputs"].tolist()):
        raise FlatbufferError("a graph's output is a tensor that nothing has written")


def _check_loop(own: int, loop: dict[str, Any], model: dict[str, Any]) -> None:
    """A loop of sub-graph `own` counts by one from 0 or more to a limit, so it ends, and does not contain itself."""
    numbers = loop["builtin_options"][1]
    graphs = model["subgraphs"]
    if not all(own < number < len(graphs) for number in numbers.values()):
        raise FlatbufferError("WHILE does not point to two later sub-graphs")
    condition, body = graphs[numbers["cond_subgraph_index"]], graphs[numbers["body_subgraph_index"]]
    state = [len(graph["inputs"]) for graph in (condition, body)] + [len(loop["inputs"]), len(loop["outputs"])]
    if len(set(state)) != 1 or not len(loop["inputs"]) == len(body["outputs"]) > 0 < len(condition["outputs"]):
        raise FlatbufferError("WHILE and its sub-graphs disagree on what goes through the loop")
    start = _constant_int(graphs[own], loop["inputs"][0], model)
    step = _counted(body, "ADD", body["outputs"][0], model)
    limit = _counted(condition, "LESS", _first_of_both(condition, condition["outputs"][0], model), model)
    if start is None or step != 1 or limit is None or not 0 <= start <= limit <= MAX_ITERATIONS:
        raise FlatbufferError(f"WHILE does not count by one to at most {MAX_ITERATIONS}")


def _first_of_both(graph: dict[str, Any], output: int, model: dict[str, Any]) -> int:
    """Of `output` = LOGICAL_AND(a, b), the condition of a loop that may end sooner, a; else `output` itself."""
    for operator in graph["operators"]:
        number = operator_number(model["operator_codes"][operator["opcode_index"]])
        if output in operator["outputs"] and OPERATOR_NAMES[number] == "LOGICAL_AND":
            return int(operator["inputs"][0])
    return output


def _counted(graph: dict[str, Any], kind: str, output: int, model: dict[str, Any]) -> int | None:
    """The constant c where `output` is kind(the graph's first input, c); None where it is something else."""
    for operator in graph["operators"]:
        if output in operator["outputs"]:
            number = operator_number(model["operator_codes"][operator["opcode_index"]])
            inputs = operator["inputs"].tolist()
            if OPERATORS[kind][0] == number and len(inputs) == 2 and inputs[0] == graph["inputs"][0]:
                return _constant_int(graph, inputs[1], model)
    return None


def _constant_int(graph: dict[str, Any], index: int, model: dict[str, Any]) -> int | None:
    """The value of a constant int32 of one element, or None."""
    tensor = graph["tensors"][index]
    data = model["buffers"][tensor["buffer"]]["data"]
    if tensor["type"] != TENSOR_TYPES["int32"] or len(data) != 4:
        return None
    return int(data.view(np.int32)[0])


def tensor_bytes(shape: Iterable[int], dtype: str) -> int:
    """How many bytes a tensor has in the file; int4 stands two to a byte."""
    count = prod(int(size) for size in shape)
    return (count + 1) // 2 if dtype == "int4" else count * np.dtype(dtype).itemsize


def _check_tensor(tensor: dict[str, Any], tensors: list[dict[str, Any]], buffers: list[dict[str, Any]]) -> None:
    """The tensor's numbers are possible, and a constant has as many bytes as its shape says."""
    name = tensor["name"]
    _within([tensor["buffer"]], len(buffers), f"tensor {name}")
    if tensor["type"] not in TYPE_NAMES or (tensor["shape"] < 0).any():
        raise FlatbufferError(f"tensor {name} has an impossible type or shape")
    if len(tensor["shape_signature"]) not in (0, len(tensor["shape"])):
        raise FlatbufferError(f"tensor {name} has a shape signature of another rank")
    data = buffers[tensor["buffer"]]["data"]
    expected = tensor_bytes(tensor["shape"], TYPE_NAMES[tensor["type"]])
    if tensor["buffer"] and len(data) != expected:
        raise FlatbufferError(f"tensor {name} has {len(data)} bytes where its shape needs {expected}")
    quantization = tensor["quantization"]
    if quantization is None:
        return
    count = len(quantization["scale"])
    axis = quantization["quantized_dimension"]
    if count != len(quantization["zero_point"]):
        raise FlatbufferError(f"tensor {name} has {count} scales but {len(quantization['zero_point'])} zero points")
    if count > 1 and (not 0 <= axis < len(tensor["shape"]) or tensor["shape"][axis] != count):
        raise FlatbufferError(f"tensor {name} has {count} scales along an axis of another size")
    if quantization["details"] is not None:
        _check_blocks(tensor, quantization["details"][1], tensors)


def _check_blocks(tensor: dict[str, Any], blocks: dict[str, int], tensors: list[dict[str, Any]]) -> None:
    """The scales of the blocks are a float16 constant, one for each block of each row of a constant."""
    name, shape, size = tensor["name"], tensor["shape"].tolist(), blocks["block_size"]
    _within([blocks["scales"]], len(tensors), f"the scales of {name}")
    scales = tensors[blocks["scales"]]
    if len(shape) != 2 or not tensor["buffer"] or size < 1 or shape[1] % size or blocks["zero_points"] != -1:
        raise FlatbufferError(f"tensor {name} has impossible blocks")
    if (
        scales["shape"].tolist() != [shape[0], shape[1] // size]
        or not scales["buffer"]
        or scales["type"] != TENSOR_TYPES["float16"]
    ):
        raise FlatbufferError(f"tensor {name} has scales that do not fit its blocks")


def _within(numbers: Iterable[int], count: int, what: str) -> None:
    if any(not 0 <= number < count for number in numbers):
        raise FlatbufferError(f"{what} points outside the {count} there are")
