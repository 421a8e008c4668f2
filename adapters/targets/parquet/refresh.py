"""Refresh of a lake's table: the previous state and the changes since then become the files of a new state.

A file whose rows all stay unchanged is linked, not rewritten. Readers of the old state are not disturbed: the link
`current` moves atomically, and the previous state stays until the next refresh. Rows that cannot be converted (another
key, a narrower type) are read again from the broker's full data.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from venus.adapters.targets.parquet.files import FILE_ROWS, LakeFileWriter, publish, state_schema, sync
from venus.adapters.targets.parquet.folder import ParquetFolder
from venus.adapters.targets.parquet.load import SPLITS_PER_WORKER, StateLoad
from venus.adapters.targets.parquet.manifest import LakeManifest, LakeState, LakeTable
from venus.adapters.targets.parquet.net_changes import (
    LakeNetChanges,
    can_convert,
    change_rows,
    deciding_columns,
    live_rows,
    read_net_changes,
    state_rows,
    untouched_rows,
)
from venus.codec.arrow_rows import ArrowShape
from venus.errors import Unavailable
from venus.rpc import reports
from venus.rpc.snapshots import SnapshotClient
from venus.wire import broker_pb2

logger = logging.getLogger(__name__)

#: Files with fewer rows than this are merged with others.
SMALL_ROWS = FILE_ROWS // 4
#: The keys of the changes behind a state are merged in memory. With more rows or bytes than these, the state is read
#: again from the broker.
NET_ROWS_MAX = 4_000_000
NET_BYTES_MAX = 256 << 20
#: The broker shares a snapshot for half a minute.
FRESH_WAIT_S = 60.0


def refresh(target: ParquetFolder, manifest: LakeManifest, table: LakeTable) -> None:
    """Bring one table's state up to the lake's offset and commit it."""
    number = table.shape_number(table.schema_version)
    shape = manifest.shape(table, number)
    if any(not can_convert(manifest.shape(table, used), shape) for used in _used_shapes(table)):
        reload_state(
            target, manifest, table.table_id, f"{table.name} has a schema to which its rows cannot be converted"
        )
        return
    if table.waiting > NET_ROWS_MAX or _key_bytes(target, manifest, table) > NET_BYTES_MAX:
        reload_state(target, manifest, table.table_id, f"{table.name} has more changes than fit into memory")
        return
    folder = f"{manifest.offset:020d}"
    if folder == table.base.folder:
        folder += "-again"  # other columns at the same offset
    into = target.layout.version(table.folder, folder)
    into.mkdir(parents=True, exist_ok=True)
    root = target.layout.root
    rows = _StateWriter(manifest, table, shape, target.layout.version(table.folder, table.base.folder), into).write(
        read_net_changes(manifest, table, shape, root), change_rows(manifest, table, shape, root)
    )
    table.previous = table.base.folder
    table.base = LakeState(folder=folder, offset=manifest.offset, rows=rows, shape=number)
    table.changes = []
    target.commit(manifest, [])


def _key_bytes(target: ParquetFolder, manifest: LakeManifest, table: LakeTable) -> int:
    """Return the approximate size in memory of the keys of the changes behind a state."""
    nbytes = 0
    for file in table.changes:
        telling = set(deciding_columns(manifest.shape(table, file.shape)))
        metadata = pq.read_metadata(target.layout.root / file.path)
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            columns = map(group.column, range(group.num_columns))
            nbytes += sum(c.total_uncompressed_size for c in columns if c.path_in_schema in telling)
    return nbytes


def _used_shapes(table: LakeTable) -> set[int]:
    """Return the shapes of the rows that the new state needs."""
    of_state = {table.base.shape} if table.base.folder else set()
    return of_state | {file.shape for file in table.changes}


class _StateWriter:
    """The files of one new state."""

    def __init__(self, manifest: LakeManifest, table: LakeTable, shape: ArrowShape, before: Path, into: Path) -> None:
        self._manifest, self._table, self._shape = manifest, table, shape
        self._before, self._into = before, into
        self._written: list[Path] = []
        self._writer: LakeFileWriter | None = None
        self._rows = 0

    def write(self, found: LakeNetChanges, changes: Iterable[pa.Table]) -> int:
        """Write the state; return its number of rows."""
        if self._table.base.folder:
            for path in sorted(self._before.glob("*.parquet")):
                if not self._link_unchanged(path, found):
                    self._add(untouched_rows(rows, found) for rows in self._read_rows(path))
        self._add(live_rows(changes, found, self._shape))
        if self._writer is None and not any(self._into.glob("*.parquet")):
            self._writer = self._open_next()  # an empty table has one empty file
        self._close()
        publish(self._written)
        sync(self._into)
        return self._rows

    def _read_rows(self, path: Path) -> Iterable[pa.Table]:
        return state_rows(self._manifest, self._table, self._shape, path)

    def _link_unchanged(self, path: Path, found: LakeNetChanges) -> bool:
        """Link a file into the new state if none of its rows changes; return whether it was linked."""
        base = self._manifest.shape(self._table, self._table.base.shape)
        rows = int(pq.read_metadata(path).num_rows)
        if rows < SMALL_ROWS or state_schema(base) != state_schema(self._shape):
            return False
        if any(untouched_rows(part, found).num_rows < part.num_rows for part in self._read_rows(path)):
            return False
        new = self._into / f"kept-{path.name.removeprefix('kept-')}"
        new.unlink(missing_ok=True)
        os.link(path, new)
        self._rows += rows
        return True

    def _add(self, parts: Iterable[pa.Table]) -> None:
        for part in parts:
            for batch in part.to_batches():
                if self._writer is None or self._writer.rows >= FILE_ROWS:
                    self._close()
                    self._writer = self._open_next()
                self._writer.add(batch)

    def _open_next(self) -> LakeFileWriter:
        path = self._into / f"part-{len(self._written):05d}-{self._manifest.offset}.parquet"
        self._written.append(path)
        return LakeFileWriter(path, state_schema(self._shape))

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._rows += self._writer.rows
        self._writer = None


def reload_state(target: ParquetFolder, manifest: LakeManifest, table_id: int, why: str, text_column: str = "") -> None:
    """Read a table from the broker's full data, which is at least as new as the state, and commit it.

    Changes behind the snapshot's cut still wait for a refresh. Changes below it stay in the history and do not count
    for the new state.
    """
    table = manifest.tables[table_id]
    texts = sorted({*table.text_columns, text_column} - {""})
    logger.info("target %s: %s: reading its state again from the broker", target.name, why)
    with SnapshotClient(target.broker) as snapshots:
        splits = target.settings.apply.load_workers * SPLITS_PER_WORKER
        snapshot = _open_recent_snapshot(snapshots, target, table, splits)
        reports.check_table(snapshot, manifest.rows, table_id)
        load = StateLoad(target, snapshot, {table_id: texts})
        fresh = load.tables()[table_id]
        load.run(fresh, lambda _: None)
        snapshots.close(snapshot.snapshot_id)
    manifest.schemas |= load.schemas
    table.previous = table.base.folder
    table.changes = [file for file in table.changes if file.end > snapshot.offset]
    table.schema_version, table.text_columns = fresh.schema_version, fresh.text_columns
    table.note = fresh.note or (f"as text, for a value that no type holds: {', '.join(texts)}" if texts else "")
    table.base = fresh.base
    table.base.shape = table.shape_number(fresh.schema_version)
    target.commit(manifest, [])


def _open_recent_snapshot(
    snapshots: SnapshotClient, target: ParquetFolder, table: LakeTable, splits: int
) -> broker_pb2.Snapshot:
    """Open a snapshot that is no older than the state: the broker may share one that is some seconds old."""
    until = time.monotonic() + FRESH_WAIT_S
    while True:
        snapshot = snapshots.open(
            target.business, table_ids=[table.table_id], splits=splits, holder=f"{table.name} of {target.group}"
        )
        if snapshot.offset >= table.base.offset:
            return snapshot
        snapshots.close(snapshot.snapshot_id)
        if time.monotonic() > until:
            raise Unavailable("the broker's full data is older than the lake")
        time.sleep(1.0)


def read_newest_rows(target: ParquetFolder, manifest: LakeManifest, table: LakeTable) -> pa.Table:
    """Return a table's rows as of the lake's offset: its state with the changes behind it applied."""
    shape = manifest.shape(table, table.shape_number(table.schema_version))
    found = read_net_changes(manifest, table, shape, target.layout.root)
    changes = change_rows(manifest, table, shape, target.layout.root)
    parts = [state_schema(shape).empty_table(), *live_rows(changes, found, shape)]
    if table.base.folder:
        folder = target.layout.version(table.folder, table.base.folder)
        for path in sorted(folder.glob("*.parquet")):
            parts += [untouched_rows(rows, found) for rows in state_rows(manifest, table, shape, path)]
    return pa.concat_tables(parts)
