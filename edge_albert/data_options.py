"""Options by which a command is told where a data file has its texts and labels."""

from __future__ import annotations

import argparse
from pathlib import Path

from calibration.texts import TextFile
from edge_albert.training.data.examples import Columns


def add_columns(group: argparse._ArgumentGroup) -> None:
    """--text-column and the like, named and meant as in `python -m edge_albert.finetune`."""
    group.add_argument("--text-column", metavar="NAME", help="default: sentence, text or sentence1")
    group.add_argument("--pair-column", metavar="NAME", help="default: sentence2 beside sentence1, else none")
    group.add_argument("--label-column", metavar="NAME", help="default: label or score")
    group.add_argument("--no-header", action="store_true", help="the first line is a row; columns are numbered from 1")
    group.add_argument(
        "--bad-rows", choices=("refuse", "skip"), default="refuse", help="rows without text or label (refuse)"
    )


def text_file(path: Path | None, options: argparse.Namespace) -> TextFile | None:
    """The file with what those options say of it; None for None."""
    if path is None:
        return None
    columns = Columns(options.text_column, options.pair_column, options.label_column, header=not options.no_header)
    return TextFile(path, columns, skip_bad=options.bad_rows == "skip")
