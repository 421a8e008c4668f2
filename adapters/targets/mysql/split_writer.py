"""Writes the rows of a load's splits into a MariaDB or MySQL target (VENUS 3.3, offset -1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from venus.adapters.targets.mysql.naming import OWN, MysqlPlacedTable
from venus.adapters.targets.mysql.rows import require_all
from venus.adapters.targets.mysql.rowsql import MysqlRowSql, insert_rows, statement
from venus.adapters.targets.mysql.session import MysqlSession
from venus.adapters.targets.relational.session import Refusal
from venus.adapters.targets.relational.verdicts import RefusedChange, find_refused
from venus.adapters.under.row_changes import RowChanges
from venus.codec.batch import TableChanges
from venus.codec.stored_rows import FullRows
from venus.model import TableSchema

if TYPE_CHECKING:
    from pydantic import SecretStr


class MysqlSplitWriter:
    """A session that writes the rows of splits."""

    def __init__(self, session: MysqlSession) -> None:
        self.session = session

    def own_sql(self, name: str) -> str:
        """Return a block of own.sql."""
        return statement("own", name, own=OWN)

    def commit_early(self) -> None:
        """Commit."""
        self.session.run("COMMIT")

    def copy(self, placed: MysqlPlacedTable, schema: TableSchema, sections: Iterator[FullRows]) -> int:
        """Write rows of one version, and return their number. Raises Refusal."""
        rows = 0
        for section in sections:
            self.copy_changes(placed, section.changes, schema)
            rows += len(section)
        return rows

    def copy_changes(self, placed: MysqlPlacedTable, section: TableChanges, schema: TableSchema) -> None:
        """Write rows. Raises Refusal."""
        if section.count:
            sql = MysqlRowSql(placed, "")
            require_all(insert_rows(self.session, sql, schema, section.record_ids, section.rows), section.count)

    def find_refused(
        self, placed: MysqlPlacedTable, schema: TableSchema, rows: RowChanges, limit: int
    ) -> list[RefusedChange]:
        """Return at most `limit` of the rows that the target refuses."""
        sql = MysqlRowSql(replace(placed, schema=schema), "")

        def probe(part: RowChanges) -> Refusal | None:
            self.session.run("SAVEPOINT venus_probe")
            try:
                require_all(insert_rows(self.session, sql, schema, part.record_ids, part.rows), len(part))
            except Refusal as refusal:
                self.session.run("ROLLBACK TO SAVEPOINT venus_probe; RELEASE SAVEPOINT venus_probe")
                return refusal
            self.session.run("RELEASE SAVEPOINT venus_probe")
            return None

        self.session.run("SAVEPOINT venus_search")
        try:
            return find_refused(rows, probe, limit)
        finally:
            self.session.run("ROLLBACK TO SAVEPOINT venus_search; RELEASE SAVEPOINT venus_search")

    def close(self) -> None:
        """Close the session."""
        self.session.close()


def open_split_writer(url: str | SecretStr, *, application: str, target: str) -> MysqlSplitWriter:
    """Connect to the target."""
    return MysqlSplitWriter(MysqlSession(url, application=application, target=target))
