"""What this process holds in memory, in bytes, read from the kernel.

Three kinds of memory matter on a device. *Anonymous* memory (heap, stacks) has no file behind it: without swap the
kernel cannot take it back, so it is what a model really costs. *File-backed* memory (mapped libraries, mapped weights)
can be dropped and read again. The *peak* is the most that was ever resident at once, anonymous and file-backed
together: what must fit.

Linux tells all of them in /proc/self/status (proc_pid_status(5): VmRSS, RssAnon, RssFile, VmHWM). The kernel keeps
these counters per thread or per processor and adds them up lazily, so a figure may be late by some dozens of pages (a
few hundred kB). Elsewhere getrusage(2) tells the peak and nothing else; what a system does not tell is None.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Memory:
    """Bytes of this process: resident now, of these anonymous and file-backed, and the most that ever was resident."""

    rss: int | None
    anon: int | None
    file: int | None
    peak: int | None


def read_memory() -> Memory:
    """This process's memory now. Never raises: what the system does not tell is None."""
    status = _read_status()
    peak = status.get("VmHWM")
    return Memory(
        rss=status.get("VmRSS"),
        anon=status.get("RssAnon"),
        file=status.get("RssFile"),
        peak=_peak_by_getrusage() if peak is None else peak,
    )


def reset_peak() -> bool:
    """Make the peak start again from what is resident now (/proc/self/clear_refs, proc_pid_clear_refs(5)).

    Returns False where that is refused or not offered.
    """
    try:
        _CLEAR_REFS.write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def give_back_freed_memory() -> None:
    """Hand what was freed back to the system: glibc keeps it; other C libraries have no malloc_trim and need none."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def _read_status() -> dict[str, int]:
    """The lines of /proc/self/status that are sizes, in bytes; empty where there is no such file."""
    try:
        lines = _STATUS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    sizes = {}
    for line in lines:
        name, _, value = line.partition(":")
        words = value.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isdigit():
            sizes[name] = int(words[0]) * 1024
    return sizes


def _peak_by_getrusage() -> int | None:
    """ru_maxrss, which macOS gives in bytes and every other system in kilobytes; None on Windows, which has none."""
    try:
        import resource
    except ImportError:
        return None
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024
