"""What an ALBERT is: the fields of Hugging Face's config.json, named shapes, and what a shape costs.

ALBERT (Lan et al., ICLR 2020, arXiv 1909.11942) has an embedding of size E that a projection lifts to the hidden size H
(factorised embedding, section 3.1), and one transformer layer that is applied `num_hidden_layers` times (cross-layer
sharing). `num_hidden_groups` > 1 gives that many layers, each applied to a consecutive run of iterations;
`inner_group_num` > 1 makes each of them a stack.

The paper's sharing ablations (Table 4) are said with the same fields: `num_hidden_groups == num_hidden_layers` shares
nothing, and `tied_across_groups` (this project's only field beside Hugging Face's) then ties one half of the layer
again: "attention" or "ffn". Transformers loads such a checkpoint as one with many groups; the numbers are the same.

A model trained for early exit says so in the field `early_exit`: {"heads": "shared"} when the task's own head answers
after every iteration, {"heads": "per-iteration"} when each but the last has a linear head of its own, the tensors
`exits.0.weight`, `exits.0.bias`, … Transformers ignores field and tensors, and loads the model at its full depth.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from edge_albert.errors import ConfigError

ACTIVATIONS = ("gelu", "gelu_new", "relu")
SHARING = ("all", "attention", "ffn", "none")
EXIT_HEADS = ("shared", "per-iteration")


@dataclass(frozen=True)
class AlbertConfig:
    """One ALBERT's shape. Field names, meanings and defaults are those of Hugging Face's `AlbertConfig`.

    Sizes are element counts, dropouts probabilities. `extra` keeps every field of a config.json that is not named here,
    so that a round trip loses nothing. Raises ConfigError when the sizes cannot make a model.
    """

    vocab_size: int = 30000
    embedding_size: int = 128
    hidden_size: int = 4096
    num_hidden_layers: int = 12
    num_hidden_groups: int = 1
    num_attention_heads: int = 64
    intermediate_size: int = 16384
    inner_group_num: int = 1
    hidden_act: str = "gelu_new"
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    classifier_dropout_prob: float = 0.1
    pad_token_id: int = 0
    bos_token_id: int = 2
    eos_token_id: int = 3
    architectures: tuple[str, ...] = ()
    id2label: Mapping[int, str] = field(default_factory=lambda: {0: "LABEL_0", 1: "LABEL_1"})
    problem_type: str | None = None
    tied_across_groups: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in _SIZES:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"{name} is {value!r}: it must be a whole number of at least 1")
        for name in _RATES:
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1:
                raise ConfigError(f"{name} is {value!r}: it must be a number from 0 to less than 1")
        if self.pad_token_id not in range(self.vocab_size):
            raise ConfigError(f"pad_token_id {self.pad_token_id!r} is not one of the {self.vocab_size} words")
        if self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"hidden_size {self.hidden_size} is not divisible by num_attention_heads {self.num_attention_heads}: "
                "each head takes an equal part"
            )
        if self.num_hidden_groups > self.num_hidden_layers:
            raise ConfigError(
                f"num_hidden_groups {self.num_hidden_groups} exceeds num_hidden_layers {self.num_hidden_layers}: "
                "a group needs at least one iteration"
            )
        if self.hidden_act not in ACTIVATIONS:
            raise ConfigError(f"hidden_act {self.hidden_act!r} is not one of {', '.join(ACTIVATIONS)}")
        if self.tied_across_groups not in (None, "attention", "ffn"):
            raise ConfigError(f"tied_across_groups {self.tied_across_groups!r} is not 'attention' or 'ffn'")
        said = self.extra.get("early_exit")
        if said is not None and not (isinstance(said, Mapping) and said.get("heads") in EXIT_HEADS):
            raise ConfigError(f"early_exit is {said!r}: its heads must be one of {', '.join(EXIT_HEADS)}")

    @property
    def num_labels(self) -> int:
        return len(self.id2label)

    @property
    def labels(self) -> tuple[str, ...]:
        """Label names in the order of the model's outputs."""
        return tuple(self.id2label[i] for i in sorted(self.id2label))

    @property
    def exit_heads(self) -> str | None:
        """What answers after every iteration, one of EXIT_HEADS; None for a model trained without exits."""
        said = self.extra.get("early_exit")
        return None if said is None else said["heads"]

    def with_dropout(self, rate: float | None) -> AlbertConfig:
        """The same shape with this dropout of hidden states, attention and classifier; None leaves it as it is."""
        if rate is None:
            return self
        return replace(self, hidden_dropout_prob=rate, attention_probs_dropout_prob=rate, classifier_dropout_prob=rate)

    def with_exits(self, heads: str | None) -> AlbertConfig:
        """The same shape with these exit heads, or with none."""
        extra = {key: value for key, value in self.extra.items() if key != "early_exit"}
        return replace(self, extra=extra if heads is None else {**extra, "early_exit": {"heads": heads}})

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    def group_of(self, layer: int) -> int:
        """The group that iteration `layer` (0-based) uses: consecutive iterations share one, as in the TF original."""
        return int(layer / (self.num_hidden_layers / self.num_hidden_groups))

    def group_runs(self) -> tuple[int, ...]:
        """How many iterations each group is applied for, in order; sums to num_hidden_layers."""
        used = [self.group_of(layer) for layer in range(self.num_hidden_layers)]
        return tuple(used.count(group) for group in range(self.num_hidden_groups))

    def with_sharing(self, sharing: str) -> AlbertConfig:
        """The same shape under one of the paper's sharing strategies (Table 4): all, attention, ffn or none."""
        if sharing not in SHARING:
            raise ConfigError(f"sharing {sharing!r} is not one of {', '.join(SHARING)}")
        if sharing == "all":
            return replace(self, num_hidden_groups=1, tied_across_groups=None)
        tied = sharing if sharing != "none" else None
        return replace(self, num_hidden_groups=self.num_hidden_layers, tied_across_groups=tied)

    def with_labels(self, labels: list[str] | tuple[str, ...]) -> AlbertConfig:
        """The same shape with these label names, in the order of the outputs."""
        return replace(self, id2label=dict(enumerate(labels)))

    # -- config.json ------------------------------------------------------------------------------------------------

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], source: str = "config.json") -> AlbertConfig:
        """From the parsed content of a config.json. `source` names it in errors. Raises ConfigError."""
        if not isinstance(data, Mapping):
            raise ConfigError(f"{source}: expected a JSON object, found {type(data).__name__}")
        model_type = data.get("model_type", "albert")
        if model_type != "albert":
            raise ConfigError(
                f"{source}: model_type is {model_type!r}, not 'albert': only ALBERT checkpoints can be read; "
                f"a {model_type} has no shared layer to keep once"
            )
        known = {f.name for f in fields(cls)} - {"extra"}
        values = {key: value for key, value in data.items() if key in known and value is not None}
        architectures = values.get("architectures", [])
        if not isinstance(architectures, list | tuple):
            raise ConfigError(f"{source}: architectures must be a list of class names, found {architectures!r}")
        values["architectures"] = tuple(architectures)
        values["id2label"] = _read_labels(data, source)
        extra = {key: value for key, value in data.items() if key not in known and key not in _DERIVED}
        try:
            return cls(**values, extra=extra)
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}") from None

    @classmethod
    def from_json(cls, path: str | Path) -> AlbertConfig:
        """Read a config.json. Raises ConfigError naming the file and the field."""
        path = Path(path)
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot be read ({error.strerror}): an ALBERT folder needs a config.json"
            ) from None
        except ValueError as error:
            raise ConfigError(f"{path}: not valid JSON ({error})") from None
        return cls.from_dict(data, source=str(path))

    def to_dict(self) -> dict[str, Any]:
        """The content of a Hugging Face config.json, unknown fields included."""
        out: dict[str, Any] = {"model_type": "albert", **self.extra}
        for f in fields(self):
            if f.name in ("extra", "id2label"):
                continue
            value = getattr(self, f.name)
            if value is None or value == ():
                continue
            out[f.name] = list(value) if isinstance(value, tuple) else value
        out["id2label"] = {str(i): label for i, label in self.id2label.items()}
        out["label2id"] = {label: i for i, label in self.id2label.items()}
        return out

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


