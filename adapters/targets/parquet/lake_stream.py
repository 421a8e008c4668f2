"""Apply loop of a lake: writes increments into files of changes, and rebuilds states at intervals (VENUS 3.4).

A commit is one manifest that covers whole cuts and contains their offset. If a process is killed, the next one reads
the last manifest, removes all files that the manifest does not list, and continues from its offset. No change is lost
or duplicated.

Each commit has one file of changes per table and shape (schema version and types of the columns). Rows are written as
cuts arrive, so memory does not grow. The files stay invisible until the manifest lists them.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from venus.adapters.targets.columns import dropped_columns
from venus.adapters.targets.contract import FollowReport
from venus.adapters.targets.parquet.files import (
    LakeFileWriter,
    change_schema,
    changes_batch,
    folder_name,
    refuse_own_names,
)
from venus.adapters.targets.parquet.load import start_over
from venus.adapters.targets.parquet.manifest import (
    ChangeFile,
    LakeManifest,
    LakeState,
    LakeTable,
    ParquetFolder,
    row_counts,
    table_state,
)
from venus.adapters.targets.parquet.refresh import refresh, release_fitting, reload_state
from venus.adapters.under.circuit import TargetCircuit
from venus.adapters.under.cut_assembler import SectionRole, SectionWalk, decode_piece
from venus.codec.arrow_rows import ArrowShape, ValueMisfit
from venus.codec.batch import Batch, TableChanges
from venus.codec.masked_rows import project_section
from venus.config import Settings
from venus.errors import DatabaseUnavailable, Diverged, OffsetTrimmed, ProtocolError, Refused, VenusError
from venus.masking.projection import columns_of, describe_masks
from venus.model import TableSchema
from venus.network.row_filters import RowsIdentity
from venus.process.system import raise_descriptor_limit
from venus.rpc import reports
from venus.rpc.conditions import AdapterCondition, AdapterFigures, TableCondition
from venus.rpc.nearest_subscriber import open_subscriber
from venus.rpc.stopwatch import Stopwatch
from venus.wire import broker_pb2

logger = logging.getLogger(__name__)

#: How many bytes of rows of all tables may wait in memory for their row groups.
WAITING_BYTES_MAX = 128 << 20


class TableMisfit(Exception):
    """A change has a value that its column's type cannot hold, so that the column must become text."""

    def __init__(self, table_id: int, misfit: ValueMisfit) -> None:
        super().__init__(str(misfit))
        self.table_id = table_id
        self.column = misfit.column


