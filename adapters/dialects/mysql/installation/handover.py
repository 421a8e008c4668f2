"""Statements by which a MariaDB or MySQL database takes over the capture of a business (`venus fallback`).

As in a PostgreSQL database, the registry, the checkpoint and the numbers of tables and batches continue those of the
other database, whose capture is sealed. DDL for log tables and triggers would end the handover's transaction, so it
runs earlier, while writes are still rejected; VENUS omits a statement if its object exists.

While the database follows another one, its triggers do not log what VENUS applies (triggers.sql, unless_applied).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq

from venus.adapters.dialects.contract import RegisteredTable
from venus.adapters.dialects.handover_rules import (
    CaptureHandover,
    continued_values,
    find_handover_obstacles,
    registered_version,
)
from venus.adapters.dialects.mysql import registry
from venus.adapters.dialects.mysql import sql as names
from venus.adapters.dialects.mysql.connection import MysqlConnection
from venus.adapters.dialects.mysql.dictionary.tables import (
    MysqlDictionary,
    MysqlTable,
    heartbeat_table,
    read_dictionary,
)
from venus.adapters.dialects.mysql.installation import triggers
from venus.adapters.dialects.mysql.installation.installed_objects import MysqlInstalledObjects
from venus.adapters.dialects.mysql.installation.installer import (
    drop_trigger_sql,
    log_steps,
    own_steps,
    run_with_retries,
)
from venus.adapters.dialects.mysql.installation.triggers import CascadePath, find_reaching
from venus.adapters.dialects.mysql.sql import literal, statement
from venus.model import TableSchema


def plan_handover(
    connection: MysqlConnection, tables: Seq[RegisteredTable], released: Seq[RegisteredTable] = ()
) -> CaptureHandover:
    """Plan how this database continues the capture of these tables. Reads only."""
    dictionary = read_dictionary(connection, zero_dates_null=connection.options.zero_dates_null)
    present = MysqlInstalledObjects.read(connection)
    found = [(t.schema, _find_table(t.schema, dictionary, connection.address.database)) for t in tables]
    there = {schema.table_id: (schema, table) for schema, table in found if table is not None}
    paths, circles = find_reaching(dictionary.references, {table.name for _, table in there.values()})
    circular = [
        f"foreign key {c.reference.name} of {c.reference.child} cascades in a circle, which no trigger can follow"
        for c in circles
    ]
    return CaptureHandover(
        preparation=(
            *(step.sql for step in own_steps(connection) if not step.exists),
            *(text for number, (_, table) in there.items() for text in _object_sql(table, number, present, paths)),
        ),
        statements=(
            *(statement("registry", block) for block in ("empty_registry", "empty_batches", "empty_marks")),
            *(statement("registry", "empty_log", log=names.log_table_name(number)) for number in there),
            *(_register_sql(registered_version(s, _to_schema(s, table)), "ACTIVE", "") for s, table in there.values()),
            *(_register_sql(t.schema, t.state, t.reason) for t in released),
        ),
        obstacles=(*(line for schema, table in found for line in _find_obstacles(schema, table)), *circular),
    )


def _find_table(schema: TableSchema, dictionary: MysqlDictionary, database: str) -> MysqlTable | None:
    """Return this database's table for a registered one. The heartbeat table's name may differ between databases."""
    if schema.is_heartbeat:
        return dictionary.tables.get(names.HEARTBEAT, heartbeat_table(database))
    return dictionary.tables.get(schema.name) if schema.namespace == database else None


def _to_schema(known: TableSchema, table: MysqlTable) -> TableSchema:
    """Return the schema of this database's table, with the column numbers of the registered version."""
    highest = max(c.number for c in known.columns)
    return table.to_schema(known.table_id, known.version, known, highest)


def _find_obstacles(schema: TableSchema, table: MysqlTable | None) -> Iterator[str]:
    """Yield why this database cannot continue the capture of a registered table."""
    if schema.is_heartbeat:
        return
    yield from find_handover_obstacles(schema, _to_schema(schema, table) if table is not None else None)
    for column, why in table.unsupported if table is not None else ():
        yield f"{schema.qualified_name}.{column} cannot be carried from the new database: {why}"


def _object_sql(
    table: MysqlTable, table_id: int, present: MysqlInstalledObjects, paths: Seq[CascadePath]
) -> Iterator[str]:
    """Yield the statements that create the log and the triggers of a table, where they are missing or altered."""
    yield from (step.sql for step in log_steps(table, table_id, present) if not step.exists)
    yield from _trigger_sql(table, table_id, present, paths)


def _trigger_sql(
    table: MysqlTable, table_id: int, present: MysqlInstalledObjects, paths: Seq[CascadePath]
) -> Iterator[str]:
    """Yield the statements that give a table the triggers of a database that may follow another one."""
    for trigger in triggers.build_triggers(table, table_id, [p for p in paths if p.child == table.name]):
        there = present.triggers.get(trigger.name)
        if there == trigger.quiet.definition:
            continue
        if there is not None:
            yield drop_trigger_sql(table.database, trigger.name)
        yield trigger.quiet.sql


def plan_quiet_triggers(connection: MysqlConnection) -> list[str]:
    """Return the statements that stop the triggers from logging changes that VENUS applies. Reads only.

    While these statements run, a trigger is missing for a moment, so the application must not write.
    """
    dictionary = read_dictionary(connection, zero_dates_null=connection.options.zero_dates_null)
    present = MysqlInstalledObjects.read(connection)
    captured = {
        entry.table_id: table
        for entry in present.registered.values()
        if (table := dictionary.tables.get(entry.schema.name)) is not None
    }
    paths, _ = find_reaching(dictionary.references, {table.name for table in captured.values()})
    return [text for number, table in captured.items() for text in _trigger_sql(table, number, present, paths)]


def run_statements(connection: MysqlConnection, statements: Iterable[str]) -> None:
    """Run DDL in a session of capture, because triggers keep its sql_mode. Waits for locks only briefly."""
    connection.run(f"SET lock_wait_timeout = {connection.options.install_lock_timeout_s}")
    for text in statements:
        run_with_retries(connection, text)


def read_registered_versions(connection: MysqlConnection) -> dict[int, TableSchema]:
    """Return the registered version of each table, by its number."""
    return {entry.table_id: entry.schema for entry in registry.read_tables(connection)}


def _register_sql(schema: TableSchema, state: str, reason: str) -> str:
    values = {name: literal(value) for name, value in continued_values(schema, state, reason).items()}
    return statement("registry", "continue_table", **values)


def position_sql(*, epoch: int, next_sequence: int, last_batch: int) -> str:
    """Return the statement that sets the checkpoint row to the position of the other database."""
    return statement(
        "registry", "continue_at", epoch=str(epoch), next_sequence=str(next_sequence), last_batch=str(last_batch)
    )


def waiting_tables(connection: MysqlConnection, schemas: Iterable[TableSchema]) -> list[str]:
    """Return the names of the tables whose logs have changes that capture has not read."""
    tables = {s.table_id: s.qualified_name for s in schemas if not s.is_heartbeat}
    waiting = registry.count_waiting(connection, list(tables), 1)
    return [tables[number] for number, rows in waiting.items() if rows]
