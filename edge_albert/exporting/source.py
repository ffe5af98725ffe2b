"""What an export starts from: the checkpoint, its task and its tokenizer, read and checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edge_albert.checkpoint import Checkpoint, read_checkpoint
from edge_albert.checkpoint_formats.tensors import EXITS, all_head_outputs
from edge_albert.config import count_macs, count_parameters
from edge_albert.errors import CheckpointError
from edge_albert.tasks import Task, get_task
from edge_albert.tokenization import tokenizer_json
from edge_albert.tokenizer import Tokenizer, load_tokenizer

DEFAULT_MODEL = Path(__file__).parents[1] / "default_model"


@dataclass(frozen=True)
class Source:
    """What was read: the checkpoint, what it is exported for, its tokenizer, and its unique parameters."""

    checkpoint: Checkpoint
    task: Task
    tokenizer: Tokenizer
    parameters: int

    @property
    def name(self) -> str:
        return "the embedded default model" if self.checkpoint.folder == DEFAULT_MODEL else self.checkpoint.source


def read_source(source: str, task: str | None, *, exits: bool = True) -> Source:
    """Read a checkpoint with its tokenizer. Raises CheckpointError or TokenizerError when they cannot be exported.

    exits: False leaves out what answers before the last iteration: the model at its full depth.
    """
    checkpoint = read_checkpoint(source, task=task)
    if not exits:
        tensors = {name: array for name, array in checkpoint.tensors.items() if not name.startswith(EXITS)}
        checkpoint = replace(checkpoint, config=checkpoint.config.with_exits(None), tensors=tensors)
    if checkpoint.task is None:
        raise CheckpointError(
            f"{checkpoint.source}: has no task head: export it with --task sentence-embedding, or fine-tune it first "
            "(python -m edge_albert.finetune)"
        )
    tokenizer = load_tokenizer(checkpoint.folder)
    tokenizer.check_size(checkpoint.config.vocab_size)
    settled = get_task(checkpoint.task)
    return Source(checkpoint, settled, tokenizer, _parameters(checkpoint, settled))


def said(given: Source) -> str:
    """The source in one line."""
    labels = f": {', '.join(given.checkpoint.config.labels[:6])}" if given.task.name.endswith("classification") else ""
    return f"{given.name} ({given.task.name}{labels}), {given.parameters:,} parameters"


def notes(given: Source) -> list[str]:
    """What the user should know of the input before trusting the output."""
    path = given.checkpoint.folder / tokenizer_json.FILE
    cut = tokenizer_json.cuts_at_pieces(path) if path.is_file() else ()
    if not cut:
        return []
    return [
        f"{path}: transformers cuts texts at {' '.join(cut)}, ALBERT's pre-training and this export do not: if the "
        "model was fine-tuned with this file, check its accuracy on your data"
    ]


def model_facts(given: Source) -> dict[str, Any]:
    """What the report says of the model."""
    config = given.checkpoint.config
    return {
        "source": given.name,
        "task": given.task.name,
        "labels": list(config.labels),
        "parameters": given.parameters,
        "iterations": config.num_hidden_layers * config.inner_group_num,
        "shared_layers": config.num_hidden_groups * config.inner_group_num,
        "macs_at_128": count_macs(config, min(128, config.max_position_embeddings), pooler=given.task.pooled),
    }


def _parameters(checkpoint: Checkpoint, task: Task) -> int:
    """Unique parameters: shared and tied ones count once."""
    outputs = all_head_outputs(checkpoint.config, task.name)
    return count_parameters(checkpoint.config, pooler=task.pooled, head_outputs=outputs).total
