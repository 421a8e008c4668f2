"""What an idle source is asked, and what is tidied up while it is idle.

A poll that finds nothing is one statement outside of any transaction: it reads the first entry of each log index. Only
if there is one, a snapshot is opened and the dictionary compared. What leaves no trace in the logs (DDL that no trigger
noted, another process' change of the registry) is found by `refresh_schemas`, every few seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from venus.adapters.dialects.oracle.connection import Row, Session
from venus.adapters.dialects.oracle.reading import Access
from venus.adapters.dialects.oracle.statements import statement
from venus.errors import SourceError

logger = logging.getLogger(__name__)

#: After so many deleted entries the index of a log is coalesced.
COALESCE_ROWS = 100_000


class Polls:
    """The polls of one source between two cuts."""

    def __init__(self) -> None:
        self._probe = ""
        self._left: Row = ()  # notes that wait for their table, as they were counted
        #: Log rows deleted since the index was coalesced, by log table.
        self.deleted: dict[str, int] = {}

    def prepare(self, tables: Mapping[int, Access], paused: AbstractSet[int]) -> None:
        """Ask about these tables from now on."""
        logs = [
            statement("cut", "probe_paused" if t in paused else "probe_log", log=a.log, table_id=str(t))
            for t, a in tables.items()
            if a.log
        ]
        if len(logs) < len(tables):
            logs.append(statement("inline", "probe"))
        self._probe = statement("cut", "probe", logged="\n       OR ".join(logs) or "1 = 0")

    def forget(self) -> None:
        """Ask nothing before the next cut has looked at everything."""
        self._probe = ""

    def nothing_in_cut(self, notes: list[Row]) -> None:
        """Remember what was left when a snapshot held nothing to read."""
        numbers = [int(seq) for seq, *_ in notes]
        self._left = (len(numbers), max(numbers, default=None))

    def finds_nothing(self, reader: Session) -> bool:
        """Whether the source is certainly idle; one trip."""
        if not self._probe:
            return False
        count, newest, logged = reader.peek(self._probe)
        notes = (int(count), None if newest is None else int(newest))
        return not logged and (not notes[0] or notes == self._left)

    def tidy(self, writer: Session) -> None:
        """Coalesce one index that many deletions have emptied. It is online, and not worth an error."""
        for log, rows in self.deleted.items():
            if rows >= COALESCE_ROWS:
                self.deleted[log] = 0
                try:
                    writer.run(statement("cut", "coalesce", log=log))
                    writer.commit()
                except SourceError as error:
                    writer.rollback()
                    logger.info("the index of %s is not coalesced: %s", log, error)
                return
