"""Comparison of every table on the three sides of a cut-over: source, full data, target; each in bounded memory.

Values are first compared in their transferred form; if they differ, in the form that the target stores. The source is
read in one snapshot in which no captured change waits to be shipped. The comparison opens a cut as for a first fill and
rolls the cut back, so it writes nothing to the source.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from venus.adapters.cutover.certificate import ComparedTable, TableHash, align_section
from venus.adapters.dialects.contract import Cut, FillState, SchemaChanged, Source
from venus.adapters.targets.cutover_contract import CutoverTable, CutoverTarget, RowConverter
from venus.codec import schema as schemas_codec
from venus.codec.batch import TableChanges
from venus.codec.packed import PackedBytes
from venus.config import Settings
from venus.errors import SnapshotExpired, SourceError, Unavailable, VenusError
from venus.model import Sequence, TableSchema
from venus.rpc.address import broker_address
from venus.rpc.snapshots import SnapshotClient
from venus.wire import broker_pb2

_CHUNK_ROWS = 20_000
_CHUNK_BYTES = 4 << 20
#: How many times to retry a snapshot of the source in which changes still wait.
_QUIET_TRIES = 100
_QUIET_PAUSE_S = 0.1
#: How many times to compare again after a change of a table at the source.
_SCHEMA_TRIES = 3

Progress = Callable[[str, int], None]


class NotAtRest(Unavailable):
    """The source is not at rest: changes wait in its log tables, or its tables are altered."""


@dataclass(slots=True)
class VersionedTable:
    """Table with every version that the broker knows."""

    there: CutoverTable
    versions: tuple[TableSchema, ...]

    @property
    def schema(self) -> TableSchema:
        """The newest version."""
        return self.there.schema

    @property
    def name(self) -> str:
        """Qualified name."""
        return self.schema.qualified_name

    def version(self, number: int) -> TableSchema:
        """Return one of the versions. Raises NotAtRest for a version that was created since the comparison began."""
        for known in self.versions:
            if known.version == number:
                return known
        raise NotAtRest(
            f"{self.name} has become version {number} while it was compared",
            hint="let changes of tables at the source end, and try again",
        )


def _hash_sections(
    sections: Iterator[TableChanges], table: VersionedTable, progress: Progress, converter: RowConverter | None
) -> TableHash:
    found = TableHash()
    for section in sections:
        if section.count:
            version = table.version(section.schema_version)
            shown = converter.convert_rows(section, version) if converter else section
            found.add(*align_section(shown, version, table.schema))
            progress(table.name, found.rows)
    return found


# -- the target ------------------------------------------------------------------------------------------------------


def hash_target(target: CutoverTarget, table: VersionedTable, progress: Progress) -> TableHash:
    """Hash the table at the target, in the snapshot that the caller has opened."""
    found = TableHash()

    def add_rows(record_ids: PackedBytes, rows: PackedBytes) -> None:
        found.add(record_ids, rows)
        progress(table.name, found.rows)

    target.read_rows(table.schema.table_id, add_rows)
    return found


# -- the full data ---------------------------------------------------------------------------------------------------


def hash_full_data(
    snapshots: SnapshotClient,
    snapshot: broker_pb2.Snapshot,
    table: VersionedTable,
    progress: Progress,
    converter: RowConverter | None,
) -> TableHash:
    """Hash the table's rows in an open snapshot of the full data, key range by key range."""

    def sections() -> Iterator[TableChanges]:
        for split in snapshot.splits:
            if split.table_id == table.schema.table_id:
                for chunk in snapshots.read_split(snapshot.snapshot_id, split):
                    yield from (rows.changes for rows in chunk.sections)

    return _hash_sections(sections(), table, progress, converter)


# -- the source ------------------------------------------------------------------------------------------------------


def open_quiet_cut(source: Source, tables: Mapping[int, VersionedTable]) -> Cut:
    """Open a snapshot of the source in which no change of these tables waits. Raises NotAtRest.

    It waits for a moment without heartbeats, because capture would have to wait for a snapshot that reads a heartbeat.
    """
    fills = [_initial_fill(table_id) for table_id in tables]
    for tried in range(_QUIET_TRIES):
        try:
            cut = source.capture.open_cut(fills)
        except SchemaChanged:
            source.capture.refresh_schemas()
            continue
        if cut is not None and _keep_if_quiet(cut, tables, heartbeats=tried == _QUIET_TRIES - 1):
            return cut
        time.sleep(_QUIET_PAUSE_S)
    raise NotAtRest(
        "the source is not at rest: captured changes still wait there", hint="stop the application's writes"
    )


def _keep_if_quiet(cut: Cut, tables: Mapping[int, VersionedTable], *, heartbeats: bool) -> bool:
    """Return whether no change waits in this cut; if one does, roll the cut back. `heartbeats`: heartbeats may wait."""
    waiting = cut.read_sections(rows_max=1, bytes_max=1)
    try:
        first = next(waiting, None)
    except VenusError as error:
        cut.rollback()
        if not error.retryable:
            raise
        return False  # capture has just taken what this snapshot saw
    waiting.close()  # type: ignore[attr-defined]
    if first is None or (heartbeats and first.table_id not in tables):
        return True
    cut.rollback()
    return False


