"""Tiny models and files that the tests of calibration share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tiny_models import tiny_checkpoint
from tiny_spiece import tiny_corpus

from edge_albert.checkpoint import write_checkpoint
from edge_albert.exporting.source import Source, read_source


def tiny_source(folder: Path, task: str = "text-classification", **changes) -> Source:
    """A tiny checkpoint in `folder`, read as an export reads it."""
    return read_source(str(tiny_checkpoint(folder, task, **changes)), task)


def plant_outliers(folder: Path, gain: float, channel: int = 5) -> Source:
    """A tiny classifier whose norms multiply one channel by `gain`, as large language models are found to."""
    given = tiny_source(folder)
    tensors = dict(given.checkpoint.tensors)
    for name in tensors:
        if name.endswith(("attention.LayerNorm.weight", "full_layer_layer_norm.weight")):
            tensors[name] = tensors[name].copy()
            tensors[name][channel] *= gain
    write_checkpoint(
        folder,
        given.checkpoint.config,
        tensors,
        task=given.task.name,
        tokenizer_folder=given.checkpoint.folder,
        force=True,
    )
    return read_source(str(folder), given.task.name)


def sentences(count: int, seed: int = 0) -> list[str]:
    """Different sentences of the tiny tokenizer's own grammar."""
    corpus = tiny_corpus()
    return [corpus[i] for i in np.random.default_rng(seed).choice(len(corpus), count, replace=False)]


def write_rows(path: Path, header: str, rows: list[tuple]) -> Path:
    """A TSV file."""
    path.write_text("\n".join([header, *("\t".join(map(str, row)) for row in rows)]) + "\n", encoding="utf-8")
    return path


def labelled_by(given: Source, path: Path, count: int = 60, wrong: int = 0) -> Path:
    """Rows with the label or number that the float model itself gives; the first `wrong` labels are others."""
    from calibration.agreement import run_reference
    from calibration.reference import ReferenceModel
    from calibration.texts import encode

    config, texts = given.checkpoint.config, sentences(count)
    encodings = [encode(text, None, config, given.tokenizer).encoding for text in texts]
    model = ReferenceModel(config, given.checkpoint.tensors, given.task)
    rows = run_reference(model, encodings, config.pad_token_id, given.task.per_token)
    if given.task.name == "text-regression":
        return write_rows(path, "text\tscore", [(t, float(row[0])) for t, row in zip(texts, rows, strict=True)])
    labels = [(int(row.argmax()) + (i < wrong)) % len(config.labels) for i, row in enumerate(rows)]
    return write_rows(path, "text\tlabel", [(t, config.labels[n]) for t, n in zip(texts, labels, strict=True)])
