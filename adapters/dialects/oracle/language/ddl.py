"""The statements that an installation runs, built from the dictionary's data, and their script for SQL*Plus. Pure.

A statement that Oracle restarts fires the row triggers again. Keys that are logged twice are harmless, because capture
reads the rows later.

The script, which SQLcl also accepts, adds only what makes a run by hand safe: it runs only as one user, stops at the
first error, writes a log file, and commits where VENUS itself would commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from enum import StrEnum

from venus.adapters.dialects.contract import InstallStep
from venus.adapters.dialects.oracle import sql as names
from venus.adapters.dialects.oracle.session.options import Version
from venus.adapters.dialects.oracle.sql import literal, log_key_columns, log_table_name, quote, statement
from venus.adapters.dialects.statements import NOTHING, purpose_comment

#: The time for which one attempt of the fence waits for open transactions.
FENCE_SECONDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleKeyColumn:
    """A column of a table's key."""

    name: str
    log_type: str  # as the log table declares it
    is_text: bool  # compared under the session's linguistic settings


class CaptureStyle(StrEnum):
    """The way in which a table is captured."""

    ROWS = "three row triggers and a log table"
    INLINE = "the paper's own columns in the table"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedTable:
    """A table with its key, as the triggers need it."""

    owner: str
    name: str
    key: tuple[OracleKeyColumn, ...]
    style: CaptureStyle = CaptureStyle.ROWS

    @property
    def sql(self) -> str:
        """The table's name in a statement."""
        return f"{quote(self.owner)}.{quote(self.name)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleOwnObject:
    """An object that VENUS creates, with its statement."""

    kind: str  # SEQUENCE, TABLE, TRIGGER
    name: str
    sql: str


def build_own_objects(version: Version) -> list[OracleOwnObject]:
    """Return VENUS's own sequence and tables, in the order of their creation."""
    parts = {"name_bytes": str(version.identifier_bytes)}
    made = [OracleOwnObject(kind="SEQUENCE", name="VENUS_SEQ", sql=statement("own", "sequence"))]
    tables = ("checkpoint", "batch", "captured_table", "heartbeat", "ddl", "segment", "identity")
    return made + [
        OracleOwnObject(kind="TABLE", name=f"VENUS_{t.upper()}", sql=statement("own", t, **parts)) for t in tables
    ]


def statement_for(version: Version, sql: str) -> str:
    """Return a statement as this version accepts it. Sessions in an older edition do not fire an editioned trigger."""
    return sql if version.noneditionable else sql.replace(" NONEDITIONABLE TRIGGER", " TRIGGER", 1)


def initial_rows() -> list[tuple[str, str]]:
    """Return the tables that initially have one row, with statements that add a missing row."""
    return [(f"VENUS_{t.upper()}", statement("own", f"{t}_row")) for t in ("checkpoint", "heartbeat")]


def ddl_trigger(*, owner: str = "", whole_database: bool = False) -> OracleOwnObject:
    """Return the trigger that records TRUNCATE and ALTER; `owner` is VENUS's schema if it watches the database."""
    qualifier = f"{quote(owner)}.".replace("'", "''") if whole_database else ""  # the name is part of a literal
    scope = "DATABASE" if whole_database else "SCHEMA"
    sql = statement("own", "ddl_trigger", scope=scope, owner=qualifier)
    return OracleOwnObject(kind="TRIGGER", name=names.DDL_TRIGGER, sql=sql)


def log_view_table(name: str, table_id: int) -> str:
    """Return the SELECT that shows the log of one table in the view VENUS_LOG."""
    return statement("own", "log_view_table", qualified_name=literal(name), log=log_table_name(table_id))


def log_view(lines: Iterable[str]) -> str:
    """Return the statement for the view VENUS_LOG, a log (TableName, Sequence) of all tables; `lines`: of each one."""
    return statement("own", "log_view", tables="\nUNION ALL ".join(lines))


def log_object(table: KeyedTable, table_id: int, tablespace: str = "") -> OracleOwnObject:
    """Return the log table of a captured table."""
    keys = zip(log_key_columns(len(table.key)), table.key, strict=True)
    columns = ",\n  ".join(f"{k}  {c.log_type}  NOT NULL" for k, c in keys)
    sql = statement(
        "triggers",
        "log_table",
        log=log_table_name(table_id),
        columns=columns,
        tablespace=names.tablespace_clause(tablespace),
    )
    return OracleOwnObject(kind="TABLE", name=log_table_name(table_id), sql=sql)


def log_statistics(table_id: int) -> str:
    """Return the block that fixes the optimizer statistics of a log table."""
    return statement("triggers", "log_statistics", log=log_table_name(table_id))


def row_triggers(table: KeyedTable, table_id: int) -> Iterator[OracleOwnObject]:
    """Yield the three disabled row triggers of a captured table."""
    for letter, block in zip(names.TRIGGER_LETTERS, ("insert", "update", "delete"), strict=True):
        name = names.trigger_name(letter, table_id)
        sql = statement(
            "triggers",
            block,
            trigger=name,
            table=table.sql,
            log=log_table_name(table_id),
            keys=", ".join(log_key_columns(len(table.key))),
            new_key=_key_values(table, ":NEW"),
            old_key=_key_values(table, ":OLD"),
            key_changed=key_change_condition(table),
        )
        yield OracleOwnObject(kind="TRIGGER", name=name, sql=sql)


