"""The pre-training loop: masked language model and sentence order, from any step on as if it had never stopped.

One step is one global batch, dealt in micro-batches to the processes and summed: its loss is the mean over all masked
tokens of the global batch plus the mean over all its pairs, whatever the number of processes or micro-batches, so these
change nothing but rounding.

Whatever is random is drawn from its place: examples from (seed, epoch, number), dropout from (seed, step, rank). So the
state to be saved is the weights, the optimizer, the schedule and where in the data the run is, and no generator's.
tests/test_resume.py holds killed runs to equality in every bit.
"""

from __future__ import annotations

import io
import json
import math
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from edge_albert.atomic import write_file_atomic
from edge_albert.checkpoint import read_checkpoint, write_checkpoint
from edge_albert.errors import EdgeAlbertError
from edge_albert.model import AlbertForPreTraining
from edge_albert.progress import Progress
from edge_albert.tokenizer import Tokenizer
from edge_albert.training import resume
from edge_albert.training.data.batches import evenly
from edge_albert.training.device import autocast, seed_step
from edge_albert.training.distributed import Ranks
from edge_albert.training.not_finite import batch_file
from edge_albert.training.optim import linear_schedule
from edge_albert.training.pretraining.evaluation import held_out_sums
from edge_albert.training.pretraining.examples import (
    Batch,
    EpochBatches,
    ExampleMaker,
    Spans,
    pack,
    special_tokens,
)
from edge_albert.training.pretraining.loss import PretrainingLoss, means
from edge_albert.training.pretraining.optimizer import make_optimizer
from edge_albert.training.pretraining.recipe import PretrainRecipe
from edge_albert.training.weights import arrays_of, load_arrays

EVALUATED = 256  # held-out examples looked at with every checkpoint

Figures = dict[str, Any]


