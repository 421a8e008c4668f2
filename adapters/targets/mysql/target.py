"""A MariaDB or MySQL database as a `Target` for the commands, and as a side of a comparison."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from venus.adapters.targets.contract import Target, require_capability
from venus.adapters.targets.mysql import ddl
from venus.adapters.targets.mysql.database import MysqlDatabase
from venus.adapters.targets.mysql.naming import MysqlPlacedTable
from venus.adapters.targets.mysql.verify import FollowerReader, MysqlTargetReader
from venus.adapters.targets.relational.row_target import RowTarget, row_capabilities
from venus.config import Settings

if TYPE_CHECKING:
    from venus.adapters.targets.contract import TargetReader
    from venus.adapters.targets.cutover_contract import CutoverTarget, FallBackSide

CAPABILITIES = row_capabilities("a MariaDB or MySQL database", loads_by_runner=True)


def open_target(settings: Settings, name: str) -> Target:
    """Return the target; it connects to the database on first use."""
    return MysqlTarget(settings, name)


class MysqlTarget(RowTarget):
    """A MariaDB or MySQL database that is target `name` of the configuration."""

    capabilities = CAPABILITIES

    def __init__(self, settings: Settings, name: str) -> None:
        super().__init__(settings, name, MysqlDatabase(settings, name))

    def file_heads(self) -> list[str]:
        return ddl.file_heads(self.name)

    def ddl_statements(self, placed: Seq[MysqlPlacedTable]) -> list[str]:
        return [
            *(ddl.create_table(one, is_mariadb=True) for one in placed),
            *(text for one in placed for text in ddl.index_statements(one)),
            *(text for one in placed for text in ddl.foreign_key_statements(one, placed)),
        ]

    def open_reader(self) -> TargetReader:
        return MysqlTargetReader(self._target) if self._target.application is None else FollowerReader(self._target)

    # -- cut-over ------------------------------------------------------------------------------------------------------

    def open_cutover(self) -> AbstractContextManager[CutoverTarget]:
        require_capability(self, "cuts_over")
        from venus.adapters.targets.mysql.cutover.cutover_session import MysqlCutover

        return MysqlCutover.open(self._target)

    def open_side(self) -> FallBackSide:
        require_capability(self, "falls_back")
        from venus.adapters.targets.mysql.cutover.side import MysqlSide

        return MysqlSide(self._settings, self.name)
