"""A relational target as a `Target` for the commands, and as a side of a comparison.

A comparison reads the applied offset in the same snapshot as the rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Sequence as Seq
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

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
)
from venus.adapters.targets.registry import TargetBase
from venus.adapters.targets.relational import control
from venus.adapters.targets.relational.control import build_view
from venus.adapters.targets.relational.database import RelationalDatabase, open_database
from venus.adapters.targets.relational.session import RelationalSession
from venus.adapters.targets.relational.states import ACTIVE, LOADING, TableState, format_mark_time
from venus.adapters.targets.views import TargetView
from venus.config import Settings
from venus.errors import ConfigError, Refused, TargetError, VenusError
from venus.masking.projection import ProjectedSchema, columns_of, describe_columns
from venus.model import Finding, TableSchema
from venus.text.formatting import find_named_table

if TYPE_CHECKING:
    from venus.rpc.conditions import LastComparison


class RelationalTarget(TargetBase):
    """A database that is target `name` of the configuration."""

    def __init__(self, settings: Settings, name: str) -> None:
        self.name = name
        self._settings = settings

    @property
    def database(self) -> RelationalDatabase:
        """The database, which connects on first use."""
        return open_database(self._settings, self.name)

    # -- load and follow -----------------------------------------------------------------------------------------------

    def load(
        self,
        report: LoadReporter | None = None,
        *,
        choose: RunnerChooser | None = None,
        empty_meanwhile: bool = False,
        fill_end: FillEnd | None = None,
    ) -> LoadReport:
        from venus.adapters.targets.relational.full_sync import full_sync  # imported here, because only a load needs it

        return full_sync(
            self._settings, self.name, report, choose=choose, empty_meanwhile=empty_meanwhile, fill_end=fill_end
        )

    def follow(self, stop: threading.Event, report: FollowReporter | None = None) -> None:
        from venus.adapters.targets.relational.apply_session import run_apply

        run_apply(self._settings, self.name, stop, report, describe_switch=self.describe_switch)

    # -- operators -----------------------------------------------------------------------------------------------------

    def read_view(self) -> TargetView:
        try:
            return build_view(control.read_progress(self._settings, self.name))
        except VenusError as error:
            return TargetView(name=self.name, group=self.database.group, error=str(error))

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
        """Return the one table that an operator has named, as a list; an empty list for the whole target."""
        if table is None:
            return []
        states = control.read_table_states(self._settings, self.name)
        return [find_named_table(table, [accepted_names(t) for t in states], self.name)]

    def _command_result(self, meant: list[str]) -> CommandResult:
        """Return the result of a command with the present states of the tables."""
        states = control.read_table_states(self._settings, self.name)
        return CommandResult(table=meant[0] if meant else None, states={t.source_name: t.state for t in states})

    def open_quarantine(self) -> TableQuarantine:
        return TableQuarantine(self._settings, self.name)

    # -- columns -------------------------------------------------------------------------------------------------------

    def project(self, schemas: Seq[TableSchema]) -> list[TableSchema]:
        """Return tables as this target gets them. Raises ConfigError for a rule that does not fit."""
        return self.database.columns.project_all(schemas)

    def check_projected(
        self, schemas: Seq[TableSchema], check: Callable[[Seq[TableSchema]], list[Finding]]
    ) -> list[Finding]:
        """Check that the rules for columns fit, then the tables as this target gets them."""
        where = f"target {self.name}"
        try:
            projected = self.project(schemas)
        except ConfigError as error:
            return [Finding(where=where, message=str(error), remedy=error.hint, blocks=True)]
        changed = [s for s in projected if isinstance(s, ProjectedSchema) and s.masks]
        found = [Finding(where=where, message=f"{s.qualified_name} gets {describe_columns(s)}") for s in changed]
        return [*found, *check(projected)]

    def refuse_projected(self) -> None:
        """Raise Refused if rules make rows differ from the source's: the application cannot move to such a target."""
        loaded = (self.read_loaded_tables() or {}).values()
        if above := [f"{t.schema.qualified_name} {t.schema.masked_above}" for t in loaded if t.schema.masked_above]:
            raise Refused(
                f"target {self.name} cannot be cut over: a broker set above masks its columns: {', '.join(above)}",
                hint="Load a target that reads a set above the border",
            )
        names = [t.schema.qualified_name for t in loaded if isinstance(t.schema, ProjectedSchema) and t.schema.masks]
        if names or self.database.columns.rules.rules:
            which = f": {', '.join(names)}" if names else ""
            raise Refused(
                f"target {self.name} cannot be cut over: columns are masked, dropped or renamed there{which}",
                hint=f"without [targets.{self.name}.columns], `venus sync` brings the plain columns",
            )

    # -- verification --------------------------------------------------------------------------------------------------

    def read_loaded_tables(self) -> dict[int, LoadedTable] | None:
        target = self.database
        with closing(target.connect("verify")) as session:
            if not target.is_installed(session) or target.read_position(session) is None:
                return None
            states = target.read_tables(session)  # read first: every table has its schema by then
            schemas = {(s.table_id, s.version): s for s in target.read_schemas(session)}
        return {
            t.table_id: LoadedTable(
                schema=(schema := schemas[t.table_id, t.schema_version]),
                obstacle=comparison_obstacle(t) or columns_of(schema).misfit,
                predicate=t.predicate,
            )
            for t in states
        }

    def record_comparison(self, compared: LastComparison) -> None:
        control.record_comparison(self._settings, self.name, compared)


