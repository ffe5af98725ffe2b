"""A checkpoint becomes a bundle: read, check, convert, audit, compare, measure, report; all of it or nothing.

The files are written to a temporary folder beside the target, verified there by the engine that will run them, and
renamed. What is measured goes into report.json and report.md; what a device reads is in the manifest and depends on the
input alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibration.agreement import Example, agreement_examples, compare, default_texts, run_reference
from calibration.reference import ReferenceModel
from converters.audit import audit_file
from converters.convert import BYTES_PER_PARAMETER, Converted, convert
from converters.tflite_metadata import LABELS_FILE
from edge_albert import __version__
from edge_albert.android import TABLE, tokenizer_table
from edge_albert.atomic import atomic_folder
from edge_albert.bundle import GOLDEN, MODEL_FILES, to_json, write_manifest
from edge_albert.checkpoint import Checkpoint, read_checkpoint
from edge_albert.checkpoint_formats.tensors import head_outputs
from edge_albert.config import count_macs, count_parameters
from edge_albert.errors import CheckpointError, TokenizerError
from edge_albert.reports.export_report import to_markdown
from edge_albert.reports.machine import describe_machine
from edge_albert.runtime.engine import open_engine
from edge_albert.runtime.probe import LENGTHS, probe_in_fresh_process
from edge_albert.runtime.session import make_feeds
from edge_albert.tasks import Task, get_task
from edge_albert.tokenization import tokenizer_json
from edge_albert.tokenizer import Encoding, Tokenizer, load_tokenizer

DEFAULT_MODEL = Path(__file__).parent / "default_model"
_GOLDEN_TEXTS = 5
_ROUND = 6  # decimals of golden outputs

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What to export. source: folder or hub name; task: None for the checkpoint's own; command: for the manifest.

    android: also write the table of the tokenizer's rules that the Android library reads.
    """

    source: str
    output: Path
    task: str | None = None
    precision: str = "int8"
    formats: tuple[str, ...] = ("onnx",)
    unroll: bool = False
    compat: bool = False
    force: bool = False
    measure: bool = True
    android: bool = False
    command: str = ""


@dataclass(frozen=True)
class _Input:
    """What was read: the checkpoint, what it is exported for, its tokenizer, and its unique parameters."""

    checkpoint: Checkpoint
    task: Task
    tokenizer: Tokenizer
    parameters: int


def export_bundle(request: Request, progress: Progress = lambda line: None) -> dict[str, Any]:
    """Write the bundle and return the report, as it also stands in report.json. `progress` gets a line per stage.

    Raises EdgeAlbertError (CheckpointError, TokenizerError, …) and then leaves nothing behind.
    """
    started = time.perf_counter()
    with atomic_folder(request.output, force=request.force) as folder:
        given = _read(request)
        progress(f"read     {_said(given)}")
        for note in _notes(given):
            progress(f"note     {note}")
        report: dict[str, Any] = {
            "schema": "edge_albert.export_report",
            "schema_version": 1,
            "edge_albert": __version__,
            "command": request.command,
            "machine": describe_machine(),
            "model": _model_facts(given),
            "precision": request.precision,
            "formats": {},
        }
        examples = agreement_examples(given.checkpoint.config, given.task, given.tokenizer, default_texts())
        encodings = [example.encoding for example in examples]
        reference = ReferenceModel(given.checkpoint.config, given.checkpoint.tensors, given.task)
        expected = run_reference(reference, encodings, given.checkpoint.config.pad_token_id, given.task.per_token)
        golden = _golden(examples[:_GOLDEN_TEXTS], expected)
        models = {}
        for format in request.formats:
            facts, converted, outputs = _write_model(request, given, folder, format, encodings, expected)
            golden["outputs"][format] = [_rounded(row) for row in outputs[:_GOLDEN_TEXTS]]
            golden["tolerance"][format] = _tolerance(request.precision, outputs[:_GOLDEN_TEXTS])
            report["formats"][format] = facts
            models[format] = _manifest_entry(format, converted)
            progress(_wrote(request.output, format, facts))
        engines = {format: facts["engine"] for format, facts in report["formats"].items()}
        _write_device_files(request, given, folder, golden, models, engines)
        report["seconds"] = {"export": round(time.perf_counter() - started, 3)}
        if request.measure:
            for format, facts in report["formats"].items():
                progress(f"measure  {MODEL_FILES[format]} in a fresh process")
                facts["runtime"] = _measure(folder / MODEL_FILES[format], given)
        (folder / "report.json").write_text(to_json(report), encoding="utf-8")
        (folder / "report.md").write_text(to_markdown(report), encoding="utf-8")
    return report


