"""Capture at a MariaDB or MySQL source: schema changes, the backlog, and the opening of cuts.

The reader holds the snapshot of a cut; the writer does everything else in short transactions. Every snapshot validates
what the registry has loaded: a change by another process or by DDL raises SchemaChanged, and `refresh_schemas` reads
everything again.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from collections.abc import Sequence as Seq

from venus.adapters.dialects.contract import Cut, FillState, MissingGrant, SchemaChanged, SourceCapture
from venus.adapters.dialects.mysql import connection, registry
from venus.adapters.dialects.mysql.capture.cut import MysqlFillPace, open_cut
from venus.adapters.dialects.mysql.connection import MysqlConnection, MysqlNotPermitted
from venus.adapters.dialects.mysql.dictionary.marks import InnodbNumbers, definition_key
from venus.adapters.dialects.mysql.installation import privileges, schema_changes
from venus.adapters.dialects.mysql.installation.installed_objects import MysqlInstalledObjects
from venus.adapters.dialects.mysql.registry import MysqlCaptureState, MysqlRegistry
from venus.adapters.dialects.mysql.sql import statement
from venus.adapters.dialects.registry_rules import (
    RELEASING,
    HaltTracker,
    LogLimits,
    find_full_logs,
    full_log_reason,
    is_halted,
    is_unreadable,
    state_before_halt,
)
from venus.errors import DatabaseUnavailable, SourceError
from venus.model import LOG_ROWS_COUNTED_MAX, TableSchema

#: Interval between two checks of InnoDB's numbers.
WATCH_S = 1.0


class MysqlCapture(SourceCapture):
    """The part of a MariaDB or MySQL source that detects and reads changes."""

    def __init__(
        self,
        reader: MysqlConnection,
        writer: MysqlConnection,
        registry: MysqlRegistry,
        monotonic: Callable[[], float],
        log: LogLimits,
    ) -> None:
        self._log = log
        self._reader = reader
        self._writer = writer
        self._registry = registry
        self._monotonic = monotonic
        self._marks = InnodbNumbers(writer)
        self._watched_at = float("-inf")
        self._known: set[tuple[int, int]] | None = None
        self._pace = MysqlFillPace()
        self._halts = HaltTracker()
        self._has_tested_privileges = False

    def refresh_schemas(self) -> list[TableSchema]:
        numbers = self._marks.read_present()
        loaded = self._load(again=True)
        denied = self._reader.denied or self._writer.denied
        halted = any(is_unreadable(c.known.table) for c in loaded.captured)
        present = MysqlInstalledObjects.read(self._writer)
        lacks = privileges.find_missing_privileges(
            self._writer, loaded.captured, present, logs=denied or halted or not self._has_tested_privileges
        )
        self._has_tested_privileges, self._reader.denied, self._writer.denied = True, False, False
        self._retry_halted_tables(loaded, lacks)
        changed = schema_changes.refresh_registry(self._writer, loaded, self._marks, numbers, lacks, present)
        if changed or registry.read_mark(self._writer) != loaded.mark:
            loaded = self._load(again=True)
        self._watched_at = self._monotonic()
        known = self._known or set()
        self._known = known | {(c.known.table_id, c.known.schema.version) for c in loaded.captured}
        return [c.known.schema for c in loaded.captured if (c.known.table_id, c.known.schema.version) not in known]

    def _retry_halted_tables(self, loaded: MysqlCaptureState, lacks: Container[int]) -> None:
        """Resume halted tables that VENUS may read again, or that were written to since they halted at a row."""
        readable = [c.known for c in loaded.captured if c.table_id not in lacks]
        for known in (k for k in readable if is_unreadable(k.table)):
            registry.set_state(self._writer, known.table_id, *state_before_halt(known.table))
        halted = [k for k in readable if is_halted(k.table)]
        waiting = registry.count_waiting(self._writer, [k.table_id for k in halted])
        for known in halted:
            if self._halts.may_retry(known.table_id, waiting[known.table_id]):
                registry.set_state(self._writer, known.table_id, *state_before_halt(known.table))

    def open_cut(self, fills: Seq[FillState]) -> Cut | None:
        loaded = self._load()
        self._check_innodb_numbers(loaded)
        try:
            return open_cut(self._reader, self._writer, loaded, fills, self._pace, self._halts, self._registry.restores)
        except SchemaChanged:
            self._registry.definitions.clear()  # the text of a definition may change although its time does not
            raise

    def _check_innodb_numbers(self, loaded: MysqlCaptureState) -> None:
        """Check periodically whether InnoDB's number of a table has changed: TRUNCATE leaves no other trace.

        Raises SchemaChanged if the number of a table has changed.
        """
        if self._monotonic() < self._watched_at + WATCH_S:
            return
        now, noted = self._marks.read_present(), self._marks.read_stored()
        for c in loaded.captured:
            mark = self._marks.table_mark(c.schema.name, now)
            if mark and c.state not in (registry.PAUSED, RELEASING) and noted.get(c.table_id) != mark:
                raise SchemaChanged(f"{c.schema.qualified_name} was truncated or rebuilt, or is new")
        self._watched_at = self._monotonic()

    def restart_fill(self, table_id: int) -> None:
        """Restart the fill of a table. If the table's triggers are complete, this also ends RESYNC."""
        registry.restart_fill(self._writer, table_id)
        loaded = registry.load_capture_state(self._writer, self._registry.definitions)
        for c in loaded.captured:
            if (
                c.table_id == table_id
                and c.state == registry.RESYNC
                and schema_changes.is_complete(self._writer, loaded, c)
            ):
                registry.set_state(self._writer, table_id, registry.ACTIVE, "")
        self._registry.invalidate()

    def restart_with_sweep(self, table_id: int, version: int) -> None:
        # InnoDB's number means nothing after a restore; a TRUNCATE before the next check also precedes the fill
        self._writer.run(registry.forget_marks_sql([table_id, definition_key(table_id)]))
        self.restart_fill(table_id)
        with self._writer.transaction():
            registry.restart_with_sweep(self._writer, table_id, version)

    def limit_logs(self) -> None:
        if self._log.is_set and registry.is_installed(self._writer):
            tables = [c.known.table for c in self._load().captured]
            full = list(find_full_logs(tables, self._count_waiting(), self._log))
            if full and schema_changes.stop_tables(self._writer, full, full_log_reason(self._log)):
                self._registry.invalidate()

    def limit_lock_waits(self) -> None:
        self._writer.limit_lock_waits()

    def read_backlog(self) -> dict[int, tuple[int, int]]:
        """Return by table_id how many log rows wait, and the age in seconds of the server's oldest open writer."""
        waiting, age = self._count_waiting(), 0
        if self._marks.visible:
            try:
                age = int(self._writer.row(statement("registry", "blockers"))[0])
            except DatabaseUnavailable:
                raise
            except SourceError:  # the user lacks the privilege PROCESS
                self._marks.visible = False
        return {t: (n, age) for t, n in waiting.items()}

    def _count_waiting(self) -> dict[int, int]:
        """Return how many log rows of each captured table wait; omit tables whose log this user may not read."""
        captured = self._load().captured
        try:
            return registry.count_waiting(self._writer, [c.table_id for c in captured], LOG_ROWS_COUNTED_MAX)
        except MysqlNotPermitted:
            present = MysqlInstalledObjects.read(self._writer)
            hidden = privileges.find_missing_privileges(self._writer, captured, present, logs=True)
            if not hidden:
                raise
            shown = [c.table_id for c in captured if c.table_id not in hidden]
            return registry.count_waiting(self._writer, shown, LOG_ROWS_COUNTED_MAX)

    def write_heartbeat(self) -> None:
        if not self._writer.run(statement("registry", "beat")):
            self._writer.run(statement("registry", "beat_again"))

    def find_missing_grants(self) -> list[MissingGrant]:
        return privileges.find_missing_grants(self._writer)

    def describe_blockers(self) -> str:
        return connection.describe_sessions(self._writer, "holders") if self._marks.visible else ""

    def _load(self, *, again: bool = False) -> MysqlCaptureState:
        """Return the loaded registry and dictionary; `again`: read them again."""
        loaded = self._registry.load(again=again)
        if self._known is None:
            self._known = {(c.known.table_id, c.known.schema.version) for c in loaded.captured}
        return loaded
