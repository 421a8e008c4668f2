"""Capture at an Oracle database: schema changes, the backlog, and the opening of cuts.

A poll that finds nothing is one statement outside of any transaction: it reads the first entry of each log index. The
source opens a snapshot and compares the dictionary only if a log has an entry. A cut claims log rows and truncations
in the reader's snapshot. Every few seconds, `refresh_schemas` finds changes that leave no trace in the logs: DDL that
no trigger recorded, and changes that another process made in the registry.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from collections.abc import Set as AbstractSet
from contextlib import closing
from dataclasses import dataclass

from venus.adapters.dialects.contract import FillState, SchemaChanged, SourceCapture
from venus.adapters.dialects.oracle import registry
from venus.adapters.dialects.oracle.capture.cut import OracleClaim, OracleCut
from venus.adapters.dialects.oracle.dictionary import segments
from venus.adapters.dialects.oracle.dictionary.reader import OracleDatabase
from venus.adapters.dialects.oracle.installation import check
from venus.adapters.dialects.oracle.installation.installed_objects import valve_block
from venus.adapters.dialects.oracle.installation.schema_changes import can_read_all, compare_all, store_changes
from venus.adapters.dialects.oracle.installation.table_comparison import OracleTableComparison
from venus.adapters.dialects.oracle.language import inline
from venus.adapters.dialects.oracle.registry import OracleRegistry
from venus.adapters.dialects.oracle.rows import OracleAccess, build_access
from venus.adapters.dialects.oracle.session.connection import OracleSession, Row
from venus.adapters.dialects.oracle.session.options import CutBounds
from venus.adapters.dialects.oracle.sql import log_table_name, statement
from venus.adapters.dialects.registry_rules import HaltTracker, is_halted, state_before_halt, unknown_table
from venus.errors import SourceError
from venus.model import LOG_ROWS_COUNTED_MAX, TableSchema

#: Dictionary and registry are compared at this interval even if their fingerprint is unchanged.
COMPARE_S = 600.0


class OracleCapture(SourceCapture):
    """The part of an Oracle source that detects and reads changes."""

    def __init__(
        self, database: OracleDatabase, registry: OracleRegistry, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._registry = registry
        self._monotonic = monotonic
        #: The fingerprint of dictionary and registry at the last comparison; None = compare again.
        self._seen: tuple[object, ...] | None = None
        self._compare_at = float("-inf")
        #: The mark of the dictionary that the comparison has read; None = compare again before the next cut.
        self._mark: Row | None = None
        self._accesses: dict[int, OracleAccess] = {}
        self._sees_blockers = True
        self._fingerprints: dict[int, str] = {}
        self._halts = HaltTracker()
        self._bounds = CutBounds(database.options.limits)
        self._polls = IdlePoll()

    def invalidate(self) -> None:
        """Make the next cut compare the dictionary with the registry again."""
        self._mark = self._seen = None

    def refresh_schemas(self) -> list[TableSchema]:
        """Compare the dictionary with the registry and store the changes, unless neither has changed.

        A change that the fingerprint does not show is found after COMPARE_S seconds.
        """
        self._database.reader.rollback()
        writer, dictionary, now = self._database.writer, self._database.dictionary, self._monotonic()
        *_, paused = writer.fetch_row(statement("registry", "digest"))
        if paused:
            self._retry_halted_tables()
        seen = self._read_fingerprint()
        if seen is not None and seen == self._seen and now < self._compare_at and self._can_read_all():
            self._database.listed = dictionary.last_listed
            writer.rollback()
            return []
        mark = self._read_mark(writer)
        stored = store_changes(writer, dictionary)
        known = {(a.layout.schema.table_id, a.layout.schema.version) for a in self._accesses.values()}
        self._use_comparisons(self._compare_all() if stored.has_changed else stored.found)
        self._mark = mark
        self._seen = seen if stored.is_settled and not stored.has_changed else None
        self._compare_at = now + COMPARE_S
        self._database.listed = dictionary.last_listed
        present = [a.layout.schema for a in self._accesses.values()]
        return [s for s in present if (s.table_id, s.version) not in known]

    def _read_fingerprint(self) -> tuple[object, ...] | None:
        """Return a value that changes with the dictionary or the registry; None if a comparison is certainly needed."""
        writer = self._database.writer
        looks = self._database.dictionary.read_fingerprint()
        noted = writer.fetch_rows(statement("registry", "ddl_rows"))
        if looks is None or any(event != "TRUNCATE" for _, event, *_ in noted):
            return None
        return (*looks, tuple(writer.fetch_row(statement("registry", "digest"))))

    def _can_read_all(self) -> bool:
        return can_read_all(self._database.writer, (a.layout.schema for a in self._accesses.values()))

    @staticmethod
    def _read_mark(session: OracleSession) -> Row | None:
        """Return a value that changes when a captured table is altered; None if the last change is too recent."""
        *mark, recent = session.fetch_row(statement("dictionary", "mark"))
        return None if recent else tuple(mark)

    def _compare_all(self) -> list[OracleTableComparison]:
        return compare_all(self._database.writer, self._database.dictionary)

    def _retry_halted_tables(self) -> None:
        """Resume tables that halted at a row and have been written to since: the row may have been corrected."""
        halted = [c.table for c in registry.read_tables(self._database.writer).values() if is_halted(c.table)]
        waiting = self._log_versions([table.schema.table_id for table in halted]) if halted else {}
        for table in halted:
            table_id = table.schema.table_id
            if self._halts.may_retry(table_id, waiting[table_id]):
                self._registry.set_table_state(table_id, *state_before_halt(table))
        self._database.writer.rollback()

    def _log_versions(self, table_ids: Seq[int]) -> dict[int, int]:
        """Return a number for each table that changes with every write to it (`OracleClaim.log_version`)."""
        writer, inline_tables = self._database.writer, self._database.dictionary.read_inline_tables()
        polled = inline.read_polled_ranges(writer) if inline_tables else {}
        found = count_waiting(writer, [t for t in table_ids if t not in polled], inline_tables)
        return found | {table_id: changed.highest for table_id, changed in polled.items()}

    def _use_comparisons(self, found: Seq[OracleTableComparison]) -> None:
        """Build the statements of the next cuts for the tables as this comparison describes them."""
        tables = [c.table for c in found if c.table is not None]
        self._accesses = {t.schema.table_id: build_access(t) for t in tables}
        self._fingerprints = {
            table_id: mark for table_id, (_, mark) in registry.read_states(self._database.writer).items()
        }
        self._mark = None
        self._polls.disable()
        self._database.writer.rollback()

    def open_cut(self, fills: Seq[FillState]) -> OracleCut | None:
        """Open a snapshot and return its cut; None if there is nothing to read."""
        if not fills and self._polls.is_idle(self._database.reader):
            self._polls.coalesce_index(self._database.writer)
            return None
        self._database.reader.rollback()
        if any(a.archived for a in self._accesses.values()):
            self._database.reader.run(statement("cut", "see_archived"))
        self._database.reader.run(statement("cut", "begin"))
        try:
            cut = self._build_cut(fills)
        except BaseException:
            self._seen = None
            self._database.reader.rollback()
            raise
        if cut is None:
            self._database.reader.rollback()
        return cut

    def _build_cut(self, fills: Seq[FillState]) -> OracleCut | None:
        """Return the cut of the open snapshot; None if there is nothing to read. Raises SchemaChanged."""
        captured_at_us = registry.read_clock(self._database.reader)
        states = registry.read_states(self._database.reader)
        self._accept_dictionary(states)
        noted = self._database.reader.fetch_rows(statement("registry", "ddl_rows"))
        if what := first_unhandled_ddl(noted, self._accesses):
            self._mark = None
            raise SchemaChanged(f"source {self._database.place}: {what}")
        self._polls.disable()
        readable = {t: a for t, a in self._accesses.items() if states.get(t, ("PAUSED",))[0] != registry.PAUSED}
        truncated = find_truncations(noted, self._accesses, readable)
        claims = build_claims(self._database.reader, self._bounds, readable, truncated.tables)
        filling = {f.table_id: (f, readable[f.table_id]) for f in fills if f.table_id in readable}
        self._polls.prepare(self._accesses, self._accesses.keys() - readable.keys())
        if not claims and not filling:
            self._polls.record_empty_cut(noted)
            return None
        return OracleCut(
            reader=self._database.reader,
            writer=self._database.writer,
            captured_at_us=captured_at_us,
            claims=claims,
            ddl_numbers=truncated.numbers,
            fills=filling,
            halts=self._halts,
            bounds=self._bounds,
            deleted=self._polls.deleted,
            watches_segments=bool(truncated.tables) and self._database.dictionary.owned_objects.has(segments.TABLE),
        )

    def _accept_dictionary(self, states: dict[int, tuple[str, str]]) -> None:
        """Check in the snapshot that dictionary and registry agree, and use them. Raises SchemaChanged if not."""
        mark = self._read_mark(self._database.reader)
        fingerprints = {table_id: mark for table_id, (_, mark) in states.items()}
        if mark is not None and mark == self._mark and fingerprints == self._fingerprints:
            return
        found = self._compare_all()
        if any(c.has_changes for c in found):
            raise SchemaChanged(f"source {self._database.place}: the dictionary no longer matches the registry")
        self._use_comparisons(found)
        if self._fingerprints != fingerprints:
            raise SchemaChanged(f"source {self._database.place}: the registry has changed in the meantime")
        self._mark = mark

    def restart_fill(self, table_id: int) -> None:
        """Restart the fill of a table; if its triggers are in order, this also ends RESYNC."""
        how = next((c for c in self._compare_all() if c.captured.schema.table_id == table_id), None)
        if how is None:
            raise unknown_table(table_id)
        with self._database.writer.transaction():
            self._database.writer.run(statement("registry", "restart_fill"), {"table_id": table_id})
            if how.captured.table.state == registry.RESYNC and not how.reason and not how.grant:
                registry.set_state(self._database.writer, table_id, registry.ACTIVE, "")

    def restart_with_sweep(self, table_id: int, version: int) -> None:
        if registry.read_tables(self._database.writer)[table_id].is_unfinished:
            return  # VENUS has shipped no row of it
        self.restart_fill(table_id)
        with self._database.writer.transaction():
            registry.restart_with_sweep(self._database.writer, table_id, version)
        self.invalidate()
        self._fingerprints = {}  # `_accesses` has the earlier version

    def write_heartbeat(self) -> None:
        with self._database.writer.transaction():
            now = {"beat_at": registry.read_clock(self._database.writer)}
            if not self._database.writer.run(statement("registry", "beat"), now):
                self._database.writer.run(statement("registry", "beat_again"), now)

    def limit_logs(self) -> None:
        """Run the block of the job VENUS_VALVE, because this user may lack the privilege to create that job."""
        if self._database.options.log.is_set and self._database.is_installed():
            with self._database.writer.transaction():
                self._database.writer.run(valve_block(self._database.options.log))

    def limit_lock_waits(self) -> None:
        """Do nothing: Oracle's readers wait for no locks."""

    def read_backlog(self) -> dict[int, tuple[int, int]]:
        """Return by table_id how many log rows wait, and the age in seconds of the oldest open writer, if visible."""
        writer, ages = self._database.writer, self._read_blocker_ages()
        places = self._database.dictionary.read_inline_tables()
        counts = count_waiting(writer, registry.read_states(writer), places, most=LOG_ROWS_COUNTED_MAX)
        writer.rollback()
        return {table_id: (rows, ages.get(log_table_name(table_id), 0)) for table_id, rows in counts.items()}

    def _read_blocker_ages(self) -> dict[str, int]:
        """Return the age of the oldest open transaction by log table; empty if this user may not see it."""
        ages = check.read_blocker_ages(self._database.writer) if self._sees_blockers else None
        self._sees_blockers = ages is not None  # do not ask again after a refusal
        return ages or {}

    def describe_blockers(self) -> str:
        """Describe the oldest open transaction on a log table, or the grants needed to see it."""
        found = check.describe_blocker(self._database.writer, self._database.dictionary.user)
        self._database.writer.rollback()
        return found


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
    """Return the truncations that this cut carries; those of tables that it does not read have to wait."""
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
    """Return for each table with changes the part of its log that the cut reads, within the bounds of a cut."""
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
    """Return the numbers of the log rows to read, by table, and the id of the table that may have more (0 = none)."""
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


