"""Token shards ► pre-training examples ► batches, each a function of (seed, epoch, number) and nothing else.

**Packing.** Consecutive sentences of one document fill an example up to the longest text it may have, or, for 10 % of
the examples, to a random shorter one (ALBERT section 4.1). Packing never crosses documents. An example ends at a
sentence end where there is one in its second half; a longer sentence is cut where the room ends, and goes on in the
next example. So every token is seen once an epoch, but for ends of documents shorter than MIN_TOKENS.

**Order.** [CLS] A [SEP] B [SEP], the seam at a random sentence end (at a word where there is only one sentence). sop:
half of the pairs are swapped. nsp: in half of them B is the beginning of another document's example, no longer than
B was (BERT's objective; the paper's ablation, Table 5). none: [CLS] text [SEP].

Since nothing here depends on the process that does it, a killed run goes on with the very examples it would have seen,
and any number of processes see the same batches between them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from edge_albert.errors import DataError
from edge_albert.tokenizer import Tokenizer
from edge_albert.training.pretraining.masking import Vocabulary, mask_tokens
from edge_albert.training.pretraining.recipe import MASK_SHARE
from edge_albert.training.pretraining.shards import Shard, TokenStore

SHORT_SHARE = 0.1
MIN_TOKENS = 8  # two segments with a word or two each; below that there is nothing to learn
HELD_OUT_EVERY = 200  # every 200th document, the first included, is kept for evaluation

# What a generator is for, so that two uses never share a stream: the first number of its seed.
_PACK, _SHUFFLE, _EXAMPLE = range(3)


@dataclass(frozen=True)
class Spans:
    """N examples as places in a store, all (N,): tokens[start:stop] of `shard`, within its document `document`."""

    shard: NDArray[np.int32]
    document: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.start)


class Example(NamedTuple):
    """One input before padding. positions: (k,) where a token was replaced or kept to be guessed; labels: (k,) its id.

    order: 0 in order (or truly next), 1 swapped (or random); the numbers of Google's and Hugging Face's checkpoints.
    """

    input_ids: NDArray[np.int64]
    token_type_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    labels: NDArray[np.int64]
    order: int


class Batch(NamedTuple):
    """B examples padded to S tokens. M is the number of masked tokens in all of them.

    input_ids, token_type_ids, attention_mask: (B, S). masked: (M,) places in the flattened (B·S). labels: (M,).
    order: (B,). All int64.
    """

    input_ids: Tensor
    token_type_ids: Tensor
    attention_mask: Tensor
    masked: Tensor
    labels: Tensor
    order: Tensor

    def to(self, device: torch.device) -> Batch:
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in self))


# -- packing -----------------------------------------------------------------------------------------------------------


def pack(store: TokenStore, room: int, *, seed: int, epoch: int, held_out: bool = False) -> Spans:
    """All examples of one epoch in the order of the corpus; each has MIN_TOKENS … `room` tokens of text.

    held_out: those of the documents kept for evaluation instead of those for training. A store of fewer than
    HELD_OUT_EVERY documents keeps none.
    """
    keep_some = store.documents >= HELD_OUT_EVERY
    columns: list[np.ndarray] = []  # of each shard: its examples' (document, start, stop)
    first = 0
    for number, shard in enumerate(store.shards):
        random = np.random.default_rng([_PACK, seed, epoch, number])
        documents = range(len(shard.documents) - 1)
        wanted = [d for d in documents if (keep_some and (first + d) % HELD_OUT_EVERY == 0) == held_out]
        columns.append(np.fromiter(_pack_shard(shard, wanted, room, random), np.dtype((np.int64, 3))))
        first += len(documents)
    flat = np.concatenate(columns)
    shards = np.repeat(np.arange(len(columns), dtype=np.int32), [len(rows) for rows in columns])
    return Spans(shards, flat[:, 0], flat[:, 1], flat[:, 2])


def _pack_shard(
    shard: Shard, documents: list[int], room: int, random: np.random.Generator
) -> Iterator[tuple[int, int, int]]:
    """(document, start, stop) of every example."""
    targets = _targets(room, random)
    for document in documents:
        first, last = shard.documents[document], shard.documents[document + 1]
        ends: list[int] = shard.sentences[first : last + 1].tolist()  # where its sentences begin, and where it ends
        start = ends[0]
        while ends[-1] - start >= MIN_TOKENS:
            stop = _stop(ends, start, next(targets))
            yield document, start, stop
            start = stop


def _targets(room: int, random: np.random.Generator) -> Iterator[int]:
    """The longest text, or with 10 % a random shorter one; drawn in blocks, which is fifty times faster."""
    while True:
        short = random.random(4096) < SHORT_SHARE
        yield from np.where(short, random.integers(MIN_TOKENS, room, 4096, endpoint=True), room).tolist()


def _stop(ends: list[int], start: int, target: int) -> int:
    """Where an example of at most `target` tokens from `start` on stops; `ends` as in `_pack_shard`."""
    limit = start + target
    if limit >= ends[-1]:
        return ends[-1]
    sentence = ends[bisect_right(ends, limit) - 1]
    return sentence if sentence - start >= max(MIN_TOKENS, target // 2) else limit


# -- one example -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExampleMaker:
    """Makes example number i of an epoch from its span. objective: sop, nsp or none. mask_share: of its tokens."""

    store: TokenStore
    vocabulary: Vocabulary
    cls_id: int
    sep_id: int
    objective: str
    seed: int
    mask_share: float = MASK_SHARE

    @staticmethod
    def of(
        store: TokenStore, tokenizer: Tokenizer, objective: str, seed: int, mask_share: float = MASK_SHARE
    ) -> ExampleMaker:
        vocabulary = Vocabulary.of(tokenizer)
        return ExampleMaker(store, vocabulary, tokenizer.cls_id, tokenizer.sep_id, objective, seed, mask_share)

    def make(self, spans: Spans, epoch: int, number: int) -> Example:
        random = np.random.default_rng([_EXAMPLE, self.seed, epoch, number])
        shard = self.store.shards[spans.shard[number]]
        start, stop = int(spans.start[number]), int(spans.stop[number])
        text = shard.tokens[start:stop].astype(np.int64)
        if self.objective == "none":
            return self._assemble([text], 0, random)
        seam = self._seam(shard, int(spans.document[number]), start, text, random)
        first, second = text[:seam], text[seam:]
        order = int(random.random() < 0.5)
        if order and self.objective == "sop":
            first, second = second, first
        elif order:
            second = self._random_text(spans, number, len(second), random)
        return self._assemble([first, second], order, random)

    def _seam(
        self, shard: Shard, document: int, start: int, text: NDArray[np.int64], random: np.random.Generator
    ) -> int:
        """Where the second segment begins, 1 … n-1: a sentence's beginning, else a word's, else any token."""
        sentences = shard.sentences[shard.documents[document] : shard.documents[document + 1]]
        inside = slice(*np.searchsorted(sentences, [start + 1, start + len(text)]).tolist())
        seams = sentences[inside] - start
        if not len(seams):
            seams = np.flatnonzero(self.vocabulary.starts_word[text[1:]]) + 1
        return int(random.choice(seams)) if len(seams) else len(text) // 2

    def _random_text(self, spans: Spans, number: int, length: int, random: np.random.Generator) -> NDArray[np.int64]:
        """At most `length` tokens from the beginning of another document's example; its own where all 8 tries fail."""
        for other in random.integers(len(spans), size=8).tolist():
            here = (spans.shard[number], spans.document[number])
            if (spans.shard[other], spans.document[other]) != here:
                break
        start, stop = int(spans.start[other]), int(spans.stop[other])
        return self.store.shards[spans.shard[other]].tokens[start : min(stop, start + length)].astype(np.int64)

    def _assemble(self, segments: list[NDArray[np.int64]], order: int, random: np.random.Generator) -> Example:
        """Mask the whole text, then put the special tokens around its segments."""
        text = np.concatenate(segments)
        masked, positions = mask_tokens(text, self.vocabulary, random, self.mask_share)
        ids, types = [np.array([self.cls_id])], [np.array([0])]
        at = 0
        for kind, segment in enumerate(segments):
            ids += [masked[at : at + len(segment)], np.array([self.sep_id])]
            types.append(np.full(len(segment) + 1, kind))
            at += len(segment)
        seam = len(segments[0])
        shifted = positions + 1 + (positions >= seam)  # past [CLS], and past the first [SEP]
        return Example(np.concatenate(ids), np.concatenate(types), shifted, text[positions], order)


