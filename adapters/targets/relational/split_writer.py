"""Writer of the rows of a load's splits into a target without a COPY (VENUS 3.3, offset -1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from venus.adapters.targets.relational.place import OWN, RelationalPlace
from venus.adapters.targets.relational.row_statements import RowSession, RowStatements, require_all
from venus.adapters.targets.relational.session import Refusal
from venus.adapters.targets.relational.verdicts import RefusedChange, find_refused
from venus.adapters.under.row_changes import RowChanges
from venus.codec.batch import TableChanges
from venus.codec.stored_rows import FullRows
from venus.model import TableSchema


class StatementSplitWriter:
    """Writer of the rows of splits in one session, for a target without COPY."""

    def __init__(self, session: RowSession, statements: RowStatements) -> None:
        self.session = session
        self._statements = statements

    def own_sql(self, name: str) -> str:
        """Return a block of own.sql."""
        return self._statements.statement("own", name, own=OWN)

    def commit_early(self) -> None:
        """Commit."""
        self.session.run("COMMIT")

    def copy(self, placed: RelationalPlace, schema: TableSchema, sections: Iterator[FullRows]) -> int:
        """Write rows of version `schema`, and return their number. Raises Refusal."""
        rows = 0
        for section in sections:
            self.copy_changes(placed, section.changes, schema)
            rows += len(section)
        return rows

    def copy_changes(self, placed: RelationalPlace, section: TableChanges, schema: TableSchema) -> None:
        """Write the rows of a section of version `schema`. Raises Refusal."""
        if section.count:
            insert, sql = self._statements.insert_rows, self._statements.row_sql(placed, "")
            require_all(insert(self.session, sql, schema, section.record_ids, section.rows), section.count)

    def find_refused(
        self, placed: RelationalPlace, schema: TableSchema, rows: RowChanges, limit: int
    ) -> list[RefusedChange]:
        """Return at most `limit` of the rows that the target refuses."""
        insert, sql = self._statements.insert_rows, self._statements.row_sql(replace(placed, schema=schema), "")

        def probe(part: RowChanges) -> Refusal | None:
            """Insert these rows under a savepoint; if the target refuses one, undo that and return the refusal."""
            self.session.run("SAVEPOINT venus_probe")
            try:
                require_all(insert(self.session, sql, schema, part.record_ids, part.rows), len(part))
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
