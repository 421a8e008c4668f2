"""Follows the dictionary: what has changed at captured tables is stored in the registry, in one transaction."""

from __future__ import annotations

import logging
from collections.abc import Collection
from collections.abc import Sequence as Seq

from venus.adapters.dialects.oracle import ddl, ownership, registry, segments
from venus.adapters.dialects.oracle.connection import Row, Session
from venus.adapters.dialects.oracle.ddlnotes import keeps_rows
from venus.adapters.dialects.oracle.dictionary import Dictionary
from venus.adapters.dialects.oracle.install import objects
from venus.adapters.dialects.oracle.refresh import Comparison, compare
from venus.adapters.dialects.oracle.statements import statement
from venus.adapters.dialects.oracle.watching import Watch
from venus.errors import DatabaseUnavailable

logger = logging.getLogger(__name__)

ALTERED = "altered while partitioned: a partition may have been truncated or exchanged, read the table again"
#: Owner and name of a table.
Place = tuple[str, str]


def compare_all(writer: Session, dictionary: Dictionary) -> list[Comparison]:
    """Compare every table whose installation is complete; leaves no transaction open."""
    present = objects(writer).triggers
    listed = {(t.owner, t.name): t for t in dictionary.listed()}
    found = []
    for captured in registry.read_tables(writer).values():
        if captured.is_unfinished:
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
    watch = _watch(writer, {(owner, name) for _, _, owner, name, _ in noted})
    if watch:
        found = [watch.judged(how) for how in found]
    done = [(int(seq),) for seq, event, *_ in noted if event != "TRUNCATE"]
    altered = _altered(noted)
    with writer.transaction():
        for how in found:
            _store(writer, how, altered)
        if watch:
            watch.store(found)
        if done:
            writer.many(statement("registry", "ddl_done"), done)
    _silence(writer, found)


def _altered(noted: Seq[Row]) -> set[Place]:
    """Return the tables of which an ALTER may have replaced rows."""
    return {(owner, name) for _, event, owner, name, text in noted if event == "ALTER" and not keeps_rows(text or "")}


def _watch(writer: Session, noted: Collection[Place]) -> Watch | None:
    """Look at the segments; an installation of an older version has nowhere to remember them."""
    if segments.TABLE not in objects(writer).kinds:
        return None
    return Watch(writer, segments.read(writer), noted)


def _store(writer: Session, how: Comparison, altered: Collection[Place]) -> None:
    known, table = how.captured.schema, how.table
    reason = how.reason
    if not reason and table and table.listed.partitioned and (known.namespace, known.name) in altered:
        reason = ALTERED
    if how.is_new_version and table is not None:
        writer.run(statement("registry", "new_version"), registry.version_binds(table.schema, how.captured.number_max))
        if how.needs_fill:
            writer.run(statement("registry", "restart_fill"), {"table_id": known.table_id})
    if reason and how.captured.table.state == registry.ACTIVE:
        registry.set_state(writer, known.table_id, registry.RESYNC, reason)


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
