"""Refresh of a lake's table: builds a new state from the previous state and the net changes since then.

Of several changes of a key only the last one counts. A TRUNCATE or the end of a resync removes every row with an older
Sequence. Keys and VENUS's own columns decide which changes count, so only these have to fit into memory. The rows
themselves are read a second time, piece by piece; a refresh uses only Arrow (architecture 2).

A file in which no row changes is linked into the new state, not rewritten. Readers of the old state are not disturbed:
the link `current` moves atomically, and the previous state stays until the next refresh. Rows that cannot be converted
(another key, a narrower type) are read again from the broker's full data.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from venus.adapters.targets.columns import dropped_columns
from venus.adapters.targets.parquet.files import FILE_ROWS, STATE_FIELDS, LakeFileWriter, publish, state_schema, sync
from venus.adapters.targets.parquet.load import SPLITS_PER_WORKER, StateLoad
from venus.adapters.targets.parquet.manifest import LakeManifest, LakeState, LakeTable, ParquetFolder
from venus.codec.arrow_rows import CHANGE_FIELDS, DELETED, GONE_BEFORE, OFFSET, SEQUENCE, ArrowShape, default_values
from venus.codec.packed import Bools, Ints
from venus.errors import Unavailable
from venus.masking.projection import columns_of, project_schema, source_of
from venus.masking.rules import TableColumns
from venus.model import Kind, TableSchema
from venus.rpc import reports
from venus.rpc.snapshots import SnapshotClient
from venus.wire import broker_pb2

_INDEX = "_index"
#: How much of a file is in memory at once: rows, or bytes if rows are large.
PIECE_ROWS, PIECE_BYTES = 262_144, 64 << 20
#: The columns that determine, together with the keys, which changes count.
_DECIDING = tuple(f for f in CHANGE_FIELDS if f.name in (OFFSET, SEQUENCE, DELETED, GONE_BEFORE))
#: Kinds between which a cast keeps every value, if Arrow supports the cast.
_NUMBERS = frozenset({Kind.INT, Kind.DECIMAL})


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeNetChanges:
    """The net effect of the waiting changes on the state of a table."""

    keys: pa.Table  # the key of every changed row
    live: Bools  # marks the changes that are current rows, in the order of their files
    floor: int  # rows of the state with a lower Sequence are deleted


def can_convert(old: ArrowShape, new: ArrowShape) -> bool:
    """Return whether rows of the old shape have exact values in the new one, so that they need not be read again."""
    if [_column_number(old.schema, k) for k in old.schema.key] != [
        _column_number(new.schema, k) for k in new.schema.key
    ]:
        return False
    before = {c.number: (c, t) for c, t in zip(old.columns, old.types, strict=True)}
    for column, wanted in zip(new.columns, new.types, strict=True):
        if column.number not in before:
            continue  # older rows get the column's default
        was, had = before[column.number]
        if had != wanted and not ({was.type.kind, column.type.kind} <= _NUMBERS and _can_widen(had, wanted)):
            return False
    return True


def _can_widen(had: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether each value of one type has an exact value in the wanted type."""
    if pa.types.is_integer(had) and pa.types.is_integer(wanted):
        return bool(had.bit_width <= wanted.bit_width)
    if pa.types.is_decimal(wanted):
        whole = {16: 5, 32: 10, 64: 19}[had.bit_width] if pa.types.is_integer(had) else had.precision - had.scale
        scale = 0 if pa.types.is_integer(had) else had.scale
        return bool(wanted.precision - wanted.scale >= whole and wanted.scale >= scale)
    return False


def _column_number(schema: TableSchema, name: str) -> int:
    """Return the number of a column, which stays the same if it is renamed."""
    return next(c.number for c in schema.columns if c.name == name)


def convert_rows(rows: pa.Table, old: ArrowShape, new: ArrowShape, own: Sequence[pa.Field]) -> pa.Table:
    """Convert rows from the old shape to the new one; append VENUS's `own` columns."""
    names = {c.number: c.name for c in old.columns}
    columns = [
        rows.column(names[c.number]).cast(t) if c.number in names else default_values(c, t, rows.num_rows)
        for c, t in zip(new.columns, new.types, strict=True)
    ]
    values = pa.Table.from_arrays(columns, schema=pa.schema(new.fields))
    for field in own:
        values = values.append_column(field, rows.column(field.name))
    return values


def key_shape(shape: ArrowShape) -> ArrowShape:
    """Return the shape that has only the key columns."""
    chosen = [(c, t) for c, t in zip(shape.columns, shape.types, strict=True) if c.name in shape.schema.key]
    return replace(shape, columns=tuple(c for c, _ in chosen), types=tuple(t for _, t in chosen))


def deciding_columns(shape: ArrowShape) -> list[str]:
    """Return the columns of a change that decide whether it counts: the key, and some of VENUS's own."""
    return [*shape.schema.key, *(field.name for field in _DECIDING)]


