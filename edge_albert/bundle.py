"""The folder that ships: a manifest, the model, the tokenizer, golden examples.

    bundle.json     the manifest below
    model.onnx      and/or model.tflite
    spiece.model    or vocab.txt: the tokenizer, exactly as it was trained
    golden.json     a few texts with token ids and logits, for the device to check itself
    report.json     and report.md: what the export measured; about this machine, so not part of what is verified

bundle.json (format version 1) MUST hold `format`, `format_version`, `task`, `labels`, `config`, `tokenizer`, `models`
and `files`. `files` maps every file that a device reads to its `sha256` and `size` in bytes; a name in it MUST be a
plain file name. Fields that a reader does not know MUST be ignored; a `format_version` above the reader's MUST be
refused.

A model whose inputs leave early has `early_exit`: its `criterion`, the default `threshold`, its `iterations` and
`labels` (edge_albert/early_exit.py); what it answers when nothing else is said.

A bundle is verified before an engine sees a byte of it: TFLite and ONNX Runtime do not check what they map.
The same input gives the same bytes, so nothing here depends on the time, the machine or the folder's name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_albert.config import AlbertConfig
from edge_albert.early_exit import Exits
from edge_albert.errors import BundleError, EdgeAlbertError
from edge_albert.tasks import Task, get_task

FORMAT = "edge_albert.bundle"
FORMAT_VERSION = 1
MANIFEST = "bundle.json"
GOLDEN = "golden.json"
MODEL_FILES = {"onnx": "model.onnx", "tflite": "model.tflite"}
_REQUIRED = ("task", "labels", "config", "tokenizer", "models", "files")


@dataclass(frozen=True)
class Bundle:
    """An opened bundle. `manifest` is bundle.json as read; the other fields are its parts, parsed."""

    folder: Path
    manifest: Mapping[str, Any]
    task: Task
    labels: tuple[str, ...]
    config: AlbertConfig

    @property
    def formats(self) -> tuple[str, ...]:
        """The model formats in the bundle: "onnx", "tflite"."""
        return tuple(self.manifest["models"])

    @property
    def tokenizer_rules(self) -> Mapping[str, Any]:
        return self.manifest["tokenizer"]

    def model_path(self, format: str) -> Path:
        """The model file of that format. BundleError when the bundle has none."""
        if format not in self.manifest["models"]:
            raise BundleError(
                f"{self.folder}: no {format} model in this bundle (it has {', '.join(self.formats)}): "
                f"export again with --format {format}"
            )
        return self.folder / self.manifest["models"][format]["file"]

    def model_hash(self, format: str) -> str:
        """sha256 of the model file, as verified."""
        return self.manifest["files"][self.manifest["models"][format]["file"]]["sha256"]

    @property
    def exits(self) -> Exits | None:
        """How inputs leave the model early; None for one that always runs every iteration."""
        said = self.manifest.get("early_exit")
        return None if said is None else Exits.from_json(said, str(self.folder / MANIFEST))

    def golden(self) -> dict[str, Any]:
        """The content of golden.json."""
        return _read_json(self.folder / GOLDEN)


def open_bundle(folder: str | Path) -> Bundle:
    """Read and verify a bundle: manifest, then the size and hash of every file. Raises BundleError, naming the file."""
    folder = Path(folder)
    if not folder.is_dir():
        raise BundleError(f"{folder}: no such folder: a bundle is a folder written by python -m edge_albert.export")
    manifest = _read_json(folder / MANIFEST)
    _check_manifest(manifest, folder / MANIFEST)
    for name, entry in manifest["files"].items():
        _verify_file(folder, name, entry)
    try:
        config = AlbertConfig.from_dict(manifest["config"], source=f"{folder / MANIFEST}: config")
        task = get_task(manifest["task"])
    except EdgeAlbertError as error:
        raise BundleError(f"{folder / MANIFEST}: {error}") from None
    return Bundle(folder, manifest, task, tuple(manifest["labels"]), config)


def write_manifest(folder: Path, fields: Mapping[str, Any], files: list[str]) -> None:
    """Write bundle.json for the `files` (plain names) that lie in `folder`, with their hashes and sizes."""
    entries = {
        name: {"sha256": file_hash(folder / name), "size": (folder / name).stat().st_size} for name in sorted(files)
    }
    manifest = {"format": FORMAT, "format_version": FORMAT_VERSION, **fields, "files": entries}
    _check_manifest(manifest, folder / MANIFEST)
    (folder / MANIFEST).write_text(to_json(manifest), encoding="utf-8")


def to_json(content: Any) -> str:
    """The one way JSON is written into a bundle: indented, sorted, so that the same content has the same bytes."""
    return json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def file_hash(path: Path) -> str:
    """sha256 of a file, hexadecimal, read in pieces of 1 MiB."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BundleError(f"{path}: missing: this is no complete bundle; export it again") from None
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path}: not valid JSON ({error}): the bundle is damaged; copy or export it again") from None
    if not isinstance(content, dict):
        raise BundleError(f"{path}: expected a JSON object: the bundle is damaged; copy or export it again")
    return content


