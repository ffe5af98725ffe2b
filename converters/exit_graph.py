"""Early exit, said once for both formats: the loop over the shared layer that ends when every input has left.

What goes round the loop: x (B, S, H); the answers, frozen for inputs that have left; `active` (B,), 1 for those that
have not; `used` (B,), how many iterations each has had; with patience, how long its answer has stayed. After every
iteration the head answers for all, an active input takes the new answer, and it stays active while its criterion is not
met and the depth allows. So the answer of an input depends on itself alone, whatever its neighbours in a batch do.

Threshold and depth are inputs of the graph. What the criteria mean and where they come from: edge_albert/early_exit.py.
Everything here is float32 with flags of 0 and 1, in operators that both formats have; the heads stay float32 too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from converters.arithmetic import Arithmetic
from converters.graph import GraphWriter, State, Tensor
from edge_albert.config import AlbertConfig
from edge_albert.early_exit import CRITERIA, DEPTH, ITERATIONS, THRESHOLD, Exits, check_shape
from edge_albert.errors import EdgeAlbertError
from edge_albert.tasks import Task

_NO_ANSWER = 1e30  # before the first iteration: far from every answer there will be


@dataclass(frozen=True)
class ExitRule:
    """What an exported graph is told: the criterion and the defaults of threshold and depth (`Exits`), the answers.

    layer: x, mask ► x after one iteration. answer: x, number of the iteration ► logits (B, C), or (B, S, C).
    """

    exits: Exits
    layer: Callable[[Tensor, Tensor], Tensor]
    answer: Callable[[Tensor, Tensor], Tensor]


def check_exits(config: AlbertConfig, *, unroll: bool, precision: str) -> None:
    """EdgeAlbertError for a model or a form of file that cannot exit early."""
    if config.exit_heads is None:
        raise EdgeAlbertError(
            "--early-exit: this checkpoint has no answer after every iteration: train it with "
            "python -m edge_albert.finetune … --early-exit"
        )
    if unroll:
        raise EdgeAlbertError(
            "--early-exit: an unrolled graph (--unroll, --tflite-compat) always runs every iteration: leave one out"
        )
    check_shape(config)
    if precision == "int8-static":
        raise EdgeAlbertError(
            "--early-exit with --int8-static: its ranges are those of the last iteration's answer: choose --int8"
        )


def write_exits(writer: GraphWriter, task: Task, x: Tensor, mask: Tensor, padding: Tensor, rule: ExitRule) -> None:
    """Write the loop, and the outputs: the task's, and how many iterations each input has used, (B,) float32.

    mask: as `writer.attention_mask` made it of `padding` (B, S).
    """
    math, exits = writer.math, rule.exits
    threshold = writer.scalar_input(THRESHOLD, np.float32(exits.threshold))
    wanted = math.cast("depth.wanted", writer.scalar_input(DEPTH, np.int64(exits.iterations)))
    depth = math.min("depth", wanted, float(exits.iterations))
    flags = math.cast("exit.flags", padding)  # (B, S)
    active = math.reduce_max("exit.active", flags)  # (B,): the first token is never padding
    state = {
        "input": x,
        "answer": _no_answer(math, flags if task.per_token else active, exits.labels),
        "active": active,
        "used": math.mul("exit.used", active, 0.0),
    }
    if exits.criterion == "patience":
        state["running"] = math.mul("exit.running", active, -1.0)
    constants = [mask, threshold, depth, *([_counted(math, flags)] if task.per_token else [])]

    def body(iteration: Tensor, state: State, constants: Sequence[Tensor]) -> tuple[State, Tensor]:
        mask, threshold, depth, *counted = constants
        x = rule.layer(state["input"], mask)
        answer = rule.answer(x, iteration)
        unsettled, kept = _unsettled(math, exits.criterion, answer, state, threshold, counted[0] if counted else None)
        done = math.add("exit.done", math.cast("exit.iteration", iteration), 1.0)
        deeper = math.mul("exit.deeper", unsettled, math.less("exit.below_depth", done, depth))
        stays = math.mul("exit.stays", state["active"], deeper)
        following = {
            "input": x,
            "answer": _choose(math, state["active"], answer, state["answer"]),
            "active": stays,
            "used": math.add("exit.used_now", state["used"], state["active"]),
            **kept,
        }
        return following, math.reduce_max("exit.any_stays", stays)

    last = writer.exit_loop("encoder.group_0", exits.iterations, state, constants, body)
    writer.output(task.output, last["answer"])
    writer.output(ITERATIONS, last["used"])


def _no_answer(math: Arithmetic, like: Tensor, labels: int) -> Tensor:
    """(B,) or (B, S) ► (B, C) or (B, S, C)"""
    row = math.constant("exit.no_answer", np.full(labels, _NO_ANSWER, np.float32))
    column = math.column("exit.column", math.mul("exit.zeros", like, 0.0), len(like.shape) + 1)
    return math.add("exit.first_answer", column, row)


def _counted(math: Arithmetic, flags: Tensor) -> Tensor:
    """1 for the tokens between [CLS] and [SEP], else 0: how far a token is from both ends, at most 1. (B, S)"""
    place = math.running_sum("exit.place", flags)  # from 1
    length = math.column("exit.length", math.reduce_sum("exit.tokens", flags), 2)  # (B, 1)
    from_start = math.sub("exit.from_start", place, 1.0)
    nearest = math.min("exit.nearest", from_start, math.sub("exit.from_end", length, place))
    return math.min("exit.counted", nearest, 1.0)  # padding repeats the last place, so its distance is 0


def _unsettled(
    math: Arithmetic,
    criterion: str,
    answer: Tensor,
    state: State,
    threshold: Tensor,
    counted: Tensor | None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Which inputs the criterion would not let go, (B,) of 0 and 1; and what it remembers of this iteration."""

    def of_input(name: str, flags: Tensor) -> Tensor:
        """A sentence is unsettled when any of its tokens is."""
        return flags if counted is None else math.reduce_max(name, math.mul(f"{name}.counted", flags, counted))

    if criterion == "patience":
        now, before = math.argmax("exit.label", answer), math.argmax("exit.label_before", state["answer"])
        differs = math.min("exit.differs", math.abs("exit.moved", math.sub("exit.label_step", now, before)), 1.0)
        same = math.sub("exit.same", math.constant("exit.one", np.float32(1)), of_input("exit.changed", differs))
        running = math.mul("exit.running_now", math.add("exit.running_more", state["running"], 1.0), same)
        return math.less("exit.unsettled", running, threshold), {"running": running}
    score = _score(math, criterion, answer, state["answer"])
    operands = (score, threshold) if CRITERIA[criterion].at_least else (threshold, score)
    return of_input("exit.unsettled", math.less("exit.unsure", *operands)), {}


def _score(math: Arithmetic, criterion: str, answer: Tensor, before: Tensor) -> Tensor:
    """(B, C) or (B, S, C) ► (B,) or (B, S): the criterion's measure."""
    if criterion == "change":
        return math.reduce_max("exit.change", math.abs("exit.moved", math.sub("exit.step", answer, before)))
    probabilities = math.softmax("exit.probabilities", answer)
    if criterion == "confidence":
        return math.reduce_max("exit.confidence", probabilities)
    tiny = float(np.finfo(np.float32).tiny)
    logs = math.log("exit.logs", math.max("exit.guarded", probabilities, tiny))
    return math.mul("exit.entropy", math.reduce_sum("exit.sum", math.mul("exit.terms", probabilities, logs)), -1.0)


def _choose(math: Arithmetic, active: Tensor, answer: Tensor, frozen: Tensor) -> Tensor:
    """active · answer + (1 - active) · frozen: exactly the one or the other."""
    flag = math.column("exit.active_column", active, len(answer.shape))
    other = math.sub("exit.left_column", math.constant("exit.one", np.float32(1)), flag)
    new, old = math.mul("exit.new", answer, flag), math.mul("exit.old", frozen, other)
    return math.add("exit.answer", new, old)
