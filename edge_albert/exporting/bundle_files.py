"""The files of a bundle beside the model: golden examples, tokenizer, labels, manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from calibration.agreement import Example
from converters.convert import Converted
from converters.tflite_metadata import LABELS_FILE
from edge_albert import __version__
from edge_albert.android import TABLE, tokenizer_table
from edge_albert.bundle import GOLDEN, MODEL_FILES, to_json, write_manifest
from edge_albert.errors import TokenizerError
from edge_albert.exporting.request import Request
from edge_albert.exporting.source import Source

GOLDEN_TEXTS = 5
_DECIMALS = 6  # of golden outputs


def manifest_entry(format: str, converted: Converted) -> dict[str, Any]:
    """What the manifest says of one model file."""
    weights = {
        name: {**asdict(record), "relative_error": round(record.relative_error, 6)}
        for name, record in converted.weights.items()
    }
    return {"file": MODEL_FILES[format], **converted.facts, "weights": weights}


def golden_examples(examples: Sequence[Example], expected: Sequence[np.ndarray]) -> dict[str, Any]:
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
    reference = [rounded(row) for row in expected[: len(examples)]]
    return {"examples": inputs, "reference": reference, "outputs": {}, "tolerance": {}}


def tolerance(precision: str, outputs: Sequence[np.ndarray]) -> float:
    """By how much another engine or processor may differ: a share of the largest output.

    Between ONNX Runtime 1.18 and 1.32 the int8 outputs of an ALBERT-base with random weights differ by 4 % of it.
    """
    share = 1e-3 if precision in ("fp32", "fp16") else 0.1
    return round(share * max(float(np.abs(row).max()) for row in outputs), _DECIMALS)


def rounded(row: np.ndarray) -> Any:
    """An output as golden.json holds it."""
    return np.round(row.astype(np.float64), _DECIMALS).tolist()


def write_device_files(
    request: Request,
    given: Source,
    folder: Path,
    golden: Mapping[str, Any],
    models: Mapping[str, Any],
    engines: Mapping[str, str],
    more: Mapping[str, Any],
) -> None:
    """Tokenizer, golden examples and the manifest. more: further fields of the manifest."""
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
        **more,
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
