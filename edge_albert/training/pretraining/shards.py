"""A corpus tokenised once, in files that are mapped into memory: a corpus may be larger than it.

    index.json             what is in the folder, and the vocabulary it was made with
    00000.tokens.npy       (n,) uint16, or uint32 for more than 65,536 pieces: every token of the shard, end to end
    00000.sentences.npy    (m+1,) int64: sentence i is tokens[sentences[i] : sentences[i+1]]
    00000.documents.npy    (d+1,) int64: document j is sentences documents[j] … documents[j+1] - 1

The files do not depend on how many processes made them. Plain NumPy files: what looks into them needs nothing of ours.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_albert.atomic import atomic_folder
from edge_albert.errors import DataError
from edge_albert.progress import Progress
from edge_albert.tokenizer import Tokenizer, load_tokenizer
from edge_albert.training.pretraining.corpus import Corpus, Document

FORMAT = 1
SHARD_TOKENS = 2**26  # a shard is closed when it has as many: 128 MB, held in memory while it is written
BLOCK_CHARACTERS = 2**19  # what a process tokenises at a time


@dataclass(frozen=True)
class Block:
    """Some documents as ids: tokens end to end, tokens per sentence, sentences per document."""

    tokens: NDArray[Any]
    sentences: NDArray[np.int64]
    documents: NDArray[np.int64]


# -- writing -----------------------------------------------------------------------------------------------------------


def write_shards(
    corpus: Corpus, tokenizer_folder: Path, target: Path, *, processes: int = 1, shard_tokens: int = SHARD_TOKENS
) -> None:
    """Tokenise the whole corpus into the folder `target`, which must not exist; it appears whole or not at all.

    Raises DataError for a corpus without text or with rows that cannot be used, TokenizerError for the tokenizer.
    """
    tokenizer = load_tokenizer(tokenizer_folder)
    with atomic_folder(target, force=False) as folder, Progress(corpus.total_bytes, "tokenising") as bar:
        writer = _ShardWriter(folder, shard_tokens)
        for block in _tokenised(corpus, tokenizer_folder, processes):
            writer.add(block)
            bar.update(corpus.bytes_read - bar.done, tokens=writer.tokens)
        writer.close()
        if not writer.tokens:
            raise DataError(f"{', '.join(map(str, corpus.sources))}: no text in the corpus")
        index = {
            "format": FORMAT, "vocabulary": vocabulary_digest(tokenizer), "corpus": corpus.description,
            "shards": writer.shards,
        }  # fmt: skip
        (folder / "index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def vocabulary_digest(tokenizer: Tokenizer) -> str:
    """sha256 over the vocabulary file and how case and accents are treated: equal digests, equal ids."""
    digest = hashlib.sha256(tokenizer.path.read_bytes())
    for rule in ("do_lower_case", "keep_accents", "strip_accents"):
        digest.update(f"{rule}={tokenizer.rules.get(rule)};".encode())
    return digest.hexdigest()


class _ShardWriter:
    """Collects blocks and writes a shard whenever `limit` tokens are together; documents are never divided."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self.tokens = 0
        self.shards: list[dict[str, int]] = []
        self._blocks: list[Block] = []

    def add(self, block: Block) -> None:
        self._blocks.append(block)
        self.tokens += len(block.tokens)
        if sum(len(b.tokens) for b in self._blocks) >= self.limit:
            self.close()

    def close(self) -> None:
        """Write what is pending as a shard."""
        if not any(len(block.tokens) for block in self._blocks):
            return
        arrays = {
            "tokens": np.concatenate([block.tokens for block in self._blocks]),
            "sentences": _offsets([block.sentences for block in self._blocks]),
            "documents": _offsets([block.documents for block in self._blocks]),
        }
        for name, array in arrays.items():
            np.save(_shard_file(self.folder, len(self.shards), name), array)
        self.shards.append({"tokens": len(arrays["tokens"]), "documents": len(arrays["documents"]) - 1})
        self._blocks = []


def _offsets(lengths: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)


def _shard_file(folder: Path, number: int, name: str) -> Path:
    return folder / f"{number:05d}.{name}.npy"


