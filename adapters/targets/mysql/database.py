"""A MariaDB or MySQL database as a relational target (VENUS 3.4), whose DDL ends the transaction."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

from venus.adapters.dialects.mysql.connection import parse_address
from venus.adapters.dialects.registry import parse_url
from venus.adapters.dialects.statements import describe_session
from venus.adapters.targets.cutover_contract import CutoverMark
from venus.adapters.targets.mysql import ddl, rowsql, tables
from venus.adapters.targets.mysql.application import ApplicationTables
from venus.adapters.targets.mysql.naming import MysqlPlacedTable, place_all, place_table
from venus.adapters.targets.mysql.rowsql import MysqlRowSql, statement
from venus.adapters.targets.mysql.session import MysqlSession, open_session
from venus.adapters.targets.relational.catalogue import TargetCatalogue
from venus.adapters.targets.relational.database import wait_for_lock
from venus.adapters.targets.relational.lock_waits import RowLockWait, wait_conditions
from venus.adapters.targets.relational.place import OWN, VersionStep, only_new_columns
from venus.adapters.targets.relational.row_database import TargetFitness
from venus.adapters.targets.relational.states import TableState
from venus.adapters.targets.relational.stepped_database import SteppedDatabase
from venus.adapters.targets.switching import OLD
from venus.config import Settings
from venus.errors import TargetError
from venus.model import TableSchema
from venus.rpc.conditions import TableCondition

logger = logging.getLogger(__name__)


def cutover_sql(block: str, **parts: str) -> str:
    """Return a block of cutover.sql."""
    return statement("cutover", block, own=OWN, **parts)


def open_database(settings: Settings, name: str, *, first_load: bool = False) -> MysqlDatabase:
    """Return the target; it connects on first use."""
    return MysqlDatabase(settings, name, first_load=first_load)


class MysqlDatabase(SteppedDatabase):
    """A MariaDB or MySQL database that is target `name` of the configuration."""

    def __init__(self, settings: Settings, name: str, *, first_load: bool = False) -> None:
        super().__init__(settings, name, rowsql, first_load=first_load)
        parse_url(self.url, f"targets.{name}.url", "write mysql+pymysql://USER@HOST:PORT/DATABASE")
        #: In a database that was the application's, the application's own tables follow.
        self.application = ApplicationTables(lambda: self.url) if name == OLD else None

    # -- sessions ------------------------------------------------------------------------------------------------------

    def connect(self, purpose: str = "apply") -> MysqlSession:
        return open_session(self, purpose)

    def install(self) -> list[str]:
        session = self.connect("install")
        try:
            if self.is_installed(session):
                return []
            statements = [statement("install", block, own=OWN) for block in statement.blocks("install")]
            for text in statements:
                session.run(text)
            return statements
        finally:
            session.close()

    def is_installed(self, session: MysqlSession) -> bool:
        found = session.row(statement("dictionary", "installed", own=OWN))
        return bool(found and found[0])

    def lock(self, session: MysqlSession, stop: threading.Event) -> bool:
        if not self.is_installed(session):
            raise self.not_loaded_error
        wait_for_lock(self, session, stop)
        return False

    def constraints_text(self, *, is_deferred: bool) -> str:
        return tables.CONSTRAINTS

    def try_disable_constraints(self, session: MysqlSession) -> bool:
        return True  # every session has them disabled

    def find_lock_waits(self, session: MysqlSession, states: dict[int, TableState]) -> list[TableCondition]:
        return wait_conditions(self._find_waits(session), states)

    def _find_waits(self, session: MysqlSession) -> Iterator[RowLockWait]:
        """Yield the locks for which the session that has locked this target waits."""
        maker = "mariadb" if tables.read_server(session).is_mariadb else "mysql"
        values = {"lock": self.group}
        try:
            rows = session.rows(statement("dictionary", f"waits_{maker}", own=OWN), values)
        except TargetError as error:  # the query needs the privilege PROCESS
            logger.debug("target %s: lock waits are not shown: %s", self.name, error)
            return
        for table, pid, user, host, command, query, since in rows:
            opened = f"transaction open since {since}, the server's time" if since else ""
            holder = describe_session(pid, f"user {user}" if user else "", host, opened, command, query=query)
            yield RowLockWait(table=table, holder=holder)

    # -- tables --------------------------------------------------------------------------------------------------------

    def place(self, schema: TableSchema) -> MysqlPlacedTable:
        return place_table(schema, self._database_name, self.config.names)

    @property
    def _database_name(self) -> str:
        return parse_address(self.url).database

    def row_sql(self, schema: TableSchema) -> MysqlRowSql:
        return MysqlRowSql(self.place(schema), self.group, self.application)

    def create_statements(self, session: MysqlSession, placed: MysqlPlacedTable) -> list[str]:
        return [ddl.create_table(placed, is_mariadb=tables.read_server(session).is_mariadb)]

    def missing_indexes(self, session: MysqlSession, placed: MysqlPlacedTable) -> list[str]:
        return tables.find_missing_indexes(session, placed)

    def plan(
        self, session: MysqlSession, catalogue: TargetCatalogue, schema: TableSchema, *, has_begun: bool, rekeying: bool
    ) -> VersionStep:
        old, new = self.place(catalogue.current_schema(schema.table_id)), self.place(schema)
        present = {
            c.name.lower(): ddl.PresentColumn(type=c.type, not_null=c.not_null)
            for c in tables.read_columns(session, old)
        }
        step = ddl.plan_step(old, new, present, self.name, has_begun=has_begun, rekeying=rekeying)
        return step if self.application is None else only_new_columns(step, " ADD COLUMN ")

    def forget_dictionary(self) -> None:
        if self.application is not None:
            self.application.forget()

    # -- resync --------------------------------------------------------------------------------------------------------

    def create_side_table(self, session: MysqlSession, sql: MysqlRowSql) -> None:
        charset = ddl.charset_sql(is_mariadb=tables.read_server(session).is_mariadb)
        session.run(sql.text("drop_side_table"))
        if self.application is not None:
            session.run(sql.text("create_side_like"))
            return
        session.run(sql.text("create_side_table", definitions=ddl.side_definitions(sql.placed), charset=charset))

    # -- load ----------------------------------------------------------------------------------------------------------

    def table_problems(self, session: MysqlSession, placed: MysqlPlacedTable) -> list[str] | None:
        there = tables.read_table(session, placed)
        return tables.table_differences(placed, there) if there is not None else None

    def examine(self, session: MysqlSession, schemas: Sequence[TableSchema]) -> TargetFitness:
        return tables.examine(self, session, schemas)

    def place_all(self, schemas: Sequence[TableSchema]) -> list[MysqlPlacedTable]:
        return place_all(schemas, self._database_name, self.config.names, self.name)

    def has_other_columns(self, session: MysqlSession, placed: MysqlPlacedTable) -> bool:
        there = tables.read_table(session, placed)
        return there is not None and bool(tables.table_differences(placed, replace(there, triggers=())))

    def has_table(self, session: MysqlSession, placed: MysqlPlacedTable) -> bool:
        return tables.read_table(session, placed) is not None

    def finish_tables(
        self, session: MysqlSession, created: Sequence[MysqlPlacedTable], everything: Sequence[MysqlPlacedTable]
    ) -> list[str]:
        """Add indexes and foreign keys after the rows; return those that the target rejects or that rows violate."""
        rejected = [line for one in created for line in self.add_indexes(session, one)]
        rejected += [line for one in created for line in tables.add_foreign_keys(session, one, everything)]
        rejected += tables.find_violated_keys(session, created)
        for line in rejected:
            logger.warning("%s", line)
        return rejected

    # -- own tables ----------------------------------------------------------------------------------------------------

    def read_mark(self, session: MysqlSession) -> CutoverMark | None:
        found = session.row(cutover_sql("installed"))
        row = session.row(cutover_sql("mark"), {"group": self.group}) if found and found[0] else None
        return CutoverMark.from_row(row) if row is not None else None
