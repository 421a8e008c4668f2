"""How wide the key columns of the log tables are. Pure but for what reads it.

A key that becomes wider than its log would fail the application's statements, so logs have the widest form of each
type. Those that an older version has made as wide as the key was then are widened by the next installation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from venus.adapters.dialects.oracle.connection import Session
from venus.adapters.dialects.oracle.ddl import Keyed
from venus.adapters.dialects.oracle.names import log_keys, log_table
from venus.adapters.dialects.oracle.statements import statement

_TYPE = re.compile(r"(?P<name>[A-Z0-9]+)(?:\((?P<width>\d+)(?: CHAR)?\))?")
#: What a type can be turned into while the table has rows.
_WIDENS_TO = {"CHAR": "VARCHAR2", "NCHAR": "NVARCHAR2"}
_UNLIMITED = 1 << 30


def read(session: Session) -> dict[str, dict[str, str]]:
    """Return how the key columns of the log tables are declared, by table and column."""
    found: dict[str, dict[str, str]] = {}
    for table, column, data_type, chars, octets, precision in session.rows(statement("dictionary", "log_columns")):
        found.setdefault(str(table), {})[str(column)] = _spelled(str(data_type), chars, octets, precision)
    return found


def _spelled(data_type: str, chars: object, octets: object, precision: object) -> str:
    if "CHAR" in data_type:
        return f"{data_type}({chars})"
    if data_type == "RAW":
        return f"RAW({octets})"
    return f"NUMBER({precision})" if data_type == "NUMBER" and precision is not None else data_type


def narrower(table: Keyed, table_id: int, there: dict[str, dict[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the columns of a table's log that are narrower than they should be, and what they should be."""
    columns = there.get(log_table(table_id), {})
    for column, key in zip(log_keys(len(table.key)), table.key, strict=True):
        if column in columns and _is_narrower(columns[column], key.log_type):
            yield column, key.log_type


def _is_narrower(there: str, wanted: str) -> bool:
    (name, width), (to, limit) = _parts(there), _parts(wanted)
    return _WIDENS_TO.get(name, name) == to and (name != to or width < limit)


def _parts(spelled: str) -> tuple[str, int]:
    found = _TYPE.fullmatch(spelled)
    assert found is not None, spelled
    return found["name"], int(found["width"] or _UNLIMITED)


def widen(table_id: int, column: str, to: str) -> str:
    """Return the statement that widens a column of a log."""
    return statement("triggers", "wider_column", log=log_table(table_id), column=column, type=to)