_SIZES = (
    "vocab_size", "embedding_size", "hidden_size", "num_hidden_layers", "num_hidden_groups", "num_attention_heads",
    "intermediate_size", "inner_group_num", "max_position_embeddings", "type_vocab_size",
)  # fmt: skip
_RATES = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob", "initializer_range",
    "layer_norm_eps",
)  # fmt: skip
_DERIVED = ("model_type", "label2id", "num_labels")  # said by other fields; written from those


def _read_labels(data: Mapping[str, Any], source: str) -> dict[int, str]:
    """id2label as {0: name, …}. `num_labels` alone, as in files written by hand, makes LABEL_0 … as in transformers."""
    raw = data.get("id2label")
    if raw is None:
        count = data.get("num_labels", 2)
        if not isinstance(count, int) or count < 1:
            raise ConfigError(f"{source}: num_labels is {count!r}: it must be a whole number of at least 1")
        return {i: f"LABEL_{i}" for i in range(count)}
    try:
        labels = {int(key): str(value) for key, value in raw.items()}
    except (AttributeError, ValueError):
        raise ConfigError(f"{source}: id2label must map whole numbers to names, found {raw!r}") from None
    if sorted(labels) != list(range(len(labels))) or not labels:
        raise ConfigError(f"{source}: id2label must number its labels 0, 1, …, found {sorted(labels)}")
    return dict(sorted(labels.items()))


