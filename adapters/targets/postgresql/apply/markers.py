"""Markers that concern a whole table: TRUNCATE, and the start and end of a sweep (VENUS 3.4).

The caller applies all earlier changes before a marker. While a sweep or a resync runs, the target records the keys of
all changes of its table, in the transactions that apply these changes.
"""

from __future__ import annotations

import logging

from venus.adapters.targets.postgresql.catalogue import TargetCatalogue
from venus.adapters.targets.postgresql.database import RESYNC, SWEEP, PostgresDatabase
from venus.adapters.targets.postgresql.rows.verdicts import halt_on_refusal, run_or_halt
from venus.adapters.targets.postgresql.rowsql import RowSql
from venus.adapters.targets.postgresql.session import TargetSession
from venus.errors import VenusError

logger = logging.getLogger(__name__)


class KeyRecording:
    """Records of changed keys, within one transaction. `changed` means that the catalogue must be read again."""

    def __init__(self, target: PostgresDatabase, session: TargetSession, catalogue: TargetCatalogue) -> None:
        self._target = target
        self._session = session
        self._catalogue = catalogue
        self.changed = False

    def start(self, table_id: int, purpose: str, offset: int, sql: RowSql) -> None:
        """Record the key of every change of this table from now on."""
        self._session.run(sql.text("create_touched"))
        if self._session.row(sql.text("has_key")) is None:
            self._session.run(sql.text("key_touched"))
        self._store(table_id, purpose, offset)

    def request(self, table_id: int, purpose: str) -> None:
        """Request a record; the apply loop starts it later."""
        self._store(table_id, purpose, -1)

    def _store(self, table_id: int, purpose: str, offset: int) -> None:
        self._target.run_own(self._session, "put_sweep", table_id=table_id, purpose=purpose, offset=offset)
        self._catalogue.sweeps.setdefault(table_id, {})[purpose] = offset
        self.changed = True

    def stop(self, table_id: int, purpose: str, sql: RowSql) -> None:
        """End a record; the table of keys is dropped with its last purpose."""
        self._target.run_own(self._session, "end_sweep", table_id=table_id, purpose=purpose)
        self._catalogue.sweeps.get(table_id, {}).pop(purpose, None)
        if not self._catalogue.is_recording(table_id):
            self._session.run(sql.text("drop_touched"))
        self.changed = True


class Markers:
    """Executor of the markers of one transaction."""

    def __init__(
        self, target: PostgresDatabase, session: TargetSession, catalogue: TargetCatalogue, recording: KeyRecording
    ) -> None:
        self._session = session
        self._catalogue = catalogue
        self._recording = recording
        self._empty_by = target.config.empty_by

    def truncate(self, table_id: int, sql: RowSql) -> None:
        """Empty the table by DELETE, because TRUNCATE also empties it for readers of an older snapshot.

        If the configuration demands TRUNCATE, use DELETE only where foreign keys or a long reader prevent TRUNCATE.
        """
        self._restart_resync(table_id)
        if self._empty_by == "delete":
            run_or_halt(self._session, table_id, sql.text("delete_all"))
            return
        self._session.run("SAVEPOINT venus; SET LOCAL lock_timeout = '1s'")
        try:
            self._session.run(f"{sql.text('truncate')}; SET LOCAL lock_timeout = 0; RELEASE SAVEPOINT venus")
        except VenusError as error:
            if self._session.closed:
                raise
            logger.info("emptying %s by DELETE: %s", sql.placed.qualified, error)
            self._session.run("ROLLBACK TO SAVEPOINT venus; RELEASE SAVEPOINT venus")
            run_or_halt(self._session, table_id, sql.text("delete_all"))

    def _restart_resync(self, table_id: int) -> None:
        """Restart a running resync: its side table may contain rows that are deleted now without a recorded key."""
        if self._catalogue.sweeps.get(table_id, {}).get(RESYNC, -1) >= 0:
            self._recording.request(table_id, RESYNC)

    def begin_sweep(self, table_id: int, offset: int, sql: RowSql) -> None:
        """Start to record the keys that the second read of the source's table finds."""
        with halt_on_refusal(self._session, table_id):
            self._recording.start(table_id, SWEEP, offset, sql)

    def end_sweep(self, table_id: int, sql: RowSql) -> None:
        """Delete the rows that the second read has not found."""
        begun = self._catalogue.sweeps.get(table_id, {}).get(SWEEP)
        if begun is None:
            # The target was loaded during the sweep: only the broker's full data shows what the sweep has removed.
            self._recording.request(table_id, RESYNC)
            return
        self._restart_resync(table_id)
        run_or_halt(
            self._session,
            table_id,
            f"SET LOCAL enable_hashjoin = on; {sql.text('sweep', offset=str(begun))}; SET LOCAL enable_hashjoin = off",
        )
        self._recording.stop(table_id, SWEEP, sql)
