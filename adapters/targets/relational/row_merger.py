"""Writer of the rows of one transaction at a target without a COPY (VENUS 3.4).

Net changes are applied as deletes by key, then as plain inserts: an upsert would change or lose another row that is
equal in a second unique key. Rows that the source marks as new are inserted without deletes; if one of them already
exists, they are inserted again with deletes. A cut that is larger than memory waits in temporary tables of the session,
and is then written as a whole.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from venus.adapters.targets.relational.catalogue import TargetCatalogue
from venus.adapters.targets.relational.row_statements import RowSession, RowStatements, require_all
from venus.adapters.targets.relational.session import Refusal
from venus.adapters.targets.relational.verdicts import SUSPECTS_MAX, RefusedChange, RowsRefused, find_refused
from venus.adapters.under.row_changes import PendingChanges, RowChanges, net_changes


class StatementMerger:
    """Writer of pending changes to the target, within one transaction."""

    def __init__(
        self, session: RowSession, catalogue: TargetCatalogue, statements: RowStatements, *, quarantines: bool
    ) -> None:
        self._session = session
        self._statements = statements
        self._catalogue = catalogue
        self._suspects_max = SUSPECTS_MAX if quarantines else 1
        #: Staging tables that already contain rows of this transaction.
        self._used: set[str] = set()

    def make_room(self, pending: PendingChanges) -> None:
        """Move changes from memory to temporary tables."""
        rows = net_changes(pending.take())
        self._stage(pending, rows)

    def flush(self, pending: PendingChanges) -> None:
        """Write all pending changes to the table. Raises RowsRefused."""
        self._session.wait_for_background()
        rows = pending.take() if pending.parts else None
        if pending.is_staged:
            if rows is not None:
                self._stage(pending, net_changes(rows))
            self._merge_stage(pending)
        elif rows is not None and len(rows):
            self._write(pending, rows)

    # -- from memory -----------------------------------------------------------------------------------------------

    def _write(self, pending: PendingChanges, rows: RowChanges) -> None:
        """Write changes from memory, as inserts if all are new, else by replacing rows. Raises RowsRefused."""
        net = net_changes(rows)
        self._record_keys(pending, net)
        if rows.has_only_new and self._try(partial(self._insert, pending, net)) is None:
            return
        refusal = self._try(partial(self._replace, pending, net))
        if refusal is None:
            return
        suspects = self._search(pending, net)
        raise RowsRefused(pending.table_id, suspects[0].summary if suspects else refusal.summary, suspects) from refusal

    def _replace(self, pending: PendingChanges, rows: RowChanges) -> None:
        """Delete every changed key, then insert the rows that exist now."""
        self._statements.delete_keys(self._session, pending.sql, pending.layout, rows.record_ids)
        self._insert(pending, rows.where(~rows.is_deleted))

    def _insert(self, pending: PendingChanges, rows: RowChanges) -> None:
        """Insert rows. Raises Refusal if the table does not accept all of them."""
        if len(rows):
            schema, statements = pending.layout.schema, self._statements
            written = statements.insert_rows(self._session, pending.sql, schema, rows.record_ids, rows.rows)
            require_all(written, len(rows))

    def _try(self, write: partial[None]) -> Refusal | None:
        """Run `write` under a savepoint; if the target refuses it, undo it and return the refusal."""
        self._session.run("SAVEPOINT venus")
        try:
            write()
        except Refusal as refusal:
            self._session.run("ROLLBACK TO SAVEPOINT venus; RELEASE SAVEPOINT venus")
            return refusal
        self._session.run("RELEASE SAVEPOINT venus")
        return None

    def _search(self, pending: PendingChanges, rows: RowChanges) -> list[RefusedChange]:
        """Return the refused rows, found by halving under savepoints."""
        session = self._session
        session.run("SAVEPOINT venus_search")
        try:
            with suppress(Refusal):  # a key that no column can hold
                self._statements.delete_keys(session, pending.sql, pending.layout, rows.record_ids)
            probe = partial(self._probe, pending)
            return find_refused(rows.where(~rows.is_deleted), probe, self._suspects_max)
        finally:
            session.run("ROLLBACK TO SAVEPOINT venus_search; RELEASE SAVEPOINT venus_search")

    def _probe(self, pending: PendingChanges, rows: RowChanges) -> Refusal | None:
        """Try to write these rows. Keep the rows and return None, or write nothing and return the refusal."""
        return self._try(partial(self._insert, pending, rows))

    def _record_keys(self, pending: PendingChanges, rows: RowChanges) -> None:
        """Record the keys of these rows if the changed keys of their table are being recorded."""
        if self._catalogue.is_recording(pending.table_id):
            keys, offset = rows.record_ids, pending.last_offset
            self._statements.record_keys(self._session, pending.sql, pending.layout, keys, offset)

    # -- through temporary tables ------------------------------------------------------------------------------------

    def _stage(self, pending: PendingChanges, rows: RowChanges) -> None:
        """Add changes to the temporary staging tables. Raises RowsRefused."""
        session, statements, sql = self._session, self._statements, pending.sql
        for stage, columns in ((sql.stage, {}), (sql.key_stage, {"columns": sql.placed.key})):
            if stage not in session.temporary:
                sql.make_stage(session, stage, **columns)
                session.temporary.add(stage)
            if stage not in self._used:
                session.run(f"DELETE FROM {stage}")
                self._used.add(stage)
        live, gone = rows.where(~rows.is_deleted), rows.where(rows.is_deleted)
        try:
            if len(live):
                schema = pending.layout.schema
                statements.insert_rows(session, sql, schema, live.record_ids, live.rows, block="put_staged")
                pending.live_staged += len(live)
            if len(gone):
                statements.stage_keys(session, sql, pending.layout, gone.record_ids)
                pending.gone_staged += len(gone)
        except Refusal as refusal:
            suspects = self._search(pending, rows) if self._suspects_max else []
            raise RowsRefused(pending.table_id, refusal.summary, suspects) from refusal
        self._record_keys(pending, rows)

    def _merge_stage(self, pending: PendingChanges) -> None:
        """Write the staged changes. A refusal halts the table, because its changes are too many for a search."""
        session, sql = self._session, pending.sql
        try:
            if pending.gone_staged:
                session.run(sql.text("delete_staged", stage=sql.key_stage))
            if pending.live_staged:
                session.run(sql.text("delete_staged"))
                session.write_rows(sql.text("insert_staged"))
        except Refusal as refusal:
            raise RowsRefused(pending.table_id, refusal.summary, []) from refusal
