"""An Oracle database as a `Target` for the commands, and as a side of a comparison."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from venus.adapters.targets.contract import Target, TargetReader
from venus.adapters.targets.oracle import ddl
from venus.adapters.targets.oracle.database import OracleTargetDatabase
from venus.adapters.targets.oracle.ddl import OraclePlacedTable
from venus.adapters.targets.oracle.verify import OracleTargetReader
from venus.adapters.targets.relational.row_target import RowTarget, row_capabilities
from venus.config import Settings


def open_target(settings: Settings, name: str) -> Target:
    """Return the target; it connects to the database on first use."""
    return OracleTarget(settings, name)


class OracleTarget(RowTarget):
    """An Oracle database that is target `name` of the configuration."""

    capabilities = row_capabilities("an Oracle database", loads_by_runner=True)

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
        return OracleTargetReader(self._target)
