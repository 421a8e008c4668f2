"""A SQLite file as a relational target (VENUS 3.4).

DDL is part of the transaction that needs it. The file has one writer at a time. So a load runs one task at a time, and
a resync writes its side table in short transactions, between which the stream continues.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence

from venus.adapters.dialects.sqlite.connection import connect, parse_file_url
from venus.adapters.dialects.sqlite.installation.schema_changes import note_own_changes
from venus.adapters.targets.cutover_contract import CutoverMark
from venus.adapters.targets.predicates import predicate_text
from venus.adapters.targets.relational.catalogue import TargetCatalogue
from venus.adapters.targets.relational.database import wait_for_lock
from venus.adapters.targets.relational.own_tables import StoredMicroseconds, to_moment
from venus.adapters.targets.relational.place import OWN, VersionStep
from venus.adapters.targets.relational.row_database import RowDatabase, TargetFitness
from venus.adapters.targets.relational.session import RelationalSession, transaction
from venus.adapters.targets.relational.states import ACTIVE, TableState
from venus.adapters.targets.sqlite import ddl, rowsql, tables
from venus.adapters.targets.sqlite.application import SqliteApplicationTables
from venus.adapters.targets.sqlite.ddl import SqlitePlacedTable, place_all, place_table
from venus.adapters.targets.sqlite.file import find_writer
from venus.adapters.targets.sqlite.rowsql import SqliteTableStatements, statement
from venus.adapters.targets.sqlite.session import SqliteSession, open_session
from venus.adapters.targets.switching import OLD, url_option
from venus.codec.stored_rows import FullRows
from venus.config import Settings
from venus.errors import Refused, TargetError
from venus.masking.projection import source_of
from venus.model import TableSchema
from venus.predicates.ranges import compile_predicate
from venus.predicates.syntax import PredicateRefused
from venus.rpc.conditions import WAITING, TableCondition

logger = logging.getLogger(__name__)


def cutover_sql(block: str, **parts: str) -> str:
    """Return a block of cutover.sql."""
    return statement("cutover", block, own=OWN, **parts)


def open_database(settings: Settings, name: str, *, first_load: bool = False) -> SqliteDatabase:
    """Return the target; it opens the file on first use."""
    return SqliteDatabase(settings, name, first_load=first_load)


class _WaitReporter:
    """Reporter of a session's waits for the write lock; the session calls it while it waits."""

    def __init__(self, session: SqliteSession, tell: Callable[[list[TableCondition]], None]) -> None:
        self._session, self._tell = session, tell
        session.on_wait = self._report

    def _report(self, holder: str) -> None:
        """Report a wait for this holder of the lock; an empty text means that the wait has ended."""
        self._tell([_lock_condition(self._session, holder)] if holder else [])

    def close(self) -> None:
        """Stop reporting."""
        self._session.on_wait = lambda _: None


def _lock_condition(session: SqliteSession, holder: str) -> TableCondition:
    """Return the condition that a session waits for the write lock that `holder` has."""
    reason = f"for the write lock of {session.file}, which {holder} holds"
    return TableCondition(table_id=0, name=session.file.name, state=WAITING, reason=reason)


