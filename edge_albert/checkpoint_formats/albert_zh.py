"""Brightmart's Chinese ALBERTs (albert_zh), said exactly as a Hugging Face ALBERT.

They factorise the word embedding alone: words (V, E) @ words_2 (E, H), then positions, token types and LayerNorm at
width H. In Hugging Face's ALBERT all of these have width E and the projection comes after them. So the two tables are
multiplied out, and the model is an ALBERT with E = H whose projection is the identity: the same function up to float
rounding, for the masked-word head too, which ties the product of both tables.

What it costs: the word table grows from (V + H) x E to V x H numbers, for albert_tiny_zh (V 21128, E 128, H 312) from
2.7 to 6.6 million, 2.4 times, and each token pays one more H x H product. A checkpoint with Google's names has neither
cost; for most sizes albert_zh offers both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from edge_albert.checkpoint_formats.tensors import WORD_EMBEDDINGS
from edge_albert.config import AlbertConfig
from edge_albert.errors import CheckpointError

SECOND_TABLE = "bert/embeddings/word_embeddings_2"
_PROJECTION = "albert.encoder.embedding_hidden_mapping_in"


def fold_word_table(
    config: AlbertConfig, tensors: Mapping[str, np.ndarray], source: str
) -> tuple[AlbertConfig, dict[str, np.ndarray]]:
    """The config and tensors with E = H, the word table multiplied out, and an identity projection.

    tensors: Hugging Face's names, and the second table (E, H) under its TensorFlow name. Raises CheckpointError when
    the two tables cannot be multiplied, and for a config with `"ln_type": "preln"`, whose layers normalise their input.
    """
    if config.extra.get("ln_type", "postln") != "postln":
        raise CheckpointError(
            f"{source}: its config says ln_type {config.extra['ln_type']!r}: layers that normalise their input are no "
            "ALBERT; use the checkpoint of the same size with Google's names"
        )
    kept = dict(tensors)
    second = kept.pop(SECOND_TABLE)
    words = kept.get(WORD_EMBEDDINGS)
    if words is None or words.ndim != 2 or second.shape != (words.shape[1], config.hidden_size):
        found = None if words is None else words.shape
        raise CheckpointError(
            f"{source}: word_embeddings {found} and word_embeddings_2 {second.shape} do not multiply to "
            f"(V, {config.hidden_size}): is its config the one that belongs to these weights?"
        )
    kept[WORD_EMBEDDINGS] = (words.astype(np.float64) @ second.astype(np.float64)).astype(words.dtype)  # (V, H)
    kept[f"{_PROJECTION}.weight"] = np.eye(config.hidden_size, dtype=words.dtype)
    kept[f"{_PROJECTION}.bias"] = np.zeros(config.hidden_size, words.dtype)
    return replace(config, embedding_size=config.hidden_size), kept
