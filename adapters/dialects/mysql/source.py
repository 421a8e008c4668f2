"""MariaDB or MySQL as a source: the implementation of the dialect contract.

One thread uses two sessions. The reader holds the snapshot of a cut; the writer does everything else in short
transactions. The registry, the dictionary and the statements are cached, and every snapshot validates them. A change by
another process or by DDL raises SchemaChanged, and refresh_schemas() reads everything again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping
from collections.abc import Sequence as Seq

from venus.adapters.dialects.column_choice import NO_CHOICE, ColumnChoice
from venus.adapters.dialects.contract import (
    Cut,
    FillState,
    InstallStep,
    MissingGrant,
    Numbering,
    OtherObject,
    RegisteredTable,
    SchemaChanged,
    SourceCapabilities,
    SourceState,
    UncapturedTable,
)
from venus.adapters.dialects.halted_tables import HaltTracker, is_halted, is_unreadable, state_before_halt
from venus.adapters.dialects.install_script import plain_script
from venus.adapters.dialects.mysql import connection, registry
from venus.adapters.dialects.mysql.capture import captured_tables as seen
from venus.adapters.dialects.mysql.capture.captured_tables import InnodbNumbers, MysqlCaptureState, load_capture_state
from venus.adapters.dialects.mysql.capture.cut import MysqlFillPace, open_cut
from venus.adapters.dialects.mysql.connection import MysqlConnection, MysqlNotPermitted, parse_address
from venus.adapters.dialects.mysql.dictionary import structure
from venus.adapters.dialects.mysql.dictionary import tables as dictionary
from venus.adapters.dialects.mysql.installation import install, privileges
from venus.adapters.dialects.mysql.installation import schema_changes as refresh
from venus.adapters.dialects.mysql.installation.check import check, find_obstacle
from venus.adapters.dialects.mysql.sql import statement
from venus.adapters.dialects.name_patterns import find_useless_patterns
from venus.adapters.dialects.released_tables import RELEASING
from venus.adapters.dialects.restore_detection import RestoreGuard
from venus.config import Settings
from venus.errors import DatabaseUnavailable, SourceError
from venus.model import BatchNo, BatchRecord, Epoch, Finding, TableSchema

CAPABILITIES = SourceCapabilities(transactional_ddl=False)
#: Interval between two checks of InnoDB's numbers.
WATCH_S = 1.0


def open_source(settings: Settings) -> MysqlSource:
    """Connect to the source in the settings."""
    return MysqlSource(settings.source.url.get_secret_value(), columns=ColumnChoice.from_settings(settings))


class MysqlSource:
    """A MariaDB or MySQL database whose changes are captured."""

    name = "mysql"
    capabilities = CAPABILITIES

    def __init__(
        self, url: str, *, columns: ColumnChoice = NO_CHOICE, monotonic: Callable[[], float] = time.monotonic
    ) -> None:  # fmt: skip
        address = parse_address(url, columns)
        self._reader = MysqlConnection(address, "REPEATABLE READ")
        self._writer = MysqlConnection(address, "READ COMMITTED")
        self._writer.open()
        self._monotonic = monotonic
        self._marks = InnodbNumbers(self._writer)
        self._watched_at = float("-inf")
        self._loaded: MysqlCaptureState | None = None
        self._known: set[tuple[int, int]] | None = None
        self._pace = MysqlFillPace()
        self._halts = HaltTracker()
        self._left = RestoreGuard()
        self._has_tested_privileges = False

    def close(self) -> None:
        self._reader.close()
        self._writer.close()

    # -- dictionary and installation -----------------------------------------------------------------------------

    def read_tables(self, include: Seq[str], exclude: Seq[str]) -> list[TableSchema]:
        known = {}
        if registry.is_installed(self._writer):
            known = {k.schema.name: k for k in registry.read_tables(self._writer)}
        found = []
        for table in self._read_dictionary().choose_tables(include, exclude):
            if table.key and not table.unsupported:
                k = known.get(table.name)
                found.append(
                    table.to_schema(k.table_id, k.schema.version, k.schema, k.number_max)
                    if k
                    else table.to_schema(0, 1)
                )
        return found

    def read_table_names(self) -> list[str]:
        return [f"{self._writer.address.database}.{name}" for name in dictionary.read_table_names(self._writer)]

    def find_uncaptured_tables(self, include: Seq[str], exclude: Seq[str]) -> list[UncapturedTable]:
        if not registry.is_installed(self._writer):
            return []
        known = {row[0] for row in self._writer.rows(statement("registry", "names"))}
        place = self._writer.address.database
        names = dictionary.choose_names(place, dictionary.read_table_names(self._writer), include, exclude)
        if not (names := [name for name in names if name not in known]):
            return []
        # capture has usually just read the whole dictionary, to compare it with the registry
        read = self._loaded.dictionary.tables if self._loaded else {}
        tables = read if all(name in read for name in names) else self._read_dictionary().tables
        return [
            UncapturedTable(name=f"{place}.{name}", obstacle=find_obstacle(tables[name]))
            for name in names
            if name in tables
        ]

    def find_unmatched_patterns(self, patterns: Seq[str]) -> list[str]:
        database = self._writer.address.database
        return find_useless_patterns(
            patterns, (dictionary.pattern_names(database, n) for n in dictionary.read_table_names(self._writer))
        )

    def _read_dictionary(self) -> dictionary.MysqlDictionary:
        return dictionary.read_dictionary(self._writer, zero_dates_null=self._writer.options.zero_dates_null)

    def read_numberings(self) -> list[Numbering]:
        writer = self._writer
        return structure.read_numberings(writer, writer.address.database, mariadb=dictionary.is_mariadb(writer))

    def read_other_objects(self) -> list[OtherObject]:
        return structure.read_other_objects(self._writer, self._writer.address.database)

    def check(self, include: Seq[str], exclude: Seq[str]) -> list[Finding]:
        return check(self._writer, include, exclude)

    def plan_install(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        return install.plan_install(self._writer, include, exclude)

    def install(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        self._loaded = None
        return install.install(self._writer, include, exclude)

    def plan_uninstall(self) -> list[InstallStep]:
        return install.plan_uninstall(self._writer)

    def uninstall(self) -> list[InstallStep]:
        self._loaded = None
        return install.uninstall(self._writer)

    def plan_release(self, table_ids: Seq[int]) -> list[InstallStep]:
        return install.plan_release(self._writer, table_ids)

    def release(self, table_ids: Seq[int]) -> list[InstallStep]:
        self._loaded = None
        return install.release(self._writer, table_ids)

    def drop_logs(self, reasons: Mapping[int, str]) -> list[InstallStep]:
        self._loaded = None
        return install.drop_logs(self._writer, reasons)

    def as_script(self, steps: Seq[InstallStep], *, removal: bool) -> str:
        return plain_script(steps, removal=removal)

    # -- the registry and the checkpoint row -----------------------------------------------------------------------

    def read_registered_tables(self) -> list[RegisteredTable]:
        registry.require_installation(self._writer)
        return [k.table for k in registry.read_tables(self._writer)]

    def read_released_tables(self) -> list[RegisteredTable]:
        registry.require_installation(self._writer)
        return [k.table for k in registry.read_tables(self._writer, released=True)]

    def read_row_counts(self) -> dict[int, int]:
        return registry.read_row_counts(self._writer)

    def read_registry_fingerprint(self) -> str:
        return repr(self._writer.rows(statement("registry", "sign")))

    def set_table_state(self, table_id: int, state: str, reason: str) -> None:
        registry.set_state(self._writer, table_id, state, reason)
        self._loaded = None

    def halt(self, epoch: Epoch, table_id: int, why: str) -> None:
        registry.halt(self._writer, epoch, table_id, why)
        self._loaded = None

    def restart_fill(self, table_id: int) -> None:
        """Restart the fill of a table. This also ends RESYNC if its triggers are complete."""
        registry.restart_fill(self._writer, table_id)
        loaded = load_capture_state(self._writer)
        for c in loaded.captured:
            if c.table_id == table_id and c.state == registry.RESYNC and refresh.is_complete(self._writer, loaded, c):
                registry.set_state(self._writer, table_id, registry.ACTIVE, "")
        self._loaded = None

    def restart_with_sweep(self, table_id: int, version: int) -> None:
        # InnoDB's number means nothing after a restore; a TRUNCATE before the next check also precedes the fill
        self._writer.run(registry.forget_marks_sql([table_id, seen.definition_key(table_id)]))
        self.restart_fill(table_id)
        with self._writer.transaction():
            registry.restart_with_sweep(self._writer, table_id, version)

    def read_state(self) -> SourceState:
        registry.require_installation(self._writer)
        return registry.read_state(self._writer)

    def raise_epoch(self, epoch: Epoch) -> SourceState:
        state = registry.raise_epoch(self._writer, epoch)
        self._left.record_batch(state.last_batch)
        return state

    def read_batches(self, numbers: Seq[BatchNo]) -> dict[BatchNo, BatchRecord]:
        return registry.read_batches(self._writer, numbers)

    def find_missing_grants(self) -> list[MissingGrant]:
        return privileges.find_missing_grants(self._writer)

    def write_heartbeat(self) -> None:
        if not self._writer.run(statement("registry", "beat")):
            self._writer.run(statement("registry", "beat_again"))

    def read_backlog(self) -> dict[int, tuple[int, int]]:
        waiting, age = self._read_waiting(), 0
        if self._marks.visible:
            try:
                age = int(self._writer.row(statement("registry", "blockers"))[0])
            except DatabaseUnavailable:
                raise
            except SourceError:  # the user lacks the privilege PROCESS
                self._marks.visible = False
        return {t: (n, age) for t, n in waiting.items()}

    def _read_waiting(self) -> dict[int, int]:
        captured = self._load().captured
        try:
            return registry.read_backlog(self._writer, [c.table_id for c in captured])
        except MysqlNotPermitted:
            present = install.MysqlInstalledObjects.read(self._writer)
            hidden = privileges.find_missing_privileges(self._writer, captured, present, logs=True)
            if not hidden:
                raise
            return registry.read_backlog(self._writer, [c.table_id for c in captured if c.table_id not in hidden])

    def find_blocking_locks(self) -> dict[str, str]:
        return {}

    def describe_blockers(self) -> str:
        return connection.describe_sessions(self._writer, "holders") if self._marks.visible else ""

    # -- capture ---------------------------------------------------------------------------------------------------

    def refresh_schemas(self) -> list[TableSchema]:
        loaded = self._load(again=True)
        denied = self._reader.denied or self._writer.denied
        halted = any(is_unreadable(c.known.table) for c in loaded.captured)
        present = install.MysqlInstalledObjects.read(self._writer)
        lacks = privileges.find_missing_privileges(
            self._writer, loaded.captured, present, logs=denied or halted or not self._has_tested_privileges
        )
        self._has_tested_privileges, self._reader.denied, self._writer.denied = True, False, False
        self._retry_halted_tables(loaded, lacks)
        changed = refresh.refresh_registry(self._writer, loaded, self._marks, lacks, present)
        if changed or registry.read_mark(self._writer) != loaded.mark:
            loaded = self._load(again=True)
        self._watched_at = self._monotonic()
        known = self._known or set()
        self._known = known | {(c.known.table_id, c.known.schema.version) for c in loaded.captured}
        return [c.known.schema for c in loaded.captured if (c.known.table_id, c.known.schema.version) not in known]

    def _retry_halted_tables(self, loaded: MysqlCaptureState, lacks: Container[int]) -> None:
        """Resume tables that may be read again, and those that halted at a row and were written to since."""
        readable = [c.known for c in loaded.captured if c.table_id not in lacks]
        for known in (k for k in readable if is_unreadable(k.table)):
            registry.set_state(self._writer, known.table_id, *state_before_halt(known.table))
        halted = [k for k in readable if is_halted(k.table)]
        waiting = registry.read_backlog(self._writer, [k.table_id for k in halted])
        for known in halted:
            if self._halts.may_retry(known.table_id, waiting[known.table_id]):
                registry.set_state(self._writer, known.table_id, *state_before_halt(known.table))

    def wait(self, pause_s: float, rest_s: float = 0.0) -> bool:
        return False

    def open_cut(self, fills: Seq[FillState]) -> Cut | None:
        loaded = self._load()
        self._check_numbers(loaded)
        return open_cut(self._reader, self._writer, loaded, fills, self._pace, self._halts, self._left)

    def _check_numbers(self, loaded: MysqlCaptureState) -> None:
        """Check periodically whether InnoDB's number of a table has changed: TRUNCATE leaves no other trace."""
        if self._monotonic() < self._watched_at + WATCH_S:
            return
        now, noted = self._marks.read_present(), self._marks.read_stored()
        for c in loaded.captured:
            mark = self._marks.table_mark(c.schema.name, now)
            if mark and c.state not in (registry.PAUSED, RELEASING) and noted.get(c.table_id) != mark:
                raise SchemaChanged(f"{c.schema.qualified} was truncated or rebuilt, or is new")
        self._watched_at = self._monotonic()

    def _load(self, *, again: bool = False) -> MysqlCaptureState:
        """Read the registry and the dictionary, and build the statements of the tables."""
        if self._loaded is None or again:
            registry.require_installation(self._writer)
            self._loaded = load_capture_state(self._writer)
            if self._known is None:
                self._known = {(c.known.table_id, c.known.schema.version) for c in self._loaded.captured}
        return self._loaded
