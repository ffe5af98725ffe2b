"""The TFLite peer: ALBERT in TensorFlow, unrolled as people write it, through TFLite's own converter.

    python benchmarks/peers/tensorflow_side.py HF_FOLDER OUTPUT.tflite

transformers has no TensorFlow models any more, so the layer is written here from its weights, one variable per matrix,
and applied once per iteration. Dynamic-range int8 (`Optimize.DEFAULT`), the recipe of TensorFlow's documentation, which
needs no calibration data. Runs in an interpreter of its own: TensorFlow wants other protobuf and NumPy versions.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
from safetensors.numpy import load_file

_LAYER = "albert.encoder.albert_layer_groups.0.albert_layers.0."


class Albert(tf.Module):
    """AlbertForSequenceClassification with one group and gelu_new. Inputs (1, S) int32 ► logits (1, num_labels)."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.config = json.loads((folder / "config.json").read_text())
        tensors = load_file(folder / "model.safetensors")
        self.weights = {name: tf.Variable(np.asarray(value, np.float32), name=name) for name, value in tensors.items()}

    def linear(self, name: str, x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(x, self.weights[name + ".weight"], transpose_b=True) + self.weights[name + ".bias"]

    def norm(self, name: str, x: tf.Tensor) -> tf.Tensor:
        mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
        scaled = (x - mean) * tf.math.rsqrt(variance + self.config["layer_norm_eps"])
        return scaled * self.weights[name + ".weight"] + self.weights[name + ".bias"]

    def heads(self, x: tf.Tensor) -> tf.Tensor:
        """(1, S, H) ► (1, A, S, H/A)"""
        count = self.config["num_attention_heads"]
        return tf.transpose(tf.reshape(x, [1, -1, count, self.config["hidden_size"] // count]), [0, 2, 1, 3])

    def layer(self, x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        q, k, v = (self.heads(self.linear(f"{_LAYER}attention.{part}", x)) for part in ("query", "key", "value"))
        scores = tf.matmul(q, k, transpose_b=True) / np.sqrt(q.shape[-1]).astype(np.float32) + bias
        context = tf.transpose(tf.matmul(tf.nn.softmax(scores), v), [0, 2, 1, 3])
        context = tf.reshape(context, [1, -1, self.config["hidden_size"]])
        x = self.norm(_LAYER + "attention.LayerNorm", x + self.linear(_LAYER + "attention.dense", context))
        inner = tf.nn.gelu(self.linear(_LAYER + "ffn", x), approximate=True)
        return self.norm(_LAYER + "full_layer_layer_norm", x + self.linear(_LAYER + "ffn_output", inner))

    @tf.function(input_signature=[tf.TensorSpec([1, None], tf.int32, name) for name in
                                  ("input_ids", "attention_mask", "token_type_ids")])  # fmt: skip
    def __call__(self, input_ids: tf.Tensor, attention_mask: tf.Tensor, token_type_ids: tf.Tensor) -> tf.Tensor:
        table = "albert.embeddings.{}_embeddings.weight".format
        x = tf.gather(self.weights[table("word")], input_ids) + tf.gather(
            self.weights[table("token_type")], token_type_ids
        )
        x += self.weights[table("position")][: tf.shape(input_ids)[1]]
        x = self.linear("albert.encoder.embedding_hidden_mapping_in", self.norm("albert.embeddings.LayerNorm", x))
        bias = (1.0 - tf.cast(attention_mask, tf.float32))[:, None, None, :] * -1e4
        for _ in range(self.config["num_hidden_layers"]):
            x = self.layer(x, bias)
        return self.linear("classifier", tf.tanh(self.linear("albert.pooler", x[:, 0])))


def main(source: str, output: str) -> None:
    model = Albert(Path(source))
    converter = tf.lite.TFLiteConverter.from_concrete_functions([model.__call__.get_concrete_function()], model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    Path(output).write_bytes(converter.convert())


if __name__ == "__main__":
    main(*sys.argv[1:])