def _check_manifest(manifest: Mapping[str, Any], path: Path) -> None:
    if manifest.get("format") != FORMAT:
        raise BundleError(f"{path}: format is {manifest.get('format')!r}, not {FORMAT!r}: not an edge_albert bundle")
    version = manifest.get("format_version")
    if type(version) is not int or version < 1:
        raise BundleError(f"{path}: format_version is {version!r}: the bundle is damaged; copy or export it again")
    if version > FORMAT_VERSION:
        raise BundleError(
            f"{path}: format_version {version} is newer than this edge_albert reads ({FORMAT_VERSION}): "
            "pip install --upgrade edge-albert"
        )
    missing = [name for name in _REQUIRED if name not in manifest]
    if missing:
        raise BundleError(f"{path}: field {', '.join(missing)} missing: the bundle is damaged; copy or export it again")
    _check_types(manifest, path)
    if not manifest["models"]:
        raise BundleError(f"{path}: models is empty: the bundle is damaged; export it again")
    for kind, model in manifest["models"].items():
        if not isinstance(model, dict) or model.get("file") not in list(manifest["files"]):
            raise BundleError(f"{path}: models.{kind}.file is not among files: the bundle is damaged; export it again")


def _check_types(manifest: Mapping[str, Any], path: Path) -> None:
    wanted = {"task": str, "labels": list, "config": dict, "tokenizer": dict, "models": dict, "files": dict}
    for name, kind in wanted.items():
        if not isinstance(manifest[name], kind):
            raise BundleError(f"{path}: {name} is not a JSON {kind.__name__}: the bundle is damaged; export it again")
    if not all(isinstance(label, str) for label in manifest["labels"]):
        raise BundleError(f"{path}: labels are not all texts: the bundle is damaged; export it again")
    for name, entry in manifest["files"].items():
        if not _is_plain(name):
            raise BundleError(f"{path}: files names {name!r}: only plain file names inside the bundle are allowed")
        if (
            not isinstance(entry, dict)
            or not isinstance(entry.get("sha256"), str)
            or not isinstance(entry.get("size"), int)
        ):
            raise BundleError(f"{path}: files[{name!r}] needs sha256 and size: the bundle is damaged; export it again")


def _is_plain(name: str) -> bool:
    return bool(name) and name not in (".", "..") and not any(char in name for char in "/\\:\0")


def _verify_file(folder: Path, name: str, entry: Mapping[str, Any]) -> None:
    path = folder / name
    if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
        raise BundleError(f"{path}: a link that leads out of the bundle: put the file itself there")
    if not path.is_file():
        raise BundleError(f"{path}: missing: the bundle is incomplete; copy or export it again")
    size = path.stat().st_size
    if size != entry["size"]:
        raise BundleError(f"{path}: {size} bytes, the manifest says {entry['size']}: damaged; copy or export it again")
    if file_hash(path) != entry["sha256"]:
        raise BundleError(f"{path}: sha256 differs from the manifest: damaged; copy or export the bundle again")
