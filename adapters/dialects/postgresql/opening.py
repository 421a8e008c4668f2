"""Opens a cut of a PostgreSQL source: a snapshot, what it has to capture, and tables that stay as they are in it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq

from venus.adapters.dialects.contract import FillState, SchemaChanged
from venus.adapters.dialects.halting import Halts
from venus.adapters.dialects.postgresql import cutsql
from venus.adapters.dialects.postgresql.claims import Claim, claim_of, claims_of, tables_with_rows
from venus.adapters.dialects.postgresql.connection import Conflict, Connection, LockTimeout
from venus.adapters.dialects.postgresql.cut import FillPace, PostgresCut
from venus.adapters.dialects.postgresql.dictionary import Table
from venus.adapters.dialects.postgresql.marks import REGISTRY, Marks, Tables
from venus.adapters.dialects.postgresql.registry import Captured
from venus.adapters.dialects.postgresql.statements import statement
from venus.adapters.dialects.postgresql.waits import FROM_READERS, holders

logger = logging.getLogger(__name__)

#: A cut waits so long for a table that the application has locked (TRUNCATE, ALTER TABLE), then comes back later.
#: Well below PostgreSQL's deadlock_timeout of 1 s: where the two wait for each other, it is VENUS that gives way.
GIVE_WAY_MS = 200
#: Who has a table to himself is named after so long, and again after so long.
SAY_AFTER_S = 10.0
SAY_EVERY_S = 300.0
#: So many tables may take part in a small cut; one of more takes a few round trips, which it is large enough for.
GUESSED_MAX = 1024
#: Sets of so many tables at most have their opening prepared.
PREPARED_TABLES_MAX = 4


class Locked:
    """Since when cuts give way to somebody who has a table to himself; says in the log who that is."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._since: float | None = None
        self._say_at = 0.0

    def over(self) -> None:
        """Take note that a cut had its tables."""
        self._since = None

    def met(self, connection: Connection, captured: Seq[Captured]) -> None:
        """Take note that one had not; name the session that has them if that lasts."""
        now = self._monotonic()
        if self._since is None:
            self._since, self._say_at = now, now + SAY_AFTER_S
        if now < self._say_at:
            return
        self._say_at = now + SAY_EVERY_S
        oids = [oid for c in captured if c.table for oid in (c.table.oid, *(leaf.oid for leaf in c.table.leaves))]
        for wait in holders(connection, oids, FROM_READERS):
            logger.warning(
                "nothing is captured for %.0f s, %s is locked by %s", now - self._since, wait.table, wait.holder
            )


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
        locked.over()
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
