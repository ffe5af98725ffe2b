"""Train an ALBERT on labelled data: `python -m edge_albert.finetune --task text-classification …`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from edge_albert.arguments import add_dropout, add_schedule, count, weight, whole
from edge_albert.cli import leave_without, run_command

try:
    from edge_albert.config import EXIT_HEADS
    from edge_albert.training.data.datasets import DatasetSplit
    from edge_albert.training.data.examples import Columns, describe_bad
    from edge_albert.training.data.rows import Source
    from edge_albert.training.finetuning.early_exit import DEFAULT_HEADS, ExitTraining
    from edge_albert.training.finetuning.loop import Recipe
    from edge_albert.training.finetuning.run import DTYPES, LOG, Request, finetune
    from edge_albert.training.finetuning.tasks import FINETUNE_TASKS
except ModuleNotFoundError as error:
    leave_without(error, __name__)

_EPILOG = """\
example, with GLUE's SST-2 (train.tsv and dev.tsv have the columns sentence and label):
  python -m edge_albert.finetune --task text-classification --model albert-base-v2 \\
      --train SST-2/train.tsv --dev SST-2/dev.tsv --epochs 3 --batch-size 32 --lr 2e-5 --output sst2-albert
then:
  python -m edge_albert.export --model sst2-albert --int8 --output sst2-bundle

Other data:
  --train mails.csv --text-column body --label-column folder       CSV, or .jsonl with fields of these names
  --train sms.tsv --no-header --label-column 1 --text-column 2     a file without a header: columns by number
  --train rte.tsv --text-column premise --pair-column hypothesis   two texts; sentence1 and sentence2 are found
  --dataset nyu-mll/glue:sst2 --train train --dev validation       splits of a data set of the Hugging Face hub
Other tasks:
  --task question-answering --train train-v2.0.json --dev dev-v2.0.json           SQuAD 1.1 or 2.0
  --task multiple-choice --train RACE/train --dev RACE/dev                        or .jsonl: article, options, answer
  --task token-classification --train train.conll --dev dev.conll                 or .jsonl: tokens, tags
  --task sentence-embedding --train STS-B/train.tsv --dev STS-B/dev.tsv           pairs with a score
For early exit (docs/early_exit.md): add --early-exit, and export with --early-exit auto --eval DEV --max-drop 0.5
A model from scratch: --model tiny --tokenizer spiece.model --lr 5e-4 --epochs 20

