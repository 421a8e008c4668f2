"""Opening of a cut of a PostgreSQL source: a snapshot, its claims, and locks that keep the tables unchanged.

Dirty marks show which log tables have rows. One statement reads them, however many tables there are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from venus.adapters.dialects.contract import FillState, SchemaChanged
from venus.adapters.dialects.halting import Halts
from venus.adapters.dialects.postgresql import cutsql
from venus.adapters.dialects.postgresql.connection import Conflict, Connection, LockTimeout
from venus.adapters.dialects.postgresql.cut import (
    Claim,
    FillPace,
    PostgresCut,
    Reads,
    claim_of,
    claims_of,
    tables_with_rows,
)
from venus.adapters.dialects.postgresql.dictionary import Table
from venus.adapters.dialects.postgresql.registry import Captured
from venus.adapters.dialects.postgresql.statements import statement
from venus.adapters.dialects.postgresql.waits import FROM_READERS, holders

#: About how many dirty marks a paused table keeps at most.
MARKS_MAX = 1000
#: The dirty mark of the registry itself.
REGISTRY = 0
#: Number of the row beside the marks that holds the clock and the epoch.
HEAD = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """The dirty marks that a poll read."""

    captured_at_us: int
    epoch: int
    counts: Mapping[int, int]

    @classmethod
    def read(cls, connection: Connection, before: str = "") -> Marks:
        """Read the marks after the statements of `before`, in the same round trip."""
        rows = {r[0]: r[1:] for r in connection.rows(f"{before}EXECUTE venus_dirty")}
        captured_at_us, epoch = rows.pop(HEAD)
        return cls(captured_at_us=captured_at_us, epoch=epoch, counts={t: count for t, (count, _) in rows.items()})

    def stand_for_work(self, tables: Tables) -> bool:
        """Return whether the marks need a cut. Those of a waiting table do so only when they are many."""
        return any(t not in tables.waiting or count > MARKS_MAX for t, count in self.counts.items())

    def forget(self, tables: Tables) -> list[str]:
        """Return the statements that delete marks of captured changes, and thin out those of waiting tables."""
        waiting = tables.waiting & self.counts.keys()
        return cutsql.forget_marks(
            sorted(self.counts.keys() - waiting), sorted(t for t in waiting if self.counts[t] > MARKS_MAX)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The captured tables, classified once for many polls."""

    ready: Mapping[int, Captured]
    #: Tables whose changes stay in their logs, because they are paused or unreadable.
    waiting: frozenset[int]
    #: Prepared opening statements of small cuts, by tables.
    openings: dict[tuple[int, ...], str] = field(default_factory=dict)
    #: Prepared statements that read few rows.
    reads: Reads = field(default_factory=Reads)

    @classmethod
    def of(cls, captured: Iterable[Captured], *, together: bool = False) -> Tables:
        """Classify the tables. `together`: the session has the function that reads several."""
        known = {c.schema.table_id: c for c in captured}
        ready = {table_id: c for table_id, c in known.items() if _is_ready(c)}
        return cls(ready=ready, waiting=frozenset(known.keys() - ready.keys()), reads=Reads(together=together))


def _is_ready(captured: Captured) -> bool:
    return captured.table is not None and captured.usable and captured.registered.state != "PAUSED"


logger = logging.getLogger(__name__)

#: How long a cut waits for a table that the application has locked (TRUNCATE, ALTER TABLE) before it is retried later.
#: Well below PostgreSQL's deadlock_timeout of 1 s, so that in a deadlock VENUS gives up first.
GIVE_WAY_MS = 200
#: The holder of an exclusive lock is looked up after this time and at this interval, and logged at the third.
SAY_AFTER_S = 10.0
LOOK_EVERY_S = 5.0
SAY_EVERY_S = 300.0
#: The most tables of a small cut. A cut of more tables takes a few more round trips, which its size justifies.
GUESSED_MAX = 1024
#: Openings are prepared for sets of at most this many tables.
PREPARED_TABLES_MAX = 4


