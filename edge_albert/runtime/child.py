"""Processes of our own that measure in peace: what they start with, and what they say when they fail."""

from __future__ import annotations

import os
import sys

_ERROR = "edge_albert: error: "  # how edge_albert/cli.py begins the line


def environment(threads: int) -> dict[str, str]:
    """This process's environment, its module path, and the thread count for libraries that have a pool of their own."""
    pools = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    return {**os.environ, **pools, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def failure(what: object, status: int, stderr: str) -> str:
    """The child's own error line as it is, or how it ended."""
    last = (stderr.strip().splitlines() or [""])[-1]
    said = last.removeprefix(_ERROR)
    if said != last:
        return said
    return f"{what}: measuring it ended with status {status}: {last or 'it said nothing'}"
