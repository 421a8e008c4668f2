"""Comparison of the registry with the dictionary while capture runs: versions, keys, triggers, partitions.

Capture fails open: the application's statements never fail, whatever happens to a captured table. A new column restarts
the table's fill, so that old rows get its value. A change that capture cannot follow makes the table RESYNC, with the
reason.

Log tables and functions of an older version are updated while capture runs. A trigger function is replaced only if it
has missed no change. A function accepts a wider key only after its log does, because the application's statement would
fail on a value that the log's column cannot hold.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Any

from venus.adapters.dialects.canonical_text import keeps_text
from venus.adapters.dialects.postgresql import registry
from venus.adapters.dialects.postgresql import sql as names
from venus.adapters.dialects.postgresql.connection import PostgresConnection, PostgresNotPermitted
from venus.adapters.dialects.postgresql.dictionary.tables import Leaf, PostgresTable
from venus.adapters.dialects.postgresql.installation import triggers
from venus.adapters.dialects.postgresql.installation.check import describe_key_change
from venus.adapters.dialects.postgresql.installation.installer import (
    PostgresInstalledObjects,
    strip_schema,
    widening_steps,
)
from venus.adapters.dialects.postgresql.registry import PostgresCapturedTable
from venus.adapters.dialects.postgresql.sql import log_key_columns, qualify, quote, statement
from venus.adapters.dialects.registry_rules import comparison_reason, is_being_released, unreadable_reason
from venus.errors import LockTimeout, SourceError
from venus.model import LogicalType, TableSchema

#: Name of the mark for a table's values. Every other mark has the name of a trigger.
VALUES = "values"


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkChanges:
    """What has changed since the last comparison: altered triggers, rewritten values, and the marks to store."""

    #: Triggers that were disabled for a while or altered, with their partition if they have one.
    altered_triggers: tuple[str, ...] = ()
    #: Whether ALTER TABLE has recomputed values of rows.
    has_rewritten_values: bool = False
    #: (relation, name, mark) to be stored.
    new_marks: tuple[tuple[int, str, str], ...] = ()


@dataclass(slots=True)
class TriggerMarks:
    """Marks that change when a trigger or a table's values are altered: the stored and present ones, by relation."""

    before: dict[int, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    now: dict[int, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))

    @classmethod
    def read(cls, connection: PostgresConnection, tables: Iterable[PostgresTable]) -> TriggerMarks:
        """Read the marks of these tables and their partitions."""
        seen = cls()
        for relation, name, mark in connection.rows(statement("triggers", "seen")):
            seen.before[relation][name] = mark
        seen.read_present(connection, [oid for table in tables for oid in _relations(table)])
        return seen

    def read_present(self, connection: PostgresConnection, relations: Seq[int]) -> None:
        """Read the present marks of relations. Repeat this after capture itself has altered a trigger."""
        for relation, name, mark in connection.rows(statement("triggers", "seen_now"), {"relations": list(relations)}):
            self.now[relation][name] = mark

    def find_changes(self, table: PostgresTable) -> MarkChanges:
        """Compare a table's present marks with the stored ones."""
        off, fresh, rewritten = [], [], False
        places = _relations(table)
        for relation, place in places.items():
            before, now = self.before.get(relation, {}), self.now.get(relation, {})
            fresh += [(relation, name, mark) for name, mark in now.items() if before.get(name) != mark]
            off += [
                f"{name}{place}" for name, mark in now.items() if name != VALUES and _is_altered(before.get(name), mark)
            ]
            rewritten |= _is_rewritten(before.get(VALUES), now.get(VALUES))
        return MarkChanges(altered_triggers=tuple(off), has_rewritten_values=rewritten, new_marks=tuple(fresh))

    def has_stored_values(self, table: PostgresTable) -> bool:
        """Return whether a mark is stored for the values of a table and of each of its partitions."""
        return all(VALUES in self.before.get(relation, {}) for relation in _relations(table))

    def delete_others(self, connection: PostgresConnection) -> None:
        """Delete the marks of relations that are not captured any more: a relation that returns has missed changes."""
        if others := [relation for relation in self.before if relation not in self.now]:
            connection.run(statement("triggers", "seen_others"), {"relations": others})


