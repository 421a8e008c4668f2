"""The steps that install capture in a SQLite file: own tables, log tables, triggers, registration."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection
from collections.abc import Sequence as Seq
from contextlib import closing
from dataclasses import replace

from venus.adapters.dialects.contract import InstallStep
from venus.adapters.dialects.released_tables import (
    is_being_released,
)
from venus.adapters.dialects.sqlite import registry
from venus.adapters.dialects.sqlite.connection import quote
from venus.adapters.dialects.sqlite.dictionary.tables import (
    HEARTBEAT,
    SqliteDictionary,
    SqliteTable,
    assign_numbers,
    choose_tables,
    log_table_name,
    read_table_names,
)
from venus.adapters.dialects.sqlite.installation.schema_changes import (
    DictionaryObjects,
    SqliteTableComparison,
    compare_table,
    drop_stale_triggers,
    key_numbers,
    read_objects,
)
from venus.adapters.dialects.sqlite.installation.triggers import SqliteOwnObject, build_capture_objects
from venus.adapters.dialects.sqlite.registry import SqliteRegistryEntry
from venus.adapters.dialects.sqlite.sql import statement

_CREATES = re.compile(r"(CREATE|DROP) (TABLE|TRIGGER) \"?(\w+)\"?", re.IGNORECASE)
#: Rows are counted up to this limit. The size of a larger table is estimated from its row numbers.
_COUNTED_MAX = 100_000


def install_steps(
    dictionary: SqliteDictionary, own_tables: Seq[str], include: Seq[str], exclude: Seq[str]
) -> list[InstallStep]:
    """Return every statement of the installation. `own_tables`: the statements that create VENUS's own tables."""
    connection = dictionary.connection
    present = read_objects(connection)
    captured, out = read_registry(connection)
    steps = [own_step(sql) for sql in own_tables]
    for known in captured.values():
        steps += _known_table_steps(compare_table(dictionary, known, present), present)
    taken_numbers = {registry.table_number(name) for name in present}
    next_id = _next_free_id(max(captured | out, default=0) + 1, taken_numbers)
    taken = {c.schema.name for c in captured.values()}
    outside = {c.schema.name: c for c in out.values()}
    for name in [HEARTBEAT, *choose_tables(read_table_names(connection)[0], include, exclude)]:
        if name in outside:
            found = dictionary.read_table(name, outside[name].schema)
            steps += _recapture_steps(
                compare_table(dictionary, outside[name], present), present, estimate_rows(connection, found)
            )
        elif name not in taken:
            found = dictionary.read_table(name) if name in dictionary else _future_heartbeat(own_tables)
            steps += _new_table_steps(found, next_id, estimate_rows(connection, found) if name in dictionary else 1)
            next_id = _next_free_id(next_id + 1, taken_numbers)
    return steps


def read_registry(
    connection: sqlite3.Connection,
) -> tuple[dict[int, SqliteRegistryEntry], dict[int, SqliteRegistryEntry]]:
    """Return the captured tables, and those that are released or being released."""
    if not registry.is_installed(connection):
        return {}, {}
    known = registry.read_tables(connection)
    leaving = {t: c for t, c in known.items() if is_being_released(c.table)}
    return {t: c for t, c in known.items() if t not in leaving}, leaving | registry.read_tables(
        connection, released=True
    )


def _next_free_id(table_id: int, taken: Collection[int | None]) -> int:
    """Return the next number that no object name of the application contains."""
    while table_id in taken:
        table_id += 1
    return table_id


def own_step(sql: str) -> InstallStep:
    """Return the step of a statement about VENUS's own tables."""
    return InstallStep(table="venus", what=describe_statement(sql), sql=sql)


def describe_statement(sql: str) -> str:
    """Return what a statement creates, removes or changes."""
    match = _CREATES.match(sql)
    if match is None:
        return f"row of {sql.split()[2]}" if sql.startswith(("INSERT", "DELETE")) else f"row of {sql.split()[1]}"
    return f"{match[2].lower()} {match[3]}"


