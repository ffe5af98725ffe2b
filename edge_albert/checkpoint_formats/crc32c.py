"""CRC-32C (Castagnoli, RFC 3720 appendix B.4) in NumPy: 5 ns a byte, against 100 for a loop in Python.

A CRC is linear over GF(2): the register after "a then b" is that after a, pushed through len(b) zero bytes, XOR that
of b alone started from 0. So a long buffer is cut into equally long lanes, the lanes are advanced side by side, two
bytes a step, and their registers are combined in pairs.
"""

from __future__ import annotations

from functools import cache

import numpy as np

_POLYNOMIAL = 0x82F63B78  # reversed bit order
_MASK_DELTA = 0xA282EAD8
_MAX_LANES = 1 << 14  # their registers and the table fit a core's second-level cache
_MIN_LANE_WORDS = 512


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """The CRC-32C of `data`."""
    register = 0xFFFFFFFF
    words = len(data) // 2
    lanes = 1
    while lanes < _MAX_LANES and words >= 2 * lanes * _MIN_LANE_WORDS:
        lanes *= 2
    in_lanes = words // lanes * lanes if lanes > 1 else 0
    if in_lanes:
        register = _combine(register, np.frombuffer(data, "<u2", in_lanes).reshape(lanes, -1))
    bytewise = _byte_table()
    for byte in memoryview(data)[2 * in_lanes :]:
        register = bytewise[(register ^ byte) & 0xFF] ^ (register >> 8)
    return register ^ 0xFFFFFFFF


def masked_crc32c(data: bytes | bytearray | memoryview) -> int:
    """CRC-32C as TensorFlow and LevelDB store it: rotated and shifted, since a CRC of a string with CRCs is weak."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _combine(register: int, grid: np.ndarray) -> int:
    """The register after all lanes of `grid` (lanes, words), one after the other, when it was `register` before."""
    registers = np.zeros(len(grid), np.uint32)
    registers[0] = register
    registers = _advance(registers, grid.T)
    basis = np.uint32(1) << np.arange(32, dtype=np.uint32)
    shift = _advance(basis, np.zeros((grid.shape[1], 1), np.uint16))  # column k: bit k pushed through one lane of zeros
    while len(registers) > 1:
        registers = _apply(shift, registers[0::2]) ^ registers[1::2]
        shift = _apply(shift, shift)  # a lane is now twice as long
    return int(registers[0])


def _advance(registers: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Push `registers` (lanes,) through `rows` (words, lanes) of 16-bit words."""
    table = _word_table()
    for row in rows:
        registers = table[(registers ^ row) & 0xFFFF] ^ (registers >> 16)
    return registers


def _apply(columns: np.ndarray, registers: np.ndarray) -> np.ndarray:
    """The linear map whose images of the 32 single bits are `columns` (32,), applied to `registers` (n,)."""
    bits = (registers[:, None] >> np.arange(32, dtype=np.uint32)) & 1
    return np.bitwise_xor.reduce(np.where(bits, columns, np.uint32(0)), axis=1)


def _push_byte(registers: np.ndarray) -> np.ndarray:
    for _ in range(8):
        registers = np.where(registers & 1, registers >> 1 ^ np.uint32(_POLYNOMIAL), registers >> 1)
    return registers


@cache
def _byte_table() -> list[int]:
    return _push_byte(np.arange(1 << 8, dtype=np.uint32)).tolist()


@cache
def _word_table() -> np.ndarray:
    return _push_byte(_push_byte(np.arange(1 << 16, dtype=np.uint32)))
