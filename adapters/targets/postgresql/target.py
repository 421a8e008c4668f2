"""A PostgreSQL database as a `Target` for the commands, and as a side of a comparison.

A comparison reads the applied offset in the same snapshot as the rows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from venus.adapters.dialects.postgresql.verify import PostgresReader, PostgresTableNames
from venus.adapters.dialects.verify_contract import Subject
from venus.adapters.targets.contract import (
    FollowReporter,
    ReachedOffset,
    ScaledApply,
    Target,
    TargetCapabilities,
    TargetDdl,
)
from venus.adapters.targets.postgresql.database import PostgresDatabase
from venus.adapters.targets.postgresql.naming import quote_literal
from venus.adapters.targets.postgresql.schema.ddl import build_ddl_file, type_sql
from venus.adapters.targets.postgresql.schema.tables import check, refuse_unfit
from venus.adapters.targets.relational.target import RelationalTarget, read_parked_rows, read_reached_offset
from venus.config import Settings
from venus.model import Finding, TableSchema

if TYPE_CHECKING:
    from venus.adapters.dialects.contract import Numbering, OtherObject
    from venus.adapters.targets.contract import TargetReader
    from venus.adapters.targets.cutover_contract import CutoverTarget, FallBackSide
    from venus.process.runners import Runner


class PostgresTargetReader(PostgresReader):
    """A session that reads a target for a comparison."""

    def __init__(self, target: PostgresDatabase) -> None:
        self.target = target
        self._own_session = self.target.connect("verify")
        super().__init__(self._own_session, self._table_names, self._own_session.copy_out)

    def _table_names(self, subject: Subject) -> PostgresTableNames:
        """Return the quoted names and key casts with which a comparison queries a table."""
        placed = self.target.place(subject.schema)
        columns = subject.schema.wire_columns
        return PostgresTableNames(
            relation=placed.rows_sql,
            relation_name=quote_literal(placed.sql),
            columns=tuple(placed.column(c.name) for c in columns),
            casts=tuple(type_sql(c.type, placed.type_names) for c in columns[: len(subject.schema.key)]),
            equals=("=",) * len(subject.schema.key),
        )

    def read_reached_offset(self, subject: Subject) -> ReachedOffset:
        """Return the offset that this table has reached in the snapshot of `begin`."""
        return read_reached_offset(self.target, self._own_session, subject)

    def read_parked_rows(self, subject: Subject) -> dict[bytes, str]:
        """Return the reasons why changes of single rows were not applied, by record id."""
        return read_parked_rows(self.target, self._own_session, subject)


CAPABILITIES = TargetCapabilities(
    kind="a PostgreSQL database",
    pauses_tables=True,
    quarantines=True,
    prints_ddl=True,
    loads_by_runner=True,
    loads_while_read=True,
    follows_by_runner=True,
    verifies=True,
    filters=True,
    masks=True,
    cuts_over=True,
    falls_back=True,
)


def open_target(settings: Settings, name: str) -> Target:
    """Return the target; it connects to the database on first use."""
    return PostgresqlTarget(settings, name)


class PostgresqlTarget(RelationalTarget):
    """A PostgreSQL database that is target `name` of the configuration."""

    capabilities = CAPABILITIES

    def __init__(self, settings: Settings, name: str) -> None:
        super().__init__(settings, name)
        self._target = PostgresDatabase(settings, name)

    # -- before anything is written ------------------------------------------------------------------------------------

    def check(self, schemas: Seq[TableSchema]) -> list[Finding]:
        return self.check_projected(schemas, partial(check, self._target))

    def require_fit(self, schemas: Seq[TableSchema]) -> None:
        refuse_unfit(self._target, self.project(schemas))

    def build_ddl(self, schemas: Seq[TableSchema], numberings: Seq[Numbering], others: Seq[OtherObject]) -> TargetDdl:
        found = build_ddl_file(self.project(schemas), self._settings, self.name, numberings, others)
        return TargetDdl(
            text=found.text,
            statements=tuple(found.statements),
            later=found.later,
            left_out=tuple(remark.line for remark in found.remarks),
        )

    # -- load and follow -----------------------------------------------------------------------------------------------

    @contextmanager
    def open_scaled_apply(
        self, runner: Runner, stop: threading.Event, report: FollowReporter | None = None
    ) -> Iterator[ScaledApply]:
        from venus.adapters.targets.postgresql.apply.staged_apply import StagedApply

        staged = StagedApply(self._settings, self.name, runner, stop, report, describe_switch=self.describe_switch)
        with closing(staged) as applies:
            yield applies

    # -- verification --------------------------------------------------------------------------------------------------

    def open_reader(self) -> TargetReader:
        return PostgresTargetReader(self._target)

    # -- cut-over ------------------------------------------------------------------------------------------------------

    def open_cutover(self) -> AbstractContextManager[CutoverTarget]:
        from venus.adapters.targets.postgresql.cutover.cutover_session import PostgresCutover

        self.refuse_projected()
        return PostgresCutover.open(self._target)

    def open_side(self) -> FallBackSide:
        from venus.adapters.targets.postgresql.cutover.side import PostgresSide

        return PostgresSide(self._settings, self.name)
