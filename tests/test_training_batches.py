"""Batches: every row once, the same order for the same seed, little padding; and what the model is handed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_spiece import train_tiny_spiece

# ruff: noqa: E402 (imports that need torch stand below the skip)
torch = pytest.importorskip("torch")

from edge_albert.tokenizer import load_tokenizer
from edge_albert.training.data.batches import EncodedTexts, collate, encode_examples, epoch_batches, sorted_batches
from edge_albert.training.data.examples import Example

LENGTHS = np.random.default_rng(0).integers(3, 60, 1003)


@pytest.mark.parametrize("batch_size", [1, 7, 32, 2000])
def test_every_row_once(batch_size: int) -> None:
    for batches in (epoch_batches(LENGTHS, batch_size, seed=3, epoch=1), list(sorted_batches(LENGTHS, batch_size))):
        assert sorted(np.concatenate(batches)) == list(range(len(LENGTHS)))
        assert max(len(rows) for rows in batches) <= batch_size
        assert len(batches) == -(-len(LENGTHS) // batch_size)


def test_order_depends_on_seed_and_epoch_alone() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return [int(row) for rows in epoch_batches(LENGTHS, 8, seed, epoch) for row in rows]

    assert order(1, 2) == order(1, 2)
    assert len({tuple(order(seed, epoch)) for seed in (0, 1) for epoch in (1, 2, 3)}) == 6
    assert order(1, 2) != [row for rows in sorted_batches(LENGTHS, 8) for row in rows]


def test_little_padding() -> None:
    padded = sum(int(LENGTHS[rows].max()) * len(rows) for rows in epoch_batches(LENGTHS, 16, 0, 1))
    assert LENGTHS.sum() / padded > 0.9  # 0.53 unsorted


def test_collate() -> None:
    ids = [np.array([2, 7, 3], dtype=np.int32), np.array([2, 8, 3, 9, 3], dtype=np.int32), np.array([2, 3])]
    types = [np.zeros(3), np.array([0, 0, 0, 1, 1]), np.zeros(2)]
    texts = EncodedTexts(ids, types, np.array([0.5, 1.5, 2.5], dtype=np.float32), np.array([2, 3, 4]), pad_id=6)
    inputs, labels = collate(texts, np.array([0, 1]), torch.device("cpu"))
    assert inputs["input_ids"].tolist() == [[2, 7, 3, 6, 6], [2, 8, 3, 9, 3]]
    assert inputs["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1] * 5]
    assert inputs["token_type_ids"].tolist() == [[0] * 5, [0, 0, 0, 1, 1]]
    assert {tensor.dtype for tensor in inputs.values()} == {torch.int64}
    assert (labels.tolist(), labels.dtype) == ([0.5, 1.5], torch.float32)


def test_encoding_is_the_tokenizers(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(train_tiny_spiece(tmp_path).parent)
    examples = [Example("the blue door", None, "0", 2), Example("a map", "two letters from london", "1", 5)]
    texts = encode_examples(tokenizer, examples, np.array([0, 1]), max_length=8)
    for i, example in enumerate(examples):
        expected = tokenizer.encode(example.text, example.pair, max_length=8)
        assert texts.input_ids[i].tolist() == list(expected.input_ids)
        assert texts.token_type_ids[i].tolist() == list(expected.token_type_ids)
    assert (texts.lengths.max(), texts.lines.tolist(), texts.pad_id) == (8, [2, 5], tokenizer.pad_id)
