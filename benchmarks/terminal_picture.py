"""A picture of what a command prints, for the README: docs/images/terminal.svg.

    python benchmarks/terminal_picture.py docs/images/terminal.svg "python -m edge_albert.export --int8" …

Runs the commands in turn, in an empty folder, and draws their output with rich's terminal export, so that the picture
cannot show what the commands do not say.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from edge_albert.atomic import write_file_atomic
from edge_albert.cli import run_command
from edge_albert.errors import EdgeAlbertError

WIDTH = 126


def main(argv: list[str] | None = None) -> int:
    """Write the picture; returns the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) < 2 or not arguments[0].endswith(".svg"):
        raise EdgeAlbertError("name the SVG to write, then the commands to run")
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"))  # noqa: SIM115
    with tempfile.TemporaryDirectory() as folder:
        for command in arguments[1:]:
            console.print(Text(f"$ {command}", style="bold"))
            console.print(Text(_output(command, folder)))
    # a fixed id instead of one made from the content, so that small changes stay small
    svg = console.export_svg(title="edge_albert", unique_id="terminal")
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)  # no font from elsewhere: the reader's own will do
    write_file_atomic(Path(arguments[0]), re.sub(r"\s+$", "", svg, flags=re.MULTILINE))
    return 0


def _output(command: str, folder: str) -> str:
    words = shlex.split(command)
    words[0] = sys.executable if words[0] == "python" else words[0]
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, check=False)
    if done.returncode:
        raise EdgeAlbertError(f"{command}: status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    run_command(main)
