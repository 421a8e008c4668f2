"""RocksDB's log format, read for its outline alone: what its own reader silently takes for the end.

MANIFEST and write-ahead log are written in it: blocks of 32 KiB, in them records of a checksum, a length, a type and
a payload. RocksDB checks the payload of whole records. But a length that reaches beyond the end of the file is a torn
record to it, and a type that only recycled files have is a left-over: both end the file silently, so one damaged bit
there drops a record, or everything behind it. Here both are told from a record that was really torn.
"""

from __future__ import annotations

import struct

BLOCK_BYTES = 1 << 15
_HEADER = struct.Struct("<IHB")
#: Full, first, middle, last.
_TYPES = frozenset({1, 2, 3, 4})
_MASK_DELTA = 0xA282EAD8


class DamagedLog(Exception):
    """A log file has a record that cannot be as it was written."""


def end_of(content: bytes | memoryview) -> int:
    """Return where the last whole record ends; what follows was never written completely. Raises DamagedLog."""
    size, at = len(content), 0
    read = _HEADER.unpack_from
    while True:
        block_end = (at // BLOCK_BYTES + 1) * BLOCK_BYTES
        if block_end - at < _HEADER.size:
            at = block_end  # a trailer, too short for a record
            continue
        if size - at < _HEADER.size:
            return min(at, size)
        checksum, length, kind = read(content, at)
        end = at + _HEADER.size + length
        if kind not in _TYPES:
            if not any(content[at:]):
                return at  # a file system may give a file its size before its content
            raise DamagedLog(f"the record at byte {at} has a type that is never written, {kind}")
        if end > block_end:
            raise DamagedLog(f"the record at byte {at} has a length that no block holds, {length}")
        if end > size:
            _check_torn(content, at, checksum, kind)
            return at
        at = end


def _check_torn(content: bytes | memoryview, at: int, checksum: int, kind: int) -> None:
    """Raise DamagedLog if the record is whole but for its length: its payload is checked at any length."""
    crc = _step(0xFFFFFFFF, kind)
    for position in range(at + _HEADER.size, len(content) + 1):
        if _masked(crc ^ 0xFFFFFFFF) == checksum:
            raise DamagedLog(f"the record at byte {at} has a damaged length")
        if position < len(content):
            crc = _step(crc, content[position])


def _masked(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def _step(crc: int, byte: int) -> int:
    return (crc >> 8) ^ _CRC32C[(crc ^ byte) & 0xFF]


def _table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        found.append(crc)
    return tuple(found)


_CRC32C = _table()
