r"""Few rows, value by value: for a handful of rows the fixed cost of calls on whole batches dominates.

A transaction of one row waits for this in capture and in apply. Anything unusual (an escape, a key that is NULL,
damage) is left to the code for batches, which also reports the error. So each function here may return None.
"""

from __future__ import annotations

import numpy as np

from venus.codec.layout import Layout, varint
from venus.codec.packed import Bools, PackedBytes

#: More values than this are converted faster as a batch.
VALUES_MAX = 128
#: The maximum size of COPY text; it has few escapes or none.
BYTES_MAX = 16 << 10
_NULL = b"\\N"
_FLAGS = {b"t": True, b"f": False}
_VARINTS = [varint(size) for size in range(128)]


def from_copy(data: bytes, layout: Layout, *, flagged: bool) -> tuple[PackedBytes, PackedBytes, Bools] | None:
    """Return what `copytext.from_copy` returns, or None."""
    fields = len(layout.tags) + flagged
    if True in layout.binary:
        return None  # hex begins with a backslash, which is escaped
    if len(data) > BYTES_MAX or data[-1:] != b"\n" or data.count(b"\n") * fields > VALUES_MAX or not _is_utf8(data):
        return None
    nulls = 0
    parts: tuple[list[bytes], list[bytes], list[bool]] = ([], [], [])
    for line in data[:-1].split(b"\n"):
        values = line.split(b"\t")
        if len(values) != fields:
            return None
        is_deleted = _FLAGS.get(values.pop(0)) if flagged else False
        here = values.count(_NULL)
        beside_key = values[layout.key_count :]
        if is_deleted is None or _NULL in values[: layout.key_count] or (is_deleted and here != len(beside_key)):
            return None
        nulls += here
        parts[0].append(_message(layout.tags[: layout.key_count], values))
        parts[1].append(_message(layout.tags[layout.key_count :], beside_key))
        parts[2].append(is_deleted)
    if data.count(b"\\") != nulls:
        return None  # there are escapes
    return PackedBytes.of(parts[0]), PackedBytes.of(parts[1]), np.array(parts[2], dtype=np.bool_)


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _message(tags: tuple[bytes, ...], values: list[bytes]) -> bytes:
    parts: list[bytes] = []
    for tag, value in zip(tags, values, strict=False):
        if value != _NULL:
            size = len(value)
            parts += (tag, _VARINTS[size] if size < 128 else varint(size), value)
    return b"".join(parts)


def to_columns(messages: PackedBytes, layout: Layout, first: int, stop: int) -> list[list[str | bytes | None]] | None:
    """Return the values of the columns from `first` up to `stop`, which form each message, or None."""
    count = len(messages)
    if not 0 < count * (stop - first) <= VALUES_MAX:
        return None
    columns: list[list[str | bytes | None]] = [[] for _ in range(first, stop)]
    fields = list(zip(columns, layout.tags[first:stop], layout.binary[first:stop], strict=True))
    at, data = 0, messages.data
    for size in messages.sizes.tolist():
        end = at + size
        if end > len(data):
            return None
        for column, tag, binary in fields:
            if not data.startswith(tag, at, end):
                column.append(None)
                continue
            at += len(tag)
            if at >= end or data[at] > 127:
                return None  # a length of several bytes, or none
            begin = at + 1
            at = begin + data[begin - 1]
            value = data[begin:at]
            try:
                column.append(value if binary else value.decode())
            except UnicodeDecodeError:
                return None
        if at != end:  # a value was cut short
            return None
    return columns if at == len(data) else None
