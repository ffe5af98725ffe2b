"""Teach a small ALBERT what a large model knows: `python -m edge_albert.distill --teacher … --student …`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from edge_albert.arguments import add_dropout, add_schedule, positive, weight, whole
from edge_albert.cli import leave_without, run_command

try:
    from edge_albert.config import EXIT_HEADS
    from edge_albert.data_options import add_columns
    from edge_albert.training.data.examples import Columns, describe_bad
    from edge_albert.training.distillation.loss import STUDENT_VECTORS, Layers, Matching
    from edge_albert.training.distillation.run import LOG, TASKS, Request, distill
    from edge_albert.training.distillation.student import StudentRequest
    from edge_albert.training.finetuning.early_exit import DEFAULT_HEADS
    from edge_albert.training.finetuning.loop import Recipe
except ModuleNotFoundError as error:
    leave_without(error, __name__)

_EPILOG = """\
example: a BERT fine-tuned on SST-2 teaches a pre-trained student, on the task's rows and on any other English text
  python -m edge_albert.distill --task text-classification --teacher sst2-bert --student pretrained \\
      --train SST-2/train.tsv --dev SST-2/dev.tsv --unlabelled sentences.txt --teacher-cache cache \\
      --epochs 3 --batch-size 64 --lr 5e-4 --output sst2-student
then:
  python -m edge_albert.export --model sst2-student --int8 --output sst2-bundle

Other students and tasks:
  --init-from-teacher --iterations 6         an ALBERT teacher's own layer, applied less often
  --student pretrained --embedding-size 64   the same checkpoint with a smaller embedding
  --student pretrained --early-exit          answers after every iteration, for export --early-exit
  --student tiny --tokenizer spiece-folder   from random weights
  --task sentence-embedding --teacher sentence-encoder --unlabelled sentences.txt --dev STS-B/dev.tsv

