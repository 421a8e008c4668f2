"""A PostgreSQL target and VENUS's own tables in it: its position, and the state of each table (VENUS 3.4).

All reads and writes use the caller's session and transaction, because progress must change together with the rows.

A target that was cut over has a mark: it belongs to the application, and VENUS must not write there. One transaction
sets the mark and `paused` while it locks the applied offset, so no cut is applied in part.

A session that applies locks the target and disables foreign keys and triggers (features 2.11): the source has already
executed its triggers and cascades, and their effects arrive as separate changes. A second execution at the target would
do harm, because deleting a parent and inserting it again would delete its children.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from venus.adapters.dialects.registry import parse_url
from venus.adapters.targets.cutover_contract import CutoverMark
from venus.adapters.targets.postgresql.naming import OWN_SCHEMA, PlacedTable, place_table, quote
from venus.adapters.targets.postgresql.session import Refusal, TargetSession, statement, try_replica_role
from venus.adapters.targets.registry import ConfiguredTarget
from venus.codec import schema as schemas_codec
from venus.config import Settings
from venus.errors import Refused
from venus.migrations import run as migrations
from venus.model import Offset, TableSchema
from venus.network import row_filters
from venus.network.row_filters import RowsIdentity
from venus.wire import change_pb2

# States of a table at a target.
ACTIVE = "ACTIVE"  # follows the stream
PAUSED = "PAUSED"  # an operator has paused it
HALTED = "HALTED"  # the target refused a row
LOADING = "LOADING"  # the full load is not done
CATCHUP = "CATCHUP"  # reads again from held_from, then joins the stream

# Purposes of recording touched keys.
SWEEP = "sweep"
RESYNC = "resync"
#: Not a recording: how many changes were unaccounted for at the request of a resync of all tables (table 0).
ACCOUNT = "account"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPosition:
    """The target's progress; every change with a smaller offset is applied, parked, skipped or held."""

    offset: Offset
    epoch: int
    last_sequence: int
    control: int
    paused: bool
    captured_at: datetime | None = None
    committed_at: datetime | None = None
    applied_at: datetime | None = None
    heartbeat_at: datetime | None = None
    note: str = ""
    #: The outcome of the last `venus verify`, as text (venus/rpc/conditions.py).
    compared: str | None = None
    #: Rows identity of the broker set that was read; None = unknown.
    rows: RowsIdentity | None = None
    #: The first load has not ended: the tables are LOADING, and follow the first read of the source.
    loading: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """State of one table. `held_from` is the first offset that is not applied to it; None if it follows."""

    table_id: int
    schema_version: int
    namespace: str
    name: str
    source_name: str
    state: str
    held_from: Offset | None
    reason: str
    rows_applied: int
    rows_quarantined: int
    rows_skipped: int
    rows_held: int
    counted_from: Offset
    created: bool
    #: Which rows it gets; empty = every row.
    predicate: str = ""
    #: The previous predicate, until the rows agree with `predicate`.
    predicate_before: str | None = None
    #: Rows added and removed by the last change of the predicate.
    rows_brought: int = 0
    rows_removed: int = 0


