"""What several commands' options share: numbers within limits, refused by argparse in one line where they lie outside,
and the schedule of a training."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge_albert.training.finetuning.loop import Recipe


def _integer(text: str) -> int:
    """Digits alone: int() would take " 1_0 " and digits of other scripts too."""
    if not text.isascii() or not text.isdigit():
        raise ValueError(text)
    return int(text)


def _number(read: Callable[[str], float], allowed: Callable[[float], bool], said: str) -> Callable[[str], Any]:
    """An argparse type: what `read` makes of the text if it is `allowed`, else the error "'…' is not `said`"."""

    def convert(text: str) -> float:
        try:
            value = read(text)
        except ValueError:
            value = math.nan
        if not allowed(value):  # never of nan
            raise argparse.ArgumentTypeError(f"{text!r} is not {said}")
        return value

    return convert


whole = _number(_integer, lambda value: value >= 1, "a whole number of at least 1")
count = _number(_integer, lambda value: value >= 0, "a whole number of at least 0")
positive = _number(float, lambda value: 0 < value < math.inf, "a number above 0")
weight = _number(float, lambda value: 0 <= value < math.inf, "a number of at least 0")
share = _number(float, lambda value: 0 <= value <= 1, "a number from 0 to 1")
part = _number(float, lambda value: 0 < value < 1, "a number between 0 and 1")
share_below_one = _number(float, lambda value: 0 <= value < 1, "a number from 0 to less than 1")
byte_count = _number(_integer, lambda value: value >= 1, "a number of bytes")
points = _number(float, lambda value: 0 <= value <= 100, "a number of points from 0 to 100")


def wholes(text: str) -> tuple[int, ...]:
    """1,4,8 ► (1, 4, 8), each once."""
    return tuple(dict.fromkeys(whole(part) for part in text.split(",")))


def add_schedule(group: argparse._ArgumentGroup, recipe: Recipe, looks: str) -> None:
    """Options for the fields of a `Recipe`, whose values are the defaults. looks: what `patience` counts."""
    group.add_argument("--epochs", type=whole, default=recipe.epochs, metavar="N", help="at most (%(default)s)")
    group.add_argument("--batch-size", type=whole, default=recipe.batch_size, metavar="N", help="rows (%(default)s)")
    group.add_argument("--lr", type=positive, default=recipe.learning_rate, help="peak learning rate (%(default)s)")
    group.add_argument(
        "--warmup", type=share, default=recipe.warmup, metavar="SHARE", help="of all steps (%(default)s)"
    )
    group.add_argument("--weight-decay", type=share, default=recipe.weight_decay, help="(%(default)s)")
    group.add_argument(
        "--patience",
        type=whole,
        default=recipe.patience,
        metavar="N",
        help=f"{looks} without a better dev set (%(default)s)",
    )
    group.add_argument("--seed", type=count, default=recipe.seed, help="(%(default)s)")


def add_dropout(group: argparse._ArgumentGroup) -> None:
    """--dropout, of the model that is trained."""
    group.add_argument(
        "--dropout",
        type=share,
        metavar="P",
        help="of hidden states, attention and classifier (the checkpoint's; pre-trained ones often have 0)",
    )
