"""Detection of privileges that VENUS's user has lost. Only the affected tables halt, until the privilege returns.

information_schema shows only objects for which a user has privileges, so a table or column without SELECT seems to be
gone. A statement that names the object shows the difference: the server denies access to an existing object, and
reports a missing one as unknown. Triggers run with the privileges of their definer, which is VENUS's user. If VENUS's
user lacks a privilege that the triggers need, the application's statements would fail, so VENUS drops the triggers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from venus.adapters.dialects.contract import MissingGrant
from venus.adapters.dialects.mysql import registry, sql
from venus.adapters.dialects.mysql.connection import MysqlConnection, MysqlNotPermitted
from venus.adapters.dialects.mysql.dictionary.tables import parse_columns, read_table_names
from venus.adapters.dialects.mysql.installation.installed_objects import MysqlInstalledObjects
from venus.adapters.dialects.mysql.registry import MysqlCapturedTable
from venus.adapters.dialects.mysql.sql import literal, log_table_name, quote, statement
from venus.adapters.dialects.registry_rules import is_being_released
from venus.errors import DatabaseUnavailable, SourceError

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: How capture uses VENUS's own tables: the statement that tests it, and the privileges that it needs.
_OWN = {
    "venus_checkpoint": (("own_checkpoint", "SELECT, UPDATE"),),
    "venus_batch": (("own_batch", "SELECT, INSERT, DELETE"), ("own_batch_add", "SELECT, INSERT, DELETE")),
    "venus_captured_table": (("own_registry", "SELECT, UPDATE"),),
    sql.HEARTBEAT: (("own_heartbeat", "SELECT, INSERT, UPDATE"), ("own_heartbeat_add", "SELECT, INSERT, UPDATE")),
    sql.IDENTITY: (("own_identity", "SELECT, INSERT, UPDATE"),),
    sql.MARKS: (("own_marks", "SELECT, INSERT, DELETE"), ("own_marks_store", "SELECT, INSERT, DELETE")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlMissingPrivilege:
    """A missing privilege on a captured table. `grant` is the statement that restores the privilege."""

    grant: str
    #: The triggers would make the application's statements fail, so they are dropped.
    silences: bool = False
    #: The triggers make the application's statements fail, and VENUS may not drop them.
    fails: bool = False


def find_missing_privileges(
    connection: MysqlConnection, captured: Sequence[MysqlCapturedTable], present: MysqlInstalledObjects, *, logs: bool
) -> dict[int, MysqlMissingPrivilege | None]:
    """Return the tables that VENUS may not use. `logs`: also test whether VENUS may read and empty the logs.

    The value None means that the privilege has returned since VENUS read the dictionary, which showed only part of the
    table.
    """
    existing = [c for c in captured if c.table is not None and c.table.key and c.definition]
    unwritten = _find_unwritable_logs(connection)
    unseen = {c.table_id for c in captured if not is_being_released(c.known.table) and not _has_triggers(c, present)}
    suspects = list(captured)
    if not logs and _may_read(connection, existing):
        suspects = [c for c in captured if c not in existing or c.table_id in unwritten | unseen]
    found = (
        (
            c.table_id,
            _find_missing_privilege(connection, c, logs=logs or c.table_id in unwritten, unseen=c.table_id in unseen),
        )
        for c in suspects
    )
    lacks: dict[int, MysqlMissingPrivilege | None] = {table_id: lack for table_id, lack in found if lack is not None}
    return lacks | {c.table_id: None for c in captured if c.table_id not in lacks and _was_hidden(connection, c)}


def find_missing_grants(connection: MysqlConnection) -> list[MissingGrant]:
    """Return the missing privileges on VENUS's own tables; the server hides tables on which the user has none."""
    database = quote(connection.address.database)
    found: dict[str, MissingGrant] = {}
    if not any(registry.has_table(connection, table) for table in _OWN):
        return []
    for table, uses in _OWN.items():
        if table == sql.IDENTITY and not registry.has_table(connection, table):
            continue  # an installation of an older version lacks this table
        for block, privileges in uses:
            if table not in found and not _is_allowed(connection, f"EXPLAIN {statement('registry', block)}"):
                grant = _grant_statement(connection, privileges, f"{database}.{table}")
                found[table] = MissingGrant(table=f"{connection.address.database}.{table}", grant=grant)
    if not _is_allowed(connection, statement("registry", "claimed_numbers")):
        grant = _grant_statement(connection, "CREATE TEMPORARY TABLES", f"{database}.*")
        found["venus_claimed"] = MissingGrant(table=f"{connection.address.database}.venus_claimed", grant=grant)
    return list(found.values())


def _find_unwritable_logs(connection: MysqlConnection) -> set[int]:
    """Return the tables whose logs this user may not insert into, according to the dictionary."""
    logs = connection.rows(statement("registry", "unwritten", database=literal(connection.address.database)))
    return {int(found[1]) for (name,) in logs if (found := sql.LOG_TABLE.fullmatch(name))}


def _has_triggers(captured: MysqlCapturedTable, present: MysqlInstalledObjects) -> bool:
    return any(sql.trigger_name(letter, captured.table_id) in present.triggers for letter in "iud")


def _may_read(connection: MysqlConnection, captured: Sequence[MysqlCapturedTable]) -> bool:
    """Return whether all tables may be read. One round trip tests all tables, and nearly always succeeds."""
    each = [f"({_read_test(connection, c, _needed_columns(c))})" for c in captured]
    return not each or _can_run(connection, " UNION ALL ".join(each))


