"""`venus migrate` into a lake. The plan is kept in load.json, so that an interrupted load resumes.

Tables of the broker's full data become states, one file for each split. A file is renamed when it is complete, so a
resumed load reads only the missing splits. If a value does not fit its column's type, the load reads the whole table
again with that column as text (VENUS 3.3).

The manifest is written last, with the snapshot's cut as its offset. Increments follow from that offset with no gap and
no overlap. A lake that can no longer follow the queue is loaded again, into files beside the states that readers use.
The new manifest replaces all states at once, and the old history is kept beside the new one.
"""

from __future__ import annotations

import base64
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from xxhash import xxh3_64_hexdigest

from venus.adapters.targets.columns import UNKNOWN_SPLITS, dropped_columns, mask_splits, masks_keys
from venus.adapters.targets.contract import LoadReport
from venus.adapters.targets.parquet.files import (
    LakeFileWriter,
    folder_name,
    publish,
    refuse_own_names,
    remove_hidden,
    replace_text,
    state_schema,
)
from venus.adapters.targets.parquet.manifest import LakeManifest, LakeState, LakeTable, ParquetFolder, shape_of
from venus.codec import schema as schemas_codec
from venus.codec.arrow_rows import ArrowShape, ValueMisfit
from venus.codec.masked_rows import Maskers, project_full_rows
from venus.codec.stored_rows import RowTotals
from venus.errors import ConfigError, Diverged, OffsetTrimmed, SnapshotExpired, TargetError, Unavailable, VenusError
from venus.masking.projection import ProjectedSchema, columns_of
from venus.model import TableSchema
from venus.network.row_filters import find_differing
from venus.rpc import reports
from venus.rpc.snapshots import SnapshotClient
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2

logger = logging.getLogger(__name__)

SPLITS_PER_WORKER = 2
#: How many times a snapshot may expire during a load.
PLANS_MAX = 3
CREDIT_BYTES = 1 << 16

#: Called with the rows loaded so far.
RowProgress = Callable[[int], None]
#: Called with the rows loaded so far, and the approximate total.
Report = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitJob:
    """Job of a load: one key range of the full data, which becomes one file."""

    broker: str
    snapshot_id: str
    split: broker_pb2.Split
    path: Path
    shape: ArrowShape
    versions: dict[int, TableSchema]
    maskers: Maskers


def load_split(job: SplitJob) -> int:
    """Write a key range from the broker to its file unless that exists; return the row count. Raises ValueMisfit."""
    if job.path.exists():
        return int(pq.read_metadata(job.path).num_rows)
    schema = state_schema(job.shape)
    writer = LakeFileWriter(job.path, schema)
    try:
        with SnapshotClient(job.broker) as snapshots:
            for chunk in snapshots.read_split(job.snapshot_id, job.split):
                for section in chunk.sections:
                    version = job.versions[section.schema_version]
                    rows = project_full_rows(section, None, version, job.maskers)
                    values = job.shape.arrays(rows.stored.record_ids, rows.stored.rows, version)
                    numbers = pa.array(rows.stored.sequences.astype(np.int64))
                    writer.add(pa.RecordBatch.from_arrays([*values, numbers], schema=schema))
        writer.close()
    except BaseException:
        writer.discard()
        raise
    publish([job.path])
    return writer.rows


def state_folder_prefix(snapshot: broker_pb2.Snapshot) -> str:
    """Return the beginning of the names of all folders with states that were read from this snapshot."""
    return f"{snapshot.offset:020d}-{snapshot.snapshot_id[-8:]}"


