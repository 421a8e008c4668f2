"""Names and literals in MySQL's spelling. Pure.

Everything that VENUS makes carries the table's number in the registry, never the table's own name, so no name is ever
over 30 bytes and a renamed table keeps its triggers. MySQL's schema is the database, so the names carry a prefix.
"""

from __future__ import annotations

import re

from pymysql.converters import escape_string

PREFIX = "venus_"
HEARTBEAT = "venus_heartbeat"
#: Remembers by which number InnoDB knew each captured table: TRUNCATE gives it another one.
MARKS = "venus_innodb_table"
OWN_TABLE = re.compile(r"venus_(checkpoint|batch|captured_table|heartbeat|alembic_version|innodb_table)")
LOG_TABLE = re.compile(r"venus_l_(\d{5,})")
#: The comment that a log table is made with begins so; the name alone would be a guess.
_LOG_COMMENT = re.compile(r"k1 \w")
TRIGGER = re.compile(r"venus_[iudxyz]_(\d{5,})(_[0-9a-f]{8})?")


def quoted(name: str) -> str:
    """Return an identifier, always quoted."""
    return "`" + name.replace("`", "``") + "`"


def literal(value: str | int | bytes | None) -> str:
    """Return a value as SQL; our sessions escape with backslashes."""
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(value)
    return f"X'{value.hex()}'" if isinstance(value, bytes) else f"'{escape_string(value)}'"


def log_table(table_id: int) -> str:
    """Return where the keys of changed rows of a table wait."""
    return f"{PREFIX}l_{table_id:05}"


def is_log(name: str, comment: str) -> bool:
    """Whether a table is a log that VENUS has made."""
    return bool(LOG_TABLE.fullmatch(name) and _LOG_COMMENT.match(comment))


def is_own_table(name: str, comment: str) -> bool:
    """Whether VENUS has made a table."""
    return bool(OWN_TABLE.fullmatch(name)) or is_log(name, comment)


def is_own_trigger(name: str, body: str) -> bool:
    """Whether VENUS has made a trigger: it writes into the log of the number in its name."""
    found = TRIGGER.fullmatch(name)
    return found is not None and f".{log_table(int(found[1]))} (" in body


def log_keys(count: int) -> list[str]:
    """Return the key columns of a log table."""
    return [f"k{i}" for i in range(1, count + 1)]


def trigger(event: str, table_id: int, path: str = "") -> str:
    """Return a trigger: i, u, d on the table itself; x, y, z on a table whose foreign key reaches it (cascades.py)."""
    return f"{PREFIX}{event}_{table_id:05}" + (f"_{path}" if path else "")
