"""Runs what install.py plans, in transactions: capture is installed in a file, removed, or ended for single tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from contextlib import closing
from pathlib import Path

import sqlalchemy
from sqlalchemy.pool import StaticPool

from venus.adapters.dialects.columns import NO_CHOICE, ColumnChoice
from venus.adapters.dialects.contract import InstallStep
from venus.adapters.dialects.sqlite import registry, seen
from venus.adapters.dialects.sqlite.check import check
from venus.adapters.dialects.sqlite.connection import connect, read_transaction, write_transaction
from venus.adapters.dialects.sqlite.dictionary import Dictionary
from venus.adapters.dialects.sqlite.install import (
    install_plan,
    log_drops,
    release_plan,
    release_steps,
    uninstall_plan,
)
from venus.errors import Refused
from venus.migrations import run


class Installation:
    """Plans and carries out, on the connection that writes."""

    def __init__(self, file: Path, writer: sqlite3.Connection, columns: ColumnChoice = NO_CHOICE) -> None:
        self._file, self._writer, self._columns = file, writer, columns

    def install_plan(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        """Return every statement of the installation."""
        self._refuse_blocked(include, exclude)
        own_tables = self._own_tables("upgrade")
        with read_transaction(self._writer, self._file):
            return install_plan(Dictionary(self._writer, self._columns), own_tables, include, exclude)

    def install(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        """Install what is missing, in one transaction."""
        self._refuse_blocked(include, exclude)
        return self._altering(
            lambda: install_plan(Dictionary(self._writer, self._columns), self._own_tables("upgrade"), include, exclude)
        )

    def _altering(self, plan: Callable[[], list[InstallStep]]) -> list[InstallStep]:
        """Plan and run in one transaction, without capture's taking our statements for somebody's ALTER TABLE."""
        with write_transaction(self._writer, self._file):
            is_noted = registry.installed(self._writer) and seen.noted(self._writer) == seen.now(self._writer)
            steps = plan()
            self._execute(steps)
            if is_noted:  # what came since are our own statements
                seen.note(self._writer, seen.now(self._writer))
        return steps

    def _refuse_blocked(self, include: Seq[str], exclude: Seq[str]) -> None:
        with read_transaction(self._writer, self._file):
            findings = list(check(self._writer, self._file, self._columns, include, exclude))
        for finding in findings:
            if finding.blocks:
                raise Refused(f"{finding.where}: {finding.message}", hint=finding.remedy)

    def uninstall_plan(self) -> list[InstallStep]:
        """Return every statement of the removal."""
        own_tables = self._own_tables("downgrade")
        with read_transaction(self._writer, self._file):
            return uninstall_plan(self._writer, own_tables)

    def uninstall(self) -> list[InstallStep]:
        """Leave the file's dictionary as it was before, in one transaction."""
        with write_transaction(self._writer, self._file):
            steps = uninstall_plan(self._writer, self._own_tables("downgrade"))
            self._execute(steps)
        return steps

    def release_plan(self, table_ids: Seq[int]) -> list[InstallStep]:
        """Return every statement that takes these tables out of capture."""
        with read_transaction(self._writer, self._file):
            return release_plan(self._writer, table_ids)

    def release(self, table_ids: Seq[int]) -> list[InstallStep]:
        """Take the triggers of these tables away."""
        return self._altering(lambda: release_steps(self._writer, table_ids))

    def drop_logs(self, reasons: Mapping[int, str]) -> list[InstallStep]:
        """Remove the logs of these tables."""
        return self._altering(lambda: log_drops(self._writer, reasons))

    def _own_tables(self, direction: run.Direction) -> list[str]:
        connection = connect(self._file)
        engine = sqlalchemy.create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
        # SQLAlchemy's first look at a connection ends its transaction; ours is begun behind it
        with closing(connection), engine.connect() as borrowed, read_transaction(connection, self._file):
            return run.sql(borrowed, "source", schema=None, direction=direction)

    def _execute(self, steps: list[InstallStep]) -> None:
        for step in steps:
            if not step.exists:
                self._writer.execute(step.sql).close()
