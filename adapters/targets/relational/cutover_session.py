"""What the cut-over of every relational target has in common: the mark, the locks, the transaction that opens it.

The blocks of the kind's cutover.sql have the same names for every kind. A kind adds how rows are read and converted,
its foreign keys and its counters.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from typing import Any, Protocol

from venus.adapters.dialects.contract import Numbering
from venus.adapters.targets.cutover_contract import (
    CutoverMark,
    CutoverObstacle,
    CutoverTable,
    SchemaDifference,
    SideOpening,
)
from venus.adapters.targets.relational.control import build_table_view, build_view, read_progress_in
from venus.adapters.targets.relational.database import LOCK_WAIT_S, RelationalDatabase
from venus.adapters.targets.relational.session import transaction
from venus.adapters.targets.views import TargetTable, TargetView
from venus.errors import Refused

_PAUSE_S = 0.1


class RelationalCutover(ABC):
    """One session of a cut-over."""

    def __init__(self, target: RelationalDatabase, session: Any) -> None:
        self._target = target
        self._session: Any = session

    @abstractmethod
    def sql(self, block: str, **parts: str) -> str:
        """Return a block of cutover.sql."""

    @abstractmethod
    def try_lock_switch(self) -> bool:
        """Try to lock the databases for a switch, until the session ends."""

    @abstractmethod
    def begin_mark(self) -> None:
        """Make the open transaction one of VENUS's, for triggers of the application."""

    def run_preparation(self, statements: Seq[str]) -> None:
        """Run the statements of a handover that precede its transaction."""
        for text in statements:
            self._session.run(text)

    @abstractmethod
    def open_side(self, opening: SideOpening) -> None:
        """Capture and accept writes from the end of the caller's transaction on."""

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
            self.begin_mark()
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
    """One session of a cut-over to a database whose tables are the application's own, as it left them.

    Its foreign keys and counters act in the application's sessions only: nothing has to be enforced or relaxed.
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
        return []

    def relax(self, invalid: Collection[str], numberings: Seq[Numbering]) -> None:
        """Do nothing, as `enforce` does."""
