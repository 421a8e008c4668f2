"""The full interface into a lake: tables of the broker's full data become states, files side by side (VENUS 3.3).

One file for each split, renamed when it is complete: an interrupted load goes on with the splits it has not. A column
with a value that its type cannot hold is read again as text, the whole table.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from venus.adapters.targets.parquet.files import Writer, refuse_own_names, state_schema
from venus.adapters.targets.parquet.folder import LakeTarget
from venus.adapters.targets.parquet.layout import folder_name, publish
from venus.adapters.targets.parquet.manifest import Base, LakeTable, shape_of
from venus.codec import schema as schemas_codec
from venus.codec.arrowrows import Misfit, Shape
from venus.model import TableSchema
from venus.rpc.snapshots import Snapshots
from venus.wire import broker_pb2

logger = logging.getLogger(__name__)

SPLITS_PER_WORKER = 2
#: Rows so far.
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitJob:
    """One key range that becomes one file."""

    broker: str
    snapshot_id: str
    split: broker_pb2.Split
    path: Path
    shape: Shape
    versions: dict[int, TableSchema]


def read_split(job: SplitJob) -> int:
    """Write the file of a split unless it is there; return its rows. Raises Misfit."""
    if job.path.exists():
        return int(pq.read_metadata(job.path).num_rows)
    schema = state_schema(job.shape)
    writer = Writer(job.path, schema)
    try:
        with Snapshots(job.broker) as snapshots:
            for chunk in snapshots.read_split(job.snapshot_id, job.split):
                for rows in chunk.sections:
                    values = job.shape.arrays(
                        rows.stored.record_ids, rows.stored.rows, job.versions[rows.schema_version]
                    )
                    numbers = pa.array(rows.stored.sequences.astype(np.int64))
                    writer.add(pa.RecordBatch.from_arrays([*values, numbers], schema=schema))
        writer.close()
    except BaseException:
        writer.abandon()
        raise
    publish([job.path])
    return writer.rows


def state_name(snapshot: broker_pb2.Snapshot) -> str:
    """Return how the folders of the states begin that are read from a snapshot."""
    return f"{snapshot.offset:020d}-{snapshot.snapshot_id[-8:]}"


class StateLoad:
    """Reads tables of one snapshot. `text_columns` grows with every misfit; the caller keeps it."""

    def __init__(self, target: LakeTarget, snapshot: broker_pb2.Snapshot, text_columns: dict[int, list[str]]) -> None:
        self._target = target
        self._snapshot = snapshot
        self._text_columns = text_columns
        self._versions: dict[int, dict[int, TableSchema]] = {}
        for wire in snapshot.schemas:
            schema = schemas_codec.from_wire(wire)
            self._versions.setdefault(schema.table_id, {})[schema.version] = schema
        #: Every table version, also of the heartbeat.
        self.schemas = {(s.table_id, s.version): s for known in self._versions.values() for s in known.values()}

    def tables(self) -> dict[int, LakeTable]:
        """Return the tables as a manifest has them, with states that are not there yet."""
        found = {}
        for table_id, versions in self._versions.items():
            newest = versions[max(versions)]
            if newest.is_heartbeat:
                continue
            refuse_own_names(newest)
            table = LakeTable(
                table_id=table_id, name=newest.qualified, folder=folder_name(newest.namespace, newest.name),
                schema_version=newest.version, text_columns=sorted(self._text_columns.get(table_id, [])),
            )  # fmt: skip
            self._lay(table, newest)
            found[table_id] = table
        return found

    def _lay(self, table: LakeTable, newest: TableSchema) -> None:
        name = state_name(self._snapshot)
        if table.text_columns:  # a state of other types must not be taken for this one by whoever goes on
            name += "-" + "-".join(str(c.number) for c in newest.columns if c.name in table.text_columns)
        table.base = Base(folder=name, offset=self._snapshot.offset, shape=table.shape_number(newest.version))

    def run(self, table: LakeTable, progress: Progress) -> None:
        """Read one table into its state, as often as there are misfits; `table` says what came of it."""
        newest = self._versions[table.table_id][table.schema_version]
        while True:
            try:
                table.base.rows = self._read(table, newest, progress)
            except Misfit as misfit:
                logger.warning("%s; read again as text", misfit)
                shutil.rmtree(self._target.layout.version(table.folder, table.base.folder))
                table.text_columns = sorted({*table.text_columns, misfit.column})
                table.note = f"as text, for a value that no type holds: {', '.join(table.text_columns)}"
                self._text_columns[table.table_id] = table.text_columns
                self._lay(table, newest)
            else:
                return

    def _read(self, table: LakeTable, newest: TableSchema, progress: Progress) -> int:
        shape = shape_of(newest, table.text_columns)
        folder = self._target.layout.version(table.folder, table.base.folder)
        folder.mkdir(parents=True, exist_ok=True)
        splits = [s for s in self._snapshot.splits if s.table_id == table.table_id]
        if not splits:
            Writer(folder / "part-00000.parquet", state_schema(shape)).close()
            publish([folder / "part-00000.parquet"])
        with ThreadPoolExecutor(self._target.settings.apply.load_workers) as pool:
            jobs = [
                pool.submit(read_split, SplitJob(
                    broker=self._target.broker, snapshot_id=self._snapshot.snapshot_id, split=split, shape=shape,
                    path=folder / f"part-{number:05d}.parquet", versions=self._versions[table.table_id],
                ))
                for number, split in enumerate(splits)
            ]  # fmt: skip
            return _sum(jobs, progress)


def _sum(jobs: list[Future[int]], progress: Progress) -> int:
    """Wait for all; on the first failure those that have not begun never do."""
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