def read_net_changes(manifest: LakeManifest, table: LakeTable, shape: ArrowShape, root: Path) -> LakeNetChanges:
    """Read the changes since the newest state, and return their net effect."""
    keys = key_shape(shape)
    parts = [pa.schema([*keys.fields, *_DECIDING]).empty_table()]
    for file in table.changes:
        was = manifest.shape(table, file.shape)
        rows = pq.read_table(root / file.path, columns=deciding_columns(was), partitioning=None)
        parts.append(convert_rows(rows, was, keys, _DECIDING))
    return compute_net_changes(pa.concat_tables(parts), keys.schema.key, base_offset=table.base.offset)


def compute_net_changes(changes: pa.Table, key: Sequence[str], *, base_offset: int) -> LakeNetChanges:
    """Return the net effect of changes; changes below `base_offset` are already in the state."""
    counts = pc.greater_equal(changes[OFFSET], base_offset)
    marks = pc.max(changes[GONE_BEFORE].filter(counts)).as_py()
    floor = -1 if marks is None else int(marks)
    is_row = pc.and_(counts, pc.is_null(changes[GONE_BEFORE]))
    at = np.flatnonzero(is_row.to_numpy())
    keys = changes.select(list(key)).filter(is_row)
    last = _last_positions(keys)
    live = np.zeros(changes.num_rows, dtype=np.bool_)
    live[at[last]] = True
    live &= pc.and_(pc.invert(changes[DELETED]), pc.greater_equal(changes[SEQUENCE], floor)).to_numpy()
    return LakeNetChanges(keys=keys.take(last), live=live, floor=floor)


def _last_positions(keys: pa.Table) -> Ints:
    """Return the position of each key's last row. Sorting needs only a third of the memory that grouping needs."""
    order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names])  # stable
    ends = np.ones(keys.num_rows, dtype=np.bool_)
    if keys.num_rows > 1:
        differs = [_differs_from_next(column.take(order)) for column in keys.columns]
        ends[:-1] = np.logical_or.reduce(differs)
    found: Ints = order.to_numpy()[ends].astype(np.int64)
    return found


def _differs_from_next(values: pa.ChunkedArray) -> Bools:
    """Return for each value but the last whether the next value differs from it."""
    one = values.combine_chunks()
    differs = pc.not_equal(one[1:], one[:-1])
    if pa.types.is_floating(one.type):  # all NaN are one key, although IEEE 754 compares them as different
        differs = pc.and_not(differs, pc.and_(pc.is_nan(one[1:]), pc.is_nan(one[:-1])))
    found: Bools = differs.to_numpy(zero_copy_only=False)
    return found


def live_rows(changes: Iterable[pa.Table], found: LakeNetChanges, shape: ArrowShape) -> Iterator[pa.Table]:
    """Yield the changes that are rows of the new state; `changes` must have the order of the files."""
    schema, at = state_schema(shape), 0
    for part in changes:
        chosen = found.live[at : at + part.num_rows]
        at += part.num_rows
        if chosen.any():
            yield part.filter(pa.array(chosen)).select(schema.names).cast(schema)


def change_rows(manifest: LakeManifest, table: LakeTable, shape: ArrowShape, root: Path) -> Iterator[pa.Table]:
    """Yield the changes since the newest state, converted to `shape`, piece by piece."""
    for file in table.changes:
        was = manifest.shape(table, file.shape)
        for rows in read_pieces(root / file.path):
            yield convert_rows(rows, was, shape, CHANGE_FIELDS)


def untouched_rows(rows: pa.Table, found: LakeNetChanges) -> pa.Table:
    """Return the rows of a state that no change affects."""
    if found.floor >= 0:
        rows = rows.filter(pc.greater_equal(rows[SEQUENCE], found.floor))
    if not found.keys.num_rows or not rows.num_rows:
        return rows
    keys = found.keys.column_names
    numbered = rows.select(keys).append_column(_INDEX, pa.array(np.arange(rows.num_rows)))
    kept = numbered.join(found.keys, keys=keys, join_type="left anti")[_INDEX]
    return rows if len(kept) == rows.num_rows else rows.take(kept)


def state_rows(manifest: LakeManifest, table: LakeTable, shape: ArrowShape, path: Path) -> Iterator[pa.Table]:
    """Yield the rows of a file of the newest state in `shape`, piece by piece."""
    base = manifest.shape(table, table.base.shape)
    for rows in read_pieces(path):
        yield convert_rows(rows, base, shape, STATE_FIELDS)


def read_pieces(path: Path) -> Iterator[pa.Table]:
    """Yield the rows of a file, as many row groups at once as fit into a piece."""
    with pq.ParquetFile(path) as file:
        groups: list[int] = []
        rows = nbytes = 0
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            if groups and (rows + group.num_rows > PIECE_ROWS or nbytes + group.total_byte_size > PIECE_BYTES):
                yield file.read_row_groups(groups)
                groups, rows, nbytes = [], 0, 0
            groups.append(number)
            rows, nbytes = rows + group.num_rows, nbytes + group.total_byte_size
        if groups:
            yield file.read_row_groups(groups)


logger = logging.getLogger(__name__)

