"""Pre-train an ALBERT on raw text: `python -m edge_albert.pretrain corpus/ --tokenizer vocab-8k --steps 10000 …`."""

from __future__ import annotations

import argparse
from collections.abc import Container
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from edge_albert.arguments import count, part, positive, share_below_one, whole
from edge_albert.cli import leave_without, run_command

try:
    from edge_albert.checkpoint import Checkpoint, read_checkpoint
    from edge_albert.config import PRESETS, AlbertConfig, preset
    from edge_albert.errors import EdgeAlbertError
    from edge_albert.tokenizer import load_tokenizer
    from edge_albert.training.data.datasets import DatasetSplit
    from edge_albert.training.pretraining.corpus import DatasetSource, Source
    from edge_albert.training.pretraining.recipe import OBJECTIVES, OPTIMIZERS, PretrainRecipe
    from edge_albert.training.pretraining.shards import usable_cores
except ModuleNotFoundError as error:
    leave_without(error, __name__)

_EPILOG = """\
examples:
  python -m edge_albert.pretrain corpus/ --tokenizer vocab-8k --preset mini --steps 10000 --output runs/mini
  python -m edge_albert.pretrain --resume runs/mini                       after Ctrl-C, a kill or a power cut
  torchrun --nproc-per-node 2 -m edge_albert.pretrain --resume runs/mini  the same run with two processes
  python -m edge_albert.pretrain --dataset my/corpus --split train --tokenizer vocab-8k --steps 100000 --output runs/big
then:
  python -m edge_albert.finetune --model runs/mini/model --task text-classification …

The corpus is tokenised once. Every checkpoint holds a model/ that the other commands read.
"""


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python -m edge_albert.pretrain",
        description="Pre-train an ALBERT on raw text: n-gram masked language model and sentence-order prediction.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run = out.add_mutually_exclusive_group(required=True)
    run.add_argument("--output", type=Path, metavar="DIR", help="folder of a new run")
    run.add_argument("--resume", type=Path, metavar="DIR", help="go on with this run; all else is as it was begun")
    out.add_argument(
        "--workers",
        type=count,
        metavar="N",
        help="processes that make batches ahead (none on a CPU, up to 8 on a GPU)",
    )
    _add_data(out.add_argument_group("data"))
    _add_model(out.add_argument_group("model"))
    _add_recipe(out.add_argument_group("recipe"))
    return out


def _add_data(group: argparse._ArgumentGroup) -> None:
    group.add_argument("corpus", nargs="*", type=Path, help=".txt (blank line between documents), .jsonl, .xz, folders")
    group.add_argument(
        "--dataset",
        metavar="NAME[:CONFIG]",
        help="a Hugging Face data set, hub name or folder, read as a stream",
    )
    group.add_argument("--split", default="train", help="its split (default: train)")
    group.add_argument("--text-field", default="text", metavar="NAME", help="field of a row with the text (text)")
    group.add_argument("--tokenizer", type=Path, metavar="DIR", help="folder with spiece.model or vocab.txt")
    group.add_argument("--shards", type=Path, metavar="DIR", help="tokenised corpus to use or make (OUTPUT/shards)")
    group.add_argument(
        "--processes", type=whole, default=usable_cores(), metavar="N", help="tokenising processes (all cores)"
    )


def _add_model(group: argparse._ArgumentGroup) -> None:
    shape = group.add_mutually_exclusive_group()
    shape.add_argument("--preset", choices=tuple(PRESETS), default="mini", help="a named shape (default: mini)")
    shape.add_argument("--config", type=Path, metavar="FILE", help="a config.json")
    shape.add_argument("--init", metavar="DIR_OR_NAME", help="begin with this checkpoint's weights and shape")
    group.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="change a field of the shape; may be repeated"
    )


