"""The three ways of rows into a target table, each for its size, and what is done when one fails (performance.md 6).

Few rows go as keyed statements. New rows go straight in by COPY. Everything else goes through temporary staging tables:
DELETE USING first, then INSERT .. ON CONFLICT by the key. Keys or unique values that change places within a cut make
the upsert fail; then every changed row is deleted and inserted again. What still fails is a refused row. A cut that is
streamed is merged piece by piece where only the key decides which rows collide; if that fails, it is read again and
merged whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from venus.adapters.targets.postgresql.catalogue import Catalogue
from venus.adapters.targets.postgresql.database import PostgresTarget
from venus.adapters.targets.postgresql.rows.keyed import keyed_text
from venus.adapters.targets.postgresql.rows.refused import Search
from venus.adapters.targets.postgresql.rows.verdicts import SUSPECTS_MAX, RowsRefused, Suspect
from venus.adapters.targets.postgresql.rowsql import RowSql
from venus.adapters.targets.postgresql.session import Refusal, Session, Superseded
from venus.adapters.under.fold import Rows, joined, net
from venus.codec.copytext import from_copy, keys_to_copy, to_copy
from venus.codec.layout import Layout
from venus.errors import TargetError

#: Blocks of a staging table that are read back at a time when a refused row has to be found in a large cut.
_SEARCH_BLOCKS = 256
#: Another row has the value: unique_violation, exclusion_violation. Perhaps only until that one changes, in this cut.
_VALUE_TAKEN = frozenset({"23505", "23P01"})
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
    inserts_only: bool = True
    live_staged: bool = False
    gone_staged: bool = False
    last_offset: int = 0
    #: How many changes have left for the target.
    taken: int = 0
    #: What waits in memory.
    waiting_bytes: int = 0

    @property
    def staged(self) -> bool:
        return self.live_staged or self.gone_staged

    @property
    def waiting(self) -> int:
        return sum(map(len, self.parts))

    def take(self) -> Rows:
        """Give out what waits in memory; of several changes of a key only the last, unless all are new rows."""
        rows, self.parts = joined(self.parts), []
        self.taken += len(rows)
        return rows if self.inserts_only else net(rows)


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

        Raises MergeWhole if it did matter.
        """
        rows = pending.take()
        if pending.inserts_only and not pending.staged:
            if self._copied(pending, rows):
                return
            pending.inserts_only = False
        self._stage(pending, rows)
        # Keys that are only to be deleted wait in their staging table: each DELETE may be a pass over the whole table.
        if pending.live_staged and self._in_pieces(pending.table_id):
            self._merged.add(pending.table_id)
            self._unstage(pending)
            pending.live_staged = pending.gone_staged = False

    def _in_pieces(self, table_id: int) -> bool:
        """Whether pieces of a cut may be merged one by one: nothing but the key decides which rows collide."""
        if self._whole is None or table_id in self._whole:
            return False
        return not any(i.unique for i in self._catalogue.newest(table_id).indexes)

    def flush(self, pending: Pending) -> None:
        """Bring everything into the table."""
        if pending.parts:
            rows = pending.take()
            if not pending.staged and self._direct(pending, rows):
                return
            self._stage(pending, rows)
        if pending.staged:
            self._unstage(pending)

    # -- without staging -------------------------------------------------------------------------------------------

    def _direct(self, pending: Pending, rows: Rows) -> bool:
        """Try the ways that need no staging; False = they do not suit, or the target refused."""
        if len(rows) <= self._keyed_max and not self._catalogue.records(pending.table_id):
            return self._keyed(pending, net(rows))
        return pending.inserts_only and self._copied(pending, rows)

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

    def _copied(self, pending: Pending, rows: Rows) -> bool:
        """COPY new rows straight into the table; False = one of them is not new after all, or is refused."""
        if self._catalogue.records(pending.table_id):
            return False
        self._session.run("SAVEPOINT venus")
        try:
            self._session.copy_in(pending.sql.text("copy_in"), to_copy(rows.record_ids, rows.rows, pending.layout))
        except Refusal:
            self._session.run("ROLLBACK TO SAVEPOINT venus; RELEASE SAVEPOINT venus")
            return False
        self._session.run("RELEASE SAVEPOINT venus")
        return True

    # -- through staging tables ------------------------------------------------------------------------------------

    def _stage(self, pending: Pending, rows: Rows) -> None:
        sql, layout = pending.sql, pending.layout
        rows = net(rows)
        if not pending.staged:
            used = f"; TRUNCATE {sql.stage}, {sql.key_stage}" if sql.stage in self._used else ""
            self._session.run(sql.create_stages + used)
            self._used.add(sql.stage)
        live, gone = rows.where(~rows.is_deleted), rows.where(rows.is_deleted)
        try:
            if len(live):
                copy = sql.text("copy_in", table=sql.stage)
                self._session.copy_in(copy, to_copy(live.record_ids, live.rows, layout))
                pending.live_staged = True
            if len(gone):
                copy = sql.text("copy_in", table=sql.key_stage, columns=sql.key)
                self._session.copy_in(copy, keys_to_copy(gone.record_ids, layout))
                pending.gone_staged = True
        except Refusal as refusal:
            # A value that its type cannot hold. The transaction is lost; look for the row in one of its own.
            self._session.rollback()
            self._session.run("BEGIN")
            raise self._refused(pending, refusal, self._search(pending).values(rows)) from refusal

    def _unstage(self, pending: Pending) -> None:
        """Try the upsert; then without repeated keys; then as a rotation. What is left is a refusal."""
        sql = pending.sql
        deletes = [sql.text("delete_staged", stage=sql.key_stage)] if pending.gone_staged else []
        upsert = [*deletes, sql.text("upsert_staged")] if pending.live_staged else deletes
        rotation = [*deletes, sql.text("delete_staged"), sql.text("insert_staged")]
        repeated = sql.text("drop_repeated")
        # (statements, the SQLSTATEs after which they are worth trying)
        attempts: list[tuple[list[str], frozenset[str]]] = [
            (upsert, frozenset()),
            ([repeated, *upsert], _TWICE_IN_ONE_STATEMENT),
            ([repeated, *rotation], _VALUE_TAKEN),
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
        room = [*deletes, sql.text("delete_staged")]
        suspects = self._search(pending).rows(self._staged_rows(pending), room)
        raise self._refused(pending, refusal, suspects) from refusal

    def _attempt(self, pending: Pending, statements: list[str]) -> Refusal | None:
        """Run statements under a savepoint; return the target's refusal. Any other error halts the table."""
        sql = pending.sql
        after: list[str] = []
        if self._catalogue.records(pending.table_id):
            offset = str(pending.last_offset)
            after = [sql.text("touch_staged", stage=s, offset=offset) for s in (sql.stage, sql.key_stage)]
        try:
            self._session.run("; ".join(["SAVEPOINT venus", *statements, *after, "RELEASE SAVEPOINT venus"]))
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
