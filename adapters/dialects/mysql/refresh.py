"""Compares the registry with the dictionary while capture runs: new versions, lost keys, lost triggers, TRUNCATE.

Whatever is done to a captured table, the application's statements go on. A new column starts the table's fill again,
so that old rows get its value; what cannot be followed makes the table RESYNC, with the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace

from venus.adapters.dialects.halting import FAILING, is_unreadable, state_before, unreadable_reason
from venus.adapters.dialects.mysql import captured as seen
from venus.adapters.dialects.mysql import names, registry
from venus.adapters.dialects.mysql.captured import Captured, Loaded, Marks
from venus.adapters.dialects.mysql.connection import Connection, LockTimeout
from venus.adapters.dialects.mysql.dictionary import Table
from venus.adapters.dialects.mysql.install import Present, drop_trigger, number_in
from venus.adapters.dialects.mysql.privileges import Lack
from venus.adapters.dialects.mysql.triggers import Path, can_widen_log, key_description, reaching, widen_log
from venus.adapters.dialects.releasing import is_leaving
from venus.errors import SourceError
from venus.model import TableSchema

logger = logging.getLogger(__name__)

_LOG_LOCK_S = 1

TRUNCATED = "TRUNCATE (or a rebuild, which looks alike): rows may be gone that no trigger has noted; read it again"


SILENCED = (
    "its triggers were taken away, as without that privilege they fail the application's statements: run "
    "`venus install-triggers`, then resync it"
)


def refresh(connection: Connection, loaded: Loaded, marks: Marks, lacks: Mapping[int, Lack], present: Present) -> bool:
    """Bring the registry up to the dictionary; return whether it has changed.

    `lacks`: the tables that may not be used, of which the dictionary does not tell everything.
    """
    paths, circles = reaching(loaded.dictionary.references, {c.schema.name for c in loaded.captured})
    circular = {c.reference.child: c.reference.name for c in circles}
    now, noted = marks.now(), marks.stored()
    moved = _files_moved(loaded, noted)
    before = registry.mark(connection)
    for c in loaded.captured:
        if c.table_id in lacks:
            _halt(connection, c, lacks[c.table_id], present)
            continue
        if is_leaving(c.known.table):
            continue  # its triggers are gone because somebody wanted that
        reaching_it = [p for p in paths if p.child == c.schema.name]
        reason = _lost(c)
        if reason:
            _silence(connection, c, present)
        elif c.access is None:
            _new_version(connection, c)
        if not reason and c.table is not None:
            present = _widen_log(connection, c.table, c.table_id, present)
            reason = _missed(c.table, c, present, reaching_it, circular)
            mark = marks.of(c.schema.name, now)
            truncated = _follow_mark(connection, c, marks, mark, noted)
            _follow_definition(connection, c, marks, noted, moved=moved or bool(truncated))
            reason = reason or truncated
        if reason and c.state == registry.ACTIVE:
            registry.set_state(connection, c.table_id, registry.RESYNC, reason)
    return registry.mark(connection) != before


def _halt(connection: Connection, captured: Captured, lack: Lack, present: Present) -> None:
    """Leave a table that may not be used out of the cuts, with what its log has, until it may be used again."""
    if lack.silences:
        _silence(connection, captured, present, denied=True)
    known = captured.known.table
    if is_unreadable(known):  # for want of something else, it may be
        state, why = state_before(known)
        known = replace(known, state=state, reason=why)
    elif known.state == registry.PAUSED:
        return
    if lack.silences and not is_leaving(known):
        known = replace(known, state=registry.RESYNC, reason=known.reason or SILENCED)
    reason = unreadable_reason(known, f"`{lack.grant}`{FAILING if lack.fails else ''}")
    if captured.known.table.reason == reason:
        return
    logger.warning("%s halts, the other tables go on: %s", captured.schema.qualified, reason)
    registry.set_state(connection, captured.table_id, registry.PAUSED, reason)


def _lost(captured: Captured) -> str:
    """Return why a table cannot be captured any more."""
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


def _silence(connection: Connection, captured: Captured, present: Present, *, denied: bool = False) -> None:
    """Take away the triggers of a table whose key has changed, or that may not be used: they could fail statements.

    So could those of a cascade that reaches it and, if it is `denied`, of one that begins there.
    """
    for name, (_, table, _, _) in present.triggers.items():
        if number_in(name) == captured.table_id or (denied and table == captured.schema.name):
            try:
                connection.run(drop_trigger(connection.address.database, name))
            except LockTimeout:
                logger.warning("%s is in use: trigger %s is taken away later", captured.schema.qualified, name)


def _widen_log(connection: Connection, table: Table, table_id: int, present: Present) -> Present:
    """Give a log the type of a key that became unsigned, signed or a decimal: until then it is a wide integer.

    Writers queue up behind the request for the lock, so it is short. Without it the table is RESYNC.
    """
    name = names.log_table(table_id)
    there, wanted = present.logs.get(name, ""), key_description(table)
    if present.has_log(table, name) or not can_widen_log(there, table):
        return present
    usual = connection.options.lock_timeout_s
    try:
        connection.run(f"SET lock_wait_timeout = {_LOG_LOCK_S}")
        connection.run(widen_log(table, table_id))
    except (LockTimeout, SourceError) as error:
        logger.warning("%s: its log %s stays as it is: %s", table.where, name, error)
        return present
    finally:
        connection.run(f"SET lock_wait_timeout = {usual}")
    return replace(present, logs={**present.logs, name: wanted})


def _missed(table: Table, captured: Captured, present: Present, paths: Seq[Path], circular: Mapping[str, str]) -> str:
    lacking = present.lacks(table, captured.table_id, paths)
    if lacking:
        shown = ", ".join(lacking[:3])
        return f"changes may have been missed, {shown} not there or altered: run `venus install-triggers`"
    if table.name in circular:
        return f"foreign key {circular[table.name]} cascades in a circle, which no trigger can follow"
    return ""


def _follow_mark(connection: Connection, c: Captured, marks: Marks, mark: str, noted: Mapping[int, str]) -> str:
    """Note a table's number; return the reason if it is another one and nothing else explains that."""
    if not mark or noted.get(c.table_id) == mark or c.state == registry.PAUSED:
        return ""
    altered = c.access is None or seen.other_columns(noted.get(seen.slot(c.table_id), ""), _look(c))
    known = c.table_id in noted
    if known and altered:
        registry.restart_fill(connection, c.table_id)  # an ALTER that rebuilds hides a TRUNCATE before it
    elif known:
        # the state before the mark: a crash in between finds it again
        registry.set_state(connection, c.table_id, registry.RESYNC, TRUNCATED)
    marks.store(c.table_id, mark)
    return TRUNCATED if known and not altered else ""


