"""Two processes under torchrun learn what one does, each from its own share, and one of them writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from pretrain_helpers import NO_DROPOUT, arguments, losses, make_shards, rewind, write_corpus  # noqa: E402

from edge_albert.pretrain import main  # noqa: E402
from edge_albert.training.resume import checkpoints  # noqa: E402

pytestmark = pytest.mark.slow


def torchrun(options: list[str], processes: int = 2) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [*command, "-m", "edge_albert.pretrain", *options], env=environment, text=True, capture_output=True
    )


@pytest.mark.parametrize("objective", ["sop", "none"])
def test_two_processes_have_the_losses_of_one(tmp_path: Path, objective: str) -> None:
    """32 examples a step: 8 micro-batches of 4 in one process, 4 in each of two; dropout off, which is per process."""
    made = make_shards(tmp_path / "made")
    one, two = tmp_path / "one", tmp_path / "two"
    options = {"micro_batch": 4, "objective": objective}
    main([*arguments(made, one, **options), *NO_DROPOUT])
    done = torchrun([*arguments(made, two, **options), *NO_DROPOUT])
    assert done.returncode == 0, done.stderr
    alone, shared = np.array(losses(one)), np.array(losses(two))
    assert alone.shape == shared.shape == (12, 4)  # one process logs
    assert shared == pytest.approx(alone, rel=2e-4)
    evaluations = [
        [json.loads(line)["mlm_loss"] for line in (run / "log.jsonl").read_text().splitlines() if "evaluation" in line]
        for run in (one, two)
    ]
    assert len(evaluations[0]) == 3
    assert evaluations[1] == pytest.approx(evaluations[0], rel=2e-4)
    assert len(checkpoints(two / "checkpoints")) == 3


def test_two_processes_go_on_where_one_stopped_and_exactly_where_two_did(tmp_path: Path) -> None:
    made = make_shards(tmp_path / "made")
    whole = tmp_path / "whole"
    assert torchrun(arguments(made, whole)).returncode == 0
    again = rewind(whole, tmp_path / "again", 5)
    assert torchrun(["--resume", str(again)]).returncode == 0
    assert losses(again) == losses(whole)  # dropout is on
    alone = rewind(whole, tmp_path / "alone", 5)
    main(["--resume", str(alone)])
    assert losses(alone)[:5] == losses(whole)[:5]
    assert len(losses(alone)) == 12


def test_the_first_process_tokenises_for_all(tmp_path: Path) -> None:
    made = make_shards(tmp_path / "made")
    corpus = str(write_corpus(tmp_path / "corpus.txt"))
    done = torchrun([corpus, *arguments((made[0], tmp_path / "new"), tmp_path / "run", steps=2)])
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "new" / "index.json").exists()
    assert len(losses(tmp_path / "run")) == 2


def test_more_processes_than_the_batch_divides_into(tmp_path: Path) -> None:
    made = make_shards(tmp_path / "made")
    done = torchrun(arguments(made, tmp_path / "run", micro_batch=32))
    assert done.returncode != 0
    assert "not a multiple of --micro-batch 32 times 2 processes" in done.stderr
    assert "Traceback" not in done.stderr.split("edge_albert: error")[0]
