"""A SQLite file as a `Target` for the commands, and as a side of a comparison."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

from venus.adapters.targets.contract import Target, TargetCapabilities, TargetDdl
from venus.adapters.targets.relational.row_database import build_target_ddl, list_left_out
from venus.adapters.targets.relational.target import RelationalTarget
from venus.adapters.targets.sqlite import ddl
from venus.adapters.targets.sqlite.database import SqliteDatabase
from venus.adapters.targets.sqlite.verify import SqliteTargetReader
from venus.config import Settings
from venus.model import Finding, TableSchema

if TYPE_CHECKING:
    from venus.adapters.dialects.contract import Numbering, OtherObject
    from venus.adapters.targets.contract import TargetReader

CAPABILITIES = TargetCapabilities(
    kind="a SQLite file",
    pauses_tables=True,
    quarantines=True,
    prints_ddl=True,
    loads_while_read=True,
    verifies=True,
    filters=True,
    masks=True,
)


def open_target(settings: Settings, name: str) -> Target:
    """Return the target; it opens the file on first use."""
    return SqliteTarget(settings, name)


class SqliteTarget(RelationalTarget):
    """A SQLite file that is target `name` of the configuration."""

    capabilities = CAPABILITIES

    def __init__(self, settings: Settings, name: str) -> None:
        super().__init__(settings, name)
        self._target = SqliteDatabase(settings, name)

    def check(self, schemas: Seq[TableSchema]) -> list[Finding]:
        return self.check_projected(schemas, self._target.check)

    def require_fit(self, schemas: Seq[TableSchema]) -> None:
        self._target.refuse_unfit(self.project(schemas))

    def build_ddl(self, schemas: Seq[TableSchema], numberings: Seq[Numbering], others: Seq[OtherObject]) -> TargetDdl:
        placed = self._target.place_all(self.project(schemas))
        left_out = list_left_out(placed)
        left_out += [f"{o.kind} {o.name}: code and views are for you to carry over" for o in others]
        statements = [
            *(ddl.create_table(one, placed) for one in placed),
            *(text for one in placed for text in ddl.index_statements(one)),
        ]
        return build_target_ddl(ddl.file_heads(self.name), statements, left_out)

    def open_reader(self) -> TargetReader:
        return SqliteTargetReader(self._target)