def count_waiting(
    session: OracleSession, table_ids: Iterable[int], inline_tables: Iterable[tuple[str, str]], most: int = 0
) -> dict[int, int]:
    """Return how many log rows of each of these tables wait; stop counting at `most` (0 = never)."""
    places = frozenset(inline_tables)
    captured = registry.read_tables(session).values() if places else ()
    numbers = {(c.schema.namespace, c.schema.name): c.schema.table_id for c in captured}
    of_inline = {numbers[at]: at for at in places if at in numbers}
    bound = f" WHERE ROWNUM <= {most}" if most else ""
    counts = [
        inline.count_waiting_sql(table_id, *of_inline[table_id], most)
        if table_id in of_inline
        else statement("registry", "log_count", table_id=str(table_id), log=log_table_name(table_id), bound=bound)
        for table_id in table_ids
    ]
    rows = session.fetch_rows("\nUNION ALL ".join(counts)) if counts else []
    return {int(table_id): int(count) for table_id, count in rows}


#: The index of a log is coalesced after this number of deleted entries.
COALESCE_ROWS = 100_000


class IdlePoll:
    """The cheap query that shows between two cuts whether a source has anything to capture."""

    def __init__(self) -> None:
        self._probe = ""
        self._left: Row = ()  # how many DDL records wait for their table, and the newest of them
        #: Log rows deleted since the index was coalesced, by log table.
        self.deleted: dict[str, int] = {}

    def prepare(self, tables: Mapping[int, OracleAccess], paused: AbstractSet[int]) -> None:
        """Build the query that polls the logs of these tables."""
        logs = [
            statement("cut", "probe_paused" if t in paused else "probe_log", log=a.log, table_id=str(t))
            for t, a in tables.items()
            if a.log
        ]
        if len(logs) < len(tables):
            logs.append(statement("inline", "probe"))
        self._probe = statement("cut", "probe", logged="\n       OR ".join(logs) or "1 = 0")

    def disable(self) -> None:
        """Make `is_idle` return False, so that cuts are opened without a poll, until `prepare` is called."""
        self._probe = ""

    def record_empty_cut(self, notes: list[Row]) -> None:
        """Record which DDL records stay although a snapshot had nothing to read, so that polls ignore them."""
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
        """Coalesce one index that many deletions have emptied. Coalescing works online; a failure is only logged."""
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
