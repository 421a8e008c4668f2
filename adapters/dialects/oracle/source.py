"""Oracle as a source: the dialect contract over two sessions (VENUS 3.1).

The reader holds the snapshot of a cut; the writer does everything else in short transactions.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

from venus.adapters.dialects.contract import (
    FillState,
    MissingGrant,
    RegisteredTable,
    SchemaChanged,
    SourceCapabilities,
    SourceState,
)
from venus.adapters.dialects.halted_tables import HaltTracker, halt_reason, is_halted, state_before_halt
from venus.adapters.dialects.oracle import registry, survey
from venus.adapters.dialects.oracle.capture import cut_claims, segments
from venus.adapters.dialects.oracle.capture.cut import OracleCut
from venus.adapters.dialects.oracle.capture.cut_claims import IdlePoll
from venus.adapters.dialects.oracle.installation import data_checks
from venus.adapters.dialects.oracle.installation.install import read_objects
from venus.adapters.dialects.oracle.installation.installer import OracleInstallation
from venus.adapters.dialects.oracle.installation.schema_changes import compare_all, store_changes
from venus.adapters.dialects.oracle.installation.table_comparison import OracleTableComparison
from venus.adapters.dialects.oracle.language import inline
from venus.adapters.dialects.oracle.session.column_choice import OracleColumnChoice
from venus.adapters.dialects.oracle.session.cut_bounds import CutBounds, CutLimits
from venus.adapters.dialects.oracle.session.driver import Driver, OracleOptions, RotatingDriver, parse_driver_url
from venus.adapters.dialects.oracle.sql import statement
from venus.adapters.dialects.oracle.values.rows import OracleAccess, build_access
from venus.config import Settings
from venus.errors import Fenced, NotInstalled, SourceError
from venus.model import BatchNo, BatchRecord, Epoch, TableSchema


def open_source(settings: Settings) -> OracleSource:
    """Connect to the database that the settings name."""
    url = settings.source.url.get_secret_value()
    driver, options = parse_driver_url(url)
    if settings.source.password_file or settings.source.password_command:
        driver = RotatingDriver(driver, url)
    capture = settings.capture
    limits = CutLimits(rows_max=capture.cut_rows_max, bytes_max=capture.cut_bytes_max, read_s=capture.cut_read_s)
    inline_mode = settings.source.mode == "inline"
    columns = OracleColumnChoice(settings.source.columns.include, settings.source.columns.exclude)
    asked = replace(options, inline=inline_mode, type_map=settings.source.type_map, limits=limits, columns=columns)
    return OracleSource(driver, asked)


class OracleSource(OracleInstallation):
    """One Oracle database, used by one thread."""

    name = "oracle"
    capabilities = SourceCapabilities(transactional_ddl=False)

    def __init__(self, driver: Driver, options: OracleOptions | None = None) -> None:
        super().__init__(driver, options)
        self._place = driver.place
        self._accesses: dict[int, OracleAccess] = {}
        self._sees_blockers = True
        self._fingerprints: dict[int, str] = {}
        self._halts = HaltTracker()
        self._bounds = CutBounds(self._options.limits)
        self._polls = IdlePoll()

    # -- the registry and the checkpoint row ---------------------------------------------------------------

    def read_registered_tables(self) -> list[RegisteredTable]:
        return [c.table for c in self._read_registry().values()]

    def read_released_tables(self) -> list[RegisteredTable]:
        return [c.table for c in self._read_registry(released=True).values()]

    def read_row_counts(self) -> dict[int, int]:
        found = survey.read_row_counts(self._writer, [t.schema for t in self.read_registered_tables()])
        self._writer.rollback()
        return found

    def read_registry_fingerprint(self) -> str:
        found = repr(self._writer.fetch_rows(statement("registry", "sign")))
        self._writer.rollback()
        return found

    def set_table_state(self, table_id: int, state: str, reason: str) -> None:
        with self._writer.transaction():
            if not registry.set_state(self._writer, table_id, state, reason):
                raise _unknown_table(table_id)

    def halt(self, epoch: Epoch, table_id: int, why: str) -> None:
        with self._writer.transaction():
            registry.lock_epoch(self._writer, epoch)
            captured = registry.read_tables(self._writer).get(table_id)
            if captured is None:
                raise _unknown_table(table_id)
            if captured.table.state != registry.PAUSED:
                registry.set_state(self._writer, table_id, registry.PAUSED, halt_reason(captured.table, why))

    def restart_fill(self, table_id: int) -> None:
        """Restart the fill of a table; if its triggers are in order, this also ends RESYNC."""
        how = next((c for c in self._compare_all() if c.captured.schema.table_id == table_id), None)
        if how is None:
            raise _unknown_table(table_id)
        with self._writer.transaction():
            self._writer.run(statement("registry", "restart_fill"), {"table_id": table_id})
            if how.captured.table.state == registry.RESYNC and not how.reason and not how.grant:
                registry.set_state(self._writer, table_id, registry.ACTIVE, "")

    def restart_with_sweep(self, table_id: int, version: int) -> None:
        if registry.read_tables(self._writer)[table_id].is_unfinished:
            return  # VENUS has shipped nothing of it
        self.restart_fill(table_id)
        with self._writer.transaction():
            registry.restart_with_sweep(self._writer, table_id, version)
        self._mark, self._fingerprints = None, {}  # `_accesses` has the earlier version

    def read_state(self) -> SourceState:
        if not self._is_installed():
            raise NotInstalled(
                f"source {self._place}: VENUS is not installed here", hint="run `venus install-triggers`"
            )
        found = registry.source_state(self._writer.fetch_row(statement("registry", "state")))
        self._writer.rollback()
        return found

    def raise_epoch(self, epoch: Epoch) -> SourceState:
        """Fence older instances; the row's lock waits for their local transaction."""
        with self._writer.transaction():
            held = registry.lock_checkpoint(self._writer)
            if held.epoch > epoch:
                raise Fenced(f"the source is at epoch {held.epoch}, this adapter at {epoch}")
            self._writer.run(statement("registry", "raise_epoch"), {"epoch": epoch})
        return replace(held, epoch=epoch)

    def read_batches(self, numbers: Seq[BatchNo]) -> dict[BatchNo, BatchRecord]:
        """Read batches under the lock of the checkpoint row, which excludes an unfinished local transaction."""
        with self._writer.transaction():
            registry.lock_checkpoint(self._writer)
            return registry.read_batches(self._writer, numbers)

    def write_heartbeat(self) -> None:
        with self._writer.transaction():
            now = {"beat_at": registry.read_clock(self._writer)}
            if not self._writer.run(statement("registry", "beat"), now):
                self._writer.run(statement("registry", "beat_again"), now)

    def find_missing_grants(self) -> list[MissingGrant]:
        return []  # the tables are in the user's own schema, whose privileges cannot be revoked

    def find_blocking_locks(self) -> dict[str, str]:
        return {}

    def describe_blockers(self) -> str:
        """Describe the oldest open transaction on a log table, or the grants needed to see it."""
        found = data_checks.describe_blocker(self._writer, self._dictionary_and_version()[1].user)
        self._writer.rollback()
        return found

    def read_backlog(self) -> dict[int, tuple[int, int]]:
        """Return the number of waiting log rows and, if this user may see it, the age of the oldest transaction."""
        found = cut_claims.read_backlog(
            self._writer, self._dictionary_and_version()[1].read_inline_tables(), self._blocker_ages()
        )
        self._writer.rollback()
        return found

    def _blocker_ages(self) -> dict[str, int]:
        ages = data_checks.read_blocker_ages(self._writer) if self._sees_blockers else None
        self._sees_blockers = ages is not None  # a refusal is not asked for again
        return ages or {}

    # -- capture ---------------------------------------------------------------------------------------------

    def refresh_schemas(self) -> list[TableSchema]:
        """Compare the dictionary with the registry; store the changes."""
        self._reader.rollback()
        self._retry_halted_tables()
        store_changes(self._writer, self._dictionary_and_version()[1])
        known = {(a.layout.schema.table_id, a.layout.schema.version) for a in self._accesses.values()}
        self._use_comparisons(self._compare_all())
        self._listed = self._dictionary_and_version()[1].last_listed
        now = [a.layout.schema for a in self._accesses.values()]
        return [s for s in now if (s.table_id, s.version) not in known]

    def _compare_all(self) -> list[OracleTableComparison]:
        return compare_all(self._writer, self._dictionary_and_version()[1])

    def _retry_halted_tables(self) -> None:
        """Resume tables that halted at a row and have been written to since: the row may have been corrected."""
        halted = [c.table for c in registry.read_tables(self._writer).values() if is_halted(c.table)]
        waiting = self._extents() if halted else {}
        for table in halted:
            table_id = table.schema.table_id
            if self._halts.may_retry(table_id, waiting[table_id]):
                self.set_table_state(table_id, *state_before_halt(table))
        self._writer.rollback()

    def _extents(self) -> dict[int, int]:
        """Return the present `extent` of every table, as a claim would have it."""
        found = {table_id: rows for table_id, (rows, _) in self.read_backlog().items()}
        if self._dictionary_and_version()[1].read_inline_tables():
            found |= {table_id: polled.highest for table_id, polled in inline.read_polled_ranges(self._writer).items()}
        return found

    def _use_comparisons(self, found: Seq[OracleTableComparison]) -> None:
        """Use this state of the dictionary for the next cuts."""
        tables = [c.table for c in found if c.table is not None]
        self._accesses = {t.schema.table_id: build_access(t) for t in tables}
        self._fingerprints = {table_id: mark for table_id, (_, mark) in registry.read_states(self._writer).items()}
        self._mark = None
        self._polls.disable()
        self._writer.rollback()

    def wait(self, pause_s: float, rest_s: float = 0.0) -> bool:
        return False

    def open_cut(self, fills: Seq[FillState]) -> OracleCut | None:
        """Open a snapshot, unless it has nothing to read."""
        if not fills and self._polls.is_idle(self._reader):
            self._polls.coalesce_index(self._writer)
            return None
        self._reader.rollback()
        if any(a.archived for a in self._accesses.values()):
            self._reader.run(statement("cut", "see_archived"))
        self._reader.run(statement("cut", "begin"))
        try:
            cut = self._build_cut(fills)
        except BaseException:
            self._reader.rollback()
            raise
        if cut is None:
            self._reader.rollback()
        return cut

    def _build_cut(self, fills: Seq[FillState]) -> OracleCut | None:
        captured_at_us = registry.read_clock(self._reader)
        states = registry.read_states(self._reader)
        self._accept_dictionary(states)
        noted = self._reader.fetch_rows(statement("registry", "ddl_rows"))
        if what := cut_claims.first_unhandled_ddl(noted, self._accesses):
            self._mark = None
            raise SchemaChanged(f"source {self._place}: {what}")
        self._polls.disable()
        readable = {t: a for t, a in self._accesses.items() if states.get(t, ("PAUSED",))[0] != registry.PAUSED}
        truncated = cut_claims.find_truncations(noted, self._accesses, readable)
        claims = cut_claims.build_claims(self._reader, self._bounds, readable, truncated.tables)
        filling = {f.table_id: (f, readable[f.table_id]) for f in fills if f.table_id in readable}
        self._polls.prepare(self._accesses, self._accesses.keys() - readable.keys())
        if not claims and not filling:
            self._polls.record_empty_cut(noted)
            return None
        return OracleCut(
            reader=self._reader,
            writer=self._writer,
            captured_at_us=captured_at_us,
            claims=claims,
            ddl_numbers=truncated.numbers,
            fills=filling,
            halts=self._halts,
            bounds=self._bounds,
            deleted=self._polls.deleted,
            watches_segments=bool(truncated.tables) and segments.TABLE in read_objects(self._writer).kinds,
        )

    def _accept_dictionary(self, states: dict[int, tuple[str, str]]) -> None:
        """Use the present dictionary if the registry agrees with it. Raises SchemaChanged if it does not."""
        count, newest, recent = self._reader.fetch_row(statement("dictionary", "mark"))
        fingerprints = {table_id: mark for table_id, (_, mark) in states.items()}
        if self._mark == (count, newest) and fingerprints == self._fingerprints:
            return
        found = self._compare_all()
        if any(c.has_changes for c in found):
            raise SchemaChanged(f"source {self._place}: the dictionary no longer matches the registry")
        self._use_comparisons(found)
        if self._fingerprints != fingerprints:
            raise SchemaChanged(f"source {self._place}: the registry has changed in the meantime")
        # the dictionary's times are whole seconds: a second change within the same one must not be missed
        self._mark = None if recent else (count, newest)


def _unknown_table(table_id: int) -> SourceError:
    return SourceError(f"table {table_id} is not captured", hint="`venus status` lists the tables")
