"""Checkpoints that a killed run goes on from: whole or absent, checked when read, the last few kept.

    checkpoint-00001000/
      model/           a Hugging Face folder: weights, config, tokenizer; every command reads it as it is
      training.pt      the state of optimizer and schedule, and where in the data the run was
      sha256.json      the digest of every other file

The folder is written beside and renamed, so a kill leaves the one before as the newest. One that was damaged later (a
bad disk, a truncated copy) does not fit its digests; reading falls back to the one before it, with a warning.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from edge_albert.atomic import HALF_WRITTEN, atomic_folder
from edge_albert.errors import CheckpointError

_DIGESTS = "sha256.json"


@dataclass(frozen=True)
class Resumed:
    """A checkpoint read back: the `model` folder's path, and the state as it was given to `save`."""

    model: Path
    state: dict[str, Any]


def save(folder: Path, step: int, state: dict[str, Any], write_model: Callable[[Path], None], *, keep: int) -> None:
    """Write `folder`/checkpoint-<step> whole, then remove all but the newest `keep`.

    state: what torch.save can write and torch.load(weights_only=True) read. write_model: writes a model into the folder
    it is given, which does not exist yet. Raises EdgeAlbertError when the disk refuses; the older ones then stand.
    """
    target = folder / f"checkpoint-{step:08d}"
    with atomic_folder(target, force=True) as new:
        write_model(new / "model")
        torch.save(state, new / "training.pt")
        digests = {str(path.relative_to(new)): _digest(path) for path in sorted(new.rglob("*")) if path.is_file()}
        (new / _DIGESTS).write_text(json.dumps(digests, indent=2) + "\n", encoding="utf-8")
    # a later one is a damaged one that the run passed over: it is overwritten in its turn
    for old in [path for path in checkpoints(folder) if path.name <= target.name][:-keep]:
        shutil.rmtree(old)


def sweep(folder: Path) -> None:
    """Remove what a kill left half written. Only the run itself may, which is the only one to write there."""
    for path in folder.glob(HALF_WRITTEN):
        shutil.rmtree(path)


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, the oldest first."""
    return sorted(path for path in folder.glob("checkpoint-*") if path.is_dir())


def load_newest(folder: Path) -> Resumed | None:
    """The newest checkpoint that is whole, None when there is none at all; warns of every damaged one passed over.

    Raises CheckpointError when all of them are damaged.
    """
    found = checkpoints(folder)
    for path in reversed(found):
        trouble = _trouble(path)
        if trouble is None:
            return Resumed(path / "model", torch.load(path / "training.pt", map_location="cpu", weights_only=True))
        warnings.warn(f"{path}: damaged ({trouble}): going on from the checkpoint before it", stacklevel=2)
    if found:
        raise CheckpointError(f"{folder}: all {len(found)} checkpoints are damaged: start anew in another folder")
    return None


def _trouble(checkpoint: Path) -> str | None:
    """What is wrong with it, None if nothing."""
    try:
        digests = json.loads((checkpoint / _DIGESTS).read_text(encoding="utf-8"))
        if not isinstance(digests, dict) or "training.pt" not in digests:
            return f"{_DIGESTS} names no training.pt"
        for name, digest in digests.items():
            if _digest(checkpoint / name) != digest:
                return f"{name} has changed since it was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError) as error:
        return str(error)
    return None


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(2**20):
            digest.update(part)
    return digest.hexdigest()


# -- stopping on request -----------------------------------------------------------------------------------------------


@contextmanager
def stop_on_request() -> Iterator[threading.Event]:
    """An event that the first SIGINT (Ctrl-C) or SIGTERM within the block sets, instead of ending the process.

    So the work can be put in order first. A second signal is handled as before the block, for those who cannot wait.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # only there may handlers be set
        yield asked
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame: FrameType | None) -> None:
        restore()
        asked.set()

    for number in before:
        signal.signal(number, note)
    try:
        yield asked
    finally:
        restore()
