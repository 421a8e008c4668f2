"""State of a subscription by content at its client: frames of the broker become ordered changes and positions. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from venus import errors
from venus.codec import schema as schemas_codec
from venus.codec.arrow_rows import SEQUENCE, ArrowShape, ColumnValues, default_values
from venus.codec.changed_rows import Operation, Operations, SubscribedChanges, decode_changes
from venus.codec.packed import pack_items
from venus.codec.row_bytes import Layout
from venus.codec.stored_rows import StoredRows
from venus.errors import ConfigError, ProtocolError, VenusError
from venus.model import Column, Kind, TableSchema
from venus.wire import broker_pb2

OPERATION = "_operation"
_POSITION = re.compile(r"(\d{1,19})(?:-(\d{1,19}))?")
_NO_ROWS = StoredRows(pack_items([]))
_NO_SEQUENCES = np.zeros(0, np.uint64)
#: Limit of remembered sequences, more than the changes that the broker evaluates together.
_RECENT_MAX = 1 << 16


@dataclass(frozen=True, slots=True, order=True)
class ChangePosition:
    """Position of a subscription in the queue: everything before `offset` is known. Its text is OFFSET-EPOCH."""

    offset: int
    epoch: int = 0

    def __str__(self) -> str:
        return f"{self.offset}-{self.epoch}"

    @classmethod
    def parse(cls, text: str) -> ChangePosition:
        """Read a position. Raises ConfigError."""
        found = _POSITION.fullmatch(text.strip())
        if found is None or int(found[1]) > 2**62 or int(found[2] or 0) > 2**56:
            raise ConfigError(f"{text[:40]!r} is no position", hint="write it as it was printed, like 1234-5")
        return cls(int(found[1]), int(found[2] or 0))


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """Changes of one subscription, in order. `position` is the position after them, None within a transaction.

    A truncation, which says that all rows are gone, comes alone and has no row.
    """

    table: TableSchema
    versions: Mapping[int, TableSchema]
    operations: Operations
    rows: StoredRows
    position: ChangePosition | None = None
    committed_at_us: int = 0

    @property
    def is_truncation(self) -> bool:
        """Whether this is a truncation: all rows are gone."""
        return len(self.operations) == 1 and self.operations[0] == Operation.TRUNCATE

    @property
    def names(self) -> list[str]:
        """The operation of each change: insert, update, delete or truncate."""
        return [Operation(one).name.lower() for one in self.operations.tolist()]

    def values(self, columns: Seq[str] = ()) -> list[dict[str, Any]]:
        """Return the rows as dictionaries for JSON: a deletion has only its key, a truncation has nothing."""
        if self.is_truncation:
            return [{}]
        found: list[dict[str, Any]] = [{} for _ in range(len(self.rows))]
        wanted = [c for c in self.table.columns if not columns or c.name in columns or c.name in self.table.key]
        for places, rows, version in self._by_version():
            cells = ColumnValues.of_stored_rows(rows, Layout.of(version))
            for column in wanted:
                convert = _JSON.get(column.type.kind, _as_text)
                for place, value in zip(places.tolist(), _values(cells, column), strict=True):
                    found[place][column.name] = None if value is None else convert(value)
        for row, operation in zip(found, self.operations.tolist(), strict=True):
            if operation == Operation.DELETE:
                for name in [name for name in row if name not in self.table.key]:
                    del row[name]
        return found

    def to_arrow(self, columns: Seq[str] = ()) -> pa.RecordBatch:
        """Return the changes as Arrow: the columns of the table, `_operation` and `_sequence`. Raises ValueMisfit."""
        names = [c.name for c in self.table.columns if c.name in columns or c.name in self.table.key] if columns else ()
        shape = ArrowShape.of(self.table, names)
        parts: list[list[pa.Array]] = []
        order: list[np.ndarray] = []
        for places, rows, version in self._by_version():
            parts.append(shape.arrays(rows.record_ids, rows.rows, version))
            order.append(places)
        count = len(self.operations)
        if not parts:
            arrays = [pa.nulls(count, wanted) for wanted in shape.types]
        elif len(parts) == 1:
            arrays = parts[0]
        else:
            back = pa.array(np.argsort(np.concatenate(order)))
            arrays = [pa.concat_arrays(list(some)).take(back) for some in zip(*parts, strict=True)]
        sequences = self.rows.sequences.astype(np.int64) if len(self.rows) else np.zeros(count, np.int64)
        own = [pa.array(self.names, pa.string()), pa.array(sequences)]
        fields = [*shape.fields, pa.field(OPERATION, pa.string()), pa.field(SEQUENCE, pa.int64())]
        return pa.RecordBatch.from_arrays([*arrays, *own], schema=pa.schema(fields))

    def _by_version(self) -> Iterator[tuple[np.ndarray, StoredRows, TableSchema]]:
        """Yield the rows of each schema version: their indexes, the rows, and the version's description."""
        if not len(self.rows):
            return
        versions = self.rows.heads["version"]
        for version in np.unique(versions).tolist():
            if version not in self.versions:
                raise ProtocolError(f"{self.table.qualified_name}: rows of version {version}, which was not described")
            of_it = versions == version
            yield np.flatnonzero(of_it), self.rows.select(of_it), self.versions[version]


def _values(cells: ColumnValues, column: Column) -> list[bytes | None]:
    """Return the values of a column; rows older than the column have its default."""
    found = cells.column(column.number)
    if found is None:
        found = default_values(column, pa.large_string(), cells.rows).cast(pa.large_binary())
    values: list[bytes | None] = found.to_pylist()
    return values


def _as_text(value: bytes) -> str:
    return value.decode()


def _as_float(value: bytes) -> float | str:
    """Return a number for JSON; text for NaN and the infinities."""
    number = float(value)
    return number if abs(number) < float("inf") else value.decode()  # JSON has no NaN and no infinity