class PostgresDatabase(ConfiguredTarget):
    """A PostgreSQL database that is target `name` of the configuration.

    Until its first load has ended it has neither a position nor tables that follow, except for `first_load` itself.
    """

    def __init__(self, settings: Settings, name: str, *, first_load: bool = False) -> None:
        super().__init__(settings, name)
        self.first_load = first_load
        parse_url(self.url, f"targets.{name}.url", "write postgresql://USER@HOST:PORT/DATABASE")

    def connect(self, purpose: str = "apply") -> TargetSession:
        """Open a session."""
        return TargetSession(self.url, application=f"venus {purpose} {self.group}", target=self.name)

    def install(self) -> list[str]:
        """Create or upgrade VENUS's own tables; return the statements run."""
        self.connect("check").close()  # it raises VENUS's own errors, SQLAlchemy does not
        # SQLAlchemy would choose another driver for a plain postgresql:// URL.
        url = sa.make_url(self.url).set(drivername="postgresql+psycopg2")
        engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
        try:
            return migrations.upgrade(engine, "target", schema=OWN_SCHEMA)
        finally:
            engine.dispose()

    def is_installed(self, session: TargetSession) -> bool:
        """Return whether VENUS's own tables exist."""
        found = session.row("SELECT to_regclass(%s) IS NOT NULL", [f"{OWN_SCHEMA}.applied"])
        return bool(found and found[0])

    def place(self, schema: TableSchema) -> PlacedTable:
        """Return the place of a table at this target."""
        return place_table(schema, self.settings, self.name)

    # -- own tables ------------------------------------------------------------------------------------------------

    def run_own(self, session: TargetSession, name: str, /, **params: Any) -> int:
        """Run a statement of own.sql; return its row count."""
        return session.run(self.own_sql(name), {"group": self.group, "business": self.business} | params)

    def read_own_rows(self, session: TargetSession, name: str, /, **params: Any) -> list[tuple[Any, ...]]:
        """Run a query of own.sql."""
        return session.rows(self.own_sql(name), {"group": self.group} | params)

    def own_text(self, session: TargetSession, name: str, /, **params: Any) -> str:
        """Return a statement of own.sql with its values filled in, to send it together with others."""
        return session.literal(self.own_sql(name), {"group": self.group, "business": self.business} | params)

    def own_execute_text(self, session: TargetSession, name: str, *numbers: int | Sequence[int] | None) -> str:
        """Return an EXECUTE of a prepared statement of own.sql with its numbers, to send it together with others.

        A sequence of numbers becomes an array. The first call in a session sends the PREPARE.
        """
        if name not in session.prepared:
            session.run(self.own_text(session, f"prepare_{name}"))
            session.prepared.add(name)
        values = ", ".join(map(_number_text, numbers))
        return f"EXECUTE venus_{name} ({values})"

    @staticmethod
    def own_sql(name: str) -> str:
        """Return a block of own.sql."""
        return statement("own", name, own=OWN_SCHEMA)

    def try_lock(self, session: TargetSession) -> bool:
        """Try to lock this target for one process; the lock ends with the session."""
        return bool(self.read_own_rows(session, "try_lock")[0][0])

    def require_lock(self, session: TargetSession) -> None:
        """Lock this target. Raises Refused if another process holds the lock."""
        if not self.try_lock(session):
            raise self.locked_error

    def read_position(self, session: TargetSession) -> TargetPosition | None:
        """Read the position of the target; None = never loaded."""
        rows = self.read_own_rows(session, "position")
        if not rows:
            return None
        names = ("offset", "epoch", "last_sequence", "control", "paused")
        moments = ("captured_at", "committed_at", "applied_at", "heartbeat_at", "note", "compared")
        *found, identity, loading = rows[0]
        if loading and not self.first_load:
            return None
        known = dict(zip(names + moments, found, strict=True))
        return TargetPosition(**known, rows=rows_from_text(identity), loading=loading)

    def set_rows_text(self, session: TargetSession, rows: RowsIdentity | None) -> str:
        """Return the statement that stores the rows identity of a broker set."""
        return self.own_text(session, "set_rows", rows=rows_to_text(rows))

    def read_tables(self, session: TargetSession, table_id: int | None = None) -> list[TableState]:
        """Read the state of every table, or of one; empty if that table is unknown."""
        names = TableState.__slots__
        rows = self.read_own_rows(session, "tables", table_id=table_id)
        found = [TableState(**dict(zip(names, row, strict=True))) for row in rows]
        if not self.first_load:
            return found
        return [replace(t, state=ACTIVE) if t.state == LOADING else t for t in found]

    def read_row_counts(self, session: TargetSession) -> dict[int, int]:
        """Read the approximate row count of each table, by number, from the server's statistics."""
        return dict(self.read_own_rows(session, "row_counts"))

    def count_unaccounted(self, session: TargetSession) -> int | None:
        """Return the number of changes below the applied offset that are unaccounted for; None = never loaded."""
        rows = self.read_own_rows(session, "unaccounted")
        return int(rows[0][0]) if rows else None

    def read_schemas(self, session: TargetSession) -> list[TableSchema]:
        """Read every table version that this target has received."""
        return self._read_schemas(session, "schemas")

    def read_changed_schemas(self, session: TargetSession) -> list[TableSchema]:
        """Read every version of the tables with more than one version."""
        return self._read_schemas(session, "changed_schemas")

    def _read_schemas(self, session: TargetSession, query: str) -> list[TableSchema]:
        return [
            schemas_codec.from_wire(change_pb2.TableSchema.FromString(bytes(wire)))
            for (wire,) in self.read_own_rows(session, query)
        ]

    def put_schema(self, session: TargetSession, schema: TableSchema) -> None:
        """Store a table version, because a batch describes it only once."""
        wire = schemas_codec.to_wire(schema).SerializeToString()
        self.run_own(session, "put_schema", table_id=schema.table_id, version=schema.version, wire=wire)

    def put_table(
        self,
        session: TargetSession,
        placed: PlacedTable,
        state: str,
        offset: int,
        *,
        created: bool,
        predicate: str = "",
    ) -> None:
        """Register a table with its counters at zero."""
        self.run_own(
            session,
            "put_table",
            table_id=placed.schema.table_id,
            version=placed.schema.version,
            namespace=placed.namespace,
            name=placed.name,
            source_name=placed.schema.qualified,
            state=state,
            offset=offset,
            created=created,
            predicate=predicate,
        )

    def set_state(
        self, session: TargetSession, table_id: int, state: str, *, held_from: int | None = None, reason: str = ""
    ) -> None:
        """Change a table's state."""
        self.run_own(session, "set_state", table_id=table_id, state=state, held_from=held_from, reason=reason)


