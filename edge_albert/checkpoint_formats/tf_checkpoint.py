"""TensorFlow's checkpoint container in pure Python: `PREFIX.index` and `PREFIX.data-00000-of-00001` ► arrays by name.

The index is a LevelDB table: blocks of prefix-compressed key-value pairs, and a footer that finds the block of blocks.
The key "" holds a BundleHeaderProto, every other key is a variable's name and holds a BundleEntryProto: dtype, shape,
and where its bytes stand in which data file (tensorflow/core/protobuf/tensor_bundle.proto). TF1's Saver and TF-Hub v1
modules write this container; so does TF2, which however stores object paths in place of variable names.

Every index block and every variable that is read is checked against its CRC-32C, so a damaged or shortened file is
an error and never a wrong weight.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from edge_albert.checkpoint_formats.crc32c import masked_crc32c
from edge_albert.checkpoint_formats.tensors import bfloat16_to_float32
from edge_albert.errors import CheckpointError

_MAGIC = bytes.fromhex("57fb808b247547db")
_FOOTER = 48  # two block handles, padding, magic
_TRAILER = 5  # compression type, CRC-32C
_SLICE_KEY = b"\0"  # keys of a partitioned variable's parts, which are no names
_BFLOAT16 = 14
_DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 6: "i1", 9: "<i8", 10: "?", _BFLOAT16: "<u2", 19: "<f2"}


@dataclass(frozen=True)
class Variable:
    """One entry of the index: where a variable's bytes are and what they mean.

    file, offset, size: the data file and the bytes in it. dtype: TensorFlow's DataType. crc: masked CRC-32C of the
    bytes. sliced: the bytes are spread over further entries, as partitioned variables are.
    """

    file: Path
    offset: int
    size: int
    dtype: int
    shape: tuple[int, ...]
    crc: int
    sliced: bool


def read_index(prefix: Path) -> dict[str, Variable]:
    """Every variable of the checkpoint `prefix` (".index" left out) by name.

    Raises CheckpointError naming the file when it is absent, cut short or damaged.
    """
    path = prefix.with_name(f"{prefix.name}.index")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    if data[-8:] != _MAGIC:
        raise CheckpointError(f"{path}: is no TensorFlow checkpoint index, or is cut short: copy it again")
    try:
        entries = dict(_table(data))
        header = dict(_fields(entries.pop(b"")))
        shards = _number(header.get(1, 0))
        names = [key for key in entries if not key.startswith(_SLICE_KEY)]
        variables = {name.decode(): _variable(entries[name], prefix, shards) for name in names}
        big_endian = _number(header.get(2, 0)) != 0
    except (ValueError, LookupError) as error:
        raise CheckpointError(f"{path}: damaged ({error}): copy it again") from None
    if big_endian:
        raise CheckpointError(f"{path}: was written on a big-endian machine, which cannot be read: save it on another")
    return variables


def read_variable(name: str, variable: Variable) -> np.ndarray:
    """The array of one variable in its stored dtype; bfloat16 arrives as float32, which holds it exactly.

    Raises CheckpointError naming the data file when it is absent, cut short or damaged, or of a kind that is not read.
    """
    path, dtype = variable.file, _DTYPES.get(variable.dtype)
    if variable.sliced:
        raise CheckpointError(f"{path}: {name} is a partitioned variable, which cannot be read: save it in one piece")
    if dtype is None:
        raise CheckpointError(f"{path}: {name} has TensorFlow's dtype {variable.dtype}, which cannot be read")
    if variable.size != prod(variable.shape) * np.dtype(dtype).itemsize:
        raise CheckpointError(f"{path}: {name} has {variable.size} bytes, which do not make the shape {variable.shape}")
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size < variable.offset + variable.size:
                raise CheckpointError(f"{path}: is cut short, it ends before {name} does: copy it again")
            file.seek(variable.offset)
            data = bytearray(file.read(variable.size))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}): the checkpoint is incomplete") from None
    if masked_crc32c(data) != variable.crc:
        raise CheckpointError(f"{path}: is damaged: the checksum of {name} does not fit: copy it again")
    array = np.frombuffer(data, dtype).reshape(variable.shape)
    return bfloat16_to_float32(array) if variable.dtype == _BFLOAT16 else array


# -- LevelDB's table ------------------------------------------------------------------------------------------------


def _table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) in key order. ValueError or IndexError when the bytes make no table."""
    footer = data[-_FOOTER:]
    _, at = _handle(footer, 0)  # of the meta index, which TensorFlow leaves empty
    handle, _ = _handle(footer, at)
    for _, value in _block(data, handle):
        yield from _block(data, _handle(value, 0)[0])


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    offset, at = _varint(data, at)
    size, at = _varint(data, at)
    return (offset, size), at


def _block(data: bytes, handle: tuple[int, int]) -> Iterator[tuple[bytes, bytes]]:
    offset, size = handle
    stored = data[offset : offset + size + _TRAILER]
    if len(stored) != size + _TRAILER or size < 4:
        raise ValueError("a block lies outside the file")
    if masked_crc32c(stored[: size + 1]) != int.from_bytes(stored[size + 1 :], "little"):
        raise ValueError("a block's checksum does not fit")
    if stored[size] != 0:
        raise ValueError("a block is compressed, which TensorFlow's own checkpoints never are")
    restarts = int.from_bytes(stored[size - 4 : size], "little")
    end = size - 4 - 4 * restarts
    key, at = b"", 0
    while at < end:
        shared, at = _varint(stored, at)
        fresh, at = _varint(stored, at)
        length, at = _varint(stored, at)
        key = key[:shared] + stored[at : at + fresh]
        at += fresh
        yield key, stored[at : at + length]
        at += length


# -- protocol buffers -----------------------------------------------------------------------------------------------


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number is longer than 64 bits")


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of a serialised message: an int for numbers, bytes for everything with a length."""
    at = 0
    value: int | bytes
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at)
        elif kind in (1, 5):
            width = 8 if kind == 1 else 4
            value, at = int.from_bytes(data[at : at + width], "little"), at + width
        elif kind == 2:
            length, at = _varint(data, at)
            value, at = data[at : at + length], at + length
        else:
            raise ValueError(f"an entry has a field of wire type {kind}")
        yield tag >> 3, value


def _variable(entry: bytes, prefix: Path, shards: int) -> Variable:
    """A BundleEntryProto: 1 dtype, 2 shape, 3 shard_id, 4 offset, 5 size, 6 crc32c, 7 slices."""
    fields = dict(_fields(entry))
    dtype, shard, offset, size, crc = (_number(fields.get(key, 0)) for key in (1, 3, 4, 5, 6))
    shape = _shape(_message(fields.get(2, b"")))
    file = prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{shards:05d}")
    return Variable(file, offset, size, dtype, shape, crc, sliced=7 in fields)


def _shape(message: bytes) -> tuple[int, ...]:
    """A TensorShapeProto: repeated 2 dim, whose 1 is the size."""
    dims = [_message(value) for number, value in _fields(message) if number == 2]
    shape = tuple(_number(dict(_fields(dim)).get(1, 0)) for dim in dims)
    if any(size >= 1 << 31 for size in shape):  # -1 too: an unknown size
        raise ValueError(f"a variable has the shape {shape}")
    return shape


def _number(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("an entry has bytes in place of a number")
    return value


def _message(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("an entry has a number in place of a message")
    return value