Weights default to --soft 1 --hard 0.5, for a sentence embedding to --sentence 1. A teacher of any vocabulary can give
soft labels and sentence vectors; --hidden and --attention go token by token and need the student's own.
Exit status 2: bad input, said in one line.
"""


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python -m edge_albert.distill",
        description="Train a small ALBERT to answer as a larger model does, on labelled and unlabelled text.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("--task", required=True, choices=TASKS)
    out.add_argument(
        "--teacher", required=True, metavar="DIR_OR_NAME", help="a checkpoint of ours or of transformers, of the task"
    )
    out.add_argument("--output", required=True, type=Path, metavar="DIR", help="folder to write")
    out.add_argument("--force", action="store_true", help="replace the output folder if it exists")
    out.add_argument("--json", action="store_true", help="print the figures as JSON on standard output")
    _add_student(out.add_argument_group("the student"))
    _add_data(out.add_argument_group("data (.tsv, .csv, .jsonl; unlabelled .txt)"))
    _add_matching(out.add_argument_group("what is learnt (weights)"))
    _add_training(out.add_argument_group("training"))
    return out


def _add_student(group: argparse._ArgumentGroup) -> None:
    begin = group.add_mutually_exclusive_group(required=True)
    begin.add_argument("--student", metavar="DIR_OR_PRESET", help="checkpoint folder, hub name, or a preset (tiny, …)")
    begin.add_argument("--init-from-teacher", action="store_true", help="begin as the teacher, which is an ALBERT")
    group.add_argument("--tokenizer", type=Path, metavar="DIR", help="folder with its tokenizer (the student's own)")
    group.add_argument("--iterations", type=whole, metavar="N", help="times the layer is applied (as it is)")
    group.add_argument("--embedding-size", type=whole, metavar="E", help="shrink the embedding to this (as it is)")
    add_dropout(group)


def _add_data(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--train", type=Path, metavar="FILE", help="labelled rows")
    group.add_argument("--dev", required=True, type=Path, metavar="FILE", help="decides which weights are kept")
    group.add_argument("--test", type=Path, metavar="FILE", help="judged once, at the end")
    group.add_argument(
        "--unlabelled", type=Path, nargs="+", default=[], metavar="FILE", help="one text a line; pairs with a tab"
    )
    add_columns(group)
    group.add_argument("--max-length", type=whole, metavar="N", help="tokens of a text (what the student takes)")
    group.add_argument(
        "--teacher-cache", type=Path, metavar="DIR", help="keep the teacher's answers there; a second run reads them"
    )


def _add_matching(group: argparse._ArgumentGroup) -> None:
    weights = {
        "soft": "of the teacher's probabilities, or its value (1)",
        "hard": "of the true labels (0.5)",
        "sentence": "of its vector of the whole text (0; 1 for a sentence embedding)",
        "hidden": "of its hidden states (0)",
        "attention": "of its attention maps (0)",
    }
    for name, note in weights.items():
        group.add_argument(f"--{name}", type=weight, metavar="WEIGHT", help=note)
    usual = Matching()
    group.add_argument("--temperature", type=positive, default=usual.temperature, help="of soft labels (%(default)s)")
    group.add_argument(
        "--layers",
        type=_layers,
        metavar="S:T,…",
        help="student's iteration : teacher's layer, for --hidden and --attention (evenly spread; 0: the embeddings)",
    )
    group.add_argument(
        "--sentence-vector",
        choices=STUDENT_VECTORS,
        default=usual.vector,
        help="mean of the tokens, [CLS], or both of the student for the teacher's mean (%(default)s)",
    )


def _add_training(group: argparse._ArgumentGroup) -> None:
    add_schedule(group, Recipe(learning_rate=5e-4), "looks")
    group.add_argument(
        "--early-exit",
        nargs="?",
        choices=EXIT_HEADS,
        const=DEFAULT_HEADS,
        help="learn an answer after every iteration: by the one head, or a head for each (%(const)s)",
    )
    group.add_argument("--evaluate-every", type=whole, metavar="N", help="steps between looks at dev (an epoch)")
    group.add_argument("--metric", metavar="NAME", help="to stop by: accuracy, f1, matthews; spearman, pearson")
    group.add_argument(
        "--checkpoints", type=Path, metavar="DIR", help="keep one there at every look; the same command goes on from it"
    )


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = parser().parse_args(argv)
    request = Request(
        task=options.task,
        teacher=options.teacher,
        student=StudentRequest(
            options.student, options.tokenizer, options.iterations, options.embedding_size, options.dropout
        ),
        output=options.output,
        train=options.train,
        dev=options.dev,
        test=options.test,
        unlabelled=tuple(options.unlabelled),
        columns=Columns(options.text_column, options.pair_column, options.label_column, header=not options.no_header),
        skip_bad=options.bad_rows == "skip",
        matching=_matching(options),
        recipe=Recipe(
            epochs=options.epochs,
            batch_size=options.batch_size,
            learning_rate=options.lr,
            warmup=options.warmup,
            weight_decay=options.weight_decay,
            patience=options.patience,
            seed=options.seed,
        ),
        metric=options.metric,
        max_length=options.max_length,
        early_exit=options.early_exit,
        every=options.evaluate_every,
        cache=options.teacher_cache,
        checkpoints=options.checkpoints,
        force=options.force,
    )
    lines = sys.stderr if options.json else sys.stdout
    end = distill(request, report=lambda record: print(_said(record), file=lines, flush=True))
    if options.json:
        print(json.dumps(end, ensure_ascii=False))
    return 0


def _matching(options: argparse.Namespace) -> Matching:
    """The weights that were given, in place of the task's usual ones."""
    usual = {"sentence": 1.0} if options.task == "sentence-embedding" else {"soft": 1.0, "hard": 0.5}
    given = {name: getattr(options, name) for name in ("soft", "hard", "sentence", "hidden", "attention")}
    weights = usual | {name: weight for name, weight in given.items() if weight is not None}
    return Matching(**weights, temperature=options.temperature, layers=options.layers, vector=options.sentence_vector)


def _said(record: dict[str, Any]) -> str:
    """A record of the log as a line for a person."""
    if record["event"] == "start":
        rows = ", ".join(f"{count} {name}" for name, count in record["rows"].items())
        bad = f"\nskipped {describe_bad(record['skipped'])}" if record["skipped"] else ""
        fresh = f", {len(record['fresh'])} tensors new" if record["fresh"] else ""
        return (
            f"{record['teacher']} teaches {record['student']}: {record['parameters']:,} parameters{fresh}; rows: "
            f"{rows}; {record['device']}{bad}"
        )
    if record["event"] == "look":
        where = f"step {record['step']} (epoch {record['epoch']})"
        return f"{where}: train {_figures(record['train'])}; dev {_figures(record['dev'])}"
    parts = "; ".join(f"{name} {_figures(record[name])}" for name in ("dev", "test") if name in record)
    return f"{record['output']}: look {record['best_look']} kept: {parts} (see {LOG})"


def _figures(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in figures.items())


# -- kinds of arguments ------------------------------------------------------------------------------------------------


def _layers(text: str) -> Layers:
    try:
        pairs = [tuple(int(side) for side in pair.split(":")) for pair in text.split(",")]
        return tuple((mine, its) for mine, its in pairs)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 1:2,2:4 (student:teacher)") from None


if __name__ == "__main__":
    run_command(main)
