"""Schema changes of captured tables: VENUS stores them in the registry, in one transaction.

Captured tables of other schemas may become unreadable for VENUS's user. Only the unreadable tables halt, until VENUS's
user may read them again. Oracle reports a table without any privilege as one that does not exist (ORA-00942), and its
views omit it. VENUS's own triggers distinguish the two cases: they are dropped with their table, and their owner
always sees them. If the triggers are gone as well, only a DBA can find out whether the table exists: VENUS names both
possibilities and never assumes that it was dropped.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from venus.adapters.dialects.contract import SchemaChanged
from venus.adapters.dialects.oracle import registry
from venus.adapters.dialects.oracle.dictionary import ownership, segments
from venus.adapters.dialects.oracle.dictionary.reader import OracleDictionary
from venus.adapters.dialects.oracle.dictionary.segments import Marks
from venus.adapters.dialects.oracle.installation.installed_objects import read_triggers
from venus.adapters.dialects.oracle.installation.table_comparison import (
    DdlRecords,
    OracleInstalledTrigger,
    OracleTableComparison,
    compare_table,
)
from venus.adapters.dialects.oracle.language import ddl
from venus.adapters.dialects.oracle.registry import OracleRegistryEntry
from venus.adapters.dialects.oracle.session.connection import OracleNotPermitted, OracleSession
from venus.adapters.dialects.oracle.sql import quote, statement
from venus.adapters.dialects.registry_rules import comparison_reason, version_values
from venus.errors import DatabaseUnavailable, SourceError
from venus.model import TableSchema

logger = logging.getLogger(__name__)

ALTERED = "altered while partitioned, a partition may have been dropped, truncated or exchanged"
SILENCED = "ALTER TABLE disabled its triggers: changes may have been missed in the meantime, read the table again"


def compare_all(writer: OracleSession, dictionary: OracleDictionary) -> list[OracleTableComparison]:
    """Compare the registry with the dictionary for every completely installed table; leave no transaction open."""
    installed = read_triggers(writer)
    present = installed.triggers
    listed = {(t.owner, t.name): t for t in dictionary.list_tables(installed.owned)}
    known = [c for c in registry.read_tables(writer).values() if not c.is_unfinished]
    lacks = find_missing_grants(writer, dictionary.user, known, listed.keys(), present)
    found = []
    for captured in known:
        if lack := lacks.get(captured.schema.table_id):
            found.append(OracleTableComparison(captured=captured, table=None, grant=lack))
            continue
        at = listed.get((captured.schema.namespace, captured.schema.name))
        table = dictionary.read_table(at, captured.schema, captured.number_max) if at else None
        found.append(compare_table(captured, table, present))
    writer.rollback()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredComparisons:
    """The comparisons of captured tables that `store_changes` has made, and whether they changed the registry."""

    found: Seq[OracleTableComparison]
    #: Whether the registry has changed, so that `found` no longer describes it.
    has_changed: bool
    #: Whether the next comparison finds something new only if the dictionary changes.
    is_settled: bool


def store_changes(writer: OracleSession, dictionary: OracleDictionary) -> StoredComparisons:
    """Store the schema changes since the last call, and remove the DDL records that reported them.

    The record of a TRUNCATE stays: a cut consumes it.
    """
    noted = writer.fetch_rows(statement("registry", "ddl_rows"))
    found = compare_all(writer, dictionary)
    watch = _read_segment_watch(writer, dictionary)
    if watch:
        found = [watch.add_reason(how) for how in found]
    notes = DdlRecords.from_rows(noted)
    found = [_apply_ddl_records(how, notes) for how in found]
    done = [(int(seq),) for seq, event, *_ in noted if event != "TRUNCATE"]
    with writer.transaction():
        has_changed = sum(_store_comparison(writer, how) for how in found) > 0
        if watch:
            watch.store(found)
        if done:
            writer.run_many(statement("registry", "ddl_done"), done)
    is_settled = _drop_unfit_triggers(writer, found) and not any(how.grant for how in found)
    return StoredComparisons(found=found, has_changed=has_changed, is_settled=is_settled)


def _apply_ddl_records(how: OracleTableComparison, notes: DdlRecords) -> OracleTableComparison:
    """Add the consequences of recorded DDL to a table's comparison, unless it has a reason for RESYNC already."""
    if how.reason or how.table is None:
        return how
    reason = SILENCED if notes.has_disabling_statement(how.place) and not how.is_beginning else ""
    has_lost_rows = _may_have_lost_rows(how, notes) and not reason
    # the records will be gone when a paused table is resumed
    again = how.is_paused and (bool(reason) or has_lost_rows)
    again = again or (not reason and not has_lost_rows and notes.may_change_values(how.place))
    return replace(how, reason=reason, read_again=how.read_again or again, has_lost_rows=has_lost_rows)


