"""VENUS's own tables at a relational target: its position, the states of tables, its lock (VENUS 3.4).

All reads and writes use the caller's session and transaction, because progress must change together with the rows. Each
kind of target has its statements in a file own.sql, whose blocks have the same names for every kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from venus.adapters.targets.cutover_contract import CutoverMark
from venus.adapters.targets.registry import ConfiguredTarget
from venus.adapters.targets.relational.session import RelationalSession
from venus.adapters.targets.relational.states import (
    ACTIVE,
    HALTED,
    LOADING,
    TableState,
    TargetPosition,
    rows_from_text,
    rows_to_text,
)
from venus.codec import schema as schemas_codec
from venus.config import Settings
from venus.model import TableSchema
from venus.network.row_filters import RowsIdentity
from venus.wire import change_pb2

#: The types of a kind for sessions, statements and places: shared code only passes them back to that kind.
OwnSession = Any
OwnSql = Any
OwnPlace = Any


class TablePlace(Protocol):
    """A source table and its names at the target."""

    @property
    def schema(self) -> TableSchema: ...

    @property
    def namespace(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def sql(self) -> str:
        """The quoted table for a statement."""
        ...

    @property
    def qualified_name(self) -> str:
        """The table's name in messages to people."""
        ...

    def fold(self, name: str) -> str:
        """Return the target's name for a name at the source, without quotes."""
        ...


