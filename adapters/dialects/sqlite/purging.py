"""Removes consumed log rows, a bounded piece at a time, so that no transaction of VENUS holds the lock for long."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from venus.adapters.dialects.sqlite.connection import quoted
from venus.adapters.dialects.sqlite.statements import statement
from venus.adapters.dialects.sqlite.triggers import log_table

#: Consumed rows of a table that may lie about: purging with every cut would write a page for each single row.
SLACK_ROWS = 500
#: What one transaction removes at most, about 5 ms.
PIECE_ROWS = 5_000


class Purger:
    """Knows which tables have consumed rows left over."""

    def __init__(self) -> None:
        self._left: set[int] = set()

    def expect(self, table_ids: set[int]) -> None:
        """Look at these tables when there is time: an earlier process may have left rows."""
        self._left |= table_ids

    @property
    def has_work(self) -> bool:
        """Whether rows may be left."""
        return bool(self._left)

    def purge(self, connection: sqlite3.Connection, through: Mapping[int, int]) -> None:
        """Remove a piece in the caller's transaction. `through` = the watermarks of some tables."""
        budget = PIECE_ROWS
        for table_id, end in through.items():
            log = quoted(log_table(table_id))
            first = connection.execute(statement("registry", "log_start", log=log)).fetchone()[0]
            if end - first < SLACK_ROWS:
                self._left.discard(table_id)
                continue
            self._left.add(table_id)
            if budget > 0:
                sql = statement("registry", "purge", log=log, through=str(end), rows=str(budget))
                budget -= connection.execute(sql).rowcount

    def due(self, watermarks: Mapping[int, int]) -> dict[int, int]:
        """Return the watermarks of the tables with rows left."""
        self._left &= watermarks.keys()
        return {table_id: watermarks[table_id] for table_id in self._left}