class PendingCommit:
    """The files and the manifest of the next commit; both are committed together or discarded together."""

    def __init__(self, target: ParquetFolder, manifest: LakeManifest) -> None:
        self._name, self._layout, self._columns = target.name, target.layout, target.columns
        self.manifest = manifest
        self._start = manifest.offset
        self._walk = SectionWalk(manifest.schema, manifest.find_version)
        self._writers: dict[tuple[int, int], LakeFileWriter] = {}
        self._waiting_bytes = 0  # an upper bound of the bytes added since all writers were flushed
        self.rows = 0
        #: Whether the last increment ended a cut: only then is a commit allowed.
        self.ends_cut = True
        self.began_at = 0.0

    def add(self, increment: broker_pb2.Increment) -> None:
        """Add the changes of the next increment to the files. Raises TableMisfit."""
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
            if role is SectionRole.HELD:
                manifest.tables[section.table_id].rows_held += section.count
            elif role is not SectionRole.NEW_VERSION:  # a lake keeps each version's rows in files of that shape
                self._add_section(section, offset, offset + ahead, increment.committed_at_us)
        self._advance(increment, batch)

    def _advance(self, increment: broker_pb2.Increment, batch: Batch) -> None:
        """Set offset, Sequence and times in the manifest to those after the increment."""
        manifest = self.manifest
        manifest.rows_other, self._walk.other = manifest.rows_other + self._walk.other, 0
        manifest.heartbeat_us = self._walk.heartbeat_us or manifest.heartbeat_us
        manifest.offset = increment.base_offset + increment.count
        manifest.epoch = increment.epoch
        manifest.rows = reports.rows_identity(increment) or manifest.rows
        manifest.sequence = max(manifest.sequence, batch.first_sequence + batch.count - 1)
        manifest.captured_at_us = batch.captured_at_us or manifest.captured_at_us
        manifest.committed_at_us = increment.committed_at_us or manifest.committed_at_us
        self.rows += batch.count
        self.ends_cut = batch.cut_end

    def _add_schema(self, described: TableSchema) -> None:
        """Add a table version, and its table if it is new; a table halts if the rules for columns do not fit it."""
        manifest = self.manifest
        schema = self._columns.project_received(manifest.schemas.values(), described)
        reason, is_halted = self._columns.reason_to_halt(schema), columns_of(schema).misfit != ""
        if reason and not is_halted:
            raise Refused(f"{schema.qualified_name}: {reason}")
        manifest.schemas[schema.table_id, schema.version] = schema
        if schema.is_heartbeat:
            return
        refuse_own_names(schema)
        table = manifest.tables.get(schema.table_id)
        if table is None:
            table = LakeTable(
                table_id=schema.table_id,
                name=schema.qualified_name,
                folder=folder_name(schema.namespace, schema.name),
                schema_version=schema.version,
                base=LakeState(offset=manifest.offset),
            )
            manifest.tables[schema.table_id] = table
            if is_halted:
                table.note = reason
                logger.error("target %s: table %s is halted: %s", self._name, schema.qualified_name, reason)
        table.schema_version = max(table.schema_version, schema.version)
        table.name = schema.qualified_name if schema.version == table.schema_version else table.name

    def _add_section(self, section: TableChanges, offset: int, sequence: int, committed_at_us: int) -> None:
        schema = self.manifest.schema(section.table_id, section.schema_version)
        table = self.manifest.tables[section.table_id]
        table.rows_applied += section.count
        number = table.shape_number(section.schema_version)
        shape = self.manifest.shape(table, number)
        masked = project_section(section, None, schema, self._columns.maskers)
        try:
            batch = changes_batch(
                masked, schema, shape, offset=offset, sequence=sequence, committed_at_us=committed_at_us
            )
        except ValueMisfit as misfit:
            raise TableMisfit(table.table_id, misfit) from misfit
        if batch is not None:
            self._writer_for(table, number, shape).add(batch)
            self._make_room(batch.nbytes)

    def _make_room(self, nbytes: int) -> None:
        """Write the waiting rows of every file if all files together hold too many bytes in memory."""
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
        """Complete the files of changes, and commit them with the new offset."""
        for (table_id, number), writer in self._writers.items():
            writer.close()
            file = ChangeFile(
                path=self._layout.relative_path(writer.path), shape=number, rows=writer.rows, end=self.manifest.offset
            )
            self.manifest.tables[table_id].changes.append(file)
        self.manifest.applied_at_us = time.time_ns() // 1000
        target.commit(self.manifest, [writer.path for writer in self._writers.values()])

    def discard(self) -> None:
        """Delete the unfinished files."""
        for writer in self._writers.values():
            writer.discard()


IDLE_S = 0.5
REPORT_S = 0.5
#: A commit of more rows may be slow on a healthy file system.
FEW_ROWS = 10_000
#: The largest share of the time that rebuilding states may take.
REFRESH_PART = 0.1
#: A refresh reads the changes since a state into memory; a state with more changes than this is rebuilt immediately.
WAITING_MAX = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeReport(FollowReport):
    """Progress report of the loop that applies changes to a lake."""

    refreshed: int  # states rebuilt by this process
    circuit: str


Report = Callable[[LakeReport], None]


def run_lake(settings: Settings, name: str, stop: threading.Event, report: Report | None = None) -> None:
    """Apply the broker's changes to a lake until `stop`; retry after transient errors, and raise all others."""
    raise_descriptor_limit()  # a file is open for each table that changes between two commits
    target, tell = ParquetFolder(settings, name), report or (lambda _: None)
    circuit = _LakeCircuit(name, tell)
    with target.hold_lock():
        again = True
        while again and not stop.is_set():
            try:
                again = circuit.retrying(stop)(_follow, target, circuit, stop, tell)
            except VenusError as error:
                if not (error.retryable and stop.is_set()):
                    raise


