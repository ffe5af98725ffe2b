"""Pack a bundle's weights for this device, once: `python -m edge_albert.prepare BUNDLE`. Later starts map them."""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

from edge_albert.bundle import Bundle, open_bundle
from edge_albert.cli import run_command
from edge_albert.errors import EngineError
from edge_albert.reports.tables import megabytes
from edge_albert.runtime.cache import cache_folder
from edge_albert.runtime.engine import choose_engine, installed, open_engine

_EPILOG = """\
examples:
  python -m edge_albert.prepare bundle
  python -m edge_albert.prepare bundle --engine tflite --cache-dir ~/.cache/spam-filter
then:
  python -m edge_albert.run bundle "…"                             finds the cache in the bundle by itself
  python -m edge_albert.run bundle --cache ~/.cache/spam-filter "…"

The cache holds for this processor, this engine's version and this model; at another one it is made anew at the start.
It is made by a process of its own, which takes about as much memory as a start without a cache.
"""


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python -m edge_albert.prepare",
        description="Pack a bundle's weights for this processor, once: later starts map them from the file.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("bundle", help="folder written by python -m edge_albert.export")
    out.add_argument("--engine", choices=("onnx", "tflite"), help="default: all that are installed")
    out.add_argument("--cache-dir", metavar="DIR", help="default: the folder cache in the bundle")
    out.add_argument("--json", action="store_true", help="what was made, as JSON on standard output")
    return out


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = parser().parse_args(argv)
    bundle = open_bundle(options.bundle)
    folder = cache_folder(bundle.folder, options.cache_dir)
    first = choose_engine(bundle.formats, options.engine)
    engines = [first] if options.engine else [name for name in bundle.formats if installed(name)]
    made = [_prepare(bundle, name, folder) for name in engines]
    if options.json:
        print(json.dumps(made))
    else:
        for entry in made:
            where = f": {megabytes(entry['bytes'])}, {entry['entry']}" if entry["entry"] else ""
            print(f"{entry['engine']:<24} {entry['state']}{where}")
    return 0


def _prepare(bundle: Bundle, engine: str, folder: Path) -> dict[str, Any]:
    """Open the model with the cache, which makes it where it is missing. EngineError when it cannot be written."""
    before = set(folder.iterdir()) if folder.is_dir() else set()
    stamps = {path: path.stat().st_ino for path in before}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        opened = open_engine(
            bundle.model_path(engine), engine=engine, threads=1, cache_dir=folder, model_hash=bundle.model_hash(engine)
        )
        entry, version = opened.packed, opened.version
        opened.close()
    if caught:
        raise EngineError(f"{caught[0].message}: name a folder you may write to with --cache-dir")
    if entry is None:
        return {"engine": version, "entry": None, "bytes": 0, "state": "does not map weights from a file"}
    size = sum(path.stat().st_size for path in entry.iterdir())
    state = "there already" if stamps.get(entry) == entry.stat().st_ino else "made"
    return {"engine": version, "entry": str(entry), "bytes": size, "state": state}


if __name__ == "__main__":
    run_command(main)
