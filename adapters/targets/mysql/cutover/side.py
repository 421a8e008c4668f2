"""A MariaDB or MySQL database as one of two between which the application switches (`venus cutover --fall-back`).

Triggers on each table reject writes according to this database's record, a single row that every writing transaction
locks. So a step is one transaction although DDL is not transactional: triggers, log tables and VENUS's own tables are
created before the step, and each statement may be repeated. TRUNCATE fires no trigger.

While a database follows the other one, it keeps its capture triggers, which do not log changes by VENUS. Foreign keys
have no effect in VENUS's sessions. The application's triggers fire in these sessions, and cannot be switched off for a
session, so they are obstacles.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from collections.abc import Sequence as Seq
from contextlib import closing

from venus.adapters.dialects.column_choice import ColumnChoice
from venus.adapters.dialects.contract import RegisteredTable, SourceState
from venus.adapters.dialects.handover_rules import CaptureHandover
from venus.adapters.dialects.mysql import connection as connections
from venus.adapters.dialects.mysql import registry
from venus.adapters.dialects.mysql.connection import MysqlConnection, parse_address
from venus.adapters.dialects.mysql.dictionary.tables import MysqlTable
from venus.adapters.dialects.mysql.installation.handover import (
    plan_handover,
    plan_quiet_triggers,
    position_sql,
    read_registered_versions,
    run_statements,
    waiting_tables,
)
from venus.adapters.dialects.mysql.sql import SIDE
from venus.adapters.dialects.mysql.sql import statement as dialect_statement
from venus.adapters.targets.cutover_contract import (
    ColumnLimits,
    CutoverObstacle,
    FollowStart,
    NewSideObject,
    SideLimits,
    SideOpening,
)
from venus.adapters.targets.mysql.application import ApplicationTables
from venus.adapters.targets.mysql.cutover.limits import limit_column
from venus.adapters.targets.mysql.database import MysqlDatabase, cutover_sql
from venus.adapters.targets.mysql.naming import MysqlPlacedTable, quote
from venus.adapters.targets.mysql.rowsql import statement
from venus.adapters.targets.mysql.session import MysqlSession
from venus.adapters.targets.relational.place import OWN
from venus.adapters.targets.relational.session import transaction
from venus.adapters.targets.relational.sides import (
    LOCK_TIMEOUT_MS,
    TIDY_TIMEOUT_MS,
    RelationalSide,
    put_record,
)
from venus.adapters.targets.switching import SideRecord
from venus.adapters.targets.way_back import COUNTED_MAX
from venus.config import Settings
from venus.errors import DatabaseUnavailable, TargetError
from venus.model import TableSchema

logger = logging.getLogger(__name__)

_EVENTS = {"i": "INSERT", "u": "UPDATE", "d": "DELETE"}
_RIGHTS = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, TRIGGER"


def side_sql(block: str, **parts: str) -> str:
    """Return a block of side.sql."""
    return statement("side", block, own=OWN, **parts)


def open_side(session: MysqlSession, opening: SideOpening) -> None:
    """Make the database capture and accept writes as soon as the caller's transaction commits."""
    for text in opening.statements:
        session.run(text)
    at = opening.position
    session.run(position_sql(epoch=at.epoch, next_sequence=at.next_sequence, last_batch=at.last_batch))
    put_record(session, side_sql("put"), opening.record)


