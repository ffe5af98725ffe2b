"""Reading a flatbuffer without trusting it: every offset is checked before it is followed.

Inference engines map a .tflite file and follow its offsets. LiteRT runs flatbuffers' C++ verifier first;
tflite-runtime does not, and there 58 of 300 damaged files ended the process. This is that verifier for all of them,
and a reader, in one, driven by a schema that is data: a few lines that read like the .fbs file they were taken from.

A schema declares tables as `Name { field:type … }`, fields in slot order. Types: int8 … uint64, float32, bool; string;
[scalar], [string] and [Table] vectors; a table's name; a union's name (two slots, as in flatbuffers: which table, and
the table). `field:type=1` gives a scalar's default, `field:-` reserves the slot of a field that is not read.
Source: the FlatBuffers documentation, "FlatBuffer Internals" and the checks of its C++ `Verifier`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

SCALARS = {
    "int8": np.dtype("<i1"), "uint8": np.dtype("<u1"), "bool": np.dtype("?"), "int32": np.dtype("<i4"),
    "uint32": np.dtype("<u4"), "int64": np.dtype("<i8"), "uint64": np.dtype("<u8"), "float32": np.dtype("<f4"),
}  # fmt: skip
MAX_TABLES = 200_000  # tables may be shared, so a small file can describe a large tree: stop before it does


class FlatbufferError(ValueError):
    """The bytes are not a flatbuffer of this schema; the message says which offset or field gave it away."""


@dataclass(frozen=True)
class Field:
    """A field of a table. kind: scalar, string, vector, strings, tables, table, union, ignored; type: what it is of."""

    name: str
    slot: int
    kind: str
    type: str
    default: int = 0

    def absent(self) -> Any:
        """What a table that does not have the field is read as."""
        empty = {"scalar": self.default, "string": "", "table": None}
        return np.zeros(0, SCALARS[self.type]) if self.kind == "vector" else empty.get(self.kind, [])


class Schema:
    """Tables and unions of a file format, parsed from the notation above.

    unions: {union: {table: its number}}. identifier: the four bytes after the root offset.
    """

    def __init__(self, text: str, *, root: str, identifier: bytes, unions: Mapping[str, Mapping[str, int]]) -> None:
        self.root = root
        self.identifier = identifier
        self.unions = unions
        bodies = dict(re.findall(r"(\w+)\s*{([^}]*)}", text))
        self.tables = {name: tuple(self._fields(body, bodies)) for name, body in bodies.items()}

    def _fields(self, body: str, tables: Mapping[str, str]) -> list[Field]:
        fields: list[Field] = []
        slot = 0
        for item in body.split():
            name, _, declared = item.partition(":")
            declared, _, default = declared.partition("=")
            kind, inner = self._kind(declared, tables)
            slot += kind == "union"  # the slot before holds the number of the table
            fields.append(Field(name, slot, kind, inner, int(default or 0)))
            slot += 1
        return fields

    def _kind(self, declared: str, tables: Mapping[str, str]) -> tuple[str, str]:
        if declared == "-":
            return "ignored", ""
        if declared in self.unions:
            return "union", declared
        inner = declared.strip("[]")
        kind = "scalar" if inner in SCALARS else "string" if inner == "string" else "table"
        if kind == "table" and inner not in tables:
            raise KeyError(inner)
        if declared == inner:
            return kind, inner
        return {"scalar": "vector", "string": "strings", "table": "tables"}[kind], inner


def read_flatbuffer(data: bytes | memoryview | np.ndarray, schema: Schema, *, strict: bool) -> dict[str, Any]:
    """Read and check a whole file: {field: value}, tables as dicts, scalar vectors as arrays that view `data`.

    Absent fields are there with their default, an empty list or array, "", or None for a table; a union is
    (table name, table) or None. strict: a field or union member that the schema does not describe is an error, so that
    nothing in the file goes unchecked; otherwise it is skipped. Raises FlatbufferError.
    """
    reader = _Reader(np.frombuffer(data, np.uint8), schema, strict)
    if reader.view[4:8].tobytes() != schema.identifier:
        raise FlatbufferError(f"the file does not start as a {schema.identifier.decode()} file does")
    return reader.table(reader.offset(0), schema.root)


class _Reader:
    """Bounds-checked access to one buffer; positions are absolute."""

    def __init__(self, array: np.ndarray, schema: Schema, strict: bool) -> None:
        self.array = array
        self.view = array.data
        self.schema = schema
        self.strict = strict
        self.tables_read = 0

    def need(self, position: int, size: int, align: int, what: str) -> None:
        if position < 0 or size < 0 or position + size > len(self.view) or position % align:
            raise FlatbufferError(
                f"{what} at byte {position} lies outside the {len(self.view)} bytes, or is misaligned"
            )

    def unpack(self, layout: str, position: int, what: str) -> int:
        size = struct.calcsize(layout)
        self.need(position, size, size, what)
        return struct.unpack_from(layout, self.view, position)[0]

    def offset(self, position: int) -> int:
        """Follow the forward offset stored at `position`."""
        return position + self.unpack("<I", position, "an offset")

    def table(self, position: int, name: str) -> dict[str, Any]:
        self.tables_read += 1
        if self.tables_read > MAX_TABLES:
            raise FlatbufferError(f"more than {MAX_TABLES} tables")
        slots = self._slots(position, name)
        fields = [field for field in self.schema.tables[name] if field.kind != "ignored"]
        known = {field.slot for field in fields} | {field.slot - 1 for field in fields if field.kind == "union"}
        if self.strict and (surplus := slots.keys() - known):
            raise FlatbufferError(f"{name} has a field in slot {min(surplus)} that is not expected here")
        return {field.name: self._field(field, name, slots) for field in fields}

    def _slots(self, position: int, name: str) -> dict[int, int]:
        """{slot: absolute position} of the fields that the table at `position` has, from its vtable."""
        vtable = position - self.unpack("<i", position, f"a {name} table")
        size = self.unpack("<H", vtable, f"the vtable of a {name}")
        length = self.unpack("<H", vtable + 2, f"the vtable of a {name}")
        self.need(vtable, size, 2, f"the vtable of a {name}")
        self.need(position, length, 4, f"a {name} table")
        if size < 4 or size % 2 or length < 4:
            raise FlatbufferError(f"the vtable of a {name} at byte {vtable} has an impossible size")
        entries = struct.unpack_from(f"<{size // 2 - 2}H", self.view, vtable + 4)
        if any(entry >= length or 0 < entry < 4 for entry in entries):
            raise FlatbufferError(f"a field of the {name} at byte {position} lies outside it")
        return {slot: position + entry for slot, entry in enumerate(entries) if entry}

    def _field(self, field: Field, table: str, slots: Mapping[int, int]) -> Any:
        what = f"{table}.{field.name}"
        if field.kind == "union":
            return self._union(field, slots, what)
        if field.slot not in slots:
            return field.absent()
        place = slots[field.slot]
        if field.kind == "scalar":
            return self._scalar(place, field.type, what)
        target = self.offset(place)
        if field.kind == "vector":
            return self._vector(target, field.type, what)
        if field.kind == "string":
            return self._string(target, what)
        if field.kind == "table":
            return self.table(target, field.type)
        steps = self._vector(target, "uint32", what).tolist()
        targets = [target + 4 + 4 * index + step for index, step in enumerate(steps)]
        if field.kind == "strings":
            return [self._string(target, what) for target in targets]
        return [self.table(target, field.type) for target in targets]

    def _scalar(self, position: int, kind: str, what: str) -> Any:
        dtype = SCALARS[kind]
        self.need(position, dtype.itemsize, dtype.itemsize, what)
        return self.array[position : position + dtype.itemsize].view(dtype)[0].item()

    def _vector(self, position: int, kind: str, what: str) -> np.ndarray:
        count = self.unpack("<I", position, what)
        dtype = SCALARS[kind]
        self.need(position + 4, count * dtype.itemsize, dtype.itemsize, what)
        return self.array[position + 4 : position + 4 + count * dtype.itemsize].view(dtype)

    def _string(self, position: int, what: str) -> str:
        text = self._vector(position, "uint8", what)
        end = position + 4 + len(text)
        self.need(end, 1, 1, what)
        if self.view[end] != 0:
            raise FlatbufferError(f"{what} at byte {position} does not end in a zero")
        try:
            return text.tobytes().decode()
        except UnicodeDecodeError:
            raise FlatbufferError(f"{what} at byte {position} is not UTF-8") from None

    def _union(self, field: Field, slots: Mapping[int, int], what: str) -> tuple[str, dict[str, Any]] | None:
        kind = self._scalar(slots[field.slot - 1], "uint8", what) if field.slot - 1 in slots else 0
        if kind == 0 or field.slot not in slots:
            if self.strict and (kind or field.slot in slots):
                raise FlatbufferError(f"{what} has a type or a value, but not both")
            return None
        names = {number: name for name, number in self.schema.unions[field.type].items()}
        if kind not in names:
            if self.strict:
                raise FlatbufferError(f"{what} is of the unknown type {kind}")
            return None
        return names[kind], self.table(self.offset(slots[field.slot]), names[kind])
