"""ALBERT in PyTorch, whole, in one file.

ALBERT (Lan et al., ICLR 2020, arXiv 1909.11942) is a BERT encoder with two savings. Its embeddings have a small size E,
and one projection lifts them to the hidden size H (section 3.1). And ONE transformer layer is applied N times, so the
layer's weights stand once. `num_hidden_groups` > 1 gives several layers, each applied to a consecutive run of
iterations; `inner_group_num` > 1 makes each of them a stack; `tied_across_groups` then shares one half of the layer, or
the other, across the groups again (the ablations of the paper's Table 4).

Parameters bear the names of Hugging Face's ALBERT, key for key, so a checkpoint goes in by `load_state_dict` and comes
out by `state_dict`. `build_model` gives the model of a task. Every one of them has three methods:

    encode(input_ids, attention_mask, token_type_ids)    the encoder   ► AlbertOutput
    head(AlbertOutput)                                   the task      ► logits, or an embedding
    forward(the same three)                              head(encode(…))

so that a trainer can score masked positions only, and a distiller can look at every iteration. Losses live in
`edge_albert.training`. Shapes: B batch, S tokens, E embedding, H hidden, A heads, D = H/A, F feed-forward, V words.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edge_albert.config import AlbertConfig
from edge_albert.errors import ConfigError
from edge_albert.tasks import TASKS

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


class AlbertOutput(NamedTuple):
    """What the encoder gives to a head.

    last_hidden_state: (B, S, H). pooler_output: tanh(pooler(hidden of [CLS])), (B, H); None without a pooler.
    attention_mask: as it came in, (B, S) or None. hidden_states: the projected embeddings, then the output of every
    application of a layer: N·inner_group_num + 1 tensors (B, S, H), empty unless asked for. attentions: the attention
    probabilities of every application, (B, A, S, S), empty unless asked for.
    """

    last_hidden_state: Tensor
    pooler_output: Tensor | None
    attention_mask: Tensor | None
    hidden_states: tuple[Tensor, ...] = ()
    attentions: tuple[Tensor, ...] = ()


# -- the encoder -------------------------------------------------------------------------------------------------------


class AlbertEmbeddings(nn.Module):
    """Word + position + token type, of size E, normalised."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        size = config.embedding_size
        self.word_embeddings = nn.Embedding(config.vocab_size, size, padding_idx=config.pad_token_id)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, size)
        self.LayerNorm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None) -> Tensor:
        length, longest = input_ids.shape[1], self.position_embeddings.num_embeddings
        if length > longest:
            raise ValueError(f"{length} tokens exceed max_position_embeddings {longest}: truncate the text")
        positions = self.position_embeddings.weight[:length]  # (S, E)
        types = self.token_type_embeddings.weight[0]  # (E)
        if token_type_ids is not None:
            types = self.token_type_embeddings(token_type_ids)  # (B, S, E)
        return self.dropout(self.LayerNorm(self.word_embeddings(input_ids) + types + positions))  # (B, S, E)


