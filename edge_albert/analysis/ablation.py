"""Running the ablations: every cell a pre-training run in a folder of its own, scored when it has ended.

    WORK/ablation.json                 the recipe; a folder of another one is refused
    WORK/<cell>/seed-1/run.json, …     a run of `python -m edge_albert.pretrain`, which can also go on with it
    WORK/<cell>/seed-1/score.json      its scores; a cell that has them is finished and skipped

So a grid that was stopped, by Ctrl-C, SIGTERM or a power cut, goes on with the same command where it was, with the
same result to the last bit (edge_albert/training/pretraining/loop.py). A finished cell's checkpoints are removed; its
model/ stays.

Scores are of held-out examples: the masked words in the form that the model was trained on, and the order head on both
tasks, sentence order and next sentence, whichever it was trained for.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edge_albert.analysis.recipes import BASE, CELLS, AblationRecipe
from edge_albert.analysis.record import Record, begin, checked_out_commit
from edge_albert.atomic import HALF_WRITTEN, write_file_atomic
from edge_albert.checkpoint import read_checkpoint
from edge_albert.config import count_parameters
from edge_albert.errors import DataError, EdgeAlbertError
from edge_albert.model import AlbertForPreTraining, build_model
from edge_albert.tokenizer import Tokenizer, load_tokenizer
from edge_albert.training.data.batches import evenly
from edge_albert.training.device import pick_device
from edge_albert.training.distributed import Ranks
from edge_albert.training.pretraining.corpus import Corpus
from edge_albert.training.pretraining.evaluation import held_out_sums
from edge_albert.training.pretraining.examples import ExampleMaker, Spans, pack, special_tokens
from edge_albert.training.pretraining.loss import PretrainingLoss, means
from edge_albert.training.pretraining.recipe import PretrainRecipe
from edge_albert.training.pretraining.run import Plan, fit_config, pretrain, set_up
from edge_albert.training.pretraining.shards import TokenStore, usable_cores, vocabulary_digest
from edge_albert.training.weights import load_arrays

FORMAT = 1
_BATCH = 32


@dataclass(frozen=True)
class Place:
    """Where the grid lives and what it learns from. shards: made of `corpus` when they are not there yet."""

    work: Path
    tokenizer: Path
    shards: Path
    corpus: Sequence[Path] = ()

    def run_folder(self, cell: str, seed: int) -> Path:
        """The pre-training run of a cell with a seed."""
        return self.work / cell / f"seed-{seed}"

    def score_file(self, cell: str, seed: int) -> Path:
        """Its scores; a run that has them is finished."""
        return self.run_folder(cell, seed) / "score.json"


def run(recipe: AblationRecipe, place: Place, command: str) -> Record:
    """Train and score what is not finished, then return the scores of all. The folder is made if need be.

    Raises as `train` does.
    """
    tokenizer = train(recipe, place, recipe.seeds)
    scores = {
        (cell, seed): _read_json(place.score_file(cell, seed), "remove it, and the model is scored again")
        for cell, seed in _runs(recipe.seeds)
    }
    cells = {
        cell: {
            **_cell_facts(recipe, cell, tokenizer),
            "seeds": {str(seed): scores[cell, seed] for seed in recipe.seeds},
        }
        for cell in CELLS
    }
    store = TokenStore(place.shards)
    data = {"tokens": store.tokens, "documents": store.documents, "sources": len(store.corpus)}
    head = begin("ablate", command, recipe.seeds[0])
    return {**head, "recipe": describe(recipe), "vocab_size": tokenizer.vocab_size, "data": data, "cells": cells}


def train(recipe: AblationRecipe, place: Place, seeds: Sequence[int]) -> Tokenizer:
    """Train and score what is not finished of these seeds' models; returns their tokenizer.

    Two processes may work in one folder as long as they have no seed in common.
    Raises EdgeAlbertError for a folder of another recipe, naming the field that differs, and for a seed that the recipe
    has not; KeyboardInterrupt, with all work kept, when asked to stop.
    """
    for seed in seeds:
        if seed not in recipe.seeds:
            raise EdgeAlbertError(f"seed {seed} is not in the recipe, which has {', '.join(map(str, recipe.seeds))}")
    if not place.corpus and not place.shards.exists():
        raise EdgeAlbertError(f"{place.shards}: no shards there, and no corpus to make them of: name one")
    tokenizer = load_tokenizer(place.tokenizer)
    _check_folder(recipe, place, vocabulary_digest(tokenizer))
    print(f"{recipe.estimate(tokenizer.vocab_size)}; what is finished is skipped", file=sys.stderr, flush=True)
    runs = list(_runs(seeds))
    for number, (cell, seed) in enumerate(runs, start=1):
        if not place.score_file(cell, seed).exists():
            print(f"{number} of {len(runs)}: {cell}, seed {seed}", file=sys.stderr, flush=True)
            _train(recipe, cell, seed, place, tokenizer)
        _remove_checkpoints(place.run_folder(cell, seed))
    return tokenizer


def _runs(seeds: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Every (cell, seed), all cells with one seed before any has the next: a grid that is stopped has whole tables."""
    return ((cell, seed) for seed in seeds for cell in CELLS)


