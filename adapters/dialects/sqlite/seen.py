"""What capture has seen of the dictionary: tells what ALTER TABLE did to values while the columns look as before.

No trigger fires for a column that is dropped and added again, for two that trade names, or for another expression of a
generated column. What is left is the text of CREATE TABLE, which ALTER TABLE edits, and `schema_version`, which every
statement of DDL raises by one: dropping and adding may end in the same text, but takes two (capture.md 7).
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from dataclasses import asdict, dataclass, field

from venus.adapters.dialects.sqlite.statements import statement

#: VACUUM, ANALYZE and what edits other objects raise the number and leave all names as they were.
_UNEXPLAINED_MAX = 1
#: One statement renames or drops such a table with all that belong to it.
_SEVERAL_AT_ONCE = ("virtual", "shadow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The dictionary at one moment."""

    version: int
    #: Of everything that has a text, by type and name: how many columns it has, 0 if it is no table.
    columns: dict[str, int] = field(default_factory=dict)
    #: A digest of each table's text.
    texts: dict[str, str] = field(default_factory=dict)


def now(connection: sqlite3.Connection) -> Look:
    """Look at the dictionary; open a transaction around it."""
    kinds = {name: kind for name, kind, *_ in connection.execute(statement("dictionary", "tables"))}
    look = Look(version=int(connection.execute(statement("dictionary", "schema_version")).fetchone()[0]))
    for kind, name, _, sql in connection.execute(statement("dictionary", "objects")).fetchall():
        is_table = kind == "table"
        if not sql or (is_table and kinds.get(name) in _SEVERAL_AT_ONCE):
            continue
        look.columns[_object(kind, name)] = 0
        if is_table:
            width = connection.execute(statement("dictionary", "width"), (name,)).fetchone()[0]
            look.columns[_object(kind, name)] = width
            look.texts[_object(kind, name)] = hashlib.blake2b(sql.encode(), digest_size=8).hexdigest()
    return look


def _object(kind: str, name: str) -> str:
    return f"{kind} {name}"


def noted(connection: sqlite3.Connection) -> Look | None:
    """Return the look that was noted last; an installation of an older version has none."""
    row = connection.execute(statement("registry", "look")).fetchone()
    return Look(**json.loads(row[0])) if row and row[0] else None


def note(connection: sqlite3.Connection, look: Look) -> None:
    """Keep a look, beside the fingerprint of VENUS's own table, which nobody reads: older versions go on working."""
    connection.execute(statement("registry", "note_look"), (json.dumps(asdict(look)),))


def altered(before: Look | None, look: Look, table: str) -> bool:
    """Say whether ALTER TABLE may have given rows of a table other values. When in doubt, it has."""
    this = _object("table", table)
    if before is None or this not in before.columns or this not in look.columns:
        return False
    gone = before.columns[this] - look.columns[this]
    own = look.version - before.version - _elsewhere(before, look, this)
    if gone > 0:
        return own != gone  # with one more, what is left may have another column's name
    return before.texts[this] != look.texts[this] or not 0 <= own <= _UNEXPLAINED_MAX


def _elsewhere(before: Look, look: Look, this: str) -> int:
    """Return how many statements at least went to other objects.

    One makes at most one name or gives it another number of columns, and one drops or renames at most one table.
    """
    made = sum(before.columns.get(name) != width for name, width in look.columns.items() if name != this)
    dropped = sum(width > 0 and name not in look.columns for name, width in before.columns.items())
    return max(made, dropped)
