"""Texts ► token ids ► batches of about equal length, padded no further than their longest.

Padding is arithmetic thrown away: SST-2's sentences have 14 tokens on average and 66 at most. So an epoch is shuffled,
cut into pools of many batches, and each pool sorted by length before it is cut into batches, which are shuffled again.
The order of epoch k depends on the seed and k alone, so that any epoch can be had again without running those before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from edge_albert.tokenizer import Tokenizer
from edge_albert.training.data.examples import Example

Inputs = dict[str, Tensor]

POOL = 50  # batches sorted together: enough to leave a few per cent of padding, few enough to keep batches random


class EncodedRows(Protocol):
    """What the loop trains on: N rows of a task, tokenised, that know how to become a batch and what they stand for.

    A row is what the model answers at once: a text, a question with its options, one window of a long text.
    """

    def __len__(self) -> int: ...

    @property
    def lines(self) -> np.ndarray:
        """(N,) where each row stands in its source."""

    @property
    def lengths(self) -> np.ndarray:
        """(N,) tokens by which rows are put into batches."""

    @property
    def labels(self) -> Any:
        """What is right, as the metrics want it; one entry per example of the data."""

    def collate(self, rows: np.ndarray, device: torch.device) -> tuple[Inputs, Tensor]:
        """The model's inputs, and what the loss compares its outputs with."""

    def assemble(self, outputs: Sequence[np.ndarray]) -> Any:
        """Every row's output, (…) each, as the metrics want it: one entry per example, in the order of `labels`."""


def evenly(count: int, most: int) -> np.ndarray:
    """The numbers of at most `most` of `count` things, evenly over all of them."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).astype(int))


class TokenRows:
    """N rows of token ids, (S,) each."""

    input_ids: list[np.ndarray]

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def lengths(self) -> np.ndarray:
        return np.array([len(ids) for ids in self.input_ids])


@dataclass(frozen=True)
class EncodedTexts(TokenRows):
    """N tokenised rows: ids and token types, int32 arrays of their own length; labels and lines in their file, (N,)."""

    input_ids: list[np.ndarray]
    token_type_ids: list[np.ndarray]
    labels: np.ndarray
    lines: np.ndarray
    pad_id: int

    def collate(self, rows: np.ndarray, device: torch.device) -> tuple[Inputs, Tensor]:
        return collate(self, rows, device)

    def assemble(self, outputs: Sequence[np.ndarray]) -> np.ndarray:
        return np.array(outputs)


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


def collate(texts: EncodedTexts, rows: np.ndarray, device: torch.device) -> tuple[Inputs, Tensor]:
    """The rows as a model's inputs, each (B, S) int64 with S the longest of them, and their labels (B,)."""
    inputs = padded(
        [texts.input_ids[row] for row in rows], [texts.token_type_ids[row] for row in rows], texts.pad_id, device
    )
    return inputs, on_device(texts.labels[rows], device)


def padded(
    input_ids: Sequence[np.ndarray], token_type_ids: Sequence[np.ndarray], pad_id: int, device: torch.device
) -> Inputs:
    """B sequences of ids and their token types as input_ids, attention_mask and token_type_ids, (B, S) int64 each."""
    return {
        "input_ids": on_device(pad_arrays(input_ids, pad_id), device),
        "attention_mask": on_device(pad_arrays([np.ones_like(ids) for ids in input_ids], 0), device),
        "token_type_ids": on_device(pad_arrays(token_type_ids, 0), device),
    }


def pad_arrays(arrays: Sequence[np.ndarray], filler: int) -> np.ndarray:
    """B arrays of whole numbers as one (B, S) int64, S the longest, `filler` behind each."""
    out = np.full((len(arrays), max(map(len, arrays))), filler, dtype=np.int64)
    for row, array in zip(out, arrays, strict=True):
        row[: len(array)] = array
    return out


def on_device(array: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device, non_blocking=True)
