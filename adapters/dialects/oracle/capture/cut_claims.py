"""The log rows and truncations that a cut claims in the reader's snapshot, and the poll that precedes it.

A poll that finds nothing is one statement outside of any transaction: it reads the first entry of each log index. Only
if there is an entry, the source opens a snapshot and compares the dictionary. `refresh_schemas` finds what leaves no
trace in the logs every few seconds: DDL that no trigger recorded, and changes that another process made in the
registry.
"""

from __future__ import annotations

import logging
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from collections.abc import Set as AbstractSet
from contextlib import closing
from dataclasses import dataclass

from venus.adapters.dialects.oracle import registry
from venus.adapters.dialects.oracle.capture.cut import OracleClaim
from venus.adapters.dialects.oracle.language import inline
from venus.adapters.dialects.oracle.names import log_table_name
from venus.adapters.dialects.oracle.session.connection import OracleSession, Row
from venus.adapters.dialects.oracle.session.cut_bounds import CutBounds
from venus.adapters.dialects.oracle.sql import statement
from venus.adapters.dialects.oracle.values.rows import OracleAccess
from venus.errors import SourceError

logger = logging.getLogger(__name__)

#: The number of log rows fetched in one round trip.
FETCH_ROWS = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncations:
    """The recorded TRUNCATE statements that one cut carries."""

    #: Numbers of the records that the cut removes: of the tables below, and of tables that are not captured.
    numbers: list[int]
    tables: set[int]


def first_unhandled_ddl(noted: Seq[Row], tables: Mapping[int, OracleAccess]) -> str:
    """Return the first recorded DDL that changes a captured table, as EVENT of OWNER.NAME; empty if there is none."""
    ours = {(s.namespace, s.name) for s in (a.layout.schema for a in tables.values())}
    for _, event, owner, name, _ in noted:
        if event != "TRUNCATE" and (owner, name) in ours:
            return f"{event} of {owner}.{name}"
    return ""


def find_truncations(
    noted: Seq[Row], tables: Mapping[int, OracleAccess], readable: Mapping[int, OracleAccess]
) -> Truncations:
    """Return the truncations that this cut carries; those of a table that it does not read wait for that table."""
    by_name = {(a.layout.schema.namespace, a.layout.schema.name): t for t, a in tables.items()}
    found = Truncations(numbers=[], tables=set())
    for number, event, owner, name, _ in noted:
        if event != "TRUNCATE":
            continue  # `refresh_schemas` handles it
        table_id = by_name.get((owner, name))
        if table_id is not None and table_id not in readable:
            continue
        found.numbers.append(int(number))
        if table_id is not None:
            found.tables.add(table_id)
    return found


def build_claims(
    reader: OracleSession, bounds: CutBounds, readable: Mapping[int, OracleAccess], truncated: set[int]
) -> list[OracleClaim]:
    """Return the claims of the cut on tables that have something to read, within the bounds."""
    numbers, incomplete = _read_log_numbers(reader, bounds, {t: a for t, a in readable.items() if a.log})
    polled = inline.read_polled_ranges(reader) if any(not a.log for a in readable.values()) else {}
    return [
        OracleClaim(
            access=a, numbers=numbers[t], truncated=t in truncated, polled=polled.get(t), complete=t != incomplete
        )
        for t, a in readable.items()
        if numbers[t] or t in truncated or t in polled
    ]


def _read_log_numbers(
    reader: OracleSession, bounds: CutBounds, logs: Mapping[int, OracleAccess]
) -> tuple[dict[int, array[int]], int]:
    """Return the log rows of this cut, and the table that may have more of them (0 = none)."""
    numbers: dict[int, array[int]] = defaultdict(lambda: array("q"))
    ids, left = bounds.order_tables(logs), bounds.rows
    if not ids:
        return numbers, 0
    each = (statement("cut", "claim", table_id=str(t), log=logs[t].log) for t in ids)
    with closing(reader.stream("\nUNION ALL ".join(each), None, min(FETCH_ROWS, left))) as pieces:
        for piece in pieces:
            for table_id, number in piece:
                numbers[int(table_id)].append(int(number))
            left -= len(piece)
            if left <= 0:
                last = int(piece[-1][0])
                bounds.first_table = last + 1  # the other tables come first, then the rest of this one
                return numbers, last
    return numbers, 0


def read_backlog(
    session: OracleSession, inline_tables: Iterable[tuple[str, str]], ages: Mapping[str, int]
) -> dict[int, tuple[int, int]]:
    """Return, by table_id, how many log rows wait and the age of the oldest transaction open on that log."""
    places = frozenset(inline_tables)
    captured = registry.read_tables(session).values() if places else ()
    numbers = {(c.schema.namespace, c.schema.name): c.schema.table_id for c in captured}
    waiting = {numbers[at]: inline.count_waiting_sql(*at) for at in places}
    found = {}
    for table_id in registry.read_states(session):
        log = log_table_name(table_id)
        count = session.fetch_row(waiting.get(table_id) or statement("registry", "log_count", log=log))[0]
        found[table_id] = (int(count), ages.get(log, 0))
    return found


#: The index of a log is coalesced after this number of deleted entries.
COALESCE_ROWS = 100_000


class IdlePoll:
    """The polls of one source between two cuts."""

    def __init__(self) -> None:
        self._probe = ""
        self._left: Row = ()  # number and newest of the DDL records that wait for their table
        #: Log rows deleted since the index was coalesced, by log table.
        self.deleted: dict[str, int] = {}

    def prepare(self, tables: Mapping[int, OracleAccess], paused: AbstractSet[int]) -> None:
        """Build the poll of these tables."""
        logs = [
            statement("cut", "probe_paused" if t in paused else "probe_log", log=a.log, table_id=str(t))
            for t, a in tables.items()
            if a.log
        ]
        if len(logs) < len(tables):
            logs.append(statement("inline", "probe"))
        self._probe = statement("cut", "probe", logged="\n       OR ".join(logs) or "1 = 0")

    def disable(self) -> None:
        """Skip polls until the next cut has read everything."""
        self._probe = ""

    def record_empty_cut(self, notes: list[Row]) -> None:
        """Record the waiting DDL records of a snapshot that had nothing to read."""
        numbers = [int(seq) for seq, *_ in notes]
        self._left = (len(numbers), max(numbers, default=None))

    def is_idle(self, reader: OracleSession) -> bool:
        """Whether the source is certainly idle; costs one round trip."""
        if not self._probe:
            return False
        count, newest, logged = reader.peek(self._probe)
        notes = (int(count), None if newest is None else int(newest))
        return not logged and (not notes[0] or notes == self._left)

    def coalesce_index(self, writer: OracleSession) -> None:
        """Coalesce one index that many deletions have emptied. This works online; a failure is only logged."""
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
