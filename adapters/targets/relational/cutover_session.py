"""The part of a cut-over that all relational targets share: the mark, the locks, the transaction that opens the target.

The SQL blocks in the cutover.sql of every kind of target have the same names. Each kind of target adds its own code for
rows, foreign keys and counters.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol, Self

from venus.adapters.dialects.contract import Numbering
from venus.adapters.targets.cutover_contract import (
    CounterSetting,
    CutoverMark,
    CutoverObstacle,
    CutoverTable,
    SchemaDifference,
    SideOpening,
)
from venus.adapters.targets.relational.control import build_table_view, build_view, read_progress_in
from venus.adapters.targets.relational.database import LOCK_WAIT_S, RelationalDatabase
from venus.adapters.targets.relational.names import PostgresNames
from venus.adapters.targets.relational.session import transaction
from venus.adapters.targets.relational.sides import next_number
from venus.adapters.targets.views import TargetTable, TargetView
from venus.errors import Refused, TargetError

_PAUSE_S = 0.1


class RelationalCutover(ABC):
    """One session of the cut-over of a relational target."""

    def __init__(self, target: RelationalDatabase, session: Any) -> None:
        self._target = target
        self._session: Any = session

    @classmethod
    @contextmanager
    def open(cls, target: Any) -> Iterator[Self]:
        """Open the session; roll back an open transaction at the end."""
        cutover = cls(target, target.connect("cutover"))
        try:
            yield cutover
        finally:
            cutover.close()

    @abstractmethod
    def sql(self, block: str, **parts: str) -> str:
        """Return a block of cutover.sql."""

    @abstractmethod
    def try_lock_switch(self) -> bool:
        """Try to lock the databases for a switch, until the session ends."""

    def run_preparation(self, statements: Seq[str]) -> None:
        """Run the statements of a handover that precede its transaction."""
        for text in statements:
            self._session.run(text)

    @abstractmethod
    def open_side(self, opening: SideOpening) -> None:
        """Make the database capture and accept writes as soon as the caller's transaction commits."""

    def close(self) -> None:
        """Roll back an open transaction and close the connection."""
        self._session.rollback()
        self._session.close()

    def prepare(self) -> None:
        if not self._target.is_installed(self._session):
            raise self._target.not_loaded_error
        self._target.install()

    def read_mark(self) -> CutoverMark | None:
        return self._target.read_mark(self._session)

    def read_view(self) -> TargetView:
        return build_view(read_progress_in(self._target, self._session))

    @contextmanager
    def open_snapshot(self) -> Iterator[None]:
        self._session.run(self.sql("begin_reading"))
        try:
            yield
        finally:
            self._session.rollback()

    # -- the hand-over ---------------------------------------------------------------------------------------------

    def lock_switch(self) -> None:
        if self._session.is_closed:
            self._session.close()
            self._session = self._target.connect("cutover")
        until = time.monotonic() + LOCK_WAIT_S
        while not self.try_lock_switch():
            if time.monotonic() > until:
                raise Refused("another process switches these databases", hint="let it end, or stop it")
            time.sleep(_PAUSE_S)

    def put_mark(
        self,
        certificate: dict[str, Any],
        check: Callable[[Seq[TargetTable]], None],
        opening: SideOpening | None = None,
    ) -> None:
        target, session = self._target, self._session
        if opening is not None:
            self.run_preparation(opening.preparation)
        with transaction(session):
            ((offset, _),) = target.read_own_rows(session, "hold_position")
            check([build_table_view(t) for t in target.read_tables(session)])
            if opening is not None:
                if offset != opening.position.offset:
                    raise Refused(f"target {target.name} is at offset {offset:,}, not {opening.position.offset:,}")
                self.open_side(opening)
            values = {"sequence": certificate["sequence"], "offset": certificate["offset"]}
            session.run(self.sql("put_mark"), values | {"group": target.group, "certificate": json.dumps(certificate)})
            target.run_own(session, "set_paused", paused=True)
            target.run_own(session, "raise_control")

    def finish_mark(self, certificate: dict[str, Any]) -> None:
        values = {"group": self._target.group, "certificate": json.dumps(certificate)}
        self._session.run(self.sql("finish_mark"), values)

    def remove_mark(self) -> None:
        target, session = self._target, self._session
        with transaction(session):
            target.run_own(session, "hold_position")
            session.run(self.sql("remove_mark"), {"group": target.group})
            target.run_own(session, "set_paused", paused=False)
            target.run_own(session, "raise_control")


class FollowerTables(Protocol):
    """The application's tables in a database that follows."""

    def read_all(self) -> Seq[object]:
        """Read the tables as they are now."""
        ...

    def find(self, name: str) -> object | None:
        """Return a table; None if it does not exist."""
        ...


