"""What concerns a whole table in the midst of its changes: TRUNCATE, the beginning and the end of a sweep (VENUS 3.4).

Each acts behind everything that came before it; the caller sees to that.
"""

from __future__ import annotations

import logging

from venus.adapters.targets.postgresql.catalogue import Catalogue
from venus.adapters.targets.postgresql.database import RESYNC, SWEEP, PostgresTarget
from venus.adapters.targets.postgresql.rows.verdicts import guarded, halting
from venus.adapters.targets.postgresql.rowsql import RowSql
from venus.adapters.targets.postgresql.session import Session
from venus.errors import VenusError


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


logger = logging.getLogger(__name__)


class Markers:
    """Carries out the markers of one transaction."""

    def __init__(self, target: PostgresTarget, session: Session, catalogue: Catalogue, recording: Recording) -> None:
        self._session = session
        self._catalogue = catalogue
        self._recording = recording
        self._empty_by = target.config.empty_by

    def truncate(self, table_id: int, sql: RowSql) -> None:
        """Empty the table: by DELETE, because TRUNCATE empties it for those as well who read an older snapshot.

        Where TRUNCATE is asked for: it cannot be had under foreign keys or a long reader, DELETE always can.
        """
        self._begin_resync_again(table_id)
        if self._empty_by == "delete":
            guarded(self._session, table_id, sql.text("delete_all"))
            return
        self._session.run("SAVEPOINT venus; SET LOCAL lock_timeout = '1s'")
        try:
            self._session.run(f"{sql.text('truncate')}; SET LOCAL lock_timeout = 0; RELEASE SAVEPOINT venus")
        except VenusError as error:
            if self._session.closed:
                raise
            logger.info("%s is emptied by DELETE: %s", sql.placed.qualified, error)
            self._session.run("ROLLBACK TO SAVEPOINT venus; RELEASE SAVEPOINT venus")
            guarded(self._session, table_id, sql.text("delete_all"))

    def _begin_resync_again(self, table_id: int) -> None:
        """Have a resync under way load again: rows that go now, key by key unrecorded, may be in its side table."""
        if self._catalogue.sweeps.get(table_id, {}).get(RESYNC, -1) >= 0:
            self._recording.request(table_id, RESYNC)

    def begin_sweep(self, table_id: int, offset: int, sql: RowSql) -> None:
        """Record from here on which keys the second read of the source's table meets."""
        with halting(self._session, table_id):
            self._recording.start(table_id, SWEEP, offset, sql)

    def end_sweep(self, table_id: int, sql: RowSql) -> None:
        """Remove the rows that were not met."""
        begun = self._catalogue.sweeps.get(table_id, {}).get(SWEEP)
        if begun is None:
            # Loaded in the middle of the sweep: only the broker's full data knows what it has removed.
            self._recording.request(table_id, RESYNC)
            return
        self._begin_resync_again(table_id)
        guarded(
            self._session,
            table_id,
            f"SET LOCAL enable_hashjoin = on; {sql.text('sweep', offset=str(begun))}; SET LOCAL enable_hashjoin = off",
        )
        self._recording.stop(table_id, SWEEP, sql)