# -- reading ----------------------------------------------------------------------------------------------------------


def _read(request: Request) -> _Input:
    checkpoint = read_checkpoint(request.source, task=request.task)
    if checkpoint.task is None:
        raise CheckpointError(
            f"{checkpoint.source}: has no task head: export it with --task sentence-embedding, or fine-tune it first "
            "(python -m edge_albert.finetune)"
        )
    tokenizer = load_tokenizer(checkpoint.folder)
    if tokenizer.vocab_size != checkpoint.config.vocab_size:
        raise TokenizerError(
            f"{checkpoint.folder}: the tokenizer has {tokenizer.vocab_size} entries, the model's vocab_size is "
            f"{checkpoint.config.vocab_size}: they belong to different models"
        )
    task = get_task(checkpoint.task)
    return _Input(checkpoint, task, tokenizer, _parameters(checkpoint, task))


def _said(given: _Input) -> str:
    labels = f": {', '.join(given.checkpoint.config.labels[:6])}" if given.task.name.endswith("classification") else ""
    return f"{_source(given.checkpoint)} ({given.task.name}{labels}), {given.parameters:,} parameters"


def _source(checkpoint: Checkpoint) -> str:
    return "the embedded default model" if checkpoint.folder == DEFAULT_MODEL else checkpoint.source


def _notes(given: _Input) -> list[str]:
    """What the user should know of the input before trusting the output."""
    path = given.checkpoint.folder / tokenizer_json.FILE
    cut = tokenizer_json.cuts_at_pieces(path) if path.is_file() else ()
    if not cut:
        return []
    return [
        f"{path}: transformers cuts texts at {' '.join(cut)}, ALBERT's pre-training and this export do not: if the "
        "model was fine-tuned with this file, check its accuracy on your data"
    ]


def _parameters(checkpoint: Checkpoint, task: Task) -> int:
    """Unique parameters: shared and tied ones count once."""
    outputs = head_outputs(checkpoint.config, task.name)
    return count_parameters(checkpoint.config, pooler=task.pooled, head_outputs=outputs).total


def _model_facts(given: _Input) -> dict[str, Any]:
    config = given.checkpoint.config
    return {
        "source": _source(given.checkpoint),
        "task": given.task.name,
        "labels": list(config.labels),
        "parameters": given.parameters,
        "iterations": config.num_hidden_layers * config.inner_group_num,
        "shared_layers": config.num_hidden_groups * config.inner_group_num,
        "macs_at_128": count_macs(config, min(128, config.max_position_embeddings), pooler=given.task.pooled),
    }


# -- one model file ---------------------------------------------------------------------------------------------------


def _write_model(
    request: Request,
    given: _Input,
    folder: Path,
    format: str,
    encodings: Sequence[Encoding],
    expected: Sequence[np.ndarray],
) -> tuple[dict[str, Any], Converted, list[np.ndarray]]:
    """Write one model file, read it back, run it. Returns what the report says, the file's facts, and its outputs."""
    checkpoint, task = given.checkpoint, given.task
    converted = convert(
        checkpoint.config,
        checkpoint.tensors,
        task,
        format=format,
        precision=request.precision,
        unroll=request.unroll,
        compat=request.compat,
        tokenizer_file=given.tokenizer.rules["file"],
    )
    path = folder / MODEL_FILES[format]
    path.write_bytes(converted.content)
    floor = given.parameters * BYTES_PER_PARAMETER[request.precision]
    audit = audit_file(path, checkpoint.tensors, floor_bytes=floor)
    engine = open_engine(path)
    try:
        outputs = _run(engine, encodings, checkpoint.config.pad_token_id, task)
        version = engine.version
    finally:
        engine.close()
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
        "agreement": asdict(compare(list(expected), outputs, task)),
    }
    return facts, converted, outputs


