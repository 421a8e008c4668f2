"""What VENUS has made in a file: its registry numbers the log tables and triggers. A name alone says nothing."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection
from dataclasses import dataclass

_FIXED = re.compile(r"venus_(checkpoint|batch|captured_table|heartbeat|alembic_version)")
_NUMBERED = re.compile(r"venus_(?:l|i|k|u|d|iv\d+|uv\d+)_(\d{5,})")
_COLUMNS = {"table_id", "schema_wire", "fingerprint", "state"}


@dataclass(frozen=True, slots=True)
class Owned:
    """The numbers of the captured tables; installations happen whole or not at all, so they are complete."""

    numbers: Collection[int]

    def has(self, name: str) -> bool:
        """Whether VENUS has made the table or trigger of this name."""
        return bool(_FIXED.fullmatch(name)) or self.has_numbered(name)

    def has_numbered(self, name: str) -> bool:
        """Whether it is a log table or a trigger of a captured table."""
        found = _NUMBERED.fullmatch(name)
        return found is not None and int(found[1]) in self.numbers


def number_in(name: str) -> int | None:
    """Return the number that a name would have if it were VENUS's."""
    found = _NUMBERED.fullmatch(name)
    return int(found[1]) if found else None


def read(connection: sqlite3.Connection) -> Owned:
    """Look into the registry, if there is one."""
    columns = {row[1] for row in connection.execute("PRAGMA main.table_info('venus_captured_table')")}
    if not columns >= _COLUMNS:
        return Owned(frozenset())
    return Owned({row[0] for row in connection.execute("SELECT table_id FROM main.venus_captured_table")})
