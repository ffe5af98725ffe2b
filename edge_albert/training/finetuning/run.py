"""Fine-tuning from files to a folder: read rows, find labels, open model and tokenizer, train, judge, write.

What a task is stands in finetune_tasks.py; here is what all have in common. The output folder appears whole when the
run has ended well, and not at all otherwise: a Hugging Face checkpoint with its tokenizer, log.jsonl with a record for
the start, every epoch and the end, and TensorBoard's folder if asked for. The figures at the end are those of the
weights as they were written, so of the rounded ones in fp16.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edge_albert import __version__
from edge_albert.atomic import atomic_folder
from edge_albert.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from edge_albert.config import UNTRAINED, AlbertConfig, preset
from edge_albert.early_exit import check_shape, criteria_for
from edge_albert.errors import DataError, EdgeAlbertError, TokenizerError
from edge_albert.model import AlbertForTask, build_model
from edge_albert.runtime.session import STRIDE
from edge_albert.tokenizer import Tokenizer, load_tokenizer
from edge_albert.training.data.batches import EncodedRows
from edge_albert.training.data.examples import Columns, Examples, label_names, refuse_unseen_labels, without_faults
from edge_albert.training.data.rows import Source
from edge_albert.training.device import make_deterministic, pick_device
from edge_albert.training.finetuning.early_exit import ExitTraining, with_exits
from edge_albert.training.finetuning.loop import Recipe, Trainer, evaluate
from edge_albert.training.finetuning.objectives import Objective
from edge_albert.training.finetuning.tasks import FINETUNE_TASKS, FinetuneTask, Lengths
from edge_albert.training.not_finite import batch_saved
from edge_albert.training.tensorboard import scalar_writer
from edge_albert.training.weights import arrays_of, load_arrays

LOG = "log.jsonl"
DTYPES = {"fp32": "float32", "fp16": "float16"}
_HEADS = ("classifier.", "qa_outputs.", "exits.")

Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Request:
    """What to fine-tune. task: a key of FINETUNE_TASKS. model: a folder, a hub name, or a preset's name for random
    weights (it then needs a tokenizer). train, dev, test: files, folders, or splits of a data set.

    tokenizer: a folder or a spiece.model / vocab.txt; by default the model's own. metric: the one to stop by; by
    default the task's usual one. max_length: in tokens; by default what the model can take. stride: tokens shared by
    two windows over a long text; by default what the runtime takes. dropout: in place of the checkpoint's rates, those
    of hidden states, attention and classifier. early_exit: train an answer after every iteration. dtype: of the written
    weights. tensorboard: a folder in the output.
    """

    task: str
    model: str
    train: Source
    dev: Source
    output: Path
    test: Source | None = None
    tokenizer: Path | None = None
    columns: Columns = field(default_factory=Columns)
    skip_bad: bool = False
    recipe: Recipe = field(default_factory=Recipe)
    metric: str | None = None
    max_length: int | None = None
    stride: int | None = None
    dropout: float | None = None
    early_exit: ExitTraining | None = None
    dtype: str = "fp32"
    force: bool = False
    tensorboard: str | None = None

    @property
    def kit(self) -> FinetuneTask:
        return FINETUNE_TASKS[self.task]


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

    Raises EdgeAlbertError (DataError, CheckpointError, …), and then leaves nothing behind but the batch of a loss that
    is not finite.
    """
    _refuse_unheeded(request)
    with (
        batch_saved(request.output),
        atomic_folder(request.output, force=request.force) as folder,
        open(folder / LOG, "w", encoding="utf-8") as log,
        scalar_writer(folder, request.tensorboard) as write_scalars,
    ):

        def note(record: dict[str, Any]) -> None:
            log.write(json.dumps(record, ensure_ascii=False) + "\n")
            log.flush()
            write_scalars(record)
            report(record)

        parts = _read_parts(request)
        device = pick_device()
        make_deterministic(request.recipe.seed, device)
        with _opened(request, _labels(request, parts["train"])) as start:
            objective = _objective(request, start.config)
            metric = objective.metric_name(request.metric)
            lengths = _lengths(request, start)
            parts = _that_fit(request, start, parts, lengths)
            texts = {
                name: request.kit.encode(start.tokenizer, part.rows, start.config.labels, lengths)
                for name, part in parts.items()
            }
            start.model.to(device)
            note(_start_record(request, start, parts, metric, device))
            trainer = Trainer(start.model, objective, request.recipe, texts["train"])
            best = trainer.fit(texts["dev"], metric, note)
            end, config = _judge(request, start, objective, texts)
            end |= {"best_epoch": best.epoch, "metric": metric, "labels": list(config.labels)}
            _write(request, start, config, folder)
        note(end)
    return end


