"""A checkpoint becomes a bundle: read, check, convert, audit, compare, judge, measure, report; all of it or nothing.

The files are written to a temporary folder beside the target, verified there by the engine that will run them, and
renamed. What is measured goes into report.json, report.md and report.html; what a device reads is in the manifest and
depends on the input alone. An export that the gate refuses leaves a folder with the three reports and nothing else: no
model, no manifest, nothing that any reader takes for a bundle. The next export may replace such a folder without
`force`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from calibration.agreement import agreement_examples, default_texts, run_reference
from calibration.gate import Evaluation, read_evaluation
from calibration.reference import ReferenceModel
from edge_albert import __version__
from edge_albert.atomic import atomic_folder
from edge_albert.bundle import MODEL_FILES, to_json
from edge_albert.early_exit import NEVER, THRESHOLD
from edge_albert.errors import EdgeAlbertError
from edge_albert.exporting.bundle_files import (
    GOLDEN_TEXTS,
    golden_examples,
    manifest_entry,
    rounded,
    tolerance,
    write_device_files,
)
from edge_albert.exporting.exits import ExitPlan, plan_exits, plan_facts
from edge_albert.exporting.model_file import Written, Yardstick, write_model
from edge_albert.exporting.precision import Plan, Planner
from edge_albert.exporting.request import AUTO, Request
from edge_albert.exporting.source import DEFAULT_MODEL, Source, model_facts, notes, read_source, said
from edge_albert.reports.export_report import to_markdown, verdict_line
from edge_albert.reports.html.export_page import to_html
from edge_albert.reports.machine import describe_machine
from edge_albert.runtime.probe import LENGTHS, probe_in_fresh_process
from edge_albert.tokenizer import Encoding

__all__ = ["DEFAULT_MODEL", "Request", "export_bundle"]

_REPORTS = {"report.json", "report.md", "report.html"}  # all that a refused export leaves

Progress = Callable[[str], None]


def export_bundle(request: Request, progress: Progress = lambda line: None) -> dict[str, Any]:
    """Write the bundle and return the report, as it also stands in report.json. `progress` gets a line per stage.

    With an evaluation the report has `gate`; where `gate.holds` is false, the reports are all that was written. Raises
    EdgeAlbertError (CheckpointError, TokenizerError, …) and then leaves nothing behind.
    """
    _check(request)
    started = time.perf_counter()
    with atomic_folder(request.output, force=request.force or _was_refused(request.output)) as folder:
        given = read_source(request.source, request.task, exits=request.early_exit is not None)
        progress(f"read     {said(given)}")
        for note in notes(given):
            progress(f"note     {note}")
        report: dict[str, Any] = {
            "schema": "edge_albert.export_report",
            "schema_version": 1,
            "edge_albert": __version__,
            "command": request.command,
            "machine": describe_machine(),
            "model": model_facts(given),
            "precision": request.precision,
            "formats": {},
        }
        evaluation = _evaluation(request, given)
        exits = plan_exits(request, given, evaluation, progress)
        planner = Planner(request, given, progress)
        if exits is not None:
            planner.leave_early(exits.exits)
            report["early_exit"] = plan_facts(exits, given)
        examples = agreement_examples(given.checkpoint.config, given.task, given.tokenizer, default_texts())
        plan = planner.first()
        encodings = [example.encoding for example in examples]
        yardstick = _yardstick(given, encodings, evaluation, exits, request, progress)
        files = _write_until_it_holds(request, given, folder, planner, plan, yardstick, progress, report)
        report |= planner.facts
        report["formats"] = {format: written.facts for format, written in files.items()}
        report["seconds"] = {"export": round(time.perf_counter() - started, 3)}
        if not report.get("gate", {"holds": True})["holds"]:
            for format in files:
                (folder / MODEL_FILES[format]).unlink()
        else:
            golden = golden_examples(examples[:GOLDEN_TEXTS], yardstick.expected)
            _write_beside(request, given, folder, golden, files, exits)
            for format, facts in report["formats"].items() if request.measure else ():
                progress(f"measure  {MODEL_FILES[format]} in a fresh process")
                facts["runtime"] = _measure(folder / MODEL_FILES[format], given, exits)
        (folder / "report.json").write_text(to_json(report), encoding="utf-8")
        (folder / "report.md").write_text(to_markdown(report), encoding="utf-8")
        (folder / "report.html").write_text(to_html(report), encoding="utf-8")
    return report


def _check(request: Request) -> None:
    """Options that mean nothing without each other. Raises EdgeAlbertError."""
    if request.max_drop is not None and request.evaluation is None:
        raise EdgeAlbertError("--max-drop: the drop is measured on labelled rows: name them with --eval")
    if request.metric is not None and request.evaluation is None:
        raise EdgeAlbertError("--metric: is measured on labelled rows: name them with --eval")
    if request.early_exit == AUTO and request.max_drop is None:
        raise EdgeAlbertError("--early-exit auto: needs labelled rows and what may be lost: --eval FILE --max-drop X")
    if request.early_exit in (None, AUTO) and request.exit_threshold is not None:
        raise EdgeAlbertError("--exit-threshold: belongs to a criterion: name it, as in --early-exit confidence")
    if request.early_exit not in (None, AUTO) and request.exit_threshold is None:
        raise EdgeAlbertError(f"--early-exit {request.early_exit}: needs its threshold: --exit-threshold X, or auto")
    if request.fallback and request.max_drop is None:
        raise EdgeAlbertError("--fallback: needs to know what may be lost: say it with --max-drop")


def _was_refused(output: Path) -> bool:
    """Whether `output` holds what a refused export left, and nothing else."""
    return output.is_dir() and {path.name for path in output.iterdir()} == _REPORTS


def _evaluation(request: Request, given: Source) -> Evaluation | None:
    if request.evaluation is None:
        return None
    config = given.checkpoint.config
    return read_evaluation(request.evaluation, request.metric, config, given.task, given.tokenizer)


def _yardstick(
    given: Source,
    encodings: list[Encoding],
    evaluation: Evaluation | None,
    exits: ExitPlan | None,
    request: Request,
    progress: Progress,
) -> Yardstick:
    """What the files are held against; the float model runs here."""
    config, task = given.checkpoint.config, given.task
    if evaluation is not None:
        rows = len(evaluation.judged.gold)
        progress(f"judge    the float model: {evaluation.metric} on {rows} rows of {evaluation.source}")
    model = ReferenceModel(config, given.checkpoint.tensors, task)
    answered = exits is not None and exits.judgement is not None
    wanted = [encodings, [] if evaluation is None or answered else evaluation.judged.encodings]
    expected, judged = (run_reference(model, part, config.pad_token_id, task.per_token) for part in wanted)
    if exits is not None and exits.judgement is not None:
        evaluation, judged = exits.judgement.gated, [row[-1] for row in exits.judgement.answers]
    return Yardstick(encodings, expected, evaluation, judged, request.max_drop, exits)


def _write_until_it_holds(
    request: Request,
    given: Source,
    folder: Path,
    planner: Planner,
    plan: Plan,
    yardstick: Yardstick,
    progress: Progress,
    report: dict[str, Any],
) -> dict[str, Written]:
    """Write every format by `plan` and, with `fallback`, by higher ones until the gate holds or none is left.

    The first retry raises one matrix, the next two, then four: few retries even where all must rise.
    """
    refused: list[dict[str, Any]] = []
    count = 1
    while True:
        files = {}
        for format in request.formats:
            converted = planner.convert(plan, format)
            files[format] = write_model(given, folder, format, converted, yardstick)
            progress(f"wrote    {request.output / MODEL_FILES[format]}")
        report["overrides"] = dict(plan.overrides)
        if yardstick.evaluation is None:
            return files
        gate = _gate(yardstick.evaluation, files, plan)
        for format, verdict in gate["formats"].items():
            progress(f"gate     {MODEL_FILES[format]}: {verdict_line(verdict)}")
        higher = planner.raised(plan, count) if request.fallback and not gate["holds"] else None
        if higher is None:
            report["gate"] = {**gate, "fallback": request.fallback, "refused": refused}
            return files
        refused.append(gate)
        plan, count = higher, 2 * count


def _gate(evaluation: Evaluation, files: Mapping[str, Written], plan: Plan) -> dict[str, Any]:
    verdicts = {format: written.verdict.to_json() for format, written in files.items() if written.verdict}
    return {
        "data": evaluation.source,
        "sha256": evaluation.judged.sha256,
        "formats": verdicts,
        "holds": all(verdict["holds"] for verdict in verdicts.values()),
        "overrides": dict(plan.overrides),
    }


def _write_beside(
    request: Request,
    given: Source,
    folder: Path,
    golden: dict[str, Any],
    files: Mapping[str, Written],
    exits: ExitPlan | None,
) -> None:
    """Golden examples with what each file answers, the tokenizer and the manifest."""
    for format, written in files.items():
        outputs = written.outputs[:GOLDEN_TEXTS]
        golden["outputs"][format] = [rounded(row) for row in outputs]
        golden["tolerance"][format] = tolerance(request.precision, outputs)
    models = {format: manifest_entry(format, written.converted) for format, written in files.items()}
    engines = {format: written.facts["engine"] for format, written in files.items()}
    more = {} if exits is None else {"early_exit": asdict(exits.exits)}
    write_device_files(request, given, folder, golden, models, engines, more)


def _measure(path: Path, given: Source, exits: ExitPlan | None) -> dict[str, Any]:
    """On random tokens, which say nothing about when real ones leave: so with every iteration."""
    config = given.checkpoint.config
    longest = config.max_position_embeddings
    lengths = [length for length in LENGTHS if length <= longest] or [longest]
    threshold = None if exits is None else float(exits.exits.feeds(NEVER)[THRESHOLD])
    return probe_in_fresh_process(path, lengths=lengths, vocab_size=config.vocab_size, exit_threshold=threshold)