class FollowerCutover(RelationalCutover):
    """One session of a cut-over to a database whose tables are the application's own, unchanged by VENUS.

    The tables' foreign keys act only in the application's sessions, so the cut-over need not enforce or relax them.
    """

    def __init__(self, target: RelationalDatabase, session: Any, tables: FollowerTables) -> None:
        super().__init__(target, session)
        self._tables = tables
        self._placed: dict[int, Any] = {}

    def read_tables(self) -> list[CutoverTable]:
        newest = {(s.table_id, s.version): s for s in self._target.read_schemas(self._session)}
        placed = {
            t.table_id: self._target.place(schema)
            for t in self._target.read_tables(self._session)
            if (schema := newest.get((t.table_id, t.schema_version))) is not None and not schema.is_heartbeat
        }
        self._tables.read_all()
        self._placed = {n: one for n, one in placed.items() if self._tables.find(one.name) is not None}
        return [CutoverTable(schema=p.schema, name=p.qualified_name) for p in self._placed.values()]

    def find_differences(self) -> list[CutoverObstacle]:
        return []

    def find_schema_differences(self) -> list[SchemaDifference]:
        return []

    def enforce(self, invalid: Collection[str], numberings: Seq[Numbering]) -> list[str]:
        """Do nothing: the foreign keys already act in the application's sessions."""
        return []

    def relax(self, invalid: Collection[str], numberings: Seq[Numbering]) -> None:
        """Do nothing, as `enforce` does."""


class NumberedFollowerCutover(FollowerCutover):
    """One session of a cut-over to a database that follows and lists its counters as capture there does."""

    #: The dialect that captures this database.
    DIALECT: ClassVar[str]

    def set_counters(self, numberings: Seq[Numbering]) -> list[CounterSetting]:
        matched = self._match_numberings(numberings)
        placed = {one.name: one for one in self._placed.values()}
        found = []
        for own in self.read_numberings():
            known = matched.get(_place_of(own))
            if own.table in placed or known is not None:
                found.append((own, self._set_counter(own, known, placed.get(own.table))))
        late = {(n.table, n.name): n.next_value for n in self.read_numberings()}
        for own, one in found:
            if (late.get((own.table, own.name), one.next_value) - one.next_value) * own.increment < 0:
                raise Refused(
                    f"{own.table or own.name}: its counter cannot continue at {one.next_value:,}",
                    hint="give it a wider range, or the column a wider type, in this database",
                )
        return [one for _, one in found]

    @abstractmethod
    def read_numberings(self) -> Seq[Numbering]:
        """Read the counters of this database."""

    @abstractmethod
    def move_counter(self, own: Numbering, value: int, placed: Any) -> None:
        """Let a counter continue at a number; `placed`: its table, or None."""

    @property
    def other_names(self) -> PostgresNames:
        """The rule by which the other database converts the names of this one."""
        return PostgresNames()

    def _match_numberings(self, numberings: Seq[Numbering]) -> dict[tuple[str, str], Numbering]:
        """Return the counters of the other database by table and column here, or by the name of a sequence here."""
        of_column = {(n.namespace, n.table, n.column): n for n in numberings if n.table}
        free = {(n.namespace, n.name): n for n in numberings if n.name and not n.table}
        columns = {
            (one.name, one.fold(column.name)): (one.schema.namespace, one.schema.name, column.name)
            for one in self._placed.values()
            for column in one.schema.columns
        }
        rule, dialect = self.other_names, self.DIALECT
        sequences = {
            _place_of(n): (rule.namespace(n.namespace, dialect), rule.fold(n.name, dialect))
            for n in self.read_numberings()
            if not n.table
        }
        found = {here: of_column[there] for here, there in columns.items() if there in of_column}
        return found | {here: free[there] for here, there in sequences.items() if there in free}

    def _set_counter(self, own: Numbering, known: Numbering | None, placed: Any) -> CounterSetting:
        """Move a counter past the rows' numbers and past the other database's counter, and never back."""
        low, high = None, None
        if placed is not None:
            query = self.sql("extremes", column=placed.quote(own.column), table=placed.sql)
            low, high = self._session.row(query) or (None, None)
        other = max((n.next_value for n in (own, known) if n is not None), key=lambda n: n * own.increment)
        value = next_number(low and int(low), high and int(high), other, own.increment)
        try:
            self.move_counter(own, value, placed)
        except TargetError as error:
            raise Refused(f"{own.table or own.name}: its counter cannot continue at {value:,}: {error}") from error
        name = own.name or f"AUTO_INCREMENT of {own.table}"
        return CounterSetting(sequence=name, next_value=value, step=own.increment, table=own.table, column=own.column)


def _place_of(own: Numbering) -> tuple[str, str]:
    """Return table and column of a counter; for a sequence without a column, an empty text and its name."""
    return (own.table, own.column) if own.table else ("", own.name)
