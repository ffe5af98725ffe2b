"""One thread that runs the model, and a bounded queue before it.

The engine would keep the event loop from answering anything else, so it runs in a thread; one thread, since a device
has memory for one inference and its processors are busy with it. A request that finds the queue full is told so at
once, instead of waiting for longer than its sender will.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")


class QueueFullError(Exception):
    """No place in the queue. retry_after: whole seconds until about half of it is done, at least 1."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"busy: the queue is full, try again in {retry_after} s")
        self.retry_after = retry_after


class Worker:
    """`capacity` jobs may wait while one runs. All methods belong to the event loop's thread."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="inference")
        self._inside = 0  # running and waiting
        self._seconds = 0.0  # of a job, a running mean

    @property
    def waiting(self) -> int:
        """Jobs in the queue, without the one that runs."""
        return max(0, self._inside - 1)

    async def run(self, job: Callable[[], _T]) -> _T:
        """The job's result, or its exception. Raises QueueFullError at once when as many wait as may."""
        if self._inside > self._capacity:
            raise QueueFullError(max(1, math.ceil(self._inside * self._seconds / 2)))
        self._inside += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, self._timed, job)
        finally:
            self._inside -= 1

    def stop(self) -> None:
        """Wait for what is queued, then end the thread."""
        self._executor.shutdown()

    def _timed(self, job: Callable[[], _T]) -> _T:
        start = time.perf_counter()
        try:
            return job()
        finally:
            self._seconds += 0.1 * (time.perf_counter() - start - self._seconds)
