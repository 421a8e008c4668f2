"""Statements by which a database takes over the capture of a business from another one (`venus cutover --fall-back`).

The registry, the checkpoint and the numbers of tables and batches continue those of the other database, whose capture
is sealed. Broker and consumers therefore see the same business with the next batch, and nothing is read again. The
statements run in the transaction that also opens the database for writes, so the first write is logged.

A table may differ from the registered version in its defaults or constraints, or in its description if the other
database is of another kind: capture then continues in the next version. A column must keep its number and its values,
because rows and keys identify columns by number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq

from venus.adapters.dialects.contract import RegisteredTable
from venus.adapters.dialects.handover_rules import (
    CaptureHandover,
    continued_values,
    find_handover_obstacles,
    registered_version,
)
from venus.adapters.dialects.postgresql import registry
from venus.adapters.dialects.postgresql import sql as names
from venus.adapters.dialects.postgresql.connection import PostgresConnection
from venus.adapters.dialects.postgresql.dictionary import tables as dictionary
from venus.adapters.dialects.postgresql.dictionary.tables import PostgresTable
from venus.adapters.dialects.postgresql.installation import triggers
from venus.adapters.dialects.postgresql.installation.installer import SHARED, PostgresInstalledObjects, own_steps
from venus.adapters.dialects.postgresql.sql import literal, statement
from venus.model import TableSchema


def plan_handover(
    connection: PostgresConnection, tables: Seq[RegisteredTable], released: Seq[RegisteredTable] = ()
) -> CaptureHandover:
    """Plan how this database continues the capture of these tables. Reads only."""
    with connection.snapshot():
        present = PostgresInstalledObjects.read(connection)
        there = read_present_tables(connection, [t.schema for t in tables])
        own = [step.sql for step in own_steps(connection) if not step.exists]
    found = [(t.schema, _find_table(t.schema, there)) for t in tables]
    shared = [statement("triggers", block) for name, block in SHARED.items() if name not in present.other_tables]
    return CaptureHandover(
        statements=(
            *own,
            *shared,
            statement("registry", "empty_registry"),
            *(
                text
                for schema, table in found
                if table is not None
                for text in _table_statements(schema, table, present)
            ),
            *(_register_sql(t.schema, t.state, t.reason) for t in released),
        ),
        obstacles=tuple(
            line
            for schema, table in found
            if not schema.is_heartbeat
            for line in find_handover_obstacles(schema, _to_schema(schema, table) if table else None)
        ),
    )


def _namespace_and_name(schema: TableSchema) -> tuple[str, str]:
    return schema.namespace, schema.name


def _find_table(schema: TableSchema, there: Mapping[tuple[str, str], PostgresTable]) -> PostgresTable | None:
    """Return this database's table for a registered one. The heartbeat table's name may differ between databases."""
    found = there.get(_namespace_and_name(schema))
    return found if found is not None or not schema.is_heartbeat else dictionary.HEARTBEAT


def _to_schema(known: TableSchema, table: PostgresTable) -> TableSchema:
    """Return the schema of this database's table, with the id and version of the registered one."""
    return table.to_schema(known.table_id, known.version)


def read_present_tables(
    connection: PostgresConnection, schemas: Seq[TableSchema]
) -> dict[tuple[str, str], PostgresTable]:
    """Read the tables of this database that have the names in these schemas, by namespace and name."""
    rows = {(r[1], r[2]): r for r in dictionary.read_all_tables(connection)}
    wanted = [rows[place] for schema in schemas if (place := _namespace_and_name(schema)) in rows]
    return {(t.namespace, t.name): t for t in dictionary.read_tables(connection, wanted)}


def read_registered_versions(connection: PostgresConnection) -> dict[int, TableSchema]:
    """Return the registered version of each table, by its number."""
    return {t.schema.table_id: t.schema for t, _ in registry.read_registered_tables(connection)}


def _table_statements(schema: TableSchema, table: PostgresTable, present: PostgresInstalledObjects) -> Iterator[str]:
    """Yield the statements that create the log and the triggers of a table, and that register it."""
    table_id = schema.table_id
    log = names.log_table_name(table_id)
    yield f"DROP TABLE IF EXISTS {log}"
    yield triggers.log_table_sql(table, table_id)
    for function in triggers.build_functions(table, table_id):
        yield function.sql
        yield triggers.revoke_sql(function.name)
    for trigger in triggers.build_triggers(table, table_id):
        yield trigger.sql.replace("CREATE TRIGGER", "CREATE OR REPLACE TRIGGER", 1)
        yield trigger.enable_sql(present.other_pipelines.trigger_states[0])
    for leaf in table.leaves:
        yield statement("triggers", "leaf_joined", table_id=str(table_id), leaf=str(leaf.oid))
    yield _register_sql(registered_version(schema, _to_schema(schema, table)), "ACTIVE", "")


def _register_sql(schema: TableSchema, state: str, reason: str) -> str:
    values = {name: literal(value) for name, value in continued_values(schema, state, reason).items()}
    return statement("registry", "continue_table", **values)


def position_sql(*, epoch: int, next_sequence: int, last_batch: int) -> str:
    """Return the statement that sets the checkpoint row to the position of the other database."""
    return statement(
        "registry", "continue_at", epoch=str(epoch), next_sequence=str(next_sequence), last_batch=str(last_batch)
    )
