"""The search for rows that a PostgreSQL target refuses, by halving under savepoints, never row by row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from venus.adapters.targets.postgresql.rowsql import RowSql
from venus.adapters.targets.postgresql.session import TargetSession
from venus.adapters.targets.relational.session import Refusal
from venus.adapters.targets.relational.verdicts import RefusedChange, find_refused
from venus.adapters.under.row_changes import RowChanges
from venus.codec.copy_text import to_copy
from venus.codec.row_bytes import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRowSearch:
    """A search for at most `limit` refused rows."""

    session: TargetSession
    sql: RowSql
    layout: Layout
    limit: int

    def find_bad_values(self, rows: RowChanges) -> list[RefusedChange]:
        """Return changes with a value that its column's type cannot hold."""
        return self._search_by_halving([rows], [], into_target=False)

    def find_refused(self, parts: Iterable[RowChanges], first: Sequence[str] = ()) -> list[RefusedChange]:
        """Return changes that the table refuses after the statements `first`, which delete the old rows."""
        return self._search_by_halving(parts, first, into_target=True)

    def _search_by_halving(
        self, parts: Iterable[RowChanges], first: Sequence[str], *, into_target: bool
    ) -> list[RefusedChange]:
        """Return the refused changes; try the rows in a staging table or, with `into_target`, in the table itself."""
        found: list[RefusedChange] = []
        self.session.run("; ".join(["SAVEPOINT venus_search", self.sql.create_probe, *first]))
        try:
            for rows in parts:
                probe = partial(self._probe, into_target=into_target)
                found += find_refused(rows.where(~rows.is_deleted), probe, self.limit - len(found))
                if len(found) >= self.limit:
                    break
        finally:
            self.session.run("ROLLBACK TO SAVEPOINT venus_search; RELEASE SAVEPOINT venus_search")
        return found

    def _probe(self, rows: RowChanges, *, into_target: bool) -> Refusal | None:
        """Try to write these rows. Keep the rows and return None, or write nothing and return the refusal."""
        session, sql = self.session, self.sql
        session.run(f"SAVEPOINT venus_probe; TRUNCATE {sql.probe}")
        try:
            session.copy_in(sql.text("copy_in", table=sql.probe), to_copy(rows.record_ids, rows.rows, self.layout))
            if into_target:
                session.run(sql.text("insert_staged", stage=sql.probe))
        except Refusal as refusal:
            session.run("ROLLBACK TO SAVEPOINT venus_probe; RELEASE SAVEPOINT venus_probe")
            return refusal
        session.run("RELEASE SAVEPOINT venus_probe")
        return None
