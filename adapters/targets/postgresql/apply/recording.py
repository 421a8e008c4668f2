"""Begins and ends the records of which keys of a table are touched by changes, in the transactions that apply them.

Two things need to know: the end of a sweep (the re-read of a whole source table), after which keys that were not met
are gone, and a resync, for which touched keys are newer than its snapshot. The record is durable, so both outlive a
restart.
"""

from __future__ import annotations

from venus.adapters.targets.postgresql.catalogue import Catalogue
from venus.adapters.targets.postgresql.database import PostgresTarget
from venus.adapters.targets.postgresql.rowsql import RowSql
from venus.adapters.targets.postgresql.session import Session


class Recording:
    """The records of touched keys, within one transaction. `changed` = the catalogue in memory is behind."""

    def __init__(self, target: PostgresTarget, session: Session, catalogue: Catalogue) -> None:
        self._target = target
        self._session = session
        self._catalogue = catalogue
        self.changed = False

    def start(self, table_id: int, purpose: str, offset: int, sql: RowSql) -> None:
        """Record the key of every change of this table from now on."""
        self._session.run(sql.text("create_touched"))
        if self._session.row(sql.text("has_key")) is None:
            self._session.run(sql.text("key_touched"))
        self._put(table_id, purpose, offset)

    def request(self, table_id: int, purpose: str) -> None:
        """Ask for it; the loop begins when it comes to it."""
        self._put(table_id, purpose, -1)

    def _put(self, table_id: int, purpose: str, offset: int) -> None:
        self._target.own(self._session, "put_sweep", table_id=table_id, purpose=purpose, offset=offset)
        self._catalogue.sweeps.setdefault(table_id, {})[purpose] = offset
        self.changed = True

    def stop(self, table_id: int, purpose: str, sql: RowSql) -> None:
        """End it; the record goes with its last reader."""
        self._target.own(self._session, "end_sweep", table_id=table_id, purpose=purpose)
        self._catalogue.sweeps.get(table_id, {}).pop(purpose, None)
        if not self._catalogue.records(table_id):
            self._session.run(sql.text("drop_touched"))
        self.changed = True
