"""The apply loop's copy of VENUS's own tables at the target: positions, tables, schemas, parked keys, sweeps.

Every operator's command that changes one of VENUS's own tables increments `control` in the same transaction. The loop's
next transaction then finds that its copy is outdated, and the loop reads the tables again. The check for changes
therefore needs no extra statement.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from venus.adapters.targets.cutover_contract import CutoverMark
from venus.adapters.targets.relational.session import RelationalSession
from venus.adapters.targets.relational.states import (
    ACTIVE,
    CATCHUP,
    LOADING,
    RESYNC,
    TableState,
    TargetPosition,
    format_mark_time,
)
from venus.adapters.targets.views import describe_selection
from venus.codec.row_bytes import Layout
from venus.errors import Refused
from venus.masking.projection import describe_masks, source_of
from venus.model import Offset, TableSchema
from venus.network.row_filters import RowsIdentity
from venus.predicates.ranges import Predicate, compile_predicate
from venus.rpc.conditions import (
    COLUMNS_CHANGED,
    RESYNCING,
    STARTING_OVER,
    AdapterCondition,
    AdapterFigures,
    TableCondition,
    decode_comparison,
)


class CatalogueOwner(Protocol):
    """The target from which a catalogue copies VENUS's own tables (database.py)."""

    @property
    def description(self) -> str: ...

    @property
    def not_loaded_error(self) -> Refused: ...

    def row_sql(self, schema: TableSchema) -> Any: ...

    def read_mark(self, session: Any) -> CutoverMark | None: ...

    def read_position(self, session: RelationalSession) -> TargetPosition | None: ...

    def read_tables(self, session: RelationalSession) -> list[TableState]: ...

    def read_schemas(self, session: RelationalSession) -> list[TableSchema]: ...

    def read_own_rows(self, session: RelationalSession, name: str, /, **params: Any) -> list[tuple[Any, ...]]: ...


@dataclass(slots=True, kw_only=True)
class TargetCatalogue:
    """A copy of VENUS's own tables at the target."""

    position: TargetPosition
    tables: dict[int, TableState]
    schemas: dict[tuple[int, int], TableSchema]
    #: The offset of the first parked change, by table and record id.
    parked: dict[int, dict[bytes, int]]
    #: The (record id, offset) pairs that an operator skipped, by table.
    skipped: dict[int, set[tuple[bytes, int]]]
    #: The offset since which keys are recorded, by table and purpose.
    sweeps: dict[int, dict[str, int]]
    #: How many changes wait in quarantine, by table.
    quarantined: dict[int, int]
    #: When the target was handed over to the application; empty = it follows.
    cut_over: str = ""
    #: Database and host of the target, for messages.
    place: str = ""
    _sql: dict[tuple[int, int], Any] = field(default_factory=dict)
    _predicates: dict[tuple[int, int, str], Predicate] = field(default_factory=dict)

    def find_version(self, table_id: int) -> int | None:
        """Return the version of a table to which the stream's changes are applied; None = it does not follow."""
        state = self.tables.get(table_id)
        return state.schema_version if state is not None and state.state == ACTIVE else None

    def record_position(self, offset: int, epoch: int) -> None:
        """Record a transaction that has moved the applied offset."""
        self.position = replace(self.position, offset=Offset(offset), epoch=epoch)

    def set_rows_identity(self, rows: RowsIdentity | None) -> None:
        """Record the rows identity of the broker's set."""
        self.position = replace(self.position, rows=rows)

    def held_tables(self) -> list[TableState]:
        """Return the tables that do not follow the stream."""
        return [t for t in self.tables.values() if t.state != ACTIVE]

    @property
    def has_late_tables(self) -> bool:
        """Whether any table catches up, or waits for a resync."""
        is_resyncing = any(RESYNC in purposes for purposes in self.sweeps.values())
        return is_resyncing or any(t.state == CATCHUP for t in self.tables.values())

    def condition(self) -> AdapterCondition:
        """Return the states of this target's tables and its figures, in the form in which the broker gets them."""
        tables: Collection[TableState] = self.tables.values()
        if self.position.loading:
            tables = [replace(t, state=LOADING) if t.state == ACTIVE else t for t in tables]
        standing = build_condition(
            tables,
            paused=self.position.paused,
            quarantined=self.quarantined,
            resyncing={table_id for table_id, purposes in self.sweeps.items() if RESYNC in purposes},
            columns={t: describe_masks(self.current_schema(t)) for t in self.tables},
        )
        figures = AdapterFigures(place=self.place, compared=decode_comparison(self.position.compared))
        return replace(standing, cut_over=self.cut_over, figures=figures)

    def keep_from(self, log_start: int = 0) -> int:
        """Return the offset below which no table needs any increment; the queue starts at `log_start`.

        A table whose increments were trimmed no longer needs them: it waits for a resync, whose record of keys begins
        before the resync's cut.
        """
        needed: list[int] = [self.position.offset]
        for state in self.held_tables():
            held_from: int | None = state.held_from
            if held_from is not None and held_from < log_start:
                held_from = self.sweeps.get(state.table_id, {}).get(RESYNC)
            if held_from is not None and held_from >= log_start:
                needed.append(held_from)
        return min(needed)

    def is_recording(self, table_id: int) -> bool:
        """Return whether the keys of this table's changes are being recorded; a request does not count."""
        return any(offset >= 0 for offset in self.sweeps.get(table_id, {}).values())

    def schema(self, table_id: int, version: int) -> TableSchema:
        """Return a table version that this target has received."""
        try:
            return self.schemas[table_id, version]
        except KeyError:
            raise Refused(
                f"table {table_id} version {version} was never described to this target",
                hint="load the target again: venus migrate",
            ) from None

    def current_schema(self, table_id: int) -> TableSchema:
        """Return the current version of a table at the target."""
        return self.schema(table_id, self.tables[table_id].schema_version)

    def newest_schema(self, table_id: int) -> TableSchema:
        """Return the newest version of a table that this target has received."""
        return max((s for (number, _), s in self.schemas.items() if number == table_id), key=lambda s: s.version)

    def newest_versions(self) -> dict[int, TableSchema]:
        """Return the newest version of each table at the target that it has received."""
        newest = {s.table_id: s for s in sorted(self.schemas.values(), key=lambda s: s.version)}
        return {table_id: schema for table_id, schema in newest.items() if table_id in self.tables}

    def referring_tables(self, table_id: int) -> list[str]:
        """Return the tables whose foreign keys refer to this one."""
        me = self.current_schema(table_id)
        others = [self.current_schema(other) for other in self.tables if other != table_id]
        return sorted(
            other.qualified_name
            for other in others
            if any((fk.referred_namespace, fk.referred_table) == (me.namespace, me.name) for fk in other.foreign_keys)
        )

    def sql(self, target: CatalogueOwner, table_id: int, version: int) -> Any:
        """Return the statements for a table version; cached, because every section needs them."""
        key = (table_id, version)
        if key not in self._sql:
            self._sql[key] = target.row_sql(self.schema(table_id, version))
        return self._sql[key]

    def predicate(self, table_id: int, version: int) -> Predicate | None:
        """Return the predicate of a table version; None = the target gets all rows. Raises PredicateRefused."""
        text = self.tables[table_id].predicate
        if not text:
            return None
        key = (table_id, version, text)
        if key not in self._predicates:
            self._predicates[key] = compile_predicate(text, source_of(self.schema(table_id, version)))
        return self._predicates[key]

    def layout(self, table_id: int, version: int) -> Layout:
        """Return the row layout of a table version."""
        return Layout.of(self.schema(table_id, version))