def _initial_fill(table_id: int) -> FillState:
    """Return the state of a fill that has read nothing."""
    return FillState(table_id=table_id, sweep_from=Sequence(0), cursor=b"", rows_done=0, rows_estimate=0, done=False)


def hash_source(cut: Cut, table: VersionedTable, progress: Progress, converter: RowConverter | None) -> TableHash:
    """Hash the table in the source's snapshot."""

    def sections() -> Iterator[TableChanges]:
        fill = _initial_fill(table.schema.table_id)
        while not fill.done:
            chunk, after = cut.read_fill_chunk(fill, rows_max=_CHUNK_ROWS, bytes_max=_CHUNK_BYTES)
            if after == fill and not chunk:
                raise SourceError(
                    f"{table.name}: a row of the source cannot be carried",
                    hint="`venus status` names the table's state",
                )
            yield from chunk
            fill = after

    return _hash_sections(sections(), table, progress, converter)


def read_captured(source: Source) -> dict[int, TableSchema]:
    """Return the captured tables, without the heartbeat."""
    return {t.schema.table_id: t.schema for t in source.registry.read_registered_tables() if not t.schema.is_heartbeat}


Report = Callable[[str, int, int], None]


class CutoverComparison:
    """Comparison of all tables, with an open snapshot of the full data."""

    def __init__(self, target: CutoverTarget, source: Source, settings: Settings, group: str, report: Report) -> None:
        self._target = target
        self._source = source
        self._report = report
        self._snapshots = SnapshotClient(broker_address(settings))
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

    def compare(self, there: Seq[CutoverTable]) -> list[ComparedTable]:
        """Compare the captured tables with those of the target (`there`). Raises NotAtRest while the source changes."""
        for _ in range(_SCHEMA_TRIES):
            try:
                return self._compare(there)
            except SchemaChanged:  # a switch has just enforced foreign keys there, and capture has not noticed yet
                self._source.capture.refresh_schemas()
        return self._compare(there)

    def _compare(self, there: Seq[CutoverTable]) -> list[ComparedTable]:
        """Hash every table on the three sides; compare unequal ones again as the target stores their values."""
        known = read_captured(self._source)
        versions: dict[int, tuple[TableSchema, ...]] = {}
        for wire in self.snapshot.schemas:
            schema = schemas_codec.from_wire(wire)
            versions[schema.table_id] = (*versions.get(schema.table_id, ()), schema)
        for schema in known.values():  # a version that has no rows yet
            if all(s.version != schema.version for s in versions.get(schema.table_id, ())):
                versions[schema.table_id] = (*versions.get(schema.table_id, ()), schema)
        tables = {
            t.schema.table_id: VersionedTable(t, versions.get(t.schema.table_id, (t.schema,)))
            for t in there
            if t.schema.table_id in known
        }
        cut = open_quiet_cut(self._source, tables)
        try:
            source = {t: hash_source(cut, table, self._reporter_of("source"), None) for t, table in tables.items()}
        finally:
            cut.rollback()
        full = {t: self._hash_full_data(table, None) for t, table in tables.items()}
        target = self._hash_targets(tables)
        found = [_build_result(table, source[t], full[t], target[t]) for t, table in tables.items()]
        return [
            one if one.is_equal else self._compare_converted(tables[t]) for t, one in zip(tables, found, strict=True)
        ]

    def _reporter_of(self, side: str) -> Callable[[str, int], None]:
        """Return the callback that reports how many rows of a table on this side are hashed."""

        def report(table: str, rows: int) -> None:
            self._report(f"hashes {side}: {table}", rows, 0)

        return report

    def _hash_full_data(self, table: VersionedTable, converter: RowConverter | None) -> TableHash:
        try:
            self._snapshots.renew(self.snapshot.snapshot_id)
        except SnapshotExpired as error:
            raise SnapshotExpired(str(error), hint="raise broker.snapshot_lease_s") from error
        return hash_full_data(self._snapshots, self.snapshot, table, self._reporter_of("full data"), converter)

    def _hash_targets(self, tables: dict[int, VersionedTable]) -> dict[int, TableHash]:
        """Hash the tables at the target in one snapshot."""
        with self._target.open_snapshot():
            return {t: hash_target(self._target, table, self._reporter_of("target")) for t, table in tables.items()}

    def _compare_converted(self, table: VersionedTable) -> ComparedTable:
        """Compare a table again: convert the rows of source and full data to the form that the target stores."""
        tables = {table.schema.table_id: table}
        with self._target.open_row_converter(table.schema.table_id) as converter:
            full = self._hash_full_data(table, converter)
            cut = open_quiet_cut(self._source, tables)
            try:
                source = hash_source(cut, table, self._reporter_of("source"), converter)
            finally:
                cut.rollback()
        return _build_result(table, source, full, self._hash_targets(tables)[table.schema.table_id], converted=True)


def _build_result(
    table: VersionedTable, source: TableHash, full: TableHash, target: TableHash, *, converted: bool = False
) -> ComparedTable:
    return ComparedTable(
        table=table.name, target_table=table.there.name, source=source, full=full, target=target, converted=converted
    )
