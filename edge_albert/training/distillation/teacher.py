"""The teacher of a distillation: one of our checkpoints, or any transformers model of the task, with its own tokenizer.

`find_teacher` reads what a teacher is (its labels, its sizes, the digest of its files) and checks it against the task.
The network itself is opened when it is first asked, so that a run whose answers all lie in the cache never loads it.

What a teacher says of a text is its outputs (logits, or a regression's value) and a vector of the whole text, the mean
of the last hidden states or that of [CLS], of unit length. Neither needs a common vocabulary. Hidden states and
attention maps are token by token, so `look` takes the student's ids, and `check_tokenisation` says whether it may.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import Tensor

from edge_albert.bundle import file_hash
from edge_albert.checkpoint import read_checkpoint
from edge_albert.checkpoint_formats.hub import fetch, is_hub_name
from edge_albert.config import AlbertConfig
from edge_albert.errors import CheckpointError, EdgeAlbertError, TokenizerError
from edge_albert.model import AlbertOutput, AlbertWithHead, build_model
from edge_albert.tokenizer import Tokenizer, load_tokenizer
from edge_albert.training.device import autocast, pick_device
from edge_albert.training.pretraining.shards import vocabulary_digest
from edge_albert.training.weights import load_arrays

VECTORS = ("mean", "cls")
LONGEST = 512  # tokens a teacher reads of a text, where its positions and its tokenizer allow as many

Text = tuple[str, str | None]  # a text, or a pair of texts
Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Said:
    """outputs: logits (B, K), None for a sentence embedding. encoded: the hidden states and attentions asked for."""

    outputs: Tensor | None
    encoded: AlbertOutput


class Network(Protocol):
    """A teacher's model with its tokenizer, in evaluation mode."""

    def tokenize(self, texts: Sequence[Text]) -> Inputs:
        """B texts ► the model's inputs, each (B, S) int64."""

    def run(self, inputs: Inputs, *, layers: bool = False) -> Said:
        """layers: with the hidden states and attentions of every layer."""


@dataclass(frozen=True)
class Teacher:
    """What a teacher is. labels: the names of its outputs in their order; () for a regression or an embedding.

    layers: how often a layer is applied. digest: sha256 of its files. config: an ALBERT's own, else None.
    """

    source: str
    folder: Path
    task: str
    labels: tuple[str, ...]
    hidden_size: int
    layers: int
    heads: int
    longest: int
    digest: str
    config: AlbertConfig | None

    @cached_property
    def network(self) -> Network:
        """Opened on the device that training uses. Raises CheckpointError or TokenizerError."""
        return _AlbertNetwork(self) if self.config is not None else _TransformersNetwork(self)

    @torch.inference_mode()
    def answer(self, texts: Sequence[Text], vector: str) -> tuple[np.ndarray | None, np.ndarray]:
        """B texts ► outputs (B, K) or None, and unit vectors (B, H) of the kind `vector`; both float32."""
        inputs = self.network.tokenize(texts)
        said = self.network.run(inputs)
        vectors = sentence_vectors(said.encoded, vector)
        outputs = None if said.outputs is None else said.outputs.float().cpu().numpy()
        return outputs, vectors.float().cpu().numpy()

    @torch.no_grad()
    def look(self, inputs: Inputs) -> AlbertOutput:
        """The student's inputs ► the hidden states and attentions of every layer; see `check_tokenisation`."""
        return self.network.run(inputs, layers=True).encoded

    def check_tokenisation(self, tokenizer: Tokenizer) -> None:
        """Raises TokenizerError unless the teacher would make the same ids of every text."""
        try:
            same = vocabulary_digest(load_tokenizer(self.folder)) == vocabulary_digest(tokenizer)
        except TokenizerError:
            same = False
        if not same:
            raise TokenizerError(
                f"{self.source}: tokenises otherwise than {tokenizer.path}: hidden states and attention maps are "
                "matched token by token and need one vocabulary; match soft labels and sentence vectors instead"
            )


