"""A checkpoint ► a model file in memory: picks the writer, describes ALBERT to it, checks what came out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

import numpy as np

from converters.albert_graph import write_albert
from converters.audit import unique_matrices
from converters.exit_graph import check_exits
from converters.graph import GraphWriter
from converters.quantize import ActivationRanges, BlockQuantized, WeightRecord
from converters.scheme import Scheme, check_scheme
from edge_albert.checkpoint_formats.tensors import all_head_outputs
from edge_albert.config import AlbertConfig, count_parameters
from edge_albert.early_exit import Exits
from edge_albert.errors import EdgeAlbertError
from edge_albert.sites import quantizable_weights, short_name
from edge_albert.tasks import Task

FORMATS = ("onnx", "tflite")
BYTES_PER_PARAMETER = {"fp32": 4, "fp16": 2, "int8": 1, "int8-static": 1, "int4": 0.5}


@dataclass(frozen=True)
class Converted:
    """content: the file's bytes; weights: how each matrix was stored; facts: what the manifest says of the file.

    floor_bytes: what the unique parameters take in the precision of each, and nothing else: no scales, no graph.
    """

    content: bytes
    weights: Mapping[str, WeightRecord]
    facts: Mapping[str, object]
    floor_bytes: int


def convert(
    config: AlbertConfig,
    tensors: Mapping[str, np.ndarray],
    task: Task,
    *,
    format: str = "onnx",
    precision: str = "int8",
    unroll: bool = False,
    compat: bool = False,
    tokenizer_file: str = "spiece.model",
    overrides: Mapping[str, str] | None = None,
    block_size: int = 64,
    rounded: Mapping[str, BlockQuantized] | None = None,
    ranges: ActivationRanges | None = None,
    exits: Exits | None = None,
) -> Converted:
    """Write the model in one format; the same input gives the same bytes. EdgeAlbertError for unknown choices.

    precision: fp32, fp16, int8 (activations quantised on the fly), int4 (weights by block) or int8-static (activations
    by `ranges`, which it needs). compat: a TFLite file for engines up to TensorFlow Lite 2.16, which know no int4.
    tokenizer_file: what TFLite metadata calls it.
    overrides: {weight name of `edge_albert.sites.quantizable_weights`: its own precision}. block_size: 32, 64 or 128,
    of int4; a matrix whose rows it does not divide takes a smaller block, or int8 where none fits. rounded: {weight
    name: int4 values chosen by error compensation (calibration/gptq.py)}; the others are rounded plainly.
    exits: how inputs leave early, in a model trained for it; None for a graph that always runs every iteration.
    """
    scheme = Scheme(precision, dict(overrides or {}), block_size, dict(rounded or {}), ranges)
    check_scheme(scheme, config, task, compat=compat and format == "tflite")
    if exits is not None:
        check_exits(config, unroll=unroll or (compat and format == "tflite"), precision=precision)
    writer, formatted = _writer(format, scheme, unroll, compat, task, tokenizer_file)
    write_albert(writer, config, tensors, task, exits)
    content = writer.finish()
    form = _form(config, unroll or (compat and format == "tflite"))
    facts = {"precision": precision, "form": form, **formatted, **_needs(format, scheme)}
    return Converted(content, dict(writer.records), facts, _floor_bytes(scheme, config, tensors, task))


def _writer(
    format: str, scheme: Scheme, unroll: bool, compat: bool, task: Task, tokenizer_file: str
) -> tuple[GraphWriter, dict[str, object]]:
    if format == "onnx":
        from converters.onnx_graph import IR_VERSION, OPSET
        from converters.onnx_writer import OnnxWriter

        facts: dict[str, object] = {"opset": OPSET, "ir_version": IR_VERSION}
        return OnnxWriter(scheme, unroll=unroll), facts
    if format == "tflite":
        from converters.tflite_writer import TfliteWriter

        writer = TfliteWriter(scheme, unroll=unroll, compat=compat, task=task, tokenizer_file=tokenizer_file)
        return writer, {"compat": compat}
    raise EdgeAlbertError(f"format {format!r} is not one of {', '.join(FORMATS)}")


def _needs(format: str, scheme: Scheme) -> dict[str, object]:
    """The engine that int4 needs, for the manifest: older ones of TensorFlow Lite's family answer wrongly or crash."""
    if "int4" not in {scheme.precision, *scheme.overrides.values()}:
        return {}
    return {"needs": {"onnx": "onnxruntime>=1.18", "tflite": "ai-edge-litert>=2.1"}[format]}


def _floor_bytes(scheme: Scheme, config: AlbertConfig, tensors: Mapping[str, np.ndarray], task: Task) -> int:
    """Parameters whose precision cannot be chosen (biases, norms, the head) count in that of the file."""
    weights = quantizable_weights(config, pooled=task.pooled)
    left = count_parameters(config, pooler=task.pooled, head_outputs=all_head_outputs(config, task.name)).total
    total = 0.0
    for name, array in unique_matrices(tensors, smallest=1).items():
        short = short_name(name).replace("_embeddings.", ".")
        if short in weights:
            total += array.size * BYTES_PER_PARAMETER[scheme.of(short, array)]
            left -= array.size
    return ceil(total + left * BYTES_PER_PARAMETER[scheme.precision])


def _form(config: AlbertConfig, unroll: bool) -> str:
    return "unrolled" if unroll or max(config.group_runs()) == 1 else "loop"
