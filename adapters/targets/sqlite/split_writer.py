"""The session in which a task of a load writes the rows of its split into a SQLite target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from venus.adapters.targets.relational.split_writer import StatementSplitWriter
from venus.adapters.targets.sqlite import rowsql
from venus.adapters.targets.sqlite.session import SqliteSession

if TYPE_CHECKING:
    from pydantic import SecretStr


def open_split_writer(url: str | SecretStr, *, application: str, business: str, target: str) -> StatementSplitWriter:
    """Open the target's file, and return a writer of the rows of splits."""
    return StatementSplitWriter(SqliteSession(url, group="", target=target), rowsql)