def sentence_vectors(encoded: AlbertOutput, kind: str) -> Tensor:
    """(B, S, H) ► (B, H) of unit length: the mean over the tokens that are not padding, or that of [CLS]."""
    hidden = encoded.last_hidden_state
    if kind == "cls":
        return F.normalize(hidden[:, 0], dim=-1)
    if encoded.attention_mask is not None:
        hidden = hidden * encoded.attention_mask.unsqueeze(-1)
    return F.normalize(hidden.sum(dim=1), dim=-1)


# -- what it is --------------------------------------------------------------------------------------------------------


def find_teacher(source: str, task: str) -> Teacher:
    """The teacher in a folder, or of a hub name. Raises CheckpointError when it is none for the task."""
    folder = Path(source)
    if not folder.is_dir():
        if folder.exists() or not is_hub_name(source):
            raise CheckpointError(f"{source}: no such folder: name a teacher's folder or its hub name")
        folder = fetch(source)
    content = _config_json(folder)
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.is_file() and p.suffix not in (".jsonl", ".md")):
        digest.update(f"{path.name}:{file_hash(path)};".encode())
    find = _find_albert if content.get("model_type", "albert") == "albert" else _find_transformers
    return find(source, folder, task, content, digest.hexdigest())


def _config_json(folder: Path) -> dict[str, Any]:
    """{} where there is none: Google's checkpoints call it otherwise."""
    try:
        content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / 'config.json'}: cannot be read ({error})") from None
    return content if isinstance(content, dict) else {}


def _find_albert(source: str, folder: Path, task: str, content: dict[str, Any], digest: str) -> Teacher:
    checkpoint = read_checkpoint(folder)
    if task != "sentence-embedding" and checkpoint.task != task:
        trained = f"a head for {checkpoint.task}" if checkpoint.task else "no head"
        raise CheckpointError(f"{source}: has {trained}, the task is {task}: fine-tune the teacher for it first")
    config = checkpoint.config
    return Teacher(
        source=source,
        folder=folder,
        task=task,
        labels=config.labels if task == "text-classification" else (),
        hidden_size=config.hidden_size,
        layers=config.num_hidden_layers * config.inner_group_num,
        heads=config.num_attention_heads,
        longest=min(LONGEST, config.max_position_embeddings),
        digest=digest,
        config=config,
    )


# what configurations call the hidden size, the number of layers and that of heads
_SIZES = (
    ("hidden_size", "dim", "d_model"),
    ("num_hidden_layers", "n_layers"),
    ("num_attention_heads", "n_heads"),
)


def _find_transformers(source: str, folder: Path, task: str, content: dict[str, Any], digest: str) -> Teacher:
    labels = _labels(source, content)
    if task != "sentence-embedding":
        _check_head(source, task, content, len(labels))
    hidden, layers, heads = (next((content[name] for name in names if name in content), None) for names in _SIZES)
    if not (hidden and layers and heads):
        raise CheckpointError(f"{source}: its config.json names no hidden size, layers or heads: no encoder")
    return Teacher(
        source=source,
        folder=folder,
        task=task,
        labels=labels if task == "text-classification" else (),
        hidden_size=hidden,
        layers=layers,
        heads=heads,
        longest=min(LONGEST, content.get("max_position_embeddings", LONGEST)),
        digest=digest,
        config=None,
    )


def _labels(source: str, content: dict[str, Any]) -> tuple[str, ...]:
    """The names of the outputs in their order; LABEL_0 … where the config has none, as in transformers."""
    try:
        names = content.get("id2label") or {i: f"LABEL_{i}" for i in range(content.get("num_labels", 2))}
        return tuple(str(names[key]) for key in sorted(names, key=int))
    except (AttributeError, TypeError, ValueError):
        raise CheckpointError(f"{source}: id2label in its config.json must map whole numbers to names") from None


def _check_head(source: str, task: str, content: dict[str, Any], outputs: int) -> None:
    architectures = content.get("architectures") or []
    regression = content.get("problem_type") == "regression" or outputs == 1
    trained = "text-regression" if regression else "text-classification"
    if not any(str(name).endswith("ForSequenceClassification") for name in architectures):
        raise CheckpointError(
            f"{source}: its config.json names {', '.join(map(str, architectures)) or 'no architecture'}, no "
            f"sequence classifier: fine-tune the teacher for {task} first"
        )
    if trained != task or (regression and outputs != 1):
        raise CheckpointError(f"{source}: has {outputs} outputs for {trained}, the task is {task}: fine-tune it first")