class _LakeCircuit(TargetCircuit):
    """Circuit breaker of a lake that also reports each error to the caller."""

    def __init__(self, target: str, tell: Report) -> None:
        super().__init__(target)
        self._tell = tell

    def on_retry(self, error: BaseException | None) -> None:
        """Log and report an error before the next try."""
        super().on_retry(error)
        name, state = self._target, self.breaker.state.value
        self._tell(
            LakeReport(target=name, offset=0, rows=0, transactions=0, refreshed=0, circuit=state, error=str(error))
        )


def _follow(target: ParquetFolder, circuit: TargetCircuit, stop: threading.Event, tell: Report) -> bool:
    """Apply changes from the last commit on; return True if the stream has to be opened again."""
    try:
        manifest = target.recover()
        if manifest is None:
            raise target.not_loaded_error
        target.columns.refuse_changed(manifest.newest_versions(), dropped_columns(manifest.schemas.values()))
        release_fitting(target, manifest)
        return _LakeStream(target, manifest, circuit, stop, tell).run()
    except OSError as error:  # a full disk or a lost file system: no part of the commit is visible
        raise DatabaseUnavailable(f"target {target.name}: {error}", hint="check the disk") from error


class RefreshSchedule:
    """Schedule that decides when the state of a table is rebuilt. The caller supplies the time. Pure."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._waits_since: dict[int, float] = {}
        self._not_before = 0.0

    def due_table(self, waiting: dict[int, int], now_s: float) -> int | None:
        """Return the table whose changes have waited longest, if it is due."""
        self._waits_since = {t: self._waits_since.get(t, now_s) for t, rows in waiting.items() if rows}
        too_many = [t for t, rows in waiting.items() if rows > WAITING_MAX]
        if too_many:
            return too_many[0]
        if not self._waits_since or now_s < self._not_before:
            return None
        first = min(self._waits_since, key=lambda t: self._waits_since[t])
        return first if now_s - self._waits_since[first] >= self._every_s else None

    def record_refresh(self, table_id: int, took_s: float, now_s: float) -> None:
        """Record a refresh and how long it took."""
        self._waits_since.pop(table_id, None)
        self._not_before = now_s + took_s * (1 / REFRESH_PART - 1)


class _LakeStream:
    """One subscription to the broker, whose changes are applied to the lake."""

    def __init__(
        self,
        target: ParquetFolder,
        manifest: LakeManifest,
        circuit: TargetCircuit,
        stop: threading.Event,
        report: Report,
    ) -> None:
        self._target, self._manifest, self._stop, self._report = target, manifest, stop, report
        self._circuit, self._trouble = circuit, ""
        self._settings = target.settings.lake
        self._refreshes = RefreshSchedule(self._settings.refresh_s)
        self._rows = self._transactions = self._refreshed = 0
        self._reported = 0.0
        self._subscriber = open_subscriber(
            target.broker, target.business, target.group, credit_bytes=target.settings.apply.credit_bytes
        )

    def run(self) -> bool:
        """Apply changes until `stop` (returns False) or until the stream must be opened again (returns True)."""
        with self._subscriber:
            try:
                opened = self._subscriber.open(self._manifest.offset, self._manifest.epoch, rows=self._manifest.rows)
            except Diverged as error:
                if start_over(self._target, self._manifest, error):
                    return True
                raise self._target.diverged_error(error) from error
            self._circuit.record_session()
            self._save_rows_identity(reports.rows_identity(opened))
            self._acknowledge()
            gathering = self._new_commit()
            try:
                while not self._stop.is_set():
                    gathering = self._run_step(gathering)
                    if self._subscriber.can_move_nearer and not gathering.began_at:
                        gathering.discard()
                        return True
                if gathering.began_at and gathering.ends_cut:
                    gathering = self._commit(gathering)
            except TableMisfit as misfit:
                gathering.discard()
                reload_state(self._target, self._manifest, misfit.table_id, str(misfit), misfit.column)
                return True
            except OffsetTrimmed:  # a mirror that was filled again no longer has the next increments
                gathering.discard()
                return True
            except BaseException:
                gathering.discard()
                raise
            gathering.discard()
        return False

    def _save_rows_identity(self, rows: RowsIdentity | None) -> None:
        """Save in the manifest by which filters the broker selects rows from the current offset on."""
        if rows != self._manifest.rows:
            self._manifest.rows = rows
            self._manifest.save(self._target.layout.manifest)

    def _new_commit(self) -> PendingCommit:
        return PendingCommit(self._target, copy.deepcopy(self._manifest))

    def _run_step(self, gathering: PendingCommit) -> PendingCommit:
        """Receive changes and commit when due; do housekeeping while none wait. Return the pending commit."""
        settings = self._settings
        if self._circuit.is_isolated:
            self._stop.wait(min(IDLE_S, self._circuit.left_s))
            self._report_progress()
            return gathering
        if self._circuit.is_probe():
            self._measure_write(0, lambda: self._manifest.save(self._target.layout.manifest))  # unchanged
            self._report_progress()
            return gathering
        if self._target.is_paused:
            self._stop.wait(IDLE_S)
        else:
            for increment in self._subscriber.increments(min(IDLE_S, settings.commit_s)):
                gathering.add(increment)
                if gathering.ends_cut and gathering.rows >= settings.commit_rows_max:
                    gathering = self._commit(gathering)
        late = gathering.began_at and time.monotonic() - gathering.began_at >= settings.commit_s
        if late and gathering.ends_cut:
            gathering = self._commit(gathering)
        if not gathering.began_at and self._do_housekeeping():
            gathering = self._new_commit()
        self._report_progress()
        return gathering

    def _commit(self, gathering: PendingCommit) -> PendingCommit:
        """Commit, acknowledge to the broker, and return an empty pending commit."""
        self._measure_write(gathering.rows, lambda: gathering.commit(self._target))
        self._manifest = gathering.manifest
        self._rows += gathering.rows
        self._transactions += 1
        self._acknowledge()
        return self._new_commit()

    def _measure_write(self, rows: int, write: Callable[[], None]) -> None:
        """Run `write`, and report its duration to the circuit breaker unless the commit is large."""
        took = Stopwatch.coarse()
        write()
        took_s = took.awake_s() if rows <= FEW_ROWS else 0.0
        self._trouble = self._circuit.record_latency(took_s)
        self._reported = 0.0 if self._trouble else self._reported

    def _acknowledge(self) -> None:
        self._subscriber.acknowledge(self._manifest.offset, unaccounted=self._manifest.unaccounted_changes)

    def _do_housekeeping(self) -> bool:
        """Serve a requested resync, or rebuild one table's state; return whether there was anything to do."""
        manifest = self._manifest
        for table_id in self._target.requested_resyncs():
            if table_id in manifest.tables:
                reload_state(self._target, manifest, table_id, f"{manifest.tables[table_id].name} is resynced")
            self._target.clear_resync_request(table_id)
            return True
        began = time.monotonic()
        due = self._refreshes.due_table({t.table_id: t.waiting for t in manifest.tables.values()}, began)
        if due is None:
            return False
        refresh(self._target, manifest, manifest.tables[due])
        self._target.remove_old_states(manifest.tables[due])
        self._refreshes.record_refresh(due, time.monotonic() - began, time.monotonic())
        self._refreshed += 1
        return True

    def _build_condition(self) -> AdapterCondition:
        resyncing = set(self._target.requested_resyncs())
        return AdapterCondition.of(
            (
                TableCondition(
                    table_id=t.table_id,
                    name=t.name,
                    state=table_state(self._manifest, t, resyncing),
                    reason=t.note if self._manifest.is_halted(t) else "",
                    columns=describe_masks(self._manifest.schema(t.table_id, t.schema_version)),
                )
                for t in self._manifest.tables.values()
            ),
            paused=self._target.is_paused,
            figures=AdapterFigures(
                place=self._target.description, rows=row_counts(self._manifest), counted_at_us=time.time_ns() // 1000
            ),
        )

    def _report_progress(self) -> None:
        if time.monotonic() - self._reported < REPORT_S:
            return
        self._reported = time.monotonic()
        self._subscriber.report(self._build_condition())
        self._report(
            LakeReport(
                target=self._target.name,
                offset=self._manifest.offset,
                rows=self._rows,
                transactions=self._transactions,
                refreshed=self._refreshed,
                circuit=self._circuit.breaker.state.value,
                error=self._trouble,
            )
        )
