"""Statements by which a SQLite file takes over the capture of a business (`venus fallback`).

As in a PostgreSQL database, the registry, the checkpoint and the numbers of tables and batches continue those of the
other database, whose capture is sealed. SQLite's DDL is transactional. So capture has no triggers at all while the file
follows another database, and the transaction that opens the file for the application creates them with empty logs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from venus.adapters.dialects.contract import RegisteredTable
from venus.adapters.dialects.handover_rules import (
    CaptureHandover,
    continued_values,
    find_handover_obstacles,
    registered_version,
)
from venus.adapters.dialects.registry_rules import LogLimits
from venus.adapters.dialects.sqlite import registry
from venus.adapters.dialects.sqlite.connection import literal, quote
from venus.adapters.dialects.sqlite.dictionary.tables import (
    HEARTBEAT,
    NAMESPACE,
    SqliteDictionary,
    SqliteTable,
    assign_numbers,
    foreign_collation_message,
    log_table_name,
)
from venus.adapters.dialects.sqlite.dictionary.types import declared_type
from venus.adapters.dialects.sqlite.installation.schema_changes import read_objects
from venus.adapters.dialects.sqlite.installation.triggers import build_capture_objects, build_valve
from venus.adapters.dialects.sqlite.sql import statement
from venus.model import TableSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuedTable:
    """A registered table of the other database, and the table of this file that continues it; None = there is none."""

    known: TableSchema
    here: SqliteTable | None


def plan_handover(
    dictionary: SqliteDictionary, limits: LogLimits, tables: Seq[RegisteredTable], released: Seq[RegisteredTable] = ()
) -> CaptureHandover:
    """Plan how this file continues the capture of these tables. Reads only."""
    found = [_find_table(t.schema, dictionary) for t in tables]
    return CaptureHandover(
        statements=(
            *drop_capture(dictionary.connection, logs=True),
            *(statement("registry", block) for block in ("empty_registry", "empty_batches")),
            *(text for one in found if one.here is not None for text in _capture_sql(one.known, one.here, limits)),
            *(_register_sql(t.schema, t.state, t.reason) for t in released),
        ),
        obstacles=tuple(line for one in found for line in _find_obstacles(one)),
    )


def _find_table(known: TableSchema, dictionary: SqliteDictionary) -> ContinuedTable:
    """Find the table of this file for a registered one. The heartbeat table's name may differ between databases."""
    name = HEARTBEAT if known.is_heartbeat else known.name
    if name not in dictionary or (known.namespace != NAMESPACE and not known.is_heartbeat):
        return ContinuedTable(known=known, here=None)
    table = dictionary.read_table(name, _keep_types(known, dictionary.read_declared(name)))
    schema, _ = assign_numbers(table.schema, max(c.number for c in known.columns))
    schema = replace(schema, table_id=known.table_id, version=known.version)
    return ContinuedTable(known=known, here=replace(table, schema=registered_version(known, schema)))


def _keep_types(known: TableSchema, declared: dict[str, str]) -> TableSchema:
    """Return the registered schema, so that columns without a declared type keep its types whatever they contain."""
    columns = [
        replace(c, source_type=declared[c.name]) if declared_type(declared.get(c.name, "TEXT")) is None else c
        for c in known.columns
    ]
    return replace(known, columns=tuple(columns))


def _find_obstacles(found: ContinuedTable) -> Iterator[str]:
    known, here = found.known, found.here
    if known.is_heartbeat:
        return
    yield from find_handover_obstacles(known, here.schema if here is not None else None)
    if here is not None:
        yield from (f"{known.qualified_name}: {foreign_collation_message(name)}" for name in here.foreign_collations)


def _capture_sql(known: TableSchema, here: SqliteTable, limits: LogLimits) -> Iterator[str]:
    """Yield the statements that create log and triggers of a table, and that register it."""
    yield from (made.sql for made in build_capture_objects(here, known.table_id))
    if valve := build_valve(known.table_id, limits):
        yield valve
    yield _register_sql(here.schema, registry.ACTIVE, "")


def _register_sql(schema: TableSchema, state: str, reason: str) -> str:
    values = {name: literal(value) for name, value in continued_values(schema, state, reason).items()}
    return statement("registry", "continue_table", **values)


def drop_capture(connection: sqlite3.Connection, *, logs: bool) -> list[str]:
    """Return the statements that drop all triggers of capture; `logs`: also the logs. Reads only."""
    own, present = registry.read_owned_objects(connection), read_objects(connection)
    mine = [name for name in present if own.has_numbered_object(name) and not registry.is_reject_trigger(name)]
    tables = [name for name in mine if present[name][0] == name]
    return [
        *(statement("install", "drop_trigger", trigger=quote(name)) for name in mine if name not in tables),
        *(statement("install", "drop_table", log=quote(name)) for name in tables if logs),
    ]


def position_sql(*, epoch: int, next_sequence: int, last_batch: int) -> str:
    """Return the statement that sets the checkpoint row to the position of the other database."""
    return statement(
        "registry", "continue_at", epoch=str(epoch), next_sequence=str(next_sequence), last_batch=str(last_batch)
    )


def waiting_tables(connection: sqlite3.Connection, schemas: Iterable[TableSchema]) -> list[str]:
    """Return the tables whose changes wait in their logs."""
    tables = {s.table_id: s.qualified_name for s in schemas if not s.is_heartbeat}
    states = {n: through for n, (_, through) in registry.read_states(connection).items() if n in tables}
    return [tables[number] for number, through in states.items() if _read_log_end(connection, number) > through]


def _read_log_end(connection: sqlite3.Connection, table_id: int) -> int:
    text = statement("registry", "log_end", table_id=str(table_id), log=quote(log_table_name(table_id)))
    return int(connection.execute(text).fetchone()[1])


def read_registered_versions(connection: sqlite3.Connection) -> dict[int, TableSchema]:
    """Return the registered version of each table, by its number."""
    return {number: entry.schema for number, entry in registry.read_tables(connection).items()}