def _refuse_unheeded(request: Request) -> None:
    """Raise EdgeAlbertError for an option that would change nothing, or that the task cannot have."""
    if request.early_exit is not None:
        criteria_for(request.task)
    columns = request.columns
    given = {
        "text-column": columns.text,
        "pair-column": columns.pair,
        "label-column": columns.label,
        "no-header": not columns.header,
        "stride": request.stride is not None,
    }
    for name, is_given in given.items():
        if is_given and name not in request.kit.options:
            raise EdgeAlbertError(f"--{name} means nothing to {request.task}: leave it out")


def _exit_heads(request: Request) -> str | None:
    return None if request.early_exit is None else request.early_exit.heads


def _objective(request: Request, config: AlbertConfig) -> Objective:
    objective = request.kit.objective(config.num_labels)
    return objective if request.early_exit is None else with_exits(objective, request.early_exit)


# -- the rows ----------------------------------------------------------------------------------------------------------


def _read_parts(request: Request) -> dict[str, Examples[Any]]:
    """The rows of train, dev and, if asked for, test, every label known. Raises DataError."""
    sources = {"train": request.train, "dev": request.dev, "test": request.test}
    parts = {
        name: request.kit.read(source, request.columns, request.skip_bad)
        for name, source in sources.items()
        if source is not None
    }
    labels = _labels(request, parts["train"])
    if request.kit.labels_of is not None and labels is not None:
        if len(labels) < 2:
            raise DataError(f"{request.train}: every row has the label {labels[0]!r}: a classifier needs two or more")
        for part in parts.values():
            refuse_unseen_labels(part, labels, labels_of=request.kit.labels_of)
    return parts


def _labels(request: Request, train: Examples[Any]) -> list[str] | None:
    """The names of the model's outputs: those of the training rows, or numbered ones; None for a task without head."""
    if request.kit.labels_of is not None:
        return label_names(train.rows, request.kit.labels_of)
    return None if request.kit.outputs is None else [f"LABEL_{i}" for i in range(request.kit.outputs)]


