"""ALBERT said once, against the GraphWriter interface: embed ► loop(layer) ► head.

Weight names in, weight names out: the file's constants are called as in the checkpoint without the leading "albert.",
so that Netron, the audit and the bundle's manifest speak of the same things.
Source: Lan et al., ICLR 2020, section 3.1; the arithmetic is held against transformers in tests/test_converters.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from converters.exit_graph import ExitRule, write_exits
from converters.graph import GraphWriter, Linear, Norm, Tensor
from edge_albert.checkpoint_formats.tensors import exit_head
from edge_albert.config import AlbertConfig
from edge_albert.early_exit import Exits
from edge_albert.sites import short_name
from edge_albert.tasks import Task

GROUP = "albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}."


class _Weights:
    """The checkpoint's tensors, handed out as named linear and norm layers in float32."""

    def __init__(self, tensors: Mapping[str, np.ndarray], eps: float) -> None:
        self._tensors = tensors
        self._eps = eps

    def array(self, name: str) -> np.ndarray:
        return np.ascontiguousarray(self._tensors[name], dtype=np.float32)

    def linear(self, name: str) -> Linear:
        return Linear(short_name(name), self.array(name + ".weight"), self.array(name + ".bias"))

    def norm(self, name: str) -> Norm:
        return Norm(short_name(name), self.array(name + ".weight"), self.array(name + ".bias"), self._eps)


def write_albert(
    writer: GraphWriter,
    config: AlbertConfig,
    tensors: Mapping[str, np.ndarray],
    task: Task,
    exits: Exits | None = None,
) -> None:
    """Describe the whole model to `writer`: inputs input_ids, attention_mask, token_type_ids; output by `task`.

    tensors: {canonical name: array} as `edge_albert.checkpoint.read_checkpoint` gives them, already checked. exits: how
    inputs leave early (converters/exit_graph.py), for a model that `exit_graph.check_exits` has let pass.
    """
    weights = _Weights(tensors, config.layer_norm_eps)
    ids, padding, types = (writer.input(name) for name in ("input_ids", "attention_mask", "token_type_ids"))
    x = _embed(writer, weights, ids, types)
    mask = writer.attention_mask(padding)

    def body(x: Tensor, mask: Tensor, group: int = 0) -> Tensor:
        for inner in range(config.inner_group_num):
            x = _layer(writer, weights, config, GROUP.format(group=group, inner=inner), x, mask)
        return x

    if exits is not None:
        heads = _exit_heads(weights, config, task)
        answer = partial(_answer, writer, weights, task, heads, exits.labels)
        write_exits(writer, task, x, mask, padding, ExitRule(exits, body, answer))
        return
    for group, times in enumerate(config.group_runs()):
        x = writer.loop(f"encoder.group_{group}", times, x, mask, partial(body, group=group))
    writer.output(task.output, _head(writer, weights, task, x, padding))


def _embed(writer: GraphWriter, weights: _Weights, ids: Tensor, types: Tensor) -> Tensor:
    """(B, S) ► (B, S, H): three tables of width E, a norm, and the projection that lifts E to H."""
    prefix = "albert.embeddings."
    words = writer.embedding("embeddings.word", weights.array(prefix + "word_embeddings.weight"), ids)
    positions = writer.positions("embeddings.position", weights.array(prefix + "position_embeddings.weight"), ids)
    segments = writer.embedding("embeddings.token_type", weights.array(prefix + "token_type_embeddings.weight"), types)
    x = writer.add("embeddings.sum", writer.add("embeddings.word_and_segment", words, segments), positions)
    x = writer.layer_norm(x, weights.norm(prefix + "LayerNorm"))  # (B, S, E)
    return writer.linears(x, [weights.linear("albert.encoder.embedding_hidden_mapping_in")])[0]  # (B, S, H)


def _layer(
    writer: GraphWriter, weights: _Weights, config: AlbertConfig, prefix: str, x: Tensor, mask: Tensor
) -> Tensor:
    """One transformer layer, (B, S, H) ► (B, S, H): attention and feed-forward, each added to its input and
    normalised."""
    name = short_name(prefix)
    q, k, v = writer.linears(x, [weights.linear(f"{prefix}attention.{part}") for part in ("query", "key", "value")])
    context = writer.attention(name + "attention", q, k, v, mask, config.num_attention_heads)
    attended = writer.linears(context, [weights.linear(prefix + "attention.dense")])[0]
    x = writer.layer_norm(
        writer.add(name + "attention.residual", attended, x), weights.norm(prefix + "attention.LayerNorm")
    )
    inner = writer.linears(x, [weights.linear(prefix + "ffn")])[0]  # (B, S, F)
    inner = writer.activation(name + "ffn.activation", config.hidden_act, inner)
    outer = writer.linears(inner, [weights.linear(prefix + "ffn_output")])[0]  # (B, S, H)
    return writer.layer_norm(
        writer.add(name + "ffn.residual", outer, x), weights.norm(prefix + "full_layer_layer_norm")
    )


def _head(writer: GraphWriter, weights: _Weights, task: Task, x: Tensor, padding: Tensor) -> Tensor:
    """What the task puts out, from the last hidden states (B, S, H)."""
    if task.head is None:  # mean over the tokens, unit length; the mean's divisor falls out of the normalisation
        return writer.l2_normalize("embedding.unit", writer.masked_sum("embedding.sum", x, padding))
    return writer.small_linear(_read(writer, weights, task, x), weights.linear(task.head))


def _read(writer: GraphWriter, weights: _Weights, task: Task, x: Tensor) -> Tensor:
    """What the task's head reads of hidden states (B, S, H): themselves, or the pooled first token (B, H)."""
    if not task.pooled:
        return x
    first = writer.first_token("pooler.first", x)
    return writer.activation("pooler.tanh", "tanh", writer.linears(first, [weights.linear("albert.pooler")])[0])


def _exit_heads(weights: _Weights, config: AlbertConfig, task: Task) -> Linear:
    """The head that answers after every iteration; with a head for each, all of them joined, one under the other."""
    assert task.head is not None, "a task without a head has no exits"
    if config.exit_heads == "shared":
        return weights.linear(task.head)
    each = [weights.linear(exit_head(i)) for i in range(config.num_hidden_layers - 1)] + [weights.linear(task.head)]
    return Linear("exits", np.concatenate([one.weight for one in each]), np.concatenate([one.bias for one in each]))


def _answer(
    writer: GraphWriter, weights: _Weights, task: Task, heads: Linear, labels: int, x: Tensor, iteration: Tensor
) -> Tensor:
    """The answer after an iteration. Where each has a head all are asked, being small, and its own is picked."""
    answers = writer.small_linear(_read(writer, weights, task, x), heads)
    parts = len(heads.bias) // labels
    return answers if parts == 1 else writer.math.pick("exit.own", answers, parts, iteration)
