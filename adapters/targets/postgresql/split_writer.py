"""Writing the rows of a load's splits into a PostgreSQL target (VENUS 3.3, offset -1).

The rows of a split are one stream of COPY lines; new lines are built while the target receives the previous lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from venus.adapters.targets.postgresql.naming import OWN_SCHEMA, PlacedTable
from venus.adapters.targets.postgresql.rows.searching import RefusedRowSearch
from venus.adapters.targets.postgresql.rowsql import RowSql, copy_rows, copy_statement, full_rows_text
from venus.adapters.targets.postgresql.session import (
    TargetSession,
    open_marked_session,
    statement,
    try_replica_role,
)
from venus.adapters.targets.relational.verdicts import RefusedChange
from venus.adapters.under.row_changes import RowChanges
from venus.codec.batch import TableChanges
from venus.codec.row_bytes import Layout
from venus.codec.stored_rows import FullRows
from venus.errors import DatabaseUnavailable
from venus.model import TableSchema

if TYPE_CHECKING:
    from pydantic import SecretStr


class CopyLines:
    """Sections of one schema version as a file of COPY lines that the driver reads."""

    def __init__(self, placed: PlacedTable, schema: TableSchema, sections: Iterator[FullRows]) -> None:
        self._placed = placed
        self._schema = schema
        self._sections = sections
        self._error: BaseException | None = None
        self.rows = 0

    def copy(self, session: TargetSession) -> None:
        """COPY all lines. Raises the error of the rows' source instead of the driver's error that follows from it."""
        try:
            session.copy_from(copy_statement(self._placed.sql, self._placed, self._schema), self)
        except DatabaseUnavailable:
            if self._error is not None:
                raise self._error from None
            raise

    def read(self, size: int) -> bytes:
        """Return all lines of the next section, regardless of `size`."""
        try:
            section = next(self._sections, None)
        except BaseException as error:
            self._error = error
            raise
        if section is None:
            return b""
        self.rows += len(section)
        return full_rows_text(self._placed, section, self._schema)


class PostgresSplitWriter:
    """Writer of the rows of splits in one session, with COPY."""

    def __init__(self, session: TargetSession) -> None:
        self.session = session
        try_replica_role(session)

    def own_sql(self, name: str) -> str:
        """Return a block of own.sql."""
        return statement("own", name, own=OWN_SCHEMA)

    def commit_early(self) -> None:
        """Commit without waiting for the disk; a crash of the server may lose the transaction."""
        self.session.run("SET LOCAL synchronous_commit = off; COMMIT")

    def copy(self, placed: PlacedTable, schema: TableSchema, sections: Iterator[FullRows]) -> int:
        """Write rows of version `schema`, and return their number. Raises Refusal."""
        lines = CopyLines(placed, schema, sections)
        lines.copy(self.session)
        return lines.rows

    def copy_changes(self, placed: PlacedTable, section: TableChanges, schema: TableSchema) -> None:
        """Write the rows of a section of version `schema`. Raises Refusal."""
        copy_rows(self.session, placed.sql, placed, section, schema)

    def find_refused(
        self, placed: PlacedTable, schema: TableSchema, rows: RowChanges, limit: int
    ) -> list[RefusedChange]:
        """Return at most `limit` of the rows that the target refuses."""
        sql = RowSql(placed, "")
        return RefusedRowSearch(session=self.session, sql=sql, layout=Layout.of(schema), limit=limit).find_refused(
            [rows]
        )

    def close(self) -> None:
        """Close the session."""
        self.session.close()


def open_split_writer(url: str | SecretStr, *, application: str, business: str, target: str) -> PostgresSplitWriter:
    """Connect to the target, and return a writer of splits."""
    return PostgresSplitWriter(open_marked_session(url, application, business=business, target=target))
