"""Changes of subscriptions on the wire: rows as the full data stores them, with their subscriptions (ChangedRows).

A row is in a message once, however many subscriptions it concerns. A deletion has its key only. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from venus.codec.packed import Gatherer, PackedBytes, pack_items
from venus.codec.stored_rows import HEAD_BYTES, TOMBSTONE, StoredRows
from venus.errors import ProtocolError
from venus.wire import broker_pb2

Ints = npt.NDArray[np.int64]
Operations = npt.NDArray[np.uint8]

#: Where the flags of a stored value are, and the size of its key.
_FLAGS_AT, _SIZE_AT = 12, 13
_WIRE_TYPE_BITS, _LAST_BYTE = 3, 0x80
#: Approximate bytes of a frame without its rows.
_FRAME_BYTES = 64


class Operation(IntEnum):
    """Effect of a change on the rows of a subscription."""

    INSERT = 1
    UPDATE = 2
    DELETE = 3
    TRUNCATE = 4


@dataclass(frozen=True, slots=True)
class ChangeVerdicts:
    """Triples of a change, a subscription and the operation for its rows, in the order of the changes."""

    changes: Ints
    subscriptions: Ints
    operations: Operations

    def __len__(self) -> int:
        return len(self.changes)


def is_row(stored: bytes) -> bool:
    """Return whether a stored value is a row, not a tombstone."""
    return not stored[_FLAGS_AT] & TOMBSTONE


def as_deletion(stored: bytes) -> bytes:
    """Return the deletion of a stored row: its head and key alone."""
    if not is_row(stored):
        return stored
    end = HEAD_BYTES + int.from_bytes(stored[_SIZE_AT:HEAD_BYTES], "big")
    return stored[:_FLAGS_AT] + bytes([TOMBSTONE]) + stored[_SIZE_AT:end]


def keep_columns(stored: bytes, numbers: Collection[int]) -> bytes:
    """Return a stored row with its key and these columns alone."""
    start = HEAD_BYTES + int.from_bytes(stored[_SIZE_AT:HEAD_BYTES], "big")
    kept = [stored[:start]]
    while start < len(stored):
        tag, at = _read_varint(stored, start)
        size, at = _read_varint(stored, at)
        if tag >> _WIRE_TYPE_BITS in numbers:
            kept.append(stored[start : at + size])
        start = at + size
    return b"".join(kept)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the protobuf varint that begins at `at`, and the position after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & ~_LAST_BYTE) << shift
        if not byte & _LAST_BYTE:
            return value, at
        shift += 7


class ChangeEncoder:
    """Encodes the verdicts of many listeners on the same changes."""

    def __init__(self, table_id: int, after: Sequence[bytes]) -> None:
        self._table_id, self._count = table_id, 2 * len(after)
        #: Each row, followed by its deletion.
        self._values = [one for value in after for one in (value, as_deletion(value))]
        packed = pack_items(self._values)
        self._sizes, self._gatherer = packed.sizes, Gatherer(packed.data, packed.bounds)

    def encode(self, verdicts: ChangeVerdicts, columns: Collection[int] | None = None) -> broker_pb2.ChangedRows:
        """Return verdicts with their rows, reduced to the key and `columns`; None = all columns."""
        codes = verdicts.changes * 2 + (verdicts.operations == Operation.DELETE)
        used = np.zeros(self._count, np.bool_)
        used[codes] = True
        distinct = np.flatnonzero(used)
        rows = (np.cumsum(used) - 1)[codes]
        chosen = ChangeVerdicts(rows, verdicts.subscriptions, verdicts.operations)
        if columns is not None:
            return _message(self._table_id, pack_items(self._reduce_rows(distinct, columns)), chosen)
        packed = PackedBytes(self._gatherer.gather(distinct), self._sizes[distinct])
        return _message(self._table_id, packed, chosen)

    def _reduce_rows(self, distinct: Ints, columns: Collection[int]) -> list[bytes]:
        """Return rows and deletions, given by their places in `_values`, with their key and `columns` alone."""
        return [keep_columns(self._values[code], columns) for code in distinct.tolist()]


def encode_replay(
    table_id: int,
    after: Sequence[bytes],
    verdicts: ChangeVerdicts,
    replayed: Sequence[int],
    columns: Collection[int] | None = None,
) -> broker_pb2.ChangedRows:
    """Return changes that are sent again; subscriptions in `replayed` take a row without a verdict as deleted."""
    inside = np.zeros(len(after), np.bool_)
    inside[verdicts.changes] = True
    values = [value if is_in else as_deletion(value) for value, is_in in zip(after, inside, strict=True)]
    if columns is not None:
        values = [keep_columns(value, columns) for value in values]
    found = _message(table_id, pack_items(values), verdicts)
    found.replayed.extend(replayed)
    return found


def encode_loaded(
    table_id: int, rows: StoredRows, subscription: int, columns: Collection[int] | None = None
) -> broker_pb2.ChangedRows:
    """Return rows of the full data for one subscription."""
    packed = rows.packed if columns is None else pack_items([keep_columns(row, columns) for row in rows.packed.split()])
    return broker_pb2.ChangedRows(
        table_id=table_id, stored=packed.data, stored_sizes=packed.wire_sizes(), loaded=subscription
    )


def _message(table_id: int, packed: PackedBytes, verdicts: ChangeVerdicts) -> broker_pb2.ChangedRows:
    """Return the message with these packed rows and the verdicts on them."""
    return broker_pb2.ChangedRows(
        table_id=table_id,
        stored=packed.data,
        stored_sizes=packed.wire_sizes(),
        rows=verdicts.changes.astype("<u4").tobytes(),
        subscriptions=verdicts.subscriptions.astype("<u4").tobytes(),
        operations=verdicts.operations.astype(np.uint8).tobytes(),
    )


def encode_truncation(
    table_id: int, subscriptions: Sequence[int], *, is_replay: bool = False
) -> broker_pb2.ChangedRows:
    """Return the message that all rows of a table are gone."""
    numbers = np.asarray(subscriptions, dtype="<u4")
    return broker_pb2.ChangedRows(
        table_id=table_id,
        rows=bytes(numbers.nbytes),
        subscriptions=numbers.tobytes(),
        operations=bytes([Operation.TRUNCATE]) * len(numbers),
        replayed=subscriptions if is_replay else (),
    )


def cost(changes: broker_pb2.ChangedRows) -> int:
    """Return how many bytes of the client's credit these changes use."""
    return len(changes.stored) + len(changes.stored_sizes) + 3 * len(changes.subscriptions)