class AlbertAttention(nn.Module):
    """Multi-head self-attention with its residual and normalisation (post-norm, as in BERT)."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.heads, self.head_size = config.num_attention_heads, config.head_size
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.dense = nn.Linear(hidden, hidden)
        self.LayerNorm = nn.LayerNorm(hidden, eps=config.layer_norm_eps)
        self.attention_dropout = config.attention_probs_dropout_prob
        self.output_dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor, mask: Tensor | None, want_probs: bool = False) -> tuple[Tensor, Tensor | None]:
        """hidden (B, S, H), mask (B, 1, 1, S) true where a token may be looked at ► (B, S, H), (B, A, S, S) or None."""
        batch, length, _ = hidden.shape
        query, key, value = (
            linear(hidden).view(batch, length, self.heads, self.head_size).transpose(1, 2)  # (B, A, S, D)
            for linear in (self.query, self.key, self.value)
        )
        dropout = self.attention_dropout if self.training else 0.0
        probs = attention_probs(query, key, mask) if want_probs else None
        if probs is None:
            context = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        else:
            context = F.dropout(probs, dropout) @ value  # (B, A, S, D)
        context = context.transpose(1, 2).reshape(batch, length, -1)  # (B, S, H)
        return self.LayerNorm(hidden + self.output_dropout(self.dense(context))), probs


def attention_probs(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """What scaled_dot_product_attention keeps to itself: query, key (B, A, S, D) ► softmax(QKᵀ/√D), (B, A, S, S)."""
    scores = query @ key.transpose(2, 3) * query.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(dim=-1)


class AlbertLayer(nn.Module):
    """Attention, then feed-forward, each with residual and normalisation."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.full_layer_layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.attention = AlbertAttention(config)
        self.ffn = nn.Linear(config.hidden_size, config.intermediate_size)
        self.ffn_output = nn.Linear(config.intermediate_size, config.hidden_size)
        self.activation: Callable[[Tensor], Tensor] = ACTIVATIONS[config.hidden_act]
        # Google's original drops out here; transformers declares this dropout and forgets to apply it.
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor, mask: Tensor | None, want_probs: bool = False) -> tuple[Tensor, Tensor | None]:
        attended, probs = self.attention(hidden, mask, want_probs)  # (B, S, H)
        ffn = self.ffn_output(self.activation(self.ffn(attended)))  # (B, S, F) ► (B, S, H)
        return self.full_layer_layer_norm(self.dropout(ffn) + attended), probs


class AlbertLayerGroup(nn.Module):
    """The stack of `inner_group_num` layers that one iteration applies; nearly always a single layer."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.albert_layers = nn.ModuleList(AlbertLayer(config) for _ in range(config.inner_group_num))


class AlbertTransformer(nn.Module):
    """The projection E ► H and the loop."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.embedding_hidden_mapping_in = nn.Linear(config.embedding_size, config.hidden_size)
        self.albert_layer_groups = nn.ModuleList(AlbertLayerGroup(config) for _ in range(config.num_hidden_groups))
        self.group_of = [config.group_of(i) for i in range(config.num_hidden_layers)]
        if config.tied_across_groups:
            self._tie(config.tied_across_groups)

    def _tie(self, half: str) -> None:
        """Let every group use the first group's attention, or feed-forward, each with the normalisation after it."""
        names = {"attention": ("attention",), "ffn": ("ffn", "ffn_output", "full_layer_layer_norm")}[half]
        first, *others = self.groups()
        for group in others:
            for layer, source in zip(group, first, strict=True):
                for name in names:
                    setattr(layer, name, getattr(source, name))

    def groups(self) -> list[list[AlbertLayer]]:
        return [list(group.albert_layers) for group in self.albert_layer_groups]  # type: ignore[arg-type,union-attr]

    def layers(self) -> list[AlbertLayer]:
        """The layers in the order they are applied: N·inner_group_num entries, most of them the same object."""
        groups = self.groups()
        return [layer for group in self.group_of for layer in groups[group]]


