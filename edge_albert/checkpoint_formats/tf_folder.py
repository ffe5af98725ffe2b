"""Where a TensorFlow ALBERT lies in a folder, and its config.

Three layouts are known: Google's archives (albert_config.json, model.ckpt-best.*, 30k-clean.model, often one folder
down), output folders of a training (model.ckpt-STEP.*, the config beside them), and TF-Hub v1 modules (saved_model.pb,
variables/variables.*, the config under assets/).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from edge_albert.checkpoint_formats.albert_zh import SECOND_TABLE, fold_word_table
from edge_albert.checkpoint_formats.tf_checkpoint import read_index, read_variable
from edge_albert.checkpoint_formats.tf_names import hugging_face_names, is_optimizer_state, refuse_other_models
from edge_albert.config import AlbertConfig
from edge_albert.errors import CheckpointError

_STEP = re.compile(r"-(\d+)\.index$")


@dataclass(frozen=True)
class TfFolder:
    """prefix: of the checkpoint files. config: the JSON file. note: which of several was chosen, for `source`."""

    prefix: Path
    config: Path
    note: str


def find_tf_checkpoint(folder: Path) -> TfFolder | None:
    """The TensorFlow checkpoint in `folder` or in its only subfolder that has one; None when there is none.

    Of several in one folder, model.ckpt-best is taken, else the one of the highest step. Raises CheckpointError when
    several subfolders have one, or no config lies beside it.
    """
    indexes = _indexes(folder)
    if not indexes:
        subfolders = [path for path in sorted(folder.iterdir()) if path.is_dir() and _indexes(path)]
        if not subfolders:
            return None
        if len(subfolders) > 1:
            names = ", ".join(path.name for path in subfolders)
            raise CheckpointError(f"{folder}: several folders in it hold a checkpoint ({names}): name one of them")
        indexes = _indexes(subfolders[0])
    best = max(indexes, key=lambda path: (path.name == "model.ckpt-best.index", _step(path), path.name))
    prefix = best.with_suffix("")
    others = f", chosen of {len(indexes)} there" if len(indexes) > 1 else ""
    return TfFolder(prefix, _config_file(best.parent, folder), f"{prefix.name}{others}")


def _indexes(folder: Path) -> list[Path]:
    """Indexes of checkpoints in `folder`, or of the TF-Hub module that it is."""
    module = folder / "variables" / "variables.index"
    return [module] if module.is_file() else sorted(folder.glob("*.ckpt*.index"))


def _step(index: Path) -> int:
    match = _STEP.search(index.name)
    return int(match[1]) if match else -1


def _config_file(beside: Path, folder: Path) -> Path:
    """The one config in the checkpoint's folder, a TF-Hub module's assets, or the folder that was named."""
    places = [beside, beside.parent / "assets"] if beside.name == "variables" else [beside]
    for place in [*places, folder]:
        found = sorted(place.glob("*bert_config*.json")) or sorted(place.glob("config.json"))
        if (place / "albert_config.json") in found:
            return place / "albert_config.json"
        if len(found) > 1:
            raise CheckpointError(
                f"{place}: holds several configs ({', '.join(path.name for path in found)}): keep the one that belongs "
                "to the checkpoint"
            )
        if found:
            return found[0]
    raise CheckpointError(f"{beside}: no albert_config.json beside the checkpoint: copy it from the model's archive")


def read_tf_checkpoint(found: TfFolder, source: str) -> tuple[AlbertConfig, dict[str, np.ndarray]]:
    """The config and every tensor of a TensorFlow ALBERT, under Hugging Face's names.

    TensorFlow's `gelu` is the tanh approximation, Hugging Face's `gelu_new`. The labels, of which TensorFlow's configs
    say nothing, are counted by the classifier's rows. Raises CheckpointError and ConfigError.
    """
    config = AlbertConfig.from_json(found.config)
    if config.hidden_act == "gelu":
        config = replace(config, hidden_act="gelu_new")
    variables = {name: v for name, v in read_index(found.prefix).items() if not is_optimizer_state(name)}
    refuse_other_models(variables, source)
    tensors = hugging_face_names({name: read_variable(name, variable) for name, variable in variables.items()})
    if SECOND_TABLE in tensors:
        config, tensors = fold_word_table(config, tensors, source)
    classifier = tensors.get("classifier.weight")
    if classifier is not None:
        config = config.with_labels([f"LABEL_{i}" for i in range(len(classifier))])
    return config, tensors
