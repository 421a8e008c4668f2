"""Opening of a cut of a PostgreSQL source: a snapshot, what the logs contain in it, and locks on the tables.

Dirty marks show which log tables have rows. One statement reads all marks, however many tables there are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from venus.adapters.dialects.contract import FillState, SchemaChanged
from venus.adapters.dialects.postgresql.capture import cut_statements
from venus.adapters.dialects.postgresql.capture.cut import (
    PostgresClaim,
    PostgresCut,
    PostgresFillPace,
    PreparedReads,
    build_claim,
    find_tables_with_rows,
    parse_row,
    read_claims,
)
from venus.adapters.dialects.postgresql.connection import Conflict, InvalidText, PostgresConnection
from venus.adapters.dialects.postgresql.dictionary.tables import PostgresTable
from venus.adapters.dialects.postgresql.lock_waits import FROM_READERS, find_holders
from venus.adapters.dialects.postgresql.registry import PostgresCapturedTable
from venus.adapters.dialects.postgresql.rows import FewRows
from venus.adapters.dialects.postgresql.sql import statement
from venus.adapters.dialects.registry_rules import HaltTracker
from venus.errors import LockTimeout

#: About how many dirty marks a paused table keeps at most.
MARKS_MAX = 1000
#: The dirty mark of the registry itself.
REGISTRY = 0
#: Number of the row beside the marks that holds the clock and the epoch.
HEAD = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DirtyMarks:
    """Dirty marks, which show whose logs have rows, as one poll read them with the source's clock and epoch."""

    captured_at_us: int
    epoch: int
    counts: Mapping[int, int]

    @classmethod
    def read(cls, connection: PostgresConnection, before: str = "") -> DirtyMarks:
        """Read the marks after the statements of `before`, in the same round trip."""
        rows = {r[0]: r[1:] for r in connection.rows(f"{before}EXECUTE venus_dirty")}
        captured_at_us, epoch = rows.pop(HEAD)
        return cls(captured_at_us=captured_at_us, epoch=epoch, counts={t: count for t, (count, _) in rows.items()})

    def has_work(self, tables: PolledTables) -> bool:
        """Return whether the marks require a cut; a few marks of paused or unreadable tables do not."""
        return any(t not in tables.waiting or count > MARKS_MAX for t, count in self.counts.items())

    def delete_statements(self, tables: PolledTables) -> list[str]:
        """Return the statements that delete the marks of captured changes, and thin out those of waiting tables."""
        waiting = tables.waiting & self.counts.keys()
        return cut_statements.delete_marks(
            sorted(self.counts.keys() - waiting), sorted(t for t in waiting if self.counts[t] > MARKS_MAX)
        )


@dataclass(frozen=True, slots=True)
class CutGuess:
    """Tables that will probably have changes when the statement `waiting`, which waits for changes, returns."""

    tables: Seq[int]
    waiting: str

    @property
    def before(self) -> str:
        """The SQL before the opening: a wait in a transaction of its own, because the cut needs a later snapshot."""
        return f"BEGIN; {self.waiting}; COMMIT; "


@dataclass(frozen=True, slots=True, kw_only=True)
class PolledTables:
    """The captured tables, divided once for many polls into those to read and those that wait."""

    ready: Mapping[int, PostgresCapturedTable]
    #: Tables whose changes stay in their logs, because they are paused or unreadable.
    waiting: frozenset[int]
    #: Prepared statements that open small cuts, by the tables of the cut and those whose rows they read.
    openings: dict[tuple[tuple[int, ...], frozenset[int]], str] = field(default_factory=dict)
    #: Prepared statements that read few rows.
    reads: PreparedReads = field(default_factory=PreparedReads)

    @classmethod
    def classify(
        cls, captured: Iterable[PostgresCapturedTable], *, together: bool = False, apart: bool = False
    ) -> PolledTables:
        """Divide the tables. `together`: the session can read several at once; `apart`: it has to read each alone."""
        known = {c.schema.table_id: c for c in captured}
        ready = {table_id: c for table_id, c in known.items() if _can_be_captured(c)}
        reads = PreparedReads(together=together and not apart, with_opening=not apart)
        return cls(ready=ready, waiting=frozenset(known.keys() - ready.keys()), reads=reads)


def _can_be_captured(captured: PostgresCapturedTable) -> bool:
    """Return whether cuts read the table: it is not paused, and has the registered version."""
    return captured.table is not None and captured.usable and captured.registered.state != "PAUSED"


logger = logging.getLogger(__name__)