def _run(engine: Any, encodings: Sequence[Encoding], pad_id: int, task: Task) -> list[np.ndarray]:
    return [engine.run(make_feeds([encoding], pad_id))[task.output][0] for encoding in encodings]


def _manifest_entry(format: str, converted: Converted) -> dict[str, Any]:
    weights = {
        name: {**asdict(record), "relative_error": round(record.relative_error, 6)}
        for name, record in converted.weights.items()
    }
    return {"file": MODEL_FILES[format], **converted.facts, "weights": weights}


def _wrote(output: Path, format: str, facts: Mapping[str, Any]) -> str:
    return f"wrote    {output / facts['file']}"


def _measure(path: Path, given: _Input) -> dict[str, Any]:
    config = given.checkpoint.config
    longest = config.max_position_embeddings
    lengths = [length for length in LENGTHS if length <= longest] or [longest]
    return probe_in_fresh_process(path, lengths=lengths, vocab_size=config.vocab_size)


# -- the files beside it ----------------------------------------------------------------------------------------------


def _golden(examples: Sequence[Example], expected: Sequence[np.ndarray]) -> dict[str, Any]:
    """A few texts with their ids, what the float model says, and per format (filled in later) what the file says."""
    inputs = [
        {
            "text": example.text,
            "pair": example.pair,
            "input_ids": example.encoding.input_ids,
            "token_type_ids": example.encoding.token_type_ids,
        }
        for example in examples
    ]
    reference = [_rounded(row) for row in expected[: len(examples)]]
    return {"examples": inputs, "reference": reference, "outputs": {}, "tolerance": {}}


def _tolerance(precision: str, outputs: Sequence[np.ndarray]) -> float:
    """By how much another engine or processor may differ: a share of the largest output.

    Between ONNX Runtime 1.18 and 1.32 the int8 outputs of an ALBERT-base with random weights differ by 4 % of it.
    """
    share = 0.1 if precision == "int8" else 1e-3
    return round(share * max(float(np.abs(row).max()) for row in outputs), _ROUND)


def _rounded(row: np.ndarray) -> Any:
    return np.round(row.astype(np.float64), _ROUND).tolist()


def _write_device_files(
    request: Request,
    given: _Input,
    folder: Path,
    golden: Mapping[str, Any],
    models: Mapping[str, Any],
    engines: Mapping[str, str],
) -> None:
    """Tokenizer, golden examples and the manifest."""
    rules = given.tokenizer.rules
    (folder / rules["file"]).write_bytes(given.tokenizer.vocabulary)
    (folder / GOLDEN).write_text(to_json(golden), encoding="utf-8")
    fields = {
        "task": given.task.name,
        "labels": list(given.checkpoint.config.labels),
        "config": given.checkpoint.config.to_dict(),
        "tokenizer": dict(rules),
        "models": dict(models),
        "engines_checked": engines,
        "created_by": f"edge_albert {__version__}",
        "command": request.command,
    }
    files = [rules["file"], GOLDEN, *(MODEL_FILES[format] for format in models)]
    if "tflite" in models and given.task.name == "text-classification":  # as the file's TFLite metadata calls it
        labels = "".join(f"{' '.join(label.split())}\n" for label in given.checkpoint.config.labels)
        (folder / LABELS_FILE).write_text(labels, encoding="utf-8")
        files.append(LABELS_FILE)
    if request.android:
        table = tokenizer_table(rules)
        if table is None:
            raise TokenizerError(
                f"{given.tokenizer.path}: a WordPiece tokenizer: the Android library reads SentencePiece models only"
            )
        (folder / TABLE).write_bytes(table)
        files.append(TABLE)
    write_manifest(folder, fields, files)
