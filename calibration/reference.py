"""ALBERT in NumPy, float32: what an exported file is compared with.

Written from the paper and apart from converters/, so that a mistake in the graph's description cannot hide in its own
reference. No PyTorch: the export path does without it. tests/test_reference.py holds it against transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from edge_albert.config import AlbertConfig
from edge_albert.sites import input_site, output_site, short_name
from edge_albert.tasks import Task

Tensors = Mapping[str, np.ndarray]
Observe = Callable[[str, int, np.ndarray], None]


class ReferenceModel:
    """The float model of one task. tensors: {canonical name: array}, as read_checkpoint gives them.

    observe: called with (site, iteration, rows) for every activation site of edge_albert/sites.py as it is computed.
    iteration: 0 to num_hidden_layers - 1, -1 outside the loop. rows: (tokens, width) float32, those of padding left
    out; (B, width) at the pooler. To be read, or copied, at once.
    """

    def __init__(self, config: AlbertConfig, tensors: Tensors, task: Task, *, observe: Observe | None = None) -> None:
        self.config = config
        self.task = task
        self._observe = observe
        self._iteration = -1
        self._real = np.zeros(0, bool)  # (B, S): which tokens are no padding, while observing
        self._tensors = {name: np.asarray(array, dtype=np.float32) for name, array in tensors.items()}

    def __call__(self, input_ids: np.ndarray, attention_mask: np.ndarray, token_type_ids: np.ndarray) -> np.ndarray:
        """Three (B, S) arrays of whole numbers ► the task's output, shaped as in edge_albert/tasks.py."""
        x = self.embed(input_ids, attention_mask, token_type_ids)
        for iteration in range(self.config.num_hidden_layers):
            x = self.iterate(x, attention_mask, iteration)
        return self.head(x, attention_mask)

    def embed(self, input_ids: np.ndarray, attention_mask: np.ndarray, token_type_ids: np.ndarray) -> np.ndarray:
        """What the first iteration gets, (B, S, H)."""
        self._iteration, self._real = -1, attention_mask > 0
        return self._embed(input_ids, token_type_ids)

    def iterate(self, x: np.ndarray, attention_mask: np.ndarray, iteration: int) -> np.ndarray:
        """Iteration number `iteration`, from 0: (B, S, H) ► (B, S, H)."""
        self._iteration, self._real = iteration, attention_mask > 0
        bias = np.where(attention_mask[:, None, None, :] > 0, 0.0, -1e9).astype(np.float32)  # (B, 1, 1, S)
        for inner in range(self.config.inner_group_num):
            prefix = f"albert.encoder.albert_layer_groups.{self.config.group_of(iteration)}.albert_layers.{inner}."
            x = self._layer(prefix, x, bias)
        return x

    def head(self, x: np.ndarray, attention_mask: np.ndarray) -> np.ndarray:
        """The task's output for what the last iteration has left, (B, S, H)."""
        self._iteration, self._real = -1, attention_mask > 0
        return self._head(x, attention_mask)

    def with_weight(self, name: str, weight: np.ndarray) -> ReferenceModel:
        """The same model, without an observer, but for the tensor of this canonical name."""
        return ReferenceModel(self.config, {**self._tensors, name: weight}, self.task)

    def _embed(self, ids: np.ndarray, types: np.ndarray) -> np.ndarray:
        table = "albert.embeddings.{}_embeddings.weight".format
        x = self._tensors[table("word")][ids] + self._tensors[table("token_type")][types]
        x = x + self._tensors[table("position")][: ids.shape[1]]
        return self._linear("albert.encoder.embedding_hidden_mapping_in", self._norm("albert.embeddings.LayerNorm", x))

    def _layer(self, prefix: str, x: np.ndarray, bias: np.ndarray) -> np.ndarray:
        q, k, v = (self._heads(self._linear(f"{prefix}attention.{part}", x)) for part in ("query", "key", "value"))
        scores = q @ k.swapaxes(-1, -2) / np.float32(np.sqrt(self.config.head_size)) + bias  # (B, A, S, S)
        context = (_softmax(scores) @ v).swapaxes(1, 2).reshape(x.shape)  # (B, S, H)
        x = self._norm(prefix + "attention.LayerNorm", x + self._linear(prefix + "attention.dense", context))
        inner = _ACTIVATIONS[self.config.hidden_act](self._linear(prefix + "ffn", x))  # (B, S, F)
        return self._norm(prefix + "full_layer_layer_norm", x + self._linear(prefix + "ffn_output", inner))

    def _head(self, x: np.ndarray, mask: np.ndarray) -> np.ndarray:
        if self.task.head is None:
            mean = (x * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
            return (mean / np.linalg.norm(mean, axis=-1, keepdims=True)).astype(np.float32)
        if self.task.pooled:
            x = np.tanh(self._linear("albert.pooler", x[:, 0]))
        return self._product(self.task.head, x)

    def _heads(self, x: np.ndarray) -> np.ndarray:
        """(B, S, H) ► (B, A, S, H/A)"""
        return x.reshape(*x.shape[:2], self.config.num_attention_heads, self.config.head_size).swapaxes(1, 2)

    def _linear(self, name: str, x: np.ndarray) -> np.ndarray:
        """A product whose weight an export may quantise: the observer sees both sides of it."""
        y = self._product(name, x)
        if self._observe is not None:
            linear = short_name(name)
            if not linear.endswith((".attention.key", ".attention.value")):  # they read what the query has read
                self._observe(input_site(linear), self._iteration, x[self._real] if x.ndim == 3 else x)
            self._observe(output_site(linear), self._iteration, y[self._real] if y.ndim == 3 else y)
        return y

    def _product(self, name: str, x: np.ndarray) -> np.ndarray:
        flat = x.reshape(-1, x.shape[-1])  # one large product, not one per example
        product = flat @ self._tensors[name + ".weight"].T + self._tensors[name + ".bias"]
        return product.reshape(*x.shape[:-1], -1)

    def _norm(self, name: str, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = (centred * centred).mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt(variance + np.float32(self.config.layer_norm_eps))
        return scaled * self._tensors[name + ".weight"] + self._tensors[name + ".bias"]


def _softmax(x: np.ndarray) -> np.ndarray:
    exp = np.exp(x - x.max(axis=-1, keepdims=True))
    return exp / exp.sum(axis=-1, keepdims=True)


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)))


def _gelu_erf(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + _erf(x * np.float32(np.sqrt(0.5))))


def _erf(x: np.ndarray) -> np.ndarray:
    """erf by Abramowitz and Stegun 7.1.26, absolute error below 1.5e-7; NumPy has none of its own."""
    t = 1 / (1 + np.float32(0.3275911) * np.abs(x))
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.sign(x) * (1 - series * np.exp(-x * x))


_ACTIVATIONS = {"gelu": _gelu_erf, "gelu_new": _gelu_tanh, "relu": lambda x: np.maximum(x, 0)}
