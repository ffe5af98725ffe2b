"""The records of a run as TensorBoard's scalars; the package `tensorboard` is optional and imported when asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edge_albert.errors import EdgeAlbertError

_FOLDER = re.compile(r"[A-Za-z0-9_-]+")  # no dot: it can be none of the checkpoint's files


@contextmanager
def scalar_writer(output: Path, name: str | None) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that writes each epoch's figures to the folder `name` of `output`; one that does nothing without name.

    Raises EdgeAlbertError when the name is not a folder's bare name, or the package is missing.
    """
    if name is None:
        yield lambda record: None
        return
    if not _FOLDER.fullmatch(name):
        raise EdgeAlbertError(
            f"--tensorboard {name}: a folder inside the output folder: a name of letters, digits, - and _"
        )
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError:
        raise EdgeAlbertError(
            "--tensorboard: needs the package tensorboard: pip install 'edge-albert[tensorboard]'"
        ) from None
    with SummaryWriter(str(output / name)) as writer:

        def write(record: dict[str, Any]) -> None:
            if record["event"] == "epoch":
                scalars = {"train/loss": record["train_loss"], "train/learning_rate": record["learning_rate"]}
                scalars |= {f"dev/{figure}": value for figure, value in record["dev"].items()}
                for tag, value in scalars.items():
                    writer.add_scalar(tag, value, global_step=record["step"])

        yield write