def _lengths(request: Request, start: _Start) -> Lengths:
    longest = start.config.max_position_embeddings
    max_length = request.max_length or min(longest, start.tokenizer.model_max_length or longest)
    if max_length > longest:
        raise EdgeAlbertError(f"--max-length {max_length}: the model takes at most {longest} tokens")
    return Lengths(max_length, min(STRIDE, max_length // 4) if request.stride is None else request.stride)


def _that_fit(
    request: Request, start: _Start, parts: dict[str, Examples[Any]], lengths: Lengths
) -> dict[str, Examples[Any]]:
    """The parts without the rows that do not fit into these lengths. Raises DataError unless bad rows are skipped."""
    fault = request.kit.length_fault
    if fault is None:
        return parts
    return {
        name: without_faults(part, lambda row: fault(start.tokenizer, row, lengths), skip_bad=request.skip_bad)
        for name, part in parts.items()
    }


# -- the model ---------------------------------------------------------------------------------------------------------


@contextmanager
def _opened(request: Request, labels: Sequence[str] | None) -> Iterator[_Start]:
    """The model with its tokenizer; a tokenizer given as a bare file has a temporary folder while this lasts."""
    with tempfile.TemporaryDirectory(prefix="edge-albert-") as scratch:
        folder = None if request.tokenizer is None else _tokenizer_folder(request.tokenizer, Path(scratch))
        if request.model in UNTRAINED and not Path(request.model).is_dir():
            if folder is None:
                raise TokenizerError(f"the preset {request.model} has no tokenizer: name one with --tokenizer")
            tokenizer = load_tokenizer(folder)
            config = replace(_with_labels(preset(request.model), labels), vocab_size=tokenizer.vocab_size)
            tensors: dict[str, np.ndarray] = {}
        else:
            checkpoint = read_checkpoint(request.model)
            config, tensors = _with_head(checkpoint, request, labels)
            folder = folder or checkpoint.folder
            tokenizer = load_tokenizer(folder)
        tokenizer.check_size(config.vocab_size)
        config = config.with_dropout(request.dropout).with_exits(_exit_heads(request))
        if config.exit_heads is not None:
            check_shape(config)
        model = build_model(config, request.task)
        yield _Start(config, model, load_arrays(model, tensors), tokenizer, folder)


def _with_head(
    checkpoint: Checkpoint, request: Request, labels: Sequence[str] | None
) -> tuple[AlbertConfig, dict[str, np.ndarray]]:
    """Config and tensors to start from: with the checkpoint's own head, its labels in their order, if that was trained
    for this task and these labels; else with the new labels and no head."""
    config = checkpoint.config
    same_labels = request.kit.labels_of is None or set(config.labels) == set(labels or ())
    if checkpoint.task == request.task and same_labels:
        return config, checkpoint.tensors
    bare = {name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith(_HEADS)}
    return _with_labels(config, labels), bare


def _with_labels(config: AlbertConfig, labels: Sequence[str] | None) -> AlbertConfig:
    return config if labels is None else config.with_labels(list(labels))


def _tokenizer_folder(given: Path, scratch: Path) -> Path:
    """A folder that holds the tokenizer: the given one, or `scratch` with a copy of the given file and of the rules
    beside it, which say whether case is kept."""
    if given.is_dir():
        return given
    if not given.is_file():
        raise TokenizerError(f"{given}: no such file or folder")
    shutil.copyfile(given, scratch / ("vocab.txt" if given.suffix == ".txt" else "spiece.model"))
    rules = given.parent / "tokenizer_config.json"
    if rules.is_file():
        shutil.copyfile(rules, scratch / rules.name)
    return scratch


# -- the end -----------------------------------------------------------------------------------------------------------


def _judge(
    request: Request, start: _Start, objective: Objective, texts: Mapping[str, EncodedRows]
) -> tuple[dict[str, Any], AlbertConfig]:
    """Every figure of dev and test for the weights as they will be read back, and the config to write with them."""
    if request.dtype == "fp16":
        with torch.no_grad():
            for parameter in start.model.parameters():
                parameter.copy_(parameter.half())
    config = replace(start.config, problem_type=request.kit.problem_type)
    end: dict[str, Any] = {"event": "end", "output": str(request.output), "task": request.task, "dtype": request.dtype}
    end["dev"] = dev = evaluate(start.model, texts["dev"], objective, request.recipe.batch_size)
    if request.kit.settle is not None:  # no task that settles anything can exit early
        objective, config = request.kit.settle(config, dev)
    if "test" in texts:
        end["test"] = evaluate(start.model, texts["test"], objective, request.recipe.batch_size)
    return end, config


def _write(request: Request, start: _Start, config: AlbertConfig, folder: Path) -> None:
    """The checkpoint beside the log; write_checkpoint wants a folder of its own."""
    written = Path(tempfile.mkdtemp(dir=folder))
    write_checkpoint(
        written,
        config,
        arrays_of(start.model),
        task=request.task,
        tokenizer_folder=start.tokenizer_folder,
        dtype=DTYPES[request.dtype],
    )
    for path in list(written.iterdir()):
        path.rename(folder / path.name)
    written.rmdir()


def _start_record(
    request: Request, start: _Start, parts: Mapping[str, Examples[Any]], metric: str, device: torch.device
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
        "dropout": start.config.hidden_dropout_prob,
        "early_exit": request.early_exit and asdict(request.early_exit),
        "labels": list(start.config.labels),
        "rows": {name: len(part.rows) for name, part in parts.items()},
        "bad_rows": {name: len(part.bad) for name, part in parts.items()},
        "skipped": [reason for part in parts.values() for reason in part.bad],
    }
