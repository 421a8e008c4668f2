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

from venus.adapters.dialects.postgresql.verify import Names, PostgresReader
from venus.adapters.dialects.verifying import Subject
from venus.adapters.targets.base import Lacking
from venus.adapters.targets.contract import (
    Capabilities,
    Chooser,
    Commanded,
    Conversion,
    FollowTold,
    LoadedTable,
    LoadReport,
    LoadTold,
    QuarantineRow,
    Reached,
    RetryReport,
    ScaledApply,
    Target,
)
from venus.adapters.targets.postgresql import control, quarantine
from venus.adapters.targets.postgresql.control import view
from venus.adapters.targets.postgresql.cutmark import moment, read
from venus.adapters.targets.postgresql.database import ACTIVE, LOADING, PostgresTarget, TableState
from venus.adapters.targets.postgresql.fitness import check, refuse_unfit
from venus.adapters.targets.postgresql.naming import literal
from venus.adapters.targets.postgresql.schema.ddl import type_sql
from venus.adapters.targets.postgresql.schema.ddl_file import convert
from venus.adapters.targets.views import TargetView
from venus.config import Settings
from venus.errors import TargetError, VenusError
from venus.model import Finding, TableSchema
from venus.suggest import table_named

if TYPE_CHECKING:
    from venus.adapter_figures import Comparison
    from venus.adapters.dialects.contract import Numbering, OtherObject
    from venus.adapters.running import Runner
    from venus.adapters.targets.contract import TargetReader
    from venus.adapters.targets.cutting import CutoverTarget


class PostgresTargetReader(PostgresReader):
    """A session that reads a target for a comparison."""

    def __init__(self, target: PostgresTarget) -> None:
        self.target = target
        self._own_session = self.target.connect("verify")
        super().__init__(self._own_session, self._placed, self._own_session.copy_out)

    def _placed(self, subject: Subject) -> Names:
        placed = self.target.place(subject.schema)
        columns = subject.schema.wire_columns
        return Names(
            relation=placed.rows_sql,
            relation_name=literal(placed.sql),
            columns=tuple(placed.column(c.name) for c in columns),
            casts=tuple(type_sql(c.type, placed.type_names) for c in columns[: len(subject.schema.key)]),
            equals=("=",) * len(subject.schema.key),
        )

    def reached(self, subject: Subject) -> Reached:
        """Return how far this table is in the snapshot of `begin`."""
        position = self.target.position(self._own_session)
        state = next(iter(self.target.tables(self._own_session, subject.schema.table_id)), None)
        if position is None or state is None:
            raise TargetError(f"target {self.target.name} has not been loaded yet")
        if state.state == ACTIVE or state.held_from is None:
            return Reached(offset=position.offset, held=self._held_as_a_whole() if position.paused else "")
        reason = f" ({state.reason})" if state.reason else ""
        return Reached(offset=state.held_from, held=f"the table is {state.state} at the target{reason}")

    def _held_as_a_whole(self) -> str:
        since = moment(read(self.target, self._own_session))
        return f"the target was cut over at {since}" if since else "the target is paused"

    def parked(self, subject: Subject) -> dict[bytes, str]:
        """Return the reasons why changes of single rows were not applied, by record id."""
        rows = self.target.own_rows(self._own_session, "list_quarantine", everything=True)
        return {
            bytes(row[4]): f"{row[12].lower()} in quarantine: {row[9]}" + (f" ({row[8]})" if row[8] else "")
            for row in rows
            if row[1] == subject.schema.table_id and row[12] in ("PARKED", "HALTED", "SKIPPED")
        }


CAPABILITIES = Capabilities(
    kind="a PostgreSQL database",
    pauses_tables=True,
    quarantines=True,
    prints_ddl=True,
    loads_by_runner=True,
    follows_by_runner=True,
    verifies=True,
    filters=True,
    cuts_over=True,
)


def open_target(settings: Settings, name: str) -> Target:
    """Return the target; it connects to the database on first use."""
    return Postgresql(settings, name)


