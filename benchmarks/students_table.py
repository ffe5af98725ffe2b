"""The students that a preset names: what each costs a device, as the table of docs/distillation.md.

    python benchmarks/students_table.py

Parameters and multiply-adds are counted by formula, for a classifier of two labels; int8 bytes are those of the files
that `converters` writes from random weights, which have the size of trained ones.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np

from converters.convert import FORMATS, convert
from edge_albert.checkpoint import expected_shapes
from edge_albert.cli import run_command
from edge_albert.config import AlbertConfig, count_macs, count_parameters, preset
from edge_albert.reports.tables import markdown_table, megabytes
from edge_albert.tasks import get_task

LENGTH = 128
TASK = get_task("text-classification")
PRETRAINED = replace(preset("mini"), hidden_size=256, num_attention_heads=4, intermediate_size=1024)
# name, the most parameters its class may have (millions), shape
STUDENTS: tuple[tuple[str, float, AlbertConfig], ...] = (
    ("tiny", 1.5, preset("tiny")),
    ("pre-trained, `--embedding-size 64`", 1.5, replace(PRETRAINED, embedding_size=64)),
    ("pre-trained (pretraining.md)", 5, PRETRAINED),
    ("mini", 5, preset("mini")),
    ("small", 12, preset("small")),
)


def int8_bytes(config: AlbertConfig, format: str) -> int:
    """Size of the exported file; random weights, which quantise to as many bytes as any."""
    random = np.random.default_rng(0)
    tensors = {
        name: random.standard_normal(shape, dtype=np.float32)
        for name, shape in expected_shapes(config, TASK.name).items()
    }
    return len(convert(config, tensors, TASK, format=format, precision="int8").content)


def table() -> str:
    """The table in Markdown."""
    header = ["student", "at most", "V", "E", "H", "iterations", "parameters", f"multiply-adds at {LENGTH}"]
    rows = []
    for name, limit, config in STUDENTS:
        parameters = count_parameters(config, head_outputs=2).total
        macs = count_macs(config, LENGTH, head_outputs=2)
        sizes = [megabytes(int8_bytes(config, format)) for format in FORMATS]
        shape = (config.vocab_size, config.embedding_size, config.hidden_size, config.num_hidden_layers)
        rows.append([name, f"{limit:g} M", *shape, f"{parameters:,}", f"{macs / 1e6:,.0f} M", *sizes])
    return markdown_table([*header, "int8 ONNX", "int8 TFLite"], rows)


def main(argv: list[str] | None = None) -> int:
    """Print the table; returns the exit status."""
    argparse.ArgumentParser(
        prog="python benchmarks/students_table.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args(argv)
    print(table())
    return 0


if __name__ == "__main__":
    run_command(main)
