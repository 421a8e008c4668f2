"""Writers of a lake's Parquet files, which are hidden until committed and durable before the manifest names them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from venus.adapters.targets.parquet.lake_paths import hidden_path, sync
from venus.codec.arrow_rows import CHANGE_FIELDS, SEQUENCE, ArrowShape, gone_before
from venus.codec.changes import TableChanges
from venus.errors import Refused
from venus.model import ChangeKind, TableSchema

STATE_FIELDS = (pa.field(SEQUENCE, pa.int64()),)

#: Rows and bytes that wait in memory for a row group, and the rows of the largest file of a state.
GROUP_ROWS = 65_536
GROUP_BYTES = 32 << 20
FILE_ROWS = 1_000_000


def change_schema(shape: ArrowShape) -> pa.Schema:
    """Return the columns of a change: VENUS's own, then the table's."""
    return pa.schema([*CHANGE_FIELDS, *shape.fields])


def state_schema(shape: ArrowShape) -> pa.Schema:
    """Return the columns of a row of a state."""
    return pa.schema([*shape.fields, *STATE_FIELDS])


def refuse_own_names(schema: TableSchema) -> None:
    """Refuse a table with a column that has the name of one of VENUS's own columns."""
    own = {f.name for f in CHANGE_FIELDS} & {c.name for c in schema.columns}
    if own:
        raise Refused(
            f"{schema.qualified}: column {min(own)} has the name of a column of VENUS", hint="exclude the table"
        )


def changes_batch(
    section: TableChanges, version: TableSchema, shape: ArrowShape, *, offset: int, sequence: int, committed_at_us: int
) -> pa.RecordBatch | None:
    """Return a section as change rows; None for the start of a sweep, which changes nothing. Raises ValueMisfit."""
    count = section.count
    moments = pa.repeat(pa.scalar(committed_at_us, CHANGE_FIELDS[4].type), count)
    if section.kind is not ChangeKind.CHANGES:
        before = gone_before(section, sequence)
        if before is None:
            return None
        own = [pa.array([offset]), pa.array([sequence]), pa.array([True]), pa.array([before]), moments]
        return pa.RecordBatch.from_arrays(own + [pa.nulls(1, t) for t in shape.types], schema=change_schema(shape))
    deleted = np.asarray(section.is_deleted, dtype=np.bool_)
    own = [
        pa.array(np.arange(offset, offset + count, dtype=np.int64)),
        pa.array(np.arange(sequence, sequence + count, dtype=np.int64)),
        pa.array(deleted),
        pa.nulls(count, pa.int64()),
        moments,
    ]
    values = shape.arrays(section.record_ids, section.rows, version)
    return pa.RecordBatch.from_arrays(own + values, schema=change_schema(shape))


class LakeFileWriter:
    """Writer of one file; `close` leaves it complete, durable and still hidden."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.rows = 0
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._writer = pq.ParquetWriter(hidden_path(path), schema, compression="zstd")

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows, which are written in groups."""
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        self.rows += batch.num_rows
        if self._waiting_rows >= GROUP_ROWS or self._waiting_bytes >= GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the waiting rows."""
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting), row_group_size=GROUP_ROWS)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def close(self) -> None:
        """Finish the file."""
        self.flush()
        self._writer.close()
        sync(hidden_path(self.path))

    def discard(self) -> None:
        """Discard the file."""
        self._writer.close()
        hidden_path(self.path).unlink(missing_ok=True)