class Locked:
    """State of the lock wait: since when cuts give way to an exclusive lock, and which session holds it."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._since: float | None = None
        self._look_at = self._say_at = 0.0
        #: Holders by table, once the wait has lasted.
        self.by: dict[str, str] = {}
        #: Tables whose fills were left out of a cut because of the lock.
        self.left: set[int] = set()

    @property
    def is_met(self) -> bool:
        """Whether a cut gave way, and no later cut has locked all its tables."""
        return self._since is not None

    def had(self, connection: Connection, captured: Seq[Captured], fills: Seq[FillState]) -> None:
        """Record that a cut locked its tables. Tables that were left out may still be locked."""
        if self._since is None:
            return
        if self.left - {f.table_id for f in fills}:
            if self._monotonic() < self._look_at:
                return
            self._look(connection, captured)
            if self.by:
                return
        self._since, self.by, self.left = None, {}, set()

    def met(self, connection: Connection, captured: Seq[Captured]) -> None:
        """Record that a cut did not get its locks. If that lasts, look up and log the holders."""
        now = self._monotonic()
        if self._since is None:
            self._since, self._look_at, self._say_at = now, now + SAY_AFTER_S, 0.0
        if now < self._look_at:
            return
        self._look(connection, captured)
        if now >= self._say_at and self.by:
            self._say_at = now + SAY_EVERY_S
            for table, holder in self.by.items():
                logger.warning(
                    "cuts have been waiting for %.0f s: %s is locked by %s", now - self._since, table, holder
                )

    def _look(self, connection: Connection, captured: Seq[Captured]) -> None:
        self._look_at = self._monotonic() + LOOK_EVERY_S
        found = holders(connection, [oid for c in captured for oid in places(c)], FROM_READERS)
        self.by = {table: "; ".join(w.holder for w in found if w.table == table) for table in {w.table for w in found}}


def places(captured: Captured) -> dict[int, str]:
    """Return the relations that hold the rows of a table, by oid: itself and its partitions."""
    table = captured.table
    if table is None:
        return {}
    return {table.oid: f"{table.namespace}.{table.name}"} | {
        leaf.oid: f"{leaf.namespace}.{leaf.name}" for leaf in table.leaves
    }


def unlocked(connection: Connection, captured: Seq[Captured], fills: Seq[FillState]) -> list[FillState]:
    """Return the fills of tables without an exclusive lock; none if the server does not show the locks."""
    filling = {f.table_id for f in fills}
    known = {c.schema.table_id: places(c) for c in captured if c.schema.table_id in filling}
    oids = [oid for found in known.values() for oid in found]
    locked = {wait.table for wait in holders(connection, oids, FROM_READERS)}
    return [f for f in fills if locked and locked.isdisjoint(known.get(f.table_id, {}).values())]


def open_cut(
    connection: Connection,
    captured: Seq[Captured],
    tables: Tables,
    mark: str,
    fills: Seq[FillState],
    pace: FillPace,
    halts: Halts,
    locked: Locked,
    *,
    everywhere: bool,
    idle: bool,
    seen: Marks | None = None,
) -> PostgresCut | None:
    """Open a snapshot and find the claims in it.

    `mark` identifies the registry from which `captured` was loaded. `everywhere`: look into every log, marked or not.
    `idle`: there is probably no work, so read the marks first, in one round trip without a transaction. `seen`: marks
    that were just read.
    """
    guess: dict[int, Captured] = {}
    if not fills and not everywhere:
        seen = Marks.read(connection) if seen is None and idle else seen
        if seen is not None and not seen.stand_for_work(tables):
            return None
        guess = _guessed(tables, seen) if seen is not None else {}
    try:
        marks, claims, others = _begun(connection, tables, guess, mark, everywhere=everywhere)
        forget = marks.forget(tables)
        if not claims and not others and not fills:
            _forget(connection, forget)
            return None
        _lock(connection, captured, others, fills)
        locked.had(connection, captured, fills)
        claims = sorted([*claims, *others], key=lambda claim: claim.schema.table_id)
        return PostgresCut(
            connection, claims, captured, marks.captured_at_us, marks.epoch, fills, pace, halts, forget, tables.reads
        )
    except LockTimeout as busy:
        logger.info("no cut at present, the application has locked a table: %s", busy)
        connection.rollback()
        locked.met(connection, captured)
        return None
    except BaseException:
        connection.rollback()
        raise


def _begun(
    connection: Connection, tables: Tables, guess: Mapping[int, Captured], mark: str, *, everywhere: bool
) -> tuple[Marks, list[Claim], list[Claim]]:
    """Take the snapshot. Return its marks, the claims of tables that are locked already, and the other claims."""
    if guess:
        marks, claims = _begun_with(connection, tables, guess)
    else:
        marks, claims = Marks.read(connection, statement("cut", "begin") + "; "), []
    if REGISTRY in marks.counts or everywhere:
        _require_mark(connection, mark)
    looked_at = tables_with_rows(connection) if everywhere else marks.counts.keys()
    rest = sorted(tables.ready.keys() & looked_at - guess.keys())
    return marks, claims, claims_of(connection, [tables.ready[t] for t in rest])


def _guessed(tables: Tables, seen: Marks) -> dict[int, Captured]:
    """Return the tables that a small cut will probably contain; {} if they are many."""
    marked = sorted(tables.ready.keys() & seen.counts.keys())
    return {t: tables.ready[t] for t in marked} if len(marked) <= GUESSED_MAX else {}


def _begun_with(connection: Connection, tables: Tables, guess: Mapping[int, Captured]) -> tuple[Marks, list[Claim]]:
    """Lock these tables, then take the snapshot. Return its marks and their claims.

    Raises LockTimeout, SchemaChanged.
    """
    known = {t: c.table for t, c in guess.items() if c.table is not None}
    query = _opened(connection, tables, {t: table.oid for t, table in known.items()})
    text = statement(
        "cut", "open", tables=", ".join(table.from_sql for table in known.values()), give_way_ms=str(GIVE_WAY_MS),
        usual_ms=str(_usual_ms(connection)), opened=query,
    )  # fmt: skip
    head, counts, claims, signatures = (0, 0), {}, [], {}
    for kind, number, count, epoch, *flags, signature in connection.rows(text):
        match kind:
            case 0:
                head = count, epoch
            case 1:
                counts[number] = count
            case 2:
                claims.append((number, count, *flags))
            case _:
                signatures[number] = signature
    _require_settled(known.values(), signatures)
    marks = Marks(captured_at_us=head[0], epoch=head[1], counts=counts)
    return marks, [claim_of(connection, guess[number], *log) for number, *log in claims]


def _opened(connection: Connection, tables: Tables, oids: Mapping[int, int]) -> str:
    """Return the query that opens a cut of these tables. For few tables it is planned once in a session."""
    which = tuple(oids)
    if which not in tables.openings:
        query = cutsql.opened(oids)
        if len(which) > PREPARED_TABLES_MAX or len(tables.openings) >= cutsql.PREPARED_MAX:
            return query
        name = f"venus_open_{len(tables.openings)}"
        connection.run(f"PREPARE {name} AS {query}")
        tables.openings[which] = f"EXECUTE {name}"
    return tables.openings[which]


def _usual_ms(connection: Connection) -> int:
    return int(connection.options.lock_timeout_s * 1000)


def _require_mark(connection: Connection, loaded: str) -> None:
    if connection.row(statement("registry", "mark"))[0] != loaded:
        raise SchemaChanged(f"source {connection.place}: the registry has changed")


def _forget(connection: Connection, marks: Seq[str]) -> None:
    """Delete marks without log rows, if there are any. A concurrent deletion is no error."""
    if not marks:
        connection.rollback()
        return
    try:
        connection.commit("; ".join(marks))
    except Conflict:
        connection.rollback()


def _lock(connection: Connection, captured: Seq[Captured], claims: Seq[Claim], fills: Seq[FillState]) -> None:
    """Lock the tables until the cut ends. Raises if one differs from the registry or from the snapshot."""
    filling = {f.table_id for f in fills}
    tables = {c.table.oid: c.table for c in claims}
    tables |= {c.table.oid: c.table for c in captured if c.table and c.schema.table_id in filling}
    if not tables:
        return
    locked = ", ".join(t.from_sql for t in tables.values())
    oids = "'{" + ",".join(map(str, tables)) + "}'"
    lock = statement(
        "cut", "lock", tables=locked, give_way_ms=str(GIVE_WAY_MS), usual_ms=str(_usual_ms(connection)), oids=oids,
        keyed_plan=cutsql.KEYED_PLAN,
    )  # fmt: skip
    rewritten = connection.rows(lock)
    if rewritten:
        raise Conflict(
            f"source {connection.place}: {rewritten[0][0]} was truncated or rewritten while a cut was opened"
        )
    _require_settled(tables.values(), {r[0]: r[3] for r in connection.rows(statement("cut", "settled", oids=oids))})


def _require_settled(tables: Iterable[Table], signatures: Mapping[int, str]) -> None:
    changed = [t for t in tables if signatures.get(t.oid) != t.signature]
    if changed:
        raise SchemaChanged(f"{changed[0].namespace}.{changed[0].name} has changed")
