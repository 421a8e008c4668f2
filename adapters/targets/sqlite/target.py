"""A SQLite file as a `Target` for the commands."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from venus.adapters.targets.contract import Target, require_capability
from venus.adapters.targets.relational.row_target import RowTarget, row_capabilities
from venus.adapters.targets.sqlite import ddl
from venus.adapters.targets.sqlite.database import SqliteDatabase
from venus.adapters.targets.sqlite.ddl import SqlitePlacedTable
from venus.adapters.targets.sqlite.verify import SqliteFollowerReader, SqliteTargetReader
from venus.config import Settings

if TYPE_CHECKING:
    from venus.adapters.targets.contract import TargetReader
    from venus.adapters.targets.cutover_contract import CutoverTarget, FallBackSide

CAPABILITIES = row_capabilities("a SQLite file", loads_by_runner=False)


def open_target(settings: Settings, name: str) -> Target:
    """Return the target; it opens the file on first use."""
    return SqliteTarget(settings, name)


class SqliteTarget(RowTarget):
    """A SQLite file that is target `name` of the configuration."""

    capabilities = CAPABILITIES

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
        is_plain = self._target.application is None
        return SqliteTargetReader(self._target) if is_plain else SqliteFollowerReader(self._target)

    # -- cut-over ------------------------------------------------------------------------------------------------------

    def open_cutover(self) -> AbstractContextManager[CutoverTarget]:
        require_capability(self, "cuts_over")
        from venus.adapters.targets.sqlite.cutover.cutover_session import SqliteCutover

        return SqliteCutover.open(self._target)

    def open_side(self) -> FallBackSide:
        require_capability(self, "falls_back")
        from venus.adapters.targets.sqlite.cutover.side import SqliteSide

        return SqliteSide(self._settings, self.name)