class MysqlSide(RelationalSide):
    """A MariaDB or MySQL database as one of two databases between which the application can switch."""

    _target: MysqlDatabase
    _session: MysqlSession

    def __init__(self, settings: Settings, name: str) -> None:
        target = MysqlDatabase(settings, name)
        super().__init__(target, target.connect("switch"))
        self._settings = settings
        self._tables = ApplicationTables(lambda: target.url)
        self._limit_lock_waits(LOCK_TIMEOUT_MS)

    def sql(self, block: str, **parts: str) -> str:
        return side_sql(block, **parts)

    @property
    def remove_mark_sql(self) -> str:
        return cutover_sql("remove_mark")

    def _limit_lock_waits(self, milliseconds: int) -> None:
        self._session.run(side_sql("lock_timeout", seconds=str(max(milliseconds // 1000, 1))))

    def _connect(self) -> MysqlConnection:
        """Connect as capture does."""
        columns = ColumnChoice.from_settings(self._settings)
        return MysqlConnection(parse_address(self._target.url, columns), "READ COMMITTED")

    # -- obstacles -------------------------------------------------------------------------------------------------

    def find_obstacles(self, tables: Seq[TableSchema]) -> list[CutoverObstacle]:
        return list(self._find_obstacles([s for s in tables if not s.is_heartbeat]))

    def _find_obstacles(self, schemas: Seq[TableSchema]) -> Iterator[CutoverObstacle]:
        session, place = self._session, self._target.description
        placed = [self._target.place(schema) for schema in schemas]
        for one in placed:
            for line in self._table_differences(one):
                yield CutoverObstacle(what=f"{place}: {line}: changes could not come back")
        named = {"tables": [one.name for one in placed] or [""]}
        for table, trigger in session.rows(side_sql("unfit_triggers"), named):
            yield CutoverObstacle(
                what=f"{place}: trigger {trigger} of {table} would fire for changes of VENUS",
                remedy="drop it, or create it again with the body IF @venus_apply IS NULL THEN ... END IF",
            )
        (role,) = session.row(side_sql("role")) or ("this user",)
        for one in placed:
            if lack := self._find_missing_right(one):
                user = "@".join(quote(part) for part in str(role).split("@"))
                yield CutoverObstacle(
                    what=f"{place}: {lack}", remedy=f"GRANT {_RIGHTS} ON {quote(session.database)}.* TO {user}"
                )

    def _table_differences(self, placed: MysqlPlacedTable) -> Iterator[str]:
        """Yield the reasons why VENUS could not write to a table of the application, one line each."""
        table = self._tables.find(placed.name)
        if table is None:
            yield f"{placed.name} does not exist"
            return
        if table.engine.lower() != "innodb":
            yield f"{placed.name} is a table of {table.engine}, which has no transactions"
        sent = {placed.fold(c.name) for c in placed.schema.columns}
        yield from (f"{placed.name} has no column {name}" for name in sorted(sent - set(table.declared)))
        for name in table.expressions:
            if name in sent:
                yield f"{placed.name}.{name} is generated and cannot be written"
        yield from self._unfilled_columns(placed, table, sent)

    @staticmethod
    def _unfilled_columns(placed: MysqlPlacedTable, table: MysqlTable, sent: set[str]) -> Iterator[str]:
        """Yield the columns that make VENUS's rows impossible: NOT NULL without a default, and not sent."""
        for column in table.columns:
            is_filled = column.nullable or column.default_sql or column.identity
            if column.name not in sent and not is_filled and column.name not in table.expressions:
                yield f"{placed.name}.{column.name} is NOT NULL without a default, and does not travel"

    def _find_missing_right(self, placed: MysqlPlacedTable) -> str:
        """Return the server's message if VENUS may not write to a table; empty if it may."""
        if self._tables.find(placed.name) is None:
            return ""
        for block in ("may_insert", "may_delete"):
            try:
                self._session.run(side_sql(block, table=placed.sql, columns=placed.wire_columns))
            except TargetError as error:
                return str(error)
        return ""

    # -- values and objects that could not come back ---------------------------------------------------------------

    def read_own_limits(self, tables: Seq[TableSchema]) -> SideLimits:
        found: dict[tuple[str, str], ColumnLimits] = {}
        for schema in tables:
            table = None if schema.is_heartbeat else self._tables.find(schema.name)
            if table is not None:
                found |= {
                    (schema.qualified_name, c.name): limit_column(c, table.declared[c.name]) for c in table.columns
                }
        return found

    def find_objects_beside(self, tables: Seq[TableSchema], others: Collection[str]) -> list[NewSideObject]:
        known = {schema.name: schema for schema in tables if not schema.is_heartbeat}
        found: list[NewSideObject] = []
        for table in self._tables.read_all():
            schema = known.get(table.name)
            if schema is not None:
                found += self._find_own_columns(schema, table)
            elif table.where not in others:
                found.append(NewSideObject(table=table.where, rows=self._count(table, "TRUE")))
        return found

    def _find_own_columns(self, schema: TableSchema, table: MysqlTable) -> Iterator[NewSideObject]:
        """Yield the columns that only this database has, with the number of rows whose value is not the default."""
        known = {c.name for c in schema.columns}
        for column in table.columns:
            if column.name not in known:
                rows = self._count(table, f"NOT ({quote(column.name)} <=> {column.default_sql or 'NULL'})")
                yield NewSideObject(table=schema.qualified_name, column=column.name, rows=rows)

    def _count(self, table: MysqlTable, condition: str) -> int:
        """Count the rows that meet a condition, up to a limit."""
        query = side_sql("count_rows", table=table.sql, condition=condition, most=str(COUNTED_MAX))
        return int(self._session.rows(query)[0][0])

    # -- the steps -------------------------------------------------------------------------------------------------

    def install(self) -> None:
        self._target.install()
        self._session.run(side_sql("create"))
        self._session.run(side_sql("create_row"))

    def reject_writes(self, record: SideRecord, tables: Seq[TableSchema]) -> None:
        self._create_triggers([schema for schema in tables if not schema.is_heartbeat])
        with transaction(self._session):
            self.put_record(record)

    def describe_open_transactions(self) -> str:
        with closing(self._connect()) as connection:
            return connections.describe_sessions(connection, "locking")

    def _create_triggers(self, schemas: Seq[TableSchema]) -> None:
        """Create the missing triggers that reject writes. Waits for transactions that have used the tables."""
        there = {name for (name,) in self._session.rows(side_sql("rejecting"))}
        database = quote(self._session.database)
        statements = []
        for schema in schemas:
            for letter, event in _EVENTS.items():
                name = f"{OWN}reject_{letter}_{schema.table_id:05}"
                if name not in there:
                    parts = {"trigger": f"{database}.{name}", "event": event, "side": f"{database}.{SIDE}"}
                    statements.append(side_sql("reject", table=self._target.place(schema).sql, **parts))
        with closing(self._connect()) as connection:
            run_statements(connection, statements)

    def registry_sql(self, block: str, **parts: str) -> str:
        return dialect_statement("registry", block, **parts)

    def read_capture(self, tables: Seq[TableSchema]) -> tuple[SourceState, Seq[str]]:
        with closing(self._connect()) as connection:
            return registry.read_state(connection), waiting_tables(connection, tables)

    def reopen(self, record: SideRecord) -> None:
        session = self._session
        with transaction(session):
            session.run(dialect_statement("registry", "unseal"))
            self.put_record(record)
        self.tidy()

    def tidy(self) -> None:
        session = self._session
        database = quote(session.database)
        self._limit_lock_waits(TIDY_TIMEOUT_MS)
        try:
            for (name,) in session.rows(side_sql("rejecting")):
                session.run(side_sql("remove_trigger", trigger=f"{database}.{quote(name)}"))
        except DatabaseUnavailable as error:
            logger.info("%s keeps triggers that do nothing: %s", self.name, error)
            return
        self._limit_lock_waits(LOCK_TIMEOUT_MS)

    def plan_own_handover(self, tables: Seq[RegisteredTable], released: Seq[RegisteredTable]) -> CaptureHandover:
        with closing(self._connect()) as connection:
            return plan_handover(connection, tables, released)

    def read_registered_versions(self) -> dict[int, TableSchema]:
        with closing(self._connect()) as connection:
            return read_registered_versions(connection)

    def follow(self, record: SideRecord, start: FollowStart) -> None:
        with closing(self._connect()) as connection:
            run_statements(connection, plan_quiet_triggers(connection))
        super().follow(record, start)
