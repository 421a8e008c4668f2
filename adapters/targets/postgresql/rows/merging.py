"""The three ways of rows into a target table, each for its size, and what is done when one fails (performance.md 6).

Few rows go as keyed statements. New rows go straight in by COPY. Everything else goes through temporary staging tables:
DELETE USING first, then INSERT .. ON CONFLICT by the key. Keys or unique values that change places within a cut make
the upsert fail; then every changed row is deleted and inserted again. What still fails is a refused row. A cut that is
streamed is merged piece by piece where only the key decides which rows collide; if that fails, it is read again and
merged whole. While the server takes one piece, the text of the next one is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from venus.adapters.targets.postgresql.catalogue import Catalogue
from venus.adapters.targets.postgresql.database import PostgresTarget
from venus.adapters.targets.postgresql.rows.verdicts import SUSPECTS_MAX, RowsRefused, Search, Suspect, halting
from venus.adapters.targets.postgresql.rowsql import RowSql, keyed_text
from venus.adapters.targets.postgresql.session import Refusal, Session, Superseded
from venus.adapters.under.fold import Rows, joined, net
from venus.codec.copytext import from_copy, keys_to_copy, to_copy
from venus.codec.layout import Layout
from venus.errors import TargetError


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """Changes with a key once each, and the lines for both staging tables: of rows that live, of keys that are gone."""

    rows: Rows
    live: int
    live_lines: bytes
    gone: int
    gone_lines: bytes

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What is brought in at once: new rows that are tried without staging, and what is staged."""

    new: Rows | None
    new_lines: bytes
    staged: Staged


def staged_form(rows: Rows, layout: Layout) -> Staged:
    """Return the form for staging tables of changes with a key once each."""
    live, gone = rows.where(~rows.is_deleted), rows.where(rows.is_deleted)
    return Staged(
        rows=rows,
        live=len(live),
        live_lines=to_copy(live.record_ids, live.rows, layout),
        gone=len(gone),
        gone_lines=keys_to_copy(gone.record_ids, layout),
    )


def formed(rows: Rows, layout: Layout, *, directly: bool) -> Form:
    """Return the form of changes; `directly` = what is new is not staged."""
    if not directly or rows.is_new is None or not rows.is_new.any():
        return Form(new=None, new_lines=b"", staged=staged_form(rows, layout))
    new = rows.where(rows.is_new)
    lines = to_copy(new.record_ids, new.rows, layout)
    return Form(new=new, new_lines=lines, staged=staged_form(rows.where(~rows.is_new), layout))


#: Blocks of a staging table that are read back at a time when a refused row has to be found in a large cut.
_SEARCH_BLOCKS = 256
#: Another row has the value: unique_violation, exclusion_violation. Perhaps only until that one changes, in this cut.
_VALUE_TAKEN = frozenset({"23505", "23P01"})
#: check_violation. A row that has not changed and comes again may violate a check that is NOT VALID, as at the source.
_CHECK_VIOLATED = frozenset({"23514"})
_TWICE_IN_ONE_STATEMENT = frozenset({"21000"})


class MergeWhole(Exception):
    """The target refused a piece of a cut: perhaps only because the others were not there. Begin again, whole."""

    def __init__(self, table_id: int) -> None:
        super().__init__(table_id)
        self.table_id = table_id


@dataclass(slots=True, kw_only=True)
class Pending:
    """Changes of one table that are not at the target yet."""

    table_id: int
    sql: RowSql
    layout: Layout
    parts: list[Rows] = field(default_factory=list)
    #: Whether all that has come are new rows.
    only_new: bool = True
    #: Whether keys to be deleted came that no piece has taken along: a new row must not come before them.
    gone_wait: bool = False
    #: The target has refused new rows that were not staged: they are not tried again.
    new_refused: bool = False
    #: How many rows, and keys to be deleted, the staging tables have.
    live_staged: int = 0
    gone_staged: int = 0
    last_offset: int = 0
    #: How many changes have left for the target.
    taken: int = 0
    #: What waits in memory.
    waiting_bytes: int = 0

    @property
    def staged(self) -> bool:
        return bool(self.live_staged or self.gone_staged)

    @property
    def waiting(self) -> int:
        return sum(map(len, self.parts))

    def take(self) -> Rows:
        """Give out what waits in memory; of several changes of a key only the last, unless all are new rows."""
        rows, self.parts = joined(self.parts), []
        self.taken += len(rows)
        rows = rows if rows.only_new else net(rows)
        self.only_new &= rows.only_new
        self.gone_wait |= bool(rows.is_deleted.any())
        return rows


