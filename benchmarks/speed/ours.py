"""This package's side: its own loops, as its commands run them."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path

import numpy as np

from edge_albert.model import AlbertForPreTraining, build_model
from edge_albert.tokenizer import load_tokenizer
from edge_albert.training.device import make_deterministic, pick_device
from edge_albert.training.distributed import Ranks
from edge_albert.training.finetuning.loop import Recipe, Trainer
from edge_albert.training.finetuning.objectives import classification
from edge_albert.training.pretraining.loop import Pretrainer
from edge_albert.training.pretraining.recipe import PretrainRecipe
from speed.job import Clock, Job, figures


def finetune(job: Job) -> dict[str, float | str | None]:
    """An epoch over all rows, after one step to warm up."""
    texts, labels = job.labelled()
    make_deterministic(1, pick_device())
    model = build_model(job.config.with_labels([str(i) for i in range(labels)]), "text-classification")
    trainer = Trainer(
        model.to(pick_device()), classification(labels), Recipe(epochs=2, batch_size=job.batch_size), texts
    )
    trainer.step(np.arange(job.batch_size))
    clock = Clock()
    trainer.train_epoch(1)
    return figures(job, int(texts.lengths.sum()), *clock.read())


def pretrain(job: Job) -> dict[str, float | str | None]:
    """The whole loop with its log; the timed steps are those between its first record and its last."""
    maker, _ = job.segments()
    device = pick_device()
    make_deterministic(1, device)
    import torch

    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # as the command does
    recipe = PretrainRecipe(
        job.steps + 1, batch_size=job.batch_size, micro_batch=job.micro_batch, max_length=128, optimizer="adamw",
        log_every=1, checkpoint_every=10**9,
    )  # fmt: skip
    model = build_model(job.config, "pretraining")
    assert isinstance(model, AlbertForPreTraining)
    with tempfile.TemporaryDirectory() as folder:
        ranks = Ranks(0, 1, device)
        Pretrainer(model.to(device), recipe, maker, load_tokenizer(job.tokenizer), ranks, Path(folder)).run()
        lines = (Path(folder) / "log.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [record for record in map(json.loads, lines) if record["event"] == "step"]
    tokens = [record["tokens"] for record in steps]
    wall = math.fsum((b - a) / r["tokens_per_second"] for a, b, r in zip(tokens, tokens[1:], steps[1:], strict=False))
    return figures(job, tokens[-1] - tokens[0], steps[-1]["cpu_seconds"] - steps[0]["cpu_seconds"], wall)
