"""Follows the dictionary: what has changed at captured tables is stored in the registry, in one transaction."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq
from dataclasses import replace

from venus.adapters.dialects.oracle import ddl, ownership, privileges, registry, segments
from venus.adapters.dialects.oracle.connection import Session
from venus.adapters.dialects.oracle.ddlnotes import Notes
from venus.adapters.dialects.oracle.dictionary import Dictionary
from venus.adapters.dialects.oracle.install import objects
from venus.adapters.dialects.oracle.refresh import Comparison, compare
from venus.adapters.dialects.oracle.statements import statement
from venus.adapters.dialects.oracle.watching import Watch
from venus.errors import DatabaseUnavailable

logger = logging.getLogger(__name__)

ALTERED = "altered while partitioned: a partition may have been truncated or exchanged, read the table again"
SILENCED = "its triggers were disabled by ALTER TABLE: changes may have been missed meanwhile, read the table again"


def compare_all(writer: Session, dictionary: Dictionary) -> list[Comparison]:
    """Compare every table whose installation is complete; leaves no transaction open."""
    present = objects(writer).triggers
    listed = {(t.owner, t.name): t for t in dictionary.listed()}
    known = [c for c in registry.read_tables(writer).values() if not c.is_unfinished]
    lacks = privileges.lacking(writer, dictionary.user, known, listed.keys(), present)
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
    """Store what has changed since the last time, and remove the notes that said so.

    A note of a TRUNCATE stays: it belongs to a cut.
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
    """Add what was noted of a table, unless there is a reason to read it again already."""
    if how.reason or how.table is None:
        return how
    reason = SILENCED if notes.silenced(how.place) and not how.begins else ""
    if how.table.listed.partitioned and notes.lose_rows(how.place):
        reason = ALTERED
    # the notes are gone when a paused table goes on
    again = bool(reason) and how.is_paused
    return replace(how, reason=reason, again=how.again or again or notes.lose_values(how.place))


def _watch(writer: Session, notes: Notes) -> Watch | None:
    """Look at the segments; an installation of an older version has nowhere to remember them."""
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
    """Take triggers away that do not fit their table's key: they could fail the application's statements."""
    unfit = [how.captured.schema for how in found if how.silence]
    present = objects(writer).triggers if unfit else {}
    for schema in unfit:
        for kind, name in ownership.of_table(schema.table_id):
            if name in present:
                try:
                    writer.run(ddl.drop(kind, name))
                except DatabaseUnavailable:
                    logger.warning("%s is in use: trigger %s is taken away later", schema.qualified, name)
    writer.rollback()