class SqliteDatabase(StoredMicroseconds, RowDatabase):
    """A SQLite file that is target `name` of the configuration."""

    def __init__(self, settings: Settings, name: str, *, first_load: bool = False) -> None:
        super().__init__(settings, name, rowsql, first_load=first_load)
        #: In a file that was the application's, the application's own tables follow.
        self.application = SqliteApplicationTables(self._connect_reader) if name == OLD else None

    def _connect_reader(self) -> sqlite3.Connection:
        return connect(parse_file_url(self.url, url_option(self.name)))

    # -- sessions ------------------------------------------------------------------------------------------------------

    def connect(self, purpose: str = "apply") -> SqliteSession:
        return open_session(self, purpose)

    def install(self) -> list[str]:
        session = self.connect("install")
        try:
            option = url_option(self.name)
            tables.refuse_foreign_file(session, option)
            tables.enter_wal_mode(session, option)
            if self.is_installed(session):
                return []
            strict = "STRICT" if self.application is None else ""
            statements = [statement("install", block, own=OWN, strict=strict) for block in statement.blocks("install")]
            with transaction(session), note_own_changes(session.connection):
                for text in statements:
                    session.run(text)
            return statements
        finally:
            session.close()

    def is_installed(self, session: SqliteSession) -> bool:
        return tables.is_installed(session)

    def lock(self, session: SqliteSession, stop: threading.Event) -> bool:
        if not self.is_installed(session):
            raise self.not_loaded_error
        wait_for_lock(self, session, stop)
        tables.enter_wal_mode(session, url_option(self.name))  # another program may have changed the WAL mode
        return False

    def try_lock(self, session: RelationalSession) -> bool:
        assert isinstance(session, SqliteSession)
        return session.try_lock()

    def constraints_text(self, *, is_deferred: bool) -> str:
        return tables.CONSTRAINTS

    def try_disable_constraints(self, session: SqliteSession) -> bool:
        return True  # every session has them disabled

    def watch_lock_waits(
        self,
        session: SqliteSession,
        states: Callable[[], dict[int, TableState]],
        tell: Callable[[list[TableCondition]], None],
    ) -> _WaitReporter:
        return _WaitReporter(session, tell)

    def find_lock_waits(self, session: SqliteSession, states: dict[int, TableState]) -> list[TableCondition]:
        """Return the wait for the file's write lock if another process holds it."""
        # a transaction of VENUS itself holds the target's own lock as well
        holder = find_writer(session.file)
        return [_lock_condition(session, holder)] if holder and holder != session.find_worker() else []

    # -- tables --------------------------------------------------------------------------------------------------------

    def place(self, schema: TableSchema) -> SqlitePlacedTable:
        return place_table(schema, self.config.names, is_application=self.application is not None)

    def place_all(self, schemas: Sequence[TableSchema]) -> list[SqlitePlacedTable]:
        return place_all(schemas, self.config.names, self.name, is_application=self.application is not None)

    def row_sql(self, schema: TableSchema) -> SqliteTableStatements:
        return SqliteTableStatements(self.place(schema), self.group, self.application)

    def table_problems(self, session: SqliteSession, placed: SqlitePlacedTable) -> list[str] | None:
        there = tables.read_table(session, placed)
        return tables.table_differences(placed, there) if there is not None else None

    def examine(self, session: SqliteSession, schemas: Sequence[TableSchema]) -> TargetFitness:
        return tables.examine(self, session, schemas)

    def find_differences(self, session: SqliteSession) -> dict[str, tuple[str, ...]]:
        return {}

    def store_version(self, session: SqliteSession, schema: TableSchema, known: TableSchema | None) -> None:
        self.put_schema(session, schema)

    def create_stream_table(self, session: SqliteSession, schema: TableSchema, offset: int) -> None:
        placed = self.place(schema)
        predicate = predicate_text(self.config.where, schema.qualified_name)
        session.run("SAVEPOINT venus_create")
        try:
            if predicate:
                compile_predicate(predicate, source_of(schema))
            self.place_all([schema])
            self.refuse_existing(session, [placed])
            created = not self.has_table(session, placed)
            if created:
                session.run(ddl.create_table(placed))
                if self.application is not None:
                    self.application.read_again(session)
                for text in ddl.index_statements(placed):
                    session.run(text)
            elif self.config.on_existing == "truncate":
                session.run(f"DELETE FROM {placed.sql}")
        except (Refused, PredicateRefused, TargetError) as refused:
            session.run("ROLLBACK TO SAVEPOINT venus_create; RELEASE SAVEPOINT venus_create")
            self.put_halted(session, placed, offset, "; ".join(str(refused).split("\n")), predicate)
            return
        session.run("RELEASE SAVEPOINT venus_create")
        self.put_table(session, placed, ACTIVE, offset, created=created, predicate=predicate)

    def plan_step(
        self, session: SqliteSession, catalogue: TargetCatalogue, schema: TableSchema, *, rekeying: bool = False
    ) -> VersionStep:
        try:
            self.place_all([schema])
        except Refused as refused:
            return VersionStep(refused="; ".join(str(refused).split("\n")))
        old, new = self.place(catalogue.current_schema(schema.table_id)), self.place(schema)
        present = {c.name.lower(): c for c in tables.read_columns(session, old)}
        step = ddl.plan_step(old, new, present, self.name, rekeying=rekeying)
        return step if self.application is None else self._alter_table(session, self.application, step)

    @staticmethod
    def _alter_table(session: SqliteSession, application: SqliteApplicationTables, step: VersionStep) -> VersionStep:
        """Run the step on a table of the application, which only gets new columns; return its remarks or a refusal."""
        if altering := [text for text in step.statements if " ADD COLUMN " not in text]:
            return VersionStep(refused=f"only new columns follow to the old database: {'; '.join(altering)}")
        try:
            for text in () if step.refused else step.statements:
                session.run(text)
        except TargetError as error:
            return VersionStep(refused=str(error))
        application.read_again(session)
        return VersionStep(remarks=step.remarks, refused=step.refused)

    # -- resync --------------------------------------------------------------------------------------------------------

    def create_side_table(self, session: SqliteSession, sql: SqliteTableStatements) -> None:
        with transaction(session):
            session.run(sql.text("drop_side_table"))
            session.run(sql.text("create_side_table"))

    def copy_side(
        self, session: SqliteSession, sql: SqliteTableStatements, rows: FullRows, version: TableSchema
    ) -> None:
        """Write rows into the side table of a resync and commit, so that the stream can write in between."""
        super().copy_side(session, sql, rows, version)
        session.run("COMMIT; BEGIN")  # let the stream have the write lock while the next rows arrive

    # -- load ----------------------------------------------------------------------------------------------------------

    loads_in_parallel = False

    def make_tables(
        self, session: SqliteSession, placed: Sequence[SqlitePlacedTable], before: Mapping[tuple[str, str], TableState]
    ) -> set[int]:
        known = {one.name: before.get((one.namespace, one.name)) for one in placed}
        self.refuse_existing(session, [one for one in placed if known[one.name] is None])
        created: set[int] = set()
        for one in placed:
            state, exists = known[one.name], self.has_table(session, one)
            is_own = not exists or (state is not None and state.created)
            if exists and is_own:
                session.run(f"DROP TABLE {one.sql}")  # the table may have the columns of an older version
            if is_own:
                session.run(ddl.create_table(one, placed))
                created.add(one.schema.table_id)
            elif state is not None or self.config.on_existing == "truncate":
                session.run(f"DELETE FROM {one.sql}")
        return created

    def has_table(self, session: SqliteSession, placed: SqlitePlacedTable) -> bool:
        return tables.read_table(session, placed) is not None

    def finish_tables(
        self, session: SqliteSession, created: Sequence[SqlitePlacedTable], everything: Sequence[SqlitePlacedTable]
    ) -> list[str]:
        """Create the indexes after the rows; return those that SQLite rejects."""
        rejected = []
        for text in (text for one in created for text in ddl.index_statements(one)):
            try:
                session.run(text)
            except TargetError as error:
                rejected.append(f"{text}: {error}")
                logger.warning("%s", rejected[-1])
        return rejected

    # -- own tables ----------------------------------------------------------------------------------------------------

    def read_mark(self, session: SqliteSession) -> CutoverMark | None:
        if self.application is None or session.row(cutover_sql("installed")) == (0,):
            return None  # otherwise a target of this kind cannot be cut over
        found = session.row(cutover_sql("mark"), {"group": self.group})
        return CutoverMark.from_row((*found[:4], to_moment(found[4]), to_moment(found[5]))) if found else None