#: Files with fewer rows than this are merged with others.
SMALL_ROWS = FILE_ROWS // 4
#: The keys of the changes since a state are merged in memory. If they have more rows or bytes than this, the state is
#: read again from the broker.
NET_ROWS_MAX = 4_000_000
NET_BYTES_MAX = 256 << 20
#: The broker shares a snapshot for half a minute.
FRESH_WAIT_S = 60.0


def refresh(target: ParquetFolder, manifest: LakeManifest, table: LakeTable) -> None:
    """Rebuild the files of one table's state from the waiting changes, up to the lake's offset, and commit them."""
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
        folder += "-again"  # the same offset, but other columns
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
    """Return the approximate size in memory of the keys of a table's waiting changes."""
    nbytes = 0
    for file in table.changes:
        telling = set(deciding_columns(manifest.shape(table, file.shape)))
        metadata = pq.read_metadata(target.layout.root / file.path)
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            columns = map(group.column, range(group.num_columns))
            nbytes += sum(c.total_uncompressed_size for c in columns if c.path_in_schema in telling)
    return nbytes


def _used_shapes(table: LakeTable) -> set[int]:
    """Return the shapes of the rows from which the new state is built."""
    of_state = {table.base.shape} if table.base.folder else set()
    return of_state | {file.shape for file in table.changes}


class _StateWriter:
    """Writer of the Parquet files of a table's next state."""

    def __init__(self, manifest: LakeManifest, table: LakeTable, shape: ArrowShape, before: Path, into: Path) -> None:
        self._manifest, self._table, self._shape = manifest, table, shape
        self._before, self._into = before, into
        self._written: list[Path] = []
        self._writer: LakeFileWriter | None = None
        self._rows = 0

    def write(self, found: LakeNetChanges, changes: Iterable[pa.Table]) -> int:
        """Write the old state's rows that stay and the changed ones; return the number of all rows."""
        if self._table.base.folder:
            for path in sorted(self._before.glob("*.parquet")):
                if not self._link_unchanged(path, found):
                    self._add_rows(untouched_rows(rows, found) for rows in self._read_rows(path))
        self._add_rows(live_rows(changes, found, self._shape))
        if self._writer is None and not any(self._into.glob("*.parquet")):
            self._writer = self._open_next_file()  # an empty table has one empty file
        self._close_file()
        publish(self._written)
        sync(self._into)
        return self._rows

    def _read_rows(self, path: Path) -> Iterable[pa.Table]:
        """Yield the rows of an old file in the new shape."""
        return state_rows(self._manifest, self._table, self._shape, path)

    def _link_unchanged(self, path: Path, found: LakeNetChanges) -> bool:
        """Link an old file into the new state if all of its rows stay; return whether that was possible."""
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

    def _add_rows(self, parts: Iterable[pa.Table]) -> None:
        """Add rows to the open file; begin another file whenever it is full."""
        for part in parts:
            for batch in part.to_batches():
                if self._writer is None or self._writer.rows >= FILE_ROWS:
                    self._close_file()
                    self._writer = self._open_next_file()
                self._writer.add(batch)

    def _open_next_file(self) -> LakeFileWriter:
        path = self._into / f"part-{len(self._written):05d}-{self._manifest.offset}.parquet"
        self._written.append(path)
        return LakeFileWriter(path, state_schema(self._shape))

    def _close_file(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._rows += self._writer.rows
        self._writer = None


def release_fitting(target: ParquetFolder, manifest: LakeManifest) -> None:
    """Let halted tables follow again if the rules for columns fit them now, and request a resync of each."""
    newest = manifest.newest_versions()
    halted = [manifest.tables[s.table_id] for s in newest if columns_of(s).misfit]
    dropped = dropped_columns(manifest.schemas.values())
    wanted = target.columns.configure(newest, elsewhere=None, dropped=dropped) if halted else {}
    for table in halted:
        columns = wanted.get(table.table_id, TableColumns())
        for key, schema in manifest.schemas.items():
            if key[0] == table.table_id:
                manifest.schemas[key] = project_schema(source_of(schema), columns)
        table.note = target.columns.reason_to_halt(manifest.schema(table.table_id, table.schema_version))
        if not columns.misfit:
            table.rows_applied, table.rows_held = table.rows_applied + table.rows_held, 0
            target.request_resync(table.table_id)
    if halted:
        target.commit(manifest, [])


def reload_state(target: ParquetFolder, manifest: LakeManifest, table_id: int, why: str, text_column: str = "") -> None:
    """Replace a table's state by one that is read from the broker's full data, and commit it.

    Changes after the snapshot's cut still wait for a refresh. Changes before the cut stay in the history and do not
    count for the new state.
    """
    table = manifest.tables[table_id]
    texts = sorted({*table.text_columns, text_column} - {""})
    logger.info("target %s: %s: reading its state again from the broker", target.name, why)
    with SnapshotClient(target.broker) as snapshots:
        splits = target.settings.apply.load_workers * SPLITS_PER_WORKER
        snapshot = _open_recent_snapshot(snapshots, target, table, splits)
        reports.check_table(snapshot, manifest.rows, table_id)
        load = StateLoad(target, snapshot, {table_id: texts}, manifest.schemas.values())
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
    """Open a snapshot at least as new as the table's state: the broker may first return an older, shared one."""
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
