"""How a part of the analysis is kept: raw numbers as JSON, pictures as SVG, its block of a Markdown document.

A record is everything that was measured, with the seed, the commit and the machine; tables and pictures are functions
of the record alone, so that a document can be held to its numbers (tests/test_analysis_docs.py). In a document, a
part's place is between two comments, and what stands there is replaced:

    <!-- analysis: count -->
    …
    <!-- /analysis: count -->
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_albert import __version__
from edge_albert.analysis.picture import find_drawing_library
from edge_albert.atomic import write_file_atomic
from edge_albert.errors import DataError, EdgeAlbertError
from edge_albert.reports.machine import describe_machine

Record = dict[str, Any]
_DRAWN = {"layers": ("layers", "layers-readout")}  # a part's pictures, the last one where there was labelled text


@dataclass(frozen=True)
class Part:
    """One part of the analysis: what turns its record into Markdown and into pictures.

    pictures: of a record, file name without .svg ► what it shows, in words. draw: a record ► SVG by the same names.
    """

    name: str
    to_markdown: Callable[[Record], str]
    pictures: Callable[[Record], Mapping[str, str]]
    draw: Callable[[Record], dict[str, str]]

    def block(self, record: Record, folder: str) -> str:
        """What stands in a document: the pictures, which lie in `folder` as seen from there, then the tables."""
        shown = [f"![{text}]({folder}/{name}.svg)" for name, text in self.pictures(record).items()]
        source = f"Raw numbers: [{self.name}.json]({folder}/{self.name}.json). {made_by(record)}"
        return "\n\n".join([*shown, self.to_markdown(record), source])


def begin(part: str, command: str, seed: int | None) -> Record:
    """The head of a record: where its numbers come from."""
    return {
        "schema": f"edge_albert.analysis.{part}",
        "schema_version": 1,
        "edge_albert": __version__,
        "command": command,
        "seed": seed,
        "commit": checked_out_commit(),
        "machine": describe_machine(),
    }


def made_by(record: Record) -> str:
    """One sentence: the command, the commit, the machine."""
    machine = record["machine"]
    return (
        f"Made by `{record['command']}` at commit {record['commit'] or 'unknown'} on {machine['cpu']} "
        f"({machine['cpus']} cores)."
    )


def checked_out_commit() -> str | None:
    """The commit this package was run from, with "-dirty" behind it when tracked files differ; None without git."""
    try:
        # installed into somebody else's repository, this file is none of its own
        _git("ls-files", "--error-unmatch", Path(__file__).name)
        return _git("describe", "--always", "--abbrev=12", "--dirty", "--exclude=*")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*words: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def check_place(part: str, folder: Path, document: Path | None, *, force: bool) -> None:
    """Before hours of work: raises what would keep `write_part` and `refresh_document` from writing."""
    find_drawing_library()
    if folder.exists() and not folder.is_dir():
        raise EdgeAlbertError(f"{folder}: is a file: name a folder with --output")
    _refuse_existing(folder, [f"{part}.json", *(path.name for path in _pictures_there(part, folder))], force)
    if document is not None:
        _split(read_text(document), part, document)


def _pictures_there(part: str, folder: Path) -> list[Path]:
    """Those that a run of this part may have left."""
    paths = [folder / f"{name}.svg" for name in _DRAWN.get(part, (part,))]
    return [path for path in paths if path.exists()]


def _refuse_existing(folder: Path, names: Iterable[str], force: bool) -> None:
    for name in names:
        if (folder / name).exists() and not force:
            raise EdgeAlbertError(f"{folder / name}: exists already: name another --output, or replace it with --force")


def write_part(part: Part, record: Record, folder: Path, *, force: bool) -> None:
    """Write <part>.json and the pictures into `folder`. Raises EdgeAlbertError when one is there and not `force`."""
    pictures = part.draw(record)
    files = {f"{part.name}.json": json.dumps(record, indent=1, ensure_ascii=False) + "\n"}
    files |= {f"{name}.svg": svg for name, svg in pictures.items()}
    _refuse_existing(folder, files, force)
    for name, content in files.items():
        write_file_atomic(folder / name, content)
    for path in _pictures_there(part.name, folder):  # of another run, which showed more
        if path.name not in files and force:
            path.unlink()


def refresh_document(part: Part, record: Record, document: Path, folder: Path) -> None:
    """Put the part's block into its place in `document`. Raises DataError when the document has no such place."""
    before, after = _split(read_text(document), part.name, document)
    block = part.block(record, os.path.relpath(folder, document.parent).replace(os.sep, "/"))
    begins, ends = _marks(part.name)
    write_file_atomic(document, f"{before}{begins}\n{block}\n{ends}{after}")


def _split(text: str, part: str, document: Path) -> tuple[str, str]:
    """What stands before a part's place, and behind it. Raises DataError where there is no such place."""
    begins, ends = _marks(part)
    before, _, rest = text.partition(begins)
    _, _, after = rest.partition(ends)
    if begins not in text or ends not in rest:
        raise DataError(f"{document}: no place for {part}: put {begins} and {ends} where its tables belong")
    return before, after


def block_of(text: str, part: str) -> str | None:
    """What stands in a document's place for a part, None where it has none."""
    begins, ends = _marks(part)
    if begins not in text:
        return None
    return text.partition(begins)[2].partition(ends)[0].strip("\n")


def read_text(path: Path) -> str:
    """A file's text. Raises DataError when it cannot be read or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}): name a text file") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: not UTF-8: convert the file") from None


def _marks(part: str) -> tuple[str, str]:
    return f"<!-- analysis: {part} -->", f"<!-- /analysis: {part} -->"
