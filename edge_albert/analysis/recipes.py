"""The ablations as data: which models are pre-trained, and how. Free of PyTorch.

A cell is one model and says only how it differs from the base: all shared, E = 64, sentence order, four iterations. The
tables of the paper (Lan et al. 2020, arXiv 1909.11942) are rows of cells, and share the base.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from edge_albert.config import AlbertConfig, count_macs
from edge_albert.training.pretraining.recipe import PretrainRecipe

# Multiply-adds of training per second, counted as below, on one core of a shared Xeon with AVX512, for models as
# small as these; another machine differs, and the estimate with it.
MACS_PER_SECOND = 25e9


@dataclass(frozen=True)
class Cell:
    """One model: what it changes. embedding_size, iterations: None keeps the base's; 0 stands for E = H."""

    sharing: str = "all"
    embedding_size: int | None = None
    iterations: int | None = None
    objective: str = "sop"


BASE = "base"
CELLS: Mapping[str, Cell] = {
    BASE: Cell(),
    "share-attention": Cell(sharing="attention"),
    "share-ffn": Cell(sharing="ffn"),
    "share-none": Cell(sharing="none"),
    "embedding-16": Cell(embedding_size=16),
    "embedding-32": Cell(embedding_size=32),
    "embedding-hidden": Cell(embedding_size=0),
    "nsp": Cell(objective="nsp"),
    "no-order": Cell(objective="none"),
    "iterations-1": Cell(iterations=1),
    "iterations-2": Cell(iterations=2),
    "iterations-8": Cell(iterations=8),
}


@dataclass(frozen=True)
class Table:
    """Rows of one question: what the row is called ► its cell. paper: the table that asks the same."""

    title: str
    paper: str
    rows: Mapping[str, str]


TABLES: Mapping[str, Table] = {
    "sharing": Table(
        "What is shared across the iterations",
        "Table 4",
        {
            "all shared": BASE,
            "attention shared": "share-attention",
            "feed-forward shared": "share-ffn",
            "nothing shared": "share-none",
        },
    ),
    "embedding": Table(
        "Size of the embedding, all shared",
        "Table 3",
        {"E = 16": "embedding-16", "E = 32": "embedding-32", "E = 64": BASE, "E = H": "embedding-hidden"},
    ),
    "objective": Table(
        "What is trained beside the masked words",
        "Table 5",
        {"nothing": "no-order", "next sentence (NSP)": "nsp", "sentence order (SOP)": BASE},
    ),
    "iterations": Table(
        "How often the one layer is applied",
        "Table 11",
        {"1": "iterations-1", "2": "iterations-2", "4": BASE, "8": "iterations-8"},
    ),
}


@dataclass(frozen=True)
class AblationRecipe:
    """All that decides the numbers. shape: the base's; its vocabulary comes from the tokenizer. pretrain: its seed is
    replaced by each of `seeds`. passes: draws of masks, seams and orders that every held-out example is scored with;
    most_scored: of these examples, None for all.
    """

    shape: AlbertConfig
    pretrain: PretrainRecipe
    seeds: tuple[int, ...]
    passes: int
    most_scored: int | None = None

    def config_of(self, cell: Cell) -> AlbertConfig:
        """The cell's shape."""
        config = self.shape
        if cell.iterations is not None:
            config = replace(config, num_hidden_layers=cell.iterations)
        if cell.embedding_size is not None:
            config = replace(config, embedding_size=cell.embedding_size or config.hidden_size)
        return config.with_sharing(cell.sharing)

    def pretrain_of(self, cell: Cell, seed: int) -> PretrainRecipe:
        """How the cell is trained with one seed."""
        return replace(self.pretrain, objective=cell.objective, seed=seed)

    def training_macs(self, cell: Cell, vocab_size: int) -> float:
        """Multiply-adds of one run, forward and backward, were no example shorter than the longest."""
        config, length = self.config_of(cell), self.pretrain.max_length
        head = config.embedding_size * (config.hidden_size + vocab_size)
        one = count_macs(config, length) + self.pretrain.mask_share * length * head
        return 3.0 * one * self.pretrain.steps * self.pretrain.batch_size

    def estimate(self, vocab_size: int) -> str:
        """What the whole grid costs, in one line, before it begins."""
        macs = len(self.seeds) * sum(self.training_macs(cell, vocab_size) for cell in CELLS.values())
        minutes = macs / MACS_PER_SECOND / 60
        size = (
            f"{minutes / 60:.1f} CPU hours"
            if minutes > 60
            else f"{max(1, round(minutes))} CPU minute{'s' * (minutes >= 1.5)}"
        )
        steps = f"{self.pretrain.steps} steps of {self.pretrain.batch_size} × {self.pretrain.max_length} tokens"
        seeds = f"{len(self.seeds)} seed{'s' * (len(self.seeds) > 1)}"
        return f"{len(CELLS)} models × {seeds}, {steps} each: about {size} in all"


# H = 128, so that E = 128 of the paper's Table 3 is E = H here; E = 16 is there instead. 40 % of the tokens are
# guessed: in so few steps, with the paper's 15 %, neither the masked words nor the order leave their first plateau.
FULL = AblationRecipe(
    shape=AlbertConfig(
        embedding_size=64, hidden_size=128, num_hidden_layers=4, num_attention_heads=2, intermediate_size=512,
        max_position_embeddings=128, classifier_dropout_prob=0.0,
    ),
    pretrain=PretrainRecipe(
        steps=1200, batch_size=64, micro_batch=64, max_length=64, mask_share=0.4, optimizer="adamw",
        learning_rate=2e-3, warmup=0.05, checkpoint_every=250, keep=1, log_every=25,
    ),
    seeds=(1, 2),
    passes=2,
)  # fmt: skip
# Shows that everything runs, in a minute, and nothing else.
QUICK = replace(
    FULL,
    pretrain=replace(FULL.pretrain, steps=2, batch_size=8, micro_batch=8, max_length=32),
    seeds=(1,),
    passes=1,
    most_scored=128,
)