The output folder is a Hugging Face checkpoint with its tokenizer and log.jsonl, and is written whole or not at all.
The same seed gives the same weights on the same machine. Exit status 2: bad input, said in one line.
"""


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python -m edge_albert.finetune",
        description="Train an ALBERT on labelled data: texts, pairs, questions, words, sentences to embed.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("--task", required=True, choices=tuple(FINETUNE_TASKS))
    out.add_argument(
        "--model",
        required=True,
        metavar="DIR_OR_PRESET",
        help="checkpoint folder, hub name, or a preset (tiny, mini, …) for random weights",
    )
    out.add_argument(
        "--tokenizer",
        type=Path,
        metavar="FILE_OR_DIR",
        help="spiece.model, vocab.txt or their folder (the model's own)",
    )
    out.add_argument("--output", required=True, type=Path, metavar="DIR", help="folder to write")
    out.add_argument("--force", action="store_true", help="replace the output folder if it exists")
    out.add_argument("--json", action="store_true", help="print the figures as JSON on standard output")
    out.add_argument("--tensorboard", metavar="NAME", help="also write TensorBoard's scalars to the folder NAME in DIR")
    _add_data(out.add_argument_group("data (.tsv, .csv, .jsonl, .parquet; the task's own forms)"))
    _add_training(out.add_argument_group("training"))
    return out


def _add_data(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--train", metavar="FILE", help="file or folder; with --dataset a split (train)")
    group.add_argument("--dev", metavar="FILE", help="decides which epoch is kept; with --dataset a split (validation)")
    group.add_argument("--test", metavar="FILE", help="judged once, at the end; with --dataset a split")
    group.add_argument(
        "--dataset",
        metavar="NAME[:CONFIG]",
        help="a data set of the Hugging Face hub, a local folder of one, or a .json file of splits",
    )
    group.add_argument("--text-column", metavar="NAME", help="default: sentence, text or sentence1; tokens or words")
    group.add_argument("--pair-column", metavar="NAME", help="default: sentence2 beside sentence1, else none")
    group.add_argument("--label-column", metavar="NAME", help="default: label or score; tags or ner_tags")
    group.add_argument("--no-header", action="store_true", help="the first line is a row; columns are numbered from 1")
    group.add_argument(
        "--bad-rows", choices=("refuse", "skip"), default="refuse", help="rows that cannot be used (refuse)"
    )
    group.add_argument("--max-length", type=whole, metavar="N", help="tokens a text is cut to (what the model takes)")
    group.add_argument(
        "--stride",
        type=count,
        metavar="N",
        help="tokens two windows over a long context or sentence share (128, or a quarter of the length)",
    )


def _add_training(group: argparse._ArgumentGroup) -> None:
    add_schedule(group, Recipe(), "epochs")
    group.add_argument("--metric", metavar="NAME", help="to stop by: the task's usual one, or another that is shown")
    add_dropout(group)
    group.add_argument(
        "--early-exit",
        nargs="?",
        choices=EXIT_HEADS,
        const=DEFAULT_HEADS,
        help="train an answer after every iteration: by the one head, or a head for each (%(const)s)",
    )
    group.add_argument(
        "--exit-distill",
        type=weight,
        metavar="WEIGHT",
        help=f"of what early answers learn from the last one, with --early-exit ({ExitTraining.distill:g}: nothing)",
    )
    group.add_argument("--dtype", choices=tuple(DTYPES), default="fp32", help="of the written weights (fp32)")


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    command = parser()
    options = command.parse_args(argv)
    if options.dataset is None and (options.train is None or options.dev is None):
        command.error("--train and --dev are needed, or --dataset")
    if options.exit_distill is not None and not options.early_exit:
        command.error("--exit-distill is about the answers that --early-exit trains: add it")
    request = Request(
        task=options.task,
        model=options.model,
        train=_source(options.dataset, options.train or "train"),
        dev=_source(options.dataset, options.dev or "validation"),
        test=_source(options.dataset, options.test) if options.test else None,
        output=options.output,
        tokenizer=options.tokenizer,
        columns=Columns(options.text_column, options.pair_column, options.label_column, header=not options.no_header),
        skip_bad=options.bad_rows == "skip",
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
        stride=options.stride,
        dropout=options.dropout,
        early_exit=_exits(options),
        dtype=options.dtype,
        force=options.force,
        tensorboard=options.tensorboard,
    )
    lines = sys.stderr if options.json else sys.stdout
    end = finetune(request, report=lambda record: print(_said(record), file=lines, flush=True))
    if options.json:
        print(json.dumps(end, ensure_ascii=False))
    return 0


def _exits(options: argparse.Namespace) -> ExitTraining | None:
    if options.early_exit is None:
        return None
    weight = ExitTraining.distill if options.exit_distill is None else options.exit_distill
    return ExitTraining(options.early_exit, weight)


def _source(dataset: str | None, said: str) -> Source:
    """A file or folder; with a data set, the name of a split of it."""
    return Path(said) if dataset is None else DatasetSplit.parse(dataset, said)


def _said(record: dict[str, Any]) -> str:
    """A record of the log as a line for a person."""
    if record["event"] == "start":
        rows = ", ".join(f"{count} {name}" for name, count in record["rows"].items())
        bad = f"\nskipped {describe_bad(record['skipped'])}" if record["skipped"] else ""
        fresh = f", {len(record['fresh'])} tensors new" if record["fresh"] else ""
        return f"{record['model']}: {record['parameters']:,} parameters{fresh}; rows: {rows}; {record['device']}{bad}"
    if record["event"] == "epoch":
        return f"epoch {record['epoch']}: train loss {record['train_loss']:.4f}, dev {_figures(record['dev'])}"
    parts = "; ".join(f"{name} {_figures(record[name])}" for name in ("dev", "test") if name in record)
    return f"{record['output']}: epoch {record['best_epoch']} kept, {record['dtype']}: {parts} (see {LOG})"


def _figures(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in figures.items())


if __name__ == "__main__":
    run_command(main)
