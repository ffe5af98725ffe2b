"""Texts ► token ids ► batches of about equal length, padded no further than their longest.

Padding is arithmetic thrown away: SST-2's sentences have 14 tokens on average and 66 at most. So an epoch is shuffled,
cut into pools of many batches, and each pool sorted by length before it is cut into batches, which are shuffled again.
The order of epoch k depends on the seed and k alone, so that any epoch can be had again without running those before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from edge_albert.tokenizer import Tokenizer
from edge_albert.training.data import Example

POOL = 50  # batches sorted together: enough to leave a few per cent of padding, few enough to keep batches random


@dataclass(frozen=True)
class EncodedTexts:
    """N tokenised rows: ids and token types, int32 arrays of their own length; labels and lines in their file, (N,)."""

    input_ids: list[np.ndarray]
    token_type_ids: list[np.ndarray]
    labels: np.ndarray
    lines: np.ndarray
    pad_id: int

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def lengths(self) -> np.ndarray:
        return np.array([len(ids) for ids in self.input_ids])


def encode_examples(
    tokenizer: Tokenizer, examples: Iterable[Example], labels: np.ndarray, max_length: int
) -> EncodedTexts:
    """Tokenise every example, cut to `max_length` tokens. labels: class numbers or real values, one per example."""
    rows = list(examples)
    encodings = [tokenizer.encode(row.text, row.pair, max_length=max_length) for row in rows]
    return EncodedTexts(
        input_ids=[np.array(e.input_ids, dtype=np.int32) for e in encodings],
        token_type_ids=[np.array(e.token_type_ids, dtype=np.int32) for e in encodings],
        labels=labels,
        lines=np.array([row.line for row in rows]),
        pad_id=tokenizer.pad_id,
    )


def epoch_batches(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Row numbers of every batch of one epoch, in the order of training: random, of about equal length each."""
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(lengths))
    batches: list[np.ndarray] = []
    for start in range(0, len(order), POOL * batch_size):
        pool = order[start : start + POOL * batch_size]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        batches += [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
    return [batches[i] for i in random.permutation(len(batches))]


def sorted_batches(lengths: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Row numbers for evaluation: everything once, the shortest first."""
    order = np.argsort(lengths, kind="stable")
    return (order[i : i + batch_size] for i in range(0, len(order), batch_size))


def collate(texts: EncodedTexts, rows: np.ndarray, device: torch.device) -> tuple[dict[str, Tensor], Tensor]:
    """The rows as a model's inputs, each (B, S) int64 with S the longest of them, and their labels (B,)."""
    longest = max(len(texts.input_ids[row]) for row in rows)
    input_ids = np.full((len(rows), longest), texts.pad_id, dtype=np.int64)  # (B, S)
    token_type_ids = np.zeros_like(input_ids)
    attention_mask = np.zeros_like(input_ids)
    for i, row in enumerate(rows):
        length = len(texts.input_ids[row])
        input_ids[i, :length] = texts.input_ids[row]
        token_type_ids[i, :length] = texts.token_type_ids[row]
        attention_mask[i, :length] = 1
    arrays = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
    inputs = {name: torch.from_numpy(array).to(device, non_blocking=True) for name, array in arrays.items()}
    return inputs, torch.from_numpy(texts.labels[rows]).to(device, non_blocking=True)
