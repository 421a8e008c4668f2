"""A PostgreSQL database as a `Target` for the commands, and as a side of a comparison.

A comparison reads the applied offset in the same snapshot as the rows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from venus.adapters.dialects.postgresql.verify import PostgresReader, PostgresTableNames
from venus.adapters.dialects.verify_contract import Subject
from venus.adapters.targets.contract import (
    CommandResult,
    FillEnd,
    FollowReporter,
    LoadedTable,
    LoadReport,
    LoadReporter,
    QuarantineRow,
    ReachedOffset,
    RetryReport,
    RunnerChooser,
    ScaledApply,
    Target,
    TargetCapabilities,
    TargetDdl,
)
from venus.adapters.targets.postgresql import control
from venus.adapters.targets.postgresql.control import build_view
from venus.adapters.targets.postgresql.database import (
    ACTIVE,
    LOADING,
    PostgresDatabase,
    TableState,
    format_mark_time,
    read_mark,
)
from venus.adapters.targets.postgresql.naming import quote_literal
from venus.adapters.targets.postgresql.schema.ddl import build_ddl_file, type_sql
from venus.adapters.targets.postgresql.schema.tables import check, refuse_unfit
from venus.adapters.targets.registry import TargetBase
from venus.adapters.targets.views import TargetView
from venus.config import Settings
from venus.errors import TargetError, VenusError
from venus.model import Finding, TableSchema
from venus.text.formatting import find_named_table

if TYPE_CHECKING:
    from venus.adapters.dialects.contract import Numbering, OtherObject
    from venus.adapters.targets.contract import TargetReader
    from venus.adapters.targets.cutover_contract import CutoverTarget, FallBackSide
    from venus.process.runners import Runner
    from venus.rpc.conditions import LastComparison


class PostgresTargetReader(PostgresReader):
    """A session that reads a target for a comparison."""

    def __init__(self, target: PostgresDatabase) -> None:
        self.target = target
        self._own_session = self.target.connect("verify")
        super().__init__(self._own_session, self._table_names, self._own_session.copy_out)

    def _table_names(self, subject: Subject) -> PostgresTableNames:
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
        """Return how far this table is in the snapshot of `begin`."""
        position = self.target.read_position(self._own_session)
        state = next(iter(self.target.read_tables(self._own_session, subject.schema.table_id)), None)
        if position is None or state is None:
            raise TargetError(f"target {self.target.name} has not been loaded yet")
        if state.state == ACTIVE or state.held_from is None:
            return ReachedOffset(offset=position.offset, held=self._pause_reason() if position.paused else "")
        reason = f" ({state.reason})" if state.reason else ""
        return ReachedOffset(offset=state.held_from, held=f"the table is {state.state} at the target{reason}")

    def _pause_reason(self) -> str:
        since = format_mark_time(read_mark(self.target, self._own_session))
        return f"the target was cut over at {since}" if since else "the target is paused"

    def read_parked_rows(self, subject: Subject) -> dict[bytes, str]:
        """Return the reasons why changes of single rows were not applied, by record id."""
        rows = self.target.read_own_rows(self._own_session, "list_quarantine", everything=True)
        return {
            bytes(row[4]): f"{row[12].lower()} in quarantine: {row[9]}" + (f" ({row[8]})" if row[8] else "")
            for row in rows
            if row[1] == subject.schema.table_id and row[12] in ("PARKED", "HALTED", "SKIPPED")
        }


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
    cuts_over=True,
    falls_back=True,
)


def open_target(settings: Settings, name: str) -> Target:
    """Return the target; it connects to the database on first use."""
    return PostgresqlTarget(settings, name)


class PostgresqlTarget(TargetBase):
    """A PostgreSQL database that is target `name` of the configuration."""

    capabilities = CAPABILITIES

    def __init__(self, settings: Settings, name: str) -> None:
        self.name = name
        self._settings = settings
        self._target = PostgresDatabase(settings, name)

    # -- before anything is written ------------------------------------------------------------------------------------

    def check(self, schemas: Seq[TableSchema]) -> list[Finding]:
        return check(self._target, schemas)

    def require_fit(self, schemas: Seq[TableSchema]) -> None:
        refuse_unfit(self._target, schemas)

    def build_ddl(self, schemas: Seq[TableSchema], numberings: Seq[Numbering], others: Seq[OtherObject]) -> TargetDdl:
        found = build_ddl_file(schemas, self._settings, self.name, numberings, others)
        return TargetDdl(
            text=found.text,
            statements=tuple(found.statements),
            later=found.later,
            left_out=tuple(remark.line for remark in found.remarks),
        )

    # -- load and follow -----------------------------------------------------------------------------------------------

    def load(
        self,
        report: LoadReporter | None = None,
        *,
        choose: RunnerChooser | None = None,
        empty_meanwhile: bool = False,
        fill_end: FillEnd | None = None,
    ) -> LoadReport:
        from venus.adapters.targets.postgresql.load.full_sync import full_sync  # only a load needs it

        return full_sync(
            self._settings, self.name, report, choose=choose, empty_meanwhile=empty_meanwhile, fill_end=fill_end
        )

    def follow(self, stop: threading.Event, report: FollowReporter | None = None) -> None:
        from venus.adapters.targets.postgresql.apply.apply_session import run_apply

        run_apply(self._settings, self.name, stop, report)

    @contextmanager
    def open_scaled_apply(
        self, runner: Runner, stop: threading.Event, report: FollowReporter | None = None
    ) -> Iterator[ScaledApply]:
        from venus.adapters.targets.postgresql.apply.staged_apply import StagedApply

        with closing(StagedApply(self._settings, self.name, runner, stop, report)) as applies:
            yield applies

    # -- operators -----------------------------------------------------------------------------------------------------

    def read_view(self) -> TargetView:
        try:
            return build_view(control.read_progress(self._settings, self.name))
        except VenusError as error:
            return TargetView(name=self.name, group=self._target.group, error=str(error))

    def read_row_counts(self) -> dict[int, int]:
        return control.read_row_counts(self._settings, self.name)

    def pause(self, table: str | None, reason: str) -> CommandResult:
        meant = self._resolve_table(table)
        control.pause(self._settings, self.name, meant, reason=reason)
        return self._command_result(meant)

    def resume(self, table: str | None) -> CommandResult:
        meant = self._resolve_table(table)
        control.resume(self._settings, self.name, meant)
        return self._command_result(meant)

    def resync(self, table: str | None) -> CommandResult:
        meant = self._resolve_table(table)
        control.request_resync(self._settings, self.name, *(meant or ["*"]))
        waits_for = f"`venus resume --target {self.name}`: it is paused" if self.read_view().paused else ""
        return replace(self._command_result(meant), waits_for=waits_for)

    def _resolve_table(self, table: str | None) -> list[str]:
        if table is None:
            return []
        states = control.read_table_states(self._settings, self.name)
        return [find_named_table(table, [accepted_names(t) for t in states], self.name)]

    def _command_result(self, meant: list[str]) -> CommandResult:
        states = control.read_table_states(self._settings, self.name)
        return CommandResult(table=meant[0] if meant else None, states={t.source_name: t.state for t in states})

    def open_quarantine(self) -> PostgresQuarantine:
        return PostgresQuarantine(self._settings, self.name)

    # -- verification --------------------------------------------------------------------------------------------------

    def read_loaded_tables(self) -> dict[int, LoadedTable] | None:
        with closing(self._target.connect("verify")) as session:
            if not self._target.is_installed(session) or self._target.read_position(session) is None:
                return None
            states = self._target.read_tables(session)  # first: each has its schema already, however late that is read
            schemas = {(s.table_id, s.version): s for s in self._target.read_schemas(session)}
        return {
            t.table_id: LoadedTable(
                schema=schemas[t.table_id, t.schema_version], obstacle=comparison_obstacle(t), predicate=t.predicate
            )
            for t in states
        }

    def open_reader(self) -> TargetReader:
        return PostgresTargetReader(self._target)

    def record_comparison(self, compared: LastComparison) -> None:
        control.record_comparison(self._settings, self.name, compared)

    # -- cut-over ------------------------------------------------------------------------------------------------------

    def open_cutover(self) -> AbstractContextManager[CutoverTarget]:
        from venus.adapters.targets.postgresql.cutover.cutover_session import open_cutover

        return open_cutover(self._target)

    def open_side(self) -> FallBackSide:
        from venus.adapters.targets.postgresql.cutover.side import PostgresSide

        return PostgresSide(self._settings, self.name)


def comparison_obstacle(state: TableState) -> str:
    """Return the reason why a table cannot be compared; empty = it can."""
    if state.predicate_before is not None:
        return "its predicate has changed, and rows are still being added and removed for it"
    return "it is being loaded" if state.state == LOADING else ""


class PostgresQuarantine:
    """The quarantine of a PostgreSQL target."""

    def __init__(self, settings: Settings, name: str) -> None:
        self._settings = settings
        self._name = name

    def list(self, *, everything: bool = False) -> list[QuarantineRow]:
        return control.list_quarantine(self._settings, self._name, everything=everything)

    def retry(self, ids: Seq[int] = (), tables: Seq[str] = ()) -> RetryReport:
        states = control.read_table_states(self._settings, self._name) if tables else []
        meant = [find_named_table(one, [accepted_names(t) for t in states], self._name) for one in tables]
        return control.retry_quarantine(self._settings, self._name, ids, meant)

    def skip(self, ids: Seq[int], *, reason: str) -> RetryReport:
        return control.skip_quarantine(self._settings, self._name, ids, reason=reason)

    def schemas(self) -> Seq[TableSchema]:
        target = PostgresDatabase(self._settings, self._name)
        with closing(target.connect("control")) as session:
            return target.read_schemas(session)


def accepted_names(state: TableState) -> tuple[str, ...]:
    """Return the names that an operator may use for a table."""
    return state.source_name, f"{state.namespace}.{state.name}", state.name
