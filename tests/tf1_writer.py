"""A writer of TensorFlow 1 checkpoints for the tests, which shares no code with the reader.

Written from tensor_bundle.proto and LevelDB's table format; TensorFlow 2.21 reads what it writes (checked by hand).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

_TF_TYPES = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "float16": 19}


def write_tf1(
    prefix: Path,
    variables: Mapping[str, np.ndarray],
    *,
    shards: int = 1,
    block_entries: int = 10,
    restart_interval: int = 4,
    bfloat16: bool = False,
    sliced: tuple[str, ...] = (),
) -> None:
    """Write `prefix`.index and its data files. Variables go to the shards in turn.

    block_entries: entries of one index block, small so that a tiny model has several. bfloat16: the arrays are uint16
    bit patterns of bfloat16. sliced: variables whose entry says that they were partitioned.
    """
    prefix.parent.mkdir(parents=True, exist_ok=True)
    data = [bytearray() for _ in range(shards)]
    entries = [(b"", _header(shards))]
    for turn, name in enumerate(sorted(variables)):
        array, shard = np.asarray(variables[name]), turn % shards
        raw = array.tobytes()
        dtype = 14 if bfloat16 else _TF_TYPES[array.dtype.name]
        entry = _entry(dtype, array.shape, shard, len(data[shard]), raw)
        entries.append((name.encode(), entry + _message(7, b"") if name in sliced else entry))
        data[shard] += raw
    prefix.with_name(f"{prefix.name}.index").write_bytes(_table(entries, block_entries, restart_interval))
    for shard, content in enumerate(data):
        prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{shards:05d}").write_bytes(content)


# -- protocol buffers: fields with their default value are left out, as proto3 does ---------------------------------


def _header(shards: int) -> bytes:
    version = _field(1, 1)  # producer
    return _field(1, shards) + _message(3, version)


def _entry(dtype: int, shape: tuple[int, ...], shard: int, offset: int, raw: bytes) -> bytes:
    dims = b"".join(_message(2, _field(1, size)) for size in shape)
    crc = b"\x35" + struct.pack("<I", masked_crc(raw))  # field 6, fixed32
    return _field(1, dtype) + _message(2, dims) + _field(3, shard) + _field(4, offset) + _field(5, len(raw)) + crc


def _field(number: int, value: int) -> bytes:
    return bytes([number << 3]) + _varint(value) if value else b""


def _message(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# -- LevelDB's table ------------------------------------------------------------------------------------------------


def _table(entries: list[tuple[bytes, bytes]], block_entries: int, restart_interval: int) -> bytes:
    out = bytearray()

    def add(block: bytes) -> bytes:
        """Append a block with its trailer; return its handle."""
        handle = _varint(len(out)) + _varint(len(block))
        out.extend(block + b"\0" + struct.pack("<I", masked_crc(block + b"\0")))
        return handle

    handles = []
    for start in range(0, len(entries), block_entries):
        part = entries[start : start + block_entries]
        handles.append((part[-1][0], add(_block(part, restart_interval))))
    meta = add(_block([], restart_interval))
    index = add(_block(handles, 1))
    return bytes(out) + (meta + index).ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def _block(entries: list[tuple[bytes, bytes]], restart_interval: int) -> bytes:
    out, restarts, previous = bytearray(), [], b""
    for number, (key, value) in enumerate(entries):
        shared = 0
        if number % restart_interval:
            while shared < min(len(key), len(previous)) and key[shared] == previous[shared]:
                shared += 1
        else:
            restarts.append(len(out))
        out += _varint(shared) + _varint(len(key) - shared) + _varint(len(value)) + key[shared:] + value
        previous = key
    restarts = restarts or [0]
    return bytes(out) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


# -- CRC-32C, one bit table and one byte at a time ------------------------------------------------------------------

_TABLE = []
for _byte in range(256):
    _crc = _byte
    for _ in range(8):
        _crc = _crc >> 1 ^ (0x82F63B78 if _crc & 1 else 0)
    _TABLE.append(_crc)


def plain_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def masked_crc(data: bytes) -> int:
    crc = plain_crc(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
