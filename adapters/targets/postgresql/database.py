"""A PostgreSQL database as a relational target (VENUS 3.4).

A session that applies changes locks the target and disables foreign keys and triggers: the source has already executed
its triggers and cascades, and their effects arrive as separate changes. Executing a cascade again at the target would
do harm: if a parent is deleted and inserted again, the cascade would delete its children.

Deferred constraints and constraint triggers act at COMMIT, and a refusal at COMMIT names no table. After a refused
COMMIT, the cut is applied again, and `commit_one_by_one` makes each constraint act before COMMIT, so that the
constraint's name identifies the table.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing

from venus.adapters.dialects.postgresql.lock_waits import find_waits
from venus.adapters.dialects.registry import parse_url
from venus.adapters.targets.cutover_contract import CutoverMark
from venus.adapters.targets.postgresql.naming import OWN_SCHEMA, PlacedTable, place_all, place_table, quote
from venus.adapters.targets.postgresql.rows.at_once import apply_at_once, is_small
from venus.adapters.targets.postgresql.rows.merging import RowMerger
from venus.adapters.targets.postgresql.rowsql import RowSql, key_values, keyed_statements
from venus.adapters.targets.postgresql.schema import existing, finishing
from venus.adapters.targets.postgresql.schema.ddl import collect_remarks, is_counted, no_identity
from venus.adapters.targets.postgresql.schema.own_types import LabelsMissing
from venus.adapters.targets.postgresql.schema.side_tables import (
    copy_side,
    create_side_table,
    replace_by_side,
    replace_rows,
)
from venus.adapters.targets.postgresql.schema.table_objects import find_differences
from venus.adapters.targets.postgresql.schema.tables import create_stream_table, plan_step_to, store_version
from venus.adapters.targets.postgresql.session import (
    DEFERRED,
    REPLICA,
    TargetSession,
    limit_lock_waits,
    open_session,
    statement,
    try_replica_role,
)
from venus.adapters.targets.relational import lock_waits
from venus.adapters.targets.relational.catalogue import TargetCatalogue
from venus.adapters.targets.relational.database import RelationalDatabase, wait_for_lock
from venus.adapters.targets.relational.load_task import application_name
from venus.adapters.targets.relational.place import VersionStep
from venus.adapters.targets.relational.session import Refusal, Superseded
from venus.adapters.targets.relational.sides import LOCK_TIMEOUT_MS
from venus.adapters.targets.relational.states import TableState
from venus.adapters.targets.relational.verdicts import RowsRefused
from venus.adapters.under.cut_assembler import DeliveredCut, list_pieces
from venus.adapters.under.row_changes import RowChanges
from venus.codec.packed import PackedBytes
from venus.codec.row_bytes import Layout
from venus.codec.stored_rows import FullRows
from venus.config import Settings
from venus.errors import Refused, TargetError, VenusError
from venus.migrations import run as migrations
from venus.model import TableSchema
from venus.rpc.conditions import TableCondition

logger = logging.getLogger(__name__)

#: The purposes of a cut-over's sessions, which wait for locks only briefly and repeat a step, so that the application's
#: statements do not queue behind it for long.
_SWITCHING = ("cutover", "switch")


def open_database(settings: Settings, name: str, *, first_load: bool = False) -> PostgresDatabase:
    """Return PostgreSQL target `name` of the configuration; it connects on first use."""
    return PostgresDatabase(settings, name, first_load=first_load)


class PostgresDatabase(RelationalDatabase):
    """A PostgreSQL database that is target `name` of the configuration."""

    def __init__(self, settings: Settings, name: str, *, first_load: bool = False) -> None:
        super().__init__(settings, name, first_load=first_load)
        parse_url(self.url, f"targets.{name}.url", "write postgresql://USER@HOST:PORT/DATABASE")

    # -- sessions ------------------------------------------------------------------------------------------------------

    def connect(self, purpose: str = "apply") -> TargetSession:
        session = open_session(self, purpose)
        if purpose in _SWITCHING:
            limit_lock_waits(session, LOCK_TIMEOUT_MS)
        return session

    def install(self) -> list[str]:
        with closing(self.connect("check")) as session, session.sqlalchemy() as lent:
            return migrations.upgrade(lent, "target", schema=OWN_SCHEMA)

    def is_installed(self, session: TargetSession) -> bool:
        found = session.row("SELECT to_regclass(%s) IS NOT NULL", [f"{OWN_SCHEMA}.applied"])
        return bool(found and found[0])

    def lock(self, session: TargetSession, stop: threading.Event) -> bool:
        return not lock_target(self, session, stop)

    def constraints_text(self, *, is_deferred: bool) -> str:
        return DEFERRED if is_deferred else REPLICA

    def try_disable_constraints(self, session: TargetSession) -> bool:
        return try_replica_role(session)

    def refuse_acting_foreign_keys(self, session: TargetSession, tables: Sequence[TableState]) -> None:
        refuse_acting_foreign_keys(session, self, tables)

    def find_lock_waits(self, session: TargetSession, states: dict[int, TableState]) -> list[TableCondition]:
        return lock_waits.wait_conditions(find_waits(session, f"venus %{self.group}%", lock_waits.LOOK_S), states)

    # -- tables --------------------------------------------------------------------------------------------------------

    def place(self, schema: TableSchema) -> PlacedTable:
        return place_table(schema, self.settings, self.name)

    def row_sql(self, schema: TableSchema) -> RowSql:
        return RowSql(self.place(schema), self.group)

    def start_recording(self, session: TargetSession, sql: RowSql, *, is_recording: bool) -> None:
        session.run(sql.text("create_touched"))
        if session.row(sql.text("has_key")) is None:
            session.run(sql.text("key_touched"))

    def find_differences(self, session: TargetSession) -> dict[str, tuple[str, ...]]:
        return find_differences(self, session)

    def store_version(self, session: TargetSession, schema: TableSchema, known: TableSchema | None) -> None:
        store_version(self, session, schema, known)

    def create_stream_table(self, session: TargetSession, schema: TableSchema, offset: int) -> None:
        create_stream_table(self, session, schema, offset)

    def plan_step(
        self, session: TargetSession, catalogue: TargetCatalogue, schema: TableSchema, *, rekeying: bool = False
    ) -> VersionStep:
        return plan_step_to(self, session, catalogue, schema, rekeying=rekeying)

    def truncate(self, session: TargetSession, sql: RowSql) -> None:
        """Empty the table by DELETE, because TRUNCATE also empties it for readers of an older snapshot.

        If the configuration demands TRUNCATE, use DELETE only where foreign keys or a long reader prevent TRUNCATE.
        """
        if self.config.empty_by == "delete":
            session.run(sql.text("delete_all"))
            return
        session.run("SAVEPOINT venus; SET LOCAL lock_timeout = '1s'")
        try:
            session.run(f"{sql.text('truncate')}; SET LOCAL lock_timeout = 0; RELEASE SAVEPOINT venus")
        except VenusError as error:
            if session.is_closed:
                raise
            logger.info("emptying %s by DELETE: %s", sql.placed.qualified_name, error)
            session.run("ROLLBACK TO SAVEPOINT venus; RELEASE SAVEPOINT venus")
            session.run(sql.text("delete_all"))

    def adopt_columns(self, session: TargetSession, state: TableState, schema: TableSchema) -> None:
        """Replace identities that an older version of VENUS has created by sequences."""
        placed = self.place(schema)
        for column in schema.columns if state.created else ():
            if is_counted(placed, column):  # an earlier version of VENUS made each of them an identity
                session.run(no_identity(placed, column))

    def forget_values(self, session: TargetSession, placed: PlacedTable, column: str, *, is_own: bool) -> None:
        """Drop a column that the target no longer gets; set it to NULL in a table that VENUS has not created."""
        if is_own:
            session.run(f"ALTER TABLE {placed.sql} DROP COLUMN {placed.column(column)}")
        else:
            super().forget_values(session, placed, column, is_own=is_own)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def open_merger(
        self, session: TargetSession, catalogue: TargetCatalogue, start: int, whole: frozenset[int] | None
    ) -> RowMerger:
        return RowMerger(self, session, catalogue, start, whole)

    def apply_at_once(
        self,
        session: TargetSession,
        catalogue: TargetCatalogue,
        cuts: Sequence[DeliveredCut],
        *,
        defer_constraints: bool,
    ) -> bool:
        if not is_small(self, cuts):
            return False
        return apply_at_once(self, session, catalogue, list_pieces(cuts), defer_constraints=defer_constraints)

    def apply_net(self, session: TargetSession, schema: TableSchema, rows: RowChanges) -> None:
        session.run(keyed_statements(session, self.row_sql(schema), Layout.of(schema), rows))

    def record_keys(
        self, session: TargetSession, sql: RowSql, schema: TableSchema, record_ids: PackedBytes, offset: int
    ) -> None:
        values = key_values(session, Layout.of(schema), record_ids, (offset,))
        session.run(sql.text("touch_values", values=values))

    # -- refusals ------------------------------------------------------------------------------------------------------

    def check_deferred(self, session: TargetSession) -> None:
        session.run("SET CONSTRAINTS ALL IMMEDIATE")

    def commit_one_by_one(self, session: TargetSession, catalogue: TargetCatalogue, written: Sequence[int]) -> None:
        commit_one_by_one(self, session, catalogue, written)

    def find_refused_table(
        self, session: TargetSession, catalogue: TargetCatalogue, refusal: TargetError
    ) -> int | None:
        """Return the table that violates a constraint, or to which a table outside of VENUS refers. May roll back."""
        if not isinstance(refusal, Refusal):
            return None
        by_name = {(t.namespace, t.name): t.table_id for t in catalogue.tables.values()}
        if refusal.table in by_name or not refusal.constraint:
            return by_name.get(refusal.table)
        session.rollback()
        return by_name.get(find_referred_table(session, refusal))

    # -- resync --------------------------------------------------------------------------------------------------------

    def is_version_missing(self, error: BaseException | None) -> bool:
        """Return whether a side table could not be created because enums still lack labels."""
        return isinstance(error, LabelsMissing)

    def create_side_table(self, session: TargetSession, sql: RowSql) -> None:
        create_side_table(session, sql, self.name)

    def copy_side(self, session: TargetSession, sql: RowSql, rows: FullRows, version: TableSchema) -> None:
        copy_side(session, sql, rows, version)

    def replace_by_side(
        self, session: TargetSession, sql: RowSql, cut: int, evolve: Callable[[], None]
    ) -> tuple[int, int]:
        return replace_by_side(session, sql, cut, evolve)

    def replace_key_by_side(
        self, session: TargetSession, state: TableState, before: PlacedTable, sql: RowSql, evolve: Callable[[], None]
    ) -> tuple[int, int]:
        return replace_rows(session, state, before, sql, evolve)

    # -- load ----------------------------------------------------------------------------------------------------------

    def place_all(self, schemas: Sequence[TableSchema]) -> list[PlacedTable]:
        return place_all(schemas, self.settings, self.name)

    def make_tables(
        self, session: TargetSession, placed: Sequence[PlacedTable], before: Mapping[tuple[str, str], TableState]
    ) -> set[int]:
        return finishing.make_tables(self, session, placed, before)

    def has_table(self, session: TargetSession, placed: PlacedTable) -> bool:
        return existing.read_table(session, placed) is not None

    def count_rows(self, session: TargetSession, placed: PlacedTable) -> int:
        return existing.count_rows(session, placed)

    def finish_table(self, session: TargetSession, placed: PlacedTable) -> None:
        finishing.finish_table(session, placed)

    def finish_tables(
        self, session: TargetSession, created: Sequence[PlacedTable], everything: Sequence[PlacedTable]
    ) -> list[str]:
        return finishing.finish_tables(session, created, everything)

    def list_left_out(self, placed: Sequence[PlacedTable]) -> list[str]:
        return [remark.line for remark in collect_remarks(placed)]

    def read_load_progress(self, session: TargetSession, load_id: str) -> tuple[int, int, int]:
        params = {"load_id": load_id, "application": application_name(load_id, 0).rpartition("/")[0] + "/%"}
        rows, splits, under_way = session.rows(statement("load", "progress", own=OWN_SCHEMA), params)[0]
        return rows, splits, under_way

    def log_load_waits(self) -> AbstractContextManager[None]:
        return lock_waits.log_load_waits(self, lambda session: find_waits(session, "venus load %", lock_waits.LOOK_S))

    def relax_commits(self, session: TargetSession) -> None:
        session.run("SET synchronous_commit = off")

    def commit_durably(self, session: TargetSession) -> None:
        session.commit_durably()

    # -- own tables ----------------------------------------------------------------------------------------------------

    def own_sql(self, name: str) -> str:
        return statement("own", name, own=OWN_SCHEMA)

    def own_execute_text(self, session: TargetSession, name: str, *numbers: int | Sequence[int] | None) -> str:
        """Return an EXECUTE of a prepared statement; the first call in a session sends the PREPARE.

        A sequence of numbers becomes an array.
        """
        if name not in session.prepared:
            session.run(self.own_text(session, f"prepare_{name}"))
            session.prepared.add(name)
        values = ", ".join(map(_number_text, numbers))
        return f"EXECUTE venus_{name} ({values})"

    def read_mark(self, session: TargetSession) -> CutoverMark | None:
        found = session.row(cutover_sql("installed"))
        row = session.row(cutover_sql("mark"), {"group": self.group}) if found and found[0] else None
        return CutoverMark.from_row(row) if row is not None else None


def _number_text(number: int | Sequence[int] | None) -> str:
    """Return a number, or a sequence of numbers as an array, as SQL text."""
    if number is None:
        return "NULL"
    return "'{" + ",".join(map(_number_text, number)) + "}'" if isinstance(number, Sequence) else str(int(number))


def cutover_sql(name: str, **names: str) -> str:
    """Return a block of cutover.sql."""
    return statement("cutover", name, own=OWN_SCHEMA, **names)


def find_referred_table(session: TargetSession, refusal: Refusal) -> tuple[str, str]:
    """Return schema and name of the table that a violated foreign key refers to; empty for another constraint."""
    table = ".".join(quote(part) for part in refusal.table)
    found = session.row(statement("dictionary", "referred_to"), {"table": table, "constraint": refusal.constraint})
    return (found[0], found[1]) if found else ("", "")


def refuse_acting_foreign_keys(session: TargetSession, target: PostgresDatabase, tables: Sequence[TableState]) -> None:
    """Raise Refused for foreign keys that have actions or are not deferrable, if the role may not disable them."""
    names = [f"{quote(t.namespace)}.{quote(t.name)}" for t in tables]
    found = session.rows(statement("dictionary", "acting_foreign_keys"), {"tables": names})
    if found:
        lines = [f"{table}: foreign key {name} acts or is not deferrable" for table, name, _, _ in found]
        raise Refused(
            "\n".join(lines),
            hint=f"let the role of target {target.name} SET session_replication_role, or make them plain DEFERRABLE",
        )


def lock_target(target: PostgresDatabase, session: TargetSession, stop: threading.Event) -> bool:
    """Lock a target for this session; return whether foreign keys and triggers are disabled in it.

    Raises Refused if the target was never loaded or another process still works on it.
    """
    if not target.is_installed(session):
        raise target.not_loaded_error
    wait_for_lock(target, session, stop)
    if not target.read_own_rows(session, "is_newest")[0][0]:
        target.install()  # the target was loaded by an older VENUS
    session.run("SET enable_hashjoin = off; SET enable_mergejoin = off")
    return try_replica_role(session)


def commit_one_by_one(
    target: PostgresDatabase, session: TargetSession, catalogue: TargetCatalogue, written: Sequence[int]
) -> None:
    """Make each deferred constraint act before COMMIT, then commit. Raises RowsRefused for the table at fault.

    Names of constraints need not be unique, and COMMIT itself may still be refused by a trigger of another table. If
    the name or a refused COMMIT leaves the table unclear, the error names several candidates.
    """
    by_name = {_quoted_name(catalogue, table_id): table_id for table_id in written}
    deferred: dict[str, list[int]] = {}
    for table, constraint in session.rows(statement("dictionary", "deferred"), {"tables": list(by_name)}):
        deferred.setdefault(constraint, []).append(by_name[table])
    for constraint, table_ids in deferred.items():
        try:
            session.run(f"SET CONSTRAINTS {constraint} IMMEDIATE")
        except Superseded:
            raise
        except TargetError as refusal:
            named = target.find_refused_table(session, catalogue, refusal)
            raise _commit_refusal(refusal, table_ids if named is None else [named]) from refusal
    try:
        session.run("COMMIT")
    except TargetError as refusal:
        if not written:
            raise
        raise _commit_refusal(
            refusal, written, f" of a transaction that has written to {', '.join(by_name)}"
        ) from refusal


def _commit_refusal(refusal: TargetError, table_ids: Sequence[int], where: str = "") -> RowsRefused:
    """Return the error for a refusal at COMMIT, with the tables that may be at fault."""
    message = refusal.summary if isinstance(refusal, Refusal) else str(refusal)
    return RowsRefused(table_ids[0], f"refused at the COMMIT{where}: {message}", [], candidates=table_ids)


def _quoted_name(catalogue: TargetCatalogue, table_id: int) -> str:
    state = catalogue.tables[table_id]
    return f"{quote(state.namespace)}.{quote(state.name)}"