# -- our own -----------------------------------------------------------------------------------------------------------


class _AlbertNetwork:
    def __init__(self, teacher: Teacher) -> None:
        checkpoint = read_checkpoint(teacher.folder)
        self.device, self.longest = pick_device(), teacher.longest
        self.embeds = teacher.task == "sentence-embedding"
        self.tokenizer = load_tokenizer(checkpoint.folder)
        model = build_model(checkpoint.config, teacher.task)
        assert isinstance(model, AlbertWithHead)
        load_arrays(model, checkpoint.tensors)
        self.model = model.to(self.device).eval()

    def tokenize(self, texts: Sequence[Text]) -> Inputs:
        encodings = [self.tokenizer.encode(text, pair, max_length=self.longest) for text, pair in texts]
        lengths = torch.tensor([len(e.input_ids) for e in encodings])
        shape = (len(texts), int(lengths.max()))
        ids, types = torch.full(shape, self.tokenizer.pad_id), torch.zeros(shape, dtype=torch.int64)
        for row, encoding in enumerate(encodings):
            ids[row, : lengths[row]] = torch.as_tensor(np.asarray(encoding.input_ids))
            types[row, : lengths[row]] = torch.as_tensor(np.asarray(encoding.token_type_ids))
        mask = (torch.arange(shape[1]) < lengths[:, None]).long()
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        return {name: tensor.to(self.device) for name, tensor in inputs.items()}

    def run(self, inputs: Inputs, *, layers: bool = False) -> Said:
        with autocast(self.device):
            encoded = self.model.encode(**inputs, output_hidden_states=layers, output_attentions=layers)
            return Said(None if self.embeds else self.model.head(encoded), encoded)


# -- transformers' -----------------------------------------------------------------------------------------------------


class _TransformersNetwork:
    def __init__(self, teacher: Teacher) -> None:
        try:
            import transformers
        except ModuleNotFoundError:
            raise EdgeAlbertError(
                f"{teacher.source}: this teacher needs the package transformers: pip install transformers"
            ) from None
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self.device, self.longest = pick_device(), teacher.longest
        self.embeds = teacher.task == "sentence-embedding"
        kind = transformers.AutoModel if self.embeds else transformers.AutoModelForSequenceClassification
        try:
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(teacher.folder, local_files_only=True)
            model, info = kind.from_pretrained(teacher.folder, local_files_only=True, output_loading_info=True)
        except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
            reason = " ".join(str(error).split())[:200]
            raise CheckpointError(f"{teacher.source}: transformers cannot open it ({reason})") from None
        missing = sorted(name for name in info["missing_keys"] if "pooler" not in name or not self.embeds)
        if missing:
            raise CheckpointError(f"{teacher.source}: its weights lack {', '.join(missing[:3])}: not a whole model")
        self.model = model.to(self.device).eval()
        self.longest = min(self.longest, self.tokenizer.model_max_length)

    def tokenize(self, texts: Sequence[Text]) -> Inputs:
        pairs = None if texts[0][1] is None else [pair for _, pair in texts]
        encoded = self.tokenizer(
            [text for text, _ in texts],
            pairs,
            truncation=True,
            max_length=self.longest,
            padding=True,
            return_tensors="pt",
        )
        return {name: tensor.to(self.device) for name, tensor in encoded.items()}

    def run(self, inputs: Inputs, *, layers: bool = False) -> Said:
        if layers:  # the fused kernels keep the attention maps to themselves
            self.model.set_attn_implementation("eager")
        with autocast(self.device):
            out = self.model(**inputs, output_hidden_states=layers or not self.embeds, output_attentions=layers)
        last = out.last_hidden_state if self.embeds else out.hidden_states[-1]
        every = (tuple(out.hidden_states), tuple(out.attentions)) if layers else ((), ())
        encoded = AlbertOutput(last, None, inputs["attention_mask"], *every)
        return Said(None if self.embeds else out.logits, encoded)
