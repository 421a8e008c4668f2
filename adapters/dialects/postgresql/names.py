"""Names and literals in PostgreSQL's spelling. Pure.

Everything that VENUS makes carries the table's number in the registry, never the table's own name, so no name is
ever over 30 bytes and a renamed table keeps its triggers.
"""

from __future__ import annotations

#: The schema of VENUS's own tables, of the log tables and of the trigger functions.
OWN_SCHEMA = "venus"


def quoted(name: str) -> str:
    """Return an identifier, always quoted: reserved words, capitals and blanks need no list."""
    return '"' + name.replace('"', '""') + '"'


def qualified(namespace: str, name: str) -> str:
    """Return schema.table, quoted."""
    return f"{quoted(namespace)}.{quoted(name)}"


def literal(text: str) -> str:
    """Return a string literal that means the same in every session: in the application's, a backslash may escape."""
    escaped = text.replace("'", "''")
    return "E'" + escaped.replace("\\", "\\\\") + "'" if "\\" in text else f"'{escaped}'"


def log_table(table_id: int) -> str:
    """Return where the keys of changed rows of a table wait."""
    return f"{OWN_SCHEMA}.l_{table_id:05}"


def log_keys(count: int) -> list[str]:
    """Return the key columns of a log table."""
    return [f"k{i}" for i in range(1, count + 1)]


def function(table_id: int) -> str:
    """Return the trigger function of a table."""
    return f"{OWN_SCHEMA}.f_{table_id:05}"


def partition_function(table_id: int) -> str:
    """Return the function that logs the keys of a partition before it is truncated."""
    return f"{OWN_SCHEMA}.p_{table_id:05}"


def functions(table_id: int) -> tuple[str, str]:
    """Return every function that may be made for a table."""
    return function(table_id), partition_function(table_id)


def trigger(event: str, table_id: int) -> str:
    """Return a trigger: i, u, d per statement, r per row, t and b after and before TRUNCATE, p of a partition."""
    return f"venus_{event}_{table_id:05}"
