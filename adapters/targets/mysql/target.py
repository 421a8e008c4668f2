"""A MariaDB or MySQL database as a `Target` for the commands, and as a side of a comparison."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

from venus.adapters.targets.contract import Target, TargetCapabilities, TargetDdl, require_capability
from venus.adapters.targets.mysql import ddl
from venus.adapters.targets.mysql.database import MysqlDatabase
from venus.adapters.targets.mysql.verify import FollowerReader, MysqlTargetReader
from venus.adapters.targets.relational.row_database import build_target_ddl, list_left_out
from venus.adapters.targets.relational.target import RelationalTarget
from venus.adapters.targets.switching import OLD
from venus.config import Settings
from venus.model import Finding, TableSchema

if TYPE_CHECKING:
    from venus.adapters.dialects.contract import Numbering, OtherObject
    from venus.adapters.targets.contract import TargetReader
    from venus.adapters.targets.cutover_contract import CutoverTarget, FallBackSide

CAPABILITIES = TargetCapabilities(
    kind="a MariaDB or MySQL database",
    pauses_tables=True,
    quarantines=True,
    prints_ddl=True,
    loads_by_runner=True,
    loads_while_read=True,
    verifies=True,
    filters=True,
    masks=True,
)


#: Of the database that was the application's: it can become that again.
OLD_CAPABILITIES = replace(CAPABILITIES, cuts_over=True, falls_back=True)


def open_target(settings: Settings, name: str) -> Target:
    """Return the target; it connects to the database on first use."""
    return MysqlTarget(settings, name)


class MysqlTarget(RelationalTarget):
    """A MariaDB or MySQL database that is target `name` of the configuration."""

    capabilities = CAPABILITIES

    def __init__(self, settings: Settings, name: str) -> None:
        super().__init__(settings, name)
        self._target = MysqlDatabase(settings, name)
        if name == OLD:
            self.capabilities = OLD_CAPABILITIES

    def check(self, schemas: Seq[TableSchema]) -> list[Finding]:
        return self.check_projected(schemas, self._target.check)

    def require_fit(self, schemas: Seq[TableSchema]) -> None:
        self._target.refuse_unfit(self.project(schemas))

    def build_ddl(self, schemas: Seq[TableSchema], numberings: Seq[Numbering], others: Seq[OtherObject]) -> TargetDdl:
        if self._target.application is not None:  # its tables are there, as they were
            return TargetDdl(text="", statements=(), later=(), left_out=())
        placed = self._target.place_all(self.project(schemas))
        left_out = list_left_out(placed)
        left_out += [f"{o.kind} {o.name}: code and views are for you to carry over" for o in others]
        statements = [
            *(ddl.create_table(one, is_mariadb=True) for one in placed),
            *(text for one in placed for text in ddl.index_statements(one)),
            *(text for one in placed for text in ddl.foreign_key_statements(one, placed)),
        ]
        return build_target_ddl(ddl.file_heads(self.name), statements, left_out)

    def open_reader(self) -> TargetReader:
        return MysqlTargetReader(self._target) if self._target.application is None else FollowerReader(self._target)

    # -- cut-over ------------------------------------------------------------------------------------------------------

    def open_cutover(self) -> AbstractContextManager[CutoverTarget]:
        require_capability(self, "cuts_over")
        from venus.adapters.targets.mysql.cutover.cutover_session import open_cutover

        return open_cutover(self._target)

    def open_side(self) -> FallBackSide:
        require_capability(self, "falls_back")
        from venus.adapters.targets.mysql.cutover.side import MysqlSide

        return MysqlSide(self._settings, self.name)
