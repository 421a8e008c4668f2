"""A PostgreSQL database that may become the application's and be taken back (`venus cutover --fall-back`).

Writes are rejected by a trigger on each table and partition. CREATE TRIGGER waits for transactions that wrote to the
table, so the application cannot write after the transaction that creates the triggers.

While a database follows the other one, it keeps its capture triggers, which do not log changes by its pipeline's
sessions; these sessions set venus.follows (session.py). Changes by another pipeline are logged or rejected like those
of the application. The application's foreign keys and triggers do not fire in the pipeline's sessions
(session_replication_role = replica), so nothing has to be switched off and on again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from collections.abc import Sequence as Seq
from contextlib import closing, suppress
from dataclasses import replace

from venus.adapters.dialects import has_upper_case_names
from venus.adapters.dialects.column_choice import ColumnChoice
from venus.adapters.dialects.contract import RegisteredTable, SourceState
from venus.adapters.dialects.handover_rules import CaptureHandover
from venus.adapters.dialects.postgresql import sql as names
from venus.adapters.dialects.postgresql.connection import PostgresConnection
from venus.adapters.dialects.postgresql.dictionary.tables import PostgresTable, application_tables, read_all_tables
from venus.adapters.dialects.postgresql.installation.handover import (
    plan_handover,
    position_sql,
    read_present_tables,
    read_registered_versions,
)
from venus.adapters.dialects.postgresql.installation.other_pipelines import OtherPipelines, read_own_tables
from venus.adapters.dialects.postgresql.lock_waits import find_open_transactions
from venus.adapters.dialects.postgresql.sql import statement as dialect_statement
from venus.adapters.dialects.registry import replace_own_options
from venus.adapters.dialects.registry_rules import source_state
from venus.adapters.targets.cutover_contract import (
    ColumnLimits,
    CutoverObstacle,
    NewSideObject,
    SideLimits,
    SideOpening,
)
from venus.adapters.targets.postgresql.database import PostgresDatabase, cutover_sql
from venus.adapters.targets.postgresql.naming import OWN_SCHEMA, quote, quote_literal
from venus.adapters.targets.postgresql.schema import existing
from venus.adapters.targets.postgresql.session import (
    TargetSession,
    limit_lock_waits,
    statement,
    try_replica_role,
)
from venus.adapters.targets.relational.names import PostgresNames
from venus.adapters.targets.relational.session import transaction
from venus.adapters.targets.relational.sides import (
    LOCK_TIMEOUT_MS,
    TIDY_TIMEOUT_MS,
    RelationalSide,
    missing_right,
    put_record,
    rename_table,
)
from venus.adapters.targets.switching import SideRecord
from venus.adapters.targets.way_back import COUNTED_MAX, travelling_limits
from venus.config import Settings
from venus.errors import DatabaseUnavailable, TargetError
from venus.model import Column, Kind, TableSchema

logger = logging.getLogger(__name__)


def side_sql(block: str, **parts: str) -> str:
    """Return a block of side.sql."""
    return statement("side", block, own=OWN_SCHEMA, **parts)


def open_side(session: TargetSession, opening: SideOpening) -> None:
    """Make the database capture and accept writes as soon as the caller's transaction commits."""
    for text in opening.statements:
        session.run(text)
    at = opening.position
    session.run(position_sql(epoch=at.epoch, next_sequence=at.next_sequence, last_batch=at.last_batch))
    put_record(session, side_sql("put"), opening.record)
    session.run(side_sql("accept"))


