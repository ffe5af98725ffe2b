"""ALBERT in NumPy, float32: what an exported file is compared with.

Written from the paper and apart from converters/, so that a mistake in the graph's description cannot hide in its own
reference. No PyTorch: the export path does without it. tests/test_reference.py holds it against transformers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edge_albert.config import AlbertConfig
from edge_albert.tasks import Task

Tensors = Mapping[str, np.ndarray]


class ReferenceModel:
    """The float model of one task. tensors: {canonical name: array}, as read_checkpoint gives them."""

    def __init__(self, config: AlbertConfig, tensors: Tensors, task: Task) -> None:
        self.config = config
        self.task = task
        self._tensors = {name: np.asarray(array, dtype=np.float32) for name, array in tensors.items()}

    def __call__(self, input_ids: np.ndarray, attention_mask: np.ndarray, token_type_ids: np.ndarray) -> np.ndarray:
        """Three (B, S) arrays of whole numbers ► the task's output, shaped as in edge_albert/tasks.py."""
        x = self._embed(input_ids, token_type_ids)
        bias = np.where(attention_mask[:, None, None, :] > 0, 0.0, -1e9).astype(np.float32)  # (B, 1, 1, S)
        for layer in range(self.config.num_hidden_layers):
            for inner in range(self.config.inner_group_num):
                prefix = f"albert.encoder.albert_layer_groups.{self.config.group_of(layer)}.albert_layers.{inner}."
                x = self._layer(prefix, x, bias)
        return self._head(x, attention_mask)

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
        return self._linear(self.task.head, x)

    def _heads(self, x: np.ndarray) -> np.ndarray:
        """(B, S, H) ► (B, A, S, H/A)"""
        return x.reshape(*x.shape[:2], self.config.num_attention_heads, self.config.head_size).swapaxes(1, 2)

    def _linear(self, name: str, x: np.ndarray) -> np.ndarray:
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
