"""Schema changes of captured tables: VENUS stores them in the registry, in one transaction.

Captured tables of other schemas may become unreadable for VENUS's user. They halt alone until it may read them again.
Oracle reports a table without any privilege as one that does not exist (ORA-00942), and its views omit it. VENUS's own
triggers distinguish the two cases: they are dropped with their table, and their owner always sees them. If they are
gone as well, only a DBA can tell. VENUS then names both possibilities and never assumes that the table was dropped.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from venus.adapters.dialects.contract import SchemaChanged
from venus.adapters.dialects.oracle import ddl, ownership, registry, segments
from venus.adapters.dialects.oracle.connection import NotPermitted, Session
from venus.adapters.dialects.oracle.ddlnotes import Notes
from venus.adapters.dialects.oracle.dictionary import Dictionary
from venus.adapters.dialects.oracle.install import objects
from venus.adapters.dialects.oracle.names import quoted
from venus.adapters.dialects.oracle.refresh import Comparison, Present, compare
from venus.adapters.dialects.oracle.registry import Captured
from venus.adapters.dialects.oracle.statements import statement
from venus.errors import DatabaseUnavailable, SourceError

logger = logging.getLogger(__name__)

ALTERED = "altered while partitioned: a partition may have been truncated or exchanged, read the table again"
SILENCED = "ALTER TABLE disabled its triggers: changes may have been missed in the meantime, read the table again"


def compare_all(writer: Session, dictionary: Dictionary) -> list[Comparison]:
    """Compare every table whose installation is complete; leave no transaction open."""
    present = objects(writer).triggers
    listed = {(t.owner, t.name): t for t in dictionary.listed()}
    known = [c for c in registry.read_tables(writer).values() if not c.is_unfinished]
    lacks = lacking(writer, dictionary.user, known, listed.keys(), present)
    found = []
    for captured in known:
        if lack := lacks.get(captured.schema.table_id):
            found.append(Comparison(captured=captured, table=None, lack=lack))
            continue
        at = listed.get((captured.schema.namespace, captured.schema.name))
        table = dictionary.table(at, captured.schema, captured.number_max) if at else None
        found.append(compare(captured, table, present))
    writer.rollback()
    return found


def follow(writer: Session, dictionary: Dictionary) -> None:
    """Store the schema changes since the last call, and remove the DDL records that reported them.

    The record of a TRUNCATE stays: a cut consumes it.
    """
    noted = writer.rows(statement("registry", "ddl_rows"))
    found = compare_all(writer, dictionary)
    notes = Notes.of(noted)
    watch = _watch(writer, notes)
    if watch:
        found = [watch.judged(how) for how in found]
    found = [_told(how, notes) for how in found]
    done = [(int(seq),) for seq, event, *_ in noted if event != "TRUNCATE"]
    with writer.transaction():
        for how in found:
            _store(writer, how)
        if watch:
            watch.store(found)
        if done:
            writer.many(statement("registry", "ddl_done"), done)
    _silence(writer, found)


def _told(how: Comparison, notes: Notes) -> Comparison:
    """Apply the DDL records of a table, unless there is already a reason to read it again."""
    if how.reason or how.table is None:
        return how
    reason = SILENCED if notes.silenced(how.place) and not how.begins else ""
    if how.table.listed.partitioned and notes.lose_rows(how.place):
        reason = ALTERED
    # the records are gone when a paused table is resumed
    again = bool(reason) and how.is_paused
    return replace(how, reason=reason, again=how.again or again or notes.lose_values(how.place))


def _watch(writer: Session, notes: Notes) -> Watch | None:
    """Read the segments; return None for an older installation, which has no table for them."""
    if segments.TABLE not in objects(writer).kinds:
        return None
    return Watch(writer, segments.read(writer), notes)


def _store(writer: Session, how: Comparison) -> None:
    table_id, table = how.captured.schema.table_id, how.table
    if how.is_new_version and table is not None:
        writer.run(statement("registry", "new_version"), registry.version_binds(table.schema, how.captured.number_max))
    if how.again or (how.is_new_version and how.needs_fill):
        writer.run(statement("registry", "restart_fill"), {"table_id": table_id})
    if how.standing is not None:
        state, reason = how.standing
        if how.lack:
            logger.warning("%s halts, the other tables go on: %s", how.captured.schema.qualified, reason)
        registry.set_state(writer, table_id, state, reason)
    if how.reason and how.captured.table.state == registry.ACTIVE:
        registry.set_state(writer, table_id, registry.RESYNC, how.reason)


def _silence(writer: Session, found: Seq[Comparison]) -> None:
    """Remove triggers that do not fit the key of their table: they could fail the application's statements."""
    unfit = [how.captured.schema for how in found if how.silence]
    present = objects(writer).triggers if unfit else {}
    for schema in unfit:
        for kind, name in ownership.of_table(schema.table_id):
            if name in present:
                try:
                    writer.run(ddl.drop(kind, name))
                except DatabaseUnavailable:
                    logger.warning("%s is in use: trigger %s will be removed later", schema.qualified, name)
    writer.rollback()