class PostgresSide(RelationalSide):
    """A PostgreSQL database as one of the two between which the application can switch."""

    _target: PostgresDatabase
    _session: TargetSession

    def __init__(self, settings: Settings, name: str) -> None:
        target = PostgresDatabase(settings, name)
        super().__init__(target, target.connect("switch"))
        self._settings = settings

    def sql(self, block: str, **parts: str) -> str:
        return side_sql(block, **parts)

    @property
    def remove_mark_sql(self) -> str:
        return cutover_sql("remove_mark")

    # -- obstacles -------------------------------------------------------------------------------------------------

    def find_obstacles(self, tables: Seq[TableSchema]) -> list[CutoverObstacle]:
        return list(self._find_obstacles([s for s in tables if not s.is_heartbeat]))

    def _find_obstacles(self, tables: Seq[TableSchema]) -> Iterator[CutoverObstacle]:
        """Yield what prevents VENUS from applying changes to these tables, such as missing rights or other columns."""
        session, place = self._session, self._target.description
        (role,) = session.row(side_sql("role")) or ("this role",)
        if not self._try_replica_role():
            yield CutoverObstacle(
                what=f"{place}: {role} may not set session_replication_role, so the application's triggers would fire",
                remedy=f"GRANT SET ON PARAMETER session_replication_role TO {role}",
            )
        there, differences = [], []
        for schema in tables:
            placed = self._target.place(schema)
            found = existing.read_table(session, placed)
            if found is not None:
                there.append(placed.sql)
            differences += (
                existing.table_differences(placed, found) if found else [f"{placed.qualified_name} does not exist"]
            )
        yield from (CutoverObstacle(what=f"{place}: {line}: changes could not come back") for line in differences)
        named = {"tables": there}
        for table, name, how in session.rows(side_sql("unfit_triggers"), named):
            yield CutoverObstacle(
                what=f"{place}: trigger {name} of {table} is ENABLE {how}, so it would fire for changes of VENUS",
                remedy=f"ALTER TABLE {table} ENABLE TRIGGER {name}",
            )
        for table, column in session.rows(side_sql("unfit_columns"), named):
            yield CutoverObstacle(
                what=f"{place}: {table}.{column} is GENERATED ALWAYS outside the key, so it cannot be updated",
                remedy=f"ALTER TABLE {table} ALTER COLUMN {column} SET GENERATED BY DEFAULT",
            )
        for table, right in session.rows(side_sql("missing_rights"), named):
            yield missing_right(place, role, right, table)
        for (table,) in session.rows(side_sql("hidden_rows"), named):
            yield CutoverObstacle(
                what=f"{place}: row security hides rows of {table} from {role}",
                remedy=f"ALTER ROLE {role} BYPASSRLS",
            )

    def _try_replica_role(self) -> bool:
        """Set session_replication_role for a moment; return whether the role may do so."""
        may = try_replica_role(self._session)
        with suppress(TargetError):  # RESET needs the same right
            self._session.run("RESET session_replication_role")
        return may

    # -- values and objects that could not come back ---------------------------------------------------------------

    def read_own_limits(self, tables: Seq[TableSchema]) -> SideLimits:
        (charset, version) = self._session.row(side_sql("encoding")) or ("", 0)
        return {
            (f"{place[0]}.{place[1]}", column.name): limit_column(column, table, charset, version)
            for place, table in self._read_present(tables).items()
            for column in table.columns
        }

    def find_objects_beside(self, tables: Seq[TableSchema], others: Collection[str]) -> list[NewSideObject]:
        return [*self._find_own_columns(tables), *self._find_own_tables(tables, others)]

    def _find_own_columns(self, tables: Seq[TableSchema]) -> Iterator[NewSideObject]:
        """Yield the columns that only this database has, with the number of rows whose value is not the default."""
        there = self._read_present(tables)
        for schema in tables:
            table = there.get((schema.namespace, schema.name))
            known = {c.name for c in schema.columns}
            for column in table.columns if table is not None else ():
                if table is not None and column.name not in known:
                    count = side_sql(
                        "count_values",
                        table=table.from_sql,
                        column=quote(column.name),
                        value=column.default_sql or "NULL",
                        most=str(COUNTED_MAX),
                    )
                    rows = self._count(count)
                    yield NewSideObject(table=schema.qualified_name, column=column.name, rows=rows)

    def _find_own_tables(self, tables: Seq[TableSchema], others: Collection[str]) -> Iterator[NewSideObject]:
        """Yield the tables in the schemas of `tables` that `others` lacks, with their numbers of rows."""
        namespaces = {schema.namespace for schema in tables if not schema.is_heartbeat}
        with closing(self._connect()) as connection:
            present = application_tables(read_all_tables(connection))
        for row in present:
            namespace, name = row[1], row[2]
            if namespace in namespaces and f"{namespace}.{name}" not in others:
                table = f"{quote(namespace)}.{quote(name)}"
                rows = self._count(side_sql("count_rows", table=table, most=str(COUNTED_MAX)))
                yield NewSideObject(table=f"{namespace}.{name}", rows=rows)

    def _count(self, text: str) -> int:
        """Run a query that counts, and return the number."""
        return int(self._session.rows(text)[0][0])

    def _read_present(self, tables: Seq[TableSchema]) -> dict[tuple[str, str], PostgresTable]:
        """Return the present descriptions of these tables from the dictionary, by schema and name."""
        with closing(self._connect()) as connection, connection.snapshot():
            return read_present_tables(connection, [t for t in tables if not t.is_heartbeat])

    # -- the steps -------------------------------------------------------------------------------------------------

    def install(self) -> None:
        self._target.install()
        self._session.run(side_sql("create"))

    def rename(self, schema: TableSchema) -> TableSchema:
        is_folded = has_upper_case_names(schema.source_dialect) and not schema.is_heartbeat
        return rename_table(schema, self._target.place(schema)) if is_folded else schema

    def rename_tables(self, names: Collection[str], tables: Seq[TableSchema]) -> Collection[str]:
        config, dialect = self._target.config, next((t.source_dialect for t in tables), "")
        if not has_upper_case_names(dialect):
            return names
        rule = PostgresNames(names=config.names, schema_of_all=config.schema_)
        parts = (name.partition(".") for name in names)
        return {f"{rule.namespace(namespace, dialect)}.{rule.fold(name, dialect)}" for namespace, _, name in parts}

    def reject_writes(self, record: SideRecord, tables: Seq[TableSchema]) -> None:
        session = self._session
        placed = [self._target.place(schema) for schema in tables if not schema.is_heartbeat]
        relations = session.rows(side_sql("relations"), {"tables": [one.sql for one in placed]})
        blocks = ["reject", "reject_always"] if self._has_other_pipelines() else ["reject"]
        with transaction(session):
            self.put_record(record)
            session.run(side_sql("reject_function", peer=quote_literal(record.peer)))
            for (relation,) in relations:
                for block in blocks:
                    session.run(side_sql(block, table=relation))

    def _has_other_pipelines(self) -> bool:
        """Return whether another pipeline of VENUS may write to this database."""
        with closing(self._connect()) as connection:
            found = OtherPipelines.read(connection, read_own_tables(connection))
        return any(group != self._target.group for group in found.groups)

    def describe_open_transactions(self) -> str:
        return "; ".join(wait.holder for wait in find_open_transactions(self._session))

    def registry_sql(self, block: str, **parts: str) -> str:
        return dialect_statement("registry", block, **parts)

    def read_capture(self, tables: Seq[TableSchema]) -> tuple[SourceState, Seq[str]]:
        state = self._session.row(self.registry_sql("state"))
        assert state is not None
        return source_state(state), self._find_waiting(tables)

    def _find_waiting(self, tables: Iterable[TableSchema]) -> list[str]:
        """Return the tables whose log has changes that capture has not read."""
        session = self._session
        return [
            schema.qualified_name
            for schema in tables
            if not schema.is_heartbeat
            and session.row(f"SELECT EXISTS (SELECT FROM {names.log_table_name(schema.table_id)})") == (True,)
        ]

    def reopen(self, record: SideRecord) -> None:
        session = self._session
        with transaction(session):
            session.run(dialect_statement("registry", "unseal"))
            self.put_record(record)
            session.run(side_sql("accept"))
        self.tidy()

    def tidy(self) -> None:
        limit_lock_waits(self._session, TIDY_TIMEOUT_MS)
        try:
            self._session.run(side_sql("remove_triggers"))
        except DatabaseUnavailable as error:
            logger.info("%s keeps triggers that do nothing: %s", self.name, error)
            return
        limit_lock_waits(self._session, LOCK_TIMEOUT_MS)

    def plan_own_handover(self, tables: Seq[RegisteredTable], released: Seq[RegisteredTable]) -> CaptureHandover:
        with closing(self._connect()) as connection:
            return plan_handover(connection, tables, released)

    def _connect(self) -> PostgresConnection:
        """Connect to this database with the settings of capture."""
        source = self._settings.source.url.get_secret_value()
        url = replace_own_options(self._target.url, source, f"url of {self.name}")
        columns = ColumnChoice.from_settings(self._settings)
        return PostgresConnection(url, application="venus switch", columns=columns)

    def read_registered_versions(self) -> dict[int, TableSchema]:
        with closing(self._connect()) as connection:
            return read_registered_versions(connection)


#: The first version of PostgreSQL in which the type has an infinity.
_INFINITE_SINCE = {Kind.DECIMAL: 140_000, Kind.INTERVAL: 170_000}


def limit_column(column: Column, table: PostgresTable, charset: str, version: int) -> ColumnLimits:
    """Return the limits of the values that a column of a PostgreSQL database can hold. Pure."""
    limits = travelling_limits(column, table.types)
    kind = column.type.element if column.type.element is not None else column.type
    is_text = kind.kind in (Kind.TEXT, Kind.CHAR, Kind.JSON, Kind.NATIVE)
    missing = {"infinity"} if version < _INFINITE_SINCE.get(kind.kind, 0) else set()
    return replace(
        limits,
        charset=charset if is_text and charset != "UTF8" else "",
        specials=limits.specials - missing,
    )