def store_marks(connection: PostgresConnection, fresh: Seq[tuple[int, str, str]]) -> None:
    """Store marks, as (relation, name, mark), in the caller's transaction."""
    if fresh:
        relations, named, marks = (list(column) for column in zip(*fresh, strict=True))
        connection.run(statement("triggers", "saw"), {"relations": relations, "names": named, "marks": marks})


def store_present_marks(connection: PostgresConnection, table_id: int) -> None:
    """Store the present marks of a table's triggers: its new fill reads all changes that they have missed."""
    if connection.row(statement("triggers", "seen_exists"))[0]:
        connection.run(statement("triggers", "seen_again", number=f"{table_id:05}"))


def _relations(table: PostgresTable) -> dict[int, str]:
    """Return a table and its partitions by oid, each with the words that name a partition in messages."""
    return {table.oid: ""} | {leaf.oid: f" on {leaf.namespace}.{leaf.name}" for leaf in table.leaves}


def _is_altered(before: str | None, now: str) -> bool:
    """Return whether a trigger was altered: only its row version differs (after a restore, its function too)."""
    if before is None or before == now:
        return False
    return before.split(" ")[0] == now.split(" ")[0]


def _is_rewritten(before: str | None, now: str | None) -> bool:
    """Return whether ALTER TABLE has recomputed values of rows, according to two marks.

    Values were recomputed if a column was altered and the rows are in a new file, or if an expression was altered.
    VACUUM FULL and CLUSTER alter no column, and SET STATISTICS creates no new file.
    """
    if before is None or now is None or before == now:
        return False
    old, new = json.loads(before), json.loads(now)
    altered = _has_differences(old, new, "columns") and old["file"] != new["file"]
    return altered or _has_differences(old, new, "expressions")


def _has_differences(old: Mapping[str, Any], new: Mapping[str, Any], what: str) -> bool:
    """Return whether an entry of both `old` and `new` differs. Added and dropped columns make a new version anyway."""
    return any(new[what].get(number, value) != value for number, value in old[what].items())


logger = logging.getLogger(__name__)

RESYNC, PAUSED = "RESYNC", "PAUSED"
PARTITION_GONE = "a partition was dropped or detached"


def refresh_registry(connection: PostgresConnection, captured: Seq[PostgresCapturedTable]) -> list[TableSchema]:
    """Update the registry from the dictionary; return the new versions. Each table has one short transaction."""
    with connection.snapshot():
        present = PostgresInstalledObjects.read(connection)
        known = (
            TriggerMarks.read(connection, (c.table for c in captured if c.table))
            if "seen" in present.other_tables
            else TriggerMarks()
        )
    known.delete_others(connection)
    versions: list[TableSchema] = []
    fresh: list[tuple[int, str, str]] = []
    for c in captured:
        table_id = c.schema.table_id
        if is_being_released(c.registered):
            continue  # an operator had its triggers removed
        if c.table is None:
            _stop_capture(connection, c, "the table is gone: dropped or renamed")
        elif c.table.unsupported:
            column, why = c.table.unsupported[0]
            _stop_capture(connection, c, f"column {column} cannot be carried: {why}")
        elif reason := describe_key_change(c.schema, c.table):
            _stop_capture(connection, c, reason)
        else:
            if not c.usable:
                versions.append(
                    _store_new_version(connection, c.schema, c.table, watched=known.has_stored_values(c.table))
                )
            if c.table.kind == "p":
                _follow_partitions(connection, c, c.table, present.leaves.get(table_id, frozenset()), known)
            present = renew_objects(connection, c.table, table_id, present)
            fresh += _check_triggers(connection, c, c.table, present, known)
    if fresh:
        with connection.transaction():
            store_marks(connection, fresh)
    return versions


def pause_unreadable_tables(connection: PostgresConnection, captured: Seq[PostgresCapturedTable]) -> bool:
    """Pause tables that may not be read; return whether there were any. The tables' logs keep their rows."""
    running = registry.table_oids(c for c in captured if c.registered.state != PAUSED)
    grants = registry.find_unreadable_tables(connection, running)
    for known in (c.registered for c in captured if c.schema.table_id in grants):
        reason = unreadable_reason(known, grants[known.schema.table_id])
        logger.warning("%s halts, the other tables continue: %s", known.schema.qualified_name, reason)
        registry.set_state(connection, known.schema.table_id, PAUSED, reason)
    return bool(grants)


