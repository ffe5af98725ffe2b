"""One model file of an export: written, read back, run by the engine that will run it, and described."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibration.agreement import Rows, compare
from calibration.gate import Evaluation, Verdict, judge
from converters.audit import audit_file
from converters.convert import Converted
from edge_albert.bundle import MODEL_FILES
from edge_albert.early_exit import NEVER
from edge_albert.exporting.exits import ExitPlan, Ran, joined, ran_facts, run_exits
from edge_albert.exporting.source import Source
from edge_albert.progress import Progress
from edge_albert.runtime.engine import Engine, open_engine
from edge_albert.runtime.session import make_feeds
from edge_albert.tokenizer import Encoding


@dataclass(frozen=True)
class Written:
    """facts: what the report says; outputs: of the file for the texts it was compared on; verdict: the gate's."""

    facts: dict[str, Any]
    converted: Converted
    outputs: Rows
    verdict: Verdict | None


@dataclass(frozen=True)
class Yardstick:
    """What a file is held against: encodings and the float model's outputs for them; of the eval set too, if any.

    All of the float model's are at full depth: what leaving early loses counts as lost. exits: with early exit, the
    rule.
    """

    encodings: Sequence[Encoding]
    expected: Rows
    evaluation: Evaluation | None
    evaluation_expected: Rows
    max_drop: float | None
    exits: ExitPlan | None = None


def write_model(given: Source, folder: Path, format: str, converted: Converted, yardstick: Yardstick) -> Written:
    """Write one model file into `folder` and find out what it is and what it answers."""
    path = folder / MODEL_FILES[format]
    path.write_bytes(converted.content)
    audit = audit_file(path, given.checkpoint.tensors, floor_bytes=converted.floor_bytes)
    with _opened(path) as engine:
        outputs = run_engine(engine, yardstick.encodings, given, yardstick.exits)
        verdict, left = _judged(engine, given, yardstick)
        version = engine.version
    facts = {
        "file": path.name,
        "engine": version,
        "form": converted.facts["form"],
        "file_bytes": audit.file_bytes,
        "floor_bytes": audit.floor_bytes,
        "tensors": {tensor.name: {"dtype": tensor.dtype, "bytes": tensor.nbytes} for tensor in audit.tensors},
        "copies": {name: len(places) for name, places in audit.copies.items()},
        "quantized_products": len(audit.quantized_products),
        "float_products": list(audit.float_products),
        "weights": {name: asdict(record) for name, record in converted.weights.items()},
        "agreement": asdict(compare(yardstick.expected, outputs, given.task)),
    }
    if left is not None:
        facts["early_exit"] = left
    return Written(facts, converted, outputs, verdict)


def run_engine(engine: Engine, encodings: Sequence[Encoding], given: Source, exits: ExitPlan | None = None) -> Rows:
    """The file's outputs, a text at a time as on the device; those at full depth of a file with early exit."""
    pad, output = given.checkpoint.config.pad_token_id, given.task.output
    full = {} if exits is None else exits.exits.feeds(NEVER)
    return [np.array(engine.run({**make_feeds([encoding], pad), **full})[output][0]) for encoding in encodings]


def _judged(engine: Engine, given: Source, yardstick: Yardstick) -> tuple[Verdict | None, dict[str, Any] | None]:
    """The gate's verdict, and with early exit who left when."""
    evaluation = yardstick.evaluation
    if evaluation is None:
        return None, None
    outputs: Rows = []
    parts: list[Ran] = []
    with Progress(len(evaluation.judged.encodings), f"judge {engine.name}") as bar:
        for encoding in evaluation.judged.encodings:
            if yardstick.exits is None:
                outputs += run_engine(engine, [encoding], given)
            else:
                parts.append(run_exits(engine, [encoding], given))
                outputs += parts[-1].outputs
            bar.update()
    left = None if yardstick.exits is None else ran_facts(joined(parts), yardstick.exits)
    return judge(evaluation, yardstick.evaluation_expected, outputs, yardstick.max_drop), left


@contextmanager
def _opened(path: Path) -> Iterator[Engine]:
    engine = open_engine(path, threads=1)  # which the report's times are said to be of
    try:
        yield engine
    finally:
        engine.close()