class StateLoad:
    """Reader of a snapshot's tables into files. It adds columns with unfit values to the caller's `text_columns`."""

    def __init__(
        self,
        target: ParquetFolder,
        snapshot: broker_pb2.Snapshot,
        text_columns: dict[int, list[str]],
        received: Iterable[TableSchema] = (),
    ) -> None:
        self._target = target
        self._snapshot = snapshot
        self._text_columns = text_columns
        self._versions: dict[int, dict[int, TableSchema]] = {}
        every, kept = [schemas_codec.from_wire(wire) for wire in snapshot.schemas], list(received)
        for described in every:
            schema = target.columns.project_received(kept, described, every)
            self._versions.setdefault(schema.table_id, {})[schema.version] = schema
        #: Every table version, including the heartbeat's.
        self.schemas = {(s.table_id, s.version): s for known in self._versions.values() for s in known.values()}

    def tables(self) -> dict[int, LakeTable]:
        """Return the tables for a manifest; the files of their states are not written yet."""
        found = {}
        for table_id, versions in self._versions.items():
            newest = versions[max(versions)]
            if newest.is_heartbeat:
                continue
            refuse_own_names(newest)
            table = LakeTable(
                table_id=table_id,
                name=newest.qualified_name,
                folder=folder_name(newest.namespace, newest.name),
                schema_version=newest.version,
                text_columns=sorted(self._text_columns.get(table_id, [])),
            )
            self._set_base(table, newest)
            found[table_id] = table
        return found

    def _set_base(self, table: LakeTable, newest: TableSchema) -> None:
        """Set the folder of the state to be read; its name differs for other types and other rules for columns."""
        name = state_folder_prefix(self._snapshot)
        if table.text_columns:  # a resumed load must not mistake a state of other types for this one
            name += "-" + "-".join(str(c.number) for c in newest.columns if c.name in table.text_columns)
        if isinstance(newest, ProjectedSchema):  # nor a state with other rules for columns
            name += f"-{xxh3_64_hexdigest(newest.rules.to_text().encode())}"
        table.base = LakeState(folder=name, offset=self._snapshot.offset, shape=table.shape_number(newest.version))

    def run(self, table: LakeTable, progress: RowProgress) -> None:
        """Read one table into its files, again after each value that does not fit; record the result in `table`."""
        newest = self._versions[table.table_id][table.schema_version]
        while True:
            try:
                table.base.rows = self._read_splits(table, newest, progress)
            except ValueMisfit as misfit:
                logger.warning("%s; read again as text", misfit)
                shutil.rmtree(self._target.layout.version(table.folder, table.base.folder))
                table.text_columns = sorted({*table.text_columns, misfit.column})
                table.note = f"as text, for a value that no type holds: {', '.join(table.text_columns)}"
                self._text_columns[table.table_id] = table.text_columns
                self._set_base(table, newest)
            else:
                return

    def _read_splits(self, table: LakeTable, newest: TableSchema, progress: RowProgress) -> int:
        """Read all key ranges of a table in parallel, a file for each; return the number of rows."""
        shape = shape_of(newest, table.text_columns)
        folder = self._target.layout.version(table.folder, table.base.folder)
        folder.mkdir(parents=True, exist_ok=True)
        splits = [s for s in self._snapshot.splits if s.table_id == table.table_id]
        if not splits:
            LakeFileWriter(folder / "part-00000.parquet", state_schema(shape)).close()
            publish([folder / "part-00000.parquet"])
        with ThreadPoolExecutor(self._target.settings.apply.load_workers) as pool:
            jobs = [
                pool.submit(
                    load_split,
                    SplitJob(
                        broker=self._target.broker,
                        snapshot_id=self._snapshot.snapshot_id,
                        split=split,
                        shape=shape,
                        path=folder / f"part-{number:05d}.parquet",
                        versions=self._versions[table.table_id],
                        maskers=self._target.columns.maskers,
                    ),
                )
                for number, split in enumerate(splits)
            ]
            return _wait_for_rows(jobs, progress)


def _wait_for_rows(jobs: list[Future[int]], progress: RowProgress) -> int:
    """Wait for all jobs; return the number of their rows. The first failure cancels the jobs that have not begun."""
    left = set(jobs)
    while left:
        done, left = wait(left, timeout=0.5, return_when=FIRST_EXCEPTION)
        failed = [error for job in done if (error := job.exception()) is not None]
        if failed:
            for job in left:
                job.cancel()
            wait(left)
            raise failed[0]
        progress(sum(job.result() for job in jobs if job.done()))
    return sum(job.result() for job in jobs)


def load_lake(target: ParquetFolder, report: Report) -> LoadReport:
    """Load all tables unless the lake can follow; resume an interrupted load."""
    try:
        return _load_locked(target, report)
    except OSError as error:
        raise TargetError(f"target {target.name}: {error}", hint="check the disk, then try again") from error


