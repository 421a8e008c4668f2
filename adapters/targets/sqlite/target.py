"""A SQLite file as a `Target` for the commands, and as a side of a comparison."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from venus.adapters.targets.contract import Target, TargetReader
from venus.adapters.targets.relational.row_target import RowTarget, row_capabilities
from venus.adapters.targets.sqlite import ddl
from venus.adapters.targets.sqlite.database import SqliteDatabase
from venus.adapters.targets.sqlite.ddl import SqlitePlacedTable
from venus.adapters.targets.sqlite.verify import SqliteTargetReader
from venus.config import Settings


def open_target(settings: Settings, name: str) -> Target:
    """Return the target; it opens the file on first use."""
    return SqliteTarget(settings, name)


class SqliteTarget(RowTarget):
    """A SQLite file that is target `name` of the configuration."""

    capabilities = row_capabilities("a SQLite file", loads_by_runner=False)

    def __init__(self, settings: Settings, name: str) -> None:
        super().__init__(settings, name, SqliteDatabase(settings, name))

    def file_heads(self) -> list[str]:
        return ddl.file_heads(self.name)

    def ddl_statements(self, placed: Seq[SqlitePlacedTable]) -> list[str]:
        return [
            *(ddl.create_table(one, placed) for one in placed),
            *(text for one in placed for text in ddl.index_statements(one)),
        ]

    def open_reader(self) -> TargetReader:
        return SqliteTargetReader(self._target)
