"""Where a student begins: a preset, a checkpoint (whole, or with a smaller embedding), or its teacher's own layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from edge_albert.checkpoint import Checkpoint, read_checkpoint
from edge_albert.config import UNTRAINED, AlbertConfig, preset
from edge_albert.errors import CheckpointError, EdgeAlbertError, TokenizerError
from edge_albert.model import AlbertWithHead, build_model
from edge_albert.tokenizer import Tokenizer, load_tokenizer
from edge_albert.training.distillation.shrink import shrink_embedding
from edge_albert.training.distillation.teacher import Teacher
from edge_albert.training.weights import load_arrays

_HEADS = ("classifier.", "exits.")


@dataclass(frozen=True)
class StudentRequest:
    """What to begin with. source: a folder, a hub name or a preset; None: the teacher itself, which is an ALBERT.

    tokenizer: a folder, by default the checkpoint's own. iterations, embedding_size: to change; None leaves them.
    dropout: of hidden states, attention and classifier; None leaves the checkpoint's.
    """

    source: str | None
    tokenizer: Path | None = None
    iterations: int | None = None
    embedding_size: int | None = None
    dropout: float | None = None


@dataclass(frozen=True)
class Beginning:
    """A student before its network is built. tensors: what there is of weights, canonical names; {} for a preset."""

    config: AlbertConfig
    tensors: dict[str, np.ndarray]
    tokenizer: Tokenizer
    tokenizer_folder: Path


def find_student(request: StudentRequest, teacher: Teacher, task: str, labels: Sequence[str]) -> Beginning:
    """Read what the student begins with, and check that its parts belong together.

    labels: of the data; a checkpoint that was trained for the very same keeps its head, and its order of them.
    Raises CheckpointError, ConfigError, TokenizerError.
    """
    if request.source is None and teacher.config is None:
        raise CheckpointError(
            f"{teacher.source}: is no ALBERT, so no student can begin with its layer: name a --student instead"
        )
    source = str(teacher.folder) if request.source is None else request.source
    tensors: dict[str, np.ndarray] = {}
    outputs = list(labels) or ["LABEL_0"]  # a regression has one output; an embedding looks at no label
    if source in UNTRAINED and not Path(source).is_dir():
        if request.tokenizer is None:
            raise TokenizerError(f"the preset {source} has no tokenizer: name its folder with --tokenizer")
        folder, config = request.tokenizer, preset(source).with_labels(outputs)
    else:
        checkpoint = read_checkpoint(source)
        config, tensors = _with_head(checkpoint, task, outputs)
        folder = request.tokenizer or checkpoint.folder
    tokenizer = load_tokenizer(folder)
    if not tensors:
        config = replace(config, vocab_size=tokenizer.vocab_size)
        config = replace(config, embedding_size=request.embedding_size or config.embedding_size)
    tokenizer.check_size(config.vocab_size, "the student's")
    config = replace(config, num_hidden_layers=request.iterations or config.num_hidden_layers)
    return Beginning(config.with_dropout(request.dropout), tensors, tokenizer, folder)


def _with_head(checkpoint: Checkpoint, task: str, labels: list[str]) -> tuple[AlbertConfig, dict[str, np.ndarray]]:
    """Config and tensors without heads of other tasks or labels."""
    config = checkpoint.config
    kept = checkpoint.task == task and (task != "text-classification" or set(config.labels) == set(labels))
    if kept:
        return config, checkpoint.tensors
    bare = {name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith(_HEADS)}
    return config.with_labels(labels), bare


def build_student(
    begun: Beginning, request: StudentRequest, task: str, count_words: Callable[[], np.ndarray]
) -> tuple[AlbertWithHead, list[str]]:
    """The network, and the names of its tensors that begin at random.

    count_words: how often each word occurs in the texts, (V,); asked only when the embedding is shrunk for them.
    """
    config, tensors = begun.config, begun.tensors
    if tensors and request.embedding_size not in (None, config.embedding_size):
        tensors, config = shrink_embedding(tensors, config, request.embedding_size, count_words())
    student = build_model(config, task)
    if not isinstance(student, AlbertWithHead):
        raise EdgeAlbertError(f"{task} cannot be distilled")
    return student, load_arrays(student, tensors)
