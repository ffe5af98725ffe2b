"""An open bundle: its tokenizer and its engine, and the way from encodings to rows of output.

By default each text runs alone. int8 activations are quantised with one range over everything in the batch, so a text's
answer would depend, a little, on its neighbours and on the padding they force on it; a phone's processor gains next
to nothing from batches. `batch_size` above 1 runs texts of similar length together: fp32 answers then agree to 1e-5
and int8 answers to BATCH_TOLERANCE, measured in tests/test_runtime.py.

A text longer than `max_length` is refused, cut off, or read in windows that overlap by `stride` tokens, as the caller
says. `max_length` is the model's own, or what a memory budget leaves of it (edge_albert/runtime/budget.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from edge_albert.bundle import Bundle, open_bundle
from edge_albert.early_exit import ITERATIONS
from edge_albert.errors import DataError, EdgeAlbertError, EngineError
from edge_albert.runtime import cache
from edge_albert.runtime.budget import Plan, make_plan, packing_fits
from edge_albert.runtime.engine import choose_engine, open_engine
from edge_albert.runtime.latency import LatencyBudget, LatencyRequest, read_budget
from edge_albert.tokenizer import Encoding, Tokenizer

STRIDE = 128  # tokens two neighbouring windows share, as in the SQuAD recipe of BERT and ALBERT; at most a quarter
BATCH_TOLERANCE = 0.05  # of a logit, relative to the largest in the row, for int8 at batch_size > 1


def make_feeds(encodings: Sequence[Encoding], pad_id: int) -> dict[str, np.ndarray]:
    """The model's three inputs for some encodings, each (B, S) int64, padded to the longest."""
    shape = (len(encodings), max(len(encoding.input_ids) for encoding in encodings))
    ids, mask, types = np.full(shape, pad_id, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for row, encoding in enumerate(encodings):
        count = len(encoding.input_ids)
        ids[row, :count] = encoding.input_ids
        mask[row, :count] = 1
        types[row, :count] = encoding.token_type_ids
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def _plan(
    bundle: Bundle, memory_mb: float, engine: str | None, threads: int | None, packed: Path | None, batch_size: int
) -> tuple[Plan, Path | None]:
    """The plan, and the cache folder to use: none where packing the weights now would exceed the budget."""
    mapped = [] if packed is None else [n for n in bundle.formats if cache.has_entry(packed, n, bundle.model_hash(n))]
    plan = make_plan(bundle, memory_mb, engine=engine, threads=threads, mapped=mapped, batch_size=batch_size)
    return plan, packed if plan.mapped or packing_fits(plan) else None


@dataclass(frozen=True)
class Depth:
    """Where inputs leave a model with early exit: after `most` iterations at the latest, and by which threshold.

    None leaves either as the bundle, or the session, has it; `edge_albert.early_exit.NEVER` lets none leave early.
    """

    most: int | None = None
    threshold: float | str | None = None


@dataclass(frozen=True)
class Output:
    """row: (num_labels,), (H,), or (S, num_labels) without padding. iterations: used by it; None without early exit."""

    row: np.ndarray
    iterations: int | None


class Session:
    """Opens a bundle after verifying it. Use as a context manager, or call close().

    engine: "onnx" or "tflite", None for the first that is installed. threads: None for up to four. cache_dir: where
    weights packed for this processor are kept; None for the bundle's own folder if it was prepared, else for none.
    memory_mb: a budget for the whole process in MB, see edge_albert/runtime/budget.py; `plan` says what came of it.
    depth: of a model with early exit. latency: a budget of time, which lowers the depth of long inputs; threads None is
    then as many as were timed. Raises BundleError, TokenizerError, EngineError.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        engine: str | None = None,
        threads: int | None = None,
        cache_dir: str | Path | None = None,
        batch_size: int = 1,
        memory_mb: float | None = None,
        depth: Depth | None = None,
        latency: LatencyRequest | None = None,
    ) -> None:
        if batch_size < 1:
            raise EngineError(f"batch_size is {batch_size}: at least 1 is needed")
        self.bundle: Bundle = open_bundle(folder)
        self.depth = Depth() if depth is None else depth
        self._exits = self.bundle.exits
        self._budget: LatencyBudget | None = None
        if latency is not None and batch_size > 1:
            raise EngineError("latency_ms: times are of one text at a time: leave batch_size at 1")
        if latency is not None and self._exits is None:
            raise self._no_exits("latency_ms means")
        self._exit_feeds(None)  # raises what there is to raise before anything is loaded
        packed = cache.prepared(self.bundle.folder) if cache_dir is None else Path(cache_dir)
        self.plan: Plan | None = None
        if memory_mb is not None:
            self.plan, packed = _plan(self.bundle, memory_mb, engine, threads, packed, batch_size)
            engine, threads, batch_size = self.plan.engine, self.plan.threads, self.plan.batch_size
        self.tokenizer = Tokenizer.from_rules(self.bundle.folder, self.bundle.tokenizer_rules)
        self.format = choose_engine(self.bundle.formats, engine)
        if latency is not None:
            known = self.bundle.model_hash(self.format)
            self._budget = read_budget(latency, engine=self.format, threads=threads, model_sha256=known)
            threads = self._budget.threads
        path = self.bundle.model_path(self.format)
        self.engine = open_engine(
            path,
            engine=self.format,
            threads=threads,
            cache_dir=packed,
            model_hash=self.bundle.model_hash(self.format),
        )
        self.batch_size = min(batch_size, self.engine.max_batch or batch_size)

    @property
    def max_length(self) -> int:
        """Tokens of one input at most, special ones included: what the model takes, or what the budget leaves of it."""
        return self.bundle.config.max_position_embeddings if self.plan is None else self.plan.max_length

    @property
    def stride(self) -> int:
        """Tokens that two neighbouring windows share."""
        return min(STRIDE, self.max_length // 4)

    def encode(self, text: str, pair: str | None = None, *, truncate: bool = False, name: str = "text") -> Encoding:
        """One input of the model. DataError, calling it `name`, when it is empty, unknown throughout, or too long."""
        self.check_text(text, name)
        if pair is not None:
            self.check_text(pair, f"{name} (second part)")
        encoding = self.tokenizer.encode(text, pair, max_length=self.max_length if truncate else None)
        count = len(encoding.input_ids)
        if count > self.max_length:
            raise DataError(
                f"{name}: {count} tokens, {self._limit()} {self.max_length}: shorten it, truncate (--truncate), "
                "or read it in windows (--windows)"
            )
        if not self._says_anything(encoding, text, pair):
            raise DataError(f"{name}: nothing in it is in the model's vocabulary: there is nothing to answer from")
        return encoding

    def encode_windows(self, text: str, pair: str | None = None, *, name: str = "text") -> list[Encoding]:
        """One input where that is enough, else as many as it takes to read the longer of the two texts in windows.

        DataError as `encode`, and when the shorter text leaves too little room for windows.
        """
        self.check_text(text, name)
        if pair is not None:
            self.check_text(pair, f"{name} (second part)")
        whole = self.tokenizer.encode(text, pair, max_length=None)
        if not self._says_anything(whole, text, pair):
            raise DataError(f"{name}: nothing in it is in the model's vocabulary: there is nothing to answer from")
        if len(whole) <= self.max_length:
            return [whole]
        first = whole.sequence_ids.count(0)
        second = whole.sequence_ids.count(1)
        room = self.max_length - (len(whole) - max(first, second))
        if room <= self.stride:
            raise DataError(
                f"{name}: both parts are long: the shorter one leaves {max(room, 0)} of {self.max_length} tokens for "
                f"windows of the other, more than {self.stride} are needed: shorten it, or truncate (--truncate)"
            )
        return self.tokenizer.encode_windows(
            text, pair, max_length=self.max_length, stride=self.stride,
            truncation="only_second" if second > first else "only_first",
        )  # fmt: skip

    def _limit(self) -> str:
        if self.plan is None or self.max_length == self.bundle.config.max_position_embeddings:
            return "the model takes"
        return f"the memory budget of {self.plan.budget / 1e6:g} MB has room for"

    def _says_anything(self, encoding: Encoding, text: str, pair: str | None) -> bool:
        """Whether any token is a known piece of visible text, not only <unk> and bare word boundaries."""
        special, parts = self.tokenizer.special_ids, (text, pair or "")
        for token, part, (start, end) in zip(encoding.input_ids, encoding.sequence_ids, encoding.offsets, strict=True):
            if part is not None and token not in special and parts[part][start:end].strip():
                return True
        return False

    @staticmethod
    def check_text(text: str, name: str) -> None:
        if not isinstance(text, str):
            raise DataError(f"{name}: expected a text, found {type(text).__name__}")
        if not text.strip():
            raise DataError(f"{name}: empty: give at least one word")

    def infer(self, encodings: Sequence[Encoding]) -> list[np.ndarray]:
        """The graph's output for each encoding, in order: (num_labels,), (H,), or (S, num_labels) without padding."""
        return [output.row for output in self.outputs(encodings)]

    def outputs(self, encodings: Sequence[Encoding], depth: Depth | None = None) -> list[Output]:
        """The same with the iterations that each has used. depth: instead of the session's.

        Raises EdgeAlbertError for a depth that the model does not have.
        """
        outputs: dict[int, Output] = {}
        for indices in self._batches(encodings):
            feeds = make_feeds([encodings[i] for i in indices], self.bundle.config.pad_token_id)
            found = self.engine.run({**feeds, **self._exit_feeds(depth, feeds["input_ids"].shape[1])})
            used = found.get(ITERATIONS)
            for place, index in enumerate(indices):
                row, length = found[self.bundle.task.output][place], len(encodings[index].input_ids)
                iterations = None if used is None else round(float(used[place]))
                outputs[index] = Output(row[:length] if self.bundle.task.per_token else row, iterations)
        return [outputs[index] for index in range(len(encodings))]

    def _exit_feeds(self, depth: Depth | None, tokens: int = 1) -> dict[str, np.ndarray]:
        """What the graph is told about inputs of so many tokens: the call's word before the session's, the bundle's."""
        call = Depth() if depth is None else depth
        most = self.depth.most if call.most is None else call.most
        threshold = self.depth.threshold if call.threshold is None else call.threshold
        exits = self._exits
        if exits is None:
            if most is not None or threshold is not None:
                raise self._no_exits("depth and exit_threshold mean")
            return {}
        feeds = exits.feeds(threshold, most)  # refuses a depth that there is not, which the budget would hide
        if self._budget is None:
            return feeds
        fits = self._budget.iterations(tokens, exits.iterations)
        return exits.feeds(threshold, fits if most is None else min(fits, most))

    def _no_exits(self, what: str) -> EdgeAlbertError:
        return EdgeAlbertError(
            f"{self.bundle.folder}: {what} nothing to this bundle, which always runs every iteration: export a model "
            "trained for it with --early-exit"
        )

    def _batches(self, encodings: Sequence[Encoding]) -> Iterator[list[int]]:
        """Indices in batches of at most batch_size, neighbours in length together so that little is padded."""
        order = sorted(range(len(encodings)), key=lambda i: len(encodings[i].input_ids))
        for start in range(0, len(order), self.batch_size):
            yield order[start : start + self.batch_size]

    def close(self) -> None:
        """Give the engine's memory back; closing twice is fine."""
        self.engine.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
