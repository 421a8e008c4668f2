"""Session of the tasks of a load with an Oracle target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from venus.adapters.targets.oracle import rowsql
from venus.adapters.targets.oracle.session import OracleTargetSession
from venus.adapters.targets.relational.split_writer import StatementSplitWriter

if TYPE_CHECKING:
    from pydantic import SecretStr


def open_split_writer(url: str | SecretStr, *, application: str, business: str, target: str) -> StatementSplitWriter:
    """Connect to the target."""
    return StatementSplitWriter(OracleTargetSession(url, application=application, target=target), rowsql)
