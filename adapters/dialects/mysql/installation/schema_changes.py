"""Comparison of the registry with the dictionary while capture runs: versions, keys, triggers, TRUNCATE.

The application's statements never fail, whatever happens to a captured table. A new column restarts the table's fill,
so that old rows get its value. A change that capture cannot follow makes the table RESYNC, with the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace

from venus.adapters.dialects.contract import RegisteredTable
from venus.adapters.dialects.mysql import registry
from venus.adapters.dialects.mysql.connection import MysqlConnection
from venus.adapters.dialects.mysql.dictionary.marks import (
    InnodbNumbers,
    definition_key,
    has_other_columns,
    is_rewritten,
    may_have_altered,
    summarise_definition,
)
from venus.adapters.dialects.mysql.dictionary.tables import MysqlTable
from venus.adapters.dialects.mysql.installation.installed_objects import MysqlInstalledObjects
from venus.adapters.dialects.mysql.installation.installer import drop_trigger_sql, table_number
from venus.adapters.dialects.mysql.installation.privileges import MysqlMissingPrivilege
from venus.adapters.dialects.mysql.installation.triggers import (
    CascadePath,
    can_widen_log,
    find_reaching,
    key_description,
    widen_log_sql,
)
from venus.adapters.dialects.mysql.registry import MysqlCapturedTable, MysqlCaptureState
from venus.adapters.dialects.mysql.sql import HEARTBEAT, log_table_name
from venus.adapters.dialects.registry_rules import (
    FAILING,
    is_being_released,
    is_unreadable,
    state_before_halt,
    unreadable_reason,
)
from venus.errors import LockTimeout, SourceError
from venus.model import TableSchema

logger = logging.getLogger(__name__)

_LOG_LOCK_S = 1

TRUNCATED = "TRUNCATE (or a rebuild, which looks alike): rows may be gone that no trigger has logged; read it again"


SILENCED = (
    "its triggers were taken away, because without that privilege they fail the application's statements: run "
    "`venus install-triggers`, then resync it"
)


def refresh_registry(
    connection: MysqlConnection,
    loaded: MysqlCaptureState,
    marks: InnodbNumbers,
    earlier: Mapping[str, str],
    lacks: Mapping[int, MysqlMissingPrivilege | None],
    present: MysqlInstalledObjects,
) -> bool:
    """Update the registry from the dictionary; return whether the registry has changed.

    `earlier`: InnoDB's numbers before the dictionary was read. `lacks`: the tables that VENUS may not use now, or
    could not use when the dictionary was read. The dictionary shows only a part of a table that VENUS may not use.
    """
    paths, circles = find_reaching(loaded.dictionary.references, {c.schema.name for c in loaded.captured})
    circular = {c.reference.child: c.reference.name for c in circles}
    now, noted = marks.read_present(), marks.read_stored()
    moved = _has_moved_files(loaded, noted)
    before = registry.read_mark(connection)
    for c in loaded.captured:
        if c.table_id in lacks:
            if (lack := lacks[c.table_id]) is not None:
                _pause_table(connection, c, lack, present)
            continue
        if is_being_released(c.known.table):
            continue  # an operator had its triggers removed
        reaching_it = [p for p in paths if p.child == c.schema.name]
        reason = _loss_reason(c)
        if reason:
            _drop_triggers(connection, c, present)
        elif c.access is None:
            _store_new_version(connection, c)
        if not reason and c.table is not None:
            present = _widen_log(connection, c.table, c.table_id, present)
            mark = marks.table_mark(c.schema.name, now)
            if mark != marks.table_mark(c.schema.name, earlier):
                continue  # its definition may be older or newer than its number: the next comparison decides
            reason = _missed_changes_reason(c.table, c, present, reaching_it, circular)
            truncated = _store_innodb_number(connection, c, marks, mark, noted)
            _store_definition(connection, c, marks, noted, moved=moved or bool(truncated))
            reason = reason or truncated
        if reason and c.state == registry.ACTIVE:
            registry.mark_missed_changes(connection, c.table_id, reason)
    return registry.read_mark(connection) != before


def _pause_table(
    connection: MysqlConnection,
    captured: MysqlCapturedTable,
    lack: MysqlMissingPrivilege,
    present: MysqlInstalledObjects,
) -> None:
    """Pause a table until VENUS's user may use it again. The log keeps its rows."""
    if lack.silences:
        _drop_triggers(connection, captured, present, denied=True)
    known = captured.known.table
    if is_unreadable(known):  # perhaps another privilege is missing
        state, why = state_before_halt(known)
        known = replace(known, state=state, reason=why)
    elif known.state == registry.PAUSED:
        return
    if lack.silences and not is_being_released(known):
        known = replace(known, state=registry.RESYNC, reason=known.reason or SILENCED)
    reason = unreadable_reason(known, f"`{lack.grant}`{FAILING if lack.fails else ''}")
    if captured.known.table.reason == reason:
        return
    logger.warning("%s halts, the other tables continue: %s", captured.schema.qualified_name, reason)
    registry.set_state(connection, captured.table_id, registry.PAUSED, reason)