def _may_have_lost_rows(how: OracleTableComparison, notes: DdlRecords) -> bool:
    """Return whether recorded DDL may have added or removed rows of a partitioned table."""
    return how.table is not None and how.table.listed.partitioned and notes.may_lose_rows(how.place)


def _read_segment_watch(writer: OracleSession, dictionary: OracleDictionary) -> SegmentWatch | None:
    """Read the segments; return None for an older installation, which has no table for them."""
    if not dictionary.owned_objects.has(segments.TABLE):
        return None
    present = segments.read_segments(writer, dictionary.release)
    # records that are older than the segments would not explain a statement that ran since
    return SegmentWatch(writer, present, DdlRecords.from_rows(writer.fetch_rows(statement("registry", "ddl_rows"))))


def _store_comparison(writer: OracleSession, how: OracleTableComparison) -> bool:
    """Store the comparison of one table; return whether that has changed the registry."""
    table_id, table = how.captured.schema.table_id, how.table
    is_missing = bool(how.reason) and how.captured.table.state == registry.ACTIVE
    if how.is_new_version and table is not None:
        writer.run(statement("registry", "new_version"), version_values(table.schema, how.captured.number_max))
    is_read_again = how.read_again or (how.is_new_version and how.needs_fill)
    is_lossy = how.has_lost_rows and how.captured.table.state == registry.ACTIVE
    if is_read_again or is_lossy:
        writer.run(statement("registry", "restart_fill"), {"table_id": table_id})
    if is_lossy and how.can_compare and not is_read_again:
        registry.begin_comparison(writer, table_id, comparison_reason(ALTERED))
    if how.new_state is not None:
        state, reason = how.new_state
        if how.grant:
            logger.warning("%s halts, the other tables continue: %s", how.captured.schema.qualified_name, reason)
        registry.set_state(writer, table_id, state, reason)
    if is_missing:
        binds = {"table_id": table_id, "reason": how.reason[: registry.REASON_CHARS]}
        writer.run(statement("registry", "resync"), binds)
    return is_missing or is_lossy or how.is_new_version or how.read_again or how.new_state is not None


def _drop_unfit_triggers(writer: OracleSession, found: Seq[OracleTableComparison]) -> bool:
    """Remove triggers that do not fit the key of their table: the application's statements could fail.

    Return whether all unfit triggers are gone.
    """
    all_gone = True
    unfit = [how.captured.schema for how in found if how.drop_triggers]
    present = read_triggers(writer).triggers if unfit else {}
    for schema in unfit:
        for kind, name in ownership.table_objects(schema.table_id):
            if name in present:
                try:
                    writer.run(ddl.drop_object(kind, name))
                except DatabaseUnavailable:
                    logger.warning("%s is in use: trigger %s will be removed later", schema.qualified_name, name)
                    all_gone = False
    writer.rollback()
    return all_gone


def can_read_all(writer: OracleSession, schemas: Iterable[TableSchema]) -> bool:
    """Whether all of these tables may be read; costs one statement."""
    return not _find_unreadable_tables(writer, {s.table_id: (s.namespace, s.name) for s in schemas})


_PLAIN = re.compile(r"[A-Z][A-Z0-9_$#]*")

TableName = tuple[str, str]


def find_missing_grants(
    session: OracleSession,
    user: str,
    captured: Iterable[OracleRegistryEntry],
    listed: Collection[TableName],
    present: Mapping[str, OracleInstalledTrigger],
) -> dict[int, str]:
    """Return the unreadable tables with their remedies; `listed` = the tables that the dictionary shows."""
    places = {c.schema.table_id: (c.schema.namespace, c.schema.name) for c in captured}
    shown = {table_id: place for table_id, place in places.items() if place in listed}
    found = {table_id: _grant_statement(shown[table_id], user) for table_id in _find_unreadable_tables(session, shown)}
    for table_id, place in places.items():
        if (
            table_id not in shown
            and place[0] != user
            and (way_out := _remedy_for_hidden_table(session, user, table_id, place, present))
        ):
            found[table_id] = way_out
    return found


def _find_unreadable_tables(session: OracleSession, places: Mapping[int, TableName]) -> set[int]:
    """Return the tables that this user may not read; one round trip is enough if there are none."""
    each = {t: statement("dictionary", "may_read", table=f"{quote(o)}.{quote(n)}") for t, (o, n) in places.items()}
    if not each or _can_run(session, "\nUNION ALL ".join(each.values())):
        return set()
    return {table_id for table_id, text in each.items() if not _can_run(session, text)}


