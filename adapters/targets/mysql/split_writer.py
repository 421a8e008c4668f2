"""Connection of the tasks of a load to a MariaDB or MySQL target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from venus.adapters.targets.mysql import rowsql
from venus.adapters.targets.mysql.session import MysqlSession
from venus.adapters.targets.relational.split_writer import StatementSplitWriter

if TYPE_CHECKING:
    from pydantic import SecretStr


def open_split_writer(url: str | SecretStr, *, application: str, target: str) -> StatementSplitWriter:
    """Connect to the target."""
    return StatementSplitWriter(MysqlSession(url, application=application, target=target), rowsql, rowsql.statement)
