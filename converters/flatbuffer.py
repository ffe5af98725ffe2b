"""Nested dicts ► a flatbuffer, by the same schemas that edge_albert/flatbuffer.py reads with.

Strings and vectors of equal content are stored once and pointed at, which flatbuffers allow: the zero points of all
weights with 768 channels are one vector of 768 zeros. Byte vectors, which hold the weights, are aligned to 16 bytes,
as the TFLite schema asks (`force_align: 16`). The same dicts give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flatbuffers
import numpy as np

from edge_albert.flatbuffer import SCALARS, Field, Schema

_DATA_ALIGNMENT = 16


def write_flatbuffer(root: Mapping[str, Any], schema: Schema) -> bytes:
    """The file for `root`, a table of type `schema.root`: {field: value}.

    Values: numbers, strings, arrays or sequences of numbers, sequences of strings, dicts for tables, (table name, dict)
    for unions. A field that is missing, None or empty is left out, and read back as its default. KeyError for a field
    that the schema does not have.
    """
    writer = _Writer(schema)
    writer.builder.Finish(writer.table(schema.root, root), schema.identifier)
    return bytes(writer.builder.Output())


class _Writer:
    """Writes children before their parents, as flatbuffers are built; offsets count from the end of the file."""

    def __init__(self, schema: Schema) -> None:
        self.builder = flatbuffers.Builder(1 << 16)
        self.schema = schema
        self._shared: dict[tuple[str, bytes], int] = {}

    def table(self, name: str, values: Mapping[str, Any]) -> int:
        fields = {field.name: field for field in self.schema.tables[name] if field.kind != "ignored"}
        if surplus := values.keys() - fields.keys():
            raise KeyError(f"{name} has no field {min(surplus)}")
        present = [(fields[key], value) for key, value in values.items() if not _is_absent(value)]
        written = [(field, self._child(field, value)) for field, value in present]
        written.sort(key=lambda item: item[0].slot)
        self.builder.StartObject(max((field.slot + 1 for field in fields.values()), default=0))
        for field, value in written:
            if field.kind == "scalar":
                self._scalar(field, value)
            elif field.kind == "union":
                number, offset = value
                self.builder.PrependUint8Slot(field.slot - 1, number, 0)
                self.builder.PrependUOffsetTRelativeSlot(field.slot, offset, 0)
            else:
                self.builder.PrependUOffsetTRelativeSlot(field.slot, value, 0)
        return self.builder.EndObject()

    def _scalar(self, field: Field, value: Any) -> None:
        getattr(self.builder, f"Prepend{field.type.capitalize()}Slot")(field.slot, value, field.default)

    def _child(self, field: Field, value: Any) -> Any:
        """What stands in the table for `value`: itself, or the offset it has been written to."""
        if field.kind == "scalar":
            return value
        if field.kind == "string":
            return self._string(value)
        if field.kind == "vector":
            return self._vector(np.ascontiguousarray(value, SCALARS[field.type]), field.type)
        if field.kind == "table":
            return self.table(field.type, value)
        if field.kind == "union":
            name, content = value
            return self.schema.unions[field.type][name], self.table(name, content)
        if field.kind == "strings":
            return self._offsets([self._string(item) for item in value])
        return self._offsets([self.table(field.type, item) for item in value])

    def _string(self, text: str) -> int:
        return self._once(("string", text.encode()), lambda: self.builder.CreateString(text))

    def _vector(self, array: np.ndarray, kind: str) -> int:
        if kind == "uint8":  # the weights: each is there once already, and large
            return self._aligned_bytes(array)
        return self._once((kind, array.tobytes()), lambda: self.builder.CreateNumpyVector(array))

    def _once(self, key: tuple[str, bytes], create: Callable[[], int]) -> int:
        if key not in self._shared:
            self._shared[key] = create()
        return self._shared[key]

    def _aligned_bytes(self, array: np.ndarray) -> int:
        """A byte vector whose first element lies at a multiple of 16 bytes in the file."""
        builder = self.builder
        builder.StartVector(1, array.size, _DATA_ALIGNMENT)
        builder.head -= array.size
        builder.Bytes[builder.Head() : builder.Head() + array.size] = array.tobytes()
        return builder.EndVector()

    def _offsets(self, offsets: Sequence[int]) -> int:
        self.builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self.builder.PrependUOffsetTRelative(offset)
        return self.builder.EndVector()


def _is_absent(value: Any) -> bool:
    return value is None or (isinstance(value, str | list | tuple | np.ndarray) and len(value) == 0)