#: How long a cut waits for a table that the application has locked (TRUNCATE, ALTER TABLE) before it is retried later.
#: Well below PostgreSQL's deadlock_timeout of 1 s, so that in a deadlock VENUS gives up first.
GIVE_WAY_MS = 200
#: After this time, look up the holder of an exclusive lock, and again at this interval; log it at the third look-up.
LOG_AFTER_S = 10.0
LOOK_EVERY_S = 5.0
LOG_EVERY_S = 300.0
#: The most tables of a small cut. A cut of more tables takes a few more round trips, which its size justifies.
GUESSED_MAX = 1024
#: Openings are prepared for sets of at most this many tables.
PREPARED_TABLES_MAX = 4


class LockWaitState:
    """State of the lock wait: since when cuts give way to an exclusive lock, and which session holds it."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._since: float | None = None
        self._look_at = self._say_at = 0.0
        #: Holders by table, once the wait has lasted.
        self.holders_by_table: dict[str, str] = {}
        #: Tables whose fills were left out of a cut because of the lock.
        self.left_out: set[int] = set()

    @property
    def is_waiting(self) -> bool:
        """Whether a cut gave way, and no later cut has locked all of its tables yet."""
        return self._since is not None

    def record_success(
        self, connection: PostgresConnection, captured: Seq[PostgresCapturedTable], fills: Seq[FillState]
    ) -> None:
        """Record that a cut locked its tables. Tables left out of the cut may still be locked."""
        if self._since is None:
            return
        if self.left_out - {f.table_id for f in fills}:
            if self._monotonic() < self._look_at:
                return
            self._read_holders(connection, captured)
            if self.holders_by_table:
                return
        self._since, self.holders_by_table, self.left_out = None, {}, set()

    def record_timeout(self, connection: PostgresConnection, captured: Seq[PostgresCapturedTable]) -> None:
        """Record that a cut did not get its locks. If the wait lasts, find and log the lock holders."""
        now = self._monotonic()
        if self._since is None:
            self._since, self._look_at, self._say_at = now, now + LOG_AFTER_S, 0.0
        if now < self._look_at:
            return
        self._read_holders(connection, captured)
        if now >= self._say_at and self.holders_by_table:
            self._say_at = now + LOG_EVERY_S
            for table, holder in self.holders_by_table.items():
                logger.warning(
                    "cuts have been waiting for %.0f s: %s is locked by %s", now - self._since, table, holder
                )

    def _read_holders(self, connection: PostgresConnection, captured: Seq[PostgresCapturedTable]) -> None:
        """Store, by table, which sessions hold the locks that delay cuts."""
        self._look_at = self._monotonic() + LOOK_EVERY_S
        found = find_holders(connection, [oid for c in captured for oid in relation_names(c)], FROM_READERS)
        self.holders_by_table = {
            table: "; ".join(w.holder for w in found if w.table == table) for table in {w.table for w in found}
        }


def relation_names(captured: PostgresCapturedTable) -> dict[int, str]:
    """Return the relations that hold the rows of a table, by oid: itself and its partitions."""
    table = captured.table
    if table is None:
        return {}
    return {table.oid: f"{table.namespace}.{table.name}"} | {
        leaf.oid: f"{leaf.namespace}.{leaf.name}" for leaf in table.leaves
    }


def find_unlocked_fills(
    connection: PostgresConnection, captured: Seq[PostgresCapturedTable], fills: Seq[FillState]
) -> list[FillState]:
    """Return the fills of tables without an exclusive lock; none if the server does not show the locks."""
    filling = {f.table_id for f in fills}
    known = {c.schema.table_id: relation_names(c) for c in captured if c.schema.table_id in filling}
    oids = [oid for found in known.values() for oid in found]
    locked = {wait.table for wait in find_holders(connection, oids, FROM_READERS)}
    return [f for f in fills if locked and locked.isdisjoint(known.get(f.table_id, {}).values())]


def open_cut(
    connection: PostgresConnection,
    captured: Seq[PostgresCapturedTable],
    tables: PolledTables,
    mark: str,
    fills: Seq[FillState],
    pace: PostgresFillPace,
    halts: HaltTracker,
    locked: LockWaitState,
    *,
    everywhere: bool,
    idle: bool,
    seen: DirtyMarks | None = None,
    recent: CutGuess | None = None,
) -> PostgresCut | None:
    """Open a snapshot and find the claims in it.

    `mark` identifies the registry from which `captured` was loaded. `everywhere`: read every log, marked or not.
    `idle`: there is probably no work, so read the marks first, in one round trip without a transaction. `seen`: marks
    that were just read. `recent`: tables in which changes are expected; wait for changes first, in the round trip that
    opens the cut.
    """
    guess: dict[int, PostgresCapturedTable] = {}
    before = ""
    if recent is not None:
        before, guess = recent.before, {t: tables.ready[t] for t in recent.tables if t in tables.ready}
    elif not fills and not everywhere:
        seen = DirtyMarks.read(connection) if seen is None and idle else seen
        if seen is not None and not seen.has_work(tables):
            return None
        guess = _guess_tables(tables, seen) if seen is not None else {}
    try:
        begun, others = _begin_snapshot(connection, tables, guess, mark, before, everywhere=everywhere)
        return _build_cut(connection, captured, tables, begun, others, fills, pace, halts, locked)
    except InvalidText:  # in a row read with the opening: read each table alone, to find out which one halts
        connection.rollback()
        if not tables.reads.with_opening:
            raise
        tables.reads.with_opening = tables.reads.together = False
        return open_cut(
            connection, captured, tables, mark, fills, pace, halts, locked, everywhere=everywhere, idle=False, seen=seen
        )
    except LockTimeout as busy:
        logger.info("no cut at present, the application has locked a table: %s", busy)
        connection.rollback()
        locked.record_timeout(connection, captured)
        return None
    except BaseException:
        connection.rollback()
        raise


def _build_cut(
    connection: PostgresConnection,
    captured: Seq[PostgresCapturedTable],
    tables: PolledTables,
    begun: _Snapshot,
    others: Seq[PostgresClaim],
    fills: Seq[FillState],
    pace: PostgresFillPace,
    halts: HaltTracker,
    locked: LockWaitState,
) -> PostgresCut | None:
    """Return the cut of a snapshot, or end the snapshot if there is nothing to read. Locks the tables of `others`."""
    marks, forget = begun.marks, begun.marks.delete_statements(tables)
    if not begun.claims and not others and not fills:
        _delete_marks(connection, forget)
        return None
    _lock_tables(connection, captured, others, fills)
    locked.record_success(connection, captured, fills)
    return PostgresCut(
        connection,
        sorted([*begun.claims, *others], key=lambda claim: claim.schema.table_id),
        captured,
        marks.captured_at_us,
        marks.epoch,
        fills,
        pace,
        halts,
        forget,
        tables.reads,
        begun.at_hand,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    """A snapshot: its marks, the claims of the tables that are locked already, and the rows of small ones by table."""

    marks: DirtyMarks
    claims: Seq[PostgresClaim] = ()
    at_hand: Mapping[int, FewRows] = field(default_factory=dict)


def _begin_snapshot(
    connection: PostgresConnection,
    tables: PolledTables,
    guess: Mapping[int, PostgresCapturedTable],
    mark: str,
    before: str,
    *,
    everywhere: bool,
) -> tuple[_Snapshot, list[PostgresClaim]]:
    """Run `before`, then take the snapshot. Return the snapshot, and the claims of unlocked tables."""
    if guess:
        begun = _begin_with_locks(connection, tables, guess, before)
    else:
        begun = _Snapshot(marks=DirtyMarks.read(connection, f"{before}{statement('cut', 'begin')}; "))
    marks = begun.marks
    if REGISTRY in marks.counts or everywhere:
        _require_unchanged_registry(connection, mark)
    looked_at = find_tables_with_rows(connection) if everywhere else marks.counts.keys()
    rest = sorted(tables.ready.keys() & looked_at - guess.keys())
    return begun, read_claims(connection, [tables.ready[t] for t in rest])


def _guess_tables(tables: PolledTables, seen: DirtyMarks) -> dict[int, PostgresCapturedTable]:
    """Return the tables that a small cut will probably contain; {} if they are many."""
    marked = sorted(tables.ready.keys() & seen.counts.keys())
    return {t: tables.ready[t] for t in marked} if len(marked) <= GUESSED_MAX else {}


def _begin_with_locks(
    connection: PostgresConnection, tables: PolledTables, guess: Mapping[int, PostgresCapturedTable], before: str
) -> _Snapshot:
    """Lock these tables, take the snapshot, and read the small logs. Raises LockTimeout, SchemaChanged."""
    known = {t: c.table for t, c in guess.items() if c.table is not None}
    query, read = _opening_query(connection, tables, guess, {t: table.oid for t, table in known.items()})
    text = statement(
        "cut",
        "open",
        tables=", ".join(table.from_sql for table in known.values()),
        give_way_ms=str(GIVE_WAY_MS),
        usual_ms=str(_configured_timeout_ms(connection)),
        opened=query,
    )
    head, counts, claims, signatures = (0, 0), {}, [], {}
    rows: dict[int, list[list[str | None]]] = {}
    for kind, number, count, epoch, *flags, text_value in connection.rows(before + text):
        match kind:
            case 0:
                head = count, epoch
            case 1:
                counts[number] = count
            case 2:
                claims.append((number, count, *flags))
            case 3:
                signatures[number] = text_value
            case _:
                rows.setdefault(number, []).append(parse_row(text_value))
    _check_signatures(known.values(), signatures)
    at_hand = {
        number: FewRows(rows.get(number, ()))
        for number, count, *_ in claims
        if number in read and count <= cut_statements.FEW_ROWS
    }
    return _Snapshot(
        marks=DirtyMarks(captured_at_us=head[0], epoch=head[1], counts=counts),
        claims=[build_claim(connection, guess[number], *log) for number, *log in claims],
        at_hand=at_hand,
    )


def _opening_query(
    connection: PostgresConnection,
    tables: PolledTables,
    guess: Mapping[int, PostgresCapturedTable],
    oids: Mapping[int, int],
) -> tuple[str, frozenset[int]]:
    """Return the query that opens a cut of these tables, and the tables that it reads.

    For few tables the query is prepared, once in a session.
    """
    which, reads = tuple(oids), tables.reads
    read = [(c.table, c.schema) for c in guess.values() if reads.with_opening and c.table and c.table.has_identity_key]
    numbers = frozenset(schema.table_id for _, schema in read)
    if (which, numbers) not in tables.openings:
        if len(which) > PREPARED_TABLES_MAX or len(tables.openings) >= cut_statements.PREPARED_MAX:
            return cut_statements.opening_query(oids), frozenset()
        if not reads.reserve_columns([schema for _, schema in read]):
            reads.with_opening = False
            return _opening_query(connection, tables, guess, oids)
        name = f"venus_open_{len(tables.openings)}"
        connection.run(f"PREPARE {name} AS {cut_statements.opening_query(oids, read)}")
        tables.openings[which, numbers] = f"EXECUTE {name}"
    return tables.openings[which, numbers], numbers


def _configured_timeout_ms(connection: PostgresConnection) -> int:
    return int(connection.options.lock_timeout_s * 1000)


def _require_unchanged_registry(connection: PostgresConnection, loaded: str) -> None:
    """Raise SchemaChanged if the registry has changed since it was loaded."""
    if connection.row(statement("registry", "mark"))[0] != loaded:
        raise SchemaChanged(f"source {connection.place}: the registry has changed")


def _delete_marks(connection: PostgresConnection, marks: Seq[str]) -> None:
    """Run the statements that delete marks, and end the transaction. A concurrent deletion is no error."""
    if not marks:
        connection.rollback()
        return
    try:
        connection.commit("; ".join(marks))
    except Conflict:
        connection.rollback()


def _lock_tables(
    connection: PostgresConnection,
    captured: Seq[PostgresCapturedTable],
    claims: Seq[PostgresClaim],
    fills: Seq[FillState],
) -> None:
    """Lock the tables until the cut ends. Raises SchemaChanged or Conflict if a table has changed."""
    filling = {f.table_id for f in fills}
    tables = {c.table.oid: c.table for c in claims}
    tables |= {c.table.oid: c.table for c in captured if c.table and c.schema.table_id in filling}
    if not tables:
        return
    locked = ", ".join(t.from_sql for t in tables.values())
    oids = "'{" + ",".join(map(str, tables)) + "}'"
    lock = statement(
        "cut",
        "lock",
        tables=locked,
        give_way_ms=str(GIVE_WAY_MS),
        usual_ms=str(_configured_timeout_ms(connection)),
        oids=oids,
        keyed_plan=cut_statements.KEYED_PLAN,
    )
    rewritten = connection.rows(lock)
    if rewritten:
        raise Conflict(
            f"source {connection.place}: {rewritten[0][0]} was truncated or rewritten while a cut was opened"
        )
    _check_signatures(tables.values(), {r[0]: r[3] for r in connection.rows(statement("cut", "settled", oids=oids))})


def _check_signatures(tables: Iterable[PostgresTable], signatures: Mapping[int, str]) -> None:
    """Raise SchemaChanged if the present signature of a table differs from the one that was loaded."""
    changed = [t for t in tables if signatures.get(t.oid) != t.signature]
    if changed:
        raise SchemaChanged(f"{changed[0].namespace}.{changed[0].name} has changed")
