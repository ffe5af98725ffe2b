"""Fine-tuning from files to a folder: read rows, find labels, open model and tokenizer, train, judge, write.

The output folder appears whole when the run has ended well, and not at all otherwise: a Hugging Face checkpoint with
its tokenizer, and log.jsonl with a record for the start, every epoch and the end. The figures at the end are those of
the weights as they were written, so of the rounded ones in fp16.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edge_albert import __version__
from edge_albert.atomic import atomic_folder
from edge_albert.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from edge_albert.config import PRESETS, AlbertConfig, preset
from edge_albert.errors import DataError, EdgeAlbertError, TokenizerError
from edge_albert.model import AlbertForTask, build_model
from edge_albert.tokenizer import Tokenizer, load_tokenizer
from edge_albert.training.batches import EncodedTexts, encode_examples
from edge_albert.training.data import (
    Columns,
    Example,
    Examples,
    any_label,
    label_names,
    number_fault,
    read_examples,
    refuse_unseen_labels,
)
from edge_albert.training.device import make_deterministic, pick_device
from edge_albert.training.loop import Recipe, Trainer, evaluate
from edge_albert.training.objectives import OBJECTIVES, Objective
from edge_albert.training.weights import arrays_of, load_arrays

LOG = "log.jsonl"
DTYPES = {"fp32": "float32", "fp16": "float16"}
_HEAD = "classifier."

Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Request:
    """What to fine-tune. model: a folder, a hub name, or a preset's name for random weights (it then needs a
    tokenizer).

    tokenizer: a folder or a spiece.model / vocab.txt; by default the model's own. metric: the one to stop by; by
    default the task's usual one. max_length: in tokens; by default what the model can take. dtype: of the written
    weights.
    """

    task: str
    model: str
    train: Path
    dev: Path
    output: Path
    test: Path | None = None
    tokenizer: Path | None = None
    columns: Columns = field(default_factory=Columns)
    skip_bad: bool = False
    recipe: Recipe = field(default_factory=Recipe)
    metric: str | None = None
    max_length: int | None = None
    dtype: str = "fp32"
    force: bool = False


@dataclass(frozen=True)
class _Start:
    """Where training starts: the model on its device, and where its tokenizer's files lie."""

    config: AlbertConfig
    model: AlbertForTask
    fresh: list[str]
    tokenizer: Tokenizer
    tokenizer_folder: Path


def finetune(request: Request, report: Report = lambda record: None) -> dict[str, Any]:
    """Fine-tune and write `request.output`; return the record of the end. `report` gets every record of the log.

    Raises EdgeAlbertError (DataError, CheckpointError, …), and then leaves nothing behind.
    """
    with atomic_folder(request.output, force=request.force) as folder, open(folder / LOG, "w", encoding="utf-8") as log:

        def note(record: dict[str, Any]) -> None:
            log.write(json.dumps(record, ensure_ascii=False) + "\n")
            log.flush()
            report(record)

        parts = _read_parts(request)
        device = pick_device()
        make_deterministic(request.recipe.seed, device)
        with _opened(request, parts["train"].rows) as start:
            objective = OBJECTIVES[request.task](start.config.num_labels)
            metric = objective.metric_name(request.metric)
            texts = _encode(request, start, parts)
            start.model.to(device)
            note(_start_record(request, start, parts, metric, device))
            trainer = Trainer(start.model, objective, request.recipe, texts["train"])
            best = trainer.fit(texts["dev"], metric, note)
            end = _judge(request, start.model, objective, texts)
            end |= {"best_epoch": best.epoch, "metric": metric, "labels": list(start.config.labels)}
            _write(request, start, folder)
        note(end)
    return end


# -- the rows ----------------------------------------------------------------------------------------------------------


def _read_parts(request: Request) -> dict[str, Examples]:
    """The rows of train, dev and, if asked for, test, every label known. Raises DataError."""
    paths = {"train": request.train, "dev": request.dev, "test": request.test}
    check = number_fault if _is_regression(request) else any_label
    parts = {
        name: read_examples(path, request.columns, check, skip_bad=request.skip_bad)
        for name, path in paths.items()
        if path is not None
    }
    if not _is_regression(request):
        labels = label_names(parts["train"].rows)
        if len(labels) < 2:
            raise DataError(f"{request.train}: every row has the label {labels[0]!r}: a classifier needs two or more")
        for name in parts:
            refuse_unseen_labels(parts[name], labels)
    return parts


def _is_regression(request: Request) -> bool:
    return request.task == "text-regression"


def _encode(request: Request, start: _Start, parts: Mapping[str, Examples]) -> dict[str, EncodedTexts]:
    longest = start.config.max_position_embeddings
    max_length = request.max_length or min(longest, start.tokenizer.model_max_length or longest)
    if max_length > longest:
        raise EdgeAlbertError(f"--max-length {max_length}: the model takes at most {longest} tokens")
    return {
        name: encode_examples(start.tokenizer, part.rows, _targets(part.rows, start.config, request), max_length)
        for name, part in parts.items()
    }