def is_complete(connection: PostgresConnection, captured: PostgresCapturedTable) -> bool:
    """Return whether no object that captures a table is missing. A function that captures nothing counts as missing."""
    if captured.table is None:
        return False
    with connection.snapshot():
        present = PostgresInstalledObjects.read(connection)
    return not present.find_missing(captured.table, captured.schema.table_id)


def _stop_capture(connection: PostgresConnection, captured: PostgresCapturedTable, reason: str) -> None:
    """Stop the capture of a table: its trigger function does nothing from now on. Marks the table RESYNC."""
    if captured.registered.state == RESYNC and captured.registered.reason == reason:
        return
    table_id = captured.schema.table_id
    with connection.transaction():
        connection.run(triggers.idle_function(table_id).sql)
        registry.mark_missed_changes(connection, table_id, reason)


def _store_new_version(
    connection: PostgresConnection, known: TableSchema, table: PostgresTable, *, watched: bool
) -> TableSchema:
    """Store the next version of a table. Restart its fill if rows sent before lack a column or have an old text.

    A wider type keeps the text of values. If a USING clause computes other values, the rows are in a new file, which
    `_check_triggers` detects if the table is `watched`.
    """
    schema = table.to_schema(known.table_id, known.version + 1)
    before = {c.number: c.type for c in known.columns}

    def is_unchanged_in_sent_rows(number: int, now: LogicalType) -> bool:
        return number in before and (before[number] == now or (watched and keeps_text(before[number], now)))

    with connection.transaction():
        connection.run(registry.new_version_sql(schema))
        if not all(is_unchanged_in_sent_rows(c.number, c.type) for c in schema.columns) or _has_renamed_labels(
            known, schema
        ):
            registry.restart_fill(connection, known.table_id)
    return schema


def _has_renamed_labels(known: TableSchema, schema: TableSchema) -> bool:
    """Return whether a label of an enum was renamed: no trigger fires then, and rows sent before have the old name.

    Two labels that exchanged names still exist, but in another order.
    """
    now = {t.sql_name: t.labels for t in schema.types}
    for own in known.types:
        rest = iter(now.get(own.sql_name, own.labels))
        if not all(label in rest for label in own.labels):
            return True
    return False


def _follow_partitions(
    connection: PostgresConnection,
    captured: PostgresCapturedTable,
    table: PostgresTable,
    joined: frozenset[int],
    known: TriggerMarks,
) -> None:
    """Add partitions that joined a table. If a partition has left, start a comparison or fill to find removed rows."""
    table_id = captured.schema.table_id
    now = {leaf.oid: leaf for leaf in table.leaves}
    for oid in now.keys() - joined:
        try:
            with connection.transaction():
                _add_partition(connection, table, table_id, now[oid])
                # a returning partition still has its trigger, which was just replaced
                if oid in known.now:
                    known.read_present(connection, [oid])
        except SourceError as error:
            reason = f"partition {now[oid].namespace}.{now[oid].name} cannot be given its trigger: {error}"
            registry.mark_missed_changes(connection, table_id, reason)
    gone = joined - now.keys()
    if gone:  # a partition that has joined since the table was read is no reason to read the table again
        rows = connection.rows(statement("dictionary", "partitions"), {"tables": [table.oid]})
        gone -= {leaf for _, leaf, *_ in rows}
    if gone:
        known_table = captured.registered
        with connection.transaction():
            registry.restart_fill(connection, table_id)
            if known_table.fill.done or known_table.is_compared:
                registry.begin_comparison(connection, table_id, comparison_reason(PARTITION_GONE))
            for oid in gone:
                connection.run(statement("triggers", "leaf_left", table_id=str(table_id), leaf=str(oid)))


