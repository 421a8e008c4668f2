"""A SQLite file as one of two databases between which the application switches (`venus cutover --fall-back`).

SQLite has no users, so triggers on each table reject writes according to the record of this file. A transaction of
VENUS marks itself in the record and removes the mark before it commits (session.py); SQLite has only one writer, so no
other connection sees the mark. DDL is transactional. So a step is one transaction that includes changes of triggers.
While the file follows, it has no capture triggers: changes that VENUS applies are not captured.

Foreign keys are off in VENUS's sessions. Triggers of the application cannot be switched off in these sessions, so they
are obstacles. DROP TABLE and other DDL fire no trigger.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager

from venus.adapters.dialects.column_choice import ColumnChoice
from venus.adapters.dialects.contract import RegisteredTable, SourceState
from venus.adapters.dialects.handover_rules import CaptureHandover
from venus.adapters.dialects.registry_rules import log_limits
from venus.adapters.dialects.sqlite import registry
from venus.adapters.dialects.sqlite.connection import literal, quote, snapshot
from venus.adapters.dialects.sqlite.dictionary.tables import NAMESPACE, SqliteDictionary
from venus.adapters.dialects.sqlite.installation.handover import (
    drop_capture,
    plan_handover,
    position_sql,
    read_registered_versions,
    waiting_tables,
)
from venus.adapters.dialects.sqlite.installation.schema_changes import note_own_changes
from venus.adapters.dialects.sqlite.sql import statement as dialect_statement
from venus.adapters.targets.cutover_contract import (
    ColumnLimits,
    CutoverObstacle,
    NewSideObject,
    SideLimits,
    SideOpening,
)
from venus.adapters.targets.relational.own_tables import to_moment
from venus.adapters.targets.relational.place import OWN
from venus.adapters.targets.relational.session import transaction
from venus.adapters.targets.relational.sides import (
    RelationalSide,
    parse_record,
    put_record,
)
from venus.adapters.targets.sqlite.application import ApplicationTable, SqliteApplicationTables
from venus.adapters.targets.sqlite.cutover.limits import limit_column
from venus.adapters.targets.sqlite.database import SqliteDatabase, cutover_sql
from venus.adapters.targets.sqlite.ddl import SqlitePlacedTable
from venus.adapters.targets.sqlite.rowsql import statement
from venus.adapters.targets.sqlite.session import SqliteSession
from venus.adapters.targets.switching import SideRecord
from venus.adapters.targets.way_back import COUNTED_MAX
from venus.config import Settings
from venus.errors import TargetError
from venus.model import TableSchema

_EVENTS = {"i": "INSERT", "u": "UPDATE", "d": "DELETE"}


def side_sql(block: str, **parts: str) -> str:
    """Return a block of side.sql."""
    return statement("side", block, own=OWN, **parts)


def open_side(session: SqliteSession, opening: SideOpening) -> None:
    """Make the file capture and accept writes as soon as the caller's transaction commits."""
    for text in opening.statements:
        session.run(text)
    at = opening.position
    session.run(position_sql(epoch=at.epoch, next_sequence=at.next_sequence, last_batch=at.last_batch))
    put_record(session, side_sql("put"), opening.record)
    remove_reject_triggers(session)


def remove_reject_triggers(session: SqliteSession) -> None:
    """Remove the triggers that reject writes, in the caller's transaction."""
    for (name,) in session.rows(side_sql("rejecting")):
        session.run(side_sql("remove_trigger", trigger=quote(name)))