class Pretrainer:
    """One run in `folder`: log.jsonl, checkpoints/ and, at the end, model/.

    model: on `ranks.device`. maker: makes the examples of the recipe's objective and seed. workers: processes that make
    batches ahead of the loop; 0 makes them in this one.
    Raises EdgeAlbertError when batch_size is no multiple of what all processes take at a time.
    """

    def __init__(
        self,
        model: AlbertForPreTraining,
        recipe: PretrainRecipe,
        maker: ExampleMaker,
        tokenizer: Tokenizer,
        ranks: Ranks,
        folder: Path,
        *,
        workers: int = 0,
    ) -> None:
        recipe.check_shares(ranks.world)
        self.model, self.recipe, self.maker, self.tokenizer = model, recipe, maker, tokenizer
        self.ranks, self.folder, self.workers = ranks, folder, workers
        self.room = recipe.max_length - special_tokens(recipe.objective)
        self.padded_length = recipe.max_length if recipe.compile else None  # compiled code wants one shape
        self.loss = PretrainingLoss(model, recipe.objective)
        self.shared_loss = ranks.wrap(self.loss)
        self.run_loss = torch.compile(self.shared_loss) if recipe.compile else self.shared_loss
        self.optimizer = make_optimizer(model, recipe)
        self.schedule = linear_schedule(self.optimizer, recipe.steps, recipe.warmup)
        self.step, self.epoch, self.batch = 0, 0, 0  # steps done; the next batch, and its epoch
        self.tokens, self.cpu_started = 0, time.process_time()

    # -- the loop ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Train from where the newest checkpoint is to the last step, and write the model.

        Ctrl-C or SIGTERM writes a checkpoint first, then raises KeyboardInterrupt. Raises EdgeAlbertError when a loss
        is not finite, with the batch saved beside the log.
        """
        self._resume()
        stream = None if self.ranks.is_first else io.StringIO()  # one process speaks
        with resume.stop_on_request() as asked, Progress(self.recipe.steps, "pre-training", stream) as bar:
            bar.update(self.step)
            started, tokens = time.monotonic(), self.tokens
            for batches, micro in self._steps():
                figures = self._train_step(batches, micro)
                bar.update(loss=figures["mlm_loss"])
                last = self.step == self.recipe.steps
                if self.step % self.recipe.log_every == 0 or last:
                    speed = (self.tokens - tokens) / (time.monotonic() - started)
                    self._log({"event": "step", **figures, **self._spent(), "tokens_per_second": speed})
                    started, tokens = time.monotonic(), self.tokens
                stop = self.ranks.sum([asked.is_set()])[0] > 0
                if self.step % self.recipe.checkpoint_every == 0 or last or stop:
                    self._checkpoint(look=last or not stop)  # who asks to stop cannot wait
                    started, tokens = time.monotonic(), self.tokens
                if stop and not last:
                    raise KeyboardInterrupt
        if self.ranks.is_first:
            self._write_model(self.folder / "model")

    def _steps(self) -> Iterator[tuple[EpochBatches, list[Batch]]]:
        """This process's micro-batches of every step still to do, and the epoch they belong to."""
        while self.step < self.recipe.steps:
            batches = self._epoch_batches()
            loader = DataLoader(
                batches,
                batch_size=None,
                sampler=range(self.batch, min(len(batches), self.batch + self.recipe.steps - self.step)),
                num_workers=self.workers,
                collate_fn=_as_it_is,
                worker_init_fn=_leave_ctrl_c,
                pin_memory=self.ranks.device.type == "cuda",
            )
            for micro in loader:
                yield batches, micro
            if self.batch == len(batches):
                self.epoch, self.batch = self.epoch + 1, 0

    def _epoch_batches(self) -> EpochBatches:
        spans = pack(self.maker.store, self.room, seed=self.recipe.seed, epoch=self.epoch)
        return EpochBatches(
            self.maker,
            spans,
            epoch=self.epoch,
            batch_size=self.recipe.batch_size,
            micro_batch=self.recipe.micro_batch,
            pad_id=self.tokenizer.pad_id,
            length=self.padded_length,
            rank=self.ranks.rank,
            world=self.ranks.world,
        )

    def _train_step(self, batches: EpochBatches, micro: list[Batch]) -> Figures:
        """One update; the figures of its global batch."""
        seed_step(self.recipe.seed, self.step, self.ranks.rank)
        masked, tokens = self.ranks.sum(
            [sum(len(b.labels) for b in micro), sum(int(b.attention_mask.sum()) for b in micro)]
        )
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        sums = np.zeros(4)
        for number, batch in enumerate(micro, start=1):
            with self._exchanged_later(number < len(micro)):
                sums += self._backward(batch.to(self.ranks.device), masked)
        totals = self.ranks.sum(sums.tolist())
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip_norm))
        figures = {
            "step": self.step + 1, "epoch": self.epoch, **means(totals, masked, self.recipe.batch_size),
            "gradient_norm": norm, "learning_rate": self.schedule.get_last_lr()[0],
        }  # fmt: skip
        if not math.isfinite(totals[0] + totals[1] + norm):
            raise self._not_finite(figures, batches)
        self.optimizer.step()
        self.schedule.step()
        self.step, self.batch, self.tokens = self.step + 1, self.batch + 1, self.tokens + int(tokens)
        return figures

    def _backward(self, batch: Batch, masked: float) -> list[float]:
        """Add one micro-batch's gradients; its sums: both losses, both counts of right answers."""
        with autocast(self.ranks.device):
            mlm, order, right = self.run_loss(batch)
        # DistributedDataParallel averages over the processes: times their number gives the sum that is meant
        loss = (mlm / masked + order / self.recipe.batch_size) * self.ranks.world
        loss.backward()
        return [mlm.item(), order.item(), *right.tolist()]

    def _exchanged_later(self, later: bool) -> AbstractContextManager[Any]:
        """While accumulating, processes exchange gradients only once, with the last micro-batch."""
        return self.shared_loss.no_sync() if later and self.ranks.world > 1 else nullcontext()  # type: ignore[operator]

    # -- evaluation ----------------------------------------------------------------------------------------------------

    def evaluate(self) -> Figures:
        """The figures of at most EVALUATED held-out examples, the same ones at every call; {} if none are held out."""
        spans = self._held_out
        if not len(spans):
            return {}
        maker = replace(self.maker, seed=0)
        numbers = evenly(len(spans), EVALUATED)
        parts = np.split(numbers, range(self.recipe.micro_batch, len(numbers), self.recipe.micro_batch))
        mine = parts[self.ranks.rank :: self.ranks.world]
        pad_id = self.tokenizer.pad_id
        sums = held_out_sums(self.loss, maker, spans, mine, pad_id=pad_id, length=self.padded_length)
        *totals, masked = self.ranks.sum(sums.tolist())
        return means(totals, masked, len(numbers))

    @cached_property
    def _held_out(self) -> Spans:
        return pack(self.maker.store, self.room, seed=0, epoch=0, held_out=True)

    # -- files ---------------------------------------------------------------------------------------------------------

    def _checkpoint(self, *, look: bool) -> None:
        """Write one. look: at the held-out examples first."""
        figures = self.evaluate() if look else {}
        if not self.ranks.is_first:
            return
        if look:
            self._log({"event": "evaluation", "step": self.step, **figures, **self._spent()})
        state = {
            "optimizer": self.optimizer.state_dict(), "schedule": self.schedule.state_dict(), "step": self.step,
            "epoch": self.epoch, "batch": self.batch, **self._spent(),
        }  # fmt: skip
        resume.save(self.folder / "checkpoints", self.step, state, self._write_model, keep=self.recipe.keep)

    def _write_model(self, folder: Path) -> None:
        write_checkpoint(
            folder, self.model.config, arrays_of(self.model), tokenizer_folder=self.tokenizer.path.parent, force=True
        )

    def _resume(self) -> None:
        resumed = resume.load_newest(self.folder / "checkpoints")
        if resumed is not None:
            state = resumed.state
            load_arrays(self.model, read_checkpoint(resumed.model).tensors)
            self.optimizer.load_state_dict(state["optimizer"])
            self.schedule.load_state_dict(state["schedule"])
            self.step, self.epoch, self.batch = state["step"], state["epoch"], state["batch"]
            self.tokens, self.cpu_started = state["tokens"], self.cpu_started - state["cpu_seconds"]
        if self.ranks.is_first:
            resume.sweep(self.folder / "checkpoints")
            _forget_after(self.folder / "log.jsonl", self.step)
        self.ranks.barrier()

    def _spent(self) -> Figures:
        """What the run has cost so far: tokens without padding, and this process's CPU seconds."""
        return {"tokens": self.tokens, "cpu_seconds": time.process_time() - self.cpu_started}

    def _log(self, record: Figures) -> None:
        if self.ranks.is_first:
            with open(self.folder / "log.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")

    def _not_finite(self, figures: Figures, batches: EpochBatches) -> EdgeAlbertError:
        """Save the global batch, and say where."""
        path = batch_file(self.folder, figures["step"])
        if self.ranks.is_first:
            numbers = batches.numbers(self.batch)
            ids = [example.input_ids.tolist() for example in batches.examples(numbers)]
            record = {**figures, "recipe": asdict(self.recipe), "examples": numbers.tolist(), "input_ids": ids}
            write_file_atomic(path, json.dumps(record))
        return EdgeAlbertError(
            f"the loss or its gradient is not finite at step {figures['step']} (learning rate "
            f"{figures['learning_rate']:.3g}); the batch is in {path}: start anew with a lower --learning-rate or a "
            "longer --warmup"
        )


def _forget_after(path: Path, step: int) -> None:
    """Drop the log's records of steps that will be done again, and a line cut short by a kill."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            break
        if record["step"] <= step:
            kept.append(line + "\n")
    write_file_atomic(path, "".join(kept))


def _as_it_is(micro: list[Batch]) -> list[Batch]:
    return micro


def _leave_ctrl_c(worker: int) -> None:
    """In a data worker: Ctrl-C and SIGTERM, which go to the whole process group, are for the training process, which
    needs its workers until the step is done and then ends them."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