class Postgresql(Lacking):
    """A PostgreSQL database that is target `name` of the configuration."""

    capabilities = CAPABILITIES

    def __init__(self, settings: Settings, name: str) -> None:
        self.name = name
        self._settings = settings
        self._target = PostgresTarget(settings, name)

    # -- before anything is written ------------------------------------------------------------------------------------

    def check(self, schemas: Seq[TableSchema]) -> list[Finding]:
        return check(self._target, schemas)

    def require_fit(self, schemas: Seq[TableSchema]) -> None:
        refuse_unfit(self._target, schemas)

    def conversion(self, schemas: Seq[TableSchema], numberings: Seq[Numbering], others: Seq[OtherObject]) -> Conversion:
        found = convert(schemas, self._settings, self.name, numberings, others)
        return Conversion(
            text=found.text,
            statements=tuple(found.statements),
            later=found.later,
            left_out=tuple(remark.line for remark in found.remarks),
        )

    # -- load and follow -----------------------------------------------------------------------------------------------

    def load(
        self, report: LoadTold | None = None, *, choose: Chooser | None = None, empty_meanwhile: bool = False
    ) -> LoadReport:
        from venus.adapters.targets.postgresql.load.full_sync import full_sync  # only a load needs it

        return full_sync(self._settings, self.name, report, choose=choose, empty_meanwhile=empty_meanwhile)

    def follow(self, stop: threading.Event, report: FollowTold | None = None) -> None:
        from venus.adapters.targets.postgresql.apply.apply_session import run_apply

        run_apply(self._settings, self.name, stop, report)

    @contextmanager
    def scaled(self, runner: Runner, stop: threading.Event, report: FollowTold | None = None) -> Iterator[ScaledApply]:
        from venus.adapters.targets.postgresql.staged.staged_apply import StagedApply

        with closing(StagedApply(self._settings, self.name, runner, stop, report)) as applies:
            yield applies

    # -- operators -----------------------------------------------------------------------------------------------------

    def look(self) -> TargetView:
        try:
            return view(control.progress(self._settings, self.name))
        except VenusError as error:
            return TargetView(name=self.name, group=self._target.group, error=str(error))

    def row_counts(self) -> dict[int, int]:
        return control.row_counts(self._settings, self.name)

    def pause(self, table: str | None, reason: str) -> Commanded:
        meant = self._meant(table)
        control.pause(self._settings, self.name, meant, reason=reason)
        return self._commanded(meant)

    def resume(self, table: str | None) -> Commanded:
        meant = self._meant(table)
        control.resume(self._settings, self.name, meant)
        return self._commanded(meant)

    def resync(self, table: str | None) -> Commanded:
        meant = self._meant(table)
        control.resync(self._settings, self.name, *(meant or ["*"]))
        waits_for = f"`venus resume --target {self.name}`: it is paused" if self.look().paused else ""
        return replace(self._commanded(meant), waits_for=waits_for)

    def _meant(self, table: str | None) -> list[str]:
        if table is None:
            return []
        states = control.table_states(self._settings, self.name)
        return [table_named(table, [names_of(t) for t in states], self.name)]

    def _commanded(self, meant: list[str]) -> Commanded:
        states = control.table_states(self._settings, self.name)
        return Commanded(table=meant[0] if meant else None, states={t.source_name: t.state for t in states})

    def quarantine(self) -> PostgresQuarantine:
        return PostgresQuarantine(self._settings, self.name)

    # -- verification --------------------------------------------------------------------------------------------------

    def loaded_tables(self) -> dict[int, LoadedTable] | None:
        with closing(self._target.connect("verify")) as session:
            if not self._target.installed(session) or self._target.position(session) is None:
                return None
            schemas = {(s.table_id, s.version): s for s in self._target.schemas(session)}
            states = self._target.tables(session)
        return {
            t.table_id: LoadedTable(
                schema=schemas[t.table_id, t.schema_version],
                obstacle=obstacle_of(t),
                predicate=t.predicate,
            )
            for t in states
        }

    def open_reader(self) -> TargetReader:
        return PostgresTargetReader(self._target)

    def record_comparison(self, compared: Comparison) -> None:
        control.record_comparison(self._settings, self.name, compared)

    # -- cut-over ------------------------------------------------------------------------------------------------------

    def cutover(self) -> AbstractContextManager[CutoverTarget]:
        from venus.adapters.targets.postgresql.cutover.session import open_cutover

        return open_cutover(self._target)


def obstacle_of(state: TableState) -> str:
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
        return quarantine.quarantine_list(self._settings, self._name, everything=everything)

    def retry(self, ids: Seq[int] = (), tables: Seq[str] = ()) -> RetryReport:
        states = control.table_states(self._settings, self._name) if tables else []
        meant = [table_named(one, [names_of(t) for t in states], self._name) for one in tables]
        return quarantine.quarantine_retry(self._settings, self._name, ids, meant)

    def skip(self, ids: Seq[int], *, reason: str) -> RetryReport:
        return quarantine.quarantine_skip(self._settings, self._name, ids, reason=reason)

    def schemas(self) -> Seq[TableSchema]:
        target = PostgresTarget(self._settings, self._name)
        with closing(target.connect("control")) as session:
            return target.schemas(session)


def names_of(state: TableState) -> tuple[str, ...]:
    """Return the names that an operator may use for a table."""
    return state.source_name, f"{state.namespace}.{state.name}", state.name
