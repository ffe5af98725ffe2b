"""What both sides train, and how a run is measured: one process, one side, one kind of training."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from edge_albert.config import AlbertConfig, count_macs, preset
from edge_albert.tokenizer import load_tokenizer
from edge_albert.training.data.batches import EncodedTexts, encode_examples
from edge_albert.training.data.examples import Columns, any_label, label_names, read_examples
from edge_albert.training.device import pick_device
from edge_albert.training.pretraining.examples import ExampleMaker, Spans, pack
from edge_albert.training.pretraining.shards import TokenStore

# bfloat16 with float32 sums, without sparsity, from the makers' data sheets
PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12}


@dataclass(frozen=True)
class Job:
    """kind: finetune or pretrain. steps: timed, after one that is not. micro_batch: what a step is divided into."""

    kind: str
    tokenizer: Path
    data: Path
    steps: int
    batch_size: int
    micro_batch: int
    dropout: float

    @property
    def config(self) -> AlbertConfig:
        shape = replace(preset("mini"), hidden_size=256, num_attention_heads=4, intermediate_size=1024)
        rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), self.dropout)
        return replace(shape, vocab_size=load_tokenizer(self.tokenizer).vocab_size, **rates)

    def labelled(self) -> tuple[EncodedTexts, int]:
        """The rows of a fine-tuning run, tokenised, and the number of their labels."""
        rows = read_examples(self.data, Columns(), any_label, skip_bad=True).rows[: (self.steps + 1) * self.batch_size]
        names = label_names(rows)
        labels = np.array([names.index(row.label) for row in rows], dtype=np.int64)
        return encode_examples(load_tokenizer(self.tokenizer), rows, labels, 128), len(names)

    def segments(self) -> tuple[ExampleMaker, Spans]:
        """The examples of a pre-training run: 128 tokens at most, in two segments."""
        store = TokenStore(self.data)
        return ExampleMaker.of(store, load_tokenizer(self.tokenizer), "sop", 1), pack(store, 125, seed=1, epoch=0)


def figures(job: Job, tokens: int, cpu_seconds: float, wall_seconds: float) -> dict[str, float | str | None]:
    """What a side reports of its timed steps. tokens: without padding."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    out: dict[str, float | str | None] = {
        "tokens": tokens, "cpu_seconds": cpu_seconds, "wall_seconds": wall_seconds, "peak_rss": peak,
        "tokens_per_cpu_second": tokens / cpu_seconds, "tokens_per_second": tokens / wall_seconds,
    }  # fmt: skip
    device = pick_device()
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        peak_flops = next((value for key, value in PEAK_FLOPS.items() if key in name), None)
        flops = 6 * count_macs(job.config, 128, pooler=False) / 128 * tokens  # 2 a multiply-add, backward twice forward
        out["gpu"], out["gpu_peak_memory"] = name, torch.cuda.max_memory_allocated(device)
        out["model_flops_utilisation"] = flops / wall_seconds / peak_flops if peak_flops else None
    return out


class Clock:
    """CPU and wall seconds since it was made; waits for the GPU before it looks."""

    def __init__(self) -> None:
        self.cpu, self.wall = self._now()

    def _now(self) -> tuple[float, float]:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.process_time(), time.perf_counter()

    def read(self) -> tuple[float, float]:
        cpu, wall = self._now()
        return cpu - self.cpu, wall - self.wall
