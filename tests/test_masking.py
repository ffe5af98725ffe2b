"""n-gram masking: the paper's shares, whole words, and nothing but the generator behind it."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from edge_albert.tokenizer import load_tokenizer
from edge_albert.training.pretraining.masking import Vocabulary, _length, choose_runs, mask_tokens


def vocabulary(starts: float = 0.6, size: int = 1000) -> Vocabulary:
    """Of made-up pieces: 0 … 4 special, 4 the mask, a share `starts` of the others beginning a word."""
    begins = np.random.default_rng(0).random(size) < starts
    return Vocabulary(4, begins, np.arange(5, size))


def texts(count: int, length: int) -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [random.integers(5, 1000, length) for _ in range(count)]


@pytest.mark.parametrize(("longest", "shares"), [(3, (6 / 11, 3 / 11, 2 / 11)), (2, (2 / 3, 1 / 3)), (1, (1.0,))])
def test_lengths_are_drawn_in_proportion_to_1_over_n(longest: int, shares: tuple[float, ...]) -> None:
    """ALBERT section 4.1, with at most three words; renormalised where the text ends."""
    drawn = Counter(_length(longest, chance) for chance in (np.arange(66_000) + 0.5) / 66_000)
    assert [drawn[n] / 66_000 for n in range(1, longest + 1)] == pytest.approx(shares, abs=1e-4)


def test_runs_come_in_these_shares() -> None:
    """Every token a word, so that a run's length is its words. Overlaps cost long runs a little more often."""
    counts: Counter[int] = Counter()
    for seed in range(200):
        runs = choose_runs(np.ones(500, dtype=bool), np.random.default_rng(seed))
        counts.update(stop - start for start, stop in runs)
    total = sum(counts.values())
    assert set(counts) == {1, 2, 3}
    assert [counts[n] / total for n in (1, 2, 3)] == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.04)


@pytest.mark.parametrize(("share", "most"), [(0.15, 19), (0.4, 50)])
def test_share_in_whole_words_without_overlap(share: float, most: int) -> None:
    words = vocabulary()
    for seed, ids in enumerate(texts(200, 125)):
        starts = words.starts_word[ids]
        runs = sorted(choose_runs(starts, np.random.default_rng(seed), share))
        chosen = sum(stop - start for start, stop in runs)
        assert most - 3 <= chosen <= most  # round(share · 125), less where only longer words are left
        assert all(before[1] <= after[0] for before, after in pairwise(runs))
        for start, stop in runs:
            assert start == 0 or starts[start]
            assert stop == len(ids) or starts[stop]
            assert 1 <= 1 + starts[start + 1 : stop].sum() <= 3


def test_80_10_10() -> None:
    words = vocabulary()
    masked = kept = other = 0
    replacements: set[int] = set()
    for seed, ids in enumerate(texts(400, 125)):
        out, positions = mask_tokens(ids, words, np.random.default_rng(seed))
        assert (np.delete(out, positions) == np.delete(ids, positions)).all()
        new, old = out[positions], ids[positions]
        masked += (new == 4).sum()
        kept += (new == old).sum()
        other += ((new != 4) & (new != old)).sum()
        replacements |= set(new[(new != 4) & (new != old)].tolist())
    total = masked + kept + other
    assert (masked / total, kept / total, other / total) == pytest.approx((0.8, 0.1, 0.1), abs=0.015)
    assert min(replacements) >= 5  # never a special token
    assert len(replacements) > 400  # over 700 draws from the whole vocabulary


def test_a_function_of_the_generator_alone() -> None:
    ids, words = texts(1, 200)[0], vocabulary()
    first = mask_tokens(ids, words, np.random.default_rng([1, 2, 3]))
    again = mask_tokens(ids, words, np.random.default_rng([1, 2, 3]))
    other = mask_tokens(ids, words, np.random.default_rng([1, 2, 4]))
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])


@pytest.mark.parametrize("length", [1, 2, 5])
def test_short_texts_get_one_token(length: int) -> None:
    for seed in range(20):
        ids = np.arange(10, 10 + length)
        _, positions = mask_tokens(ids, vocabulary(starts=0.0), np.random.default_rng(seed))
        assert len(positions) == 1
        assert 0 <= positions[0] < length


def test_words_of_the_genuine_vocabulary(genuine_spiece: Path) -> None:
    """As google-research/albert's is_start_piece: "▁" or punctuation begins a word."""
    tokenizer = load_tokenizer(genuine_spiece.parent)
    words = Vocabulary.of(tokenizer)
    pieces = ["▁the", "ing", ",", "(", "▁", "$", "s", "9"]
    begins = {token: bool(words.starts_word[tokenizer.token_to_id(token)]) for token in pieces}
    assert begins == {
        "▁the": True, "ing": False, ",": True, "(": True, "▁": True, "$": True, "s": False, "9": False,
    }  # fmt: skip
    assert words.mask_id == 4
    assert set(range(30000)) - set(words.ordinary.tolist()) == {0, 1, 2, 3, 4}
