"""A smaller embedding beside what NumPy says is the best of its rank, and the model that runs on it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

# ruff: noqa: E402 (imports that need torch stand below the skip)
torch = pytest.importorskip("torch")

from tiny_models import TINY, tiny_tensors

from edge_albert.checkpoint import check_tensors
from edge_albert.config import AlbertConfig, count_parameters
from edge_albert.errors import ConfigError
from edge_albert.model import AlbertModel, build_model
from edge_albert.training.distillation.shrink import shrink_embedding
from edge_albert.training.weights import load_arrays

CONFIG = replace(TINY, embedding_size=32)
TABLES = [f"albert.embeddings.{name}_embeddings.weight" for name in ("word", "position", "token_type")]


def tensors_of_rank(rank: int, noise: float = 0.0) -> dict[str, np.ndarray]:
    """Tiny weights whose three tables lie in one subspace of that many dimensions, but for some noise."""
    random = np.random.default_rng(1)
    subspace = random.standard_normal((rank, CONFIG.embedding_size))
    subspace -= subspace.mean(axis=1, keepdims=True)  # the LayerNorm would remove it
    out = tiny_tensors(CONFIG, None)
    for name in TABLES:
        table = random.standard_normal((len(out[name]), rank)) @ subspace
        out[name] = (table + noise * random.standard_normal(table.shape)).astype(np.float32)
    out[TABLES[0]][CONFIG.pad_token_id] = 0
    return out


def projected(config: AlbertConfig, tensors: dict[str, np.ndarray], ids: np.ndarray) -> np.ndarray:
    """What the layers get, (N, H): words at position 0, of type 0, as the model computes it."""
    model = build_model(config)
    assert isinstance(model, AlbertModel)
    load_arrays(model, tensors)
    model.eval()
    with torch.no_grad():
        encoded = model.encode(torch.from_numpy(ids)[:, None], output_hidden_states=True)
    return encoded.hidden_states[0][:, 0].numpy().astype(np.float64)


WORDS = np.arange(1, CONFIG.vocab_size)  # 0 is padding


def test_nothing_is_lost_where_the_tables_have_the_rank() -> None:
    """A size of e holds e - 1 dimensions beside the mean."""
    tensors = tensors_of_rank(11)
    small, config = shrink_embedding(tensors, CONFIG, 12)
    before, after = projected(CONFIG, tensors, WORDS), projected(config, small, WORDS)
    assert np.abs(after - before).max() < 1e-4 * np.abs(before).max()


@pytest.mark.parametrize("size", [8, 16, 24])
def test_close_to_the_best_of_its_rank(size: int) -> None:
    """Eckart and Young: no table of words of rank e - 1, with a bias, comes nearer than the SVD cut there does."""
    tensors = tensors_of_rank(6, noise=0.7)
    for name in TABLES[1:]:
        tensors[name] *= 0.1  # mostly words, so that the bound, which knows words alone, is near what can be had
    small, config = shrink_embedding(tensors, CONFIG, size)
    before, after = projected(CONFIG, tensors, WORDS), projected(config, small, WORDS)
    error = np.linalg.norm(after - before)
    best = np.sqrt((np.linalg.svd(before - before.mean(axis=0), compute_uv=False)[size - 1 :] ** 2).sum())
    plain = np.linalg.norm(before - before.mean(axis=0))
    assert best <= error < 1.5 * best
    assert error < 0.6 * plain


def test_words_that_count_are_kept_better() -> None:
    tensors = tensors_of_rank(31)
    for name in TABLES[1:]:
        tensors[name] *= 0.1
    counts = np.full(CONFIG.vocab_size, 1e-3)
    counts[20:30] = 1.0
    frequent = np.arange(20, 30)
    errors = []
    for weights in (None, counts):
        small, config = shrink_embedding(tensors, CONFIG, 12, weights)
        errors.append(np.linalg.norm(projected(config, small, frequent) - projected(CONFIG, tensors, frequent)))
    assert errors[1] < 0.7 * errors[0]


def test_the_result_is_a_checkpoint() -> None:
    tensors = tiny_tensors(CONFIG, "text-classification")
    tensors[TABLES[0]][CONFIG.pad_token_id] = 0
    small, config = shrink_embedding(tensors, CONFIG, 16)
    check_tensors(config, small, "text-classification", "test")
    assert all(tensor.dtype == np.float32 for tensor in small.values())
    assert not small[TABLES[0]][CONFIG.pad_token_id].any()
    for name in ("classifier.weight", "albert.pooler.weight"):
        assert small[name] is tensors[name]
    saved = count_parameters(CONFIG).total - count_parameters(config).total
    rows = CONFIG.vocab_size + CONFIG.max_position_embeddings + CONFIG.type_vocab_size + 2 + CONFIG.hidden_size
    assert saved == 16 * rows


def test_the_head_that_reads_the_table_goes() -> None:
    tensors = {**tiny_tensors(CONFIG, None), "predictions.bias": np.zeros(CONFIG.vocab_size, dtype=np.float32)}
    assert not [name for name in shrink_embedding(tensors, CONFIG, 16)[0] if name.startswith("predictions.")]


@pytest.mark.parametrize("size", [0, 1, 32, 64])
def test_sizes_that_cannot_be(size: int) -> None:
    with pytest.raises(ConfigError, match=f"embedding size {size}: a checkpoint of size 32 can be shrunk to 2 … 31"):
        shrink_embedding(tensors_of_rank(4), CONFIG, size)
