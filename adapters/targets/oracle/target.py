"""An Oracle database as a `Target` for the commands, and as a side of a comparison."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from venus.adapters.targets.contract import Target, TargetReader, require_capability
from venus.adapters.targets.oracle import ddl
from venus.adapters.targets.oracle.database import OracleTargetDatabase
from venus.adapters.targets.oracle.ddl import OraclePlacedTable
from venus.adapters.targets.oracle.verify import OracleFollowerReader, OracleTargetReader
from venus.adapters.targets.relational.row_target import RowTarget, row_capabilities
from venus.config import Settings

if TYPE_CHECKING:
    from venus.adapters.targets.cutover_contract import CutoverTarget, FallBackSide

CAPABILITIES = row_capabilities("an Oracle database", loads_by_runner=True)


def open_target(settings: Settings, name: str) -> Target:
    """Return the target; it connects to the database on first use."""
    return OracleTarget(settings, name)


class OracleTarget(RowTarget):
    """An Oracle database that is target `name` of the configuration."""

    capabilities = CAPABILITIES

    def __init__(self, settings: Settings, name: str) -> None:
        super().__init__(settings, name, OracleTargetDatabase(settings, name))

    def file_heads(self) -> list[str]:
        return ddl.file_heads(self.name)

    def ddl_statements(self, placed: Seq[OraclePlacedTable]) -> list[str]:
        return [
            *(text for one in placed for text in (ddl.create_table(one), *ddl.comment_statements(one))),
            *(text for one in placed for text in ddl.index_statements(one)),
            *(text for one in placed for text in ddl.foreign_key_statements(one, placed)),
        ]

    def open_reader(self) -> TargetReader:
        return (
            OracleTargetReader(self._target) if self._target.application is None else OracleFollowerReader(self._target)
        )

    # -- cut-over ------------------------------------------------------------------------------------------------------

    def open_cutover(self) -> AbstractContextManager[CutoverTarget]:
        require_capability(self, "cuts_over")
        from venus.adapters.targets.oracle.cutover.cutover_session import OracleCutover

        return OracleCutover.open(self._target)

    def open_side(self) -> FallBackSide:
        require_capability(self, "falls_back")
        from venus.adapters.targets.oracle.cutover.side import OracleSide

        return OracleSide(self._settings, self.name)
