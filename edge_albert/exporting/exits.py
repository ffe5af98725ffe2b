"""Early exit in an export: by which rule inputs leave, what the gate is to judge, and what the report says of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from calibration.agreement import Rows
from calibration.exits import (
    Choice,
    ExitModel,
    Trial,
    choose,
    inputs_of,
    leave,
    part_of,
    points_of,
    setting,
    split_rows,
    trials,
)
from calibration.gate import Evaluation
from converters.exit_graph import check_exits
from edge_albert.checkpoint_formats.tensors import head_outputs
from edge_albert.early_exit import CRITERIA, ITERATIONS, Exits, criteria_for
from edge_albert.errors import EdgeAlbertError
from edge_albert.exporting.request import AUTO, Request
from edge_albert.exporting.source import Source
from edge_albert.runtime.engine import Engine
from edge_albert.runtime.session import make_feeds
from edge_albert.runtime.timing import statistics
from edge_albert.tokenizer import Encoding

_EXAMPLES = 5  # texts of the report that left first, and last
_EXCERPT = 120  # characters of each


@dataclass(frozen=True)
class Judgement:
    """What the float model does on labelled rows: its answers after every iteration, those that the gate is about.

    whole: all of the rows. gated: the evaluation that the file is judged by, all rows or the half that confirms.
    inputs: which of the model's inputs those are. tried: every rule, on all rows. choice: of --early-exit auto.
    """

    whole: Evaluation
    answers: Rows
    gated: Evaluation
    inputs: np.ndarray
    tried: Sequence[Trial]
    choice: Choice | None


@dataclass(frozen=True)
class ExitPlan:
    """By which rule inputs leave the exported model. judgement: None without labelled rows."""

    exits: Exits
    judgement: Judgement | None

    def leave(self, answers: Rows) -> tuple[Rows, np.ndarray]:
        """The float model's answers where inputs leave by this rule, and after which iteration."""
        return leave(answers, CRITERIA[self.exits.criterion], self.exits.threshold)


def plan_exits(
    request: Request, given: Source, evaluation: Evaluation | None, progress: Callable[[str], None]
) -> ExitPlan | None:
    """What `request.early_exit` asks for; None when it asks for nothing.

    EdgeAlbertError for a task, a checkpoint or a form of file that cannot exit early, and for options out of range.
    """
    wanted, config, task = request.early_exit, given.checkpoint.config, given.task
    if wanted is None:
        return None
    fitting = criteria_for(task.name)
    check_exits(config, unroll=request.unroll or request.compat, precision=request.precision)
    if wanted != AUTO and wanted not in fitting:
        raise EdgeAlbertError(f"--early-exit {wanted}: does not fit {task.name}: choose auto or {', '.join(fitting)}")
    labels = head_outputs(config, task.name)
    if wanted != AUTO:
        assert request.exit_threshold is not None, "a request names both or neither"
        CRITERIA[wanted].check(request.exit_threshold, labels, config.num_hidden_layers, "--exit-threshold")
        judgement = None if evaluation is None else _all_rows(given, evaluation)
        return ExitPlan(Exits(wanted, request.exit_threshold, config.num_hidden_layers, labels), judgement)
    assert evaluation is not None, "a request for auto has labelled rows"
    assert request.max_drop is not None
    judgement = _halves(given, evaluation, request.max_drop)
    assert judgement.choice is not None
    chosen, confirmed = judgement.choice.chosen, judgement.choice.confirmed
    progress(
        f"exits    {chosen.criterion} {chosen.threshold:g}: {chosen.mean_iterations:.2f} of {config.num_hidden_layers} "
        f"iterations, {chosen.drop:.2f} points lost on {judgement.choice.rows[0]} rows; on the other "
        f"{judgement.choice.rows[1]}: {confirmed.mean_iterations:.2f}, {confirmed.drop:.2f}"
    )
    return ExitPlan(Exits(chosen.criterion, chosen.threshold, config.num_hidden_layers, labels), judgement)


