"""Row filters between the wire and `venus.network`."""

from __future__ import annotations

from collections.abc import Iterable

from venus.network.row_filters import RowFilter
from venus.network.rows_identity import Levels
from venus.wire import broker_pb2


def from_wire(filters: Iterable[broker_pb2.RowFilter]) -> tuple[RowFilter, ...]:
    """Decode filters; their predicates are checked when they are fitted to a table."""
    return tuple(
        RowFilter(
            table=one.table,
            predicate=one.predicate,
            tables=tuple((table.table_id, table.version) for table in one.tables),
        )
        for one in filters
    )


def to_wire(filters: Iterable[RowFilter]) -> list[broker_pb2.RowFilter]:
    """Return the messages."""
    return [
        broker_pb2.RowFilter(
            table=one.table,
            predicate=one.predicate,
            tables=[broker_pb2.TableVersion(table_id=n, version=version) for n, version in one.tables],
        )
        for one in filters
    ]


def levels_from_wire(levels: broker_pb2.RowLevels) -> Levels:
    """Decode the filters of several sets."""
    return tuple(from_wire(level.where) for level in levels.levels)


def levels_to_wire(levels: Levels) -> broker_pb2.RowLevels:
    """Return the message."""
    return broker_pb2.RowLevels(levels=[broker_pb2.RowLevel(where=to_wire(level)) for level in levels])