def _loss_reason(captured: MysqlCapturedTable) -> str:
    """Return why a table can no longer be captured, empty if it can."""
    table = captured.table
    if table is None:
        return "the table is gone: dropped or renamed"
    if table.unsupported:
        column, why = table.unsupported[0]
        return f"column {column} cannot be carried: {why}"
    if not table.key:
        return "its key is gone"
    before, now = captured.known.schema.key, table.key
    if before != now:
        return f"its key was ({', '.join(before)}) and is ({', '.join(now)}): run `venus install-triggers`"
    return ""


def _drop_triggers(
    connection: MysqlConnection, captured: MysqlCapturedTable, present: MysqlInstalledObjects, *, denied: bool = False
) -> None:
    """Drop the triggers of a table whose key has changed, or that VENUS may not use: statements could fail.

    Also drop the triggers of cascades that reach the table and, if `denied`, of cascades that begin at the table.
    """
    for name, (_, table, _, _) in present.triggers.items():
        if table_number(name) == captured.table_id or (denied and table == captured.schema.name):
            try:
                connection.run(drop_trigger_sql(connection.address.database, name))
            except LockTimeout:
                logger.warning("%s is in use: trigger %s will be dropped later", captured.schema.qualified_name, name)


def stop_tables(connection: MysqlConnection, tables: Iterable[RegisteredTable], reason: str) -> bool:
    """Drop the triggers of tables whose logs are at their limit; return whether there were any.

    The registry is updated first: if triggers remain after a failure, the only harm is that the table is read again
    needlessly. Writers queue behind the lock request of a DROP TRIGGER, so its timeout is short.
    """
    present, stopped = MysqlInstalledObjects.read(connection), False
    usual = connection.options.lock_timeout_s
    connection.run(f"SET lock_wait_timeout = {_LOG_LOCK_S}")
    try:
        for table in tables:
            table_id = table.schema.table_id
            names = [name for name in present.triggers if table_number(name) == table_id]
            if names and table.state != registry.PAUSED:
                registry.set_state(connection, table_id, registry.RESYNC, reason)
            for name in names:
                stopped = True
                try:
                    connection.run(drop_trigger_sql(connection.address.database, name))
                except LockTimeout:
                    logger.warning("%s is in use: trigger %s will be dropped later", table.schema.qualified_name, name)
    finally:
        connection.run(f"SET lock_wait_timeout = {usual}")
    return stopped


def _widen_log(
    connection: MysqlConnection, table: MysqlTable, table_id: int, present: MysqlInstalledObjects
) -> MysqlInstalledObjects:
    """Convert the columns of a log to the types of a key that became unsigned, signed or a decimal.

    Return the installed objects afterwards. Writers queue behind the lock request, so its timeout is short. If the
    conversion fails, the table becomes RESYNC.
    """
    name = log_table_name(table_id)
    existing, required = present.logs.get(name, ""), key_description(table)
    if present.has_log(table, name) or not can_widen_log(existing, table):
        return present
    usual = connection.options.lock_timeout_s
    try:
        connection.run(f"SET lock_wait_timeout = {_LOG_LOCK_S}")
        connection.run(widen_log_sql(table, table_id))
    except (LockTimeout, SourceError) as error:
        logger.warning("%s: its log %s was not changed: %s", table.where, name, error)
        return present
    finally:
        connection.run(f"SET lock_wait_timeout = {usual}")
    return replace(present, logs={**present.logs, name: required})