def _all_rows(given: Source, evaluation: Evaluation) -> Judgement:
    config = given.checkpoint.config
    answers = ExitModel(config, given.checkpoint.tensors, given.task).rows(evaluation.judged.encodings)
    tried = trials(answers, criteria_for(given.task.name), config)
    return Judgement(evaluation, answers, evaluation, np.ones(len(answers), bool), tried, None)


def _halves(given: Source, evaluation: Evaluation, max_drop: float) -> Judgement:
    halves = split_rows(evaluation)
    whole = _all_rows(given, evaluation)
    choice = choose(whole.tried, whole.answers, evaluation, halves, max_drop)
    gated, inputs = part_of(evaluation, halves[1]), inputs_of(evaluation, halves[1])
    return replace(whole, gated=gated, inputs=inputs, choice=choice)


# -- what the report says ----------------------------------------------------------------------------------------------


def plan_facts(plan: ExitPlan, given: Source) -> dict[str, Any]:
    """What the report says of the rule, and of the float model under every rule that was tried."""
    facts: dict[str, Any] = {**asdict(plan.exits), "heads": given.checkpoint.config.exit_heads}
    judgement = plan.judgement
    if judgement is None:
        return facts
    whole, everyone = judgement.whole, np.ones(len(judgement.whole.judged.gold), bool)
    full = points_of(whole, [row[-1] for row in judgement.answers], everyone)
    depths = range(plan.exits.iterations)
    return {
        **facts,
        "data": whole.source,
        "rows": len(everyone),
        "metric": whole.metric,
        "choice": None if judgement.choice is None else asdict(judgement.choice),
        "by_depth": [points_of(whole, [row[depth] for row in judgement.answers], everyone) for depth in depths],
        "curve": [asdict(setting(trial, whole, everyone, full)) for trial in judgement.tried],
    }


@dataclass(frozen=True)
class Ran:
    """What a file did with some inputs: outputs, the iterations of each (N,), milliseconds of each (N,)."""

    outputs: Rows
    iterations: np.ndarray
    ms: np.ndarray


def run_exits(engine: Engine, encodings: Sequence[Encoding], given: Source) -> Ran:
    """A text at a time, as on the device, by the file's own defaults."""
    pad, output = given.checkpoint.config.pad_token_id, given.task.output
    outputs, iterations, ms = [], np.zeros(len(encodings), np.int64), np.zeros(len(encodings))
    for index, encoding in enumerate(encodings):
        started = time.perf_counter()
        found = engine.run(make_feeds([encoding], pad))
        ms[index] = 1e3 * (time.perf_counter() - started)
        outputs.append(np.array(found[output][0]))
        iterations[index] = round(float(found[ITERATIONS][0]))
    return Ran(outputs, iterations, ms)


def joined(parts: Sequence[Ran]) -> Ran:
    """Several runs as one."""
    outputs = [output for part in parts for output in part.outputs]
    iterations, ms = (np.concatenate([getattr(part, name) for part in parts]) for name in ("iterations", "ms"))
    return Ran(outputs, iterations, ms)


def ran_facts(ran: Ran, plan: ExitPlan) -> dict[str, Any]:
    """What the report says of a file's run over the judged rows: who left when, and how long it took."""
    judgement = plan.judgement
    assert judgement is not None
    places = np.flatnonzero(judgement.inputs)
    used = ran.iterations[places]
    expected = plan.leave(judgement.answers)[1][places]
    order = places[np.argsort(used, kind="stable")]
    texts = judgement.whole.judged.texts
    first, last = ([_left(texts[i], ran.iterations[i]) for i in some] if texts else [] for some in (order, order[::-1]))
    return {
        "inputs": len(places),
        "mean_iterations": float(used.mean()),
        "histogram": np.bincount(used, minlength=plan.exits.iterations + 1)[1:].tolist(),
        "same_iteration": float((used == expected).mean()),
        "ms": statistics(ran.ms[places]),
        "first": first[:_EXAMPLES],
        "last": last[:_EXAMPLES],
    }


def _left(text: str, iterations: np.integer) -> dict[str, Any]:
    shown = text if len(text) <= _EXCERPT else f"{text[: _EXCERPT - 1]}…"
    return {"text": shown, "iterations": int(iterations)}
