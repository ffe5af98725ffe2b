"""Tokens a second of training, beside Hugging Face's Trainer: the same model, data and batch, in one run.

    OMP_NUM_THREADS=1 python benchmarks/train_speed.py --tokenizer vocab-8k --rows SST-2/train.tsv --shards shards-8k

--tokenizer and --shards are what `train_vocab` and `pretrain` leave. Each side runs in a fresh process, in turn, for
--rounds rounds. What is counted: real tokens, not padding, over CPU seconds (process_time: the machine may be shared);
on a GPU over wall seconds, with model FLOPs utilisation. A 2 M parameter ALBERT (H 256, six iterations). The Trainer is
set as benchmarks/speed/theirs.py says.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from speed.job import Job

from edge_albert.cli import run_command
from edge_albert.errors import EdgeAlbertError
from edge_albert.reports.machine import describe_machine
from edge_albert.reports.tables import markdown_table, megabytes

SIDES = {
    "finetune": {"ours": "ours.finetune", "Trainer": "theirs.finetune", "Trainer, grouped": "theirs.finetune_grouped"},
    "pretrain": {"ours": "ours.pretrain", "Trainer": "theirs.pretrain"},
}


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python benchmarks/train_speed.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("--tokenizer", type=Path, required=True, help="folder with spiece.model")
    out.add_argument("--rows", type=Path, help="labelled rows, for fine-tuning")
    out.add_argument("--shards", type=Path, help="tokenised corpus, for pre-training")
    out.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    out.add_argument("--steps", type=int, default=40, help="of fine-tuning; pre-training takes a fifth (%(default)s)")
    out.add_argument("--json", action="store_true", help="print the figures as JSON")
    out.add_argument("--side", help=argparse.SUPPRESS)
    out.add_argument("--job", help=argparse.SUPPRESS)
    return out


def jobs(options: argparse.Namespace) -> list[Job]:
    """What is to be compared."""
    out = []
    if options.rows:
        out.append(Job("finetune", options.tokenizer, options.rows, options.steps, 32, 32, 0.1))
    if options.shards:
        out.append(Job("pretrain", options.tokenizer, options.shards, max(2, options.steps // 5), 64, 16, 0.0))
    if not out:
        raise EdgeAlbertError("there is nothing to train on: name --rows, --shards or both")
    return out


def main(argv: list[str] | None = None) -> int:
    """Compare; returns the exit status."""
    options = parser().parse_args(argv)
    if options.side:
        _run_side(options.side, Job(**_paths(json.loads(options.job))))
        return 0
    results = {job.kind: compare(job, options.rounds) for job in jobs(options)}
    if options.json:
        print(json.dumps({"machine": describe_machine(), "torch": torch.__version__, "results": results}))
    else:
        print(report(results))
    return 0


def compare(job: Job, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Every side's figures, a round after the other."""
    out: dict[str, list[dict[str, Any]]] = {name: [] for name in SIDES[job.kind]}
    content = json.dumps(asdict(job), default=str)
    for _ in range(rounds):
        for name, side in SIDES[job.kind].items():
            words = [sys.executable, __file__, "--tokenizer", str(job.tokenizer), "--side", side, "--job", content]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode:
                raise EdgeAlbertError(f"{side}: {done.stderr.strip().splitlines()[-1]}")
            out[name].append(json.loads(done.stdout.splitlines()[-1]))
    return out


def _run_side(side: str, job: Job) -> None:
    module, _, function = side.partition(".")
    if module == "ours":
        from speed import ours as chosen
    else:
        from speed import theirs as chosen  # type: ignore[no-redef]
    print(json.dumps(getattr(chosen, function)(job)))


def _paths(content: dict[str, Any]) -> dict[str, Any]:
    return {name: Path(value) if name in ("tokenizer", "data") else value for name, value in content.items()}


def report(results: dict[str, dict[str, list[dict[str, Any]]]]) -> str:
    """Medians over the rounds, and ours over each of theirs."""
    on_gpu = torch.cuda.is_available()
    speed = "tokens_per_second" if on_gpu else "tokens_per_cpu_second"
    header = [
        "training",
        "side",
        "tokens per second" if on_gpu else "tokens per CPU second",
        "ours ÷ it",
        "peak memory",
    ]
    rows = []
    for kind, sides in results.items():
        ours = statistics.median(run[speed] for run in sides["ours"])
        for name, runs in sides.items():
            median = statistics.median(run[speed] for run in runs)
            peak = megabytes(max(run["peak_rss"] for run in runs))
            row = [kind, name, f"{median:,.0f}", f"{ours / median:.2f}", peak]
            rows.append([*row, *_gpu_cells(runs)] if on_gpu else row)
    return markdown_table([*header, "GPU memory", "model FLOPs utilisation"] if on_gpu else header, rows)


def _gpu_cells(runs: list[dict[str, Any]]) -> list[str]:
    used = [run["model_flops_utilisation"] for run in runs]
    share = "not known" if None in used else f"{100 * statistics.median(used):.1f} %"
    return [megabytes(max(run["gpu_peak_memory"] for run in runs)), share]


if __name__ == "__main__":
    run_command(main)
