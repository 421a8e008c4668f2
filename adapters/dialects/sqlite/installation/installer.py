"""Installation and removal of capture in a SQLite file, the release of individual tables, and the steps of each.

SQLite's DDL is transactional, so an installation succeeds as a whole or not at all. An installation holds the write
lock, so no other transaction can begin before it and commit after it without firing the triggers.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import sqlalchemy
from sqlalchemy.pool import StaticPool

from venus.adapters.dialects.column_choice import ColumnChoice
from venus.adapters.dialects.contract import InstallStep, SourceInstaller
from venus.adapters.dialects.registry_rules import (
    BY_SCRIPT,
    RELEASED,
    RELEASING,
    TRIGGERS_GONE,
    LogLimits,
    is_being_released,
    qualified_names,
    refuse_if_written,
)
from venus.adapters.dialects.rows import find_large_rows
from venus.adapters.dialects.sqlite import registry
from venus.adapters.dialects.sqlite.connection import connect, quote, read_transaction, write_transaction
from venus.adapters.dialects.sqlite.dictionary.tables import (
    HEARTBEAT,
    NAMESPACE,
    SqliteDictionary,
    SqliteTable,
    assign_numbers,
    choose_tables,
    log_table_name,
    read_table_names,
)
from venus.adapters.dialects.sqlite.installation.check import check, find_large_values
from venus.adapters.dialects.sqlite.installation.schema_changes import (
    DictionaryObjects,
    SqliteTableComparison,
    compare_table,
    drop_stale_triggers,
    key_numbers,
    note_own_changes,
    read_objects,
)
from venus.adapters.dialects.sqlite.installation.triggers import (
    SqliteOwnObject,
    build_capture_objects,
    build_valve,
    valve_name,
)
from venus.adapters.dialects.sqlite.registry import SqliteRegistryEntry
from venus.adapters.dialects.sqlite.sql import statement
from venus.adapters.dialects.statements import plain_script
from venus.errors import Refused
from venus.migrations import run
from venus.model import Finding


class SqliteInstaller(SourceInstaller):
    """The part of a source that installs capture and removes it: a plan lists statements, a run executes them."""

    as_script = staticmethod(plain_script)

    def __init__(
        self,
        file: Path,
        writer: sqlite3.Connection,
        columns: ColumnChoice,
        log: LogLimits,
        on_change: Callable[[], None],
    ) -> None:
        """`on_change`: called before a change of the objects or of the registry."""
        self._file, self._writer, self._columns, self._log = file, writer, columns, log
        self._on_change = on_change

    def check(self, include: Seq[str], exclude: Seq[str]) -> list[Finding]:
        with read_transaction(self._writer, self._file):
            return list(check(self._writer, self._file, self._columns, include, exclude))

    def find_large_rows(self, include: Seq[str], exclude: Seq[str]) -> list[Finding]:
        with read_transaction(self._writer, self._file):
            dictionary = SqliteDictionary(self._writer, self._columns)
            names = choose_tables(read_table_names(self._writer)[0], include, exclude)
            return list(find_large_rows(find_large_values(self._writer, map(dictionary.read_table, names))))

    def plan_install(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        """Return every statement of the installation."""
        self._raise_blocking_finding(include, exclude)
        own_tables = self._own_table_statements("upgrade")
        with read_transaction(self._writer, self._file):
            return self._install_steps(own_tables, include, exclude)

    def _install_steps(self, own_tables: Seq[str], include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        steps = install_steps(SqliteDictionary(self._writer, self._columns), own_tables, include, exclude)
        return steps + list(valve_steps(steps, read_objects(self._writer), self._log))

    def install(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        """Install the missing objects, in one transaction."""
        self._raise_blocking_finding(include, exclude)
        return self._run_plan(lambda: self._install_steps(self._own_table_statements("upgrade"), include, exclude))

    def _run_plan(self, plan: Callable[[], list[InstallStep]]) -> list[InstallStep]:
        """Plan and run steps in one transaction, marked so that capture does not take it for the application's DDL."""
        self._on_change()
        with write_transaction(self._writer, self._file), note_own_changes(self._writer):
            steps = plan()
            self._execute(steps)
        return steps

    def _raise_blocking_finding(self, include: Seq[str], exclude: Seq[str]) -> None:
        for finding in self.check(include, exclude):
            if finding.blocks:
                raise Refused(f"{finding.where}: {finding.message}", hint=finding.remedy)

    def plan_uninstall(self) -> list[InstallStep]:
        """Return every statement of the removal."""
        own_tables = self._own_table_statements("downgrade")
        with read_transaction(self._writer, self._file):
            return removal_steps(self._writer, own_tables)

    def uninstall(self) -> list[InstallStep]:
        """Remove everything in one transaction, which restores the dictionary to its state before the installation."""
        self._on_change()
        with write_transaction(self._writer, self._file):
            steps = removal_steps(self._writer, self._own_table_statements("downgrade"))
            self._execute(steps)
        return steps

    def plan_release(self, table_ids: Seq[int]) -> list[InstallStep]:
        """Return every statement that takes these tables out of capture."""
        with read_transaction(self._writer, self._file):
            reasons = dict.fromkeys(table_ids, BY_SCRIPT)
            return release_steps(self._writer, table_ids) + _log_removal_steps(self._writer, reasons)

    def release(self, table_ids: Seq[int]) -> list[InstallStep]:
        """Remove the triggers of these tables."""
        return self._run_plan(lambda: release_steps(self._writer, table_ids))

    def drop_logs(self, reasons: Mapping[int, str]) -> list[InstallStep]:
        """Remove the logs of these tables."""
        return self._run_plan(lambda: log_removal_steps(self._writer, reasons))

    def _own_table_statements(self, direction: run.Direction) -> list[str]:
        connection = connect(self._file)
        engine = sqlalchemy.create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
        # SQLAlchemy ends the transaction when it first uses a connection, so ours begins after that
        with closing(connection), engine.connect() as borrowed, read_transaction(connection, self._file):
            return run.render_sql(borrowed, "source", schema=None, direction=direction)

    def _execute(self, steps: list[InstallStep]) -> None:
        for step in steps:
            if not step.exists:
                self._writer.execute(step.sql).close()


