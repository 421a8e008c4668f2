"""The three ways of writing rows to a target table, by size, and the fallbacks when one fails.

Few rows are written by keyed statements, and new rows directly by COPY. All other rows go through temporary staging
tables: first a DELETE USING, then an upsert (ON CONFLICT) by the key. If keys or unique values are swapped within a
cut, the upsert fails, and every changed row is deleted and inserted again. If this second way fails too, the target
refuses a row.

A streamed cut is merged piece by piece if rows can only collide by their keys. If a piece cannot be merged, the cut is
read again and merged as a whole. The COPY text of a piece is built while the server still receives the previous piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from venus.adapters.targets.postgresql.rows.searching import RefusedRowSearch
from venus.adapters.targets.postgresql.rowsql import keyed_statements
from venus.adapters.targets.postgresql.session import TargetSession
from venus.adapters.targets.relational.catalogue import TargetCatalogue
from venus.adapters.targets.relational.database import RelationalDatabase
from venus.adapters.targets.relational.session import Refusal, Superseded
from venus.adapters.targets.relational.verdicts import (
    SUSPECTS_MAX,
    RefusedChange,
    RowsRefused,
    halt_on_refusal,
)
from venus.adapters.under.row_changes import (
    MergeWhole,
    PendingChanges,
    RowChanges,
    join_changes,
    net_changes,
    slice_changes,
)
from venus.codec.copy_text import from_copy, keys_to_copy, to_copy
from venus.codec.row_bytes import Layout
from venus.errors import TargetError

#: How many blocks of a staging table are read back at a time, to find a refused row in a large cut.
_SEARCH_BLOCKS = 256
#: Another row has the same value: unique_violation, exclusion_violation. A later change of this cut may free the value.
_VALUE_TAKEN = frozenset({"23505", "23P01"})
#: check_violation. An unchanged row that arrives again may violate a check that is NOT VALID, as it does at the source.
_CHECK_VIOLATED = frozenset({"23514"})
_TWICE_IN_ONE_STATEMENT = frozenset({"21000"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedChanges:
    """Net changes, with the lines for both staging tables: current rows, and keys of deleted rows."""

    rows: RowChanges
    live: int
    live_lines: bytes
    gone: int
    gone_lines: bytes

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTexts:
    """One piece of changes: new rows to copy without staging, and changes to stage."""

    new: RowChanges | None
    new_lines: bytes
    staged: StagedChanges


def build_staged(rows: RowChanges, layout: Layout) -> StagedChanges:
    """Return net changes with their COPY lines for the staging tables."""
    live, gone = rows.where(~rows.is_deleted), rows.where(rows.is_deleted)
    return StagedChanges(
        rows=rows,
        live=len(live),
        live_lines=to_copy(live.record_ids, live.rows, layout),
        gone=len(gone),
        gone_lines=keys_to_copy(gone.record_ids, layout),
    )


def build_copy_texts(rows: RowChanges, layout: Layout, *, directly: bool) -> CopyTexts:
    """Return changes with their COPY lines; `directly` leaves new rows out of the staging tables."""
    if not directly or rows.is_new is None or not rows.is_new.any():
        return CopyTexts(new=None, new_lines=b"", staged=build_staged(rows, layout))
    new = rows.where(rows.is_new)
    lines = to_copy(new.record_ids, new.rows, layout)
    return CopyTexts(new=new, new_lines=lines, staged=build_staged(rows.where(~rows.is_new), layout))


class RowMerger:
    """Writer of pending changes to the target, within one transaction that starts at offset `start`."""

    def __init__(
        self,
        target: RelationalDatabase,
        session: TargetSession,
        catalogue: TargetCatalogue,
        start: int,
        whole: frozenset[int] | None = None,
    ) -> None:
        self._session = session
        self._catalogue = catalogue
        self._start = start
        self._keyed_max = target.settings.apply.keyed_rows_max
        self._suspects_max = SUSPECTS_MAX if target.config.on_error == "quarantine" else 1
        #: Staging tables that already contain rows of this transaction.
        self._used: set[str] = set()
        #: Tables that have to be merged as a whole; None = all.
        self._whole = whole
        #: Tables that have a merged piece already.
        self._merged: set[int] = set()

    def make_room(self, pending: PendingChanges) -> None:
        """Move changes from memory to the server: into the table itself if the order of changes cannot matter.

        The changes are sent in the background. The next use of the session raises an error of the background work:
        MergeWhole if the order mattered, or RowsRefused.
        """
        rows = pending.take()
        form = build_copy_texts(rows, pending.layout, directly=self._can_copy_directly(pending))
        if form.staged.live and self._can_merge_pieces(pending.table_id):
            pending.has_waiting_deletes = False  # this piece deletes them
        self._session.run_in_background(lambda: self._write_piece(pending, form))

    def _can_copy_directly(self, pending: PendingChanges) -> bool:
        """Return whether new rows may be copied without staging: there are no other changes, or none can collide.

        In a first load only rows without an earlier change count as new, so no new row collides with staged changes.
        """
        if pending.new_refused or self._catalogue.is_recording(pending.table_id):
            return False
        if self._catalogue.position.loading or pending.only_new:
            return True
        return self._can_divide(pending.table_id) and not pending.has_waiting_deletes

    def _write_piece(self, pending: PendingChanges, form: CopyTexts) -> None:
        """Write a piece of a cut to the table, or to its staging tables."""
        with halt_on_refusal(self._session, pending.table_id):
            staged = form.staged
            if form.new is not None and not self._try_copy(pending, form.new_lines, len(form.new)):
                pending.new_refused = True
                staged = build_staged(net_changes(join_changes([staged.rows, form.new])), pending.layout)
            if not len(staged):
                return
            self._stage(pending, staged)
            # Keys to delete wait in their staging table, because each DELETE may be a pass over the table.
            if pending.live_staged and self._can_merge_pieces(pending.table_id):
                self._merged.add(pending.table_id)
                self._merge_stage(pending)
                pending.live_staged = pending.gone_staged = 0

    def _can_divide(self, table_id: int) -> bool:
        """Return whether the caller allows cuts of this table to be merged piece by piece."""
        return self._whole is not None and table_id not in self._whole

    def _can_merge_pieces(self, table_id: int) -> bool:
        """Return whether pieces of a cut may be merged one by one: rows can only collide by their keys."""
        return self._can_divide(table_id) and not any(
            i.unique for i in self._catalogue.current_schema(table_id).indexes
        )

    def flush(self, pending: PendingChanges) -> None:
        """Write all pending changes to the table."""
        self._session.wait_for_background()
        if pending.parts:
            rows = pending.take()
            if not pending.is_staged:
                rows = self._write_directly(pending, rows)
            elif self._catalogue.position.loading:
                self._write_piece(pending, build_copy_texts(rows, pending.layout, directly=not pending.new_refused))
                rows = slice_changes(rows, 0, 0)
            if len(rows):
                self._stage(pending, build_staged(net_changes(rows), pending.layout))
        if pending.is_staged:
            self._merge_stage(pending)

    # -- without staging -------------------------------------------------------------------------------------------

    def _write_directly(self, pending: PendingChanges, rows: RowChanges) -> RowChanges:
        """Write the changes that the target accepts without staging; return the rest."""
        if self._catalogue.is_recording(pending.table_id):
            return rows
        none = slice_changes(rows, 0, 0)
        if len(rows) <= self._keyed_max:
            return none if self._try_keyed(pending, net_changes(rows)) else rows
        if pending.new_refused or rows.is_new is None or not rows.is_new.any():
            return rows
        new = rows.where(rows.is_new)
        if not self._try_copy(pending, to_copy(new.record_ids, new.rows, pending.layout), len(new)):
            return rows
        rest = rows.where(~rows.is_new)
        return none if 0 < len(rest) <= self._keyed_max and self._try_keyed(pending, rest) else rest

    def _try_keyed(self, pending: PendingChanges, rows: RowChanges) -> bool:
        """Write changes by keyed statements; return False, and write nothing, if the target refuses one."""
        try:
            text = keyed_statements(self._session, pending.sql, pending.layout, rows)
        except Refusal:
            return False  # no statement can contain this value
        try:
            self._session.run(f"SAVEPOINT venus; {text}; RELEASE SAVEPOINT venus")
        except Refusal:
            self._session.run("ROLLBACK TO SAVEPOINT venus; RELEASE SAVEPOINT venus")
            return False
        return True

    def _try_copy(self, pending: PendingChanges, lines: bytes, rows: int) -> bool:
        """COPY new rows directly into the table; return False if one of them is not new, or is refused.

        In a first load every row must arrive, because afterwards only the numbers of rows are compared.
        """
        self._session.run("SAVEPOINT venus")
        try:
            taken = self._session.copy_in(pending.sql.text("copy_in"), lines)
        except Refusal:
            self._session.run("ROLLBACK TO SAVEPOINT venus; RELEASE SAVEPOINT venus")
            return False
        if taken != rows and self._catalogue.position.loading:
            reason = f"it has accepted {taken} of {rows} rows: a trigger or rule of it discards the others"
            raise RowsRefused(pending.table_id, reason, [])
        self._session.run("RELEASE SAVEPOINT venus")
        return True

    # -- through staging tables ------------------------------------------------------------------------------------

    def _stage(self, pending: PendingChanges, form: StagedChanges) -> None:
        """COPY changes into the staging tables, created or emptied at first use. Raises RowsRefused."""
        sql = pending.sql
        if not pending.is_staged:
            used = f"; TRUNCATE {sql.stage}, {sql.key_stage}" if sql.stage in self._used else ""
            self._session.run(sql.create_stages + used)
            self._used.add(sql.stage)
        try:
            if form.live:
                self._session.copy_in(sql.text("copy_in", table=sql.stage), form.live_lines)
                pending.live_staged += form.live
            if form.gone:
                copy = sql.text("copy_in", table=sql.key_stage, columns=sql.key)
                self._session.copy_in(copy, form.gone_lines)
                pending.gone_staged += form.gone
        except Refusal as refusal:
            # A value that its type cannot hold has ended the transaction; find the row in another one.
            self._session.rollback()
            self._session.run("BEGIN")
            raise self._rows_refused(
                pending, refusal, self._new_search(pending).find_bad_values(form.rows)
            ) from refusal

    def _merge_stage(self, pending: PendingChanges) -> None:
        """Merge the staging tables into the table by the first of four ways that succeeds. Raises RowsRefused.

        The four ways are: upsert, upsert of distinct keys, delete and insert, and upsert of changed rows only.
        """
        sql = pending.sql
        gone, live = str(pending.gone_staged), str(pending.live_staged)
        deletes = [sql.text("delete_staged", stage=sql.key_stage, staged=gone)] if pending.gone_staged else []
        upsert = [*deletes, sql.text("upsert_staged")] if pending.live_staged else deletes
        rotation = [*deletes, sql.text("delete_staged", staged=live), sql.text("insert_staged")]
        repeated, unchanged = sql.text("drop_repeated"), sql.text("drop_unchanged")
        # (statements, the SQLSTATEs of the previous attempt after which these may succeed)
        attempts: list[tuple[list[str], frozenset[str]]] = [
            (upsert, frozenset()),
            ([repeated, *upsert], _TWICE_IN_ONE_STATEMENT),
            ([repeated, *rotation], _VALUE_TAKEN),
            ([repeated, *deletes, unchanged, sql.text("upsert_staged")], _CHECK_VIOLATED),
        ]
        refusal: Refusal | None = None
        for statements, after in attempts:
            if refusal is None or refusal.sqlstate in after:
                refusal = self._attempt(pending, statements)
                if refusal is None:
                    return
        assert refusal is not None
        if pending.table_id in self._merged:
            raise MergeWhole(pending.table_id)
        room = [*deletes, sql.text("delete_staged", staged=live)]
        suspects = self._new_search(pending).find_refused(self._read_staged(pending), room)
        raise self._rows_refused(pending, refusal, suspects) from refusal

    def _attempt(self, pending: PendingChanges, statements: list[str]) -> Refusal | None:
        """Run statements under a savepoint; return the target's refusal. Raises RowsRefused for any other error."""
        sql = pending.sql
        after: list[str] = []
        if self._catalogue.is_recording(pending.table_id):
            offset = str(pending.last_offset)
            after = [sql.text("touch_staged", stage=s, offset=offset) for s in (sql.stage, sql.key_stage)]
        # the keys of unchanged rows are recorded before these rows are dropped from the stage
        at = statements.index(unchanged) if (unchanged := sql.text("drop_unchanged")) in statements else len(statements)
        steps = [*statements[:at], *after, *statements[at:]]
        try:
            self._session.run("; ".join(["SAVEPOINT venus", *steps, "RELEASE SAVEPOINT venus"]))
        except Superseded:
            raise
        except TargetError as error:
            self._session.run("ROLLBACK TO SAVEPOINT venus; RELEASE SAVEPOINT venus")
            if isinstance(error, Refusal):
                return error
            if pending.table_id in self._merged:
                raise MergeWhole(pending.table_id) from error
            raise RowsRefused(pending.table_id, str(error), []) from error
        return None

    # -- refused rows ----------------------------------------------------------------------------------------------

    def _new_search(self, pending: PendingChanges) -> RefusedRowSearch:
        """Return a search for the refused rows of a table."""
        return RefusedRowSearch(session=self._session, sql=pending.sql, layout=pending.layout, limit=self._suspects_max)

    def _read_staged(self, pending: PendingChanges) -> Iterator[RowChanges]:
        """Read a staging table back piece by piece, because the cut may be larger than memory."""
        sql = pending.sql
        blocks = self._session.row(sql.text("stage_blocks"))
        for low in range(0, int(blocks[0]) if blocks else 0, _SEARCH_BLOCKS):
            copy = sql.text("copy_out", table=sql.stage, low=str(low), high=str(low + _SEARCH_BLOCKS))
            record_ids, rows, is_deleted = from_copy(self._session.copy_out(copy), pending.layout, flagged=False)
            offsets = np.full(len(record_ids), self._start, dtype=np.int64)
            yield net_changes(RowChanges(record_ids=record_ids, rows=rows, is_deleted=is_deleted, offsets=offsets))

    @staticmethod
    def _rows_refused(pending: PendingChanges, refusal: Refusal, suspects: list[RefusedChange]) -> RowsRefused:
        """Return the error for a table's refused rows, with the message of the first suspect."""
        return RowsRefused(pending.table_id, suspects[0].summary if suspects else refusal.summary, suspects)
