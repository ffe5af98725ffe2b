"""How to train for early exit: one head or a head for each iteration, with and without self-distillation.

    python benchmarks/exit_heads.py --data snips --work runs/heads

The model in the package, its layer applied six times instead of four, is fine-tuned on every second row of SNIPS'
training set (seven intents; three epochs, the best one on the dev set kept; three seeds) and judged on its test set
after every iteration by the float model: accuracy × 100, the mean over the seeds and, in brackets, the lowest and the
highest. Runs that are already in WORK are not run again.

DIR has train/, dev/ and test/, each with seq.in and label, a line for every sentence (the form of Goo et al. 2018).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from calibration.exits import ExitModel, points_of
from calibration.gate import read_evaluation
from calibration.texts import TextFile
from edge_albert.checkpoint import read_checkpoint, write_checkpoint
from edge_albert.cli import run_command
from edge_albert.errors import EdgeAlbertError
from edge_albert.exporter import DEFAULT_MODEL
from edge_albert.exporting.source import read_source
from edge_albert.reports.tables import markdown_table

ITERATIONS, EVERY = 6, 2
SETTINGS = ("--epochs", "3", "--lr", "1e-3", "--batch-size", "32", "--max-length", "64")
VARIANTS: dict[str, tuple[str, ...]] = {
    "without early exit": (),
    "shared head": ("--early-exit", "--exit-distill", "0"),
    "shared head, self-distillation": ("--early-exit", "--exit-distill", "1"),
    "a head for each iteration": ("--early-exit", "per-iteration", "--exit-distill", "0"),
}


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python benchmarks/exit_heads.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="DIR",
        help="SNIPS: train/, dev/ and test/, each with seq.in and label",
    )
    out.add_argument("--work", type=Path, required=True, metavar="DIR", help="folder for everything on the way")
    out.add_argument("--seeds", type=int, default=3, help="(%(default)s)")
    return out


def main(argv: list[str] | None = None) -> int:
    """Train what is missing and print the table in Markdown; returns the exit status."""
    options = parser().parse_args(argv)
    options.work.mkdir(parents=True, exist_ok=True)
    start = _start(options.work / "start")
    train = _table(options.data / "train", options.work / "train.tsv", EVERY)
    dev = _table(options.data / "dev", options.work / "dev.tsv", 1)
    test = _table(options.data / "test", options.work / "test.tsv", 1)
    rows = []
    for name, words in VARIANTS.items():
        points = []
        for seed in range(1, options.seeds + 1):
            output = options.work / f"{name.replace(' ', '-').replace(',', '')}-{seed}"
            if not output.exists():
                files = ["--model", start, "--train", train, "--dev", dev, "--output", output]
                _finetune(*files, *SETTINGS, "--seed", seed, *words)
            points.append(by_depth(output, test))
        rows.append((name, *(_said(column) for column in np.transpose(points))))
    print(markdown_table(("accuracy × 100 after iteration", *range(1, ITERATIONS + 1)), rows))
    return 0


def _start(folder: Path) -> Path:
    """The package's model with more iterations: the layer is shared, so its weights do for any number."""
    if not folder.exists():
        read = read_checkpoint(DEFAULT_MODEL)
        config = replace(read.config, num_hidden_layers=ITERATIONS)
        write_checkpoint(folder, config, read.tensors, task=read.task, tokenizer_folder=read.folder)
    return folder


def _table(source: Path, target: Path, every: int) -> Path:
    texts, labels = ((source / name).read_text(encoding="utf-8").splitlines() for name in ("seq.in", "label"))
    rows = [f"{text.strip()}\t{label.strip()}\n" for text, label in zip(texts, labels, strict=True)][::every]
    target.write_text("text\tlabel\n" + "".join(rows), encoding="utf-8")
    return target


def _said(values: np.ndarray) -> str:
    return f"{values.mean():.1f} ({values.min():.1f} … {values.max():.1f})"


def _finetune(*words: object) -> None:
    command = [sys.executable, "-m", "edge_albert.finetune", "--task", "text-classification", *map(str, words)]
    done = subprocess.run(command, check=False)
    if done.returncode:
        raise EdgeAlbertError(f"python -m edge_albert.finetune ended with status {done.returncode}")


def by_depth(folder: Path, rows: Path) -> list[float]:
    """Accuracy × 100 on some rows after every iteration; without exits its only head is asked all the same."""
    given = read_source(str(folder), None)
    config = given.checkpoint.config
    evaluation = read_evaluation(TextFile(rows), None, config, given.task, given.tokenizer)
    answers = ExitModel(config, given.checkpoint.tensors, given.task).rows(evaluation.judged.encodings)
    everyone = np.ones(len(evaluation.judged.gold), bool)
    return [points_of(evaluation, [row[depth] for row in answers], everyone) for depth in range(ITERATIONS)]


if __name__ == "__main__":
    run_command(main)
