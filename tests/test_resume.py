"""Exact resume: a run that was killed goes on with the same losses and ends with the same weights, to the last bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pretrain_helpers import arguments, losses, make_shards, rewind, weights  # noqa: E402

from edge_albert.errors import CheckpointError  # noqa: E402
from edge_albert.pretrain import main  # noqa: E402
from edge_albert.training.pretraining.loop import Pretrainer  # noqa: E402
from edge_albert.training.resume import checkpoints, load_newest, save  # noqa: E402

Made = tuple[Path, Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_shards(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, made: Made) -> Path:
    """A run of 12 steps that nobody stopped: dropout on, 8 batches an epoch, checkpoints after 5, 10 and 12 steps."""
    run = tmp_path_factory.mktemp("whole") / "run"
    main(arguments(made, run))
    assert [path.name[-2:] for path in checkpoints(run / "checkpoints")] == ["05", "10", "12"]
    return run


class Killed(BaseException):
    """What the test raises where a kill would fall."""


def kill_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the training die before it has finished `step`."""
    train_step = Pretrainer._train_step

    def dying(self: Pretrainer, *args: Any) -> Any:
        if self.step == step - 1:
            raise Killed
        return train_step(self, *args)

    monkeypatch.setattr(Pretrainer, "_train_step", dying)


def same(run: Path, whole: Path) -> bool:
    return losses(run) == losses(whole) and weights(run) == weights(whole)


@pytest.mark.parametrize("step", [3, 6, 9, 12])
def test_killed_at_any_step(
    tmp_path: Path, made: Made, whole: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first checkpoint, after one, in the second epoch, at the last step."""
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        kill_at(step, patch)
        with pytest.raises(Killed):
            main(arguments(made, run))
    assert len(losses(run)) == step - 1
    assert main(["--resume", str(run)]) == 0
    assert same(run, whole)


def test_killed_again_and_again(tmp_path: Path, made: Made, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, begin = tmp_path / "run", arguments(made, tmp_path / "run", checkpoint_every=1)
    for step in range(2, 12, 3):
        with monkeypatch.context() as patch:
            kill_at(step, patch)
            with pytest.raises(Killed):
                main(begin)
        begin = ["--resume", str(run)]
    main(begin)
    assert same(run, whole)
    assert len(checkpoints(run / "checkpoints")) == 3


def test_lamb_and_nsp_too(tmp_path: Path, made: Made) -> None:
    pytest.importorskip("pytorch_optimizer", reason="the package pytorch-optimizer is not installed")
    run = tmp_path / "run"
    main(arguments(made, run, optimizer="lamb", objective="nsp"))
    again = rewind(run, tmp_path / "again", 5)
    main(["--resume", str(again)])
    assert same(again, run)


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_writes_a_checkpoint_first(
    tmp_path: Path, made: Made, whole: Path, signal_number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    train_step = Pretrainer._train_step

    def interrupted(self: Pretrainer, *args: Any) -> Any:
        if self.step == 6:
            signal.raise_signal(signal_number)
        return train_step(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Pretrainer, "_train_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            main(arguments(made, run))
    assert checkpoints(run / "checkpoints")[-1].name == "checkpoint-00000007"
    assert not (run / "model").exists()
    main(["--resume", str(run)])
    assert same(run, whole)


def test_it_may_go_on_elsewhere(tmp_path: Path, made: Made, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From another current folder, with the shards inside the run's own."""
    monkeypatch.chdir(tmp_path)
    corpus = str(made[1].parent / "corpus.txt")
    begin = arguments((made[0], Path("run/shards")), Path("run"))
    main([corpus, *begin, "--processes", "1"])
    assert same(Path("run"), whole)
    moved = rewind(tmp_path / "run", tmp_path / "below" / "moved", 5)
    monkeypatch.chdir("/")
    main(["--resume", str(moved)])
    assert same(moved, whole)


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["training.pt", "model/model.safetensors", "model/config.json", "sha256.json"])
def test_a_damaged_newest_checkpoint_falls_back(tmp_path: Path, whole: Path, name: str) -> None:
    """One flipped bit, in each file in turn."""
    run = rewind(whole, tmp_path / "run", 10)
    damage(run / "checkpoints" / "checkpoint-00000010" / name)
    with pytest.warns(UserWarning, match="checkpoint-00000010: damaged .*going on from the checkpoint before it"):
        main(["--resume", str(run)])
    assert same(run, whole)


def test_what_a_kill_left_half_written_is_swept(tmp_path: Path, whole: Path) -> None:
    run = rewind(whole, tmp_path / "run", 10)
    half = run / "checkpoints" / ".edge-albert-0123456789abcdef.tmp"
    half.mkdir()
    (half / "training.pt").write_bytes(b"half")
    main(["--resume", str(run)])
    assert not half.exists()
    assert same(run, whole)


def test_missing_files_and_nothing_whole(tmp_path: Path, whole: Path) -> None:
    run = rewind(whole, tmp_path / "run", 10)
    (run / "checkpoints" / "checkpoint-00000010" / "training.pt").unlink()
    (run / "checkpoints" / "checkpoint-00000005" / "sha256.json").write_text("[]")
    with (
        pytest.warns(UserWarning, match=r"training\.pt is missing"),
        pytest.warns(UserWarning, match=r"sha256\.json names no training\.pt"),
        pytest.raises(CheckpointError, match="all 2 checkpoints are damaged"),
    ):
        main(["--resume", str(run)])


def test_a_later_checkpoint_does_not_push_the_newest_out(tmp_path: Path) -> None:
    """A damaged one that the run passed over has the higher number, but is none of those to keep."""
    for step in (1, 2, 12, 3):
        save(tmp_path, step, {"step": step}, lambda folder: folder.mkdir(), keep=1)
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-00000003", "checkpoint-00000012"]
    damage(tmp_path / "checkpoint-00000012" / "training.pt")
    with pytest.warns(UserWarning, match="damaged"):
        newest = load_newest(tmp_path)
    assert newest is not None
    assert newest.state == {"step": 3}


def test_a_finished_run_stays_finished(tmp_path: Path, whole: Path) -> None:
    run = rewind(whole, tmp_path / "run", 12)
    main(["--resume", str(run)])
    assert same(run, whole)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="SIGKILL")
def test_real_kills(tmp_path: Path, made: Made) -> None:
    """SIGKILL at four odd moments of a process of its own, in training or while it writes."""
    plain, run = tmp_path / "plain", tmp_path / "run"
    options = {"steps": 60, "checkpoint_every": 2}
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    command = [sys.executable, "-m", "edge_albert.pretrain"]
    subprocess.run([*command, *arguments(made, plain, **options)], check=True, env=environment)
    begin = arguments(made, run, **options)
    for records in (2, 11, 24, 37):
        process = subprocess.Popen([*command, *begin], env=environment)
        while process.poll() is None and _records(run) < records:
            time.sleep(0.01)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        begin = ["--resume", str(run)]
    subprocess.run([*command, *begin], check=True, env=environment)
    assert same(run, plain)


def _records(run: Path) -> int:
    log = run / "log.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0
