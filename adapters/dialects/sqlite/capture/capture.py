"""Capture of a SQLite file: schema changes, the backlog, and the opening of cuts.

The reader holds the snapshot of a cut; the writer does everything else in short transactions. Reading works in every
journal mode, but without WAL it delays the application.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from pathlib import Path

from venus.adapters.dialects.column_choice import ColumnChoice
from venus.adapters.dialects.contract import FillState, RegisteredTable, SchemaChanged, SourceCapture
from venus.adapters.dialects.registry_rules import (
    HaltTracker,
    LogLimits,
    RestoreGuard,
    SourceRestored,
    find_full_logs,
    full_log_reason,
    is_halted,
    state_before_halt,
    unknown_table,
)
from venus.adapters.dialects.sqlite import registry
from venus.adapters.dialects.sqlite.capture.cut import LogPurger, LogRange, SqliteCut
from venus.adapters.dialects.sqlite.connection import (
    begin_read,
    quote,
    read_data_version,
    read_identity,
    read_transaction,
    translate_errors,
    write_transaction,
)
from venus.adapters.dialects.sqlite.dictionary.tables import SqliteDictionary, log_table_name, read_schema_version
from venus.adapters.dialects.sqlite.installation import installer, schema_changes
from venus.adapters.dialects.sqlite.installation.schema_changes import (
    DictionaryObjects,
    SqliteTableComparison,
    compare_table,
    read_objects,
)
from venus.adapters.dialects.sqlite.registry import SqliteRegistryEntry
from venus.adapters.dialects.sqlite.rows import SqliteAccess, build_access
from venus.adapters.dialects.sqlite.sql import statement
from venus.model import TableSchema


class SqliteCapture(SourceCapture):
    """The part of a source that finds and reads changes."""

    def __init__(
        self,
        file: Path,
        reader: sqlite3.Connection,
        writer: sqlite3.Connection,
        columns: ColumnChoice,
        restores: RestoreGuard,
        log: LogLimits,
    ) -> None:
        self._log = log
        self._file = file
        self._reader = reader
        self._writer = writer
        self._columns = columns
        self._restores = restores
        self._purger = LogPurger()
        self._accesses: dict[int, SqliteAccess] = {}
        #: The schema_version for which `_accesses` are valid.
        self._schema_version: int | None = None
        self._compared_at = 0
        #: The dictionary of that schema_version, while a comparison uses it.
        self._read: tuple[SqliteDictionary, DictionaryObjects] | None = None
        #: Whether a comparison has run. Until then, a cut accepts a dictionary of which no summary is stored.
        self._has_compared = False
        #: The data_version at which every log was empty.
        self._empty_at: int | None = None
        self._halts = HaltTracker()
        self._identity = read_identity(file)

    def invalidate(self) -> None:
        """Compare the dictionary again before the next cut."""
        self._schema_version = None

    def refresh_schemas(self) -> list[TableSchema]:
        """Compare the dictionary with the registry if it has changed, and retry tables that halted at a row."""
        with read_transaction(self._writer, self._file):
            registry.require_installation(self._writer, self._file)
            is_known = self._has_compared and read_schema_version(self._writer) == self._schema_version
            if is_known and not self._has_paused_table():
                return []
            found = self._compare_all()
            ends = self._read_log_ends(found)
            retried = self._find_corrected_tables(found, ends)
            unnoted = schema_changes.read_stored_summary(self._writer) != schema_changes.read_summary(self._writer)
            to_store = unnoted or retried or any(c.has_changes or _has_lost_rows(c, ends) for c in found)
        if to_store:
            with write_transaction(self._writer, self._file):
                before, look = (
                    schema_changes.read_stored_summary(self._writer),
                    schema_changes.read_summary(self._writer),
                )
                found = self._compare_all()
                ends = self._read_log_ends(found)
                for comparison in found:
                    self._store_comparison(comparison, ends)
                    if schema_changes.may_have_altered(before, look, comparison.captured.schema.name):
                        registry.restart_fill(self._writer, comparison.captured.schema.table_id)
                schema_changes.store_summary(self._writer, look)
                for table in retried:
                    self._writer.execute(registry.set_state_sql(table.schema.table_id, *state_before_halt(table)))
                found = self._compare_all()  # under the write lock, so that later changes are compared next time
        known = {(a.layout.schema.table_id, a.layout.schema.version) for a in self._accesses.values()}
        self._use_comparisons(found)
        self._has_compared = True
        return [c.schema for c in found if (c.schema.table_id, c.schema.version) not in known]

    def _has_paused_table(self) -> bool:
        return any(state == registry.PAUSED for state, _ in registry.read_states(self._writer).values())

    def _compare_all(self) -> list[SqliteTableComparison]:
        """Compare the captured tables with the dictionary, which is read again only if its version has changed."""
        version = read_schema_version(self._writer)
        if self._read is None or version != self._compared_at:
            self._read = SqliteDictionary(self._writer, self._columns), read_objects(self._writer)
        self._compared_at = version
        dictionary, present = self._read
        return [compare_table(dictionary, c, present) for c in registry.read_tables(self._writer).values()]

    def _compare(self, captured: SqliteRegistryEntry) -> SqliteTableComparison:
        return compare_table(SqliteDictionary(self._writer, self._columns), captured, read_objects(self._writer))

    def _read_log_ends(self, found: Seq[SqliteTableComparison]) -> dict[int, int]:
        """Return the newest row number in each log that exists."""
        present = [c.captured.schema.table_id for c in found if c.readable or is_halted(c.captured.table)]
        return read_log_ends(self._writer, present)

    def _find_corrected_tables(
        self, found: list[SqliteTableComparison], ends: Mapping[int, int]
    ) -> list[RegisteredTable]:
        """Return the tables that halted at a row and were written to since: that may have corrected the row."""
        halted = [(c.captured.schema.table_id, c.captured.table) for c in found if is_halted(c.captured.table)]
        return [t for table_id, t in halted if self._halts.may_retry(table_id, ends[table_id])]

    def _store_comparison(self, how: SqliteTableComparison, ends: Mapping[int, int]) -> None:
        """Store what a comparison found: a new version, which may restart the fill, or RESYNC with the reason."""
        table_id = how.captured.schema.table_id
        if how.is_new_version:
            self._writer.execute(registry.new_version_sql(how.schema, how.number_max))
            if how.needs_fill:
                registry.restart_fill(self._writer, table_id)
        if _has_lost_rows(how, ends):
            log = log_table_name(table_id)
            reason = f"changes were missed: rows were removed from {log}, read the table again"
            self._writer.execute(registry.set_state_sql(table_id, registry.RESYNC, reason))
            self._writer.execute(statement("registry", "consumed"), (ends[table_id], table_id))
        elif how.reason and how.captured.table.state == registry.ACTIVE:
            self._writer.execute(registry.set_state_sql(table_id, registry.RESYNC, how.reason))

    def _use_comparisons(self, found: list[SqliteTableComparison]) -> None:
        """Use the compared tables, in their present versions, for the next cuts."""
        self._accesses = {c.schema.table_id: build_access(c.table) for c in found if c.readable and c.table is not None}
        self._purger.schedule({c.captured.schema.table_id for c in found})
        self._schema_version = self._compared_at
        self._read = self._empty_at = None

    def open_cut(self, fills: Seq[FillState]) -> SqliteCut | None:
        """Open a snapshot, unless nothing was committed since every log was empty."""
        if read_identity(self._file) != self._identity:
            raise SourceRestored(f"{self._file}: the file was replaced or removed")
        with translate_errors(self._file):
            version = read_data_version(self._reader)
            if version == self._empty_at and not fills:
                self._purge()
                return None
            captured_at_us = _now_us()
            begin_read(self._reader)
            try:
                cut = self._build_cut(captured_at_us, fills)
            except BaseException:
                self._reader.execute("ROLLBACK")
                raise
            if cut is None:
                self._reader.execute("ROLLBACK")
                self._empty_at = version
                self._purge()
            return cut

    def _build_cut(self, captured_at_us: int, fills: Seq[FillState]) -> SqliteCut | None:
        """Return a cut of all logs with new rows and of the fills; None if there is nothing to read."""
        if read_schema_version(self._reader) != self._schema_version:
            self._accept_dictionary()
        tables = registry.read_states(self._reader)
        for table_id, access in self._accesses.items():
            if table_id not in tables:
                raise SchemaChanged(f"{self._file}: {access.layout.schema.qualified_name} is not captured any more")
        pending, ends = {}, read_log_ends(self._reader, self._accesses)
        for table_id, access in self._accesses.items():
            state, after = tables[table_id]
            through = ends[table_id]
            if through < after:
                self._schema_version = None
                raise SchemaChanged(f"{self._file}: rows have disappeared from {log_table_name(table_id)}")
            if through > after and state != registry.PAUSED:
                pending[table_id] = LogRange(access=access, after=after, through=through)
        filling = {
            f.table_id: (f, self._accesses[f.table_id])
            for f in fills
            if f.table_id in self._accesses and tables[f.table_id][0] != registry.PAUSED
        }
        if not pending and not filling:
            return None
        return SqliteCut(
            file=self._file,
            reader=self._reader,
            writer=self._writer,
            captured_at_us=captured_at_us,
            pending=pending,
            fills=filling,
            ends=ends,
            purger=self._purger,
            halts=self._halts,
            left=self._restores,
        )

    def _accept_dictionary(self) -> None:
        """Use the present dictionary if it agrees with the registry, else raise SchemaChanged."""
        registry.require_installation(self._reader, self._file)
        with read_transaction(self._writer, self._file):
            found = self._compare_all()
            unnoted = schema_changes.read_stored_summary(self._writer) not in (
                None,
                schema_changes.read_summary(self._writer),
            )
        if unnoted or any(c.has_changes for c in found) or read_schema_version(self._reader) != self._compared_at:
            raise SchemaChanged(f"{self._file}: the dictionary differs from the registry")
        self._use_comparisons(found)

    def _purge(self) -> None:
        """Purge a piece of the consumed log rows while there is no other work."""
        if self._purger.has_work:
            with write_transaction(self._writer, self._file):
                watermarks = {t: through for t, (_, through) in registry.read_states(self._writer).items()}
                self._purger.purge(self._writer, self._purger.due_watermarks(watermarks))

    def restart_fill(self, table_id: int) -> None:
        """Restart the fill of a table. If the table's triggers are complete, this also ends RESYNC."""
        with write_transaction(self._writer, self._file):
            captured = registry.read_tables(self._writer).get(table_id)
            if captured is None:
                raise unknown_table(table_id)
            registry.restart_fill(self._writer, table_id)
            if captured.table.state == registry.RESYNC and not self._compare(captured).reason:
                self._writer.execute(registry.set_state_sql(table_id, registry.ACTIVE, ""))

    def restart_with_sweep(self, table_id: int, version: int) -> None:
        self.restart_fill(table_id)
        with write_transaction(self._writer, self._file):
            registry.restart_with_sweep(self._writer, registry.read_tables(self._writer)[table_id], version)
        self._has_compared, self._schema_version = False, None  # `_accesses` have the previous version

    def write_heartbeat(self) -> None:
        with write_transaction(self._writer, self._file):
            if not self._writer.execute(statement("registry", "beat"), (_now_us(),)).rowcount:
                self._writer.execute(statement("registry", "beat_again"), (_now_us(),))

    def limit_logs(self) -> None:
        if not self._log.is_set or not registry.is_installed(self._writer):
            return
        waiting = {table_id: rows for table_id, (rows, _) in self.read_backlog().items()}
        with write_transaction(self._writer, self._file):
            tables = [c.table for c in registry.read_tables(self._writer).values()]
            for table in find_full_logs(tables, waiting, self._log):
                installer.drop_triggers(self._writer, table.schema.table_id)
                if table.state != registry.PAUSED:
                    reason = full_log_reason(self._log)
                    self._writer.execute(registry.set_state_sql(table.schema.table_id, registry.RESYNC, reason))

    def limit_lock_waits(self) -> None:
        """Do nothing: SQLite lets readers wait only while a writer commits."""

    def read_backlog(self) -> dict[int, tuple[int, int]]:
        """Return by table how many log rows wait, and 0 for the age of open transactions, which delay nothing."""
        with read_transaction(self._writer, self._file):
            tables = registry.read_states(self._writer)
            ends = read_log_ends(self._writer, tables)
            return {t: (max(0, ends[t] - through), 0) for t, (_, through) in tables.items()}


#: SQLite combines at most 500 SELECTs in one statement.
_LOGS_AT_ONCE = 500


def read_log_ends(connection: sqlite3.Connection, table_ids: Iterable[int]) -> dict[int, int]:
    """Return the newest row number in the log of each table."""
    found: dict[int, int] = {}
    each = [statement("registry", "log_end", table_id=str(t), log=quote(log_table_name(t))).rstrip() for t in table_ids]
    for first in range(0, len(each), _LOGS_AT_ONCE):
        found |= connection.execute("\nUNION ALL ".join(each[first : first + _LOGS_AT_ONCE])).fetchall()
    return found


def _has_lost_rows(how: SqliteTableComparison, ends: Mapping[int, int]) -> bool:
    """Return whether the log ends before its watermark. VENUS never purges the newest consumed row."""
    return how.readable and ends[how.captured.schema.table_id] < how.captured.log_through


def _now_us() -> int:
    return time.time_ns() // 1000
