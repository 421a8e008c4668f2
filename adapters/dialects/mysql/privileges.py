"""Detection of privileges that VENUS's user has lost. Only the affected tables halt, until the privilege returns.

information_schema shows only objects for which a user has privileges, so a table or column without SELECT looks as if
it were gone. A statement that names it shows the difference: the server denies access to an existing object, and
reports a missing one as unknown. Triggers run with the privileges of their definer, which is this user. Without these
privileges they fail the application's statements, so VENUS drops them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from venus.adapters.dialects.contract import OwnLack
from venus.adapters.dialects.mysql import names, registry
from venus.adapters.dialects.mysql.captured import Captured
from venus.adapters.dialects.mysql.connection import Connection, NotPermitted
from venus.adapters.dialects.mysql.dictionary import defined_columns
from venus.adapters.dialects.mysql.install import Present
from venus.adapters.dialects.mysql.names import literal, log_table, quoted
from venus.adapters.dialects.mysql.statements import statement
from venus.adapters.dialects.releasing import is_leaving
from venus.errors import DatabaseUnavailable, SourceError

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: How capture uses VENUS's own tables: the statement that tests it, and the privileges that it needs.
_OWN = {
    "venus_checkpoint": (("own_checkpoint", "SELECT, UPDATE"),),
    "venus_batch": (("own_batch", "SELECT, INSERT, DELETE"), ("own_batch_add", "SELECT, INSERT, DELETE")),
    "venus_captured_table": (("own_registry", "SELECT, UPDATE"),),
    names.HEARTBEAT: (("own_heartbeat", "SELECT, INSERT, UPDATE"), ("own_heartbeat_add", "SELECT, INSERT, UPDATE")),
    names.MARKS: (("own_marks", "SELECT, INSERT, DELETE"), ("own_marks_store", "SELECT, INSERT, DELETE")),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """A missing privilege on a captured table. `grant` is the statement that restores it."""

    grant: str
    #: The triggers would fail the application's statements, so they are dropped.
    silences: bool = False
    #: The triggers fail the application's statements, and VENUS may not drop them.
    fails: bool = False


def lacking(connection: Connection, captured: Sequence[Captured], present: Present, *, logs: bool) -> dict[int, Lack]:
    """Return the tables that VENUS may not use. `logs`: test also whether it may read and empty their logs."""
    existing = [c for c in captured if c.table is not None and c.table.key and c.definition]
    unwritten = _unwritten(connection)
    unseen = {c.table_id for c in captured if not is_leaving(c.known.table) and not _has_triggers(c, present)}
    suspects = list(captured)
    if not logs and _may_read(connection, existing):
        suspects = [c for c in captured if c not in existing or c.table_id in unwritten | unseen]
    found = (
        (c.table_id, _lack(connection, c, logs=logs or c.table_id in unwritten, unseen=c.table_id in unseen))
        for c in suspects
    )
    return {table_id: lack for table_id, lack in found if lack is not None}


def own_lacking(connection: Connection) -> list[OwnLack]:
    """Return the missing privileges on VENUS's own tables. The server hides a table without any privilege."""
    database = quoted(connection.address.database)
    found: dict[str, OwnLack] = {}
    if not any(registry.has_table(connection, table) for table in _OWN):
        return []
    for table, uses in _OWN.items():
        for block, privileges in uses:
            if table not in found and not _allowed(connection, f"EXPLAIN {statement('registry', block)}"):
                grant = _grant(connection, privileges, f"{database}.{table}")
                found[table] = OwnLack(table=f"{connection.address.database}.{table}", grant=grant)
    if not _allowed(connection, statement("registry", "claimed_numbers")):
        grant = _grant(connection, "CREATE TEMPORARY TABLES", f"{database}.*")
        found["venus_claimed"] = OwnLack(table=f"{connection.address.database}.venus_claimed", grant=grant)
    return list(found.values())


def _unwritten(connection: Connection) -> set[int]:
    """Return the tables whose logs this user may not insert into, according to the dictionary."""
    logs = connection.rows(statement("registry", "unwritten", database=literal(connection.address.database)))
    return {int(found[1]) for (name,) in logs if (found := names.LOG_TABLE.fullmatch(name))}


