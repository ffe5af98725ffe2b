"""Rows of a data set that has splits: the Hugging Face hub's, a local folder of one, a Parquet file, or one JSON file.

Hub and local folders are read by the package `datasets` (optional, imported when it is needed), as a stream, so that
nothing is copied into its cache. A local folder is laid out as on the hub (data/train-00000-of-00001.parquet, or
train.jsonl) or as `save_to_disk` writes it. Class numbers come out as their names, which know their number.

The JSON file is that of CLINC150 (Larson et al. 2019): an object that holds a list of [text, label] under each split.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_albert.errors import DataError

_SAVED = ("dataset_dict.json", "state.json")  # what save_to_disk leaves in a folder


@dataclass(frozen=True)
class DatasetSplit:
    """One split of a data set. name: on the hub, a folder, or a .json file; split: may join several, "train+extra"."""

    name: str
    split: str
    config: str | None = None

    @staticmethod
    def parse(said: str, split: str) -> DatasetSplit:
        """From NAME or NAME:CONFIG; a path that exists is a name, colons and all."""
        name, colon, config = said.rpartition(":")
        if not colon or Path(said).exists():
            return DatasetSplit(said, split)
        return DatasetSplit(name, split, config)

    def __str__(self) -> str:
        return f"{self.name}{':' + self.config if self.config else ''}[{self.split}]"

    def rows(self) -> Iterator[tuple[int, Mapping[str, Any] | str]]:
        """(number from 1, row). Raises DataError when there is no such data set, split or package."""
        number = 0
        for split in self.split.split("+"):
            for row in self._rows_of(split):
                number += 1
                yield number, row

    def _rows_of(self, split: str) -> Iterator[Mapping[str, Any] | str]:
        path = Path(self.name)
        if path.is_file() and path.suffix == ".json":
            return _json_split(path, split)
        if any((path / name).is_file() for name in _SAVED):
            return _named_rows(str(self), lambda datasets: _saved_split(datasets.load_from_disk(self.name), split))
        return _named_rows(
            str(self), lambda datasets: datasets.load_dataset(self.name, self.config, split=split, streaming=True)
        )


def parquet_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(number from 1, row) of a Parquet file."""
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    rows = _named_rows(
        str(path),
        lambda datasets: datasets.load_dataset("parquet", data_files=str(path), split="train", streaming=True),
    )
    yield from enumerate(rows, start=1)


def _named_rows(source: str, load: Callable[[Any], Any]) -> Iterator[Mapping[str, Any]]:
    """The rows of what `load` makes of the package `datasets`, class numbers replaced by names."""
    try:
        import datasets
    except ModuleNotFoundError:
        raise DataError(f"{source}: needs the package datasets: pip install 'edge-albert[datasets]'") from None
    try:
        found = load(datasets)
        names = {column: _class_names(feature) for column, feature in (found.features or {}).items()}
        for row in found:
            yield {column: _named(value, names.get(column)) for column, value in row.items()}
    except (OSError, ValueError, KeyError, datasets.exceptions.DatasetsError) as error:
        raise DataError(f"{source}: cannot be read ({' '.join(str(error).split())})") from None


def _saved_split(saved: Any, split: str) -> Any:
    """A folder of save_to_disk holds several splits, or is one, which may have no name and then is the training one."""
    if not isinstance(saved, dict):
        known = str(saved.split or "train")
        if split != known:
            raise ValueError(f"no split {split!r}: it was saved as one, {known!r}")
        return saved
    if split not in saved:
        raise ValueError(f"no split {split!r}: it has {', '.join(saved)}")
    return saved[split]


class ClassName(str):
    """The name of a class, and its `number` in the data set, which is the order that its makers gave to the classes."""

    number: int

    def __new__(cls, name: str, number: int) -> ClassName:
        made = super().__new__(cls, name)
        made.number = number
        return made


def _class_names(feature: Any) -> list[str] | None:
    """The names of a ClassLabel, or of a list of them."""
    return getattr(feature, "names", None) or getattr(getattr(feature, "feature", None), "names", None)


def _named(value: Any, names: list[str] | None) -> Any:
    """Class numbers as names; -1, which stands for a label that is not told, as nothing."""
    if names is None:
        return value
    if isinstance(value, list):
        return [_named(one, names) for one in value]
    return ClassName(names[value], value) if isinstance(value, int) and 0 <= value < len(names) else None


def _json_split(path: Path, split: str) -> Iterator[Mapping[str, Any] | str]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error})") from None
    rows = content.get(split) if isinstance(content, dict) else None
    if not isinstance(rows, list):
        have = ", ".join(content) if isinstance(content, dict) else "no splits"
        raise DataError(f"{path}: holds no list under the split {split!r}: it has {have}")
    return _labelled(rows)


def _labelled(rows: Iterable[Any]) -> Iterator[Mapping[str, Any] | str]:
    for row in rows:
        if isinstance(row, dict):
            yield row
        elif isinstance(row, list) and len(row) == 2:
            yield {"text": row[0], "label": row[1]}
        else:
            yield "neither an object nor [text, label]"
