"""How to pre-train, as data. Free of PyTorch, so that --help and the tokenising processes start at once."""

from __future__ import annotations

from dataclasses import dataclass

from edge_albert.errors import EdgeAlbertError

OBJECTIVES = ("sop", "nsp", "none")
OPTIMIZERS = ("lamb", "adamw")
MASK_SHARE = 0.15  # of the tokens, as BERT and ALBERT have it


@dataclass(frozen=True)
class PretrainRecipe:
    """Everything that decides what a run learns, and how often it writes.

    steps: updates in all. batch_size: examples of a step, over all processes. micro_batch: examples that a process
    takes at a time. max_length: tokens of an example. mask_share: of its tokens that have to be guessed. warmup: share
    of the steps. clip_norm: of a whole step's gradient. keep: checkpoints. compile: through torch.compile, every
    example padded to max_length.
    """

    steps: int
    batch_size: int = 256
    micro_batch: int = 32
    max_length: int = 512
    objective: str = "sop"
    mask_share: float = MASK_SHARE
    optimizer: str = "lamb"
    learning_rate: float = 5e-4
    warmup: float = 0.1
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    seed: int = 0
    checkpoint_every: int = 500
    keep: int = 3
    log_every: int = 10
    compile: bool = False

    def check_shares(self, world: int) -> None:
        """Raises EdgeAlbertError when `world` processes cannot take equal shares of a step, in whole micro-batches."""
        if self.batch_size % (self.micro_batch * world):
            raise EdgeAlbertError(
                f"--batch-size {self.batch_size} is not a multiple of --micro-batch {self.micro_batch} times "
                f"{world} processes: each takes an equal share of every step"
            )
