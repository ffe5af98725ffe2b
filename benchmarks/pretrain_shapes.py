"""Tokens of pre-training per CPU second, for a few shapes and lengths: what docs/pretraining.md argues from.

    OMP_NUM_THREADS=1 python benchmarks/pretrain_shapes.py

CPU time, not wall time, since machines are shared; one thread. A step is forward, backward, clipping and AdamW on 4096
random tokens of which 15 % are scored.
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from edge_albert.config import AlbertConfig, count_parameters, preset
from edge_albert.model import build_model
from edge_albert.training.pretraining.examples import Batch
from edge_albert.training.pretraining.loss import PretrainingLoss
from edge_albert.training.pretraining.optimizer import make_optimizer
from edge_albert.training.pretraining.recipe import PretrainRecipe

TOKENS, SECONDS = 4096, 6.0
# hidden size, iterations, length, activation, dropout, bfloat16
ROWS = (
    (192, 4, 128, "gelu_new", 0.0, False),
    (256, 6, 128, "gelu_new", 0.0, False),
    (256, 6, 128, "gelu_new", 0.0, True),
    (256, 6, 128, "gelu_new", 0.1, False),
    (256, 6, 128, "gelu", 0.0, False),
    (256, 6, 64, "gelu_new", 0.0, False),
    (256, 6, 512, "gelu_new", 0.0, False),
    (384, 4, 128, "gelu_new", 0.0, False),
    (384, 6, 128, "gelu_new", 0.0, False),
)


def shape(hidden: int, layers: int, act: str, dropout: float) -> AlbertConfig:
    return replace(
        preset("mini"), hidden_size=hidden, num_attention_heads=hidden // 64, intermediate_size=4 * hidden,
        num_hidden_layers=layers, hidden_act=act, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip


def random_batch(vocab_size: int, length: int) -> Batch:
    size = (TOKENS // length, length)
    ids = torch.randint(5, vocab_size, size)
    masked = torch.randperm(TOKENS)[: round(0.15 * TOKENS)].sort().values
    order = torch.randint(0, 2, size[:1])
    return Batch(ids, torch.zeros_like(ids), torch.ones_like(ids), masked, ids.flatten()[masked], order)


def tokens_per_cpu_second(config: AlbertConfig, length: int, bfloat16: bool) -> float:
    model = build_model(config, "pretraining")
    loss, optimizer = PretrainingLoss(model, "sop"), make_optimizer(model, PretrainRecipe(1, optimizer="adamw"))
    batch = random_batch(config.vocab_size, length)
    steps = -1  # the first is not counted
    started = time.process_time()
    while steps < 1 or time.process_time() - started < SECONDS:
        if steps == 0:
            started = time.process_time()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
            mlm, order, _ = loss(batch)
        (mlm + order).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    return steps * TOKENS / (time.process_time() - started)


def main() -> None:
    print("| H | iterations | length | activation | dropout | precision | parameters | tokens per CPU second |")
    print("|---|---|---|---|---|---|---|---|")
    for hidden, layers, length, act, dropout, bfloat16 in ROWS:
        config = shape(hidden, layers, act, dropout)
        rate = tokens_per_cpu_second(config, length, bfloat16)
        precision = "bfloat16" if bfloat16 else "float32"
        size = count_parameters(config).total / 1e6
        print(
            f"| {hidden} | {layers} | {length} | {act} | {dropout} | {precision} | {size:.2f} M | {rate:,.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
