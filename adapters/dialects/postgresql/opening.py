"""Opens a cut of a PostgreSQL source: a snapshot, what it has to capture, and tables that stay as they are in it."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq

from venus.adapters.dialects.contract import FillState, SchemaChanged
from venus.adapters.dialects.halting import Halts
from venus.adapters.dialects.postgresql import cutsql
from venus.adapters.dialects.postgresql.claims import Claim, claims_of, tables_with_rows
from venus.adapters.dialects.postgresql.connection import Conflict, Connection, LockTimeout
from venus.adapters.dialects.postgresql.cut import FillPace, PostgresCut
from venus.adapters.dialects.postgresql.marks import REGISTRY, Marks, Tables
from venus.adapters.dialects.postgresql.registry import Captured
from venus.adapters.dialects.postgresql.statements import statement

logger = logging.getLogger(__name__)

#: A cut waits so long for a table that the application has locked (TRUNCATE, ALTER TABLE), then comes back later.
#: Well below PostgreSQL's deadlock_timeout of 1 s: where the two wait for each other, it is VENUS that gives way.
GIVE_WAY_MS = 200


def open_cut(
    connection: Connection,
    captured: Seq[Captured],
    tables: Tables,
    mark: str,
    fills: Seq[FillState],
    pace: FillPace,
    halts: Halts,
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
    if seen is None and idle and not fills and not everywhere:
        seen = Marks.read(connection)
    if seen is not None and not fills and not everywhere and not seen.stand_for_work(tables):
        return None
    marks = Marks.read(connection, statement("cut", "begin") + "; ")
    try:
        if REGISTRY in marks.counts or everywhere:
            _require_mark(connection, mark)
        looked_at = tables_with_rows(connection) if everywhere else marks.counts.keys()
        claims = claims_of(connection, [tables.ready[t] for t in sorted(tables.ready.keys() & looked_at)])
        forget = marks.forget(tables)
        if not claims and not fills:
            _forget(connection, forget)
            return None
        try:
            _lock(connection, captured, claims, fills)
        except LockTimeout as busy:
            logger.info("no cut now, the application has a table to itself: %s", busy)
            connection.rollback()
            return None
        return PostgresCut(connection, claims, captured, marks.captured_at_us, marks.epoch, fills, pace, halts, forget)
    except BaseException:
        connection.rollback()
        raise


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
    usual_ms = int(connection.options.lock_timeout_s * 1000)
    oids = "'{" + ",".join(map(str, tables)) + "}'"
    lock = statement(
        "cut", "lock", tables=locked, give_way_ms=str(GIVE_WAY_MS), usual_ms=str(usual_ms), oids=oids,
        keyed_plan=cutsql.KEYED_PLAN,
    )  # fmt: skip
    rewritten = connection.rows(lock)
    if rewritten:
        raise Conflict(
            f"source {connection.place}: {rewritten[0][0]} was truncated or rewritten while a cut was opened"
        )
    now = {r[0]: r[3] for r in connection.rows(statement("cut", "settled", oids=oids))}
    changed = [t for oid, t in tables.items() if now.get(oid) != t.signature]
    if changed:
        raise SchemaChanged(f"{changed[0].namespace}.{changed[0].name} has changed")
