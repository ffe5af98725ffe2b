"""What an Android app needs of a bundle: the characters' rules as a table, and the bundle among the app's assets.

`tokenizer_table` writes ALBERT's rules for single characters (see tokenization/text_rules.py) into a file of the
bundle, so that a device does not consult its own Unicode tables: Java's, Android's and Python's differ by version. The
Kotlin reader is android_demo/edgealbert/src/main/kotlin/io/edgealbert/tokenizer/CharacterRules.kt.

tokenizer_rules.bin, version 1. Whole numbers are unsigned LEB128 ("varint"), signed ones zigzag-coded first:

    4 bytes   "EATR"
    varint    version
    varint    flags: 1 do_lower_case, 2 keep_accents
    varint    length of the Unicode version's name, then the name in ASCII ("15.0.0")
    ranges    characters for which str.isspace() holds
    ranges    characters for which str.isdigit() holds
    runs      characters that change; every other one stays as it is

    ranges =  varint count, then per range: varint gap from the end of the one before, varint length - 1
    runs   =  varint count, then per run: varint gap from the first character of the one before, varint length - 1,
              varint step - 1, varint growth, varint n, then n signed differences

A run stands for the characters first, first + step, …; each becomes n characters. Those of the first one are first +
the differences, and from one character of the run to the next the LAST of the n grows by `growth`: A–Z is one run
(length 26, step 1, growth 1, difference 32), and so are the 27 closed syllables of each open syllable of Hangul.
"""

from __future__ import annotations

import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_albert.atomic import atomic_folder
from edge_albert.bundle import MANIFEST, MODEL_FILES, open_bundle, write_manifest
from edge_albert.errors import BundleError
from edge_albert.tokenization.text_rules import albert_table

TABLE = "tokenizer_rules.bin"
TABLE_VERSION = 1
_MAGIC = b"EATR"
_SURROGATES = range(0xD800, 0xE000)  # a text that reaches the table has none
_BLOCK = 1024  # characters looked at in one go; most blocks hold nothing that changes
_STEPS = (1, 2)  # in alphabets with pairs of cases every second character is a capital


@dataclass
class _Run:
    """Characters first, first + step, …, `length` of them; the k-th becomes `value` with k × growth on its last."""

    first: int
    value: tuple[int, ...]
    length: int = 1
    step: int = 1
    growth: int = 0

    def takes(self, code: int, value: tuple[int, ...]) -> bool:
        """Append (code, value) if it continues the run; the second character of a run settles its step and growth."""
        if len(value) != len(self.value) or value[:-1] != self.value[:-1]:
            return False
        growth = value[-1] - self.value[-1] if value else 0
        step = code - self.first
        if self.length == 1:
            if step not in _STEPS or growth < 0:
                return False
            self.step, self.growth = step, growth
        elif step != self.step * self.length or growth != self.growth * self.length:
            return False
        self.length += 1
        return True


def tokenizer_table(rules: Mapping[str, Any]) -> bytes | None:
    """The content of tokenizer_rules.bin for a tokenizer's rules (`Tokenizer.rules`); None for WordPiece.

    The same rules and the same Unicode version (`unicodedata.unidata_version`) give the same bytes, about 36 kB.
    """
    if rules["kind"] != "sentencepiece":
        return None
    lower, accents = bool(rules["do_lower_case"]), bool(rules["keep_accents"])
    table = albert_table(do_lower_case=lower, keep_accents=accents)
    unicode_version = unicodedata.unidata_version.encode("ascii")
    parts = [
        _MAGIC,
        _varint(TABLE_VERSION),
        _varint(lower | accents << 1),
        _varint(len(unicode_version)),
        unicode_version,
        _ranges(str.isspace),
        _ranges(str.isdigit),
        _runs(table.rule),
    ]
    return b"".join(parts)


def check_assets(assets_dir: str | Path, *, force: bool) -> None:
    """Refuse early, before an export, what `copy_bundle_to_assets` would refuse after it: a bundle that is there."""
    target = Path(assets_dir) / "bundle"
    if not force and (target.is_file() or (target.is_dir() and any(target.iterdir()))):
        raise BundleError(f"{target}: there already: replace it with --force, or name another folder")


def copy_bundle_to_assets(
    bundle_folder: str | Path, assets_dir: str | Path, *, format: str | None = None, force: bool = False
) -> Path:
    """Put a bundle's device files into `assets_dir`/bundle, where the Kotlin library looks; returns that folder.

    assets_dir: an Android module's src/main/assets (made if missing). format: which model an app carries when the
    bundle has several, None for the first of MODEL_FILES; the others and the reports stay behind. Raises BundleError
    for a damaged bundle or one without the table, and as `atomic_folder` does for a bundle already there, unless
    `force`.
    """
    bundle = open_bundle(bundle_folder)
    if TABLE not in bundle.manifest["files"]:
        raise BundleError(
            f"{bundle.folder / MANIFEST}: files lacks {TABLE}, which the Android library needs: export the bundle "
            "again with --android DIR (a WordPiece tokenizer has no such table and runs in Python only)"
        )
    chosen = format or next(name for name in MODEL_FILES if name in bundle.formats)
    left_out = {bundle.model_path(name).name for name in bundle.formats} - {bundle.model_path(chosen).name}
    files = [name for name in bundle.manifest["files"] if name not in left_out]
    fields = {
        name: value for name, value in bundle.manifest.items() if name not in ("format", "format_version", "files")
    }
    fields["models"] = {chosen: bundle.manifest["models"][chosen]}
    target = Path(assets_dir) / "bundle"
    with atomic_folder(target, force=force) as folder:
        for name in files:
            shutil.copyfile(bundle.folder / name, folder / name)
        write_manifest(folder, fields, files)
    return target


# -- the parts of the table -------------------------------------------------------------------------------------------


def _blocks() -> Iterator[str]:
    """All of Unicode but the surrogates, in order."""
    for start in range(0, sys.maxunicode + 1, _BLOCK):
        if start not in _SURROGATES:
            yield "".join(map(chr, range(start, start + _BLOCK)))


def _ranges(holds: Callable[[str], bool]) -> bytes:
    found: list[list[int]] = []  # [first, after the last]
    for code in (ord(char) for block in _blocks() for char in block if holds(char)):
        if found and found[-1][1] == code:
            found[-1][1] += 1
        else:
            found.append([code, code + 1])
    out = [_varint(len(found))]
    end = 0
    for first, stop in found:
        out += [_varint(first - end), _varint(stop - first - 1)]
        end = stop
    return b"".join(out)


def _runs(rule: Callable[[str], str]) -> bytes:
    runs = _find_runs(rule)
    out = [_varint(len(runs))]
    before = 0
    for run in runs:
        out += [_varint(run.first - before), _varint(run.length - 1), _varint(run.step - 1), _varint(run.growth)]
        out += [_varint(len(run.value)), *(_varint(_zigzag(code - run.first)) for code in run.value)]
        before = run.first
    return b"".join(out)


def _find_runs(rule: Callable[[str], str]) -> list[_Run]:
    """Every character that changes, in order, in runs as long as they come; no run reaches into the next."""
    runs: list[_Run] = []
    for block in _blocks():
        for char in block if rule(block) != block else "":
            out = rule(char)
            value = tuple(map(ord, out))
            if out != char and not (runs and runs[-1].takes(ord(char), value)):
                runs.append(_Run(ord(char), value))
    return runs


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _zigzag(value: int) -> int:
    return value * 2 if value >= 0 else -value * 2 - 1
