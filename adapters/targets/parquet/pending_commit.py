"""The increments of one commit of a lake: whole cuts in files of changes, one file per table and shape.

The files grow as cuts arrive, so memory does not. They stay invisible until the manifest names them.
"""

from __future__ import annotations

import time

from venus.adapters.targets.parquet.files import (
    LakeFileWriter,
    change_schema,
    changes_batch,
    folder_name,
    refuse_own_names,
)
from venus.adapters.targets.parquet.folder import ParquetFolder
from venus.adapters.targets.parquet.manifest import ChangeFile, LakeManifest, LakeState, LakeTable
from venus.adapters.under.cut_assembler import decode_piece
from venus.adapters.under.sections import SectionRole, SectionWalk
from venus.codec.arrow_rows import ArrowShape, ValueMisfit
from venus.codec.batch import Batch
from venus.codec.changes import TableChanges
from venus.errors import ProtocolError
from venus.model import TableSchema
from venus.rpc import reports
from venus.wire import broker_pb2

#: How many bytes of rows of all tables may wait in memory for their row groups.
WAITING_BYTES_MAX = 128 << 20


class TableMisfit(Exception):
    """A change has a value that its column's type cannot hold, so that the column must become text."""

    def __init__(self, table_id: int, misfit: ValueMisfit) -> None:
        super().__init__(str(misfit))
        self.table_id = table_id
        self.column = misfit.column


class PendingCommit:
    """Everything that has arrived since the last commit. It changes `manifest`: commit both or discard both."""

    def __init__(self, target: ParquetFolder, manifest: LakeManifest) -> None:
        self._layout = target.layout
        self.manifest = manifest
        self._start = manifest.offset
        self._walk = SectionWalk(manifest.schema, lambda t: manifest.tables[t].schema_version)
        self._writers: dict[tuple[int, int], LakeFileWriter] = {}
        self._waiting_bytes = 0  # an upper bound, since all writers were last flushed
        self.rows = 0
        #: Whether the last increment ended a cut: only then is a commit allowed.
        self.ends_cut = True
        self.began_at = 0.0

    def add(self, increment: broker_pb2.Increment) -> None:
        """Add the next increment. Raises TableMisfit."""
        manifest = self.manifest
        if increment.base_offset + increment.count <= manifest.offset:
            return  # a replay
        if increment.base_offset != manifest.offset:
            raise ProtocolError(f"increment {increment.base_offset} does not follow offset {manifest.offset}")
        piece = decode_piece(increment)
        batch = piece.batch
        self.began_at = self.began_at or time.monotonic()
        for schema in batch.schemas:
            self._add_schema(schema)
        ahead = batch.first_sequence - piece.start
        for role, section, offset in self._walk.walk(piece):
            if role is not SectionRole.NEW_VERSION:  # a lake keeps each version's rows in files of that shape
                self._add_section(section, offset, offset + ahead, increment.committed_at_us)
        self._advance(increment, batch)

    def _advance(self, increment: broker_pb2.Increment, batch: Batch) -> None:
        manifest = self.manifest
        manifest.rows_other, self._walk.other = manifest.rows_other + self._walk.other, 0
        manifest.heartbeat_us = self._walk.heartbeat_us or manifest.heartbeat_us
        manifest.offset = increment.base_offset + increment.count
        manifest.epoch = increment.epoch
        manifest.rows = reports.rows_in(increment) or manifest.rows
        manifest.sequence = max(manifest.sequence, batch.first_sequence + batch.count - 1)
        manifest.captured_at_us = batch.captured_at_us or manifest.captured_at_us
        manifest.committed_at_us = increment.committed_at_us or manifest.committed_at_us
        self.rows += batch.count
        self.ends_cut = batch.cut_end

    def _add_schema(self, schema: TableSchema) -> None:
        manifest = self.manifest
        manifest.schemas[schema.table_id, schema.version] = schema
        if schema.is_heartbeat:
            return
        refuse_own_names(schema)
        table = manifest.tables.get(schema.table_id)
        if table is None:
            table = LakeTable(
                table_id=schema.table_id,
                name=schema.qualified,
                folder=folder_name(schema.namespace, schema.name),
                schema_version=schema.version,
                base=LakeState(offset=manifest.offset),
            )
            manifest.tables[schema.table_id] = table
        table.schema_version = max(table.schema_version, schema.version)
        table.name = schema.qualified if schema.version == table.schema_version else table.name

    def _add_section(self, section: TableChanges, offset: int, sequence: int, committed_at_us: int) -> None:
        schema = self.manifest.schema(section.table_id, section.schema_version)
        table = self.manifest.tables[section.table_id]
        table.rows_applied += section.count
        number = table.shape_number(section.schema_version)
        shape = self.manifest.shape(table, number)
        try:
            batch = changes_batch(
                section, schema, shape, offset=offset, sequence=sequence, committed_at_us=committed_at_us
            )
        except ValueMisfit as misfit:
            raise TableMisfit(table.table_id, misfit) from misfit
        if batch is not None:
            self._writer_for(table, number, shape).add(batch)
            self._make_room(batch.nbytes)

    def _make_room(self, nbytes: int) -> None:
        """Flush every file if too many bytes wait in total: with many tables each one has few."""
        self._waiting_bytes += nbytes
        if self._waiting_bytes > WAITING_BYTES_MAX:
            self._waiting_bytes = 0
            for writer in self._writers.values():
                writer.flush()

    def _writer_for(self, table: LakeTable, number: int, shape: ArrowShape) -> LakeFileWriter:
        found = self._writers.get((table.table_id, number))
        if found is None:
            path = self._layout.history(table.folder, number) / f"{self._start:020d}.parquet"
            found = self._writers[table.table_id, number] = LakeFileWriter(path, change_schema(shape))
        return found

    def commit(self, target: ParquetFolder) -> None:
        """Finish the files and commit them with the offset."""
        for (table_id, number), writer in self._writers.items():
            writer.close()
            file = ChangeFile(
                path=self._layout.relative_path(writer.path), shape=number, rows=writer.rows, end=self.manifest.offset
            )
            self.manifest.tables[table_id].changes.append(file)
        self.manifest.applied_at_us = time.time_ns() // 1000
        target.commit(self.manifest, [writer.path for writer in self._writers.values()])

    def discard(self) -> None:
        """Discard everything."""
        for writer in self._writers.values():
            writer.discard()
