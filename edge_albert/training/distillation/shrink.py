"""A checkpoint with a smaller embedding size: one pre-training serves students of several sizes.

ALBERT's embedding is a table of size E, a LayerNorm, and a projection E ► H:

    h = W (γ ∘ C u / σ(u) + β) + b,    u = word + position + type,    C = I - 11ᵀ/E,    σ(u) = ‖C u‖ / √E

Without the LayerNorm, cutting the product of table and projection by SVD would be the best there is (Eckart and Young
1936). With it, the small model divides by the norm of what is left of u. So the three tables go through ONE linear map
A = Q Bᵀ C:

- C loses nothing, because the LayerNorm removes the mean anyhow;
- B (E, e-1) spans the subspace from which h can be told best: the SVD above, of x = C u / σ(u), which is what the
  projection really reads, times the projection (reduced-rank regression). Its columns are orthonormal, so ‖A u‖ is the
  length of C u within it, and the small LayerNorm divides by nearly the same number;
- Q (e, e-1) is an isometry onto the vectors of size e with mean 0, which the small LayerNorm leaves as they are.

Then γ' = 1, β' = 0, and projection and bias are fitted anew to the old h by least squares, which also makes up for the
length lost. Where the tables have rank e-1, the small model is the old one to rounding. Everything behind the
projection stays as it is. The masked-word head goes: its output layer is the table that has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from edge_albert.config import AlbertConfig
from edge_albert.errors import ConfigError

_EMBEDDINGS = "albert.embeddings."
_TABLES = tuple(f"{_EMBEDDINGS}{name}_embeddings.weight" for name in ("word", "position", "token_type"))
_NORM = f"{_EMBEDDINGS}LayerNorm."
_PROJECTION = "albert.encoder.embedding_hidden_mapping_in."
_LENGTH = 128  # positions that are looked at: what sentences have
_DRAWS = 4  # positions drawn for every word

Tensors = Mapping[str, np.ndarray]


def shrink_embedding(
    tensors: Tensors, config: AlbertConfig, embedding_size: int, counts: np.ndarray | None = None
) -> tuple[dict[str, np.ndarray], AlbertConfig]:
    """A checkpoint's tensors (canonical names) and config ► those with the smaller `embedding_size`, float32.

    counts: how often each word occurs in the texts the model is for, (V,): what is kept is kept for these; by default
    all words count alike. Raises ConfigError unless 2 ≤ embedding_size < the config's.
    """
    if not 2 <= embedding_size < config.embedding_size:
        raise ConfigError(
            f"embedding size {embedding_size}: a checkpoint of size {config.embedding_size} can be shrunk to "
            f"2 … {config.embedding_size - 1}"
        )
    weights = np.ones(config.vocab_size) if counts is None else np.asarray(counts, dtype=np.float64)
    summed, weights = _sums(tensors, weights)  # (n, E), (n,)
    normalised = _normalise(summed)  # (n, E)
    reader = (_float64(tensors, _PROJECTION + "weight") * _float64(tensors, _NORM + "weight")).T  # (E, H)
    mapping = _mapping(normalised, reader, weights, embedding_size)  # (e, E)

    old = normalised * _float64(tensors, _NORM + "weight") + _float64(tensors, _NORM + "bias")
    hidden = old @ _float64(tensors, _PROJECTION + "weight").T + _float64(tensors, _PROJECTION + "bias")  # (n, H)
    projection, bias = _fit(_normalise(summed @ mapping.T), hidden, weights)

    out = {name: tensor for name, tensor in tensors.items() if not name.startswith("predictions.")}
    for name in _TABLES:
        out[name] = (_float64(tensors, name) @ mapping.T).astype(np.float32)
    out[_NORM + "weight"] = np.ones(embedding_size, dtype=np.float32)
    out[_NORM + "bias"] = np.zeros(embedding_size, dtype=np.float32)
    out[_PROJECTION + "weight"] = projection.astype(np.float32)
    out[_PROJECTION + "bias"] = bias.astype(np.float32)
    return out, replace(config, embedding_size=embedding_size)


def _sums(tensors: Tensors, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """word + position + type for every word that counts, at a few random positions: (n, E), and their weights (n,)."""
    word, position, kind = (_float64(tensors, name) for name in _TABLES)
    ids = np.repeat(np.flatnonzero((counts > 0) & (np.abs(word).sum(axis=1) > 0)), _DRAWS)  # padding is all zero
    random = np.random.default_rng(0)
    places = random.integers(0, min(_LENGTH, len(position)), len(ids))
    kinds = random.integers(0, len(kind), len(ids))
    return word[ids] + position[places] + kind[kinds], counts[ids] / counts[ids].sum()


def _normalise(rows: np.ndarray) -> np.ndarray:
    """LayerNorm without its weight and bias. Its epsilon, 1e-12, is far below any variance here."""
    centred = rows - rows.mean(axis=1, keepdims=True)
    return centred / centred.std(axis=1, keepdims=True)


def _mapping(normalised: np.ndarray, reader: np.ndarray, weights: np.ndarray, size: int) -> np.ndarray:
    """A = Q Bᵀ C, (e, E). reader: what the rows are multiplied by, (E, H)."""
    moments = (normalised * weights[:, None]).T @ normalised  # (E, E)
    variances, axes = np.linalg.eigh(moments)
    real = variances > variances[-1] * 1e-10  # the mean direction has none, nor what the tables do not use
    root = np.sqrt(variances[real])
    axes = axes[:, real]  # (E, r), each orthogonal to the mean direction
    seen = np.linalg.svd((axes * root).T @ reader, full_matrices=False)[0][:, : size - 1]  # (r, k), k ≤ e-1
    basis = np.linalg.qr((axes / root) @ seen)[0]  # (E, k): B
    flat = np.linalg.qr(np.column_stack([np.ones(size), np.eye(size)[:, : size - 1]]))[0][:, 1 : basis.shape[1] + 1]
    return flat @ basis.T


def _fit(inputs: np.ndarray, hidden: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least squares hidden ≈ inputs Wᵀ + b, rows weighted: W (H, e), b (H,). Of all solutions the smallest."""
    scale = np.sqrt(weights)[:, None]
    design = np.column_stack([inputs, np.ones(len(inputs))])
    solution = np.linalg.lstsq(design * scale, hidden * scale, rcond=None)[0]  # (e+1, H)
    return solution[:-1].T, solution[-1]


def _float64(tensors: Tensors, name: str) -> np.ndarray:
    return np.asarray(tensors[name], dtype=np.float64)