class Merging:
    """Brings pending changes into the target, within one transaction that starts at offset `start`."""

    def __init__(
        self,
        target: PostgresTarget,
        session: Session,
        catalogue: Catalogue,
        start: int,
        whole: frozenset[int] | None = None,
    ) -> None:
        self._session = session
        self._catalogue = catalogue
        self._start = start
        self._keyed_max = target.settings.apply.keyed_rows_max
        self._suspects_max = SUSPECTS_MAX if target.config.on_error == "quarantine" else 1
        #: Staging tables that hold rows of this transaction already.
        self._used: set[str] = set()
        #: Tables that have to be merged whole, None = all.
        self._whole = whole
        #: Tables of which pieces are merged already.
        self._merged: set[int] = set()

    def make_room(self, pending: Pending) -> None:
        """Move what waits in memory to the server, into the table if the order of keys cannot matter; the cut goes on.

        The server's work goes on behind. What it comes to is raised by whatever asks the session for something next:
        MergeWhole if the order did matter, RowsRefused.
        """
        rows = pending.take()
        form = formed(rows, pending.layout, directly=self._directly(pending))
        if form.staged.live and self._in_pieces(pending.table_id):
            pending.gone_wait = False  # this piece takes them along
        self._session.behind(lambda: self._bring(pending, form))

    def _directly(self, pending: Pending) -> bool:
        """Whether new rows may go in without staging: nothing else has come, or nothing that came can collide."""
        if pending.new_refused or self._catalogue.records(pending.table_id):
            return False
        return pending.only_new or (self._may_divide(pending.table_id) and not pending.gone_wait)

    def _bring(self, pending: Pending, form: Form) -> None:
        """Bring a piece in, in the thread behind."""
        with halting(self._session, pending.table_id):
            staged = form.staged
            if form.new is not None and not self._copied(pending, form.new_lines):
                pending.new_refused = True
                staged = staged_form(net(joined([staged.rows, form.new])), pending.layout)
            if not len(staged):
                return
            self._stage(pending, staged)
            # Keys that are only to be deleted wait in their staging table: each DELETE may be a pass over the table.
            if pending.live_staged and self._in_pieces(pending.table_id):
                self._merged.add(pending.table_id)
                self._unstage(pending)
                pending.live_staged = pending.gone_staged = 0

    def _may_divide(self, table_id: int) -> bool:
        return self._whole is not None and table_id not in self._whole

    def _in_pieces(self, table_id: int) -> bool:
        """Whether pieces of a cut may be merged one by one: nothing but the key decides which rows collide."""
        return self._may_divide(table_id) and not any(i.unique for i in self._catalogue.newest(table_id).indexes)

    def flush(self, pending: Pending) -> None:
        """Bring everything into the table."""
        self._session.settle()
        if pending.parts:
            rows = pending.take()
            if not pending.staged and self._direct(pending, rows):
                return
            self._stage(pending, staged_form(net(rows), pending.layout))
        if pending.staged:
            self._unstage(pending)

    # -- without staging -------------------------------------------------------------------------------------------

    def _direct(self, pending: Pending, rows: Rows) -> bool:
        """Try the ways that need no staging; False = they do not suit, or the target refused."""
        if self._catalogue.records(pending.table_id):
            return False
        if len(rows) <= self._keyed_max:
            return self._keyed(pending, net(rows))
        if not self._directly(pending) or not rows.only_new:
            return False
        return self._copied(pending, to_copy(rows.record_ids, rows.rows, pending.layout))

    def _keyed(self, pending: Pending, rows: Rows) -> bool:
        try:
            text = keyed_text(self._session, pending.sql, pending.layout, rows)
        except Refusal:
            return False  # a value that no statement can hold
        try:
            self._session.run(f"SAVEPOINT venus; {text}; RELEASE SAVEPOINT venus")
        except Refusal:
            self._session.run("ROLLBACK TO SAVEPOINT venus; RELEASE SAVEPOINT venus")
            return False
        return True

    def _copied(self, pending: Pending, lines: bytes) -> bool:
        """COPY new rows straight into the table; False = one of them is not new after all, or is refused."""
        self._session.run("SAVEPOINT venus")
        try:
            self._session.copy_in(pending.sql.text("copy_in"), lines)
        except Refusal:
            self._session.run("ROLLBACK TO SAVEPOINT venus; RELEASE SAVEPOINT venus")
            return False
        self._session.run("RELEASE SAVEPOINT venus")
        return True

    # -- through staging tables ------------------------------------------------------------------------------------

    def _stage(self, pending: Pending, form: Staged) -> None:
        sql = pending.sql
        if not pending.staged:
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
            # A value that its type cannot hold. The transaction is lost; look for the row in one of its own.
            self._session.rollback()
            self._session.run("BEGIN")
            raise self._refused(pending, refusal, self._search(pending).values(form.rows)) from refusal

    def _unstage(self, pending: Pending) -> None:
        """Try the upsert, without repeated keys, as a rotation, without unchanged rows. What is left is a refusal."""
        sql = pending.sql
        gone, live = str(pending.gone_staged), str(pending.live_staged)
        deletes = [sql.text("delete_staged", stage=sql.key_stage, staged=gone)] if pending.gone_staged else []
        upsert = [*deletes, sql.text("upsert_staged")] if pending.live_staged else deletes
        rotation = [*deletes, sql.text("delete_staged", staged=live), sql.text("insert_staged")]
        repeated, unchanged = sql.text("drop_repeated"), sql.text("drop_unchanged")
        # (statements, the SQLSTATEs after which they are worth trying)
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
        suspects = self._search(pending).rows(self._staged_rows(pending), room)
        raise self._refused(pending, refusal, suspects) from refusal

    def _attempt(self, pending: Pending, statements: list[str]) -> Refusal | None:
        """Run statements under a savepoint; return the target's refusal. Any other error halts the table."""
        sql = pending.sql
        after: list[str] = []
        if self._catalogue.records(pending.table_id):
            offset = str(pending.last_offset)
            after = [sql.text("touch_staged", stage=s, offset=offset) for s in (sql.stage, sql.key_stage)]
        # a row that is dropped from the stage because it has not changed was touched all the same
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

    def _search(self, pending: Pending) -> Search:
        return Search(session=self._session, sql=pending.sql, layout=pending.layout, limit=self._suspects_max)

    def _staged_rows(self, pending: Pending) -> Iterator[Rows]:
        """Read a staging table back piece by piece: the cut may be larger than memory."""
        sql = pending.sql
        blocks = self._session.row(sql.text("stage_blocks"))
        for low in range(0, int(blocks[0]) if blocks else 0, _SEARCH_BLOCKS):
            copy = sql.text("copy_out", table=sql.stage, low=str(low), high=str(low + _SEARCH_BLOCKS))
            record_ids, rows, is_deleted = from_copy(self._session.copy_out(copy), pending.layout, flagged=False)
            offsets = np.full(len(record_ids), self._start, dtype=np.int64)
            yield net(Rows(record_ids=record_ids, rows=rows, is_deleted=is_deleted, offsets=offsets))

    @staticmethod
    def _refused(pending: Pending, refusal: Refusal, suspects: list[Suspect]) -> RowsRefused:
        return RowsRefused(pending.table_id, suspects[0].summary if suspects else refusal.summary, suspects)
