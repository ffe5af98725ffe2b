"""Sentence embedding: pairs of sentences with a score; the cosine of their vectors should order the pairs as it does.

The loss is CoSENT (Su 2022, https://kexue.fm/archives/8847; `CoSENTLoss` in sentence-transformers), which compares the
pairs of a batch with each other. It needs the order of the scores alone, so their scale (0 to 5, 0 to 1) is of no
importance, and it is what Spearman's correlation measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from edge_albert.model import AlbertForTask
from edge_albert.tokenizer import Tokenizer
from edge_albert.training.data.batches import EncodedTexts, Inputs, encode_examples, on_device, padded
from edge_albert.training.data.examples import Example
from edge_albert.training.finetuning.objectives import Objective
from edge_albert.training.metrics import glue

SCALE = 20.0  # of the cosines, as in CoSENT: the inverse of its temperature


@dataclass(frozen=True)
class EncodedPairs:
    """N pairs of texts, each tokenised by itself, as the model will see them. labels: (N,) float32 scores."""

    first: EncodedTexts
    second: EncodedTexts

    def __len__(self) -> int:
        return len(self.first)

    @property
    def labels(self) -> np.ndarray:
        return self.first.labels

    @property
    def lines(self) -> np.ndarray:
        return self.first.lines

    @property
    def lengths(self) -> np.ndarray:
        return np.maximum(self.first.lengths, self.second.lengths)

    def collate(self, rows: np.ndarray, device: torch.device) -> tuple[Inputs, Tensor]:
        """The first texts, then the second, (2B, S); the scores (B,)."""
        ids, types = (
            [getattr(texts, name)[row] for texts in (self.first, self.second) for row in rows]
            for name in ("input_ids", "token_type_ids")
        )
        return padded(ids, types, self.first.pad_id, device), on_device(self.labels[rows], device)

    def assemble(self, outputs: Sequence[np.ndarray]) -> np.ndarray:
        return np.array(outputs)


def encode_pairs(tokenizer: Tokenizer, examples: Sequence[Example], max_length: int) -> EncodedPairs:
    """Tokenise both texts of every example, each cut to `max_length` tokens."""
    scores = np.array([float(example.label) for example in examples], dtype=np.float32)
    sides = [
        [Example(text or "", None, example.label, example.line) for example, text in zip(examples, texts, strict=True)]
        for texts in ([e.text for e in examples], [e.pair for e in examples])
    ]
    return EncodedPairs(*(encode_examples(tokenizer, side, scores, max_length) for side in sides))


def sentence_embedding(num_labels: int = 0) -> Objective:
    """The cosine of two texts' vectors: (B,), labels (B,) float32, of any scale."""
    return Objective(
        loss=cosent,
        predict=lambda cosines: cosines,
        metrics={"spearman": glue.spearman, "pearson": glue.pearson},
        forward=_cosines,
    )


def _cosines(model: AlbertForTask, inputs: Inputs) -> Tensor:
    first, second = model(**inputs).float().chunk(2)  # unit vectors, (B, H) each
    return (first * second).sum(dim=-1)  # (B,)


def cosent(cosines: Tensor, scores: Tensor) -> Tensor:
    """log(1 + Σ exp(SCALE·(cosine i - cosine j))) over all i, j of the batch with score i below score j."""
    excess = SCALE * (cosines[:, None] - cosines[None, :])  # (B, B)
    wrong_way = excess[scores[:, None] < scores[None, :]]
    return torch.cat([wrong_way, wrong_way.new_zeros(1)]).logsumexp(dim=0)