#: By kind of column: canonical text as a value of JSON. Decimals stay text, because JSON's numbers are rounded.
_JSON: dict[Kind, Callable[[bytes], Any]] = {
    Kind.INT: int,
    Kind.FLOAT: _as_float,
    Kind.BOOL: lambda value: value == b"t",
    Kind.BYTES: lambda value: value.hex(),
}


def as_lines(found: ChangeSet, columns: Seq[str] = ()) -> Iterator[str]:
    """Yield each change as a line of JSON; the last one of a transaction has the position after it."""
    values, last = found.values(columns), len(found.operations) - 1
    for n, (operation, row) in enumerate(zip(found.names, values, strict=True)):
        line = {"operation": operation, "table": found.table.qualified_name} | ({"row": row} if row else {})
        if n == last and found.position is not None:
            line["position"] = str(found.position)
        yield json.dumps(line, ensure_ascii=False)


class SubscriptionView:
    """State of one subscription of a stream at its client."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.versions: dict[int, TableSchema] = {}
        self._described: dict[tuple[int, int], TableSchema] = {}
        self.table_id = 0
        self.is_live = False
        self.position: ChangePosition | None = None
        #: The highest sequence of the changes after the position: a part of a transaction.
        self.partial_sequence = 0
        #: The highest sequences of rows and replayed changes before the live ones, which may overlap with them.
        self._recent = _NO_SEQUENCES

    def take(self, frame: broker_pb2.ChangesFrame) -> Iterator[ChangeSet]:
        """Yield the changes of a frame for the subscription. Raises the error that has ended it."""
        for message in frame.tables:
            schema = schemas_codec.from_wire(message)
            self._described[schema.table_id, schema.version] = schema
        for news in frame.news:
            if news.number == self.number:
                yield from self._take_news(news)
        self._select_versions()
        for changes in frame.changes:
            yield from self._take_changes(changes)

    def _select_versions(self) -> None:
        """Select the described versions of the subscription's table."""
        self.versions = {v: one for (table_id, v), one in self._described.items() if table_id == self.table_id}

    def _take_news(self, news: broker_pb2.SubscriptionNews) -> Iterator[ChangeSet]:
        """Handle a new state of the subscription; yield a truncation if all rows are sent again."""
        if news.state == broker_pb2.ENDED:
            kind = getattr(errors, news.kind, VenusError)
            is_error = isinstance(kind, type) and issubclass(kind, VenusError)
            raise (kind if is_error else VenusError)(news.error, hint=news.hint)
        if news.state == broker_pb2.LIVE:
            self.is_live = True
            return
        self.table_id, self.is_live, self._recent = news.table_id, False, _NO_SEQUENCES
        self._select_versions()
        if news.state == broker_pb2.RELOADS:
            self.position, self.partial_sequence = None, 0
            yield self._make_set(np.array([Operation.TRUNCATE], np.uint8), _NO_ROWS, None, 0)

    def _take_changes(self, changes: broker_pb2.ChangedRows) -> Iterator[ChangeSet]:
        """Yield the changes of one table that are for the subscription, and move its position."""
        mine = changes.loaded == self.number or (
            self.number in changes.replayed if changes.replayed else self.is_live and not changes.loaded
        )
        position = ChangePosition(changes.next_offset, changes.epoch) if changes.next_offset and mine else None
        found = [self._drop_known(changes, one) for number, one in decode_changes(changes) if number == self.number]
        found = [one for one in found if len(one.operations)]
        if position is not None and (self.position is None or position.offset >= self.position.offset):
            self.position, self.partial_sequence = position, 0
            if found and not (changes.replayed or changes.loaded):
                self._recent = _NO_SEQUENCES  # a transaction is complete: no overlap is left
        for one in found:
            yield self._make_set(one.operations, one.rows, position, changes.committed_at_us)
        if not found and position is not None:
            yield self._make_set(np.zeros(0, np.uint8), _NO_ROWS, position, changes.committed_at_us)

    def _drop_known(self, message: broker_pb2.ChangedRows, changes: SubscribedChanges) -> SubscribedChanges:
        """Drop changes that were taken before.

        After a reconnect in the middle of a transaction, its first part is replayed. Sequences rise along the queue, so
        they identify known changes. A truncation has no Sequence, so everything after a replayed truncation is
        delivered again. The broker may evaluate the first live changes together with earlier changes, which the client
        has already read as rows or in a replay.
        """
        sequences = changes.rows.sequences
        if not len(sequences):
            if message.replayed and len(changes.operations):
                self.partial_sequence, self._recent = 0, _NO_SEQUENCES
            return changes
        if message.loaded:
            chosen = np.ones(len(sequences), np.bool_)
        elif message.replayed:
            chosen = sequences > self.partial_sequence
        else:
            chosen = ~np.isin(sequences, self._recent)
        if message.loaded or message.replayed:
            recent = np.concatenate([self._recent, sequences])
            self._recent = np.partition(recent, -_RECENT_MAX)[-_RECENT_MAX:] if len(recent) > _RECENT_MAX else recent
        if not message.loaded:
            self.partial_sequence = max(self.partial_sequence, int(sequences.max()))
        if chosen.all():
            return changes
        return SubscribedChanges(changes.operations[chosen], changes.rows.select(chosen))

    def _make_set(
        self, operations: Operations, rows: StoredRows, position: ChangePosition | None, committed_at_us: int
    ) -> ChangeSet:
        """Return changes in the columns of the newest version."""
        if not self.versions:
            raise ProtocolError("the broker sent changes of a table that it did not describe")
        newest = self.versions[max(self.versions)]
        return ChangeSet(newest, dict(self.versions), operations, rows, position, committed_at_us)
