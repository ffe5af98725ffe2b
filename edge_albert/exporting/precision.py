"""Which precision every matrix of an export gets, and what has to be measured to say so.

A `Plan` is what the writers are told. The `Planner` makes the first one from the request, and the next ones when the
gate has refused it; calibration texts, ranges and sensitivities are worked out once, when something first asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from calibration.agreement import Rows, run_reference
from calibration.collect import Calibration, collect, read_calibration
from calibration.gptq import compensated_weights
from calibration.mixed import Step, assignment, fit_bytes, fit_loss, raised, smallest, walk
from calibration.reference import ReferenceModel
from calibration.sensitivity import Sensitivity, canonical_weights, fake_quantize, measure_sensitivity, points_lost
from calibration.texts import TextSet, calibration_set
from converters.convert import Converted, convert
from converters.quantize import ActivationRanges, BlockQuantized
from edge_albert.early_exit import Exits
from edge_albert.errors import EdgeAlbertError
from edge_albert.exporting.request import MIXED, Request
from edge_albert.exporting.source import Source

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What the writers are told; the fields are those of `converters.convert.convert`."""

    precision: str
    overrides: Mapping[str, str] = field(default_factory=dict)
    rounded: Mapping[str, BlockQuantized] = field(default_factory=dict)
    ranges: ActivationRanges | None = None


