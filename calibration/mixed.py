"""Which matrix gets which precision, when a size or a loss is given: the cheapest step first.

Every matrix starts in fp32. A step gives one matrix fewer bits, fp32 ► int8 ► int4 or fp32 ► int4 at once, and costs
its share of loss (calibration/sensitivity.py) per byte it saves. The step with the least cost goes first, then the
next: the greedy walk for a knapsack with choices (Sinha and Zoltners, Operations Research 27, 1979), which takes only
steps on the lower convex hull of each matrix and is optimal but for the last step. It takes the losses of single
matrices as if they added up. They nearly do when small; what the chosen file loses as a whole is measured afterwards,
not assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from calibration.sensitivity import PRECISIONS, Sensitivity
from converters.quantize import fitting_block

_NOTICED = 0.01  # a step is worth taking back when it is this share of all that is lost
Assignment = dict[str, str]  # weight name ► fp32, int8 or int4


@dataclass(frozen=True)
class Step:
    """The matrix `name` goes to `precision`, saving `saved` bytes, and the loss grows by `loss`."""

    name: str
    precision: str
    saved: int
    loss: float


def stored_bytes(shape: Sequence[int], precision: str, block_size: int) -> int:
    """Of a matrix (rows, columns) with its scales: float32 per row for int8, float16 per block for int4."""
    rows, columns = shape
    if precision == "fp32":
        return 4 * rows * columns
    block = fitting_block(columns, block_size) if precision == "int4" else None
    if block is None:
        return rows * columns + 4 * rows
    return rows * columns // 2 + 2 * rows * columns // block


def walk(sensitivity: Sensitivity, shapes: Mapping[str, Sequence[int]], block_size: int) -> list[Step]:
    """All steps from fp32 everywhere to the smallest file, the least loss per byte first."""
    steps = []
    for name, costs in sensitivity.matrices.items():
        options = [("fp32", stored_bytes(shapes[name], "fp32", block_size), 0.0)]
        loss = 0.0
        for precision in PRECISIONS:
            loss = max(loss, costs[precision].loss)  # fewer bits never count as better, though chance may say so
            options.append((precision, stored_bytes(shapes[name], precision, block_size), loss))
        steps += _hull(name, options)
    return sorted(steps, key=lambda step: (step.loss / step.saved, step.name))


def smallest(shapes: Mapping[str, Sequence[int]], block_size: int) -> Assignment:
    """Every matrix in its fewest bytes: where the walk ends."""
    options = ("fp32", *PRECISIONS)
    return {name: min(options, key=lambda p: stored_bytes(shape, p, block_size)) for name, shape in shapes.items()}


def assignment(sensitivity: Sensitivity, steps: Sequence[Step]) -> Assignment:
    """The precision of every matrix after these steps; the later of two steps of one matrix holds."""
    return {name: "fp32" for name in sensitivity.matrices} | {step.name: step.precision for step in steps}


def fit_bytes(steps: Sequence[Step], limit: int, size_of: Callable[[Sequence[Step]], int]) -> list[Step]:
    """The steps of least loss whose file has at most `limit` bytes. size_of: the file's bytes after some steps.

    As few steps of the walk as do it; the last may have saved far more than was needed, so the costliest of the others
    are then taken back where there is room. All steps together must do it.
    """
    low, high = -1, len(steps)  # the file of `high` steps fits, that of `low` does not (or has not been written)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if size_of(steps[:middle]) <= limit else (middle, high)
    chosen = list(steps[:high])
    noticed = _NOTICED * sum(step.loss for step in chosen)
    for step in sorted(chosen, key=lambda step: -step.loss):
        fewer = [other for other in chosen if other is not step]
        last = step.precision == PRECISIONS[-1] or all(other.name != step.name for other in fewer)
        if step.loss > noticed and last and size_of(fewer) <= limit:
            chosen = fewer
    return chosen


def fit_loss(steps: Sequence[Step], limit: float, loss_of: Callable[[Sequence[Step]], float]) -> list[Step]:
    """As many steps of the walk as lose at most `limit`. loss_of: what is lost after some steps."""
    low, high = 0, len(steps) + 1  # `low` steps are within the limit, `high` are not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if loss_of(steps[:middle]) <= limit else (low, middle)
    return list(steps[:low])


def raised(sensitivity: Sensitivity, current: Mapping[str, str], count: int) -> Assignment:
    """`current` with the `count` most sensitive matrices in a higher precision: int4 ► int8, and int8 ► fp32.

    The most sensitive is the one that costs most as it stands; each of the `count` is the most sensitive that the ones
    before have left, so one matrix can rise twice. Matrices that are fp32 already stay.
    """
    out = dict(current)
    for _ in range(count):
        costs = {name: _loss(sensitivity, name, precision) for name, precision in out.items() if precision != "fp32"}
        if not costs:
            break
        worst = max(costs, key=lambda name: (costs[name], name))
        out[worst] = "int8" if out[worst] == "int4" else "fp32"
    return out


def _loss(sensitivity: Sensitivity, name: str, precision: str) -> float:
    return sensitivity.matrices[name]["int4" if precision == "int4" else "int8"].loss


def _hull(name: str, options: Sequence[tuple[str, int, float]]) -> list[Step]:
    """Steps between the options (precision, bytes, loss), largest first, that lie on the lower convex hull."""
    kept = [options[0]]
    for option in options[1:]:
        if option[1] >= kept[-1][1]:
            continue  # no smaller: a matrix that has no int4
        while len(kept) > 1 and _slope(kept[-2], option) <= _slope(kept[-2], kept[-1]):
            kept.pop()
        kept.append(option)
    return [Step(name, small[0], large[1] - small[1], small[2] - large[2]) for large, small in pairwise(kept)]


def _slope(large: tuple[str, int, float], small: tuple[str, int, float]) -> float:
    """Loss per byte saved."""
    return (small[2] - large[2]) / (large[1] - small[1])
