"""Weights packed for this processor, kept on the device and mapped at the next start.

An engine repacks weights for the processor at every start, into memory that cannot be dropped. Packed once into a
cache folder they are mapped from the file instead. An entry's name holds the model's hash, the engine's version and
the processor, so a new one of any of them makes a new entry; an entry's files are listed with their hashes, and a
damaged one is made again. A folder that cannot be written means no cache and one warning, never a failure. Processes
that start together take turns: the first packs, the others wait and find it done.

A bundle that was prepared (`python -m edge_albert.prepare BUNDLE`) has its cache in its own folder `cache`, which is
used without being named.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edge_albert.atomic import atomic_folder
from edge_albert.bundle import file_hash
from edge_albert.errors import EdgeAlbertError, EngineError

try:
    import fcntl
except ImportError:  # Windows: processes that start together each pack, and the last one's files stay
    fcntl = None  # type: ignore[assignment]

_PREPARED = "cache"  # folder in a bundle
_LISTING = "cache.json"
_PATIENCE = 60.0  # seconds to wait for another process that packs
# engine ► how the names of its entries begin; other packages of an engine cannot map weights
_PACKAGES = {"onnx": "onnxruntime", "tflite": "ai-edge-litert"}


def processor() -> str:
    """What the packed layout depends on: architecture, model and instruction sets of this machine's processor."""
    lines = {"model name", "flags", "Features", "CPU part", "CPU implementer"}
    found = []
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in lines and value.strip() not in found:
                found.append(value.strip())
    except OSError:
        found = [platform.processor()]
    return " ".join([platform.machine(), *found])


def cached_files(cache_dir: Path, model_hash: str, engine: str, make: Callable[[Path], None]) -> Path | None:
    """The folder with this model's packed weights, made by `make(empty folder)` when there is none that is whole.

    engine: name and version, as in "onnxruntime 1.32.0". None, after one warning, when it can be neither found nor
    made.
    """
    key = hashlib.sha256(f"{engine}\n{processor()}".encode()).hexdigest()
    entry = cache_dir / f"{engine.split()[0]}-{model_hash[:16]}-{key[:16]}"
    if _whole(entry):
        return entry
    try:
        with _alone(cache_dir):
            if not _whole(entry):  # another process may have made it meanwhile
                _make(entry, make)
    except (EdgeAlbertError, OSError) as error:
        warnings.warn(f"{cache_dir}: no cache of packed weights ({error}): starting without", stacklevel=2)
        return None
    return entry


def prepared(bundle: Path) -> Path | None:
    """The cache folder inside a bundle that was prepared, or None."""
    folder = bundle / _PREPARED
    return folder if folder.is_dir() else None


def cache_folder(bundle: Path, named: str | Path | None) -> Path:
    """Where a bundle's cache goes: the folder that was named, or the bundle's own."""
    return bundle / _PREPARED if named is None else Path(named)


def has_entry(cache_dir: Path, engine: str, model_hash: str) -> bool:
    """Whether there is an entry for the model and engine ("onnx", "tflite"), of whatever version: nothing is read."""
    return any(cache_dir.glob(f"{_PACKAGES[engine]}-{model_hash[:16]}-*/{_LISTING}"))


def _make(entry: Path, make: Callable[[Path], None]) -> None:
    for left in entry.parent.glob(".edge-albert-*.tmp"):  # by a process that was killed: no other one is making any
        shutil.rmtree(left, ignore_errors=True)
    with atomic_folder(entry, force=True) as folder:
        make(folder)
        listing = {path.name: file_hash(path) for path in sorted(folder.iterdir())}
        (folder / _LISTING).write_text(json.dumps(listing), encoding="utf-8")


@contextmanager
def _alone(cache_dir: Path) -> Iterator[None]:
    """Let one process at a time write to the folder. The system frees the lock of a process that ends."""
    new = not cache_dir.exists()
    cache_dir.mkdir(parents=True, exist_ok=True)
    handle = None if fcntl is None else os.open(cache_dir, os.O_RDONLY)
    try:
        if handle is not None:
            _wait_for(handle, time.monotonic() + _PATIENCE)
        yield
    finally:
        if handle is not None:
            os.close(handle)
        if new:
            with suppress(OSError):  # not empty, unless nothing could be written
                cache_dir.rmdir()


def _wait_for(handle: int, until: float) -> None:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise EngineError(f"another process has locked it for {_PATIENCE:.0f} s") from None
            time.sleep(0.05)


def pack_in_child(module: str, model: Path, folder: Path) -> None:
    """Let `python -m module model folder` pack in a process of its own, which leaves no heap behind and may die.

    Raises EngineError with the child's last words.
    """
    command = [sys.executable, "-m", module, str(model), str(folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineError(f"{model}: packing its weights failed ({error})") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message; is the disk full?"])[-1]
        raise EngineError(f"{model}: packing its weights ended with status {done.returncode} ({last})")


def drop(entry: Path) -> None:
    """Make an entry that an engine refused count as damaged, so that the next start makes it again."""
    try:
        (entry / _LISTING).unlink(missing_ok=True)
    except OSError as error:
        warnings.warn(f"{entry}: a refused cache entry cannot be removed ({error.strerror})", stacklevel=2)


def _whole(entry: Path) -> bool:
    """Whether every file of the entry is there with the bytes it was made with."""
    try:
        listing = json.loads((entry / _LISTING).read_text(encoding="utf-8"))
        return all(file_hash(entry / name) == digest for name, digest in listing.items())
    except (OSError, ValueError, AttributeError):
        return False