def removal_steps(connection: sqlite3.Connection, own_tables: Seq[str]) -> list[InstallStep]:
    """Return every statement that removes VENUS from the file."""
    names, present = _table_names(connection), read_objects(connection)
    own = registry.read_owned_objects(connection)
    ours = {name: table for name, (table, _) in present.items() if own.has_numbered_object(name)}
    triggers = [n for n in ours if not n.startswith("venus_l_")]
    followed = sorted(filter(registry.is_follower_table, present))
    steps = []
    for block, kind, found in (("drop_trigger", "trigger", triggers), ("drop_table", "log", set(ours) - set(triggers))):
        for name in sorted(found, key=lambda n: (n[-5:], n)):
            sql = statement("install", block, **{kind: quote(name)})
            table = names.get(int(name.rpartition("_")[2]), f"{NAMESPACE}.{ours[name]}")
            steps.append(InstallStep(table=table, what=describe_statement(sql), sql=sql))
    steps += [own_step(statement("install", "drop_table", log=quote(name))) for name in followed]
    return steps + [own_step(sql) for sql in own_tables]


def _table_names(connection: sqlite3.Connection) -> dict[int, str]:
    """Return the qualified names of all registered tables by table_id."""
    captured, out = read_registry(connection)
    return {table_id: c.schema.qualified_name for table_id, c in (captured | out).items()}


def release_steps(connection: sqlite3.Connection, table_ids: Seq[int]) -> list[InstallStep]:
    """Return the steps that remove the triggers of these tables and record it in the registry."""
    captured, out = read_registry(connection)
    places = qualified_names((c.table for c in (captured | out).values()), table_ids)
    present = read_objects(connection)
    steps = []
    for table_id, place in places.items():
        drops = (statement("install", "drop_trigger", trigger=quote(n)) for n in _trigger_names(present, table_id))
        steps += [InstallStep(table=place, what=describe_statement(sql), sql=sql) for sql in drops]
        if table_id not in out or is_being_released(out[table_id].table):
            sql = registry.set_state_sql(table_id, RELEASING, TRIGGERS_GONE)
            steps.append(InstallStep(table=place, what=f"state {RELEASING}", sql=sql))
    return steps


def drop_triggers(connection: sqlite3.Connection, table_id: int) -> None:
    """Drop the triggers of a table, so that its log grows no more."""
    for name in _trigger_names(read_objects(connection), table_id):
        connection.execute(statement("install", "drop_trigger", trigger=quote(name)))


def _trigger_names(present: DictionaryObjects, table_id: int) -> list[str]:
    """Return the triggers that write to a log or limit it."""
    log = log_table_name(table_id)
    mine = (name for name in present if name != log and registry.table_number(name) == table_id)
    return sorted(name for name in mine if not registry.is_reject_trigger(name))


def log_removal_steps(connection: sqlite3.Connection, reasons: Mapping[int, str]) -> list[InstallStep]:
    """Return the steps that remove the logs of these tables. Raises Refused if a trigger writes to a log."""
    present = read_objects(connection)
    refuse_if_written(
        {i: place for i, place in _table_names(connection).items() if i in reasons},
        (i for i in reasons if _trigger_names(present, i)),
    )
    return _log_removal_steps(connection, reasons)


