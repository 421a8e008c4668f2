"""Compares the registry with the dictionary while capture runs: new versions, lost keys, lost triggers, partitions.

The rule is fail open: whatever is done to a captured table, the application's statements go on. A new column starts
the table's fill again, so that old rows get its value; what cannot be followed makes the table RESYNC, with the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq
from dataclasses import replace

from venus.adapters.dialects.halting import unreadable_reason
from venus.adapters.dialects.keyforms import keeps_text
from venus.adapters.dialects.postgresql import names, registry, seen, triggers
from venus.adapters.dialects.postgresql.connection import Connection, LockTimeout, NotPermitted
from venus.adapters.dialects.postgresql.dictionary import Leaf, Table
from venus.adapters.dialects.postgresql.findings import key_change
from venus.adapters.dialects.postgresql.install import Present, local_name, log_widths
from venus.adapters.dialects.postgresql.names import log_keys, qualified, quoted
from venus.adapters.dialects.postgresql.registry import Captured
from venus.adapters.dialects.postgresql.seen import Seen
from venus.adapters.dialects.postgresql.statements import statement
from venus.adapters.dialects.releasing import is_leaving
from venus.errors import SourceError
from venus.model import LogicalType, TableSchema

logger = logging.getLogger(__name__)

RESYNC, PAUSED = "RESYNC", "PAUSED"


def refresh(connection: Connection, captured: Seq[Captured]) -> list[TableSchema]:
    """Bring the registry up to the dictionary; return the new versions. One short transaction for each table."""
    with connection.reading():
        present = Present.read(connection)
        known = Seen.read(connection, (c.table for c in captured if c.table)) if "seen" in present.others else Seen()
    known.forget_others(connection)
    versions = []
    for c in captured:
        table_id = c.schema.table_id
        if is_leaving(c.registered):
            continue  # its triggers are gone because somebody wanted that
        if c.table is None:
            _lose(connection, c, "the table is gone: dropped or renamed")
        elif c.table.unsupported:
            column, why = c.table.unsupported[0]
            _lose(connection, c, f"column {column} cannot be carried: {why}")
        elif reason := key_change(c.schema, c.table):
            _lose(connection, c, reason)
        else:
            if not c.usable:
                versions.append(_new_version(connection, c.schema, c.table, watched=known.has_values_of(c.table)))
            if c.table.kind == "p":
                _follow_leaves(connection, c, c.table, present.leaves.get(table_id, frozenset()), known)
            present = renew(connection, c.table, table_id, present)
            _watch_triggers(connection, c, c.table, present, known)
    return versions


def halt_unreadable(connection: Connection, captured: Seq[Captured]) -> bool:
    """Leave tables that may not be read out of the cuts, with what their logs have; say whether there were any."""
    grants = registry.unreadable(connection, (c for c in captured if c.registered.state != PAUSED))
    for known in (c.registered for c in captured if c.schema.table_id in grants):
        reason = unreadable_reason(known, grants[known.schema.table_id])
        logger.warning("%s halts, the other tables go on: %s", known.schema.qualified, reason)
        registry.set_state(connection, known.schema.table_id, PAUSED, reason)
    return bool(grants)


def is_whole(connection: Connection, captured: Captured) -> bool:
    """Say whether everything that captures a table is in its place; what was given up has an idle function."""
    if captured.table is None:
        return False
    with connection.reading():
        present = Present.read(connection)
    return not present.lacks(captured.table, captured.schema.table_id, always=connection.options.always)


def _lose(connection: Connection, captured: Captured, reason: str) -> None:
    """Stop capturing a table without stopping the application."""
    if captured.registered.state == RESYNC and captured.registered.reason == reason:
        return
    table_id = captured.schema.table_id
    with connection.transaction():
        connection.run(triggers.idle_function(table_id).sql)
        registry.set_state(connection, table_id, RESYNC, reason)


def _new_version(connection: Connection, known: TableSchema, table: Table, *, watched: bool) -> TableSchema:
    """Store the next version. Rows sent before have no value for a new column, and the old text of a retyped one.

    A wider type keeps the text, unless USING computes another value. The rows are in another file then, which
    `_watch_triggers` sees in a table that is `watched`.
    """
    schema = table.schema(known.table_id, known.version + 1)
    before = {c.number: c.type for c in known.columns}

    def is_as_sent(number: int, now: LogicalType) -> bool:
        return number in before and (before[number] == now or (watched and keeps_text(before[number], now)))

    with connection.transaction():
        connection.run(registry.new_version_sql(schema))
        if not all(is_as_sent(c.number, c.type) for c in schema.columns) or _lost_labels(known, schema):
            registry.restart_fill(connection, known.table_id)
    return schema


def _lost_labels(known: TableSchema, schema: TableSchema) -> bool:
    """Whether a label of an enum was renamed: no trigger fires, and rows that were sent have it under its old name.

    Two labels that took each other's names are still there, in another order.
    """
    now = {t.spelled: t.labels for t in schema.types}
    for own in known.types:
        rest = iter(now.get(own.spelled, own.labels))
        if not all(label in rest for label in own.labels):
            return True
    return False


def _follow_leaves(
    connection: Connection, captured: Captured, table: Table, joined: frozenset[int], known: Seen
) -> None:
    """Take in partitions that joined, and read the table again if one has left with its rows."""
    table_id = captured.schema.table_id
    now = {leaf.oid: leaf for leaf in table.leaves}
    for oid in now.keys() - joined:
        try:
            with connection.transaction():
                _join(connection, table, table_id, now[oid])
                # a partition that comes back still has its trigger, and it was just replaced
                if oid in known.now:
                    known.look(connection, [oid])
        except SourceError as error:
            reason = f"partition {now[oid].namespace}.{now[oid].name} cannot be given its trigger: {error}"
            registry.set_state(connection, table_id, RESYNC, reason)
    if gone := joined - now.keys():
        with connection.transaction():
            registry.restart_fill(connection, table_id)
            for oid in gone:
                connection.run(statement("triggers", "leaf_left", table_id=str(table_id), leaf=str(oid)))


def _join(connection: Connection, table: Table, table_id: int, leaf: Leaf) -> None:
    name = names.trigger("p", table_id)
    trigger = next(t for t in triggers.triggers(table, table_id) if t.name == name and t.table_oid == leaf.oid)
    connection.run(trigger.sql.replace("CREATE TRIGGER", "CREATE OR REPLACE TRIGGER", 1))
    connection.run(
        statement(
            "triggers",
            "leaf_rows",
            log=names.log_table(table_id),
            table_id=str(table_id),
            keys=", ".join(log_keys(len(table.key))),
            key=", ".join(f"x.{quoted(k.name)}" for k in table.key),
            leaf=qualified(leaf.namespace, leaf.name),
        )
    )
    connection.run(statement("triggers", "leaf_joined", table_id=str(table_id), leaf=str(leaf.oid)))


def _watch_triggers(connection: Connection, captured: Captured, table: Table, present: Present, known: Seen) -> None:
    """Say so when a trigger has been dropped, disabled or altered behind our back, even if it is there again.

    A table whose values ALTER TABLE has recomputed is read again.
    """
    table_id, told, reason = captured.schema.table_id, known.of(table), ""
    if lacking := present.lacks(table, table_id, always=connection.options.always):
        shown = ", ".join(dict.fromkeys(lacking))
        reason = f"{shown} missing or altered: run `venus install-triggers`, then `venus resync`"
    elif told.off:
        reason = f"{', '.join(told.off)} was off for a while, or altered: changes may have been missed; resync"
    tells = bool(reason) and captured.registered.state != RESYNC
    if not tells and not told.fresh:
        return
    with connection.transaction():
        if tells:
            registry.set_state(connection, table_id, RESYNC, reason)
        if told.rewritten:
            registry.restart_fill(connection, table_id)
        seen.store(connection, told.fresh)


#: Writers queue up behind the request for the lock, so it is short, and given up.
LOCK_MS = 100
#: A log is rewritten while its writers wait: a larger one is left to `venus install-triggers`.
LOG_BYTES_MAX = 16 << 20


def renew(connection: Connection, table: Table, table_id: int, present: Present) -> Present:
    """Widen a log whose key became wider, and replace functions; what is in use stays until the next comparison."""
    made = triggers.functions(table, table_id)
    stale = [f for f in made if f.captures_like(present.functions.get(local_name(f.name), ""))]
    widths = log_widths(table, table_id, present)
    if not stale and not widths:
        return present
    log = names.log_table(table_id)
    try:
        with connection.transaction():
            if widths:
                connection.run(statement("triggers", "lock_log", log=log, lock_ms=str(LOCK_MS)))
                if connection.row(statement("triggers", "log_bytes", log=log))[0] > LOG_BYTES_MAX:
                    return present
            for sql in (*(step.sql for step in widths), *(function.sql for function in stale)):
                connection.run(sql)
    except (LockTimeout, NotPermitted) as error:
        logger.info("%s.%s: log %s and its functions stay as they are: %s", table.namespace, table.name, log, error)
        return present
    wide = tuple((key.log_type, key.collation) for key in table.key)
    return replace(
        present,
        functions=present.functions | {local_name(f.name): f.body for f in stale},
        logs=present.logs | ({local_name(log): wide} if widths else {}),
    )
