"""Compares every table on the three sides while nothing moves, first as values travel, then as the target spells them.

Whether nothing has moved is not this file's business: the caller looks at the counters before and behind (run.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from venus.adapters.cutover.certificate import Compared
from venus.adapters.cutover.hashing import TableHash
from venus.adapters.cutover.legs import Table, captured, full_hash, quiet_cut, source_hash, target_hash
from venus.adapters.dialects.contract import Source
from venus.adapters.targets.cutting import CutoverTarget, Speller, TableThere
from venus.codec import schema as schemas_codec
from venus.config import Settings
from venus.errors import SnapshotExpired
from venus.model import TableSchema
from venus.rpc.address import broker_of
from venus.rpc.snapshots import Snapshots

Report = Callable[[str, int, int], None]


class Comparing:
    """An open snapshot of the full data, and the three readings of each table beside it."""

    def __init__(self, target: CutoverTarget, source: Source, settings: Settings, group: str, report: Report) -> None:
        self._target = target
        self._source = source
        self._report = report
        self._snapshots = Snapshots(broker_of(settings))
        self.snapshot = self._snapshots.open(settings.business.name, splits=1, holder=f"cut-over of {group}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._snapshots.close(self.snapshot.snapshot_id)
        finally:
            self._snapshots.close()

    def compare(self, there: Sequence[TableThere]) -> list[Compared]:
        """Compare all tables that are captured. Raises NotAtRest if changes still wait at the source."""
        known = captured(self._source)
        versions: dict[int, tuple[TableSchema, ...]] = {}
        for wire in self.snapshot.schemas:
            schema = schemas_codec.from_wire(wire)
            versions[schema.table_id] = (*versions.get(schema.table_id, ()), schema)
        for schema in known.values():  # a version that no row has come with yet
            if all(s.version != schema.version for s in versions.get(schema.table_id, ())):
                versions[schema.table_id] = (*versions.get(schema.table_id, ()), schema)
        tables = {
            t.schema.table_id: Table(t, versions.get(t.schema.table_id, (t.schema,)))
            for t in there
            if t.schema.table_id in known
        }
        cut = quiet_cut(self._source, tables)
        try:
            source = {t: source_hash(cut, table, self._tell("source"), None) for t, table in tables.items()}
        finally:
            cut.rollback()
        full = {t: self._full(table, None) for t, table in tables.items()}
        target = self._of_target(tables)
        found = [_compared(table, source[t], full[t], target[t]) for t, table in tables.items()]
        return [one if one.equal else self._spelled(tables[t]) for t, one in zip(tables, found, strict=True)]

    def _tell(self, side: str) -> Callable[[str, int], None]:
        def tell(table: str, rows: int) -> None:
            self._report(f"hashes {side}: {table}", rows, 0)

        return tell

    def _full(self, table: Table, speller: Speller | None) -> TableHash:
        try:
            self._snapshots.renew(self.snapshot.snapshot_id)
        except SnapshotExpired as error:
            raise SnapshotExpired(str(error), hint="raise broker.snapshot_lease_s") from error
        return full_hash(self._snapshots, self.snapshot, table, self._tell("full data"), speller)

    def _of_target(self, tables: dict[int, Table]) -> dict[int, TableHash]:
        """Read the target in one snapshot of its own."""
        with self._target.reading():
            return {t: target_hash(self._target, table, self._tell("target")) for t, table in tables.items()}

    def _spelled(self, table: Table) -> Compared:
        """Compare a table once more, the values of the other sides as the target would write them."""
        tables = {table.schema.table_id: table}
        with self._target.spelling(table.schema.table_id) as speller:
            full = self._full(table, speller)
            cut = quiet_cut(self._source, tables)
            try:
                source = source_hash(cut, table, self._tell("source"), speller)
            finally:
                cut.rollback()
        return _compared(table, source, full, self._of_target(tables)[table.schema.table_id], spelled=True)


def _compared(
    table: Table, source: TableHash, full: TableHash, target: TableHash, *, spelled: bool = False
) -> Compared:
    return Compared(
        table=table.name, target_table=table.there.name, source=source, full=full, target=target, spelled=spelled
    )