def _log_removal_steps(connection: sqlite3.Connection, reasons: Mapping[int, str]) -> list[InstallStep]:
    """Return the steps that remove the logs of these tables and record it in the registry."""
    captured, out = read_registry(connection)
    places = qualified_names((c.table for c in (captured | out).values()), reasons)
    present = read_objects(connection)
    steps = []
    for table_id, place in places.items():
        if (log := log_table_name(table_id)) in present:
            sql = statement("install", "drop_table", log=quote(log))
            steps.append(InstallStep(table=place, what=describe_statement(sql), sql=sql))
        sql = registry.set_state_sql(table_id, RELEASED, reasons[table_id])
        steps.append(InstallStep(table=place, what=f"state {RELEASED}", sql=sql))
    return steps


_CREATES = re.compile(r"(CREATE|DROP) (TABLE|TRIGGER) \"?(\w+)\"?", re.IGNORECASE)
_LOG_STEP = re.compile(r"table venus_l_(\d{5,})")
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


def valve_steps(steps: Seq[InstallStep], present: DictionaryObjects, limits: LogLimits) -> Iterator[InstallStep]:
    """Yield the steps that give each log of these steps its limit. Replacing a log has dropped the old log's limit."""
    for step in steps:
        found = _LOG_STEP.fullmatch(step.what)
        if found is None:
            continue
        name, wanted = valve_name(int(found[1])), build_valve(int(found[1]), limits)
        there = present.get(name, ("", ""))[1] if step.exists else ""
        if there and there != wanted:
            sql = statement("install", "drop_trigger", trigger=quote(name))
            yield InstallStep(table=step.table, what=f"old trigger {name}", sql=sql)
        if wanted:
            yield InstallStep(table=step.table, what=f"trigger {name}", sql=wanted, exists=there == wanted)


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
    """Return the first number, from `table_id` on, that is not in `taken`, the numbers in names of existing objects."""
    while table_id in taken:
        table_id += 1
    return table_id


def own_step(sql: str) -> InstallStep:
    """Return the installation step that runs a statement about VENUS's own tables."""
    return InstallStep(table="venus", what=describe_statement(sql), sql=sql)


def describe_statement(sql: str) -> str:
    """Return a text that names what a statement creates, removes or changes."""
    match = _CREATES.match(sql)
    if match is None:
        return f"row of {sql.split()[2]}" if sql.startswith(("INSERT", "DELETE")) else f"row of {sql.split()[1]}"
    return f"{match[2].lower()} {match[3]}"


def _future_heartbeat(own_tables: Seq[str]) -> SqliteTable:
    """Return the description of VENUS's heartbeat table before it exists."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as scratch:
        for sql in own_tables:
            scratch.execute(sql)
        return SqliteDictionary(scratch).read_table(HEARTBEAT)


def _new_table_steps(found: SqliteTable, table_id: int, rows: int) -> list[InstallStep]:
    """Return the steps that capture a table for the first time."""
    schema, number_max = assign_numbers(replace(found.schema, table_id=table_id), 0)
    found = replace(found, schema=schema)
    steps = [_object_step(found, made) for made in build_capture_objects(found, table_id)]
    row = registry.register_sql(schema, estimate=rows, number_max=number_max)
    return [*steps, InstallStep(table=schema.qualified_name, what="row of venus_captured_table", sql=row)]


def _object_step(found: SqliteTable, made: SqliteOwnObject, *, exists: bool = False) -> InstallStep:
    """Return the step that creates an object of VENUS for this table."""
    return InstallStep(table=found.schema.qualified_name, what=f"{made.kind} {made.name}", sql=made.sql, exists=exists)


def _known_table_steps(how: SqliteTableComparison, present: DictionaryObjects) -> list[InstallStep]:
    """Return the steps for a table that is captured already: missing objects are created again."""
    table_id, found = how.captured.schema.table_id, how.table
    if found is None:
        return []
    rebuilt = not how.readable and not how.missing
    if rebuilt:  # the key has changed, so the log is useless
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
    if log in present:  # an interrupted removal left it; the fill reads the rows that it names
        steps.append(_statement_step(found, statement("install", "drop_table", log=quote(log))))
    existing = {m.name for m in made if m.name != log and present.get(m.name, ("", ""))[1] == m.sql}
    steps += [_object_step(found, m, exists=m.name in existing) for m in made]
    if schema.version != how.captured.schema.version:
        steps.append(_statement_step(found, registry.new_version_sql(schema, how.number_max)))
    return [*steps, _statement_step(found, registry.recapture_sql(table_id, estimate=rows))]


def _statement_step(found: SqliteTable, sql: str) -> InstallStep:
    """Return the step that runs a statement about a table or its old triggers."""
    return InstallStep(
        table=found.schema.qualified_name, what=describe_statement(sql).replace("trigger", "old trigger"), sql=sql
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