class OwnTables(ConfiguredTarget, ABC):
    """VENUS's own tables at target `name` of the configuration.

    Until its first load has ended, a target counts as never loaded, except in an object that has `first_load` set.
    """

    def __init__(self, settings: Settings, name: str, *, first_load: bool = False) -> None:
        super().__init__(settings, name)
        self.first_load = first_load

    @abstractmethod
    def own_sql(self, name: str) -> str:
        """Return a block of own.sql."""

    def run_own(self, session: RelationalSession, name: str, /, **params: Any) -> int:
        """Run a statement of own.sql; return its row count."""
        return session.run(self.own_sql(name), {"group": self.group, "business": self.business} | params)

    def read_own_rows(self, session: RelationalSession, name: str, /, **params: Any) -> list[tuple[Any, ...]]:
        """Run a query of own.sql."""
        return session.rows(self.own_sql(name), {"group": self.group} | params)

    def own_text(self, session: RelationalSession, name: str, /, **params: Any) -> str:
        """Return a statement of own.sql with its values filled in, to send it together with others."""
        return session.literal(self.own_sql(name), {"group": self.group, "business": self.business} | params)

    @abstractmethod
    def own_execute_text(self, session: OwnSession, name: str, *numbers: int | Sequence[int] | None) -> str:
        """Return a frequent statement of own.sql with its numbers, to send it together with others.

        A sequence among `numbers` contains one number for each row.
        """

    def try_lock(self, session: RelationalSession) -> bool:
        """Try to lock this target for one process; the lock ends with the session."""
        return bool(self.read_own_rows(session, "try_lock")[0][0])

    def require_lock(self, session: RelationalSession) -> None:
        """Lock this target. Raises Refused if another process holds the lock."""
        if not self.try_lock(session):
            raise self.locked_error

    @abstractmethod
    def read_mark(self, session: OwnSession) -> CutoverMark | None:
        """Read the mark of this target; None if it was not cut over."""

    def read_position(self, session: RelationalSession) -> TargetPosition | None:
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
        return TargetPosition(**known, rows=rows_from_text(identity), loading=bool(loading))

    def set_rows_text(self, session: RelationalSession, rows: RowsIdentity | None) -> str:
        """Return the statement that stores the rows identity of a broker set."""
        return self.own_text(session, "set_rows", rows=rows_to_text(rows))

    def read_tables(self, session: RelationalSession, table_id: int | None = None) -> list[TableState]:
        """Read the state of every table, or of one; empty if that table is unknown."""
        names = TableState.__slots__
        rows = self.read_own_rows(session, "tables", table_id=table_id)
        found = [TableState(**dict(zip(names, row, strict=True))) for row in rows]
        if not self.first_load:
            return found
        return [replace(t, state=ACTIVE) if t.state == LOADING else t for t in found]

    def read_row_counts(self, session: RelationalSession) -> dict[int, int]:
        """Read the approximate row count of each table, by number, from the server's statistics."""
        return dict(self.read_own_rows(session, "row_counts"))

    def count_unaccounted(self, session: RelationalSession) -> int | None:
        """Return the number of changes below the applied offset that are unaccounted for; None = never loaded."""
        rows = self.read_own_rows(session, "unaccounted")
        return int(rows[0][0]) if rows else None

    def read_schemas(self, session: RelationalSession) -> list[TableSchema]:
        """Read every table version that this target has received."""
        return self._read_schemas(session, "schemas")

    def read_changed_schemas(self, session: RelationalSession) -> list[TableSchema]:
        """Read every version of the tables with more than one version."""
        return self._read_schemas(session, "changed_schemas")

    def _read_schemas(self, session: RelationalSession, query: str) -> list[TableSchema]:
        return [
            schemas_codec.from_wire(change_pb2.TableSchema.FromString(bytes(wire)))
            for (wire,) in self.read_own_rows(session, query)
        ]

    def put_schema(self, session: RelationalSession, schema: TableSchema) -> None:
        """Store a table version, because a batch describes it only once."""
        wire = schemas_codec.to_wire(schema).SerializeToString()
        self.run_own(session, "put_schema", table_id=schema.table_id, version=schema.version, wire=wire)

    def put_table(
        self,
        session: RelationalSession,
        placed: TablePlace,
        state: str,
        offset: int,
        *,
        created: bool,
        predicate: str = "",
    ) -> None:
        """Register a table at the target in VENUS's own tables, with its counters at zero."""
        self.run_own(
            session,
            "put_table",
            table_id=placed.schema.table_id,
            version=placed.schema.version,
            namespace=placed.namespace,
            name=placed.name,
            source_name=placed.schema.qualified_name,
            state=state,
            offset=offset,
            created=created,
            predicate=predicate,
        )

    def put_halted(
        self, session: RelationalSession, placed: TablePlace, offset: int, reason: str, predicate: str = ""
    ) -> None:
        """Register a table that cannot, or must not, be created, as halted."""
        self.put_table(session, placed, HALTED, offset, created=False, predicate=predicate)
        self.set_state(session, placed.schema.table_id, HALTED, held_from=offset, reason=reason)

    def set_state(
        self, session: RelationalSession, table_id: int, state: str, *, held_from: int | None = None, reason: str = ""
    ) -> None:
        """Change a table's state."""
        self.run_own(session, "set_state", table_id=table_id, state=state, held_from=held_from, reason=reason)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Indexes of the columns that contain times, by query.
_MOMENTS = {"position": range(5, 9), "list_quarantine": range(14, 16)}


class StoredMicroseconds(OwnTables):
    """VENUS's own tables of a kind that stores times as microseconds since 1970, and runs no scripts."""

    def read_own_rows(self, session: RelationalSession, name: str, /, **params: Any) -> list[tuple[Any, ...]]:
        """Run a query of own.sql; return stored times as datetimes."""
        if name == "clear_quarantine":
            return [self._clear_quarantine(session, **params)]
        found = super().read_own_rows(session, name, **params)
        moments = _MOMENTS.get(name)
        if moments is None:
            return found
        return [tuple(to_moment(v) if n in moments else v for n, v in enumerate(row)) for row in found]

    def _clear_quarantine(self, session: RelationalSession, **params: Any) -> tuple[int | None, int]:
        """Delete old decided changes among the next rows of the quarantine; return the last id and their number."""
        ((last,),) = super().read_own_rows(session, "last_of_piece", **params)
        return last, self.run_own(session, "clear_quarantine", last=last, **params) if last is not None else 0


def to_moment(microseconds: int | None) -> datetime | None:
    """Return a stored time; None if there is none."""
    return None if microseconds is None else _EPOCH + timedelta(microseconds=microseconds)
