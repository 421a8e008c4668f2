"""Finds the rows that a target refuses among many, by halving under savepoints, never row by row (features 2.16).

Runs in an open transaction and leaves nothing behind: whatever it did is rolled back to where it began. What the target
takes is kept until then, so that two new rows that exclude each other are found, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from venus.adapters.targets.postgresql.rows.verdicts import Suspect
from venus.adapters.targets.postgresql.rowsql import RowSql
from venus.adapters.targets.postgresql.session import Refusal, Session
from venus.adapters.under.fold import Mask, Rows, slice_of
from venus.codec.copytext import to_copy
from venus.codec.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Where to look, and for how many."""

    session: Session
    sql: RowSql
    layout: Layout
    limit: int

    def values(self, rows: Rows) -> list[Suspect]:
        """Return changes with a value that its column's type cannot hold."""
        return self._look([rows], [], into_target=False)

    def rows(self, parts: Iterable[Rows], first: Sequence[str] = ()) -> list[Suspect]:
        """Return changes that the table refuses after the statements `first`, which make room for them."""
        return self._look(parts, first, into_target=True)

    def _look(self, parts: Iterable[Rows], first: Sequence[str], *, into_target: bool) -> list[Suspect]:
        found: list[Suspect] = []
        self.session.run("; ".join(["SAVEPOINT venus_search", self.sql.create_probe, *first]))
        try:
            for rows in parts:
                found += self._halve(rows.where(~rows.is_deleted), self.limit - len(found), into_target=into_target)
                if len(found) >= self.limit:
                    break
        finally:
            self.session.run("ROLLBACK TO SAVEPOINT venus_search; RELEASE SAVEPOINT venus_search")
        return found

    def _halve(self, rows: Rows, limit: int, *, into_target: bool) -> list[Suspect]:
        found: list[Suspect] = []
        ranges = [(0, len(rows))] if len(rows) else []
        while ranges and len(found) < limit:
            low, high = ranges.pop()
            part = slice_of(rows, low, high)
            refusal = self._probe(part, into_target=into_target)
            if refusal is None:
                continue
            if high - low == 1:
                found.append(_suspect(part, refusal))
            else:
                middle = (low + high) // 2
                ranges += [(middle, high), (low, middle)]
        return found

    def _probe(self, rows: Rows, *, into_target: bool) -> Refusal | None:
        """Try these rows and keep them if the target takes them."""
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


def _suspect(rows: Rows, refusal: Refusal) -> Suspect:
    return Suspect(
        record_id=rows.record_ids.data,
        offset=int(rows.offsets[0]),
        sqlstate=refusal.sqlstate,
        message=str(refusal),
        summary=refusal.summary,
    )


def positions_of(rows: Rows, first_of: Callable[[bytes], int | None]) -> Mask:
    """Mark the changes of keys for which there is a first offset, from that on. Asked while something is parked."""
    pairs = zip(map(first_of, rows.record_ids.split()), rows.offsets.tolist(), strict=True)
    marks = (first is not None and first <= offset for first, offset in pairs)
    return np.fromiter(marks, dtype=np.bool_, count=len(rows))
