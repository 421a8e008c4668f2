"""Opens a cut of a PostgreSQL source: a snapshot, what it has to capture, and tables that stay as they are in it."""

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

#: A paused table keeps at most about so many dirty marks.
MARKS_MAX = 1000
#: The dirty mark of the registry itself.
REGISTRY = 0
#: The row beside the marks, which has the clock and the epoch.
HEAD = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What a poll has read."""

    captured_at_us: int
    epoch: int
    counts: Mapping[int, int]

    @classmethod
    def read(cls, connection: Connection, before: str = "") -> Marks:
        """Read them, behind the statements of `before` in the same round trip."""
        rows = {r[0]: r[1:] for r in connection.rows(f"{before}EXECUTE venus_dirty")}
        captured_at_us, epoch = rows.pop(HEAD)
        return cls(captured_at_us=captured_at_us, epoch=epoch, counts={t: count for t, (count, _) in rows.items()})

    def stand_for_work(self, tables: Tables) -> bool:
        """Whether anything is to be done about them; those of a table that has to wait stay until they are many."""
        return any(t not in tables.waiting or count > MARKS_MAX for t, count in self.counts.items())

    def forget(self, tables: Tables) -> list[str]:
        """Return the statements that take away what is done with, and thin out what has to wait."""
        waiting = tables.waiting & self.counts.keys()
        return cutsql.forget_marks(
            sorted(self.counts.keys() - waiting), sorted(t for t in waiting if self.counts[t] > MARKS_MAX)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The captured tables, sorted once for many polls."""

    ready: Mapping[int, Captured]
    #: Those whose changes have to stay where they are.
    waiting: frozenset[int]
    #: What small cuts of these tables are opened with, prepared in the session.
    openings: dict[tuple[int, ...], str] = field(default_factory=dict)
    #: What few rows are read with.
    reads: Reads = field(default_factory=Reads)

    @classmethod
    def of(cls, captured: Iterable[Captured], *, together: bool = False) -> Tables:
        """Sort them; `together` = the session has the function that reads several."""
        known = {c.schema.table_id: c for c in captured}
        ready = {table_id: c for table_id, c in known.items() if _is_ready(c)}
        return cls(ready=ready, waiting=frozenset(known.keys() - ready.keys()), reads=Reads(together=together))


def _is_ready(captured: Captured) -> bool:
    return captured.table is not None and captured.usable and captured.registered.state != "PAUSED"


logger = logging.getLogger(__name__)

#: A cut waits so long for a table that the application has locked (TRUNCATE, ALTER TABLE), then comes back later.
#: Well below PostgreSQL's deadlock_timeout of 1 s: where the two wait for each other, it is VENUS that gives way.
GIVE_WAY_MS = 200
#: Who has a table to himself is looked up after so long and so often, and named in the log so often.
SAY_AFTER_S = 10.0
LOOK_EVERY_S = 5.0
SAY_EVERY_S = 300.0
#: So many tables may take part in a small cut; one of more takes a few round trips, which it is large enough for.
GUESSED_MAX = 1024
#: Sets of so many tables at most have their opening prepared.
PREPARED_TABLES_MAX = 4


class Locked:
    """Since when cuts give way to somebody who has a table to himself, and who that is."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._since: float | None = None
        self._look_at = self._say_at = 0.0
        #: Who has which table, by table, once that has lasted.
        self.by: dict[str, str] = {}
        #: Tables whose fills were left out of a cut for that.
        self.left: set[int] = set()

    @property
    def is_met(self) -> bool:
        """Whether a cut gave way, and none has had all its tables since."""
        return self._since is not None

    def had(self, connection: Connection, captured: Seq[Captured], fills: Seq[FillState]) -> None:
        """Take note that a cut had its tables; what was left out for a lock may still be locked."""
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
        """Take note that one had not; look who has them if that lasts."""
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
                    "cuts have been waiting for %.0f s, %s is locked by %s", now - self._since, table, holder
                )

    def _look(self, connection: Connection, captured: Seq[Captured]) -> None:
        self._look_at = self._monotonic() + LOOK_EVERY_S
        found = holders(connection, [oid for c in captured for oid in places(c)], FROM_READERS)
        self.by = {table: "; ".join(w.holder for w in found if w.table == table) for table in {w.table for w in found}}


def places(captured: Captured) -> dict[int, str]:
    """Return what has rows of a table, by the server's number: itself and its partitions."""
    table = captured.table
    if table is None:
        return {}
    return {table.oid: f"{table.namespace}.{table.name}"} | {
        leaf.oid: f"{leaf.namespace}.{leaf.name}" for leaf in table.leaves
    }


def unlocked(connection: Connection, captured: Seq[Captured], fills: Seq[FillState]) -> list[FillState]:
    """Return the fills of tables that nobody has to himself; none if the server does not tell who has."""
    wanted = {f.table_id for f in fills}
    known = {c.schema.table_id: places(c) for c in captured if c.schema.table_id in wanted}
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
    """Open a snapshot and find what is in it.

    `mark` is the registry as `captured` was loaded from it. `everywhere` = look into every log, marked or not.
    `idle` = most likely there is nothing: ask for marks first, in one round trip that begins no transaction. `seen` =
    the marks of a moment ago, so that need not be asked for.
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
        logger.info("no cut now, the application has a table to itself: %s", busy)
        connection.rollback()
        locked.met(connection, captured)
        return None
    except BaseException:
        connection.rollback()
        raise


def _begun(
    connection: Connection, tables: Tables, guess: Mapping[int, Captured], mark: str, *, everywhere: bool
) -> tuple[Marks, list[Claim], list[Claim]]:
    """Take the snapshot; return the marks in it, the claims of the tables that are locked already, and the others'."""
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
    """Return the tables that a small cut will have, most likely; {} if they are many."""
    marked = sorted(tables.ready.keys() & seen.counts.keys())
    return {t: tables.ready[t] for t in marked} if len(marked) <= GUESSED_MAX else {}


def _begun_with(connection: Connection, tables: Tables, guess: Mapping[int, Captured]) -> tuple[Marks, list[Claim]]:
    """Begin with these tables, locked before the snapshot is taken; return the marks in it, and their claims.

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
    """Return the query for what these tables have; of a few tables, it is planned once in a session."""
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
    """Take marks away that stand for nothing, if there are any; whoever has done so meanwhile is welcome."""
    if not marks:
        connection.rollback()
        return
    try:
        connection.commit("; ".join(marks))
    except Conflict:
        connection.rollback()


def _lock(connection: Connection, captured: Seq[Captured], claims: Seq[Claim], fills: Seq[FillState]) -> None:
    """Make sure that the tables stay, to the end of the cut, what the registry and the snapshot say they are."""
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
