"""A loss or gradient that is not finite: the run stops before the weights are touched, and its batch is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from edge_albert.atomic import write_file_atomic
from edge_albert.errors import EdgeAlbertError

_NAMED = 8  # lines in the message; all of them are in the file


class NotFiniteError(EdgeAlbertError):
    """batch: JSON-able: loss, gradient_norm, step, learning_rate, lines of the data, input_ids as the model got them,
    padded. gradient_norm: None where the loss itself is not finite."""

    def __init__(
        self,
        loss: float,
        gradient_norm: float | None,
        schedule: LRScheduler,
        lines: np.ndarray,
        input_ids: Tensor,
        data: str,
    ) -> None:
        named = sorted(set(lines.tolist()))  # windows of one text share its line
        rate = schedule.get_last_lr()[0]
        self.batch: dict[str, Any] = {
            "loss": str(loss), "gradient_norm": None if gradient_norm is None else str(gradient_norm),
            "step": schedule.last_epoch + 1, "learning_rate": rate, "lines": named, "input_ids": input_ids.tolist(),
        }  # fmt: skip
        what = f"loss is {loss}" if gradient_norm is None else f"loss's gradient is {gradient_norm}"
        shown = ", ".join(map(str, named[:_NAMED])) + (", …" if len(named) > _NAMED else "")
        super().__init__(
            f"the training {what} at step {self.batch['step']}, learning rate {rate:.3g}, lines {shown} of the "
            f"{data}: try a lower --lr or a longer --warmup"
        )


def batch_file(folder: Path, step: int) -> Path:
    """Where a run in `folder` keeps the batch of that step."""
    return folder / f"not-finite-{step:08d}.json"


@contextmanager
def batch_saved(output: Path) -> Iterator[None]:
    """Let a NotFiniteError out as an EdgeAlbertError that says where in `output` its batch is."""
    try:
        yield
    except NotFiniteError as error:
        output.mkdir(parents=True, exist_ok=True)
        path = batch_file(output, error.batch["step"])
        write_file_atomic(path, json.dumps(error.batch))
        raise EdgeAlbertError(f"{error}, with --force; the batch is in {path}, nothing else was written") from None