def special_tokens(objective: str) -> int:
    """How many special tokens an example has: what `max_length` loses."""
    return 2 if objective == "none" else 3


# -- batches -----------------------------------------------------------------------------------------------------------


class EpochBatches(Dataset[list[Batch]]):
    """One epoch, shuffled and cut into global batches of `batch_size` examples; a rest too small for one is dropped.

    Item k is this process's share of global batch k. Examples are sorted by length and dealt in micro-batches, each
    padded only to its own longest, or all to `length`; process r of w takes every w-th of them from the r-th on.
    Raises DataError when there is not even one batch.
    """

    def __init__(
        self,
        maker: ExampleMaker,
        spans: Spans,
        *,
        epoch: int,
        batch_size: int,
        micro_batch: int,
        pad_id: int,
        length: int | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.maker, self.spans, self.epoch = maker, spans, epoch
        self.batch_size, self.micro_batch = batch_size, micro_batch
        self.pad_id, self.length, self.rank, self.world = pad_id, length, rank, world
        self.order = np.random.default_rng([_SHUFFLE, maker.seed, epoch]).permutation(len(spans))
        if not len(self):
            raise DataError(
                f"{maker.store.folder}: {len(spans)} examples make no batch of {batch_size}: "
                "lower --batch-size or add text"
            )

    def __len__(self) -> int:
        return len(self.order) // self.batch_size

    def __getitem__(self, batch: int) -> list[Batch]:
        numbers = self.numbers(batch)
        parts = np.split(numbers, range(self.micro_batch, len(numbers), self.micro_batch))
        return [collate(self.examples(part), self.pad_id, self.length) for part in parts[self.rank :: self.world]]

    def numbers(self, batch: int) -> NDArray[np.int64]:
        """The examples of a global batch, the longest first: (batch_size,)."""
        chosen = self.order[batch * self.batch_size : (batch + 1) * self.batch_size]
        lengths = self.spans.stop[chosen] - self.spans.start[chosen]
        return chosen[np.argsort(-lengths, kind="stable")]

    def examples(self, numbers: NDArray[np.int64]) -> list[Example]:
        return [self.maker.make(self.spans, self.epoch, int(number)) for number in numbers]


def collate(examples: list[Example], pad_id: int, length: int | None = None) -> Batch:
    """Pad to `length`, or to the longest."""
    length = length or max(len(example.input_ids) for example in examples)
    shape = (len(examples), length)
    input_ids = np.full(shape, pad_id, dtype=np.int64)
    types, mask = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for row, example in enumerate(examples):
        n = len(example.input_ids)
        input_ids[row, :n], types[row, :n], mask[row, :n] = example.input_ids, example.token_type_ids, 1
    masked = np.concatenate([row * length + example.positions for row, example in enumerate(examples)])
    labels = np.concatenate([example.labels for example in examples])
    order = np.array([example.order for example in examples], dtype=np.int64)
    return Batch(*(torch.from_numpy(array) for array in (input_ids, types, mask, masked, labels, order)))