def _load_locked(target: ParquetFolder, report: Report) -> LoadReport:
    """Load the lake under its lock, unless it can continue with increments."""
    began = time.monotonic()
    with target.hold_lock(), SnapshotClient(target.broker) as snapshots:
        manifest = target.recover()
        if manifest is not None:
            target.columns.refuse_changed(manifest.newest_versions(), dropped_columns(manifest.schemas.values()))
        if manifest is not None and can_follow(target, manifest):
            return LoadReport(target=target.name, offset=manifest.offset, rows={}, already=True)
        return _load_until_done(target, snapshots, report, began)


def _load_until_done(target: ParquetFolder, snapshots: SnapshotClient, report: Report, began: float) -> LoadReport:
    """Load the lake; begin again with another snapshot if the snapshot expires."""
    for _ in range(PLANS_MAX):
        try:
            return _load_once(target, snapshots, report, began)
        except SnapshotExpired as expired:
            logger.warning("target %s: %s; loading again from the start", target.name, expired)
            target.layout.load.unlink(missing_ok=True)
    raise SnapshotExpired("the snapshot kept expiring", hint="raise broker.snapshot_lease_s")


def start_over(target: ParquetFolder, manifest: LakeManifest, error: Diverged) -> bool:
    """Load a lake again because its offset is no longer in the queue.

    Return False if an operator must request the load. The process that applies increments calls this function while it
    holds the lake's lock. Rows that the upstream has only stopped selecting must not disappear from the lake without an
    operator's request.
    """
    with SnapshotClient(target.broker) as snapshots:
        is_asked = set(manifest.tables) <= set(target.requested_resyncs())
        if not is_asked and not _is_only_trimmed(target, snapshots, manifest, error):
            return False
        logger.warning("target %s: %s; loading it again, readers keep the old states", target.name, error)
        for table_id in manifest.tables:
            target.request_resync(table_id)  # status shows the load, and another process can resume it
        _load_until_done(target, snapshots, lambda _rows, _estimate: None, time.monotonic())
    for table_id in target.requested_resyncs():
        target.clear_resync_request(table_id)
    return True


def _is_only_trimmed(target: ParquetFolder, snapshots: SnapshotClient, manifest: LakeManifest, error: Diverged) -> bool:
    """Return whether the queue lacks increments that this lake needs, but the broker still selects the same rows."""
    if not isinstance(error, OffsetTrimmed):
        return False
    snapshot = snapshots.open(target.business, holder=f"load of {target.group}")
    there = reports.rows_identity(snapshot)
    snapshots.close(snapshot.snapshot_id)
    return manifest.rows is None or there is None or not find_differing(manifest.rows, there)


def can_follow(target: ParquetFolder, manifest: LakeManifest) -> bool:
    """Return whether the broker still has the increments after the offset of a lake."""
    group = f"{target.group}/check"
    with Subscriber(target.broker, target.business, group, credit_bytes=CREDIT_BYTES, transient=True) as subscriber:
        try:
            subscriber.open(manifest.offset, manifest.epoch, rows=manifest.rows)
        except Diverged as error:
            logger.warning("target %s is loaded again: %s", target.name, error)
            return False
    return True


def _load_once(target: ParquetFolder, snapshots: SnapshotClient, report: Report, began: float) -> LoadReport:
    """Load all tables from one snapshot, and commit them."""
    snapshot, text_columns = _read_plan(target, snapshots) or _new_plan(target, snapshots)
    load = StateLoad(target, snapshot, text_columns)
    if misfit := next((columns_of(s).misfit for s in load.schemas.values() if columns_of(s).misfit), ""):
        raise ConfigError(misfit)
    tables = load.tables()
    estimate, before = sum(s.rows_estimate for s in snapshot.splits), 0
    for table in tables.values():
        load.run(table, lambda rows, before=before: report(before + rows, estimate))  # type: ignore[misc]
        before += table.base.rows
        _save_plan(target, snapshot, text_columns)
        snapshots.renew(snapshot.snapshot_id)
    loaded = {table_id: RowTotals(table.base.rows) for table_id, table in tables.items()}
    snapshots.confirm(snapshot.snapshot_id, loaded, {table_id: table.name for table_id, table in tables.items()})
    register_group(target, snapshot)
    _commit_load(target, snapshot, load, tables, text_columns)
    snapshots.close(snapshot.snapshot_id)
    return LoadReport(
        target=target.name,
        offset=snapshot.offset,
        rows={t.name: t.base.rows for t in tables.values()},
        seconds=time.monotonic() - began,
        warnings=tuple(f"{t.name}: {t.note}" for t in tables.values() if t.note),
    )