class AlbertModel(nn.Module):
    """The encoder: Hugging Face's `AlbertModel`. `pooler=False` leaves the pooler out, as the token-level heads do."""

    def __init__(self, config: AlbertConfig, pooler: bool = True) -> None:
        super().__init__()
        self.config = config
        self.embeddings = AlbertEmbeddings(config)
        self.encoder = AlbertTransformer(config)
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if pooler else None

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> AlbertOutput:
        """input_ids, attention_mask (1 token, 0 padding), token_type_ids: each (B, S). ValueError when S is too long.

        Without a mask every token is looked at; without token types all are 0. Attention probabilities are computed
        apart from the fused kernel, so asking for them is slower.
        """
        mask = None if attention_mask is None else attention_mask.bool()[:, None, None, :]  # (B, 1, 1, S)
        hidden = self.encoder.embedding_hidden_mapping_in(self.embeddings(input_ids, token_type_ids))  # (B, S, H)
        hidden_states, attentions = [hidden] if output_hidden_states else [], []
        for layer in self.encoder.layers():
            hidden, probs = layer(hidden, mask, output_attentions)
            if output_hidden_states:
                hidden_states.append(hidden)
            if output_attentions:
                attentions.append(probs)
        return AlbertOutput(hidden, self.pool(hidden), attention_mask, tuple(hidden_states), tuple(attentions))

    def pool(self, hidden: Tensor) -> Tensor | None:
        """The pooler on hidden states (B, S, H), of whichever iteration ► (B, H); None without a pooler."""
        return None if self.pooler is None else torch.tanh(self.pooler(hidden[:, 0]))

    forward = encode


# -- the heads ---------------------------------------------------------------------------------------------------------


class AlbertWithHead(nn.Module):
    """What the heads with Hugging Face's `albert.` prefix have in common; each adds its layers and `head`."""

    def __init__(self, config: AlbertConfig, pooler: bool) -> None:
        super().__init__()
        self.config = config
        self.albert = AlbertModel(config, pooler)

    def encode(self, *inputs: Any, **options: Any) -> AlbertOutput:
        """As `AlbertModel.encode`."""
        return self.albert.encode(*inputs, **options)

    def head(self, encoded: AlbertOutput) -> Tensor:
        raise NotImplementedError

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        return self.head(self.encode(input_ids, attention_mask, token_type_ids))


def exit_classifiers(config: AlbertConfig) -> nn.ModuleList:
    """The classifiers of all iterations but the last where early exit has one for each, else none."""
    count = config.num_hidden_layers - 1 if config.exit_heads == "per-iteration" else 0
    return nn.ModuleList(nn.Linear(config.hidden_size, config.num_labels) for _ in range(count))


class AlbertForSequenceClassification(AlbertWithHead):
    """One label, or one number (num_labels = 1), for a text or a pair: logits (B, num_labels)."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config, pooler=True)
        self.dropout = nn.Dropout(config.classifier_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.exits = exit_classifiers(config)

    def head(self, encoded: AlbertOutput) -> Tensor:
        return self.classifier(self.dropout(encoded.pooler_output))  # (B, num_labels)


class AlbertForTokenClassification(AlbertWithHead):
    """A label for every token: logits (B, S, num_labels)."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config, pooler=False)
        self.dropout = nn.Dropout(config.classifier_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.exits = exit_classifiers(config)

    def head(self, encoded: AlbertOutput) -> Tensor:
        return self.classifier(self.dropout(encoded.last_hidden_state))  # (B, S, num_labels)


class AlbertForQuestionAnswering(AlbertWithHead):
    """Where an answer starts and ends: logits (B, S, 2)."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config, pooler=False)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)

    def head(self, encoded: AlbertOutput) -> Tensor:
        return self.qa_outputs(encoded.last_hidden_state)  # (B, S, 2)


class AlbertForMultipleChoice(AlbertWithHead):
    """One of C texts: (B, C, S) ► logits (B, C). `encode` and `head` see each choice as a row: (B·C, S) ► (B·C, 1)."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config, pooler=True)
        self.dropout = nn.Dropout(config.classifier_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, 1)

    def head(self, encoded: AlbertOutput) -> Tensor:
        return self.classifier(self.dropout(encoded.pooler_output))  # (B·C, 1)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        rows = [None if t is None else t.flatten(0, 1) for t in (input_ids, attention_mask, token_type_ids)]
        return super().forward(*rows).view(input_ids.shape[:2])  # type: ignore[arg-type]


class AlbertForSentenceEmbedding(AlbertWithHead):
    """The mean of the hidden states over the tokens that are not padding, of unit length: (B, H).

    It adds no weights: a bare `AlbertModel` checkpoint fills `self.albert`, whose pooler nothing would train.
    """

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config, pooler=False)

    def head(self, encoded: AlbertOutput) -> Tensor:
        hidden, mask = encoded.last_hidden_state, encoded.attention_mask
        if mask is not None:
            hidden = hidden * mask.unsqueeze(-1)  # (B, S, H)
        return F.normalize(hidden.sum(dim=1), dim=-1)  # (B, H); the sum points where the mean does


