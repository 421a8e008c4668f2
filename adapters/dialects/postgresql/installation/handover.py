"""Statements by which a database takes over the capture of a business from another one (`venus cutover --fall-back`).

The registry, the checkpoint and the numbers of tables and batches continue those of the other database, whose capture
is sealed. Broker and consumers therefore see the same business with the next batch, and nothing is read again. The
statements run in the transaction that also opens the database for writes, so the first write is logged.

A table may differ from the registered version in its defaults or constraints: capture then continues in the next
version. A column must keep its number and its type, because rows and keys travel under the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from venus.adapters.dialects.contract import RegisteredTable
from venus.adapters.dialects.postgresql import registry
from venus.adapters.dialects.postgresql import sql as names
from venus.adapters.dialects.postgresql.connection import PostgresConnection
from venus.adapters.dialects.postgresql.dictionary import tables as dictionary
from venus.adapters.dialects.postgresql.dictionary.tables import PostgresTable
from venus.adapters.dialects.postgresql.installation import triggers
from venus.adapters.dialects.postgresql.installation.installer import SHARED, PostgresInstalledObjects, own_steps
from venus.adapters.dialects.postgresql.sql import literal, statement
from venus.adapters.dialects.registry_rules import version_values
from venus.codec.schema import fingerprint
from venus.model import TableSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureHandover:
    """Statements in order, and what forbids the handover, one line each."""

    statements: tuple[str, ...]
    obstacles: tuple[str, ...]


def plan_handover(
    connection: PostgresConnection, tables: Seq[RegisteredTable], released: Seq[RegisteredTable] = ()
) -> CaptureHandover:
    """Plan how this database continues the capture of these tables. Reads only."""
    with connection.snapshot():
        present = PostgresInstalledObjects.read(connection)
        there = read_present_tables(connection, [t.schema for t in tables])
        own = [step.sql for step in own_steps(connection) if not step.exists]
    there.setdefault((names.OWN_SCHEMA, dictionary.HEARTBEAT.name), dictionary.HEARTBEAT)
    found = [(t.schema, there.get(_place(t.schema))) for t in tables]
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
                for text in _table_statements(schema, table, connection)
            ),
            *(_register_sql(t.schema, t.state, t.reason) for t in released),
        ),
        obstacles=tuple(line for schema, table in found for line in find_obstacles(schema, table)),
    )


def _place(schema: TableSchema) -> tuple[str, str]:
    return schema.namespace, schema.name


def read_present_tables(
    connection: PostgresConnection, schemas: Seq[TableSchema]
) -> dict[tuple[str, str], PostgresTable]:
    """Read these tables as they are in this database, by namespace and name."""
    rows = {(r[1], r[2]): r for r in dictionary.read_all_tables(connection)}
    wanted = [rows[place] for schema in schemas if (place := _place(schema)) in rows]
    return {(t.namespace, t.name): t for t in dictionary.read_tables(connection, wanted)}


def read_next_versions(connection: PostgresConnection) -> dict[int, TableSchema]:
    """Return the versions in which capture continues here, by table."""
    with connection.snapshot():
        registered = [t.schema for t, _ in registry.read_registered_tables(connection)]
        there = read_present_tables(connection, registered)
    return {
        known.table_id: _next_version(known, there[_place(known)]) for known in registered if _place(known) in there
    }


def _next_version(known: TableSchema, table: PostgresTable) -> TableSchema:
    """Return the registered version, or the next one if the table differs."""
    same = table.to_schema(known.table_id, known.version)
    return same if fingerprint(same) == fingerprint(known) else replace(same, version=known.version + 1)


def find_obstacles(known: TableSchema, table: PostgresTable | None) -> Iterator[str]:
    """Yield why capture of this table cannot continue in this database, one line each. Pure."""
    if table is None:
        yield f"{known.qualified} does not exist under this name in the new database"
        return
    if tuple(k.name for k in table.key) != known.key:
        now = ", ".join(k.name for k in table.key) or "none"
        yield f"{known.qualified} has another key in the new database: {now} instead of {', '.join(known.key)}"
    there = {c.name: c for c in table.columns}
    for column in known.columns:
        now_column = there.get(column.name)
        if now_column is None:
            yield f"{known.qualified} has no column {column.name} in the new database"
        elif now_column.type != column.type:
            yield (
                f"{known.qualified}.{column.name} is {now_column.source_type} in the new database and "
                f"{column.source_type} in the old one"
            )
        elif now_column.number != column.number:
            yield (
                f"{known.qualified}.{column.name} is column {now_column.number} of the new table and number "
                f"{column.number} of the old one, which has dropped columns"
            )


def _table_statements(schema: TableSchema, table: PostgresTable, connection: PostgresConnection) -> Iterator[str]:
    table_id = schema.table_id
    log = names.log_table_name(table_id)
    yield f"DROP TABLE IF EXISTS {log}"
    yield triggers.log_table_sql(table, table_id)
    for function in triggers.build_functions(table, table_id):
        yield function.sql
        yield triggers.revoke_sql(function.name)
    for trigger in triggers.build_triggers(table, table_id):
        yield trigger.sql.replace("CREATE TRIGGER", "CREATE OR REPLACE TRIGGER", 1)
        how = "ENABLE ALWAYS" if connection.options.always else "ENABLE"
        yield f"ALTER TABLE {trigger.table_sql} {how} TRIGGER {trigger.name}"
    for leaf in table.leaves:
        yield statement("triggers", "leaf_joined", table_id=str(table_id), leaf=str(leaf.oid))
    yield _register_sql(schema, "ACTIVE", "")


def _register_sql(schema: TableSchema, state: str, reason: str) -> str:
    values = {name: literal(value) for name, value in version_values(schema).items()}
    return statement(
        "registry",
        "continue_table",
        namespace=literal(schema.namespace),
        name=literal(schema.name),
        state=literal(state),
        reason=literal(reason or None),
        **values,
    )


def position_sql(*, epoch: int, next_sequence: int, last_batch: int) -> str:
    """Return the statement that continues the checkpoint of the other database."""
    return statement(
        "registry", "continue_at", epoch=str(epoch), next_sequence=str(next_sequence), last_batch=str(last_batch)
    )
