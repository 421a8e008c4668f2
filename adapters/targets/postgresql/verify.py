"""A PostgreSQL target as a side of a comparison. Its applied offset stands in the same snapshot as its rows."""

from __future__ import annotations

from venus.adapters.dialects.postgresql.verify import Names, PostgresReader
from venus.adapters.dialects.verifying import Subject
from venus.adapters.targets.postgresql.cutmark import moment, read
from venus.adapters.targets.postgresql.database import ACTIVE, PostgresTarget
from venus.adapters.targets.postgresql.naming import literal
from venus.adapters.targets.postgresql.schema.ddl import type_sql
from venus.adapters.targets.verifying import Reached
from venus.errors import TargetError


class PostgresTargetReader(PostgresReader):
    """One session at a target."""

    def __init__(self, target: PostgresTarget) -> None:
        self.target = target
        self._own_session = self.target.connect("verify")
        super().__init__(self._own_session, self._placed, self._own_session.copy_out)

    def _placed(self, subject: Subject) -> Names:
        placed = self.target.place(subject.schema)
        columns = subject.schema.wire_columns
        return Names(
            relation=placed.rows_sql,
            relation_name=literal(placed.sql),
            columns=tuple(placed.column(c.name) for c in columns),
            casts=tuple(type_sql(c.type, placed.type_names) for c in columns[: len(subject.schema.key)]),
            equals=("=",) * len(subject.schema.key),
        )

    def reached(self, subject: Subject) -> Reached:
        """Return how far this table is, in the snapshot of `begin`."""
        position = self.target.position(self._own_session)
        state = next(iter(self.target.tables(self._own_session, subject.schema.table_id)), None)
        if position is None or state is None:
            raise TargetError(f"target {self.target.name} has not been loaded yet")
        if state.state == ACTIVE or state.held_from is None:
            return Reached(offset=position.offset, held=self._held_as_a_whole() if position.paused else "")
        reason = f" ({state.reason})" if state.reason else ""
        return Reached(offset=state.held_from, held=f"the table is {state.state} at the target{reason}")

    def _held_as_a_whole(self) -> str:
        since = moment(read(self.target, self._own_session))
        return f"the target was cut over at {since}" if since else "the target is paused"

    def parked(self, subject: Subject) -> dict[bytes, str]:
        """Return why changes of single rows were not applied, by record id."""
        rows = self.target.own_rows(self._own_session, "list_quarantine", everything=True)
        return {
            bytes(row[4]): f"{row[12].lower()} in quarantine: {row[9]}" + (f" ({row[8]})" if row[8] else "")
            for row in rows
            if row[1] == subject.schema.table_id and row[12] in ("PARKED", "HALTED", "SKIPPED")
        }
