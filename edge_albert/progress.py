"""A progress bar on a terminal, plain lines elsewhere.

The bar is tqdm's, which comes with the train extra. A log file or a pipe, or an installation without tqdm, gets one
line when the work has begun for a while and then at most one every ten seconds, so that a nightly run's log stays
readable.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

PLAIN_SECONDS = 10.0


class Progress:
    """`with Progress(total, "epoch 1/3") as bar: bar.update(1, loss=0.3)`; written to standard error by default."""

    def __init__(self, total: int, label: str, stream: TextIO | None = None) -> None:
        self.total, self.label = total, label
        self.done = 0
        self._stream = sys.stderr if stream is None else stream
        self._bar = _terminal_bar(total, label, self._stream)
        self._said = time.monotonic()

    def update(self, count: int = 1, **figures: float) -> None:
        """`count` more of `total` are done; `figures` are shown behind."""
        self.done += count
        if self._bar is not None:
            self._bar.set_postfix({name: f"{value:.4g}" for name, value in figures.items()}, refresh=False)
            self._bar.update(count)
        elif time.monotonic() - self._said >= PLAIN_SECONDS:
            self._said = time.monotonic()
            shown = "".join(f", {name} {value:.4g}" for name, value in figures.items())
            print(f"{self.label}: {self.done}/{self.total}{shown}", file=self._stream, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()


def _terminal_bar(total: int, label: str, stream: TextIO):  # type: ignore[no-untyped-def]
    """tqdm's bar when `stream` is a terminal and tqdm is there, else None. It vanishes when the work is done."""
    if not stream.isatty():
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=total, desc=label, file=stream, leave=False, dynamic_ncols=True)
