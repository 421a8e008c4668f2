"""SQL of the PostgreSQL source: the named blocks of this folder, names and literals in PostgreSQL's spelling.

Names of log tables, functions and triggers contain the table's number in the registry, never its name, so they stay
below 30 bytes, and a renamed table keeps its triggers.
"""

from __future__ import annotations

from venus.adapters.dialects.statements import Statements

#: The schema of VENUS's own tables, of the log tables and of the trigger functions.
OWN_SCHEMA = "venus"


def quote(name: str) -> str:
    """Return an identifier in quotes."""
    return '"' + name.replace('"', '""') + '"'


def qualify(namespace: str, name: str) -> str:
    """Return schema.table in quotes."""
    return f"{quote(namespace)}.{quote(name)}"


def literal(value: str | int | bytes | None) -> str:
    """Return a value as SQL that means the same in every session, even if backslashes escape there."""
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'::bytea"
    escaped = value.replace("'", "''")
    return "E'" + escaped.replace("\\", "\\\\") + "'" if "\\" in value else f"'{escaped}'"


def log_table_name(table_id: int) -> str:
    """Return the name of the log table of a captured table."""
    return f"{OWN_SCHEMA}.l_{table_id:05}"


def log_key_columns(count: int) -> list[str]:
    """Return the names of a log table's key columns."""
    return [f"k{i}" for i in range(1, count + 1)]


def function_name(table_id: int) -> str:
    """Return the name of the trigger function of a table."""
    return f"{OWN_SCHEMA}.f_{table_id:05}"


def partition_function_name(table_id: int) -> str:
    """Return the name of the function that logs the keys of a partition before it is truncated."""
    return f"{OWN_SCHEMA}.p_{table_id:05}"


def function_names(table_id: int) -> tuple[str, str]:
    """Return the names of all functions that a table may have."""
    return function_name(table_id), partition_function_name(table_id)


def trigger_name(event: str, table_id: int) -> str:
    """Return the name of a trigger.

    `event`: i, u or d for a statement trigger, r for a row trigger, t after TRUNCATE, b before TRUNCATE, p for a
    partition.
    """
    return f"venus_{event}_{table_id:05}"


statement = Statements(__name__)
