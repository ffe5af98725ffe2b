"""Making texts fit: truncation and windows equal those of transformers 5 (the tokenizers library) at every length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_spiece import tiny_corpus, train_tiny_spiece
from tokenizer_references import fast_albert

from edge_albert.errors import TokenizerError
from edge_albert.tokenization.pieces import kept_lengths
from edge_albert.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny_spiece(tmp_path_factory.mktemp("tiny")).parent


@pytest.fixture(scope="module")
def tiny(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def fast(folder: Path) -> Any:
    """transformers 5 with the tiny vocabulary."""
    return fast_albert(folder / "spiece.model")


PAIRS = [
    ("the baker opened the blue door", "nobody wanted two letters from london"),
    ("the baker", "nobody wanted two letters from london in the morning, without help"),
    ("nobody wanted two letters from london in the morning, without help", "the baker"),
    ("", "the baker opened the blue door"),
    ("the baker opened the blue door", ""),
]


@pytest.mark.parametrize("strategy", ["longest_first", "only_first", "only_second"])
@pytest.mark.parametrize("pair", PAIRS)
def test_truncation_of_pairs_equals_transformers(
    tiny: Tokenizer, fast: Any, pair: tuple[str, str], strategy: str
) -> None:
    """At every length; where the tokenizers library gives up, so does this, with an error of its own."""
    refused = 0
    for max_length in range(4, 60):
        try:  # as batches of one: a second text that is empty counts as none otherwise
            theirs = fast([pair[0]], [pair[1]], truncation=strategy, max_length=max_length)
        except Exception:  # "Truncation error: …"; the tokenizers library raises no narrower class
            with pytest.raises(TokenizerError, match="max_length leaves no room for the "):
                tiny.encode(*pair, truncation=strategy, max_length=max_length)
            refused += 1
            continue
        ours = tiny.encode(*pair, truncation=strategy, max_length=max_length)
        assert ours.input_ids == theirs["input_ids"][0]
        assert ours.sequence_ids == theirs.sequence_ids(0)
    assert not (refused and strategy == "longest_first")


@pytest.mark.parametrize("max_length", [2, 3, 5, 40])
def test_truncation_of_one_text(tiny: Tokenizer, fast: Any, max_length: int) -> None:
    text = "the baker opened the blue door"
    for strategy in ("longest_first", "only_first"):
        if max_length == 2 and strategy == "only_first":
            continue
        ours = tiny.encode(text, max_length=max_length, truncation=strategy)
        assert ours.input_ids == fast(text, truncation=strategy, max_length=max_length)["input_ids"]
    whole = [2, *tiny.ids(text), 3]
    assert tiny.encode(text, max_length=max_length, truncation="none").input_ids == whole
    assert tiny.encode(text, max_length=None).input_ids == whole


def test_truncation_keeps_what_it_promises() -> None:
    """longest_first for all small sizes: the room is filled, and the shorter text is cut only at half of it."""
    for first in range(12):
        for second in range(12):
            for room in range(24):
                a, b = kept_lengths(first, second, room, "longest_first")
                assert a <= first
                assert b <= second
                assert a + b == min(room, first + second)
                assert min(a, b) >= min(first, second, room // 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_length": 1}, "max_length 1 leaves no room beside 2 special tokens"),
        ({"max_length": 2, "pair": "the door"}, "max_length 2 leaves no room beside 3 special tokens"),
        ({"truncation": "middle"}, "truncation 'middle' is not one of longest_first, only_first, only_second, none"),
        ({"truncation": "only_second", "max_length": 4}, "'only_second' needs a second text"),
    ],
)
def test_truncation_that_cannot_be(tiny: Tokenizer, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        tiny.encode("the baker opened the blue door", **arguments)


@pytest.mark.parametrize(("max_length", "stride"), [(16, 0), (16, 3), (20, 7), (31, 1), (40, 20), (400, 128)])
def test_windows_equal_transformers(tiny: Tokenizer, fast: Any, max_length: int, stride: int) -> None:
    question, context = "the door?", " ".join(tiny_corpus()[:5])
    calls: list[tuple[list[str], str]] = [
        ([context], "only_first"), ([question, context], "only_second"), ([context, question], "only_first"),
    ]  # fmt: skip
    for texts, strategy in calls:
        if max_length - 3 - len(tiny.ids(question)) <= stride:
            continue
        theirs = fast(
            *texts, truncation=strategy, max_length=max_length, stride=stride, return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )  # fmt: skip
        ours = tiny.encode_windows(*texts, max_length=max_length, stride=stride, truncation=strategy)
        assert [window.input_ids for window in ours] == theirs["input_ids"]
        assert [window.sequence_ids for window in ours] == [theirs.sequence_ids(i) for i in range(len(ours))]


def test_windows_by_default_go_over_the_second_text(tiny: Tokenizer) -> None:
    question, context = "the door?", " ".join(tiny_corpus()[:5])
    for texts, strategy in (([context], "only_first"), ([question, context], "only_second")):
        windows = tiny.encode_windows(*texts, max_length=40, stride=20)
        assert windows == tiny.encode_windows(*texts, max_length=40, stride=20, truncation=strategy)


def test_windows_cover_the_context(tiny: Tokenizer) -> None:
    """Offsets of every window count in the whole text; joined without the overlap they are the text's own."""
    context = " ".join(tiny_corpus()[:5])
    whole = tiny.encode(context, max_length=None)
    windows = tiny.encode_windows("the door?", context, max_length=40, stride=10)
    spans = [[o for o, s in zip(w.offsets, w.sequence_ids, strict=True) if s == 1] for w in windows]
    assert len(windows) > 5
    assert all(len(window) <= 40 for window in windows)
    joined = spans[0] + [span for later in spans[1:] for span in later[10:]]
    assert joined == whole.offsets[1:-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pair": "the door", "max_length": 5}, "stride 128 must be at least 0 and smaller than the window's 0 tokens"),
        ({"max_length": 20, "stride": 18}, "stride 18 must be at least 0 and smaller than the window's 18 tokens"),
        ({"max_length": 20, "stride": -1}, "stride -1 must be at least 0"),
        ({"truncation": "longest_first"}, "'longest_first': windows go over one text"),
        ({"truncation": "only_second"}, "'only_second': windows go over one text"),
    ],
)
def test_windows_that_cannot_be(tiny: Tokenizer, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        tiny.encode_windows("the baker opened the blue door", **arguments)
