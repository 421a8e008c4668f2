"""A MariaDB or MySQL database as a relational target (VENUS 3.4).

DDL ends its transaction here. Where a transaction needs DDL, it raises `DdlNeeded`: the apply loop rolls back, the DDL
runs with its intent written down (tables.py), and the cut is applied again. So a table may be newer than its rows for a
moment, and a cut is never applied in part.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from venus.adapters.dialects.mysql.connection import parse_address
from venus.adapters.dialects.registry import parse_url
from venus.adapters.dialects.statements import describe_session
from venus.adapters.targets.cutover_contract import CutoverMark
from venus.adapters.targets.mysql import ddl, rowsql, tables
from venus.adapters.targets.mysql.application import ApplicationTables
from venus.adapters.targets.mysql.naming import MysqlPlacedTable, place_all, place_table
from venus.adapters.targets.mysql.rowsql import MysqlRowSql, statement
from venus.adapters.targets.mysql.session import MysqlSession, open_session
from venus.adapters.targets.predicates import predicate_text
from venus.adapters.targets.relational.catalogue import TargetCatalogue
from venus.adapters.targets.relational.database import wait_for_lock
from venus.adapters.targets.relational.lock_waits import wait_conditions
from venus.adapters.targets.relational.place import OWN, VersionStep
from venus.adapters.targets.relational.row_database import RowDatabase, TargetFitness
from venus.adapters.targets.relational.session import DdlNeeded, transaction
from venus.adapters.targets.relational.states import ACTIVE, HALTED, TableState
from venus.adapters.targets.switching import OLD
from venus.config import Settings
from venus.errors import Refused, TargetError
from venus.masking.projection import source_of
from venus.model import TableSchema
from venus.predicates.ranges import compile_predicate
from venus.predicates.syntax import PredicateRefused
from venus.rpc.conditions import TableCondition

logger = logging.getLogger(__name__)


def cutover_sql(block: str, **parts: str) -> str:
    """Return a block of cutover.sql."""
    return statement("cutover", block, own=OWN, **parts)


def open_database(settings: Settings, name: str, *, first_load: bool = False) -> MysqlDatabase:
    """Return the target; it connects on first use."""
    return MysqlDatabase(settings, name, first_load=first_load)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLockWait:
    """A lock on a row of a table, or on a table, that a session waits for."""

    table: str
    holder: str


class MysqlDatabase(RowDatabase):
    """A MariaDB or MySQL database that is target `name` of the configuration."""

    def __init__(self, settings: Settings, name: str, *, first_load: bool = False) -> None:
        super().__init__(settings, name, rowsql, first_load=first_load)
        parse_url(self.url, f"targets.{name}.url", "write mysql+pymysql://USER@HOST:PORT/DATABASE")
        #: In a database that was the application's, its own tables follow.
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
        """Yield the locks that the session waits for which has locked this target."""
        maker = "mariadb" if tables.read_server(session).is_mariadb else "mysql"
        values = {"lock": self.group}
        try:
            rows = session.rows(statement("dictionary", f"waits_{maker}", own=OWN), values)
        except TargetError as error:  # it needs the privilege PROCESS
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

    def find_differences(self, session: MysqlSession) -> dict[str, tuple[str, ...]]:
        return {}

    def store_version(self, session: MysqlSession, schema: TableSchema, known: TableSchema | None) -> None:
        self.put_schema(session, schema)

    def create_stream_table(self, session: MysqlSession, schema: TableSchema, offset: int) -> None:
        placed = self.place(schema)
        predicate = predicate_text(self.config.where, schema.qualified)
        is_own = (schema.table_id, tables.created_intent(placed)) in tables.read_intents(self, session)
        try:
            if predicate:
                compile_predicate(predicate, source_of(schema))
            place_all([schema], placed.namespace, self.config.names, self.name)
            if not is_own:
                self.refuse_existing(session, [placed])
        except (Refused, PredicateRefused) as refused:
            self.put_halted(session, placed, offset, "; ".join(str(refused).split("\n")), predicate)
            return
        if tables.read_table(session, placed) is None:
            raise DdlNeeded(f"creating {schema.qualified}", lambda: self._create_table(session, placed, offset))
        if not is_own and self.config.on_existing == "truncate":
            session.run(self.row_sql(schema).text("delete_all"))
        self.put_table(session, placed, ACTIVE, offset, created=is_own, predicate=predicate)
        if is_own and (missing := tables.find_missing_indexes(session, placed)):
            reason = "; ".join(f"the target has rejected: {text}" for text in missing)
            self.run_own(session, "set_version", table_id=schema.table_id, version=schema.version, reason=reason)

    def _create_table(self, session: MysqlSession, placed: MysqlPlacedTable, offset: int) -> None:
        """Create a table, outside a transaction; one that cannot be created halts."""
        self._forget_dictionary()
        try:
            tables.create_table(self, session, placed, with_indexes=True)
        except TargetError as error:
            predicate = predicate_text(self.config.where, placed.schema.qualified)
            with transaction(session):
                self.put_schema(session, placed.schema)
                self.put_halted(session, placed, offset, str(error), predicate)
                self.run_own(session, "raise_control")

    def plan_step(
        self, session: MysqlSession, catalogue: TargetCatalogue, schema: TableSchema, *, rekeying: bool = False
    ) -> VersionStep:
        step = self._plan(session, catalogue, schema, rekeying=rekeying)
        if step.statements and not step.refused:
            raise DdlNeeded(
                f"bringing {schema.qualified} to version {schema.version}",
                lambda: self._alter_table(session, catalogue, schema, step, rekeying=rekeying),
            )
        return step

    def _plan(
        self, session: MysqlSession, catalogue: TargetCatalogue, schema: TableSchema, *, rekeying: bool
    ) -> VersionStep:
        old, new = self.place(catalogue.current_schema(schema.table_id)), self.place(schema)
        try:
            place_all([schema], new.namespace, self.config.names, self.name)
        except Refused as refused:
            return VersionStep(refused="; ".join(str(refused).split("\n")))
        present = {
            c.name.lower(): ddl.PresentColumn(type=c.type, not_null=c.not_null)
            for c in tables.read_columns(session, old)
        }
        has_begun = (schema.table_id, tables.version_intent(schema)) in tables.read_intents(self, session)
        step = ddl.plan_step(old, new, present, self.name, has_begun=has_begun, rekeying=rekeying)
        if self.application is not None and (altering := [t for t in step.statements if " ADD COLUMN " not in t]):
            return VersionStep(refused=f"only new columns follow to the old database: {'; '.join(altering)}")
        return step

    def _alter_table(
        self,
        session: MysqlSession,
        catalogue: TargetCatalogue,
        schema: TableSchema,
        step: VersionStep,
        *,
        rekeying: bool,
    ) -> None:
        """Alter a table, outside a transaction; one that cannot be altered halts."""
        table_id, sql = schema.table_id, self.row_sql(schema)
        self._forget_dictionary()
        try:
            self.run_own(session, "put_intent", table_id=table_id, name=tables.version_intent(schema))
            if catalogue.current_schema(table_id).identity != schema.identity:  # it has the former names of the key
                session.run(sql.text("drop_touched"))
            for text in step.statements:
                session.run(text)
            if not catalogue.is_recording(table_id):  # it has the former types of the key
                session.run(sql.text("drop_touched"))
            left = self._plan(session, catalogue, schema, rekeying=rekeying).statements
            problem = f"{'; '.join(left)}: the table is not as it should be afterwards" if left else ""
        except TargetError as error:
            problem = str(error)
        if problem:
            with transaction(session):
                self.set_state(session, table_id, HALTED, held_from=catalogue.position.offset, reason=problem)
                self.run_own(session, "raise_control")

    def _forget_dictionary(self) -> None:
        if self.application is not None:
            self.application.forget()

    def start_recording(self, session: MysqlSession, sql: MysqlRowSql, *, is_recording: bool) -> None:
        if not is_recording:
            self._require_touched(session, sql)

    def _require_touched(self, session: MysqlSession, sql: MysqlRowSql) -> None:
        """Empty the table of recorded keys. Raises DdlNeeded if it has to be made."""
        if session.row(sql.text("find_touched")) is None:
            what = f"recording changed keys of {sql.placed.qualified}"
            raise DdlNeeded(what, lambda: self._make_touched(session, sql))
        session.run(sql.text("forget_touched"))

    def _make_touched(self, session: MysqlSession, sql: MysqlRowSql) -> None:
        session.run(sql.text("drop_touched"))
        session.run(sql.text("create_touched"))

    def forget_recorded(self, session: MysqlSession, sql: MysqlRowSql) -> None:
        self._require_touched(session, sql)

    def end_recording(self, session: MysqlSession, sql: MysqlRowSql) -> None:
        if session.row(sql.text("find_touched")) is not None:
            session.run(sql.text("forget_touched"))

    # -- resync --------------------------------------------------------------------------------------------------------

    def create_side(self, session: MysqlSession, sql: MysqlRowSql) -> None:
        charset = ddl.charset_sql(is_mariadb=tables.read_server(session).is_mariadb)
        session.run(sql.text("drop_side"))
        if self.application is not None:
            session.run(sql.text("create_side_like"))
            return
        session.run(sql.text("create_side", definitions=ddl.side_definitions(sql.placed), charset=charset))

    # -- load ----------------------------------------------------------------------------------------------------------

    def table_problems(self, session: MysqlSession, placed: MysqlPlacedTable) -> list[str] | None:
        there = tables.read_table(session, placed)
        return tables.table_differences(placed, there) if there is not None else None

    def has_rows(self, session: MysqlSession, placed: MysqlPlacedTable) -> bool:
        return tables.has_rows(session, placed)

    def examine(self, session: MysqlSession, schemas: Sequence[TableSchema]) -> TargetFitness:
        return tables.examine(self, session, schemas)

    def place_all(self, schemas: Sequence[TableSchema]) -> list[MysqlPlacedTable]:
        return place_all(schemas, self._database_name, self.config.names, self.name)

    def prepare_load(self, session: MysqlSession, placed: Sequence[MysqlPlacedTable]) -> None:
        known = {t.name: t for t in self.read_tables(session)}
        intents = tables.read_intents(self, session)
        own = [one for one in placed if (one.schema.table_id, tables.created_intent(one)) in intents]
        self.refuse_existing(session, [one for one in placed if one.name not in known and one not in own])
        for one in placed:
            there = tables.read_table(session, one)
            is_own = one in own or (one.name in known and known[one.name].created)
            if there is not None and is_own and tables.table_differences(one, replace(there, triggers=())):
                self.run_own(session, "remove_position")  # before the rows of an older version: it is not loaded then
                session.run(f"DROP TABLE {one.sql}")
                there = None
            if there is None:
                tables.create_table(self, session, one, with_indexes=False)

    def make_tables(
        self, session: MysqlSession, placed: Sequence[MysqlPlacedTable], before: Mapping[tuple[str, str], TableState]
    ) -> set[int]:
        intents = tables.read_intents(self, session)
        created: set[int] = set()
        for one in placed:
            known = before.get((one.namespace, one.name))
            is_own = (one.schema.table_id, tables.created_intent(one)) in intents
            if is_own or (known is not None and known.created):
                created.add(one.schema.table_id)
            if is_own or known is not None or self.config.on_existing == "truncate":
                session.run(f"DELETE FROM {one.sql}")
        return created

    def has_table(self, session: MysqlSession, placed: MysqlPlacedTable) -> bool:
        return tables.read_table(session, placed) is not None

    def count_rows(self, session: MysqlSession, placed: MysqlPlacedTable) -> int:
        return tables.count_rows(session, placed)

    def finish_tables(
        self, session: MysqlSession, created: Sequence[MysqlPlacedTable], everything: Sequence[MysqlPlacedTable]
    ) -> list[str]:
        rejected = [line for one in created for line in tables.add_indexes(session, one)]
        rejected += [line for one in created for line in tables.add_foreign_keys(session, one, everything)]
        rejected += tables.find_violated_keys(session, created)
        for line in rejected:
            logger.warning("%s", line)
        return rejected

    # -- own tables ----------------------------------------------------------------------------------------------------

    def own_sql(self, name: str) -> str:
        return statement("own", name, own=OWN)

    def read_mark(self, session: MysqlSession) -> CutoverMark | None:
        found = session.row(cutover_sql("installed"))
        row = session.row(cutover_sql("mark"), {"group": self.group}) if found and found[0] else None
        return CutoverMark.from_row(row) if row is not None else None
