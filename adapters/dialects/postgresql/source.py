"""PostgreSQL as a source: the implementation of the dialect contract.

One thread uses one connection. The registry, the dictionary and the prepared poll are cached, and every snapshot
validates them. A change of the registry by another process raises SchemaChanged, and refresh_schemas() reads it again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from functools import partial

from venus.adapters.dialects.columns import NO_CHOICE, ColumnChoice
from venus.adapters.dialects.contract import (
    Capabilities,
    Cut,
    FillState,
    InstallStep,
    Numbering,
    OtherObject,
    OwnLack,
    RegisteredTable,
    SourceState,
    UncapturedTable,
)
from venus.adapters.dialects.halting import Halts, is_halted, is_unreadable, state_before
from venus.adapters.dialects.postgresql import (
    cutsql,
    dictionary,
    install,
    names,
    refresh,
    registry,
    removing,
    seen,
    structure,
    waits,
)
from venus.adapters.dialects.postgresql.check import check, uncaptured_tables
from venus.adapters.dialects.postgresql.connection import Connection
from venus.adapters.dialects.postgresql.cut import FillPace, PostgresCut
from venus.adapters.dialects.postgresql.opening import Locked, Marks, Tables, open_cut, unlocked
from venus.adapters.dialects.postgresql.registry import Captured
from venus.adapters.dialects.postgresql.statements import statement
from venus.adapters.dialects.script import plain_script
from venus.config import Settings
from venus.errors import SourceError
from venus.model import BatchNo, BatchRecord, Epoch, Finding, TableSchema

logger = logging.getLogger(__name__)

CAPABILITIES = Capabilities(transactional_ddl=True)

#: Every log is read at this interval regardless of the marks, so a lost mark delays a change but never loses it.
LOOK_S = 30.0
#: How long `wait` occupies the connection. A stop waits for it.
WAIT_S = 0.1
#: The same for an idle source with rare looks: one wait costs as much as about seven looks.
REST_S = 1.0
REST_LOOKS = 20
#: A wait takes at most this share of the time after which the server logs slow statements.
UNLOGGED = 0.8
#: Marks and logs are vacuumed after this many cuts. Each look for marks reads all dead rows, and autovacuum starts only
#: when that costs forty times as much.
TIDY_CUTS = 100
TIDY_TABLES_MAX = 16
#: The shortest pause of pg_sleep.
LEAST_PAUSE_S = 0.001
#: How many sessions that block capture are named, the oldest first.
HOLDERS_MAX = 3
#: Dictionary and registry are compared at this interval even if their fingerprint is unchanged.
COMPARE_S = 600.0


def open_source(settings: Settings) -> PostgresSource:
    """Connect to the source in the settings."""
    return PostgresSource(settings.source.url.get_secret_value(), columns=ColumnChoice.of(settings))


class PostgresSource:
    """A PostgreSQL database whose changes are captured."""

    name = "postgresql"
    capabilities = CAPABILITIES

    def __init__(
        self, url: str, *, columns: ColumnChoice = NO_CHOICE, monotonic: Callable[[], float] = time.monotonic
    ) -> None:  # fmt: skip
        self._connection = Connection(url, columns=columns)
        self._captured: list[Captured] = []
        self._tables = Tables.of([])
        self._mark = ""
        self._loaded = False
        self._known: set[tuple[int, int]] = set()
        self._pace = FillPace()
        self._halts = Halts()
        self._locked = Locked(monotonic)
        self._schemas: registry.Known = {}
        self._monotonic = monotonic
        self._seen = ""  # fingerprint of dictionary and registry at the last comparison
        self._compare_at = self._look_at = float("-inf")
        self._cut: PostgresCut | None = None
        self._seen_marks: Marks | None = None  # that `wait` read for the next cut
        self._gave_way = False
        self._rest_s = WAIT_S
        #: Whether tables are read one at a time.
        self._reads_apart = False
        self._has_functions = False
        self._cuts = 0  # since the last vacuum of marks and logs, with the tables that they contained
        self._used: set[int] = set()
        self._tidies = True

    def close(self) -> None:
        self._connection.close()

    # -- dictionary and installation -----------------------------------------------------------------------------

    def tables(self, include: Seq[str], exclude: Seq[str]) -> list[TableSchema]:
        connection = self._connection
        with connection.reading():
            known = {}
            if registry.is_installed(connection):
                known = {(t.schema.namespace, t.schema.name): t.schema for t, _ in registry.registered(connection)}
            rows = dictionary.listed(dictionary.all_tables(connection), include, exclude)
            found = []
            for table in dictionary.read(connection, rows):
                schema = known.get((table.namespace, table.name))
                if table.key and not table.unsupported and table.kind != "f":
                    found.append(table.schema(schema.table_id if schema else 0, schema.version if schema else 1))
        return found

    def table_names(self) -> list[str]:
        return [f"{r[1]}.{r[2]}" for r in dictionary.application(dictionary.all_tables(self._connection))]

    def uncaptured_tables(self, include: Seq[str], exclude: Seq[str]) -> list[UncapturedTable]:
        with self._connection.reading():
            return uncaptured_tables(self._connection, include, exclude)

    def unmatched(self, patterns: Seq[str]) -> list[str]:
        return dictionary.unmatched(dictionary.all_tables(self._connection), patterns)

    def numberings(self) -> list[Numbering]:
        return structure.numberings(self._connection, self._namespaces())

    def other_objects(self) -> list[OtherObject]:
        return structure.others(self._connection, self._namespaces())

    def _namespaces(self) -> list[str]:
        tables = registry.registered(self._connection) if registry.is_installed(self._connection) else []
        return sorted({t.schema.namespace for t, _ in tables} - {names.OWN_SCHEMA})

    def check(self, include: Seq[str], exclude: Seq[str]) -> list[Finding]:
        return check(self._connection, include, exclude)

    def install_plan(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        return install.install_plan(self._connection, include, exclude)

    def install(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        self._loaded = False
        return install.install(self._connection, include, exclude)

    def uninstall_plan(self) -> list[InstallStep]:
        return removing.uninstall_plan(self._connection)

    def uninstall(self) -> list[InstallStep]:
        self._loaded = False
        return removing.uninstall(self._connection)

    def release_plan(self, table_ids: Seq[int]) -> list[InstallStep]:
        return removing.release_plan(self._connection, table_ids)

    def release(self, table_ids: Seq[int]) -> list[InstallStep]:
        self._loaded = False
        return removing.release(self._connection, table_ids)

    def drop_logs(self, reasons: Mapping[int, str]) -> list[InstallStep]:
        self._loaded = False
        return removing.drop_logs(self._connection, reasons)

    def as_script(self, steps: Seq[InstallStep], *, removal: bool) -> str:
        return plain_script(steps, removal=removal)

    # -- the registry and the checkpoint row -----------------------------------------------------------------------

    def registered(self) -> list[RegisteredTable]:
        registry.require_installed(self._connection)
        return [t for t, _ in registry.registered(self._connection, self._schemas)]

    def released(self) -> list[RegisteredTable]:
        registry.require_installed(self._connection)
        return [t for t, _ in registry.registered(self._connection, self._schemas, released=True)]

    def row_counts(self) -> dict[int, int]:
        return registry.row_counts(self._connection, self.registered())

    def registry_sign(self) -> str:
        return str(self._connection.row(statement("registry", "sign"))[0])

    def set_table_state(self, table_id: int, state: str, reason: str) -> None:
        registry.set_state(self._connection, table_id, state, reason)
        self._loaded = False

    def halt(self, epoch: Epoch, table_id: int, why: str) -> None:
        registry.halt(self._connection, epoch, table_id, why)
        self._loaded = False

    def restart_fill(self, table_id: int) -> None:
        """Restart the fill of a table. This also ends RESYNC if its triggers are complete."""
        with self._connection.transaction():
            registry.restart_fill(self._connection, table_id)
            seen.all_read_again(self._connection, table_id)
            known, _ = next(k for k in registry.registered(self._connection) if k[0].schema.table_id == table_id)
            if known.state == refresh.RESYNC and self._is_whole(table_id):
                registry.set_state(self._connection, table_id, "ACTIVE", "")
        self._loaded = False

    def start_over(self, table_id: int, version: int) -> None:
        self.restart_fill(table_id)
        with self._connection.transaction():
            registry.start_over(self._connection, table_id, version)

    def _is_whole(self, table_id: int) -> bool:
        captured, _ = registry.load(self._connection, self._schemas)
        return any(c.schema.table_id == table_id and refresh.is_whole(self._connection, c) for c in captured)

    def state(self) -> SourceState:
        registry.require_installed(self._connection)
        return registry.state(self._connection)

    def raise_epoch(self, epoch: Epoch) -> SourceState:
        return registry.raise_epoch(self._connection, epoch)

    def batches(self, numbers: Seq[BatchNo]) -> dict[BatchNo, BatchRecord]:
        return registry.batches(self._connection, numbers)

    def beat(self) -> None:
        if not self._connection.run(statement("registry", "beat")):
            self._connection.run(statement("registry", "beat_again"))
        if self._tidies and self._cuts >= TIDY_CUTS:
            self._tidy()

    def _tidy(self) -> None:
        logs = [names.log_table(table_id) for table_id in sorted(self._used)[:TIDY_TABLES_MAX]]
        self._cuts, self._used = 0, set()
        try:
            self._connection.run(statement("cut", "tidy", tables=", ".join(["venus.dirty", *logs])))
        except SourceError as error:
            self._tidies = False
            logger.info("only autovacuum cleans up marks and logs: %s", error)

    def backlog(self) -> dict[int, tuple[int, int]]:
        self._load()
        return registry.backlog(self._connection, self._captured)

    def own_lacking(self) -> list[OwnLack]:
        return registry.own_lacking(self._connection)

    def locked(self) -> dict[str, str]:
        return dict(self._locked.by)

    def blocked_by(self) -> str:
        self._load()
        tables = (c.table.oid for c in self._captured if c.table)
        found = waits.holders(self._connection, tables, waits.FROM_CAPTURE)[:HOLDERS_MAX]
        return "; ".join(f"{w.table}: {w.holder}" for w in found)

    # -- capture ---------------------------------------------------------------------------------------------------

    def refresh_schemas(self) -> list[TableSchema]:
        """Compare dictionary and registry, unless their fingerprint is unchanged: many tables make this expensive.

        A failed cut also triggers a comparison. A change that the fingerprint does not show is found after COMPARE_S.
        """
        now, failed = self._monotonic(), self._cut is not None and not self._cut.committed
        seen = registry.fingerprint_now(self._connection, self._captured) if self._loaded else ""
        same = self._loaded and seen == self._seen and not failed and now < self._compare_at
        if same and not self._retry_halted():
            return []
        self._load(again=True)
        halted = refresh.halt_unreadable(self._connection, self._captured)
        if halted | self._retry_halted() | bool(refresh.refresh(self._connection, self._captured)):
            self._load(again=True)
        self._cut, self._seen, self._compare_at = None, seen, now + COMPARE_S
        found = [c.schema for c in self._captured if (c.schema.table_id, c.schema.version) not in self._known]
        self._known |= {(c.schema.table_id, c.schema.version) for c in self._captured}
        return found

    def _retry_halted(self) -> bool:
        """Resume tables that halted; return whether there were any.

        All of them must be readable, and one that halted at a row must have been written to since.
        """
        stopped = [c for c in self._captured if is_halted(c.registered) or is_unreadable(c.registered)]
        unreadable = registry.unreadable(self._connection, stopped)
        readable = [c.registered for c in stopped if c.schema.table_id not in unreadable]
        waiting = registry.waiting(self._connection, (t.schema.table_id for t in readable if is_halted(t)))
        retried = [
            t for t in readable
            if is_unreadable(t) or self._halts.may_go_on(t.schema.table_id, waiting[t.schema.table_id])
        ]  # fmt: skip
        for table in retried:
            registry.set_state(self._connection, table.schema.table_id, *state_before(table))
        return bool(retried)

    def wait(self, pause_s: float, rest_s: float = 0.0) -> bool:
        if not self._loaded or self._gave_way or pause_s > WAIT_S:
            return False
        wait_s = max(WAIT_S, min(self._rest_s, REST_LOOKS * pause_s, rest_s))
        looks = max(1, int(wait_s / max(pause_s, LEAST_PAUSE_S)))
        looking = cutsql.wait(self._tables.waiting, pause_s=pause_s, looks=looks, as_block=not self._has_functions)
        try:
            self._seen_marks = Marks.read(self._connection, f"{looking}; ")
        except SourceError:  # the next cut fails as well, and reports the cause
            return False
        return True

    def open_cut(self, fills: Seq[FillState]) -> Cut | None:
        self._load()
        now = self._monotonic()
        everywhere = now >= self._look_at
        seen, self._seen_marks = self._seen_marks, None
        opening = partial(open_cut, self._connection, self._captured, self._tables, self._mark, everywhere=everywhere)
        try:
            self._cut = opening(
                fills, self._pace, self._halts, self._locked, idle=self._cut is None, seen=seen
            )  # fmt: skip
            if self._cut is None and fills and self._locked.is_met:
                # a fill can continue in any later cut, so a lock on its table need not delay the other tables
                self._cut = self._without_locked(opening, fills)
        except SourceError:
            self._seen = ""
            raise
        if everywhere:
            self._look_at = now + LOOK_S
        if self._cut is not None:
            self._cuts += 1
            self._used |= self._cut.table_ids
        # if marks remain without a cut, for example because the application has locked a table, do not poll at once
        self._gave_way = self._cut is None and seen is not None and seen.stand_for_work(self._tables)
        return self._cut

    def _without_locked(self, opening: Callable[..., PostgresCut | None], fills: Seq[FillState]) -> PostgresCut | None:
        """Open a cut with only those fills whose tables have no exclusive lock."""
        free = unlocked(self._connection, self._captured, fills)
        left = [f for f in fills if f not in free]
        self._locked.left = {f.table_id for f in left}
        cut = opening(free, self._pace, self._halts, self._locked, idle=False)
        if cut is not None:
            cut.leave(left)
        return cut

    def _load(self, *, again: bool = False) -> None:
        """Read the registry and the dictionary, and prepare the poll for the tables."""
        if self._loaded and not again:
            return
        registry.require_installed(self._connection)
        first = not self._known
        self._captured, self._mark = registry.load(self._connection, self._schemas)
        if first:
            self._known = {(c.schema.table_id, c.schema.version) for c in self._captured}
            self._has_functions = self._make_functions()
        self._reads_apart |= self._cut is not None and self._cut.reads_apart
        self._tables = Tables.of(self._captured, together=self._has_functions and not self._reads_apart)
        self._connection.run("; ".join(["DEALLOCATE ALL", *cutsql.prepared(looker=self._has_functions)]))
        self._connection.expect_types(oid for (oid,) in self._connection.rows(statement("cut", "types")))
        self._rest_s = self._unlogged_s()
        self._loaded, self._look_at = True, float("-inf")

    def _make_functions(self) -> bool:
        """Create the functions that wait and read; return whether that was allowed.

        Without them a DO block waits, which is planned each time, and every table needs its own round trip.
        """
        try:
            self._connection.run(cutsql.functions())
        except SourceError as error:
            logger.info("capture waits in a DO block and reads tables one at a time: %s", error)
            return False
        return True

    def _unlogged_s(self) -> float:
        """Return how long a wait may take without being logged; REST_S at a server that logs nearly everything."""
        logged_s = float(self._connection.row(statement("cut", "logged_from"))[0])
        return REST_S if logged_s * UNLOGGED < WAIT_S else min(REST_S, logged_s * UNLOGGED)
