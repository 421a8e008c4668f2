"""Rows in a broker's stored form, built by simple code."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from venus.codec.packed import PackedBytes
from venus.codec.stored_rows import StoredRows

HEAD = struct.Struct(">QIBI")

Row = tuple[int, int, bytes, bytes]  # Sequence, schema version, record_id, row


def stored_rows(rows: Iterable[Row], *, flags: int = 0) -> StoredRows:
    """Return rows one after the other in stored form."""
    return StoredRows(PackedBytes.of(HEAD.pack(s, v, flags, len(key)) + key + row for s, v, key, row in rows))


def plain_rows(rows: StoredRows) -> list[Row]:
    """Decode stored rows one by one."""
    found = []
    for value in rows.packed.split():
        sequence, version, _, size = HEAD.unpack_from(value)
        found.append((sequence, version, value[HEAD.size : HEAD.size + size], value[HEAD.size + size :]))
    return found
