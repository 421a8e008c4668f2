"""Names and literals as Oracle writes them. Pure.

Every name of VENUS's own is at most 30 bytes long, which is what Oracle allows before 12.2 (capture.md 4).
"""

from __future__ import annotations

NAME_BYTES_MAX = 30
HEARTBEAT = "VENUS_HEARTBEAT"
#: Says which rows are archived, in a table with ROW ARCHIVAL.
ARCHIVE_STATE = "ORA_ARCHIVE_STATE"
DDL_TRIGGER = "VENUS_DDL_TRG"
#: Table number -> trigger name, in the order in which they are made.
TRIGGER_LETTERS = ("I", "U", "D")
#: The one trigger that stands for the three where the URL asks for it.
COMPOUND_LETTER = "C"


def quoted(name: str) -> str:
    """Return a name as the dictionary spells it, quoted. Oracle has no way to write a quote inside one."""
    return f'"{name}"'


def literal(value: str | int | bytes | None) -> str:
    """Return a value as SQL; bytes up to 1000 only, longer ones are bound."""
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, bytes):
        return f"HEXTORAW('{value.hex()}')"
    return "'" + value.replace("'", "''") + "'"


def log_table(table_id: int) -> str:
    """Return the name of a table's log."""
    return f"VENUS_L_{table_id:05}"


def trigger(letter: str, table_id: int) -> str:
    """Return the name of a table's trigger for I, U or D."""
    return f"VENUS_{letter}_{table_id:05}"


def log_keys(count: int) -> list[str]:
    """Return the key columns of a log table."""
    return [f"K{n}" for n in range(1, count + 1)]