def quiet_trigger(made: OracleOwnObject, user: str) -> OracleOwnObject:
    """Return the row trigger for a database that may become a target: it does not log what VENUS applies."""
    head, _, body = made.sql.partition("\nBEGIN\n")
    mark = literal(names.applying_mark(user))
    sql = statement("triggers", "quiet", head=head, body=body.removesuffix("\nEND;"), mark=mark)
    return replace(made, sql=sql)


def _key_values(table: KeyedTable, row: str) -> str:
    return _join_lines(", ", [f"{row}.{quote(k.name)}" for k in table.key])


def _join_lines(separator: str, parts: list[str]) -> str:
    """Join parts on one line, or on one line each if that is long: SQL*Plus reads at most 2,499 characters a line."""
    line = separator.join(parts)
    return line if len(line) < 500 else f"{separator.rstrip()}\n    ".join(parts)


def key_change_condition(table: KeyedTable) -> str:
    """Return the condition that the key of a row has changed.

    Key columns are never NULL. Texts are compared under the application's session settings, which may be linguistic.
    """
    changed = [f":OLD.{quote(k.name)} <> :NEW.{quote(k.name)}" for k in table.key]
    if any(k.is_text for k in table.key):
        changed.append("SYS_CONTEXT('USERENV', 'NLS_SORT') <> 'BINARY'")
    return _join_lines(" OR ", changed)


def enable_trigger(trigger: str) -> str:
    """Return the statement that enables a trigger."""
    return statement("triggers", "enable", trigger=trigger)


def check_trigger(trigger: str) -> str:
    """Return the block that fails if a trigger does not compile."""
    return statement("triggers", "compiled", trigger=trigger)


def fence_block(table: KeyedTable) -> str:
    """Return the block that waits for transactions that wrote the table before; it fails after FENCE_SECONDS."""
    message = (
        f"VENUS: a transaction that wrote {table.owner}.{table.name} before its triggers were enabled is still open"
    )
    return statement(
        "triggers", "fence", tables=literal(table.sql), seconds=str(FENCE_SECONDS), message=literal(message)
    )


def drop_object(kind: str, name: str) -> str:
    """Return the statement that drops an object of VENUS."""
    if kind == "TABLE":
        return statement("triggers", "drop_table", table=name)
    if kind == "TRIGGER":
        return statement("triggers", "drop_trigger", trigger=name)
    if kind == "VIEW":
        return statement("triggers", "drop_view")
    return statement("triggers", "drop_sequence", sequence=name)


def record_id_statements(table: KeyedTable, version: Version, constraint: str) -> list[str]:
    """Return the statements that give a table without a key an identity column; empty if the version has none."""
    if not version.invisible_identity:
        return []
    key = statement("triggers", "record_id_key", table=table.sql, name=constraint)
    return [statement("triggers", "record_id", table=table.sql), key]


#: Settings of SQL*Plus: names may contain an ampersand, blank lines end no statement, the first error ends the script.
_BEFORE = (
    "SET DEFINE OFF",
    "SET SQLBLANKLINES ON",
    "WHENEVER OSERROR EXIT FAILURE ROLLBACK",
    "WHENEVER SQLERROR EXIT FAILURE ROLLBACK",
)
_AFTER = ("COMMIT;", "SPOOL OFF", "EXIT")


def build_script(steps: Seq[InstallStep], *, removal: bool, user: str, version: str, remarks: Seq[str] = ()) -> str:
    """Return the open steps as a script for SQL*Plus. Raises Refused for a name that has a control character."""
    open_steps = [step for step in steps if not step.exists and step.by_hand]
    if not open_steps:
        return NOTHING
    what = "removal" if removal else "installation"
    done = sum(step.exists for step in steps)
    lines = [
        f"-- VENUS, {what}: {len(open_steps)} statements for Oracle {version}; {done} are done already.",
        f"-- Run it with SQL*Plus (12.1 or newer) or SQLcl as user {user},",
        f"-- or through a proxy user: sqlplus dba[{user}]@NAME @FILE",
        "-- It stops at the first error. To continue, print it again: what is done is left out.",
    ]
    lines += remarks
    if not removal:
        lines.append("-- Afterwards: venus install-triggers --adopt")
    if any(not (step.table + step.sql).isascii() for step in open_steps):
        lines.append("-- This file is UTF-8: set NLS_LANG=.AL32UTF8 before SQL*Plus starts.")
    lines += [*_BEFORE, f"SPOOL venus-{'uninstall' if removal else 'install'}.log", ""]
    lines += [_terminate(text) for text in (statement("session", "patience"), _user_guard(user))]
    return "\n".join([*lines, *map(_paragraph, open_steps), *_AFTER]) + "\n"


def _user_guard(user: str) -> str:
    """Return the block that fails for any other user: all names in the script belong to this user."""
    return statement("session", "guard", user=literal(user), message=literal(f"VENUS: run this script as user {user}"))


def _paragraph(step: InstallStep) -> str:
    """Return one step of a script: its purpose, the statement, and COMMIT unless it is DDL."""
    commits = "" if step.sql.startswith(("CREATE", "ALTER", "DROP")) else "COMMIT;\n"
    return f"{purpose_comment(step)}{_terminate(step.sql)}{commits}"


def _terminate(sql: str) -> str:
    """Return a statement or a block with the terminator that SQL*Plus needs."""
    return f"{sql}\n/\n" if sql.endswith("END;") else f"{sql};\n"
