"""Tiny ALBERT checkpoints for tests: random weights, a real layout, a real tokenizer; made without PyTorch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from tiny_spiece import TINY_VOCAB_SIZE, train_tiny_spiece

from edge_albert.checkpoint import expected_shapes, write_checkpoint
from edge_albert.config import AlbertConfig
from edge_albert.tasks import TASKS

TINY = AlbertConfig(
    vocab_size=TINY_VOCAB_SIZE,
    embedding_size=16,
    hidden_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=128,
    max_position_embeddings=64,
)


def tiny_tensors(config: AlbertConfig, task: str | None, seed: int = 0) -> dict[str, np.ndarray]:
    """Random float32 weights of every shape the task needs; norms near 1, matrices scaled so that outputs differ."""
    rng = np.random.default_rng(seed)
    out = {}
    for name, shape in expected_shapes(config, task).items():
        if name.endswith("LayerNorm.weight") or name.endswith("layer_norm.weight"):
            values = 1 + 0.1 * rng.standard_normal(shape)
        else:
            values = rng.standard_normal(shape) * (0.1 if len(shape) == 1 else 1 / np.sqrt(shape[-1]))
        out[name] = values.astype(np.float32)
    return _tie(config, out)


def _tie(config: AlbertConfig, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Give every group the first group's half of the layer where the config ties it."""
    if config.tied_across_groups is None:
        return tensors
    out = dict(tensors)
    for name in tensors:
        part = "attention" if ".attention." in name else "ffn"
        if ".albert_layer_groups." in name and part == config.tied_across_groups:
            head, _, rest = name.partition(".albert_layer_groups.")
            out[name] = tensors[f"{head}.albert_layer_groups.0.{rest.partition('.')[2]}"]
    return out


def tiny_config(task: str, **changes) -> AlbertConfig:
    """TINY for a task: three labels where the task has labels, one or two outputs where it has not."""
    outputs = {"text-regression": 1, "multiple-choice": 1, "question-answering": 2}.get(task, 3)
    config = replace(TINY, architectures=(TASKS[task].architecture,), **changes)
    return config.with_labels([f"label {i}" for i in range(outputs)])


def tiny_checkpoint(folder: Path, task: str = "text-classification", seed: int = 0, **changes) -> Path:
    """Write a Hugging Face folder with a tiny model and tokenizer; `changes` go into its config."""
    config = tiny_config(task, **changes)
    spiece = train_tiny_spiece(folder.parent / f"{folder.name}-tokenizer")
    write_checkpoint(folder, config, tiny_tensors(config, task, seed), task=task, tokenizer_folder=spiece.parent)
    return folder


def tiny_bundle(
    folder: Path, task: str = "text-classification", *, seed: int = 0, precision: str = "int8", **changes
) -> Path:
    """Export a tiny checkpoint to `folder`, without measuring."""
    from edge_albert.exporter import Request, export_bundle

    source = tiny_checkpoint(folder.parent / f"{folder.name}-source", task, seed, **changes)
    export_bundle(Request(source=str(source), output=folder, task=task, precision=precision, measure=False))
    return folder
