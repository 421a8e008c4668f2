"""Statements by which an Oracle database takes over the capture of a business (`venus fallback`).

As in a PostgreSQL database, the registry, the checkpoint and the numbers of tables and batches continue those of the
other database, whose capture is sealed. DDL for log tables and triggers would end the handover's transaction, so it
runs earlier, while writes are still rejected; VENUS omits a statement if its object exists.

While the database follows another one, its triggers do not log what VENUS applies (triggers.sql, quiet).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from venus.adapters.dialects.contract import RegisteredTable
from venus.adapters.dialects.handover_rules import (
    CaptureHandover,
    find_handover_obstacles,
    registered_version,
)
from venus.adapters.dialects.oracle import registry
from venus.adapters.dialects.oracle.dictionary import ownership, segments
from venus.adapters.dialects.oracle.dictionary.reader import OracleDatabase, OracleDictionary
from venus.adapters.dialects.oracle.dictionary.tables import ListedTable, OracleTable, heartbeat_table, with_id
from venus.adapters.dialects.oracle.installation.installed_objects import OracleObjects, read_planned_objects
from venus.adapters.dialects.oracle.installation.table_comparison import build_triggers
from venus.adapters.dialects.oracle.language import ddl
from venus.adapters.dialects.oracle.session.connection import OracleSession
from venus.adapters.dialects.oracle.session.options import Version
from venus.adapters.dialects.oracle.sql import HEARTBEAT, log_table_name, statement
from venus.model import TableSchema

_TRUNCATE = "TRUNCATE"


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleContinuedTable:
    """A registered table whose capture is to continue here, and this database's table (None = it does not exist)."""

    known: TableSchema
    here: OracleTable | None


def plan_handover(
    database: OracleDatabase, tables: Seq[RegisteredTable], released: Seq[RegisteredTable] = ()
) -> CaptureHandover:
    """Plan how this database continues the capture of these tables. Reads only."""
    here = read_planned_objects(database.writer, database.version)
    found = _find_tables(database.dictionary, [t.schema for t in tables])
    database.writer.rollback()
    there = [(one.known, one.here) for one in found if one.here is not None]
    blocks = (
        "empty_registry",
        "empty_batches",
        "empty_ddl",
        *(["empty_segments"] if segments.TABLE in here.kinds else []),
    )
    return CaptureHandover(
        preparation=tuple(
            text for known, table in there for text in _object_sql(with_id(table, known.table_id), here, database)
        ),
        statements=(
            *(statement("registry", block) for block in blocks),
            *(_empty_log_sql(known.table_id) for known, _ in there),
            *(
                registry.continue_statement(registered_version(known, table.schema), registry.ACTIVE, "")
                for known, table in there
            ),
            *(registry.continue_statement(t.schema, t.state, t.reason) for t in released),
        ),
        obstacles=tuple(line for one in found for line in _find_obstacles(one)),
    )


def _find_tables(dictionary: OracleDictionary, schemas: Seq[TableSchema]) -> list[OracleContinuedTable]:
    listed = {(t.owner, t.name): t for t in dictionary.list_tables()}
    return [OracleContinuedTable(known=known, here=_find_table(known, dictionary, listed)) for known in schemas]


def _find_table(
    known: TableSchema, dictionary: OracleDictionary, listed: Mapping[tuple[str, str], ListedTable]
) -> OracleTable | None:
    """Return this database's table for a registered one. The heartbeat table's name may differ between databases."""
    if known.is_heartbeat:
        at = listed.get((dictionary.user, HEARTBEAT))
        at = at or ListedTable(owner=dictionary.user, name=HEARTBEAT, partitioned=False, rows=1, is_own=True)
        return with_id(heartbeat_table(at), known.table_id)
    found = listed.get((known.namespace, known.name))
    return dictionary.read_table(found, known, max(c.number for c in known.columns)) if found is not None else None