_PLAIN = re.compile(r"[A-Z][A-Z0-9_$#]*")

Place = tuple[str, str]


def lacking(
    session: Session, user: str, captured: Iterable[Captured], listed: Collection[Place],
    present: Mapping[str, Present],
) -> dict[int, str]:  # fmt: skip
    """Return the unreadable tables with their remedies; `listed` = the tables that the dictionary shows."""
    places = {c.schema.table_id: (c.schema.namespace, c.schema.name) for c in captured}
    shown = {table_id: place for table_id, place in places.items() if place in listed}
    found = {table_id: _grant(shown[table_id], user) for table_id in _unreadable(session, shown)}
    for table_id, place in places.items():
        if table_id not in shown and place[0] != user and (way_out := _hidden(session, user, table_id, place, present)):
            found[table_id] = way_out
    return found


def _unreadable(session: Session, places: Mapping[int, Place]) -> set[int]:
    """Return the tables that may not be read; one round trip is enough if all of them may be."""
    each = {t: statement("dictionary", "may_read", table=f"{quoted(o)}.{quoted(n)}") for t, (o, n) in places.items()}
    if not each or _is_done(session, "\nUNION ALL ".join(each.values())):
        return set()
    return {table_id for table_id, text in each.items() if not _is_done(session, text)}


def _is_done(session: Session, text: str) -> bool:
    try:
        session.rows(text)
    except (NotPermitted, SchemaChanged):
        return False
    return True


def _hidden(session: Session, user: str, table_id: int, place: Place, present: Mapping[str, Present]) -> str:
    """Return the remedy for a table that the dictionary does not show; empty if it is certainly gone."""
    own = [present[name].on for kind, name in ownership.of_table(table_id) if kind == "TRIGGER" and name in present]
    if own:
        # if the names differ, the table was renamed or is in the recycle bin
        return _grant(place, user) if ".".join(place) in own else ""
    there = _is_there(session, place)
    if there is None:
        removal = f"`venus uninstall-triggers {'.'.join(place)}`"
        return f"{_grant(place, user)}, or if it was dropped or renamed, which looks alike: {removal}"
    return _grant(place, user) if there else ""


def _is_there(session: Session, place: Place) -> bool | None:
    """Return whether the DBA views show the table; None if this user may not read them."""
    binds = {"owner": place[0], "name": place[1]}
    try:
        rows: Seq[Seq[object]] = session.rows(statement("dictionary", "exists"), binds)
    except (SourceError, SchemaChanged):
        return None
    return bool(rows)


def _grant(place: Place, user: str) -> str:
    return f"`GRANT SELECT ON {_shown(place[0])}.{_shown(place[1])} TO {_shown(user)}`"


def _shown(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else quoted(name)


@dataclass(frozen=True, slots=True)
class Watch:
    """The segments of all captured tables, read once."""

    session: Session
    found: segments.Segments
    #: The recorded DDL, which may explain new segments.
    notes: Notes

    def judged(self, how: Comparison) -> Comparison:
        """Add the reason to read a table again, if its segments, its triggers or its definition give one."""
        table_id, place = how.captured.schema.table_id, how.place
        if how.reason or how.table is None:
            return how
        reason = "" if self.notes.explain_segments(place) else self.found.reason(table_id, place)
        if not reason and not how.begins:  # otherwise the fill is about to read the whole table anyway
            reason = self.found.altered(table_id, place)
        return replace(how, reason=reason, again=not how.is_paused and self._altered(how))

    def _altered(self, how: Comparison) -> bool:
        """Whether ALTER TABLE may have given rows other values."""
        before, now = self._before(how), self._now(how)
        explained = self.notes.explain_definition(how.place) or segments.extended(before, now)
        look = segments.DEFINITION
        return segments.has_altered_values(before.get(look, ""), now.get(look, ""), explained=explained)

    def _before(self, how: Comparison) -> segments.Marks:
        return self.found.stored.get(how.captured.schema.table_id, segments.NOTHING)

    def _now(self, how: Comparison) -> segments.Marks:
        """Return the marks to store of a table; a table that cannot be read keeps the mark of its definition."""
        now = dict(self.found.now.get(how.place, segments.NOTHING))
        specified = now.pop(segments.DEFINITION, "")
        before = self._before(how).get(segments.DEFINITION, "")
        look = segments.definition_mark(how.table, specified) if how.table is not None else before
        return now | ({segments.DEFINITION: look} if look else {})

    def store(self, compared: Iterable[Comparison]) -> None:
        """Store the present marks, in the transaction that stores their consequences.

        Tables that are PAUSED or may not be read are skipped: no reason was stored for them, so that a later comparison
        must find the change again.
        """
        for how in compared:
            now = self._now(how)
            if not how.is_paused and not how.lack and now != self._before(how):
                segments.store(self.session, how.captured.schema.table_id, now)
