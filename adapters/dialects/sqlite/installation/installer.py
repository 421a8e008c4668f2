"""Installation and removal of capture in a SQLite file, and the release of single tables.

SQLite's DDL is transactional, so an installation succeeds as a whole or not at all. It holds the write lock, so no
other transaction can begin before it and commit after it without firing the triggers.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from contextlib import closing
from pathlib import Path

import sqlalchemy
from sqlalchemy.pool import StaticPool

from venus.adapters.dialects.column_choice import ColumnChoice
from venus.adapters.dialects.contract import InstallStep, SourceInstaller
from venus.adapters.dialects.install_script import plain_script
from venus.adapters.dialects.released_tables import (
    BY_SCRIPT,
    RELEASED,
    RELEASING,
    TRIGGERS_GONE,
    is_being_released,
    qualified_names,
    refuse_if_written,
)
from venus.adapters.dialects.sqlite import registry
from venus.adapters.dialects.sqlite.connection import connect, quote, read_transaction, write_transaction
from venus.adapters.dialects.sqlite.dictionary.tables import (
    NAMESPACE,
    SqliteDictionary,
    log_table_name,
)
from venus.adapters.dialects.sqlite.installation import schema_changes as table_comparison
from venus.adapters.dialects.sqlite.installation.check import check
from venus.adapters.dialects.sqlite.installation.install import (
    describe_statement,
    install_steps,
    own_step,
    read_registry,
)
from venus.adapters.dialects.sqlite.installation.schema_changes import (
    DictionaryObjects,
    read_objects,
)
from venus.adapters.dialects.sqlite.sql import statement
from venus.errors import Refused
from venus.migrations import run
from venus.model import Finding


class SqliteInstaller(SourceInstaller):
    """The part of a source that installs capture and removes it: a plan lists statements, a run executes those."""

    as_script = staticmethod(plain_script)

    def __init__(
        self, file: Path, writer: sqlite3.Connection, columns: ColumnChoice, on_change: Callable[[], None]
    ) -> None:
        """`on_change`: called before a change of the objects or of the registry."""
        self._file, self._writer, self._columns = file, writer, columns
        self._on_change = on_change

    def check(self, include: Seq[str], exclude: Seq[str]) -> list[Finding]:
        with read_transaction(self._writer, self._file):
            return list(check(self._writer, self._file, self._columns, include, exclude))

    def plan_install(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        """Return every statement of the installation."""
        self._raise_blocking_finding(include, exclude)
        own_tables = self._own_table_statements("upgrade")
        with read_transaction(self._writer, self._file):
            return install_steps(SqliteDictionary(self._writer, self._columns), own_tables, include, exclude)

    def install(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        """Install what is missing, in one transaction."""
        self._raise_blocking_finding(include, exclude)
        return self._run_plan(
            lambda: install_steps(
                SqliteDictionary(self._writer, self._columns), self._own_table_statements("upgrade"), include, exclude
            )
        )

    def _run_plan(self, plan: Callable[[], list[InstallStep]]) -> list[InstallStep]:
        """Plan and run in one transaction. Capture must not take these statements for the application's DDL."""
        self._on_change()
        with write_transaction(self._writer, self._file):
            is_noted = registry.is_installed(self._writer) and table_comparison.read_stored_summary(
                self._writer
            ) == table_comparison.read_summary(self._writer)
            steps = plan()
            self._execute(steps)
            if is_noted:  # all DDL since then is VENUS's own
                table_comparison.store_summary(self._writer, table_comparison.read_summary(self._writer))
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
        """Remove everything in one transaction, which restores the dictionary as it was before."""
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
    names = _table_names(connection)
    own = registry.read_owned_objects(connection)
    ours = {name: table for name, (table, _) in read_objects(connection).items() if own.has_numbered_object(name)}
    triggers = [n for n in ours if not n.startswith("venus_l_")]
    steps = []
    for block, kind, found in (("drop_trigger", "trigger", triggers), ("drop_table", "log", set(ours) - set(triggers))):
        for name in sorted(found, key=lambda n: (n[-5:], n)):
            sql = statement("install", block, **{kind: quote(name)})
            table = names.get(int(name.rpartition("_")[2]), f"{NAMESPACE}.{ours[name]}")
            steps.append(InstallStep(table=table, what=describe_statement(sql), sql=sql))
    return steps + [own_step(sql) for sql in own_tables]


def _table_names(connection: sqlite3.Connection) -> dict[int, str]:
    captured, out = read_registry(connection)
    return {table_id: c.schema.qualified for table_id, c in (captured | out).items()}


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


def _trigger_names(present: DictionaryObjects, table_id: int) -> list[str]:
    log = log_table_name(table_id)
    return sorted(name for name in present if name != log and registry.table_number(name) == table_id)


def log_removal_steps(connection: sqlite3.Connection, reasons: Mapping[int, str]) -> list[InstallStep]:
    """Return the steps that remove the logs of these tables. Raises Refused if a trigger writes to one."""
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