def _cell_facts(recipe: AblationRecipe, cell: str, tokenizer: Tokenizer) -> dict[str, Any]:
    config = fit_config(recipe.config_of(CELLS[cell]), tokenizer, recipe.pretrain)
    work = [recipe.training_macs(CELLS[name], tokenizer.vocab_size) for name in (cell, BASE)]
    size = {"parameters": count_parameters(config).total, "training_macs": work[0], "relative_work": work[0] / work[1]}
    return {**asdict(CELLS[cell]), **size}


# -- the folder --------------------------------------------------------------------------------------------------------


def describe(recipe: AblationRecipe) -> dict[str, Any]:
    """The recipe as flat fields, every one of which decides the result or how often it is written."""
    out = {f"shape.{name}": value for name, value in recipe.shape.to_dict().items()}
    out |= {f"pretrain.{name}": value for name, value in asdict(recipe.pretrain).items() if name != "seed"}
    for cell, changes in CELLS.items():
        out[f"cells.{cell}"] = asdict(changes)
    most = {} if recipe.most_scored is None else {"most_scored": recipe.most_scored}
    return {**out, "seeds": list(recipe.seeds), "passes": recipe.passes, **most}


def _check_folder(recipe: AblationRecipe, place: Place, vocabulary: str) -> None:
    """Write ablation.json into a new folder, or compare the one that is there."""
    work, path = place.work, place.work / "ablation.json"
    data = {"shards": os.path.relpath(place.shards, work), "vocabulary": vocabulary, "corpus": _corpus(place)}
    wanted = json.loads(json.dumps({"format": FORMAT, **describe(recipe), **data}))
    if not path.exists():
        if work.exists() and not _holds_nothing(work) and not path.exists():  # which another process may write now
            raise EdgeAlbertError(f"{work}: holds something else than an ablation: name a new folder with --work")
        write_file_atomic(path, json.dumps(wanted, indent=1) + "\n")
        return
    found = _read_json(path, "name another --work, or remove the whole folder")
    for name in [*wanted, *(name for name in found if name not in wanted)]:
        if found.get(name) != wanted.get(name):
            raise EdgeAlbertError(
                f"{path}: from another recipe: {name} is {json.dumps(found.get(name))} there and "
                f"{json.dumps(wanted.get(name))} here: name another --work"
            )


def _holds_nothing(folder: Path) -> bool:
    return folder.is_dir() and all(path.match(HALF_WRITTEN) for path in folder.iterdir())


def _corpus(place: Place) -> list[str]:
    """What is learnt from, as the shards say it, or the sources before there are any. DataError when these differ."""
    if not place.shards.exists():
        return Corpus(list(place.corpus)).description
    store = TokenStore(place.shards)
    if place.corpus:
        store.check_corpus(Corpus(list(place.corpus)))
    return store.corpus