def _has_triggers(captured: Captured, present: Present) -> bool:
    return any(names.trigger(letter, captured.table_id) in present.triggers for letter in "iud")


def _may_read(connection: Connection, captured: Sequence[Captured]) -> bool:
    """Return whether all tables may be read. One round trip tests all of them, which nearly always succeeds."""
    each = [f"({_reading(connection, c, _columns(c))})" for c in captured]
    return not each or _is_done(connection, " UNION ALL ".join(each))


def _columns(captured: Captured) -> list[str]:
    """Return the columns that capture reads. A column that was never captured may be hidden on purpose."""
    registered = [c.name for c in captured.known.schema.columns]
    if captured.definition:
        defined = defined_columns(captured.definition)
        registered = [name for name in registered if name in defined]
    shown = [c.name for c in captured.table.columns] if captured.table else []
    return list(dict.fromkeys([*registered, *shown]))


def _reading(connection: Connection, captured: Captured, columns: Sequence[str]) -> str:
    table = f"{quoted(connection.address.database)}.{quoted(captured.schema.name)}"
    return statement("registry", "may_read", table=table, columns=", ".join(map(quoted, columns)) or "1")


def _lack(connection: Connection, captured: Captured, *, logs: bool, unseen: bool) -> Lack | None:
    database = quoted(connection.address.database)
    table, log = f"{database}.{quoted(captured.schema.name)}", f"{database}.{log_table(captured.table_id)}"
    if (denied := _denied(connection, captured)) is not None:
        in_key = not denied or bool({*denied} & {*captured.known.schema.key})
        columns = f" ({', '.join(_shown(connection, name) for name in denied)})" if denied else ""
        return Lack(grant=_grant(connection, f"SELECT{columns}", table), silences=in_key)
    if unseen and not _allowed(connection, _trigger(connection, captured)):
        return Lack(grant=_grant(connection, "TRIGGER", table), fails=True)
    if logs and not _allowed(connection, statement("registry", "may_note", log=log)):
        return Lack(grant=_grant(connection, "SELECT, INSERT, DELETE", log), silences=True)
    if logs and not _allowed(connection, statement("registry", "may_empty", log=log)):
        return Lack(grant=_grant(connection, "SELECT, DELETE", log))
    return None


def _trigger(connection: Connection, captured: Captured) -> str:
    trigger = f"{quoted(connection.address.database)}.{names.trigger('i', captured.table_id)}"
    return statement("registry", "trigger_shown", trigger=trigger)


def _denied(connection: Connection, captured: Captured) -> list[str] | None:
    """Return the columns that may not be read; [] means the whole table, None that all may be read."""
    columns = _columns(captured)
    if _is_done(connection, _reading(connection, captured, columns)):
        return None
    denied = [c for c in columns if not _allowed(connection, _reading(connection, captured, [c]))]
    if not denied:
        return None
    return [] if len(denied) == len(columns) else denied


def _is_done(connection: Connection, text: str) -> bool:
    """Run a statement; return False if the server refuses it for any reason."""
    try:
        connection.rows(text)
    except DatabaseUnavailable:
        raise
    except SourceError:
        return False
    return True


def _allowed(connection: Connection, text: str) -> bool:
    try:
        connection.rows(text)
    except NotPermitted:
        return False
    except DatabaseUnavailable:
        raise
    except SourceError:  # dropped, or replaced by another kind of object
        return True
    return True


def _grant(connection: Connection, privileges: str, place: str) -> str:
    user, _, host = str(connection.row("SELECT current_user()")[0]).rpartition("@")
    shown = ".".join(_parts(connection, place))
    return f"GRANT {privileges} ON {shown} TO '{user}'@'{host}'"


def _parts(connection: Connection, place: str) -> Iterator[str]:
    """Yield the parts of a qualified name. After a period, even a reserved word needs no quotes."""
    database, _, table = place.partition("`.")
    yield _shown(connection, database[1:].replace("``", "`"))
    bare = table.strip("`").replace("``", "`")
    yield bare if table == "*" or _PLAIN.fullmatch(bare) else quoted(bare)


def _shown(connection: Connection, name: str) -> str:
    """Return a name with quotes only if the server does not accept it without."""
    plain = _PLAIN.fullmatch(name) and _is_done(connection, f"SELECT 1 AS {name}")
    return name if plain else quoted(name)
