"""n-gram masking of whole words (ALBERT section 4.1, after SpanBERT): which tokens the model has to guess.

A share of the text's tokens is chosen, 15 % in the paper, in runs of n whole words with n ≤ 3 and p(n) ∝ 1/n (6/11,
3/11, 2/11), that do not overlap. Of the chosen tokens 80 % become [MASK], 10 % another random piece, and 10 % stay as
they are, each token by itself (BERT section 3.1). The rules in detail are those of google-research/albert
`create_masked_lm_predictions`: words are visited in random order, a run that would overlap is given up, one too long
for what is left of the share is made shorter. A word begins at a piece with a "▁" in front, without a "##", or at a
mark of punctuation.

All of it is a function of the ids and the generator handed in, so an example seeded by (seed, epoch, number) is masked
alike in whichever process it is made, and after any restart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_albert.tokenizer import Tokenizer
from edge_albert.training.pretraining.recipe import MASK_SHARE

MASKED, RANDOM = 0.8, 0.1  # of the chosen tokens
LONGEST = 3  # words in a run


@dataclass(frozen=True)
class Vocabulary:
    """What masking has to know of a tokenizer: `starts_word` (V,) bool, and `ordinary`, the ids that are no special."""

    mask_id: int
    starts_word: NDArray[np.bool_]
    ordinary: NDArray[np.int64]

    @staticmethod
    def of(tokenizer: Tokenizer) -> Vocabulary:
        """Raises TokenizerError when the vocabulary has no mask token."""
        tokens = [tokenizer.id_to_token(i) for i in range(tokenizer.vocab_size)]
        wordpiece = tokenizer.rules["kind"] == "wordpiece"
        starts = [_starts_word(token, wordpiece) for token in tokens]
        ordinary = [i for i in range(len(tokens)) if i not in tokenizer.special_ids]
        return Vocabulary(tokenizer.mask_id, np.array(starts), np.array(ordinary))


def _starts_word(token: str, wordpiece: bool) -> bool:
    if wordpiece:
        return not token.startswith("##")
    return token.startswith("▁") or not any(char.isalnum() for char in token)


def mask_tokens(
    ids: NDArray[np.int64], vocabulary: Vocabulary, random: np.random.Generator, share: float = MASK_SHARE
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A text without special tokens (n,) ► the ids with some replaced (n,), and the positions to guess (k,), ascending.

    k is that share of n, rounded, at least 1; less only where the words left over are too long to fit. n must be at
    least 1.
    """
    runs = choose_runs(vocabulary.starts_word[ids], random, share)
    positions = np.array(sorted(p for start, stop in runs for p in range(start, stop)), dtype=np.int64)
    fate = random.random(len(positions))
    out = ids.copy()
    out[positions[fate < MASKED]] = vocabulary.mask_id
    swapped = positions[(fate >= MASKED) & (fate < MASKED + RANDOM)]
    out[swapped] = random.choice(vocabulary.ordinary, len(swapped))
    return out, positions


def choose_runs(
    starts_word: NDArray[np.bool_], random: np.random.Generator, share: float = MASK_SHARE
) -> list[tuple[int, int]]:
    """(start, stop) of runs of one to three whole words, about that share of all tokens; starts_word: (n,).

    A text of one word longer than its share gets a single token of it.
    """
    left = max(1, math.floor(share * len(starts_word) + 0.5))
    edges = [0, *(np.flatnonzero(starts_word[1:]) + 1).tolist(), len(starts_word)]  # the text may begin inside a word
    words = len(edges) - 1
    taken = bytearray(words)
    runs: list[tuple[int, int]] = []
    for word, chance in zip(random.permutation(words).tolist(), random.random(words).tolist(), strict=True):
        n = _length(min(LONGEST, words - word), chance)
        while n and edges[word + n] - edges[word] > left:
            n -= 1
        if n and not any(taken[word : word + n]):
            runs.append((edges[word], edges[word + n]))
            taken[word : word + n] = b"\1" * n
            left -= edges[word + n] - edges[word]
            if not left:
                break
    if not runs:
        token = int(random.integers(len(starts_word)))
        runs.append((token, token + 1))
    return runs


def _length(longest: int, chance: float) -> int:
    """n = 1 … `longest` with p(n) ∝ 1/n, from a number in [0, 1)."""
    chance *= sum(1 / n for n in range(1, longest + 1))
    n = 1
    while n < longest and chance >= 1 / n:
        chance -= 1 / n
        n += 1
    return n