def rows_to_text(rows: RowsIdentity | None) -> str | None:
    """Return a rows identity as the text that is stored with the position."""
    return json.dumps(row_filters.encode_identity(rows)) if rows is not None else None


def rows_from_text(text: str | None) -> RowsIdentity | None:
    """Return the rows identity of a stored text."""
    return row_filters.decode_identity(json.loads(text)) if text is not None else None


@contextmanager
def transaction(session: TargetSession) -> Iterator[None]:
    """Run a block in one transaction of the target."""
    session.run("BEGIN")
    try:
        yield
        session.run("COMMIT")
    except BaseException:
        session.rollback()
        raise


def _number_text(number: int | Sequence[int] | None) -> str:
    if number is None:
        return "NULL"
    return "'{" + ",".join(map(_number_text, number)) + "}'" if isinstance(number, Sequence) else str(int(number))


#: The other state is CUT: the target is marked, and its constraints are being enabled.
_DONE = "DONE"


def cutover_sql(name: str, **names: str) -> str:
    """Return a block of cutover.sql."""
    return statement("cutover", name, own=OWN_SCHEMA, **names)


def read_mark(target: PostgresDatabase, session: TargetSession) -> CutoverMark | None:
    """Read the mark of this target; None if it was not cut over."""
    found = session.row(cutover_sql("installed"))
    row = session.row(cutover_sql("mark"), {"group": target.group}) if found and found[0] else None
    if row is None:
        return None
    state, sequence, offset, certificate, marked_at, done_at = row
    return CutoverMark(
        done=state == _DONE,
        sequence=sequence,
        offset=offset,
        certificate=json.loads(certificate),
        marked_at=marked_at,
        done_at=done_at,
    )


def format_mark_time(mark: CutoverMark | None) -> str:
    """Return the time of a cut-over as text; empty if there was none."""
    return f"{mark.marked_at:%Y-%m-%d %H:%M:%S} UTC" if mark is not None else ""


def refuse_if_cut_over(target: PostgresDatabase, session: TargetSession) -> None:
    """Raise Refused if the target belongs to the application: VENUS could overwrite its rows."""
    mark = read_mark(target, session)
    if mark is not None:
        raise Refused(
            f"target {target.name} was cut over at {format_mark_time(mark)}: it is the application's own",
            hint=f"`venus cutover --target {target.name} --undo` takes that back, unless rows were written there since",
        )


REPLICA = "foreign keys and triggers are off while VENUS applies (session_replication_role = replica)"
DEFERRED = "foreign keys are checked at the end of each transaction (this role may not set session_replication_role)"

#: How long to wait for the server process of a killed predecessor, which holds the lock until it notices.
LOCK_WAIT_S = 30.0
_PAUSE_S = 0.1


def find_referred_table(session: TargetSession, refusal: Refusal) -> tuple[str, str]:
    """Return schema and name of the table that a violated foreign key refers to; empty for another constraint."""
    table = ".".join(quote(part) for part in refusal.table)
    found = session.row(statement("dictionary", "referred_to"), {"table": table, "constraint": refusal.constraint})
    return (found[0], found[1]) if found else ("", "")


def refuse_acting_foreign_keys(session: TargetSession, target: PostgresDatabase, tables: list[TableState]) -> None:
    """Refuse foreign keys with an action, which would change rows a second time without the replica role."""
    names = [f"{quote(t.namespace)}.{quote(t.name)}" for t in tables]
    found = session.rows(statement("dictionary", "acting_foreign_keys"), {"tables": names})
    if found:
        lines = [f"{table}: foreign key {name} acts or is not deferrable" for table, name, _, _ in found]
        raise Refused(
            "\n".join(lines),
            hint=f"let the role of target {target.name} SET session_replication_role, or make them plain DEFERRABLE",
        )


def wait_for_lock(target: PostgresDatabase, session: TargetSession, stop: threading.Event) -> None:
    """Lock a target; wait for a predecessor of this process that has just ended. Raises Refused."""
    until = time.monotonic() + LOCK_WAIT_S
    while not target.try_lock(session):
        if stop.wait(_PAUSE_S) or time.monotonic() > until:
            target.require_lock(session)


def lock_target(target: PostgresDatabase, session: TargetSession, stop: threading.Event) -> bool:
    """Lock a target for this session; return whether foreign keys and triggers are disabled in it.

    Raises Refused if the target was never loaded or another process still works on it.
    """
    if not target.is_installed(session):
        raise target.not_loaded_error
    wait_for_lock(target, session, stop)
    if not target.read_own_rows(session, "is_newest")[0][0]:
        target.install()  # loaded by an older VENUS
    session.run("SET venus.apply = 'on'; SET enable_hashjoin = off; SET enable_mergejoin = off")
    return try_replica_role(session)