def _missed_changes_reason(
    table: MysqlTable,
    captured: MysqlCapturedTable,
    present: MysqlInstalledObjects,
    paths: Seq[CascadePath],
    circular: Mapping[str, str],
) -> str:
    """Return why triggers may have missed changes of a table; empty if they are complete."""
    lacking = present.find_missing(table, captured.table_id, paths)
    if lacking:
        shown = ", ".join(lacking[:3])
        return f"changes may have been missed, {shown} missing or altered: run `venus install-triggers`"
    if table.name in circular:
        return f"foreign key {circular[table.name]} cascades in a circle, which no trigger can follow"
    return ""


def _store_innodb_number(
    connection: MysqlConnection, c: MysqlCapturedTable, marks: InnodbNumbers, mark: str, noted: Mapping[int, str]
) -> str:
    """Store InnoDB's number of a table. If only TRUNCATE explains a new number, return the reason for RESYNC."""
    if not mark or noted.get(c.table_id) == mark or c.state == registry.PAUSED:
        return ""
    altered = c.access is None or has_other_columns(noted.get(definition_key(c.table_id), ""), _definition_summary(c))
    known = c.table_id in noted
    if known and altered:
        registry.restart_fill(connection, c.table_id)  # an ALTER that rebuilds hides an earlier TRUNCATE
    elif known:
        # the state is stored before the mark, so that a crash in between loses nothing
        registry.mark_missed_changes(connection, c.table_id, TRUNCATED)
    marks.store(c.table_id, mark)
    return TRUNCATED if known and not altered else ""


def _store_definition(
    connection: MysqlConnection, c: MysqlCapturedTable, marks: InnodbNumbers, noted: Mapping[int, str], *, moved: bool
) -> None:
    """Store a table's definition, and restart its fill if ALTER TABLE may have changed values."""
    slot, summary = definition_key(c.table_id), _definition_summary(c)
    before = noted.get(slot, "")
    if before == summary or not c.definition or c.state == registry.PAUSED:
        return
    if may_have_altered(before, summary, moved=moved):
        registry.restart_fill(connection, c.table_id)  # first, so that a crash in between loses nothing
    marks.store(slot, summary)


def _definition_summary(c: MysqlCapturedTable) -> str:
    return summarise_definition(c.definition, c.table.written if c.table else "")


def _has_moved_files(loaded: MysqlCaptureState, noted: Mapping[int, str]) -> bool:
    """Return whether the files were copied: even the heartbeat table, which nothing alters, was written again."""
    heartbeats = (c for c in loaded.captured if c.schema.name == HEARTBEAT)
    return any(is_rewritten(noted.get(definition_key(c.table_id), ""), _definition_summary(c)) for c in heartbeats)


def _store_new_version(connection: MysqlConnection, captured: MysqlCapturedTable) -> None:
    """Register the present schema of a table as its next version; restart the fill if old rows lack values."""
    known = captured.known
    schema = replace(captured.schema, version=known.schema.version + 1)
    with connection.transaction():
        connection.run(registry.new_version_sql(schema, known.number_max))
        if _needs_fill(known.schema, schema):
            registry.restart_fill(connection, known.table_id)


def _needs_fill(before: TableSchema, now: TableSchema) -> bool:
    """Return whether existing rows have values that were never shipped: new or retyped columns."""
    known = {c.number: (c.name, c.type) for c in before.columns}
    return any(known.get(c.number) != (c.name, c.type) for c in now.columns)


def is_complete(connection: MysqlConnection, loaded: MysqlCaptureState, captured: MysqlCapturedTable) -> bool:
    """Return whether the triggers and the log of a captured table are complete, so that no change is missed."""
    paths, circles = find_reaching(loaded.dictionary.references, {c.schema.name for c in loaded.captured})
    circular = {c.reference.child: c.reference.name for c in circles}
    reaching_it = [p for p in paths if p.child == captured.schema.name]
    if captured.table is None or _loss_reason(captured):
        return False
    return not _missed_changes_reason(
        captured.table, captured, MysqlInstalledObjects.read(connection), reaching_it, circular
    )