def build_condition(
    tables: Iterable[TableState],
    *,
    paused: bool,
    quarantined: Mapping[int, int],
    resyncing: Container[int],
    columns: Mapping[int, str],
) -> AdapterCondition:
    """Return the states of a target's tables in the form in which the broker gets them."""
    return AdapterCondition.of(
        (
            TableCondition(
                table_id=t.table_id,
                name=t.source_name,
                state=displayed_state(t, resyncing=t.table_id in resyncing),
                reason=t.reason,
                quarantined=quarantined.get(t.table_id, 0),
                rows=describe_selection(t.predicate, t.predicate_before, t.rows_brought, t.rows_removed),
                columns=columns.get(t.table_id, ""),
            )
            for t in tables
        ),
        paused=paused,
        quarantined=sum(quarantined.values()),
    )


def displayed_state(found: TableState, *, resyncing: bool) -> str:
    """Return the state of a table as status and broker show it."""
    waits_for_it = found.state == ACTIVE or found.reason.startswith((STARTING_OVER, COLUMNS_CHANGED))
    return RESYNCING if resyncing and waits_for_it else found.state


def read_catalogue(target: CatalogueOwner, session: RelationalSession) -> TargetCatalogue:
    """Read VENUS's own tables in one snapshot."""
    session.begin_snapshot()
    try:
        position = target.read_position(session)
        if position is None:
            raise target.not_loaded_error
        parked: dict[int, dict[bytes, int]] = {}
        for table_id, record_id, offset in target.read_own_rows(session, "parked_keys"):
            parked.setdefault(table_id, {})[bytes(record_id)] = offset
        skipped: dict[int, set[tuple[bytes, int]]] = {}
        for table_id, record_id, offset in target.read_own_rows(session, "skipped_changes"):
            skipped.setdefault(table_id, set()).add((bytes(record_id), offset))
        sweeps: dict[int, dict[str, int]] = {}
        for table_id, purpose, offset in target.read_own_rows(session, "sweeps"):
            sweeps.setdefault(table_id, {})[purpose] = offset
        return TargetCatalogue(
            position=position,
            tables={t.table_id: t for t in target.read_tables(session)},
            schemas={(s.table_id, s.version): s for s in target.read_schemas(session)},
            parked=parked,
            skipped=skipped,
            sweeps=sweeps,
            quarantined=dict(target.read_own_rows(session, "open_by_table")),
            cut_over=format_mark_time(target.read_mark(session)) if position.paused else "",
            place=target.description,
        )
    finally:
        session.rollback()
