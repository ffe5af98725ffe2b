"""LiteRT's own chatter on the standard error, kept away from the user's screen."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

_QUIET = RLock()


@contextmanager
def quiet_engine() -> Iterator[None]:
    """Keep what the engine's C++ code writes to the standard error from the screen; what matters comes as exceptions.

    LiteRT logs a page for every file it opens, and has no setting for that. The whole process's standard error is led
    away for the milliseconds that this takes, which is why it wraps opening and resizing only. The lock keeps two
    threads from restoring it in the wrong order.
    """
    with _QUIET:
        try:
            saved = os.dup(2)
        except OSError:  # no standard error, nothing to keep quiet
            yield
            return
        try:
            with open(os.devnull, "w") as sink:
                os.dup2(sink.fileno(), 2)
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def quiet_at_exit() -> None:
    """Close the standard error when Python has ended and before LiteRT's own clean-up, which logs what it lets go of.

    The C library runs what was registered last first, so this is called after LiteRT has made what it cleans up. Linux
    only.
    """
    register = getattr(ctypes.CDLL(None), "__cxa_atexit", None) if sys.platform == "linux" else None
    if register is not None:
        register(ctypes.cast(ctypes.CDLL(None).close, ctypes.c_void_p), ctypes.c_void_p(2), None)
