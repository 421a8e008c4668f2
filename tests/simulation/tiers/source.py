"""A source with two tables, whose history can fork: an earlier state is restored, and different changes follow."""

from __future__ import annotations

from copy import copy

from tests.simulation.brokers.source import Rows, Source, split_packed
from tests.simulation.tiers import rows as columned
from tests.simulation.tiers.rows import table_of
from venus.codec import schema as schemas_codec
from venus.wire import change_pb2


class TieredSource(Source):
    """Source with two tables: keys with an odd digit are in table 2."""

    tables = (1, 2)

    def table_of(self, key: bytes) -> int:
        return table_of(key)

    def fork(self) -> TieredSource:
        """Return a copy of the current state as a separate source with the same past."""
        twin = copy(self)
        for name in ("rows", "batches", "history", "_shipped", "_log"):
            setattr(twin, name, copy(getattr(self, name)))
        return twin

    def rows_at(self, sequence: int, tables: frozenset[int]) -> Rows | None:
        """Return the rows of some tables as of a Sequence, or None if no batch ends there."""
        if not sequence:
            return {}
        known = self.history.get(sequence)  # -1 has no entry
        return {key: row for key, row in known[1].items() if table_of(key) in tables} if known is not None else None


class ColumnedSource(TieredSource):
    """Source whose rows have columns, so that predicates can select among them."""

    def key(self, number: int) -> bytes:
        return columned.key_of(number)

    def value(self, number: int) -> bytes:
        return columned.row_of(number)

    def table_schema(self, table: int) -> change_pb2.TableSchema:
        return schemas_codec.to_wire(columned.SCHEMAS[table])


def apply(rows: Rows, body: change_pb2.BatchBody) -> None:
    """Apply a batch to a target's rows."""
    for table in body.tables:
        if table.kind == change_pb2.TableChanges.LEFT_OUT:
            continue
        if table.kind == change_pb2.TableChanges.TRUNCATE:
            for key in [key for key in rows if table_of(key) == table.table_id]:
                del rows[key]
            continue
        ids, packed = split_packed(table.record_ids, table.record_id_sizes), split_packed(table.rows, table.row_sizes)
        for i, (key, row) in enumerate(zip(ids, packed, strict=True)):
            if table.is_deleted[i]:
                rows.pop(key, None)
            else:
                rows[key] = row
