"""Run a bundle under a memory cgroup's limit, and see how low it can go.

    python benchmarks/memory_cap.py bundle --engine tflite --length 128 --mb 96,72,64,56,52

Every limit is tried with a fresh process, Python included, that loads the bundle and runs texts of that length. Printed
are its peak of anonymous memory, the times of its runs, and its major faults, that is how often a page of a file had to
be read again because the limit had pushed it out. What the kernel ends for lack of memory, or what crawls for more than
half a minute, does not fit.

A cgroup counts the page cache that its processes bring in. So that nothing is there already, at another's expense, the
process gets copies of the bundle and of the packages that it imports, pushed out of the page cache. The
interpreter and its standard library stay where they are (about 6 MB, in use by whoever runs this). There is no swap.

Needs Linux, the right to make a cgroup (root, as a rule), and a folder for temporary files that is on a disk.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import edge_albert
from edge_albert.cli import run_command
from edge_albert.errors import EdgeAlbertError
from edge_albert.reports.tables import markdown_table

MB = 1_000_000
SECONDS = 30  # a process that needs longer has no room to work in
_PACKAGES = {"onnx": ("onnxruntime",), "tflite": ("ai_edge_litert", "ml_dtypes")}
_SHARED = ("numpy", "numpy.libs", "sentencepiece", "sentencepiece.libs")

_CHILD = """
import json, resource, sys, time
import edge_albert
from edge_albert.runtime.memory import read_memory
from edge_albert.runtime.probe import random_feeds
bundle, engine, cache, length = sys.argv[1], sys.argv[2], sys.argv[3] or None, int(sys.argv[4])
with edge_albert.load(bundle, engine=engine, threads=1, cache_dir=cache).session as session:
    feeds = random_feeds(length, session.bundle.config.vocab_size)
    times = []
    for _ in range(4):
        started = time.perf_counter()
        session.engine.run(feeds)
        times.append(round(1e3 * (time.perf_counter() - started), 1))
    faults, now = resource.getrusage(resource.RUSAGE_SELF).ru_majflt, read_memory()
    print(json.dumps({"ms": times, "faults": faults, "anon": now.anon, "file": now.file}), flush=True)
"""


class NoCgroup(EdgeAlbertError):
    """Memory cannot be limited here."""


@dataclass(frozen=True)
class Outcome:
    """How a process ended. fits: by itself; killed: for lack of memory; output: its standard output."""

    status: int | None
    killed: bool
    output: str
    errors: str

    @property
    def fits(self) -> bool:
        return self.status == 0


def run_capped(command: Sequence[str], limit: int, *, seconds: float = SECONDS, **environment: str) -> Outcome:
    """Run a command in a cgroup of its own that holds at most `limit` bytes. Raises NoCgroup."""
    with _cgroup(limit) as group:
        enter = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs"), *command]
        env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        try:
            done = subprocess.run(enter, capture_output=True, text=True, timeout=seconds, env=env, check=False)
        except subprocess.TimeoutExpired:
            return Outcome(None, _killed(group), "", f"not done after {seconds:.0f} s")
        return Outcome(done.returncode, _killed(group), done.stdout, done.stderr)


@contextmanager
def _cgroup(limit: int) -> Iterator[Path]:
    parent, files = _hierarchy()
    group = parent / f"edge-albert-{secrets.token_hex(4)}"
    try:
        group.mkdir()
        for name, value in files.items():
            if (group / name).exists():
                (group / name).write_text(str(limit if value is None else value))
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        raise NoCgroup(f"{group}: no memory limit can be set here ({error.strerror})") from None
    try:
        yield group
    finally:
        for process in (group / "cgroup.procs").read_text().split():
            with suppress(OSError):
                os.kill(int(process), 9)
        for _ in range(100):
            with suppress(OSError):
                group.rmdir()
                break
            subprocess.run(["sleep", "0.05"], check=False)


def _hierarchy() -> tuple[Path, dict[str, int | None]]:
    """Where a memory cgroup can be made, and its files with what goes into them (None: the limit), v2 or v1."""
    for line in Path("/proc/mounts").read_text().splitlines() if Path("/proc/mounts").is_file() else []:
        _, place, kind, options = line.split()[:4]
        folder = Path(place)
        if kind == "cgroup2" and "memory" in (folder / "cgroup.subtree_control").read_text().split():
            return folder, {"memory.max": None, "memory.swap.max": 0}
        if kind == "cgroup" and "memory" in options.split(","):
            return folder, {"memory.limit_in_bytes": None, "memory.memsw.limit_in_bytes": None}
    raise NoCgroup("there is no cgroup of memory here, neither v1 nor v2")


def _killed(group: Path) -> bool:
    """Whether the kernel has ended a process of the group: the line oom_kill of v2's or v1's file."""
    for name in ("memory.events", "memory.oom_control"):
        if (group / name).is_file():
            words = dict(line.split() for line in (group / name).read_text().splitlines())
            return int(words.get("oom_kill", 0)) > 0
    return False


def copy_packages(engine: str, folder: Path) -> None:
    """Copies of what a device needs to import, to be put on PYTHONPATH."""
    import numpy

    site = Path(numpy.__file__).parents[1]
    for name in (*_SHARED, *_PACKAGES[engine]):
        if (site / name).is_dir():
            shutil.copytree(site / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("tests"))
    ours = Path(edge_albert.__file__).parent
    shutil.copytree(ours, folder / "edge_albert", ignore=shutil.ignore_patterns("default_model"))


def push_out(folder: Path) -> None:
    """Push a folder's files out of the page cache, so that whoever reads them next is charged for them."""
    for path in folder.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python benchmarks/memory_cap.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("bundle", type=Path, help="folder written by python -m edge_albert.export")
    out.add_argument("--engine", choices=tuple(_PACKAGES), default="tflite", help="default tflite")
    out.add_argument("--length", type=int, default=128, help="tokens (default 128)")
    out.add_argument("--mb", default="96,72,64,56,52", help="limits to try, in MB of 10^6 bytes (%(default)s)")
    out.add_argument("--mapped", action="store_true", help="with weights mapped from a cache, made before")
    return out


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = parser().parse_args(argv)
    rows = []
    with tempfile.TemporaryDirectory(prefix="edge-albert-cap-") as name:
        work = Path(name)
        copy_packages(options.engine, work / "site")
        shutil.copytree(options.bundle, work / "bundle")
        cache = str(work / "cache") if options.mapped else ""
        command = [sys.executable, "-c", _CHILD, str(work / "bundle"), options.engine, cache, str(options.length)]
        environment = {"PYTHONPATH": str(work / "site"), "PYTHONDONTWRITEBYTECODE": "1"}
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, **environment})  # makes the cache
        for limit in map(float, options.mb.split(",")):
            push_out(work)
            rows.append((f"{limit:g}", *_cells(run_capped(command, int(limit * MB), **environment))))
    print(markdown_table(("limit MB", "outcome", "anon MB", "runs ms", "major faults"), rows))
    return 0


def _cells(outcome: Outcome) -> tuple[str, ...]:
    if not outcome.fits:
        return ("ended for lack of memory" if outcome.killed else "too slow", "–", "–", "–")
    found = json.loads(outcome.output)
    return ("runs", f"{found['anon'] / MB:.1f}", ", ".join(map(str, found["ms"])), str(found["faults"]))


if __name__ == "__main__":
    run_command(main)