# -- what a shape costs -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parameters:
    """Unique parameters of a model (elements, not bytes), by part; `total` is their sum."""

    embedding: int
    projection: int
    layers: int
    pooler: int
    head: int = 0

    @property
    def total(self) -> int:
        return self.embedding + self.projection + self.layers + self.pooler + self.head


def count_parameters(config: AlbertConfig, *, pooler: bool = True, head_outputs: int = 0) -> Parameters:
    """Unique parameters by formula; with the defaults, those of Hugging Face's `AlbertModel`.

    head_outputs: outputs of a linear head on the hidden size (num_labels; 2 for question answering), 0 for none.
    """
    e, h, f = config.embedding_size, config.hidden_size, config.intermediate_size
    attention = 4 * (h * h + h) + 2 * h
    ffn = (h * f + f) + (f * h + h) + 2 * h
    copies = config.num_hidden_groups * config.inner_group_num
    attention_copies = config.inner_group_num if config.tied_across_groups == "attention" else copies
    ffn_copies = config.inner_group_num if config.tied_across_groups == "ffn" else copies
    return Parameters(
        embedding=(config.vocab_size + config.max_position_embeddings + config.type_vocab_size) * e + 2 * e,
        projection=e * h + h,
        layers=attention_copies * attention + ffn_copies * ffn,
        pooler=(h * h + h) if pooler else 0,
        head=head_outputs * (h + 1),
    )


def count_macs(
    config: AlbertConfig, length: int, *, pooler: bool = True, head_outputs: int = 0, per_token: bool = False
) -> int:
    """Multiply-adds of one forward pass over one sequence of `length` tokens, matrix products only.

    head_outputs: outputs of a linear head, once for the sequence or, with per_token, once for every token.
    Sharing changes nothing here: an ALBERT of N iterations costs what a BERT of N layers costs.
    """
    e, h, f = config.embedding_size, config.hidden_size, config.intermediate_size
    layer = 4 * h * h + 2 * h * f + 2 * length * h  # projections, feed-forward, scores and their weighted sum
    encoder = e * h + config.num_hidden_layers * config.inner_group_num * layer
    head = head_outputs * h * (length if per_token else 1)
    return length * encoder + (h * h if pooler else 0) + head


# -- named shapes -----------------------------------------------------------------------------------------------------


def _released(hidden: int, layers: int, heads: int, dropout: float, act: str) -> AlbertConfig:
    return AlbertConfig(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=4 * hidden,
        hidden_act=act, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip


def _student(vocab: int, e: int, h: int, layers: int) -> AlbertConfig:
    return AlbertConfig(
        vocab_size=vocab, embedding_size=e, hidden_size=h, num_hidden_layers=layers, num_attention_heads=h // 64,
        intermediate_size=4 * h, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1,
    )  # fmt: skip


def _bert(hidden: int, layers: int, heads: int) -> AlbertConfig:
    shape = replace(_released(hidden, layers, heads, 0.1, "gelu"), embedding_size=hidden)
    return shape.with_sharing("none")


PRESETS: dict[str, AlbertConfig] = {
    "albert-base-v1": _released(768, 12, 12, 0.1, "gelu"),
    "albert-large-v1": _released(1024, 24, 16, 0.1, "gelu"),
    "albert-xlarge-v1": _released(2048, 24, 16, 0.1, "gelu"),
    "albert-xxlarge-v1": _released(4096, 12, 64, 0.0, "gelu"),
    "albert-base-v2": _released(768, 12, 12, 0.0, "gelu_new"),
    "albert-large-v2": _released(1024, 24, 16, 0.0, "gelu_new"),
    "albert-xlarge-v2": _released(2048, 24, 16, 0.0, "gelu_new"),
    "albert-xxlarge-v2": _released(4096, 12, 64, 0.0, "gelu_new"),
    # students for the device: at most 1.5 M, 5 M and 12 M parameters
    "tiny": _student(8000, 96, 192, 4),
    "mini": _student(8000, 128, 384, 6),
    "small": _student(30000, 128, 512, 8),
    # the baseline that shares and factorises nothing (it keeps ALBERT's E×H projection, so transformers loads it)
    "bert-base-shape": _bert(768, 12, 12),
    "bert-large-shape": _bert(1024, 24, 16),
}
# of these nobody has released weights: whoever names one to train wants random ones; the other names are the hub's
UNTRAINED = tuple(name for name in PRESETS if not name.startswith("albert-"))


def preset(name: str) -> AlbertConfig:
    """A named shape; ConfigError lists the names when there is none."""
    try:
        return PRESETS[name]
    except KeyError:
        raise ConfigError(f"unknown preset {name!r}: choose one of {', '.join(PRESETS)}") from None