def _find_obstacles(found: OracleContinuedTable) -> Iterator[str]:
    """Yield why this database cannot continue the capture of a registered table."""
    known, here = found.known, found.here
    if known.is_heartbeat:
        return
    yield from find_handover_obstacles(known, here.schema if here is not None else None)
    yield from (f"{known.qualified_name}: {reason}" for reason in (here.refusals if here is not None else ()))


def _object_sql(table: OracleTable, here: OracleObjects, database: OracleDatabase) -> Iterator[str]:
    """Yield the statements that create the log and the triggers of a table, where they are missing or altered."""
    log = ddl.log_object(table.keyed, table.schema.table_id, database.options.log.tablespace)
    if log.name not in here.kinds:
        made = [(log.kind, log.name), *((m.kind, m.name) for m in build_triggers(table.keyed, table.schema.table_id))]
        yield ownership.record_statement(made)
        yield log.sql
        yield ddl.log_statistics(table.schema.table_id)
    yield from _trigger_sql(table, here, database.dictionary.user, database.version)


def _trigger_sql(table: OracleTable, here: OracleObjects, user: str, version: Version) -> Iterator[str]:
    """Yield the statements that give a table the triggers of a database that may follow another one."""
    on = f"{table.keyed.owner}.{table.keyed.name}"
    for made in build_triggers(table.keyed, table.schema.table_id):
        quiet = ddl.quiet_trigger(made, user)
        present = here.triggers.get(made.name)
        if present is None or not present.is_quiet(quiet, on):
            yield ddl.statement_for(version, quiet.sql)
            yield ddl.check_trigger(made.name)
            yield ddl.enable_trigger(made.name)


def plan_quiet_triggers(database: OracleDatabase) -> list[str]:
    """Return the statements that stop the triggers from logging changes that VENUS applies. Reads only.

    While these statements run, a trigger is disabled for a moment, so the application must not write.
    """
    here = read_planned_objects(database.writer, database.version)
    known = [entry.schema for entry in registry.read_tables(database.writer).values() if not entry.schema.is_heartbeat]
    found = _find_tables(database.dictionary, known)
    user, version = database.dictionary.user, database.version
    database.writer.rollback()
    return [text for one in found if one.here is not None for text in _trigger_sql(one.here, here, user, version)]


def run_statements(session: OracleSession, statements: Iterable[str]) -> None:
    """Run the statements that prepare a handover; each is committed and may be repeated."""
    session.run(statement("session", "patience"))
    for text in statements:
        session.run(text)
        session.commit()


def _empty_log_sql(table_id: int) -> str:
    return statement("registry", "empty_log", log=log_table_name(table_id))


def position_sql(*, epoch: int, next_sequence: int, last_batch: int) -> str:
    """Return the statement that sets the checkpoint row to the position of the other database."""
    return statement(
        "registry", "continue_at", epoch=str(epoch), next_sequence=str(next_sequence), last_batch=str(last_batch)
    )


def waiting_tables(session: OracleSession, schemas: Iterable[TableSchema]) -> list[str]:
    """Return the names of the tables with changes that capture has not read: log rows or a recorded TRUNCATE."""
    truncated = {
        (owner, name)
        for _, event, owner, name, _ in session.fetch_rows(statement("registry", "ddl_rows"))
        if event == _TRUNCATE
    }
    return [
        schema.qualified_name
        for schema in schemas
        if not schema.is_heartbeat
        and ((schema.namespace, schema.name) in truncated or _has_log_rows(session, schema.table_id))
    ]


def _has_log_rows(session: OracleSession, table_id: int) -> bool:
    return bool(session.fetch_row(statement("registry", "is_waiting", log=log_table_name(table_id)))[0])


def read_registered_versions(session: OracleSession) -> dict[int, TableSchema]:
    """Return the registered version of each table, by its number."""
    return {number: entry.schema for number, entry in registry.read_tables(session).items()}
