"""Checkpoints: read one from a folder or the Hugging Face hub, check it whole, write it as a Hugging Face folder.

Whatever the source calls its tensors, a `Checkpoint` holds them under the names of Hugging Face's head classes, exactly
those that its task needs, checked against its config. NumPy and safetensors do it all; PyTorch only opens `.bin` files.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import safetensors.numpy

from edge_albert.atomic import atomic_folder
from edge_albert.checkpoint_formats import hf_weights, hub
from edge_albert.checkpoint_formats.tensors import (
    canonical_names,
    check_tensors,
    expected_shapes,
    head_outputs,
    needed_tensors,
)
from edge_albert.checkpoint_formats.tf_folder import find_tf_checkpoint, read_tf_checkpoint
from edge_albert.config import AlbertConfig
from edge_albert.errors import CheckpointError
from edge_albert.tasks import TASKS, get_task

__all__ = ["Checkpoint", "check_tensors", "expected_shapes", "read_checkpoint", "write_checkpoint"]


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """An ALBERT's weights and what they are.

    tensors: name ► array in the stored dtype (bfloat16 as float32, which holds it exactly), names as in Hugging Face's
        head classes: "albert.embeddings…", "albert.encoder…", "albert.pooler…", "classifier…", "qa_outputs…", and
        without a task "predictions…" and "sop_classifier…". Tied copies stand once.
    source: what was read, for messages and reports. folder: where config and tokenizer files lie.
    task: a key of edge_albert.tasks.TASKS; None for a pre-training checkpoint or a bare encoder.
    """

    config: AlbertConfig
    tensors: dict[str, np.ndarray]
    source: str
    folder: Path
    task: str | None

    def float32(self, name: str) -> np.ndarray:
        """The tensor of that name as contiguous float32. Raises CheckpointError when there is none."""
        try:
            return np.ascontiguousarray(self.tensors[name], dtype=np.float32)
        except KeyError:
            raise CheckpointError(f"{self.source}: holds no {name} for the task {self.task}") from None


# -- reading --------------------------------------------------------------------------------------------------------


def read_checkpoint(source: str | Path, *, task: str | None = None) -> Checkpoint:
    """Read a checkpoint and check every tensor against its config.

    source: a folder of Hugging Face's, of a TensorFlow 1 ALBERT (Google's, albert_zh's) or a TF-Hub v1 module; or a
        model's name on the Hugging Face hub.
    task: what it is read for, a key of edge_albert.tasks.TASKS; by default what its config and its tensors say.

    Raises CheckpointError (ConfigError for the config) in one line that names the file and what is wrong with it.
    """
    if task is not None:
        get_task(task)
    folder, said = _folder_of(source), str(source)
    try:
        found = None if hf_weights.has_weights(folder) else find_tf_checkpoint(folder)
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be read ({error.strerror}): name a folder that you may read") from None
    if found is None:
        config = AlbertConfig.from_json(folder / "config.json")
        tensors = hf_weights.read_weights(folder)
    else:
        said = f"{source} ({found.note})"
        config, tensors = read_tf_checkpoint(found, said)
        folder = found.config.parent
    tensors = canonical_names(tensors, said)
    task = _settle_task(config, tensors, task, said)
    check_tensors(config, tensors, task, said)
    return Checkpoint(config, needed_tensors(tensors, task), said, folder, task)


def _folder_of(source: str | Path) -> Path:
    folder = Path(source)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise CheckpointError(f"{source}: is a file, and a checkpoint is a folder: name the folder that holds it")
    if not hub.is_hub_name(str(source)):
        raise CheckpointError(f"{source}: no such folder")
    return hub.fetch(str(source))


def _settle_task(
    config: AlbertConfig, tensors: Mapping[str, np.ndarray], wanted: str | None, source: str
) -> str | None:
    """The task to read for: the wanted one, unless the config says the head was trained for another."""
    trained = _trained_task(config, tensors)
    if wanted is None or trained is None or TASKS[wanted].head is None:
        return wanted or trained
    architecture = TASKS[trained].architecture
    if architecture in config.architectures and architecture != TASKS[wanted].architecture:
        raise CheckpointError(
            f"{source}: architectures in its config says {architecture}, a head for {trained}, not {wanted}: "
            "leave the task out, or fine-tune the model for it"
        )
    return wanted


def _trained_task(config: AlbertConfig, tensors: Mapping[str, np.ndarray]) -> str | None:
    """The task of the checkpoint's head, from its config's architectures, else from its tensors; None without a head.

    One output, or problem_type "regression", makes a sequence classification a regression. A head called `classifier`
    that no architecture explains belongs to a token classification when there is no pooler.
    """
    rows = [row for row in TASKS.values() if row.architecture in config.architectures]
    if not rows:
        heads = {name.partition(".")[0] for name in tensors}
        if "qa_outputs" in heads:
            return "question-answering"
        if "classifier" not in heads:
            return None
        rows = [TASKS["text-classification" if "albert.pooler.weight" in tensors else "token-classification"]]
    task = rows[0]
    if task.head is None:
        return None
    if task.name == "text-classification" and (config.problem_type == "regression" or config.num_labels == 1):
        return "text-regression"
    return task.name


# -- writing --------------------------------------------------------------------------------------------------------


def write_checkpoint(
    folder: str | Path,
    config: AlbertConfig,
    tensors: Mapping[str, np.ndarray],
    *,
    task: str | None = None,
    tokenizer_folder: str | Path | None = None,
    force: bool = False,
    dtype: str | None = None,
) -> None:
    """Write a Hugging Face folder that transformers loads: config.json, model.safetensors, the tokenizer's files.

    folder: must not exist, or be empty; with `force` an existing one is replaced. It appears whole or not at all.
    tensors: canonical names, as in Checkpoint; what `task` does not need is left out. Groups that are tied
        (`config.tied_across_groups`) are written out in full, since transformers knows no such tie.
    tokenizer_folder: where to copy tokenizer files from; None copies none.
    dtype: "float32" or "float16" to convert all tensors; None keeps what each has.

    Raises CheckpointError when the tensors do not fit the config (or float16), EdgeAlbertError when the system or a
    folder already there stands in the way.
    """
    with np.errstate(over="ignore"):  # what float16 cannot hold becomes infinite, and check_tensors names it
        converted = {name: np.asarray(tensor, dtype or tensor.dtype, order="C") for name, tensor in tensors.items()}
    check_tensors(config, converted, task, f"{folder} (not written)")
    kept = needed_tensors(converted, task)
    written = _config_to_write(config, kept, task)
    if written.architectures == ("AlbertModel",):
        kept = {name.removeprefix("albert."): tensor for name, tensor in kept.items()}
    with atomic_folder(Path(folder), force=force) as new:
        (new / "config.json").write_bytes(written.to_json().encode())
        (new / "model.safetensors").write_bytes(safetensors.numpy.save(kept, {"format": "pt"}))
        if tokenizer_folder is not None:
            _copy_tokenizer(Path(tokenizer_folder), new)


def _config_to_write(config: AlbertConfig, tensors: Mapping[str, np.ndarray], task: str | None) -> AlbertConfig:
    """The config with the fields by which transformers picks the class, the size of its head, and the dtype."""
    heads = {name.partition(".")[0] for name in tensors}
    if task is not None:
        architecture = TASKS[task].architecture
        if task in ("text-regression", "question-answering") and config.num_labels != head_outputs(config, task):
            config = config.with_labels([f"LABEL_{i}" for i in range(head_outputs(config, task))])
    elif "sop_classifier" in heads:
        architecture = "AlbertForPreTraining"
    else:
        architecture = "AlbertForMaskedLM" if "predictions" in heads else "AlbertModel"
    problem = "regression" if task == "text-regression" else config.problem_type
    if task == "text-classification" and problem == "regression":
        problem = None
    extra = {key: value for key, value in config.extra.items() if key not in ("dtype", "torch_dtype")}
    extra["dtype"] = np.result_type(*(tensor.dtype for tensor in tensors.values())).name
    return replace(config, architectures=(architecture,), problem_type=problem, extra=extra)


def _copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the tokenizer's files; Google's names for the vocabulary become those that transformers looks for."""
    found = [name for name in hub.TOKENIZER_FILES if (source / name).is_file()]
    if not found:
        raise CheckpointError(f"{source}: holds no tokenizer: spiece.model or vocab.txt is needed")
    for name in found:
        usual = {"30k-clean.model": "spiece.model", "vocab_chinese.txt": "vocab.txt"}.get(name, name)
        shutil.copyfile(source / name, target / (name if usual in found else usual))
