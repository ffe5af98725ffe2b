"""A checkpoint ► a model file in memory: picks the writer, describes ALBERT to it, checks what came out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from converters.albert_graph import write_albert
from converters.graph import GraphWriter
from converters.quantize import WeightRecord
from edge_albert.config import AlbertConfig
from edge_albert.errors import EdgeAlbertError
from edge_albert.tasks import Task

FORMATS = ("onnx", "tflite")
BYTES_PER_PARAMETER = {"fp32": 4, "fp16": 2, "int8": 1}


@dataclass(frozen=True)
class Converted:
    """content: the file's bytes; weights: how each matrix was stored; facts: what the manifest says of the file."""

    content: bytes
    weights: Mapping[str, WeightRecord]
    facts: Mapping[str, object]


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
) -> Converted:
    """Write the model in one format; the same input gives the same bytes. EdgeAlbertError for unknown choices.

    compat: a TFLite file for engines up to TensorFlow Lite 2.16. tokenizer_file: what TFLite metadata calls it.
    """
    writer, facts = _writer(format, precision, unroll, compat, task, tokenizer_file)
    write_albert(writer, config, tensors, task)
    content = writer.finish()
    form = _form(config, unroll or (compat and format == "tflite"))
    return Converted(content, dict(writer.records), {"precision": precision, "form": form, **facts})


def _writer(
    format: str, precision: str, unroll: bool, compat: bool, task: Task, tokenizer_file: str
) -> tuple[GraphWriter, dict[str, object]]:
    if format == "onnx":
        from converters import onnx_writer

        facts: dict[str, object] = {"opset": onnx_writer.OPSET, "ir_version": onnx_writer.IR_VERSION}
        return onnx_writer.OnnxWriter(precision, unroll=unroll), facts
    if format == "tflite":
        from converters.tflite_writer import TfliteWriter

        writer = TfliteWriter(precision, unroll=unroll, compat=compat, task=task, tokenizer_file=tokenizer_file)
        return writer, {"compat": compat}
    raise EdgeAlbertError(f"format {format!r} is not one of {', '.join(FORMATS)}")


def _form(config: AlbertConfig, unroll: bool) -> str:
    return "unrolled" if unroll or max(config.group_runs()) == 1 else "loop"
