"""An Oracle database as a relational target (VENUS 3.4), whose DDL ends the transaction."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from venus.adapters.dialects.statements import describe_session
from venus.adapters.targets.cutover_contract import CutoverMark
from venus.adapters.targets.oracle import ddl, rowsql, tables
from venus.adapters.targets.oracle.application import (
    OracleApplicationTables,
    OracleFollowerPlace,
    find_own_names,
    refuse_lost_names,
)
from venus.adapters.targets.oracle.ddl import OraclePlacedTable, place_all, place_table
from venus.adapters.targets.oracle.rowsql import OracleTableStatements, statement
from venus.adapters.targets.oracle.session import OracleTargetSession, open_session
from venus.adapters.targets.registry import FormerSource
from venus.adapters.targets.relational.catalogue import TargetCatalogue
from venus.adapters.targets.relational.database import wait_for_lock
from venus.adapters.targets.relational.lock_waits import RowLockWait, wait_conditions
from venus.adapters.targets.relational.names import PostgresNames
from venus.adapters.targets.relational.own_tables import StoredMicroseconds, to_moment
from venus.adapters.targets.relational.place import VersionStep, only_new_columns
from venus.adapters.targets.relational.row_database import TargetFitness
from venus.adapters.targets.relational.session import RelationalSession
from venus.adapters.targets.relational.states import TableState
from venus.adapters.targets.relational.stepped_database import SteppedDatabase, try_all
from venus.config import Settings
from venus.errors import TargetError
from venus.model import TableSchema
from venus.rpc.conditions import TableCondition

logger = logging.getLogger(__name__)

#: The columns of these queries whose texts may be empty; Oracle stores an empty text as NULL.
_TEXTS: dict[str, dict[int, str | bytes]] = {
    "position": {9: ""},
    "tables": {2: "", 7: "", 14: ""},
    "list_quarantine": {5: "", 8: "", 9: "", 10: b"", 13: ""},
}
_BEFORE = TableState.__slots__.index("predicate_before")


def cutover_sql(block: str, **parts: str) -> str:
    """Return a block of cutover.sql."""
    return statement("cutover", block, **parts)


def side_sql(block: str, **parts: str) -> str:
    """Return a block of side.sql."""
    return statement("side", block, **parts)


def open_database(settings: Settings, name: str, *, first_load: bool = False) -> OracleTargetDatabase:
    """Return the target; it connects on first use."""
    return OracleTargetDatabase(settings, name, first_load=first_load)


class OracleTargetDatabase(StoredMicroseconds, SteppedDatabase):
    """An Oracle database that is target `name` of the configuration."""

    def __init__(self, settings: Settings, name: str, *, first_load: bool = False) -> None:
        super().__init__(settings, name, rowsql, first_load=first_load)
        #: In a database that was the application's, the application's own tables follow.
        self.application: OracleApplicationTables | None = None
        if isinstance(config := self.config, FormerSource):
            self.application = OracleApplicationTables(lambda: self.url, config.captured.type_map)

    @property
    def source_settings(self) -> Settings:
        """The settings with which this database is captured."""
        assert isinstance(self.config, FormerSource)
        return self.settings.model_copy(update={"source": self.config.captured})

    @property
    def other_names(self) -> PostgresNames:
        """The rule by which the other database of a pair converts the names of this one."""
        return PostgresNames(names=self.config.names, schema_of_all=self.config.schema_)

    # -- sessions ------------------------------------------------------------------------------------------------------

    def connect(self, purpose: str = "apply") -> OracleTargetSession:
        session = open_session(self, purpose)
        if self.application is not None:
            session.mark_as_applying()
        return session

    def install(self) -> list[str]:
        session = self.connect("install")
        try:
            if self.is_installed(session):
                return []
            statements = [statement("install", block) for block in statement.blocks("install")]
            for text in statements:
                session.run(text)
            return statements
        finally:
            session.close()

    def is_installed(self, session: OracleTargetSession) -> bool:
        found = session.row(statement("dictionary", "installed"), {"owner": session.schema})
        return bool(found and found[0])

    def lock(self, session: OracleTargetSession, stop: threading.Event) -> bool:
        if not self.is_installed(session):
            raise self.not_loaded_error
        wait_for_lock(self, session, stop)
        return False

    def try_lock(self, session: RelationalSession) -> bool:
        assert isinstance(session, OracleTargetSession)
        return session.try_lock(self.own_sql("make_lock"), self.own_sql("try_lock"), {"group": self.group})

    def constraints_text(self, *, is_deferred: bool) -> str:
        return tables.CONSTRAINTS

    def try_disable_constraints(self, session: OracleTargetSession) -> bool:
        return True  # `check` refuses tables whose foreign keys are enabled

    def find_lock_waits(self, session: OracleTargetSession, states: dict[int, TableState]) -> list[TableCondition]:
        action = f"apply {self.group}"[:32]
        try:
            rows = session.rows(statement("dictionary", "waits"), {"action": action})
        except TargetError as error:  # V$SESSION needs a grant
            logger.debug("target %s: lock waits are not shown: %s", self.name, error)
            return []
        waits = []
        for table, sid, user, machine, status, since in rows:
            holder = describe_session(sid, f"user {user}", machine or "", (status or "").lower(), f"since {since}")
            waits.append(RowLockWait(table=f"{session.schema}.{table}" if table else "", holder=holder))
        return wait_conditions(waits, states)

    # -- tables --------------------------------------------------------------------------------------------------------

    @property
    def _user(self) -> str:
        return (sa.make_url(self.url).username or "").upper()

    def place(self, schema: TableSchema) -> OraclePlacedTable:
        if (here := self.application) is not None:
            own = find_own_names(schema, here.find_last_captured_version(schema.table_id), here.user, self.other_names)
            found = here.find(own.table)
            return OracleFollowerPlace(
                schema=schema, namespace=here.user, name=own.table, application=found, own_names=own
            )
        return place_table(schema, self._user, self.config.names)

    def place_all(self, schemas: Sequence[TableSchema]) -> list[OraclePlacedTable]:
        if self.application is not None:
            placed = [self.place(schema) for schema in schemas if not schema.is_heartbeat]
            refuse_lost_names(placed)
            return placed
        return place_all(schemas, self._user, self.config.names, self.name)

    def has_table(self, session: OracleTargetSession, placed: OraclePlacedTable) -> bool:
        return tables.has_table(session, placed)

    def has_other_columns(self, session: OracleTargetSession, placed: OraclePlacedTable) -> bool:
        there = tables.read_table(session, placed)
        if there is None:
            return False
        return bool(tables.table_differences(placed, replace(there, triggers=(), foreign_keys=())))

    def table_problems(self, session: OracleTargetSession, placed: OraclePlacedTable) -> list[str] | None:
        there = tables.read_table(session, placed)
        return tables.table_differences(placed, there) if there is not None else None

    def examine(self, session: OracleTargetSession, schemas: Sequence[TableSchema]) -> TargetFitness:
        return tables.examine(self, session, schemas)

    def create_statements(self, session: OracleTargetSession, placed: OraclePlacedTable) -> list[str]:
        created = ddl.create_table(placed).replace("CREATE TABLE ", "CREATE TABLE IF NOT EXISTS ", 1)
        return [created, *ddl.comment_statements(placed)]

    def missing_indexes(self, session: OracleTargetSession, placed: OraclePlacedTable) -> list[str]:
        return tables.find_missing_indexes(session, placed)

    def plan(
        self,
        session: OracleTargetSession,
        catalogue: TargetCatalogue,
        schema: TableSchema,
        *,
        has_begun: bool,
        rekeying: bool,
    ) -> VersionStep:
        old, new = self.place(catalogue.current_schema(schema.table_id)), self.place(schema)
        present = {c.name: c for c in tables.read_columns(session, old.name)}
        step = ddl.plan_step(old, new, present, self.name, has_begun=has_begun, rekeying=rekeying)
        return step if self.application is None else only_new_columns(step, " ADD (")

    def read_columns(self, session: OracleTargetSession, name: str) -> Sequence[ddl.OracleTargetColumn]:
        """Read the columns of a table; empty if it does not exist."""
        return tables.read_columns(session, name)

    def forget_dictionary(self) -> None:
        if self.application is not None:
            self.application.forget()

    def create_side_table(self, session: OracleTargetSession, sql: OracleTableStatements) -> None:
        session.run(sql.text("drop_side_table"))
        session.run(sql.text("create_side_table"))

    def finish_tables(
        self,
        session: OracleTargetSession,
        created: Sequence[OraclePlacedTable],
        everything: Sequence[OraclePlacedTable],
    ) -> list[str]:
        """Add indexes and disabled foreign keys after the rows; return those that the target rejects."""
        rejected = [line for one in created for line in self.add_indexes(session, one)]
        for one in created:
            rejected += try_all(session, tables.find_missing_foreign_keys(session, one, everything))
        for line in rejected:
            logger.warning("%s", line)
        return rejected

    # -- own tables ----------------------------------------------------------------------------------------------------

    def run_own(self, session: RelationalSession, name: str, /, **params: Any) -> int:
        """Run a statement on VENUS's own tables; for a list of quarantined rows, run it once per row."""
        if name != "decide_quarantine":
            return super().run_own(session, name, **params)
        ids = params.pop("ids")
        return sum(super(OracleTargetDatabase, self).run_own(session, name, id=one, **params) for one in ids)

    def read_own_rows(self, session: RelationalSession, name: str, /, **params: Any) -> list[tuple[Any, ...]]:
        """Read rows of VENUS's own tables, with empty texts restored, which Oracle stores as NULL."""
        found = super().read_own_rows(session, name, **params)
        if not (empty := _TEXTS.get(name)):
            return found
        rows: list[list[Any]] = [[empty.get(n) if v is None else v for n, v in enumerate(row)] for row in found]
        if name == "tables":
            for row in rows:
                row[_BEFORE] = row[_BEFORE] and row[_BEFORE].removeprefix("=")  # "=" precedes a text that may be empty
        return [tuple(row) for row in rows]

    def read_mark(self, session: OracleTargetSession) -> CutoverMark | None:
        found = session.row(side_sql("exists")) if self.application is not None else None
        row = session.row(cutover_sql("mark"), {"group": self.group}) if found and found[0] else None
        if row is None:
            return None
        *known, marked_at, done_at = row
        return CutoverMark.from_row([*known, to_moment(marked_at), to_moment(done_at)])