class SqliteSide(RelationalSide):
    """A SQLite file as one of two databases between which the application can switch."""

    _target: SqliteDatabase
    _session: SqliteSession

    def __init__(self, settings: Settings, name: str) -> None:
        target = SqliteDatabase(settings, name)
        super().__init__(target, target.connect("switch"))
        assert target.application is not None
        self._settings = settings
        self._tables: SqliteApplicationTables = target.application

    def sql(self, block: str, **parts: str) -> str:
        return side_sql(block, **parts)

    @property
    def remove_mark_sql(self) -> str:
        return cutover_sql("remove_mark")

    def read(self) -> SideRecord | None:
        found = self._session.row(side_sql("exists"))
        row = self._session.row(side_sql("read")) if found and found[0] else None
        return parse_record((*row[:-1], to_moment(row[-1]))) if row is not None else None

    # -- obstacles -------------------------------------------------------------------------------------------------

    def find_obstacles(self, tables: Seq[TableSchema]) -> list[CutoverObstacle]:
        self._tables.read_all()
        placed = [self._target.place(schema) for schema in tables if not schema.is_heartbeat]
        return [one for place in placed for one in self._find_obstacles(place)]

    def _find_obstacles(self, placed: SqlitePlacedTable) -> Iterator[CutoverObstacle]:
        where, table = self._target.description, self._tables.find(placed.name)
        if table is None:
            yield CutoverObstacle(what=f"{where}: {placed.name} does not exist: changes could not come back")
            return
        lines = [*self._column_obstacles(placed, table), *self._statement_obstacles(placed)]
        yield from (CutoverObstacle(what=f"{where}: {line}: changes could not come back") for line in lines)
        for name in self._find_triggers(placed):
            yield CutoverObstacle(
                what=f"{where}: trigger {name} of {placed.name} would fire for changes of VENUS",
                remedy=f"DROP TRIGGER {quote(name)}, and create it again after the last switch",
            )
        if not lines:
            yield from self._spelling_obstacles(placed, table)

    def _column_obstacles(self, placed: SqlitePlacedTable, table: ApplicationTable) -> Iterator[str]:
        """Yield the columns that VENUS could not write or fill, one line each."""
        sent = {c.name: table.column(placed.fold(c.name)) for c in placed.schema.columns}
        for name, own in sent.items():
            if not own:
                yield f"{placed.name} has no column {name}"
            elif own in table.generated:
                yield f"{placed.name}.{name} is generated and cannot be written"
        for name in sorted(table.required - set(sent.values())):
            yield f"{placed.name}.{name} is NOT NULL without a default, and does not travel"

    def _statement_obstacles(self, placed: SqlitePlacedTable) -> Iterator[str]:
        """Compile an INSERT and a DELETE without running them; yield their errors, one line each."""
        for block in ("may_insert", "may_delete"):
            try:
                self._session.run(side_sql(block, table=placed.sql, columns=placed.wire_columns))
            except TargetError as error:
                yield f"{placed.name}: {error}"

    def _find_triggers(self, placed: SqlitePlacedTable) -> list[str]:
        """Return the application's triggers that would fire for changes of VENUS."""
        with snapshot(self._session.connection, self._session.file):
            own = registry.read_owned_objects(self._session.connection)
        names = [name for (name,) in self._session.rows(side_sql("unfit_triggers"), {"table": placed.name})]
        return [name for name in names if not own.has_object(name)]

    def _spelling_obstacles(self, placed: SqlitePlacedTable, table: ApplicationTable) -> Iterator[CutoverObstacle]:
        """Yield the columns whose values have several spellings: VENUS could not write all of them back unchanged."""
        for column in placed.schema.columns:
            found = self._tables.read_spelling(self._session, table, column)
            if found.other is not None:
                stored, written = (literal(v) if not isinstance(v, float) else repr(v) for v in found.other)
                yield CutoverObstacle(
                    what=f"{self._target.description}: {placed.name}.{column.name} has values of several spellings, "
                    f"and {stored} would come back as {written}",
                    remedy="store the values of the column in one spelling",
                )

    # -- values and objects that could not come back ---------------------------------------------------------------

    def read_own_limits(self, tables: Seq[TableSchema]) -> SideLimits:
        found: dict[tuple[str, str], ColumnLimits] = {}
        for schema in tables:
            table = None if schema.is_heartbeat else self._tables.find(schema.name)
            if table is not None:
                columns = table.table.schema.columns
                found |= {(schema.qualified_name, c.name): limit_column(c, table.declared[c.name]) for c in columns}
        return found

    def find_objects_beside(self, tables: Seq[TableSchema], others: Collection[str]) -> list[NewSideObject]:
        known = {schema.name: schema for schema in tables if not schema.is_heartbeat}
        found: list[NewSideObject] = []
        for table in self._tables.read_all():
            name, schema = table.table.schema.name, known.get(table.table.schema.name)
            if schema is not None:
                found += self._find_own_columns(schema, table)
            elif f"{NAMESPACE}.{name}" not in others:
                found.append(NewSideObject(table=f"{NAMESPACE}.{name}", rows=self._count(name, "1")))
        return found

    def _find_own_columns(self, schema: TableSchema, table: ApplicationTable) -> Iterator[NewSideObject]:
        """Yield the columns that only this file has, with the number of rows whose value is not the default."""
        known = {c.name for c in schema.columns}
        for name in table.declared:
            if name not in known:
                rows = self._count(schema.name, f"{quote(name)} IS NOT ({table.defaults.get(name, 'NULL')})")
                yield NewSideObject(table=schema.qualified_name, column=name, rows=rows)

    def _count(self, table: str, condition: str) -> int:
        """Count the rows that meet a condition, up to a limit."""
        name = f"{NAMESPACE}.{quote(table)}"
        query = side_sql("count_rows", table=name, condition=condition, most=str(COUNTED_MAX))
        return int(self._session.rows(query)[0][0])

    # -- the steps -------------------------------------------------------------------------------------------------

    @contextmanager
    def _own_transaction(self) -> Iterator[None]:
        """Open a transaction whose DDL capture recognises as VENUS's own."""
        with transaction(self._session), note_own_changes(self._session.connection):
            yield

    def install(self) -> None:
        self._target.install()
        with self._own_transaction():
            self._session.run(side_sql("create"))
            self._session.run(side_sql("create_mark"))

    def reject_writes(self, record: SideRecord, tables: Seq[TableSchema]) -> None:
        placed = [self._target.place(schema) for schema in tables if not schema.is_heartbeat]
        with self._own_transaction():
            for one in placed:
                for letter, event in _EVENTS.items():
                    name = f"{OWN}reject_{letter}_{one.schema.table_id:05}"
                    self._session.run(side_sql("reject", trigger=name, event=event, table=quote(one.name)))
            self.put_record(record)

    def describe_open_transactions(self) -> str:
        return ""  # the error for a locked file already names the process

    def registry_sql(self, block: str, **parts: str) -> str:
        return dialect_statement("registry", block, **parts)

    def read_capture(self, tables: Seq[TableSchema]) -> tuple[SourceState, Seq[str]]:
        connection = self._session.connection
        return registry.read_state(connection), waiting_tables(connection, tables)

    def reopen(self, record: SideRecord) -> None:
        with self._own_transaction():
            self._session.run(dialect_statement("registry", "unseal"))
            self.put_record(record)
            remove_reject_triggers(self._session)

    def tidy(self) -> None:
        """Do nothing: `reopen` and `open_side` have already dropped the triggers that rejected writes."""

    def plan_own_handover(self, tables: Seq[RegisteredTable], released: Seq[RegisteredTable]) -> CaptureHandover:
        with snapshot(self._session.connection, self._session.file):
            dictionary = SqliteDictionary(self._session.connection, ColumnChoice.from_settings(self._settings))
            return plan_handover(dictionary, log_limits(self._settings), tables, released)

    def read_registered_versions(self) -> dict[int, TableSchema]:
        with snapshot(self._session.connection, self._session.file):
            return read_registered_versions(self._session.connection)

    def list_capture_drops(self) -> list[str]:
        return drop_capture(self._session.connection, logs=False)