def _follow_definition(
    connection: Connection, c: Captured, marks: Marks, noted: Mapping[int, str], *, moved: bool
) -> None:
    """Note a table's definition, and have the table read again if ALTER TABLE may have given it other values."""
    slot, look = seen.slot(c.table_id), _look(c)
    before = noted.get(slot, "")
    if before == look or not c.definition or c.state == registry.PAUSED:
        return
    if seen.altered(before, look, moved=moved):
        registry.restart_fill(connection, c.table_id)  # before it is noted: a crash in between finds it again
    marks.store(slot, look)


def _look(c: Captured) -> str:
    return seen.look(c.definition, c.table.written if c.table else "")


def _files_moved(loaded: Loaded, noted: Mapping[int, str]) -> bool:
    """Say whether the definition of a table was written again that nobody alters: ours."""
    ours = (c for c in loaded.captured if c.schema.name == names.HEARTBEAT)
    return any(seen.written_again(noted.get(seen.slot(c.table_id), ""), _look(c)) for c in ours)


def _new_version(connection: Connection, captured: Captured) -> None:
    known = captured.known
    schema = replace(captured.schema, version=known.schema.version + 1)
    with connection.transaction():
        connection.run(registry.new_version_sql(schema, known.number_max))
        if _needs_fill(known.schema, schema):
            registry.restart_fill(connection, known.table_id)


def _needs_fill(before: TableSchema, now: TableSchema) -> bool:
    """Say whether rows that are there already have values that were never shipped: new or retyped columns."""
    known = {c.number: (c.name, c.type) for c in before.columns}
    return any(known.get(c.number) != (c.name, c.type) for c in now.columns)


def is_whole(connection: Connection, loaded: Loaded, captured: Captured) -> bool:
    """Say whether everything that captures a table is in its place."""
    paths, circles = reaching(loaded.dictionary.references, {c.schema.name for c in loaded.captured})
    circular = {c.reference.child: c.reference.name for c in circles}
    reaching_it = [p for p in paths if p.child == captured.schema.name]
    if captured.table is None or _lost(captured):
        return False
    return not _missed(captured.table, captured, Present.read(connection), reaching_it, circular)