def _targets(rows: list[Example], config: AlbertConfig, request: Request) -> np.ndarray:
    """What the loss compares with: (N,) float32 for a regression, else int64 label numbers."""
    if _is_regression(request):
        return np.array([float(row.label) for row in rows], dtype=np.float32)
    numbers = {label: i for i, label in enumerate(config.labels)}
    return np.array([numbers[row.label] for row in rows], dtype=np.int64)


# -- the model ---------------------------------------------------------------------------------------------------------


@contextmanager
def _opened(request: Request, train: list[Example]) -> Iterator[_Start]:
    """The model with its tokenizer; a tokenizer given as a bare file has a temporary folder while this lasts."""
    labels = ["LABEL_0"] if _is_regression(request) else label_names(train)
    with tempfile.TemporaryDirectory(prefix="edge-albert-") as scratch:
        folder = None if request.tokenizer is None else _tokenizer_folder(request.tokenizer, Path(scratch))
        if request.model in PRESETS and not Path(request.model).is_dir():
            if folder is None:
                raise TokenizerError(f"the preset {request.model} has no tokenizer: name one with --tokenizer")
            tokenizer = load_tokenizer(folder)
            config = replace(preset(request.model).with_labels(labels), vocab_size=tokenizer.vocab_size)
            tensors: dict[str, np.ndarray] = {}
        else:
            checkpoint = read_checkpoint(request.model)
            config, tensors = _with_head(checkpoint, request.task, labels)
            folder = folder or checkpoint.folder
            tokenizer = load_tokenizer(folder)
        if tokenizer.vocab_size != config.vocab_size:
            raise TokenizerError(
                f"{tokenizer.path}: has {tokenizer.vocab_size} entries, the model's vocab_size is {config.vocab_size}: "
                "they belong to different models"
            )
        model = build_model(config, request.task)
        yield _Start(config, model, load_arrays(model, tensors), tokenizer, folder)


def _with_head(checkpoint: Checkpoint, task: str, labels: list[str]) -> tuple[AlbertConfig, dict[str, np.ndarray]]:
    """Config and tensors to start from: with the checkpoint's own head, its labels in their order, if that was trained
    for this task and these labels; else with the new labels and no head."""
    config = checkpoint.config
    if checkpoint.task == task and (task == "text-regression" or set(config.labels) == set(labels)):
        return config, checkpoint.tensors
    bare = {name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith(_HEAD)}
    return config.with_labels(labels), bare


def _tokenizer_folder(given: Path, scratch: Path) -> Path:
    """A folder that holds the tokenizer: the given one, or `scratch` with a copy of the given file."""
    if given.is_dir():
        return given
    if not given.is_file():
        raise TokenizerError(f"{given}: no such file or folder")
    shutil.copyfile(given, scratch / ("vocab.txt" if given.suffix == ".txt" else "spiece.model"))
    return scratch


# -- the end -----------------------------------------------------------------------------------------------------------


def _judge(
    request: Request, model: AlbertForTask, objective: Objective, texts: Mapping[str, EncodedTexts]
) -> dict[str, Any]:
    """Every figure of dev and test for the weights as they will be read back."""
    if request.dtype == "fp16":
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(parameter.half())
    judged = [name for name in texts if name != "train"]
    figures = {name: evaluate(model, texts[name], objective, request.recipe.batch_size) for name in judged}
    return {"event": "end", "output": str(request.output), "task": request.task, "dtype": request.dtype, **figures}


def _write(request: Request, start: _Start, folder: Path) -> None:
    """The checkpoint beside the log; write_checkpoint wants a folder of its own."""
    written = folder / "checkpoint"
    problem = None if _is_regression(request) else "single_label_classification"
    write_checkpoint(
        written,
        replace(start.config, problem_type=problem),
        arrays_of(start.model),
        task=request.task,
        tokenizer_folder=start.tokenizer_folder,
        dtype=DTYPES[request.dtype],
    )
    for path in list(written.iterdir()):
        path.rename(folder / path.name)
    written.rmdir()


def _start_record(
    request: Request, start: _Start, parts: Mapping[str, Examples], metric: str, device: torch.device
) -> dict[str, Any]:
    return {
        "event": "start",
        "edge_albert": __version__,
        "task": request.task,
        "model": request.model,
        "parameters": sum(p.numel() for p in start.model.parameters()),
        "fresh": start.fresh,
        "device": str(device),
        "metric": metric,
        "recipe": asdict(request.recipe),
        "labels": list(start.config.labels),
        "rows": {name: len(part.rows) for name, part in parts.items()},
        "bad_rows": {name: len(part.bad) for name, part in parts.items()},
        "skipped": [reason for part in parts.values() for reason in part.bad],
    }
