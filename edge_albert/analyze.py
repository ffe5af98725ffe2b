"""What sharing buys and what it does not, measured: `python -m edge_albert.analyze count | speed | layers | ablate`."""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from edge_albert.cli import leave_without, run_command

try:
    from edge_albert.analysis.record import Part, Record, check_place, refresh_document, write_part
    from edge_albert.config import PRESETS, AlbertConfig
    from edge_albert.data_options import add_columns, text_file
    from edge_albert.errors import ConfigError, EdgeAlbertError
except ModuleNotFoundError as error:
    leave_without(error, __name__)

_EPILOG = """\
examples:
  python -m edge_albert.analyze count --config my-albert/config.json
  python -m edge_albert.analyze speed --quick
  python -m edge_albert.analyze layers --model runs/mini/model --texts texts.txt --output curves
  python -m edge_albert.analyze ablate corpus/ --tokenizer vocab-8k --work runs/ablation --output ablation

Tables go to standard output. --output DIR writes the raw numbers as JSON and the pictures as SVG, which needs
pip install 'edge-albert[report]'. Each part has its own --help.
"""


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python -m edge_albert.analyze",
        description="What ALBERT's sharing and factorising save, what they cost, and what its iterations do.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = out.add_subparsers(dest="part", required=True, metavar="PART")
    for name, (purpose, example, add, _) in _PARTS.items():
        part = parts.add_parser(
            name,
            help=purpose,
            description=purpose[0].upper() + purpose[1:] + ".",
            epilog=f"example:\n  python -m edge_albert.analyze {name} {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add(part)
        part.add_argument("--output", type=Path, metavar="DIR", help="write the JSON and the pictures there")
        part.add_argument("--document", type=Path, metavar="FILE", help="and refresh this part's place in a .md file")
        part.add_argument("--force", action="store_true", help="replace files in --output that exist")
        part.add_argument("--json", action="store_true", help="print the raw numbers as JSON")
    return out


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    words = sys.argv[1:] if argv is None else argv
    options = parser().parse_args(words)
    if options.document is not None and options.output is None:
        raise EdgeAlbertError("--document needs --output: the pictures it shows have to lie somewhere")
    if options.output is not None:
        check_place(options.part, options.output, options.document, force=options.force)
    _, _, _, run = _PARTS[options.part]
    measured = run(options, shlex.join(["python", "-m", "edge_albert.analyze", *words]))
    if measured is None:
        return 0
    part, record = measured
    if options.output is not None:
        write_part(part, record, options.output, force=options.force)
    if options.document is not None:
        refresh_document(part, record, options.document, options.output)
    print(json.dumps(record, ensure_ascii=False) if options.json else part.to_markdown(record))
    return 0


# -- the parts ---------------------------------------------------------------------------------------------------------


def _add_count(part: argparse.ArgumentParser) -> None:
    part.add_argument("--config", type=Path, nargs="+", default=[], metavar="FILE", help="a config.json, or its folder")


def _count(options: argparse.Namespace, command: str) -> tuple[Part, Record]:
    count = import_module("edge_albert.analysis.count")
    own: dict[str, AlbertConfig] = {}
    for path in options.config:
        file = path / "config.json" if path.is_dir() else path
        name = file.resolve().parent.name if file.name == "config.json" else file.stem
        own[_free_name(name, [*own, *PRESETS, *count.BERTS])] = _shape(file)
    return count.PART, count.measure(own, command)


def _shape(file: Path) -> AlbertConfig:
    """A config.json's. ConfigError for one that says neither model_type nor embedding_size: Google's of a BERT."""
    config = AlbertConfig.from_json(file)
    if not {"model_type", "embedding_size"} & json.loads(file.read_text(encoding="utf-8")).keys():
        raise ConfigError(
            f"{file}: has neither model_type nor embedding_size, one of which every ALBERT's has: is it a BERT's?"
        )
    return config


def _free_name(name: str, taken: Sequence[str]) -> str:
    """The name, or with a number behind it where a preset or an earlier file has it."""
    names = (name if number == 1 else f"{name} ({number})" for number in itertools.count(1))
    return next(one for one in names if one not in taken)


def _add_speed(part: argparse.ArgumentParser) -> None:
    part.add_argument("--preset", choices=tuple(PRESETS), help="the ALBERT's shape (default: albert-base-v2)")
    part.add_argument("--quick", action="store_true", help="a minute: a tiny shape, int8, one length, two rounds")


def _speed(options: argparse.Namespace, command: str) -> tuple[Part, Record]:
    from dataclasses import replace

    speed = import_module("edge_albert.analysis.speed")
    plan = speed.QUICK if options.quick else speed.Plan()
    return speed.PART, speed.measure(replace(plan, base=options.preset or plan.base), command)


def _add_layers(part: argparse.ArgumentParser) -> None:
    part.add_argument("--model", nargs="+", required=True, metavar="DIR", help="checkpoints, all in one picture")
    part.add_argument("--texts", type=Path, required=True, metavar="FILE", help="texts, one a line")
    part.add_argument("--data", type=Path, metavar="FILE", help="labelled texts, for the accuracy after each iteration")
    part.add_argument("--quick", action="store_true", help="a minute: few texts")
    add_columns(part.add_argument_group("columns of --data"))


def _layers(options: argparse.Namespace, command: str) -> tuple[Part, Record]:
    layers = import_module("edge_albert.analysis.layers")
    few = {"most_texts": 32, "most_labelled": 128} if options.quick else {}
    request = layers.Request(tuple(options.model), options.texts, text_file(options.data, options), **few)
    return layers.PART, layers.measure(request, command)


def _add_ablate(part: argparse.ArgumentParser) -> None:
    part.add_argument("corpus", nargs="*", type=Path, help=".txt, .jsonl, .xz, folders, as pretrain reads them")
    part.add_argument("--tokenizer", type=Path, required=True, metavar="DIR", help="folder with spiece.model")
    part.add_argument("--shards", type=Path, metavar="DIR", help="tokenised corpus to use or make (WORK/shards)")
    part.add_argument(
        "--work", type=Path, required=True, metavar="DIR", help="a folder for the runs; goes on where it was"
    )
    part.add_argument("--quick", action="store_true", help="a minute: two steps each, which show nothing")
    part.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="train this seed's models only, so that each core can have its own process",
    )