def _future_heartbeat(own_tables: Seq[str]) -> SqliteTable:
    """Return VENUS's own heartbeat table as it will be, before it exists."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as scratch:
        for sql in own_tables:
            scratch.execute(sql)
        return SqliteDictionary(scratch).read_table(HEARTBEAT)


def _new_table_steps(found: SqliteTable, table_id: int, rows: int) -> list[InstallStep]:
    schema, number_max = assign_numbers(replace(found.schema, table_id=table_id), 0)
    found = replace(found, schema=schema)
    steps = [_object_step(found, made) for made in build_capture_objects(found, table_id)]
    row = registry.register_sql(schema, estimate=rows, number_max=number_max)
    return [*steps, InstallStep(table=schema.qualified, what="row of venus_captured_table", sql=row)]


def _object_step(found: SqliteTable, made: SqliteOwnObject, *, exists: bool = False) -> InstallStep:
    return InstallStep(table=found.schema.qualified, what=f"{made.kind} {made.name}", sql=made.sql, exists=exists)


def _known_table_steps(how: SqliteTableComparison, present: DictionaryObjects) -> list[InstallStep]:
    """Return the steps for a table that is captured already: missing objects are created again."""
    table_id, found = how.captured.schema.table_id, how.table
    if found is None:
        return []
    rebuilt = not how.readable and not how.missing
    if rebuilt:  # the key is different, so the log is useless
        how = replace(how, schema=replace(found.schema, version=how.captured.schema.version + 1))
    made = build_capture_objects(found, table_id)
    log = log_table_name(table_id)
    steps = [_statement_step(found, sql) for sql in drop_stale_triggers(present, table_id, made)]
    if rebuilt and log in present:
        steps.append(_statement_step(found, statement("install", "drop_table", log=quote(log))))
    gone = {m.name for m in made if rebuilt or present.get(m.name, ("", ""))[1] != m.sql}
    steps += [_object_step(found, m, exists=m.name not in gone) for m in made]
    changes = []
    if log in gone:
        changes.append(registry.reset_watermark_sql(table_id))
    if rebuilt:
        changes.append(registry.new_version_sql(how.schema, how.number_max))
    if gone:
        what = "another key" if rebuilt else "created again: " + ", ".join(m.name for m in made if m.name in gone)
        reason = f"changes may have been missed, {what}: read the table again"
        changes.append(registry.set_state_sql(table_id, registry.RESYNC, reason))
    return steps + [_statement_step(found, sql) for sql in changes]


def _recapture_steps(how: SqliteTableComparison, present: DictionaryObjects, rows: int) -> list[InstallStep]:
    """Return the steps that capture a released table again, in its present version and with all its rows."""
    table_id, found = how.captured.schema.table_id, how.table
    assert found is not None
    schema, log = how.schema, log_table_name(table_id)
    if key_numbers(found.schema) != key_numbers(how.captured.schema):
        schema = replace(found.schema, version=how.captured.schema.version + 1)
    made = build_capture_objects(found, table_id)
    steps = [_statement_step(found, sql) for sql in drop_stale_triggers(present, table_id, made)]
    if log in present:  # left by an interrupted removal; the fill reads the rows that it names
        steps.append(_statement_step(found, statement("install", "drop_table", log=quote(log))))
    existing = {m.name for m in made if m.name != log and present.get(m.name, ("", ""))[1] == m.sql}
    steps += [_object_step(found, m, exists=m.name in existing) for m in made]
    if schema.version != how.captured.schema.version:
        steps.append(_statement_step(found, registry.new_version_sql(schema, how.number_max)))
    return [*steps, _statement_step(found, registry.recapture_sql(table_id, estimate=rows))]


def _statement_step(found: SqliteTable, sql: str) -> InstallStep:
    return InstallStep(
        table=found.schema.qualified, what=describe_statement(sql).replace("trigger", "old trigger"), sql=sql
    )


def estimate_rows(connection: sqlite3.Connection, found: SqliteTable) -> int:
    """Return about how many rows a table has, from a bounded part of it."""
    table = f"main.{quote(found.schema.name)}"
    counted = connection.execute(f"SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT {_COUNTED_MAX})").fetchone()[0]
    rowid = found.rowid or (quote(found.key[0].name) if found.key and not found.key[0].collation else "")
    if counted < _COUNTED_MAX or not rowid:
        return int(counted)
    query = f"SELECT (SELECT max({rowid}) FROM {table}) - (SELECT min({rowid}) FROM {table}) + 1"
    return max(int(counted), int(connection.execute(query).fetchone()[0]))
