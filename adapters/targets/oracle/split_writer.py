"""The session in which a task of a load writes the rows of its split into an Oracle target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from venus.adapters.targets.oracle import rowsql
from venus.adapters.targets.oracle.session import OracleTargetSession
from venus.adapters.targets.relational.split_writer import StatementSplitWriter

if TYPE_CHECKING:
    from pydantic import SecretStr


def open_split_writer(url: str | SecretStr, *, application: str, business: str, target: str) -> StatementSplitWriter:
    """Connect to a target, and return a writer of the rows of splits."""
    return StatementSplitWriter(OracleTargetSession(url, application=application, target=target), rowsql)