def _was_hidden(connection: MysqlConnection, captured: MysqlCapturedTable) -> bool:
    """Return whether the table, or some of its columns, exists but was missing in the dictionary that was read."""
    shown = {name.lower() for name in captured.table.declared} if captured.table else set()
    missing = [c.name for c in captured.known.schema.columns if c.name.lower() not in shown]
    if not missing or not _can_run(connection, _read_test(connection, captured, missing)):
        return False
    # a view may have the name of a table that is gone
    return captured.table is not None or captured.schema.name in read_table_names(connection)


def _needed_columns(captured: MysqlCapturedTable) -> list[str]:
    """Return the columns that capture reads. A column that was never captured may be hidden on purpose."""
    registered = [c.name for c in captured.known.schema.columns]
    if captured.definition:
        defined = parse_columns(captured.definition)
        registered = [name for name in registered if name in defined]
    shown = [c.name for c in captured.table.columns] if captured.table else []
    return list(dict.fromkeys([*registered, *shown]))


def _read_test(connection: MysqlConnection, captured: MysqlCapturedTable, columns: Sequence[str]) -> str:
    """Return the statement that the server denies if these columns may not be read."""
    table = f"{quote(connection.address.database)}.{quote(captured.schema.name)}"
    return statement("registry", "may_read", table=table, columns=", ".join(map(quote, columns)) or "1")


def _find_missing_privilege(
    connection: MysqlConnection, captured: MysqlCapturedTable, *, logs: bool, unseen: bool
) -> MysqlMissingPrivilege | None:
    """Return the first privilege that the capture of a table needs and lacks; None if it has all."""
    database = quote(connection.address.database)
    table, log = f"{database}.{quote(captured.schema.name)}", f"{database}.{log_table_name(captured.table_id)}"
    if (denied := _find_denied_columns(connection, captured)) is not None:
        in_key = not denied or bool({*denied} & {*captured.known.schema.key})
        columns = f" ({', '.join(_quote_if_needed(connection, name) for name in denied)})" if denied else ""
        return MysqlMissingPrivilege(grant=_grant_statement(connection, f"SELECT{columns}", table), silences=in_key)
    if unseen and not _is_allowed(connection, _trigger_test(connection, captured)):
        return MysqlMissingPrivilege(grant=_grant_statement(connection, "TRIGGER", table), fails=True)
    if logs and not _is_allowed(connection, statement("registry", "may_note", log=log)):
        return MysqlMissingPrivilege(grant=_grant_statement(connection, "SELECT, INSERT, DELETE", log), silences=True)
    if logs and not _is_allowed(connection, statement("registry", "may_empty", log=log)):
        return MysqlMissingPrivilege(grant=_grant_statement(connection, "SELECT, DELETE", log))
    return None


def _trigger_test(connection: MysqlConnection, captured: MysqlCapturedTable) -> str:
    """Return the statement that the server denies if this user lacks the privilege TRIGGER on the table."""
    trigger = f"{quote(connection.address.database)}.{sql.trigger_name('i', captured.table_id)}"
    return statement("registry", "trigger_shown", trigger=trigger)


def _find_denied_columns(connection: MysqlConnection, captured: MysqlCapturedTable) -> list[str] | None:
    """Return the columns that may not be read; [] means the whole table, None that all may be read."""
    columns = _needed_columns(captured)
    if _can_run(connection, _read_test(connection, captured, columns)):
        return None
    denied = [c for c in columns if not _is_allowed(connection, _read_test(connection, captured, [c]))]
    if not denied:
        return None
    return [] if len(denied) == len(columns) else denied


def _can_run(connection: MysqlConnection, text: str) -> bool:
    """Run a statement; return False if the server refuses it for any reason."""
    try:
        connection.rows(text)
    except DatabaseUnavailable:
        raise
    except SourceError:
        return False
    return True


def _is_allowed(connection: MysqlConnection, text: str) -> bool:
    """Run a statement; return False if the server denies it because a privilege is missing."""
    try:
        connection.rows(text)
    except MysqlNotPermitted:
        return False
    except DatabaseUnavailable:
        raise
    except SourceError:  # dropped, or replaced by another kind of object
        return True
    return True


def _grant_statement(connection: MysqlConnection, privileges: str, place: str) -> str:
    user, _, host = str(connection.row("SELECT current_user()")[0]).rpartition("@")
    shown = ".".join(_name_parts(connection, place))
    return f"GRANT {privileges} ON {shown} TO '{user}'@'{host}'"


def _name_parts(connection: MysqlConnection, place: str) -> Iterator[str]:
    """Yield the parts of a qualified name. After a period, even a reserved word needs no quotes."""
    database, _, table = place.partition("`.")
    yield _quote_if_needed(connection, database[1:].replace("``", "`"))
    bare = table.strip("`").replace("``", "`")
    yield bare if table == "*" or _PLAIN.fullmatch(bare) else quote(bare)


def _quote_if_needed(connection: MysqlConnection, name: str) -> str:
    """Return a name with quotes only if the server does not accept it without."""
    plain = _PLAIN.fullmatch(name) and _can_run(connection, f"SELECT 1 AS {name}")
    return name if plain else quote(name)