def comparison_obstacle(state: TableState) -> str:
    """Return the reason why a table cannot be compared; empty = it can."""
    if state.predicate_before is not None:
        return "its predicate has changed, and rows are still being added and removed for it"
    return "it is being loaded" if state.state == LOADING else ""


class TableQuarantine:
    """The quarantine of a relational target."""

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
        target = open_database(self._settings, self._name)
        with closing(target.connect("control")) as session:
            return target.read_schemas(session)


def accepted_names(state: TableState) -> tuple[str, ...]:
    """Return the names that an operator may use for a table."""
    bare = state.source_name.partition(".")[2] or state.source_name  # the name may differ in case at the target
    return tuple(dict.fromkeys((state.source_name, f"{state.namespace}.{state.name}", state.name, bare)))


def read_reached_offset(target: RelationalDatabase, session: RelationalSession, subject: Subject) -> ReachedOffset:
    """Return the offset that this table has reached in the snapshot of `begin`."""
    position = target.read_position(session)
    state = next(iter(target.read_tables(session, subject.schema.table_id)), None)
    if position is None or state is None:
        raise TargetError(f"target {target.name} has not been loaded yet")
    if state.state == ACTIVE or state.held_from is None:
        return ReachedOffset(offset=position.offset, held=_pause_reason(target, session) if position.paused else "")
    reason = f" ({state.reason})" if state.reason else ""
    return ReachedOffset(offset=state.held_from, held=f"the table is {state.state} at the target{reason}")


def _pause_reason(target: RelationalDatabase, session: RelationalSession) -> str:
    """Return why the target applies nothing: it was cut over, or is paused."""
    since = format_mark_time(target.read_mark(session))
    return f"the target was cut over at {since}" if since else "the target is paused"


def read_parked_rows(target: RelationalDatabase, session: RelationalSession, subject: Subject) -> dict[bytes, str]:
    """Return the reasons why changes of single rows were not applied, by record id."""
    rows = target.read_own_rows(session, "list_quarantine", everything=True)
    return {
        bytes(row[4]): f"{row[12].lower()} in quarantine: {row[9]}" + (f" ({row[8]})" if row[8] else "")
        for row in rows
        if row[1] == subject.schema.table_id and row[12] in ("PARKED", "HALTED", "SKIPPED")
    }