def _tokenised(corpus: Corpus, tokenizer_folder: Path, processes: int) -> Iterator[Block]:
    """The corpus in blocks, in order; at most a few blocks a process are in memory."""
    blocks = _document_blocks(corpus.documents())
    if processes == 1:
        tokenise = _BlockTokenizer(tokenizer_folder)
        yield from map(tokenise, blocks)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, _start_worker, (tokenizer_folder,)) as pool:
        with _ctrl_c_ignored():  # inherited by the processes, which start as they are given something to do
            for _ in range(processes):
                pool.submit(_start_now)
        try:
            yield from _ordered(pool, blocks, ahead=4 * processes)
        except BrokenProcessPool:
            raise DataError(
                "a tokenising process died, as it does when memory runs out: use fewer --processes"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _ordered(pool: Executor, blocks: Iterable[list[Document]], ahead: int) -> Iterator[Block]:
    waiting: deque[Future[Block]] = deque()
    for block in blocks:
        waiting.append(pool.submit(_tokenise_in_worker, block))
        if len(waiting) >= ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _document_blocks(documents: Iterable[Document]) -> Iterator[list[Document]]:
    block: list[Document] = []
    size = 0
    for document in documents:
        block.append(document)
        size += sum(map(len, document))
        if size >= BLOCK_CHARACTERS:
            yield block
            block, size = [], 0
    if block:
        yield block


class _BlockTokenizer:
    """Documents ► Block; sentences of which the tokenizer leaves nothing are dropped, and so are empty documents."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = load_tokenizer(folder)
        self.dtype = np.uint16 if self.tokenizer.vocab_size <= 2**16 else np.uint32

    def __call__(self, documents: list[Document]) -> Block:
        encoded = [[ids for s in document if (ids := self.tokenizer.ids(s))] for document in documents]
        encoded = [document for document in encoded if document]
        sentences = list(chain.from_iterable(encoded))
        return Block(
            tokens=np.fromiter(chain.from_iterable(sentences), dtype=self.dtype),
            sentences=np.array([len(ids) for ids in sentences], dtype=np.int64),
            documents=np.array([len(document) for document in encoded], dtype=np.int64),
        )


_worker: _BlockTokenizer | None = None


def _start_worker(folder: Path) -> None:
    global _worker
    _worker = _BlockTokenizer(folder)


def _start_now() -> None:
    """Nothing to do, but a reason to start."""


@contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    """A process started within the block leaves Ctrl-C to the one that started it."""
    if threading.current_thread() is not threading.main_thread():  # only there may handlers be set
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _tokenise_in_worker(documents: list[Document]) -> Block:
    assert _worker is not None
    return _worker(documents)


# -- reading -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shard:
    """One shard, mapped from the disk; the arrays of the module's docstring."""

    tokens: NDArray[Any]
    sentences: NDArray[np.int64]
    documents: NDArray[np.int64]


class TokenStore:
    """The shards of a folder. `tokens` and `documents` are totals. Raises DataError when the folder is not whole."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        index = _read_index(self.folder)
        self.vocabulary: str = index["vocabulary"]
        self.corpus: list[str] = index["corpus"]
        self.shards = [self._open(number, counts) for number, counts in enumerate(index["shards"])]
        self.tokens = sum(len(shard.tokens) for shard in self.shards)
        self.documents = sum(len(shard.documents) - 1 for shard in self.shards)

    def check_vocabulary(self, tokenizer: Tokenizer) -> None:
        """Raises DataError unless the shards were made with this tokenizer."""
        if vocabulary_digest(tokenizer) != self.vocabulary:
            raise DataError(
                f"{self.folder}: tokenised with another vocabulary than {tokenizer.path}: name another --shards, "
                "or remove this folder"
            )

    def check_corpus(self, corpus: Corpus) -> None:
        """Raises DataError unless the shards were made of these sources, by their names and sizes."""
        if corpus.description != self.corpus:
            raise DataError(
                f"{self.folder}: made of another corpus ({len(self.corpus)} sources, the named one has "
                f"{len(corpus.sources)}): name another --shards, or remove this folder"
            )

    def __reduce__(self) -> tuple[type[TokenStore], tuple[Path]]:
        """Another process maps the files itself, rather than getting a copy of them."""
        return TokenStore, (self.folder,)

    def _open(self, number: int, counts: dict[str, int]) -> Shard:
        arrays = {}
        for name in ("tokens", "sentences", "documents"):
            path = _shard_file(self.folder, number, name)
            try:
                arrays[name] = np.load(path, mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) and error.strerror else error
                raise DataError(f"{path}: cannot be read ({reason}): remove {self.folder} to tokenise again") from None
        shard = Shard(**arrays)
        if len(shard.tokens) != counts["tokens"] or len(shard.documents) - 1 != counts["documents"]:
            raise DataError(
                f"{self.folder}: shard {number} does not fit index.json: remove the folder to tokenise again"
            )
        return shard


def _read_index(folder: Path) -> dict[str, Any]:
    path = folder / "index.json"
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise DataError(f"{path}: missing or damaged: name a folder of shards that pretrain has written") from None
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise DataError(f"{path}: not in format {FORMAT}: remove the folder to tokenise again")
    return index


def usable_cores() -> int:
    """The CPU cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