def frame_cost(frame: broker_pb2.ChangesFrame) -> int:
    """Return how many bytes of the client's credit a frame uses."""
    return _FRAME_BYTES + sum(map(cost, frame.changes))


# -- the client --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SubscribedChanges:
    """Changes of one subscription, in order; `rows` has a row for each, deletions with their key only.

    A truncation comes alone: `operations` has one item, and `rows` none.
    """

    operations: Operations
    rows: StoredRows


def decode_changes(message: broker_pb2.ChangedRows) -> Iterator[tuple[int, SubscribedChanges]]:
    """Yield the changes of each subscription. Raises ProtocolError for a message that contradicts itself."""
    stored = StoredRows(PackedBytes.from_wire(message.stored, message.stored_sizes))
    if message.loaded:
        yield message.loaded, SubscribedChanges(np.full(len(stored), Operation.INSERT, np.uint8), stored)
        return
    rows, numbers = np.frombuffer(message.rows, "<u4"), np.frombuffer(message.subscriptions, "<u4")
    operations = np.frombuffer(message.operations, np.uint8)
    if not len(rows) == len(numbers) == len(operations):
        raise ProtocolError("a message about changes has lists of different lengths")
    if (operations == Operation.TRUNCATE).any():
        for number in numbers.tolist():
            yield number, SubscribedChanges(operations[:1], _select(stored, rows[:0]))
        return
    if len(rows) and int(rows.max()) >= len(stored):
        raise ProtocolError("a message about changes names a row that it does not have")
    if len(operations) and not (
        int(operations.min()) >= Operation.INSERT and int(operations.max()) <= Operation.DELETE
    ):
        raise ProtocolError("a message about changes has an unknown operation")
    if message.replayed:
        for number in message.replayed:
            yield number, _select_replayed(stored, rows[numbers == number])
        return
    for number in np.unique(numbers).tolist():
        mine = numbers == number
        yield number, SubscribedChanges(operations[mine], _select(stored, rows[mine]))


def _select_replayed(stored: StoredRows, inside: npt.NDArray[np.uint32]) -> SubscribedChanges:
    """Return replayed changes of one subscription: updates inside its predicate, deletions outside."""
    operations = np.full(len(stored), Operation.DELETE, np.uint8)
    operations[inside] = Operation.UPDATE
    values = stored.packed.split()
    chosen = [
        value if one == Operation.UPDATE else as_deletion(value) for value, one in zip(values, operations, strict=True)
    ]
    return SubscribedChanges(operations, StoredRows(pack_items(chosen)))


def _select(stored: StoredRows, rows: npt.NDArray[np.uint32]) -> StoredRows:
    """Return the stored rows with these numbers, which may repeat."""
    values = stored.packed.split()
    return StoredRows(pack_items([values[row] for row in rows.tolist()]))