def _commit_load(
    target: ParquetFolder,
    snapshot: broker_pb2.Snapshot,
    load: StateLoad,
    tables: dict[int, LakeTable],
    text_columns: dict[int, list[str]],
) -> None:
    """Commit the manifest with the loaded states; remove older states, except the one that readers may have open."""
    before = target.read_manifest()
    for table_id, table in tables.items():
        if before is not None and table_id in before.tables:
            table.previous = before.tables[table_id].base.folder  # readers may have it open
    history = f"history-until-{before.offset}-{int(time.time())}" if before is not None else ""
    _save_plan(target, snapshot, text_columns, history=history)
    target.commit(
        LakeManifest(
            group=target.group,
            offset=snapshot.offset,
            epoch=snapshot.epoch,
            sequence=snapshot.sequence,
            counted_from=snapshot.offset,
            applied_at_us=time.time_ns() // 1000,
            tables=tables,
            schemas=load.schemas,
            rows=reports.rows_identity(snapshot),
        ),
        [],
    )
    target.finish_load()


def register_group(target: ParquetFolder, snapshot: broker_pb2.Snapshot) -> None:
    """Register the consumer group before the snapshot is closed, so that the broker keeps the increments after it."""
    with Subscriber(target.broker, target.business, target.group, credit_bytes=CREDIT_BYTES) as subscriber:
        subscriber.open(snapshot.offset, 0, rows=reports.rows_identity(snapshot))
        subscriber.acknowledge(snapshot.offset)


# -- the plan --------------------------------------------------------------------------------------------------------

LakeLoadPlan = tuple[broker_pb2.Snapshot, dict[int, list[str]]]


def _read_plan(target: ParquetFolder, snapshots: SnapshotClient) -> LakeLoadPlan | None:
    """Return the plan of an interrupted load if its snapshot still exists."""
    try:
        tree = json.loads(target.layout.load.read_text(encoding="utf-8"))
        snapshot = broker_pb2.Snapshot.FromString(base64.b64decode(tree["snapshot"]))
        snapshots.renew(snapshot.snapshot_id)
    except FileNotFoundError:
        return None
    except Unavailable:
        raise
    except (VenusError, ValueError, KeyError) as error:
        logger.warning("target %s: cannot resume the interrupted load: %s", target.name, error)
        return None
    if masks_keys(StateLoad(target, snapshot, {}).schemas.values()):
        logger.info("target %s: its load begins again: %s", target.name, UNKNOWN_SPLITS)
        return None
    remove_hidden(target.layout.root / "versions")
    return snapshot, {int(table_id): names for table_id, names in tree["text_columns"].items()}


def _new_plan(target: ParquetFolder, snapshots: SnapshotClient) -> LakeLoadPlan:
    """Open a snapshot for a load, and save the plan."""
    splits = target.settings.apply.load_workers * SPLITS_PER_WORKER
    snapshot = snapshots.open(target.business, splits=splits, holder=f"load of {target.group}")
    versions = target.layout.root / "versions"
    if versions.exists() and target.read_manifest() is None:
        shutil.rmtree(versions)
    _save_plan(target, snapshot, {})
    return snapshot, {}


def _save_plan(
    target: ParquetFolder, snapshot: broker_pb2.Snapshot, text_columns: dict[int, list[str]], *, history: str = ""
) -> None:
    """Save the plan in load.json. `history`: the name that the old history will get; set just before the commit."""
    schemas = StateLoad(target, snapshot, text_columns).schemas.values()
    wire = base64.b64encode(mask_splits(snapshot, schemas).SerializeToString()).decode()
    states = state_folder_prefix(snapshot)
    tree = {"snapshot": wire, "text_columns": text_columns, "states": states, "history": history}
    replace_text(target.layout.load, json.dumps(tree))
