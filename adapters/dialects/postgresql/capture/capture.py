"""Capture at a PostgreSQL source: schema changes, the backlog, waiting for changes, and the opening of cuts.

Capture caches the registry, the dictionary and the prepared poll, and every snapshot validates these caches. A change
of the registry by another process raises SchemaChanged, and `refresh_schemas` reads it again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import partial

from venus.adapters.dialects.contract import Cut, FillState, MissingGrant, SourceCapture
from venus.adapters.dialects.postgresql import lock_waits, registry
from venus.adapters.dialects.postgresql.capture import cut_statements
from venus.adapters.dialects.postgresql.capture.cut import PostgresCut, PostgresFillPace
from venus.adapters.dialects.postgresql.capture.cut_opening import (
    PREPARED_TABLES_MAX,
    CutGuess,
    DirtyMarks,
    LockWaitState,
    PolledTables,
    find_unlocked_fills,
    open_cut,
)
from venus.adapters.dialects.postgresql.connection import PostgresConnection
from venus.adapters.dialects.postgresql.installation import schema_changes
from venus.adapters.dialects.postgresql.registry import PostgresRegistry
from venus.adapters.dialects.postgresql.sql import log_table_name, statement
from venus.adapters.dialects.registry_rules import HaltTracker, is_halted, is_unreadable, state_before_halt
from venus.errors import SourceError
from venus.model import TableSchema

logger = logging.getLogger(__name__)

#: Every log is read at this interval regardless of the marks, so a lost mark delays a change but never loses it.
LOOK_S = 30.0
#: How long `wait` occupies the connection. A stop waits for it.
WAIT_S = 0.1
#: The same for an idle source, whose marks are read rarely: a wait costs as much as about seven reads of them.
REST_S = 1.0
REST_LOOKS = 20
#: A wait takes at most this share of the time after which the server logs slow statements.
UNLOGGED = 0.8
#: Marks and logs are vacuumed after this many cuts. Each read of the marks reads all dead rows, and autovacuum starts
#: only when that costs forty times as much.
TIDY_CUTS = 100
TIDY_TABLES_MAX = 16
#: The shortest pause of pg_sleep.
LEAST_PAUSE_S = 0.001
#: How many sessions that block capture are named, the oldest first.
HOLDERS_MAX = 3
#: Dictionary and registry are compared at this interval even if their fingerprint is unchanged.
COMPARE_S = 600.0


class PostgresCapture(SourceCapture):
    """The part of a source that finds and reads changes."""

    def __init__(
        self, connection: PostgresConnection, registry: PostgresRegistry, monotonic: Callable[[], float]
    ) -> None:
        self._connection = connection
        self._registry = registry
        self._tables = PolledTables.classify([])
        self._is_prepared = False
        self._known: set[tuple[int, int]] = set()
        self._pace = PostgresFillPace()
        self._halts = HaltTracker()
        self._locked = LockWaitState(monotonic)
        self._monotonic = monotonic
        self._seen = ""  # fingerprint of dictionary and registry at the last comparison
        self._compare_at = self._look_at = float("-inf")
        self._cut: PostgresCut | None = None
        self._seen_marks: DirtyMarks | None = None  # the marks that `wait` read for the next cut
        self._waiting = ""  # the statement by which the next cut waits for changes
        self._recent: tuple[int, ...] = ()  # the tables of the last cut with the application's changes, if few
        self._gave_way = False
        self._rest_s = WAIT_S
        #: Whether tables are read one at a time.
        self._reads_apart = False
        self._has_functions = False
        self._cuts = 0  # number of cuts since marks and logs were vacuumed, with the tables in them
        self._used: set[int] = set()
        self._tidies = True

    @property
    def _is_ready(self) -> bool:
        """Whether the registry is loaded, and the session's statements are prepared."""
        return self._is_prepared and self._registry.is_loaded

    def refresh_schemas(self) -> list[TableSchema]:
        """Compare dictionary and registry, unless their fingerprint is unchanged: many tables make this expensive.

        A failed cut also triggers a comparison. A change that the fingerprint does not show is found after COMPARE_S
        seconds.
        """
        now, failed = self._monotonic(), self._cut is not None and not self._cut.committed
        seen = registry.read_fingerprint(self._connection, self._registry.captured) if self._is_ready else ""
        same = self._is_ready and seen == self._seen and not failed and now < self._compare_at
        if same and not self._retry_halted_tables():
            return []
        self._load(again=True)
        halted = schema_changes.pause_unreadable_tables(self._connection, self._registry.captured)
        if (
            halted
            | self._retry_halted_tables()
            | bool(schema_changes.refresh_registry(self._connection, self._registry.captured))
        ):
            self._load(again=True)
        self._cut, self._seen, self._compare_at = None, seen, now + COMPARE_S
        found = [c.schema for c in self._registry.captured if (c.schema.table_id, c.schema.version) not in self._known]
        self._known |= {(c.schema.table_id, c.schema.version) for c in self._registry.captured}
        return found

    def _retry_halted_tables(self) -> bool:
        """Resume tables that halted; return whether there were any.

        A table is resumed only if it is readable and, where it halted at a row, has been written to since.
        """
        stopped = [c for c in self._registry.captured if is_halted(c.registered) or is_unreadable(c.registered)]
        unreadable = registry.find_unreadable_tables(self._connection, registry.table_oids(stopped))
        readable = [c.registered for c in stopped if c.schema.table_id not in unreadable]
        waiting = registry.count_waiting(self._connection, (t.schema.table_id for t in readable if is_halted(t)))
        retried = [
            t
            for t in readable
            if is_unreadable(t) or self._halts.may_retry(t.schema.table_id, waiting[t.schema.table_id])
        ]
        for table in retried:
            registry.set_state(self._connection, table.schema.table_id, *state_before_halt(table))
        return bool(retried)

    def wait(self, pause_s: float, rest_s: float = 0.0) -> bool:
        """Wait in the server for a dirty mark, or leave that to the next cut; return False if the caller must wait."""
        if not self._is_ready or self._gave_way or pause_s > WAIT_S:
            return False
        wait_s = max(WAIT_S, min(self._rest_s, REST_LOOKS * pause_s, rest_s))
        looks = max(1, int(wait_s / max(pause_s, LEAST_PAUSE_S)))
        looking = cut_statements.wait_statement(
            self._tables.waiting, pause_s=pause_s, looks=looks, as_block=not self._has_functions
        )
        if self._cut is not None and self._recent:  # the next change probably follows soon, in the same tables
            self._waiting = looking
            return True
        try:
            self._seen_marks = DirtyMarks.read(self._connection, f"{looking}; ")
        except SourceError:  # the next cut fails as well, and reports the cause
            return False
        return True

    def open_cut(self, fills: Seq[FillState]) -> Cut | None:
        self._load()
        now = self._monotonic()
        everywhere = now >= self._look_at
        seen, self._seen_marks = self._seen_marks, None
        waiting, self._waiting = self._waiting, ""
        recent = CutGuess(self._recent, waiting) if waiting and not fills and not everywhere else None
        opening = partial(
            open_cut,
            self._connection,
            self._registry.captured,
            self._tables,
            self._registry.mark,
            everywhere=everywhere,
        )
        try:
            idle = self._cut is None
            self._cut = opening(fills, self._pace, self._halts, self._locked, idle=idle, seen=seen, recent=recent)
            if self._cut is None and fills and self._locked.is_waiting:
                # a fill can continue in any later cut, so a lock on its table need not delay the other tables
                self._cut = self._open_without_locked_fills(opening, fills)
        except SourceError:
            self._seen = ""
            raise
        if everywhere:
            self._look_at = now + LOOK_S
        if self._cut is not None:
            self._cuts += 1
            self._used |= self._cut.table_ids
            self._recent = self._cut.table_ids_of_application
            if len(self._recent) > PREPARED_TABLES_MAX:
                self._recent = ()
        # if marks remain without a cut, for example because the application has locked a table, do not poll at once
        self._gave_way = self._cut is None and seen is not None and seen.has_work(self._tables)
        return self._cut

    def _open_without_locked_fills(
        self, opening: Callable[..., PostgresCut | None], fills: Seq[FillState]
    ) -> PostgresCut | None:
        """Open a cut with only those fills whose tables are not exclusively locked by the application."""
        free = find_unlocked_fills(self._connection, self._registry.captured, fills)
        left = [f for f in fills if f not in free]
        self._locked.left_out = {f.table_id for f in left}
        cut = opening(free, self._pace, self._halts, self._locked, idle=False)
        if cut is not None:
            cut.exclude_fills(left)
        return cut

    def restart_fill(self, table_id: int) -> None:
        """Restart the fill of a table. If the table's triggers are complete, this also ends RESYNC."""
        with self._connection.transaction():
            registry.restart_fill(self._connection, table_id)
            schema_changes.store_present_marks(self._connection, table_id)
            known, _ = next(
                k for k in registry.read_registered_tables(self._connection) if k[0].schema.table_id == table_id
            )
            if known.state == schema_changes.RESYNC and self._is_complete(table_id):
                registry.set_state(self._connection, table_id, "ACTIVE", "")
        self._registry.invalidate()

    def restart_with_sweep(self, table_id: int, version: int) -> None:
        self.restart_fill(table_id)
        with self._connection.transaction():
            registry.restart_with_sweep(self._connection, table_id, version)

    def _is_complete(self, table_id: int) -> bool:
        """Return whether no trigger or other object that captures the table is missing."""
        captured, _ = self._registry.read_captured_tables()
        return any(c.schema.table_id == table_id and schema_changes.is_complete(self._connection, c) for c in captured)

    def limit_lock_waits(self) -> None:
        self._connection.limit_lock_waits()

    def read_backlog(self) -> dict[int, tuple[int, int]]:
        """Return by table how many log rows wait, and the age of the oldest transaction that still writes to it."""
        return registry.read_backlog(self._connection, self._table_oids())

    def _table_oids(self) -> dict[int, int]:
        """Return the oids of the captured tables by table_id."""
        loaded = self._registry.is_loaded
        return registry.table_oids(self._registry.captured) if loaded else registry.read_table_oids(self._connection)

    def find_missing_grants(self) -> list[MissingGrant]:
        return registry.find_missing_grants(self._connection)

    def find_blocking_locks(self) -> dict[str, str]:
        return dict(self._locked.holders_by_table)

    def describe_blockers(self) -> str:
        tables = filter(None, self._table_oids().values())
        found = lock_waits.find_holders(self._connection, tables, lock_waits.FROM_CAPTURE)[:HOLDERS_MAX]
        return "; ".join(f"{w.table}: {w.holder}" for w in found)

    def write_heartbeat(self) -> None:
        if not self._connection.run(statement("registry", "beat")):
            self._connection.run(statement("registry", "beat_again"))
        if self._tidies and self._cuts >= TIDY_CUTS:
            self._vacuum()

    def _vacuum(self) -> None:
        """VACUUM the dirty marks and the logs that the last cuts have read."""
        logs = [log_table_name(table_id) for table_id in sorted(self._used)[:TIDY_TABLES_MAX]]
        self._cuts, self._used = 0, set()
        try:
            self._connection.run(statement("cut", "tidy", tables=", ".join(["venus.dirty", *logs])))
        except SourceError as error:
            self._tidies = False
            logger.info("only autovacuum cleans up marks and logs: %s", error)

    def _load(self, *, again: bool = False) -> None:
        """Read the registry and the dictionary, and prepare the statements that poll the tables."""
        if not self._registry.load(again=again) and self._is_prepared:
            return
        self._is_prepared = False
        if not self._known:
            self._known = {(c.schema.table_id, c.schema.version) for c in self._registry.captured}
            self._has_functions = self._create_functions()
        self._reads_apart |= self._cut is not None and self._cut.reads_apart
        self._tables = PolledTables.classify(
            self._registry.captured, together=self._has_functions, apart=self._reads_apart
        )
        self._connection.run(
            "; ".join(["DEALLOCATE ALL", *cut_statements.prepare_statements(looker=self._has_functions)])
        )
        self._connection.expect_types(oid for (oid,) in self._connection.rows(statement("cut", "types")))
        self._rest_s = self._read_wait_limit()
        self._is_prepared, self._look_at = True, float("-inf")

    def _create_functions(self) -> bool:
        """Create the session's functions that wait and read; return whether the role may do that.

        Without these functions, VENUS waits in a DO block, which is planned each time, and every table needs its own
        round trip.
        """
        try:
            self._connection.run(cut_statements.session_functions())
        except SourceError as error:
            logger.info("capture waits in a DO block and reads tables one at a time: %s", error)
            return False
        return True

    def _read_wait_limit(self) -> float:
        """Return how long a waiting statement may run before the server logs it; REST_S if nearly all are logged."""
        logged_s = float(self._connection.row(statement("cut", "logged_from"))[0])
        return REST_S if logged_s * UNLOGGED < WAIT_S else min(REST_S, logged_s * UNLOGGED)
