"""SQL of the MariaDB and MySQL source: the named blocks of this folder, names and literals in MySQL's spelling.

Names of log tables and triggers contain the table's number in the registry, never its name, so they stay below 30
bytes, and a renamed table keeps its triggers. In MySQL a schema is a database, so VENUS's objects have a name prefix
instead of a schema.
"""

from __future__ import annotations

import re

from pymysql.converters import escape_string

from venus.adapters.dialects.statements import Statements

PREFIX = "venus_"
HEARTBEAT = "venus_heartbeat"
#: Table with InnoDB's number of each captured table. TRUNCATE gives the table a new number.
MARKS = "venus_innodb_table"
IDENTITY = "venus_identity"
#: The event that limits the logs.
VALVE = "venus_valve"
#: The dialect's own tables that all logs share, with the block that creates each.
SHARED = {MARKS: "marks_table", IDENTITY: "identity_table"}
#: Record of a database that follows another one, or can be followed by it.
SIDE = "venus_side"
OWN_TABLE = re.compile(r"venus_(checkpoint|batch|captured_table|heartbeat|alembic_version|innodb_table|identity)")
#: Tables of a database that follows another one (targets/mysql): its progress, and the record of the switches.
FOLLOWER_TABLE = re.compile(
    r"venus_(side|cutover|applied|target_table|target_schema|quarantine|sweep|held|load_job|load_manifest|intent"
    r"|(touched|side)_\d+_[0-9a-f]{8})"
)
#: Triggers that reject writes while another database is the application's.
REJECT_TRIGGER = re.compile(r"venus_reject_[iud]_\d{5,}")
LOG_TABLE = re.compile(r"venus_l_(\d{5,})")
#: Beginning of the comment on every log table, which proves that VENUS created it; a name alone does not.
_LOG_COMMENT = re.compile(r"k1 \w")
TRIGGER = re.compile(r"venus_[iudxyz]_(\d{5,})(_[0-9a-f]{8})?")


def quote(name: str) -> str:
    """Return an identifier in quotes."""
    return "`" + name.replace("`", "``") + "`"


def literal(value: str | int | bytes | None) -> str:
    """Return a value as SQL. VENUS's sessions escape with backslashes."""
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(value)
    return f"X'{value.hex()}'" if isinstance(value, bytes) else f"'{escape_string(value)}'"


def log_table_name(table_id: int) -> str:
    """Return the name of the log table of a captured table."""
    return f"{PREFIX}l_{table_id:05}"


def is_log(name: str, comment: str) -> bool:
    """Return whether a table is a log that VENUS created."""
    return bool(LOG_TABLE.fullmatch(name) and _LOG_COMMENT.match(comment))


def is_own_table(name: str, comment: str) -> bool:
    """Return whether VENUS created a table."""
    return bool(OWN_TABLE.fullmatch(name) or FOLLOWER_TABLE.fullmatch(name)) or is_log(name, comment)


def is_own_trigger(name: str, body: str) -> bool:
    """Return whether VENUS created a trigger: it writes to the log with the number in its name."""
    found = TRIGGER.fullmatch(name)
    return found is not None and f".{log_table_name(int(found[1]))} (" in body


def log_key_columns(count: int) -> list[str]:
    """Return the names of a log table's key columns."""
    return [f"k{i}" for i in range(1, count + 1)]


def trigger_name(event: str, table_id: int, path: str = "") -> str:
    """Return the name of a trigger: i, u, d on the table itself; x, y, z on a table whose cascade reaches it."""
    return f"{PREFIX}{event}_{table_id:05}" + (f"_{path}" if path else "")


statement = Statements(__name__)