class AlbertMLMHead(nn.Module):
    """Hidden states ► the masked token: H ► E, then the word embeddings again as the output layer (section 3.1)."""

    def __init__(self, config: AlbertConfig, word_embeddings: nn.Embedding) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.embedding_size)
        self.LayerNorm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        self.activation: Callable[[Tensor], Tensor] = ACTIVATIONS[config.hidden_act]
        self.decoder = nn.Linear(config.embedding_size, config.vocab_size)
        self.decoder.weight = word_embeddings.weight
        self.bias = self.decoder.bias  # Hugging Face's checkpoints hold it under both names

    def forward(self, hidden: Tensor) -> Tensor:
        return self.decoder(self.LayerNorm(self.activation(self.dense(hidden))))  # (…, H) ► (…, E) ► (…, V)


class AlbertSOPHead(nn.Module):
    """Are the two segments in order (0) or swapped (1)? (section 3.1, inter-sentence coherence)"""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__()
        self.dropout = nn.Dropout(config.classifier_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, 2)

    def forward(self, pooled: Tensor) -> Tensor:
        return self.classifier(self.dropout(pooled))  # (B, H) ► (B, 2)


class AlbertForPreTraining(AlbertWithHead):
    """Masked language model and sentence order: logits (B, S, V) and (B, 2).

    A trainer that scores only the masked positions calls `encode`, then `predictions` on those rows: at 15 % masked
    that leaves out most of the largest matrix product.
    """

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config, pooler=True)
        self.predictions = AlbertMLMHead(config, self.albert.embeddings.word_embeddings)
        self.sop_classifier = AlbertSOPHead(config)

    def head(self, encoded: AlbertOutput) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return self.predictions(encoded.last_hidden_state), self.sop_classifier(encoded.pooler_output)


# -- building and filling ----------------------------------------------------------------------------------------------

AlbertForTask = AlbertModel | AlbertWithHead

_CLASSES: dict[str | None, Callable[[AlbertConfig], AlbertForTask]] = {
    None: AlbertModel,
    "pretraining": AlbertForPreTraining,
    "text-classification": AlbertForSequenceClassification,
    "text-regression": AlbertForSequenceClassification,
    "token-classification": AlbertForTokenClassification,
    "question-answering": AlbertForQuestionAnswering,
    "multiple-choice": AlbertForMultipleChoice,
    "sentence-embedding": AlbertForSentenceEmbedding,
}


def build_model(config: AlbertConfig, task: str | None = None) -> AlbertForTask:
    """A model of that shape, its weights drawn by torch's generator from a normal of σ = initializer_range, biases 0.

    task: a name in `edge_albert.tasks.TASKS`, "pretraining", or None for the bare encoder with its pooler.
    Raises ConfigError for another name, and for a regression whose config has not exactly one label.
    """
    if task not in _CLASSES:
        raise ConfigError(f"unknown task {task!r}: choose pretraining or one of {', '.join(TASKS)}")
    if task == "text-regression" and config.num_labels != 1:
        raise ConfigError(f"text-regression has one output, but the config names {config.num_labels} labels")
    model = _CLASSES[task](config)
    model.apply(partial(_init_weights, std=config.initializer_range))
    encoder = model if isinstance(model, AlbertModel) else model.albert
    with torch.no_grad():
        encoder.embeddings.word_embeddings.weight[config.pad_token_id].zero_()
    return model


def _init_weights(module: nn.Module, std: float) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=std)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
