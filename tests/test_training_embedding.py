"""Sentence embedding: the loss against its definition written out, and what a batch holds."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from tiny_models import tiny_config
from tiny_spiece import train_tiny_spiece

# ruff: noqa: E402 (imports that need torch stand below the skip)
torch = pytest.importorskip("torch")

from edge_albert.model import build_model
from edge_albert.tokenizer import load_tokenizer
from edge_albert.training.data.examples import Example
from edge_albert.training.finetuning.embedding import cosent, encode_pairs, sentence_embedding


def test_loss_is_its_definition() -> None:
    random = np.random.default_rng(0)
    for scale in (1.0, 5.0):
        cosines, scores = random.uniform(-1, 1, 12), scale * random.integers(0, 6, 12) / 5
        total = sum(
            math.exp(20 * (cosines[i] - cosines[j])) for i in range(12) for j in range(12) if scores[i] < scores[j]
        )
        found = cosent(torch.tensor(cosines), torch.tensor(scores))
        assert found.item() == pytest.approx(math.log(1 + total))
    cosines = torch.tensor([0.3, 0.9], requires_grad=True)
    loss = cosent(cosines, torch.tensor([2.0, 2.0]))  # nothing to put in order
    loss.backward()
    assert (loss.item(), cosines.grad.tolist()) == (0, [0, 0])


def test_cosines_of_a_batch(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(train_tiny_spiece(tmp_path).parent)
    texts = [("a map", "a map"), ("the blue door", "two letters from london without help!")]
    pairs = encode_pairs(tokenizer, [Example(a, b, "1.5", line) for line, (a, b) in enumerate(texts, 2)], 64)
    model = build_model(tiny_config("sentence-embedding"), "sentence-embedding").eval()
    inputs, labels = pairs.collate(np.array([1, 0]), torch.device("cpu"))
    found = sentence_embedding().forward(model, inputs)
    for cosine, (a, b) in zip(found, [texts[1], texts[0]], strict=True):
        one, other = (model(torch.tensor([tokenizer.encode(text).input_ids])) for text in (a, b))
        assert cosine.item() == pytest.approx(torch.nn.functional.cosine_similarity(one, other).item(), abs=1e-5)
    assert (labels.tolist(), pairs.lines.tolist()) == ([1.5, 1.5], [2, 3])
    assert pairs.lengths.tolist() == [len(tokenizer.encode(b).input_ids) for _, b in texts]
