"""What an APK weighs: its size by part, and whether the model stands in it once, uncompressed and unchanged.

An APK is a zip archive. Android maps an asset from it only where it is stored, not deflated; native libraries count
once per ABI, of which a device installs one when the APK is split.
"""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

from edge_albert.bundle import Bundle
from edge_albert.errors import DataError

_MODELS = (".onnx", ".tflite")


def read_apk(path: str | Path, bundle: Bundle) -> dict[str, Any]:
    """Facts of an APK that carries this bundle, as numbers and words for JSON.

    `parts`: compressed bytes of the classes, of the native libraries of each ABI, of the model and of the rest, which
    with the archive's own tables add up to `apk_bytes`. `models`: every model file in it, with whether it is stored and
    whether its sha256 is the bundle's. Raises DataError when the file is no APK or carries no model.
    """
    path = Path(path)
    try:
        with zipfile.ZipFile(path) as archive:
            if "AndroidManifest.xml" not in archive.namelist():
                raise DataError(f"{path}: no AndroidManifest.xml in it: this is no APK")
            parts: dict[str, int] = {}
            models = []
            for entry in archive.infolist():
                part = _part(entry.filename)
                parts[part] = parts.get(part, 0) + entry.compress_size
                if part == "model":
                    models.append(_model(archive, entry, bundle))
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read as an APK ({error})") from None
    if not models:
        raise DataError(f"{path}: carries no model: export a bundle into its assets with --android DIR")
    size = path.stat().st_size
    parts["zip tables, padding, signature"] = size - sum(parts.values())
    return {"file": path.name, "apk_bytes": size, "parts": parts, "models": models}


def _part(name: str) -> str:
    if name.endswith(_MODELS):
        return "model"
    if name.endswith(".dex"):
        return "classes"
    place = PurePosixPath(name)
    if place.parts[0] == "lib" and len(place.parts) > 2:
        return f"native libraries, {place.parts[1]}"
    return "other assets" if place.parts[0] == "assets" else "resources"


def _model(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, bundle: Bundle) -> dict[str, Any]:
    digest = hashlib.sha256(archive.read(entry)).hexdigest()
    return {
        "file": entry.filename,
        "bytes": entry.file_size,
        "stored": entry.compress_type == zipfile.ZIP_STORED,
        "is_the_bundles": digest in {bundle.model_hash(format) for format in bundle.formats},
    }