def _read_json(path: Path, remedy: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        content = None
    if not isinstance(content, dict):
        raise EdgeAlbertError(f"{path}: damaged: {remedy}")
    return content


# -- one run -----------------------------------------------------------------------------------------------------------


def _train(recipe: AblationRecipe, cell: str, seed: int, place: Place, tokenizer: Tokenizer) -> None:
    """Train the cell, from its newest checkpoint on if it has one, and score it."""
    folder = place.run_folder(cell, seed)
    trained = recipe.pretrain_of(CELLS[cell], seed)
    plan = Plan(fit_config(recipe.config_of(CELLS[cell]), tokenizer, trained), trained, place.shards)
    if (folder / "run.json").exists():
        _check_plan(folder, plan)
    else:
        set_up(folder, plan, tokenizer, list(place.corpus), text_field="text", processes=usable_cores())
    _held_out(TokenStore(place.shards), trained, trained.objective)  # what is missing is said before the training
    if not (folder / "model").exists():  # which is written last of all
        pretrain(folder, Ranks(0, 1, pick_device()), workers=0)
    found = {**score(folder, recipe.passes, recipe.most_scored), "commit": checked_out_commit()}
    write_file_atomic(place.score_file(cell, seed), json.dumps(found, indent=1) + "\n")


def _remove_checkpoints(folder: Path) -> None:
    """Of a finished run."""
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def _check_plan(folder: Path, plan: Plan) -> None:
    """Somebody may have put another run into the cell's folder."""
    found = Plan.read(folder)
    pairs = ((asdict(found.config), asdict(plan.config)), (asdict(found.recipe), asdict(plan.recipe)))
    for there, here in pairs:
        for name, value in here.items():
            if there[name] != value:
                raise EdgeAlbertError(
                    f"{folder / 'run.json'}: from another recipe: {name} is {there[name]!r} there and {value!r} here: "
                    "remove the folder, or name another --work"
                )


# -- scoring -----------------------------------------------------------------------------------------------------------


def score(folder: Path, passes: int, most: int | None = None) -> dict[str, float]:
    """A finished run's figures on its held-out examples: mlm_loss (nats) and mlm_accuracy in the form it was trained
    on; sop_loss, sop_accuracy, nsp_loss, nsp_accuracy of its order head on both tasks; examples, tokens_seen, seconds.

    most: held-out examples that are used, evenly over all. Raises DataError when the shards keep no documents for it.
    """
    plan, tokenizer = Plan.read(folder), load_tokenizer(folder / "tokenizer")
    store = TokenStore(plan.shards)
    model = build_model(plan.config, "pretraining")
    assert isinstance(model, AlbertForPreTraining)
    load_arrays(model, read_checkpoint(folder / "model").tensors)
    model.to(pick_device())
    own = _figures(model, store, tokenizer, plan.recipe, plan.recipe.objective, passes, most)
    out = {name: own[name] for name in ("mlm_loss", "mlm_accuracy", "examples")}
    for task in ("sop", "nsp"):
        trained = task == plan.recipe.objective
        figures = own if trained else _figures(model, store, tokenizer, plan.recipe, task, passes, most)
        out |= {f"{task}_{name}": figures[f"order_{name}"] for name in ("loss", "accuracy")}
    last = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()][-1]
    return {**out, "tokens_seen": last["tokens"], "cpu_seconds": last["cpu_seconds"]}


def _held_out(store: TokenStore, recipe: PretrainRecipe, task: str) -> Spans:
    """The held-out examples of a task. Raises DataError when there is none."""
    spans = pack(store, recipe.max_length - special_tokens(task), seed=0, epoch=0, held_out=True)
    if not len(spans):
        raise DataError(f"{store.folder}: {store.documents} documents are too few to hold some out: add text")
    return spans


def _figures(
    model: AlbertForPreTraining,
    store: TokenStore,
    tokenizer: Tokenizer,
    recipe: PretrainRecipe,
    task: str,
    passes: int,
    most: int | None,
) -> dict[str, float]:
    """The model on the held-out examples of a task, `passes` times, each with other masks, seams and orders."""
    spans = _held_out(store, recipe, task)
    maker, loss = ExampleMaker.of(store, tokenizer, task, 0, recipe.mask_share), PretrainingLoss(model, task)
    order = np.argsort(spans.stop - spans.start, kind="stable")
    if most is not None:
        order = order[evenly(len(order), most)]
    parts = np.split(order, range(_BATCH, len(order), _BATCH))
    sums = np.zeros(5)
    for epoch in range(passes):
        sums += held_out_sums(loss, maker, spans, parts, pad_id=tokenizer.pad_id, epoch=epoch)
    *totals, masked = sums.tolist()
    return {**means(totals, masked, passes * len(order)), "examples": len(order)}