def _add_recipe(group: argparse._ArgumentGroup) -> None:
    default = PretrainRecipe(steps=1)
    group.add_argument("--steps", type=whole, metavar="N", help="updates in all (required for a new run)")

    def add(name: str, kind: Any, text: str, **more: Any) -> None:
        value = getattr(default, name.removeprefix("--").replace("-", "_"))
        if "choices" not in more:
            more["metavar"] = "N" if isinstance(value, int) else "X"
        group.add_argument(name, type=kind, default=value, help=f"{text} ({value})", **more)

    add("--batch-size", whole, "examples of a step, over all processes")
    add("--micro-batch", whole, "examples a process takes at a time; the rest is accumulated")
    add("--max-length", whole, "tokens of an example")
    add("--mask-share", part, "share of the tokens that have to be guessed")
    add("--objective", str, "sentence order, next sentence, or the masked words alone", choices=OBJECTIVES)
    add("--optimizer", str, "LAMB needs the package pytorch-optimizer", choices=OPTIMIZERS)
    add("--learning-rate", positive, "its peak")
    add("--warmup", share_below_one, "share of the steps that the learning rate rises")
    add("--weight-decay", share_below_one, "of matrices; biases and normalisations do not decay")
    add("--clip-norm", positive, "largest norm of a step's gradient")
    add("--seed", count, "for weights, data order, masking and dropout")
    add("--checkpoint-every", whole, "steps between checkpoints, each with an evaluation")
    add("--keep", whole, "checkpoints kept")
    add("--log-every", whole, "steps between records of log.jsonl")
    group.add_argument(
        "--compile", action="store_true", help="through torch.compile; pads every example to --max-length"
    )


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    arguments = parser()
    options = arguments.parse_args(argv)
    if options.resume is not None:
        _refuse_changes(arguments, options)
    folder = options.resume or options.output
    from edge_albert.training.distributed import joined_ranks  # PyTorch: seconds, so after everything else
    from edge_albert.training.pretraining.run import pretrain, wait_for_run

    with joined_ranks() as ranks:
        if options.output is not None:
            if ranks.is_first:
                _begin(options, ranks.world)
            wait_for_run(folder)
        pretrain(folder, ranks, workers=options.workers)
        if ranks.is_first:
            print(f"{folder / 'model'}: written")
    return 0


def _refuse_changes(arguments: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Whatever would be ignored is an error: a run goes on as it was begun."""
    for name, value in vars(options).items():
        changed = value not in (arguments.get_default(name), []) and name not in ("resume", "workers")
        if changed:
            raise EdgeAlbertError(
                f"--resume goes on as the run was begun, {name.replace('_', '-')} cannot be given with it: leave it "
                "out, or begin a new run with --init and the last checkpoint's model/"
            )


def _begin(options: argparse.Namespace, processes: int) -> None:
    """Set the new run up, to be trained by so many processes."""
    from edge_albert.training.pretraining.run import Plan, check_init, fit_config, set_up, tokenizer_fields

    if options.steps is None:
        raise EdgeAlbertError("--steps is needed for a new run: how many updates in all")
    recipe = PretrainRecipe(**{f.name: getattr(options, f.name) for f in fields(PretrainRecipe)})
    recipe.check_shares(processes)
    begun = read_checkpoint(options.init) if options.init else None
    source: Path | None = options.tokenizer or (begun.folder if begun else None)
    if source is None:
        raise EdgeAlbertError("--tokenizer is needed: a folder with spiece.model (train_vocab makes one) or vocab.txt")
    tokenizer = load_tokenizer(source)
    config = fit_config(_shape(options, begun, tokenizer_fields(tokenizer)), tokenizer, recipe)
    if begun:
        check_init(begun, config, tokenizer)
    init = str(Path(options.init).resolve()) if options.init and Path(options.init).is_dir() else options.init
    plan = Plan(config, recipe, options.shards or options.output / "shards", init)
    corpus: list[Source] = list(options.corpus)
    if options.dataset:
        named = DatasetSplit.parse(options.dataset, options.split)
        corpus.append(DatasetSource(named.name, named.split, named.config))
    set_up(options.output, plan, tokenizer, corpus, text_field=options.text_field, processes=options.processes)


def _shape(options: argparse.Namespace, begun: Checkpoint | None, fixed: Container[str]) -> AlbertConfig:
    if begun:
        config = begun.config
    elif options.config:
        config = AlbertConfig.from_json(options.config)
    else:
        config = preset(options.preset)
    return replace(config, **dict(_field(text, config, fixed) for text in options.set))


def _field(text: str, config: AlbertConfig, fixed: Container[str]) -> tuple[str, Any]:
    """ "hidden_size=256" as a name and a value of the field's own kind. fixed: the names that the tokenizer decides."""
    name, _, value = text.partition("=")
    if name in fixed:
        raise EdgeAlbertError(f"--set {text}: {name} is the tokenizer's: leave it out")
    kind = type(getattr(config, name, None))
    if kind not in (int, float, str):
        raise EdgeAlbertError(f"--set {text}: no field {name!r} of a config.json holds a number or a word")
    try:
        return name, kind(value)
    except ValueError:
        raise EdgeAlbertError(f"--set {text}: {name} must be of the kind {kind.__name__}") from None


if __name__ == "__main__":
    run_command(main)
