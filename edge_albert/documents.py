"""JSON documents with a schema and a version, as reports, benchmarks and calibrations are: read, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edge_albert.errors import DataError, EdgeAlbertError


def read_document(
    path: Path, schema: str, version: int, remedy: str, error: type[EdgeAlbertError] = DataError
) -> dict[str, Any]:
    """The document's content. Raises `error` for a file that cannot be read, is damaged, or is of another kind."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as fault:
        raise error(f"{path}: cannot be read ({fault.strerror}): {remedy}") from None
    except (ValueError, RecursionError) as fault:
        raise error(f"{path}: not valid JSON ({fault}): {remedy}") from None
    if not isinstance(content, dict) or content.get("schema") != schema:
        raise error(f"{path}: schema is not {schema}: {remedy}")
    if content.get("schema_version") != version:
        raise error(
            f"{path}: schema_version is {content.get('schema_version')!r}, this edge_albert reads {version}: {remedy}"
        )
    return content
