"""Installation and removal of capture at a MariaDB or MySQL source, and the release of single tables.

MySQL commits at every DDL statement, so an installation is not atomic. Instead every step is repeatable: existing
objects are not created again, a table is registered after its triggers exist, and the removal drops the triggers first.
Running an interrupted installation or removal again completes it.

CREATE TRIGGER waits for open transactions that wrote to its table, so the first fill sees their rows. Its lock request
has a short timeout and is repeated, so that the application does not queue behind a long transaction.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq

from venus.adapters.dialects.contract import InstallStep, SourceInstaller
from venus.adapters.dialects.install_script import plain_script
from venus.adapters.dialects.mysql import connection as waits
from venus.adapters.dialects.mysql import names, registry
from venus.adapters.dialects.mysql.connection import MysqlConnection, MysqlLockTimeout
from venus.adapters.dialects.mysql.dictionary.tables import read_dictionary
from venus.adapters.dialects.mysql.installation.check import check, find_blocking
from venus.adapters.dialects.mysql.installation.install import (
    MysqlInstalledObjects,
    all_table_steps,
    drop_trigger_sql,
    make_repeatable,
    own_steps,
    table_number,
)
from venus.adapters.dialects.mysql.names import quote
from venus.adapters.dialects.mysql.sql import statement
from venus.adapters.dialects.released_tables import (
    BY_SCRIPT,
    RELEASED,
    RELEASING,
    TRIGGERS_GONE,
    qualified_names,
    refuse_if_written,
)
from venus.errors import DatabaseUnavailable, Refused
from venus.migrations import run as migrations
from venus.model import Finding

logger = logging.getLogger(__name__)

_RETRY_AFTER_S = 1.0


class MysqlInstaller(SourceInstaller):
    """The part of a source that installs capture and removes it."""

    as_script = staticmethod(plain_script)

    def __init__(self, writer: MysqlConnection, on_change: Callable[[], None]) -> None:
        """`on_change`: called before a change of the objects or of the registry."""
        self._writer = writer
        self._on_change = on_change

    def check(self, include: Seq[str], exclude: Seq[str]) -> list[Finding]:
        return check(self._writer, include, exclude)

    def plan_install(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        blocked = find_blocking(self._writer, include, exclude)
        if blocked:
            lines = "; ".join(f"{f.where} {f.message}" for f in blocked)
            hint = "; ".join(dict.fromkeys(f.remedy for f in blocked if f.remedy))
            raise Refused(f"cannot install: {lines}", hint=hint)
        dictionary = read_dictionary(self._writer, zero_dates_null=self._writer.options.zero_dates_null)
        return own_steps(self._writer) + all_table_steps(self._writer, dictionary, include, exclude)

    def install(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        return self._run(self.plan_install(include, exclude))

    def plan_uninstall(self) -> list[InstallStep]:
        """Return every statement of the removal in order: triggers first, because they need the logs."""
        present = MysqlInstalledObjects.read(self._writer)
        database = self._writer.address.database
        places = present.numbers
        steps = []
        for name in sorted(present.triggers):
            table = places.get(table_number(name), f"{database}.{present.triggers[name][1]}")
            steps.append(InstallStep(table=table, what=f"trigger {name}", sql=drop_trigger_sql(database, name)))
        for name in [*sorted(present.logs), *([names.MARKS] if names.MARKS in present.other_tables else [])]:
            sql = statement("triggers", "drop_table", table=f"{quote(database)}.{name}")
            digits = name.rpartition("_")[2]
            table = places.get(int(digits), "") if digits.isdecimal() else ""
            steps.append(InstallStep(table=table, what=f"table {name}", sql=sql))
        return steps + [
            InstallStep(table="", what="VENUS's own tables", sql=sql)
            for sql in _own_removal_statements(self._writer, present)
        ]

    def uninstall(self) -> list[InstallStep]:
        return self._run(self.plan_uninstall())

    def plan_release(self, table_ids: Seq[int]) -> list[InstallStep]:
        present = MysqlInstalledObjects.read(self._writer)
        return [
            *_release_steps(self._writer, present, table_ids),
            *_log_removal_steps(self._writer, present, dict.fromkeys(table_ids, BY_SCRIPT)),
        ]

    def release(self, table_ids: Seq[int]) -> list[InstallStep]:
        return self._run(_release_steps(self._writer, MysqlInstalledObjects.read(self._writer), table_ids))

    def drop_logs(self, reasons: Mapping[int, str]) -> list[InstallStep]:
        present = MysqlInstalledObjects.read(self._writer)
        refuse_if_written({i: present.numbers[i] for i in reasons}, map(table_number, present.triggers))
        return self._run(_log_removal_steps(self._writer, present, reasons))

    def _run(self, steps: list[InstallStep]) -> list[InstallStep]:
        self._on_change()
        options = self._writer.options
        self._writer.run(f"SET lock_wait_timeout = {options.install_lock_timeout_s}")
        try:
            for step in steps:
                if not step.exists:
                    run_with_retries(self._writer, step.sql)
        finally:
            self._writer.run(f"SET lock_wait_timeout = {options.lock_timeout_s}")
        return steps


def _release_steps(
    connection: MysqlConnection, present: MysqlInstalledObjects, table_ids: Seq[int]
) -> list[InstallStep]:
    """Return the steps that remove triggers. The registry is updated first, so that capture does not miss them."""
    released = [k.table for k in registry.read_tables(connection, released=True)]
    places = qualified_names([*(k.table for k in registry.read_tables(connection)), *released], table_ids)
    steps = []
    for table_id, place in places.items():
        if not any(t.schema.table_id == table_id for t in released):
            sql = registry.set_state_sql(table_id, RELEASING, TRIGGERS_GONE)
            steps.append(InstallStep(table=place, what=f"state {RELEASING}", sql=sql))
        steps += [
            InstallStep(table=place, what=f"trigger {name}", sql=drop_trigger_sql(connection.address.database, name))
            for name in sorted(present.triggers)
            if table_number(name) == table_id
        ]
    return steps


def _log_removal_steps(
    connection: MysqlConnection, present: MysqlInstalledObjects, reasons: Mapping[int, str]
) -> list[InstallStep]:
    """Return the steps that remove logs. The registry is updated first, so that capture reads no missing log."""
    places = qualified_names((k.table for k in (*present.registered.values(), *present.released.values())), reasons)
    steps = []
    for table_id, place in places.items():
        sql = registry.set_state_sql(table_id, RELEASED, reasons[table_id])
        steps.append(InstallStep(table=place, what=f"state {RELEASED}", sql=sql))
        if (log := names.log_table_name(table_id)) in present.logs:
            sql = statement("triggers", "drop_table", table=f"{quote(connection.address.database)}.{log}")
            steps.append(InstallStep(table=place, what=f"table {log}", sql=sql))
    return steps


def _own_removal_statements(connection: MysqlConnection, present: MysqlInstalledObjects) -> list[str]:
    with connection.sqlalchemy() as lent:
        own = [
            make_repeatable(sql) for sql in migrations.render_sql(lent, "source", schema=None, direction="downgrade")
        ]
        theirs = migrations.is_installed(lent, "target", schema=None)
    if own or theirs:
        return own
    # after an interrupted removal or installation no revision is recorded, but tables may exist
    left = ["venus_heartbeat", "venus_captured_table", "venus_batch", "venus_checkpoint", "venus_alembic_version"]
    return [f"DROP TABLE IF EXISTS {name}" for name in left if name in present.other_tables]


def _describe_holders(connection: MysqlConnection) -> str:
    return waits.describe_sessions(connection, "locking") or "the server does not show which session holds it"


def run_with_retries(connection: MysqlConnection, sql: str) -> None:
    """Run a statement. If it gets no lock, let the application proceed and try again."""
    for left in range(connection.options.install_attempts, 0, -1):
        try:
            connection.run(sql)
        except MysqlLockTimeout as error:
            if left == 1:
                raise DatabaseUnavailable(
                    f"source {connection.place}: a table was in use for too long: {_describe_holders(connection)}",
                    hint="end the transaction that holds the lock (SHOW PROCESSLIST), then run this command again",
                ) from error
            statement_shown = sql.split("\n")[0][:120]
            logger.warning(
                "waiting for an open transaction to run: %s; %s", statement_shown, _describe_holders(connection)
            )
            time.sleep(_RETRY_AFTER_S)
        else:
            return
