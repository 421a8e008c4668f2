"""SQL of the Oracle source: the named blocks of this folder, names and literals in Oracle's syntax.

Every name that VENUS creates is at most 30 bytes long, the limit of Oracle before 12.2.
"""

from __future__ import annotations

from venus.adapters.dialects.statements import BLOCK_END, Statements

NAME_BYTES_MAX = 30
HEARTBEAT = "VENUS_HEARTBEAT"
#: The column that marks archived rows in a table with ROW ARCHIVAL.
ARCHIVE_STATE = "ORA_ARCHIVE_STATE"
DDL_TRIGGER = "VENUS_DDL_TRG"
#: Tables of a database that may follow another one: the record of its role; the constraints and triggers switched off.
SIDE, SWITCHED_OFF = "VENUS_SIDE", "VENUS_SWITCHED_OFF"
#: Prefix of the names of the staging tables of such a database.
FOLLOWER_TABLES = "venus_"
_CLIENT_INFO_BYTES = 64
#: The letters in the names of a table's triggers, in the order of their creation.
TRIGGER_LETTERS = ("I", "U", "D")


def quote(name: str) -> str:
    """Return a name of the dictionary in quotes. Oracle's names cannot contain a quote."""
    return f'"{name}"'


def literal(value: str | int | bytes | None) -> str:
    """Return a value as a literal of SQL; bytes only up to 1000, longer ones must be bound."""
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, bytes):
        return f"HEXTORAW('{value.hex()}')"
    return "'" + value.replace("'", "''") + "'"


def tablespace_clause(name: str) -> str:
    """Return the clause that places a segment; an ordinary name is written as Oracle stores it."""
    return f" TABLESPACE {quote(name.upper() if name.isidentifier() else name)}" if name else ""


def log_table_name(table_id: int) -> str:
    """Return the name of a table's log."""
    return f"VENUS_L_{table_id:05}"


def trigger_name(letter: str, table_id: int) -> str:
    """Return the name of a table's trigger by the letter of its event, I, U or D; other letters name other objects."""
    return f"VENUS_{letter}_{table_id:05}"


def log_key_columns(count: int) -> list[str]:
    """Return the names of the key columns of a log table."""
    return [f"K{n}" for n in range(1, count + 1)]


def applying_mark(user: str) -> str:
    """Return the client info by which triggers of this user recognise sessions that apply another side's changes."""
    return f"VENUS applies for {user}".encode()[:_CLIENT_INFO_BYTES].decode(errors="ignore")


statement = Statements(__name__, block_end=BLOCK_END)