def _add_partition(connection: PostgresConnection, table: PostgresTable, table_id: int, leaf: Leaf) -> None:
    """Create the trigger of a partition that joined, and write the keys of its rows into the log."""
    name = names.trigger_name("p", table_id)
    trigger = next(t for t in triggers.build_triggers(table, table_id) if t.name == name and t.table_oid == leaf.oid)
    connection.run(trigger.sql.replace("CREATE TRIGGER", "CREATE OR REPLACE TRIGGER", 1))
    connection.run(
        statement(
            "triggers",
            "leaf_rows",
            log=names.log_table_name(table_id),
            table_id=str(table_id),
            keys=", ".join(log_key_columns(len(table.key))),
            key=", ".join(f"x.{quote(k.name)}" for k in table.key),
            leaf=qualify(leaf.namespace, leaf.name),
        )
    )
    connection.run(statement("triggers", "leaf_joined", table_id=str(table_id), leaf=str(leaf.oid)))


def _check_triggers(
    connection: PostgresConnection,
    captured: PostgresCapturedTable,
    table: PostgresTable,
    present: PostgresInstalledObjects,
    known: TriggerMarks,
) -> Seq[tuple[int, str, str]]:
    """Mark a table RESYNC if a trigger was dropped, disabled or altered since, even if it exists again.

    Restart the fill of a table whose values ALTER TABLE has recomputed. Return the marks that remain to be stored,
    because they have no consequences.
    """
    table_id, changes, reason = captured.schema.table_id, known.find_changes(table), ""
    if lacking := _find_missing(connection, table, table_id, present):
        shown = ", ".join(dict.fromkeys(lacking))
        reason = f"{shown} missing or altered: run `venus install-triggers`, then `venus resync`"
    elif changes.altered_triggers:
        reason = (
            f"{', '.join(changes.altered_triggers)} was off for a while, or altered: changes may have been "
            "missed; resync"
        )
    is_news = bool(reason) and captured.registered.state != RESYNC
    if not is_news and not changes.has_rewritten_values:
        return changes.new_marks
    with connection.transaction():
        if is_news:
            registry.mark_missed_changes(connection, table_id, reason)
        if changes.has_rewritten_values:
            registry.restart_fill(connection, table_id)
        store_marks(connection, changes.new_marks)
    return ()


def _find_missing(
    connection: PostgresConnection, table: PostgresTable, table_id: int, present: PostgresInstalledObjects
) -> list[str]:
    """Return the missing objects of a table, except for partitions that were dropped since the table was read."""
    lacking = present.find_missing(table, table_id)
    if lacking and table.leaves:
        rows = connection.rows(statement("dictionary", "partitions"), {"tables": [table.oid]})
        there = {leaf for _, leaf, *_ in rows}
        left = replace(table, leaves=tuple(leaf for leaf in table.leaves if leaf.oid in there))
        lacking = present.find_missing(left, table_id)
    return lacking


#: Timeout of the lock request. It is short, because writers queue behind the request.
LOCK_MS = 100
#: Writers wait while a log is rewritten. Larger logs are left to `venus install-triggers`.
LOG_BYTES_MAX = 16 << 20


def renew_objects(
    connection: PostgresConnection, table: PostgresTable, table_id: int, present: PostgresInstalledObjects
) -> PostgresInstalledObjects:
    """Widen a log whose key became wider, and replace functions. Objects in use stay until the next comparison."""
    made = triggers.build_functions(table, table_id, connection.log_bytes_max)
    found = ((f, present.functions.get(strip_schema(f.name), "")) for f in made)
    stale = [f for f, body in found if f.is_equivalent_to(body, present.other_pipelines.groups)]
    widths = widening_steps(table, table_id, present)
    if not stale and not widths:
        return present
    log = names.log_table_name(table_id)
    try:
        with connection.transaction():
            if widths:
                connection.run(statement("triggers", "lock_log", log=log, lock_ms=str(LOCK_MS)))
                if connection.row(statement("triggers", "log_bytes", log=log))[0] > LOG_BYTES_MAX:
                    return present
            for sql in (*(step.sql for step in widths), *(function.sql for function in stale)):
                connection.run(sql)
    except (LockTimeout, PostgresNotPermitted) as error:
        logger.info("%s.%s: log %s and its functions were not changed: %s", table.namespace, table.name, log, error)
        return present
    wide = tuple((key.log_type, key.collation) for key in table.key)
    return replace(
        present,
        functions=present.functions | {strip_schema(f.name): f.body for f in stale},
        logs=present.logs | ({strip_schema(log): wide} if widths else {}),
    )
