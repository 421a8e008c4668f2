"""Session of the tasks of a load with a SQLite target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from venus.adapters.targets.relational.split_writer import StatementSplitWriter
from venus.adapters.targets.sqlite import rowsql
from venus.adapters.targets.sqlite.session import SqliteSession

if TYPE_CHECKING:
    from pydantic import SecretStr


def open_split_writer(url: str | SecretStr, *, application: str, business: str, target: str) -> StatementSplitWriter:
    """Open the file."""
    return StatementSplitWriter(SqliteSession(url, group="", target=target), rowsql)