def _can_run(session: OracleSession, text: str) -> bool:
    """Run a query; return False if this user may not read a table in it, or if the table does not exist."""
    try:
        session.fetch_rows(text)
    except (OracleNotPermitted, SchemaChanged):
        return False
    return True


def _remedy_for_hidden_table(
    session: OracleSession, user: str, table_id: int, place: TableName, present: Mapping[str, OracleInstalledTrigger]
) -> str:
    """Return the remedy for a table that the dictionary does not show; empty if it is certainly gone."""
    own = [
        present[name].on for kind, name in ownership.table_objects(table_id) if kind == "TRIGGER" and name in present
    ]
    if own:
        # if the names differ, the table was renamed or is in the recycle bin
        return _grant_statement(place, user) if ".".join(place) in own else ""
    there = _dba_view_shows(session, place)
    if there is None:
        removal = f"`venus uninstall-triggers {'.'.join(place)}`"
        return f"{_grant_statement(place, user)}, or if it was dropped or renamed, which looks alike: {removal}"
    return _grant_statement(place, user) if there else ""


def _dba_view_shows(session: OracleSession, place: TableName) -> bool | None:
    """Return whether the DBA views show the table; None if this user may not read them."""
    binds = {"owner": place[0], "name": place[1]}
    try:
        rows: Seq[Seq[object]] = session.fetch_rows(statement("dictionary", "exists"), binds)
    except (SourceError, SchemaChanged):
        return None
    return bool(rows)


def _grant_statement(place: TableName, user: str) -> str:
    return f"`GRANT SELECT ON {_quote_if_needed(place[0])}.{_quote_if_needed(place[1])} TO {_quote_if_needed(user)}`"


def _quote_if_needed(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else quote(name)


@dataclass(frozen=True, slots=True)
class SegmentWatch:
    """Comparison of the segments, triggers and definitions of captured tables with the stored marks."""

    session: OracleSession
    segments: segments.Segments
    #: The DDL recorded until the segments were read, which may explain new ones.
    notes: DdlRecords

    def add_reason(self, how: OracleTableComparison) -> OracleTableComparison:
        """Add the reason to read a table again, if its segments, triggers or definition require that."""
        table_id, place = how.captured.schema.table_id, how.place
        if how.reason or how.table is None or self._is_undecided(how):
            return how
        is_lossy = _may_have_lost_rows(how, self.notes)  # that flag makes capture compare the rows
        is_explained = is_lossy or self.notes.explains_segments(place)
        reason = "" if is_explained else self.segments.missed_rows_reason(table_id, place)
        if not reason and not how.is_beginning:  # otherwise the fill is about to read the whole table anyway
            reason = self.segments.altered_triggers(table_id, place)
        is_changed = not reason and not is_lossy and not how.is_paused and self._has_other_values(how)
        return replace(how, reason=reason, read_again=is_changed)

    def _is_undecided(self, how: OracleTableComparison) -> bool:
        """Whether a table was dropped or hidden after it was read: the next comparison decides."""
        return how.table is not None and how.place not in self.segments.now

    def _has_other_values(self, how: OracleTableComparison) -> bool:
        """Whether ALTER TABLE may have given rows other values."""
        before, now = self._stored_marks(how), self._present_marks(how)
        explained = self.notes.explains_definition(how.place) or segments.has_new_partition(before, now)
        look = segments.DEFINITION
        return segments.has_altered_values(before.get(look, ""), now.get(look, ""), explained=explained)

    def _stored_marks(self, how: OracleTableComparison) -> Marks:
        return self.segments.stored.get(how.captured.schema.table_id, segments.NOTHING)

    def _present_marks(self, how: OracleTableComparison) -> Marks:
        """Return the marks to store for a table; a table that cannot be read keeps the mark of its definition."""
        now = dict(self.segments.now.get(how.place, segments.NOTHING))
        specified = now.pop(segments.DEFINITION, "")
        before = self._stored_marks(how).get(segments.DEFINITION, "")
        look = segments.definition_mark(how.table, specified) if how.table is not None else before
        return now | ({segments.DEFINITION: look} if look else {}) | {segments.RELEASE: self.segments.release}

    def store(self, compared: Iterable[OracleTableComparison]) -> None:
        """Store the present marks, in the transaction that stores their consequences.

        Tables that are PAUSED, unreadable or undecided are skipped: no reason was stored for them, so a later
        comparison must find the change again.
        """
        for how in compared:
            now = self._present_marks(how)
            is_skipped = how.is_paused or bool(how.grant) or self._is_undecided(how)
            if not is_skipped and now != self._stored_marks(how):
                segments.store_marks(self.session, how.captured.schema.table_id, now)
