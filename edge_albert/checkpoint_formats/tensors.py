"""Which tensors an ALBERT has, of which shape, and whether a given set of them is that ALBERT.

Names are those of Hugging Face's head classes: the encoder under `albert.`, heads beside it. The shapes were taken from
the state dicts of transformers 5.24 (AlbertModel, AlbertForPreTraining and the four fine-tuning classes).

A file may hold more than a task needs, because it comes from another class of the same encoder. That is tolerated and
left out: pre-training heads under a fine-tuned task, the pooler where the head does not read it, any head when a
sentence embedding is wanted, copies of tied weights, the old `position_ids` buffer. All else surplus is an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from edge_albert.config import AlbertConfig
from edge_albert.errors import CheckpointError
from edge_albert.tasks import TASKS, get_task

Shapes = dict[str, tuple[int, ...]]

WORD_EMBEDDINGS = "albert.embeddings.word_embeddings.weight"
_DECODER = "predictions.decoder."
_PRETRAINING_HEADS = ("predictions.", "sop_classifier.")
EXITS = "exits."  # before the heads that answer early
_TASK_HEADS = ("classifier.", "qa_outputs.", EXITS)
_POOLER = "albert.pooler."
_UNPREFIXED = ("embeddings.", "encoder.", "pooler.")  # AlbertModel's own names
_BERT_LAYER = re.compile(r"(?:^|(\w+)\.)encoder\.layer\.\d+\.")
_LAYERS = r"(albert\.encoder\.albert_layer_groups\.)\d+(\.albert_layers\.\d+\."
_TIED_PART = {
    "attention": re.compile(_LAYERS + r"attention\..+)"),
    "ffn": re.compile(_LAYERS + r"(?:ffn|ffn_output|full_layer_layer_norm)\..+)"),
}
_FIXED_OUTPUTS = {"text-regression": 1, "question-answering": 2, "multiple-choice": 1}  # others: one per label
_LISTED = 8  # names of one kind in an error; the rest is counted


# -- what there should be ---------------------------------------------------------------------------------------------


def head_outputs(config: AlbertConfig, task: str) -> int:
    """Rows of the task head's weight; 0 for a task without a head."""
    return 0 if get_task(task).head is None else _FIXED_OUTPUTS.get(task, config.num_labels)


def all_head_outputs(config: AlbertConfig, task: str) -> int:
    """The same of all heads: with exit heads per iteration there are as many as iterations."""
    return head_outputs(config, task) * (config.num_hidden_layers if config.exit_heads == "per-iteration" else 1)


def expected_shapes(config: AlbertConfig, task: str | None) -> Shapes:
    """Name ► shape of every tensor that `task` needs; None stands for a bare AlbertModel with its pooler."""
    shapes = _encoder_shapes(config)
    if task is None or get_task(task).pooled:
        shapes |= _linear("albert.pooler", config.hidden_size, config.hidden_size)
    head = TASKS[task].head if task is not None else None
    if task is not None and head is not None:
        shapes |= _linear(head, head_outputs(config, task), config.hidden_size)
        for i in range(config.num_hidden_layers - 1 if config.exit_heads == "per-iteration" else 0):
            shapes |= _linear(exit_head(i), head_outputs(config, task), config.hidden_size)
    return shapes


def exit_head(iteration: int) -> str:
    """The own head of an iteration, from 0 and never the last, in a model with exit heads per iteration."""
    return f"{EXITS}{iteration}"


def _encoder_shapes(config: AlbertConfig) -> Shapes:
    e, h, f = config.embedding_size, config.hidden_size, config.intermediate_size
    shapes: Shapes = {
        WORD_EMBEDDINGS: (config.vocab_size, e),
        "albert.embeddings.position_embeddings.weight": (config.max_position_embeddings, e),
        "albert.embeddings.token_type_embeddings.weight": (config.type_vocab_size, e),
        **_norm("albert.embeddings.LayerNorm", e),
        **_linear("albert.encoder.embedding_hidden_mapping_in", h, e),
    }
    for group in range(config.num_hidden_groups):
        for inner in range(config.inner_group_num):
            layer = _layer(group, inner)
            for projection in ("query", "key", "value", "dense"):
                shapes |= _linear(f"{layer}attention.{projection}", h, h)
            shapes |= _norm(f"{layer}attention.LayerNorm", h)
            shapes |= _linear(f"{layer}ffn", f, h)
            shapes |= _linear(f"{layer}ffn_output", h, f)
            shapes |= _norm(f"{layer}full_layer_layer_norm", h)
    return shapes


def _layer(group: int, inner: int) -> str:
    return f"albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}."


def _linear(name: str, outputs: int, inputs: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm(name: str, size: int) -> Shapes:
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}


def _masked_lm_shapes(config: AlbertConfig) -> Shapes:
    e = config.embedding_size
    shapes = _linear("predictions.dense", e, config.hidden_size) | _norm("predictions.LayerNorm", e)
    return shapes | {"predictions.bias": (config.vocab_size,)}


def _sop_shapes(config: AlbertConfig) -> Shapes:
    return _linear("sop_classifier.classifier", 2, config.hidden_size)


def _required(config: AlbertConfig, present: Mapping[str, np.ndarray], task: str | None) -> Shapes:
    """What must be there, given what is: without a task, the pooler and each pre-training head is whole or absent."""
    shapes = expected_shapes(config, task)
    if task is not None:
        return shapes
    shapes |= _masked_lm_shapes(config) | _sop_shapes(config)
    absent = tuple(part for part in (_POOLER, *_PRETRAINING_HEADS) if not any(n.startswith(part) for n in present))
    return {name: shape for name, shape in shapes.items() if not name.startswith(absent)}