def _ablate(options: argparse.Namespace, command: str) -> tuple[Part, Record] | None:
    ablation = import_module("edge_albert.analysis.ablation")
    recipes = import_module("edge_albert.analysis.recipes")
    report = import_module("edge_albert.analysis.ablation_report")
    recipe = recipes.QUICK if options.quick else recipes.FULL
    place = ablation.Place(options.work, options.tokenizer, options.shards or options.work / "shards", options.corpus)
    if options.seed is not None:
        if options.output is not None:
            raise EdgeAlbertError("--seed trains and reports nothing: give --output to the same command without --seed")
        ablation.train(recipe, place, [options.seed])
        print(f"seed {options.seed} is trained; the same command without --seed reports", file=sys.stderr)
        return None
    return report.PART, ablation.run(recipe, place, command)


_Run = Callable[[argparse.Namespace, str], "tuple[Part, Record] | None"]
_PARTS: dict[str, tuple[str, str, Callable[[argparse.ArgumentParser], Any], _Run]] = {
    "count": (
        "parameters, multiply-adds, bytes and activations of every shape, and what each saving saves",
        "--config my-albert/config.json",
        _add_count,
        _count,
    ),
    "speed": (
        "an ALBERT beside the same shape with nothing shared: CPU time, file and memory on the same engines",
        "--preset albert-base-v2 --output speed",
        _add_speed,
        _speed,
    ),
    "layers": (
        "what every iteration changes, and what the head answers after 1, 2, … iterations",
        "--model my-albert --texts texts.txt --data dev.tsv --output curves",
        _add_layers,
        _layers,
    ),
    "ablate": (
        "small models pre-trained with other sharing, embeddings, objectives and iterations, compared",
        "corpus/ --tokenizer vocab-8k --work runs/ablation --output ablation",
        _add_ablate,
        _ablate,
    ),
}


if __name__ == "__main__":
    run_command(main)
