"""One process or many: who this one is, and sums over all of them. torchrun starts the processes, never we.

torchrun tells each process its place by RANK, LOCAL_RANK and WORLD_SIZE; without them a run has one process and nothing
here costs anything. Processes talk through nccl on GPUs and gloo on CPUs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from edge_albert.training.device import pick_device


@dataclass(frozen=True)
class Ranks:
    """This process among all: `rank` of `world`, on `device`."""

    rank: int
    world: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """The one that writes files and speaks."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Each value summed over all processes, in float64; every process gets the same numbers."""
        if self.world == 1:
            return list(values)
        # float64 is exact for counts; nccl sums on the GPU
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.all_reduce(total)
        return total.tolist()

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module with its gradients averaged over all processes in every backward pass."""
        if self.world == 1:
            return module
        return DistributedDataParallel(module, device_ids=[self.device] if self.device.type == "cuda" else None)

    def barrier(self) -> None:
        """Wait until every process is here."""
        self.sum([0.0])


@contextmanager
def joined_ranks() -> Iterator[Ranks]:
    """Join the processes that torchrun has started, and leave them at the end; alone without torchrun."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    device = pick_device()
    if world == 1:
        yield Ranks(0, 1, device)
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Ranks(distributed.get_rank(), world, device)
    finally:
        distributed.destroy_process_group()