# -- from what there is to what is needed -----------------------------------------------------------------------------


def canonical_names(tensors: Mapping[str, np.ndarray], source: str) -> dict[str, np.ndarray]:
    """The same tensors under the head classes' names: AlbertModel's own get `albert.` in front.

    Raises CheckpointError when the names are those of BERT or one of its other children, or one tensor is there twice.
    """
    for name in tensors:
        if match := _BERT_LAYER.search(name):
            family = match[1] or "bert"
            raise CheckpointError(
                f"{source}: is a {family} checkpoint (it holds {name}), and only ALBERT checkpoints can be read; "
                f"a {family} has no shared layer to keep once"
            )
    out: dict[str, np.ndarray] = {}
    for name, tensor in tensors.items():
        full = f"albert.{name}" if name.startswith(_UNPREFIXED) else name
        if full in out:
            raise CheckpointError(f"{source}: holds both {full} and {full.removeprefix('albert.')}: keep one of them")
        out[full] = tensor
    return out


def needed_tensors(tensors: Mapping[str, np.ndarray], task: str | None) -> dict[str, np.ndarray]:
    """Without what `task` tolerates but does not need (see the top of this file)."""
    unneeded: tuple[str, ...] = ("albert.embeddings.position_ids", _DECODER)
    if task is not None:
        unneeded += _PRETRAINING_HEADS
        if not get_task(task).pooled:
            unneeded += (_POOLER,)
        if get_task(task).head is None:
            unneeded += _TASK_HEADS
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(unneeded)}


# -- is it that ALBERT? -----------------------------------------------------------------------------------------------


def check_tensors(config: AlbertConfig, tensors: Mapping[str, np.ndarray], task: str | None, source: str) -> None:
    """Raise one CheckpointError that lists everything by which `tensors` is not the ALBERT that `config` describes.

    Missing, surplus and wrongly shaped tensors, those that are no floating-point numbers or hold NaN or infinity, and
    copies that `config.tied_across_groups` says are equal and are not. `source` names the checkpoint in the message.
    task None means a pre-training or bare checkpoint, whose heads are checked when they are there.
    """
    present = needed_tensors(tensors, task)
    required = _required(config, present, task)
    common = [name for name in required if name in present]
    wrong = [name for name in common if present[name].shape != required[name]]
    floating = [name for name in common if present[name].dtype.kind == "f"]
    faults = {
        "missing": [name for name in required if name not in present],
        "surplus": sorted(name for name in present if name not in required),
        "of another shape": [f"{name} {present[name].shape}, not {required[name]}" for name in wrong],
        "not floating point": [f"{name} ({present[name].dtype})" for name in common if name not in floating],
        "holding NaN or infinity": [name for name in floating if not np.isfinite(present[name]).all()],
        "unequal though tied": _untied(config, present) if not wrong else [],
        "untied from the word embeddings": _untied_decoder(tensors) if task is None else [],
    }
    if any(faults.values()):
        said = "; ".join(f"{kind}: {_listing(names)}" for kind, names in faults.items() if names)
        raise CheckpointError(f"{source}: the tensors do not fit the config: {said}{_remedy(config, task, faults)}")


def _untied(config: AlbertConfig, tensors: Mapping[str, np.ndarray]) -> list[str]:
    """Tensors of later groups that differ from group 0's in the half of the layer that is tied across groups."""
    if config.tied_across_groups is None:
        return []
    different = []
    for name, tensor in tensors.items():
        match = _TIED_PART[config.tied_across_groups].fullmatch(name)
        first = f"{match[1]}0{match[2]}" if match else name
        if first != name and first in tensors and not np.array_equal(tensor, tensors[first]):
            different.append(name)
    return different


def _untied_decoder(tensors: Mapping[str, np.ndarray]) -> list[str]:
    """The decoder's weight, where it is another than the word embedding: ALBERT ties the two, transformers too."""
    decoder, words = tensors.get(f"{_DECODER}weight"), tensors.get(WORD_EMBEDDINGS)
    untied = decoder is not None and words is not None and not np.array_equal(decoder, words)
    return [f"{_DECODER}weight"] if untied else []


def _listing(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _remedy(config: AlbertConfig, task: str | None, faults: Mapping[str, list[str]]) -> str:
    """What to do, where the only fault is an absent head or one of another size."""
    head = get_task(task).head if task is not None else None
    kinds = [kind for kind, names in faults.items() if names]
    if task is None or head is None or len(kinds) > 1 or not all(n.startswith(f"{head}.") for n in faults[kinds[0]]):
        return ""
    if kinds == ["missing"]:
        return f": it has no head for {task}, fine-tune it first"
    if kinds == ["of another shape"]:
        outputs = _FIXED_OUTPUTS.get(task)
        wanted = f"id2label names {config.num_labels} labels" if outputs is None else f"{task} needs {outputs} rows"
        return f": {wanted}, correct id2label or the task"
    return ""


# -- numbers --------------------------------------------------------------------------------------------------------


def bfloat16_to_float32(bits: np.ndarray) -> np.ndarray:
    """Bits of bfloat16 (uint16, any shape) ► the same numbers as float32: a bfloat16 is a float32's upper half."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
