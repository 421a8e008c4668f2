"""Plans what to create and what to remove. Every plan is a list of statements, and execution runs exactly those.

SQLite's DDL is transactional, so an installation happens whole or not at all; and as it holds the write lock, there
is no transaction that began before it and could end after it unseen.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection
from collections.abc import Sequence as Seq
from contextlib import closing
from dataclasses import replace

from venus.adapters.dialects.contract import InstallStep
from venus.adapters.dialects.sqlite import ownership, registry
from venus.adapters.dialects.sqlite.connection import quoted
from venus.adapters.dialects.sqlite.dictionary import (
    HEARTBEAT,
    NAMESPACE,
    Dictionary,
    Found,
    chosen,
    numbered,
    table_names,
)
from venus.adapters.dialects.sqlite.refresh import Comparison, Objects, compare, objects, stale_objects
from venus.adapters.dialects.sqlite.statements import statement
from venus.adapters.dialects.sqlite.triggers import Made, capture_objects, log_table

_CREATES = re.compile(r"(CREATE|DROP) (TABLE|TRIGGER) \"?(\w+)\"?", re.IGNORECASE)
#: Rows are counted up to here; a larger table's size is taken from its row numbers.
_COUNTED_MAX = 100_000


def install_plan(
    connection: sqlite3.Connection, own_tables: Seq[str], include: Seq[str], exclude: Seq[str]
) -> list[InstallStep]:
    """Return every statement of the installation. `own_tables` = those that VENUS's own tables still need."""
    present = objects(connection)
    dictionary = Dictionary(connection)
    captured = registry.read_tables(connection) if registry.installed(connection) else {}
    steps = [_own_step(sql) for sql in own_tables]
    for known in captured.values():
        steps += _again(compare(dictionary, known, present), present)
    taken_numbers = {ownership.number_in(name) for name in present}
    next_id = _free(max(captured, default=0) + 1, taken_numbers)
    taken = {c.schema.name for c in captured.values()}
    for name in [HEARTBEAT, *chosen(table_names(connection)[0], include, exclude)]:
        if name not in taken:
            found = dictionary.table(name) if name in dictionary else _future_heartbeat(own_tables)
            steps += _first(found, next_id, estimate(connection, found) if name in dictionary else 1)
            next_id = _free(next_id + 1, taken_numbers)
    return steps


def _free(table_id: int, taken: Collection[int | None]) -> int:
    """Return the next number that is in no name of the application's."""
    while table_id in taken:
        table_id += 1
    return table_id


def _own_step(sql: str) -> InstallStep:
    return InstallStep(table="venus", what=_what(sql), sql=sql)


def _what(sql: str) -> str:
    match = _CREATES.match(sql)
    if match is None:
        return f"row of {sql.split()[2]}" if sql.startswith(("INSERT", "DELETE")) else f"row of {sql.split()[1]}"
    return f"{match[2].lower()} {match[3]}"


def _future_heartbeat(own_tables: Seq[str]) -> Found:
    """Describe VENUS's own heartbeat table before it is there."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as scratch:
        for sql in own_tables:
            scratch.execute(sql)
        return Dictionary(scratch).table(HEARTBEAT)


def _first(found: Found, table_id: int, rows: int) -> list[InstallStep]:
    schema, number_max = numbered(replace(found.schema, table_id=table_id), 0)
    found = replace(found, schema=schema)
    steps = [_made_step(found, made) for made in capture_objects(found, table_id)]
    row = registry.add_table(schema, estimate=rows, number_max=number_max)
    return [*steps, InstallStep(table=schema.qualified, what="row of venus_captured_table", sql=row)]


def _made_step(found: Found, made: Made, *, exists: bool = False) -> InstallStep:
    return InstallStep(table=found.schema.qualified, what=f"{made.kind} {made.name}", sql=made.sql, exists=exists)


def _again(how: Comparison, present: Objects) -> list[InstallStep]:
    """Return the steps for a table that is captured already: what has vanished is made again."""
    table_id, found = how.captured.schema.table_id, how.found
    if found is None:
        return []
    rebuilt = not how.readable and not how.missing
    if rebuilt:  # another key: the log is of no use any more
        how = replace(how, schema=replace(found.schema, version=how.captured.schema.version + 1))
    made = capture_objects(found, table_id)
    log = log_table(table_id)
    steps = [_plain(found, sql) for sql in stale_objects(present, table_id, made)]
    if rebuilt and log in present:
        steps.append(_plain(found, statement("install", "drop_table", log=quoted(log))))
    gone = {m.name for m in made if rebuilt or present.get(m.name, ("", ""))[1] != m.sql}
    steps += [_made_step(found, m, exists=m.name not in gone) for m in made]
    changes = []
    if log in gone:
        changes.append(registry.log_is_new(table_id))
    if rebuilt:
        changes.append(registry.new_version(how.schema, how.number_max))
    if gone:
        what = "another key" if rebuilt else "made again: " + ", ".join(m.name for m in made if m.name in gone)
        reason = f"changes may have been missed, {what}: read the table again"
        changes.append(registry.set_state(table_id, registry.RESYNC, reason))
    return steps + [_plain(found, sql) for sql in changes]


def _plain(found: Found, sql: str) -> InstallStep:
    return InstallStep(table=found.schema.qualified, what=_what(sql).replace("trigger", "old trigger"), sql=sql)


def estimate(connection: sqlite3.Connection, found: Found) -> int:
    """Return about how many rows a table has; reads no more than a bounded part of it."""
    table = f"main.{quoted(found.schema.name)}"
    counted = connection.execute(f"SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT {_COUNTED_MAX})").fetchone()[0]
    rowid = found.rowid or (quoted(found.key[0].name) if found.key and not found.key[0].collation else "")
    if counted < _COUNTED_MAX or not rowid:
        return int(counted)
    query = f"SELECT (SELECT max({rowid}) FROM {table}) - (SELECT min({rowid}) FROM {table}) + 1"
    return max(int(counted), int(connection.execute(query).fetchone()[0]))


def uninstall_plan(connection: sqlite3.Connection, own_tables: Seq[str]) -> list[InstallStep]:
    """Return every statement that takes VENUS out of the file again."""
    names = {}
    if registry.installed(connection):
        names = {t.schema.table_id: t.schema.qualified for t in registry.read_tables(connection).values()}
    own = ownership.read(connection)
    ours = {name: table for name, (table, _) in objects(connection).items() if own.has_numbered(name)}
    triggers = [n for n in ours if not n.startswith("venus_l_")]
    steps = []
    for block, kind, found in (("drop_trigger", "trigger", triggers), ("drop_table", "log", set(ours) - set(triggers))):
        for name in sorted(found, key=lambda n: (n[-5:], n)):
            sql = statement("install", block, **{kind: quoted(name)})
            table = names.get(int(name.rpartition("_")[2]), f"{NAMESPACE}.{ours[name]}")
            steps.append(InstallStep(table=table, what=_what(sql), sql=sql))
    return steps + [_own_step(sql) for sql in own_tables]
