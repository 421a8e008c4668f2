"""Writing the rows of a load's splits into a MariaDB or MySQL target (VENUS 3.3, offset -1).

The rows of a split are one LOAD DATA, whose lines are built while the server stores the previous lines. If the server
would change a value, or does not allow LOAD DATA, the sections are written one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from venus.adapters.targets.mysql import rowsql
from venus.adapters.targets.mysql.session import MysqlSession
from venus.adapters.targets.relational.session import Refusal
from venus.adapters.targets.relational.split_writer import StatementSplitWriter
from venus.codec.copy_text import messages_to_copy
from venus.codec.row_bytes import Layout
from venus.codec.stored_rows import HEAD_BYTES, FullRows
from venus.model import TableSchema

if TYPE_CHECKING:
    from pydantic import SecretStr


class MysqlSplitWriter(StatementSplitWriter):
    """Writer of the rows of splits in one session, with LOAD DATA where the server allows it."""

    def __init__(self, session: MysqlSession) -> None:
        super().__init__(session, rowsql)
        self._loader = session
        #: Whether LOAD DATA was refused: then single sections show which rows are the cause.
        self._is_by_section = False

    def copy(self, placed: Any, schema: TableSchema, sections: Iterator[FullRows]) -> int:
        """Write rows of one version by one LOAD DATA, or section by section; return their number. Raises Refusal."""
        sql = rowsql.row_sql(placed, "")
        if self._is_by_section or not rowsql.can_load(self._loader, sql, schema):
            return super().copy(placed, schema, sections)
        rows = 0

        def lines() -> Iterator[bytes]:
            nonlocal rows
            for section in sections:
                rows += len(section)
                text = messages_to_copy(section.stored.packed, Layout.of(schema), head=HEAD_BYTES)
                yield rowsql.escape_for_load(text)

        if self._loader.load_rows(rowsql.load_statement(sql, schema), lines()) != rows:
            self._is_by_section = True
            raise Refusal("the server would change a value", "HY000")
        return rows


def open_split_writer(url: str | SecretStr, *, application: str, business: str, target: str) -> MysqlSplitWriter:
    """Connect to a target, and return a writer of the rows of splits."""
    return MysqlSplitWriter(MysqlSession(url, application=application, target=target))