class Planner:
    """Makes plans for one request. `facts` is what the report says of how they came about."""

    def __init__(self, request: Request, given: Source, progress: Progress) -> None:
        self._request = request
        self._given = given
        self._progress = progress
        self._exits: Exits | None = None
        self.facts: dict[str, Any] = {}

    def leave_early(self, exits: Exits) -> None:
        """Have every file that is converted from now on let its inputs leave by this rule."""
        self._exits = exits

    def first(self) -> Plan:
        """The plan that was asked for. Raises EdgeAlbertError when no file can be as small as asked."""
        request = self._request
        if request.precision == MIXED:
            return self._mixed()
        if request.precision == "int8-static":
            ranges = self.calibration.ranges(request.ranges, per_iteration=request.per_iteration)
            return Plan("int8-static", ranges=ranges)
        return self._rounded(Plan(request.precision))

    def raised(self, plan: Plan, count: int) -> Plan | None:
        """`plan` with its `count` most sensitive matrices in a higher precision; None when nothing is left to raise."""
        current = {name: plan.overrides.get(name, plan.precision) for name in self.sensitivity.matrices}
        higher = raised(self.sensitivity, current, count)
        changed = {name: precision for name, precision in higher.items() if precision != current[name]}
        if not changed:
            return None
        said = ", ".join(f"{name} {current[name]} ► {precision}" for name, precision in sorted(changed.items()))
        self._progress(f"raise    {said}")
        return self._rounded(replace(plan, overrides={**plan.overrides, **changed}))

    def convert(self, plan: Plan, format: str) -> Converted:
        """The model in one format by that plan."""
        given, request = self._given, self._request
        return convert(
            given.checkpoint.config,
            given.checkpoint.tensors,
            given.task,
            format=format,
            precision=plan.precision,
            unroll=request.unroll,
            compat=request.compat,
            tokenizer_file=given.tokenizer.rules["file"],
            overrides=plan.overrides,
            block_size=request.block_size,
            rounded=plan.rounded,
            ranges=plan.ranges,
            exits=self._exits,
        )

    # -- what is worked out once ---------------------------------------------------------------------------------------

    @cached_property
    def texts(self) -> TextSet:
        given = self._given
        texts = calibration_set(self._request.calibration_data, given.checkpoint.config, given.task, given.tokenizer)
        if texts.warning:
            self._progress(f"note     {texts.warning}")
        return texts

    @cached_property
    def _stored(self) -> Calibration | None:
        """What `request.calibration` holds."""
        path = self._request.calibration
        return None if path is None else read_calibration(path, self._given.checkpoint, self._given.task)

    @cached_property
    def calibration(self) -> Calibration:
        given, found = self._given, self._stored
        if found is None:
            self._progress(f"collect  activation ranges from {len(self.texts.examples)} texts of {self.texts.source}")
            found = collect(given.checkpoint, given.task, self.texts)
        method, shared = self._request.ranges, not self._request.per_iteration
        self.facts["calibration"] = {**found.content, "method": method, "per_iteration": not shared}
        self.facts["calibration"].pop("sensitivity", None)
        return found

    @cached_property
    def sensitivity(self) -> Sensitivity:
        given, found = self._given, None if self._stored is None else self._stored.sensitivity
        if found is None:
            self._progress("study    what each matrix costs in fewer bits")
            found = measure_sensitivity(
                given.checkpoint,
                given.task,
                self.texts.encodings,
                block_size=self._request.block_size,
                by_iteration=False,
            )
        self.facts["sensitivity"] = found.to_json()
        return found

    @cached_property
    def _shapes(self) -> dict[str, Sequence[int]]:
        tensors = self._given.checkpoint.tensors
        return {name: tensors[full].shape for name, full in self._names.items()}

    @cached_property
    def _names(self) -> dict[str, str]:
        return canonical_weights(self._given.checkpoint, self._given.task)

    @cached_property
    def _expected(self) -> Rows:
        return self._reference_rows(self._reference)

    @cached_property
    def _reference(self) -> ReferenceModel:
        return ReferenceModel(self._given.checkpoint.config, self._given.checkpoint.tensors, self._given.task)

    # -- choosing ------------------------------------------------------------------------------------------------------

    def _mixed(self) -> Plan:
        request = self._request
        if request.mixed_bytes is not None:
            self._refuse_too_few(request.mixed_bytes)
        sensitivity = self.sensitivity
        steps = walk(sensitivity, self._shapes, request.block_size)
        if request.mixed_bytes is not None:
            taken = fit_bytes(steps, request.mixed_bytes, lambda part: self._file_bytes(self._choice(part)))
        else:
            assert request.max_loss is not None, "a mixed request has one of the two"
            self._progress(f"search   the most steps that lose {request.max_loss:g} points at most")
            taken = fit_loss(steps, request.max_loss, lambda part: self._points_lost(self._choice(part)))
        chosen = self._choice(taken)
        lost = self._points_lost(chosen)
        self.facts["choice"] = {
            "asked": {"bytes": request.mixed_bytes, "points": request.max_loss},
            "precisions": chosen,
            "points_lost": lost,
            "texts": len(self._expected),
            "steps": [asdict(step) for step in taken],
        }
        self._progress(f"choose   {_said(chosen)}; {lost:.2f} points lost on {len(self._expected)} calibration texts")
        return self._rounded(Plan("int8", overrides=chosen))

    def _refuse_too_few(self, limit: int) -> None:
        """EdgeAlbertError that names the smallest size this model can have, before anything is measured."""
        least = self._file_bytes(smallest(self._shapes, self._request.block_size))
        if least > limit:
            raise EdgeAlbertError(
                f"--mixed {limit}: the smallest file this model can be is {least} bytes, everything in its fewest "
                "bits: allow more, or train a smaller model"
            )

    def _choice(self, steps: Sequence[Step]) -> dict[str, str]:
        return assignment(self.sensitivity, steps)

    def _file_bytes(self, chosen: Mapping[str, str]) -> int:
        """Of the largest of the files asked for."""
        plan = Plan("int8", overrides=chosen)
        return max(len(self.convert(plan, format).content) for format in self._request.formats)

    def _points_lost(self, chosen: Mapping[str, str]) -> float:
        """By the calibration texts, with all matrices rounded at once."""
        tensors = dict(self._given.checkpoint.tensors)
        for name, precision in chosen.items():
            full = self._names[name]
            tensors[full] = fake_quantize(self._given.checkpoint.float32(full), precision, self._request.block_size)
        model = ReferenceModel(self._given.checkpoint.config, tensors, self._given.task)
        return points_lost(self._expected, self._reference_rows(model), self._given.task)

    def _reference_rows(self, model: ReferenceModel) -> Rows:
        pad = self._given.checkpoint.config.pad_token_id
        return run_reference(model, self.texts.encodings, pad, self._given.task.per_token)

    def _rounded(self, plan: Plan) -> Plan:
        """The plan with the rounding of its int4 matrices chosen by error compensation (calibration/gptq.py)."""
        given = self._given
        small = [name for name in self._names if plan.overrides.get(name, plan.precision) == "int4"]
        if not small or plan.rounded:  # a raised plan has fewer int4 matrices than the one before, never others
            return replace(plan, rounded={name: plan.rounded[name] for name in small if name in plan.rounded})
        self._progress(f"round    to 4 bits, errors made up for on {len(self.texts.examples)} texts")
        rounded = compensated_weights(
            given.checkpoint, given.task, self.texts.encodings, small, block_size=self._request.block_size
        )
        return replace(plan, rounded=rounded)


def _said(chosen: Mapping[str, str]) -> str:
    """fp32: a, b; int8: c; int4: d"""
    kinds = ("fp32", "int8", "int4")
    groups = {kind: [name for name, precision in chosen.items() if precision == kind] for kind in kinds}
    return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in groups.items() if names)
