"""Installation and removal of capture at a PostgreSQL source, and the release of single tables.

Everything is one transaction. CREATE TRIGGER waits for open transactions that wrote to its table, so the first fill
sees their rows; later writers fire the trigger. The locks are requested all at once with a short timeout, and released
between two attempts, so that the application does not queue behind a long transaction.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from functools import partial

from venus.adapters.dialects.contract import InstallStep, SourceInstaller
from venus.adapters.dialects.install_script import plain_script
from venus.adapters.dialects.postgresql import lock_waits, names, registry
from venus.adapters.dialects.postgresql.connection import PostgresConnection, PostgresLockTimeout
from venus.adapters.dialects.postgresql.dictionary import tables as dictionary
from venus.adapters.dialects.postgresql.installation.check import check
from venus.adapters.dialects.postgresql.installation.install import (
    SHARED,
    PostgresInstalledObjects,
    all_table_steps,
    own_steps,
    strip_schema,
)
from venus.adapters.dialects.postgresql.sql import statement
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


class PostgresInstaller(SourceInstaller):
    """The part of a source that installs capture and removes it."""

    as_script = staticmethod(plain_script)

    def __init__(self, connection: PostgresConnection, on_change: Callable[[], None]) -> None:
        """`on_change`: called before a change of the objects or of the registry."""
        self._connection = connection
        self._on_change = on_change

    def check(self, include: Seq[str], exclude: Seq[str]) -> list[Finding]:
        return check(self._connection, include, exclude)

    def plan_install(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        self._raise_blocking_findings(include, exclude)
        with self._connection.snapshot():
            return own_steps(self._connection) + all_table_steps(self._connection, include, exclude)

    def _raise_blocking_findings(self, include: Seq[str], exclude: Seq[str]) -> None:
        blocking = [f for f in self.check(include, exclude) if f.blocks]
        if blocking:
            lines = "; ".join(f"{f.where} {f.message}" for f in blocking)
            hint = "; ".join(dict.fromkeys(f.remedy for f in blocking if f.remedy))
            raise Refused(f"cannot install: {lines}", hint=hint)

    def install(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        """Install what is missing, in one transaction."""
        self._raise_blocking_findings(include, exclude)

        def attempt() -> list[InstallStep]:
            own = self._run_steps(own_steps(self._connection))
            return own + self._run_steps(all_table_steps(self._connection, include, exclude))

        return self._run_with_retries(attempt)

    def plan_uninstall(self) -> list[InstallStep]:
        """Return every statement of the removal in order.

        Dropping a function also drops its triggers, so VENUS need not own the tables.
        """
        connection = self._connection
        with connection.snapshot():
            present = PostgresInstalledObjects.read(connection)
            places = _qualified_names(present)
            steps = _drop_function_steps(present, places) + _drop_log_steps(present, places)
            steps += [
                InstallStep(table="", what=f"table venus.{name}", sql=f"DROP TABLE venus.{name}")
                for name in SHARED
                if name in present.other_tables
            ]
            with connection.sqlalchemy() as lent:
                own = migrations.render_sql(lent, "source", schema=names.OWN_SCHEMA, direction="downgrade")
        return steps + [InstallStep(table="", what="VENUS's own tables", sql=sql) for sql in own]

    def uninstall(self) -> list[InstallStep]:
        """Remove everything, in one transaction."""
        return self._run_with_retries(lambda: self._run_steps(self.plan_uninstall()))

    def plan_release(self, table_ids: Seq[int]) -> list[InstallStep]:
        with self._connection.snapshot():
            present = PostgresInstalledObjects.read(self._connection)
            return [
                *_release_steps(self._connection, present, table_ids),
                *_log_removal_steps(present, dict.fromkeys(table_ids, BY_SCRIPT)),
            ]

    def release(self, table_ids: Seq[int]) -> list[InstallStep]:
        """Remove the triggers of these tables. Each table has its own transaction, so a busy table delays no other."""

        def attempt(table_id: int) -> list[InstallStep]:
            present = PostgresInstalledObjects.read(self._connection)
            return self._run_steps(_release_steps(self._connection, present, [table_id]))

        return [step for table_id in table_ids for step in self._run_with_retries(partial(attempt, table_id))]

    def drop_logs(self, reasons: Mapping[int, str]) -> list[InstallStep]:
        """Remove the logs of these tables in one transaction, so that the registry always matches the logs."""

        def attempt() -> list[InstallStep]:
            present = PostgresInstalledObjects.read(self._connection)
            places = _qualified_names(present)
            written = (i for i in places if any(strip_schema(f) in present.functions for f in names.function_names(i)))
            refuse_if_written({i: places[i] for i in reasons}, written)
            return self._run_steps(_log_removal_steps(present, reasons))

        return self._run_with_retries(attempt)

    def _run_steps(self, steps: list[InstallStep]) -> list[InstallStep]:
        for step in steps:
            if not step.exists:
                self._connection.run(step.sql)
        return steps

    def _run_with_retries(self, attempt: Callable[[], list[InstallStep]]) -> list[InstallStep]:
        """Run `attempt` in a transaction. If it gets no lock, let the application proceed and try again."""
        self._on_change()
        connection, options = self._connection, self._connection.options
        for left in range(options.install_attempts, 0, -1):
            try:
                with connection.transaction():
                    connection.run(f"SET LOCAL lock_timeout = {int(options.install_lock_timeout_s * 1000)}")
                    return attempt()
            except PostgresLockTimeout as error:
                blockers = _describe_holders(connection)
                if left == 1:
                    raise DatabaseUnavailable(
                        f"source {connection.place}: a table was in use for too long: {blockers}",
                        hint="end that session, or run this command again later; nothing was changed",
                    ) from error
                logger.warning("waiting for a lock: %s", blockers)
                time.sleep(_RETRY_AFTER_S)
        raise AssertionError("unreachable: the last attempt returns or raises")


def _describe_holders(connection: PostgresConnection) -> str:
    found = lock_waits.find_holders(
        connection, (r[0] for r in dictionary.read_all_tables(connection)), lock_waits.FROM_TRIGGERS
    )
    return ", ".join(f"{w.holder} on {w.table}" for w in found) or "a session that ended meanwhile"


def _drop_function_steps(present: PostgresInstalledObjects, places: Mapping[int, str]) -> list[InstallStep]:
    """Return the steps that remove the functions of these tables, and the triggers with them.

    The schema may contain functions that are not VENUS's.
    """
    own = {strip_schema(f): places[i] for i in places for f in names.function_names(i)}
    return [
        InstallStep(
            table=own[function],
            what=f"function {names.OWN_SCHEMA}.{function} and its triggers",
            sql=f"DROP FUNCTION {names.OWN_SCHEMA}.{function}() CASCADE",
        )
        for function in sorted(own.keys() & present.functions.keys())
    ]


def _drop_log_steps(present: PostgresInstalledObjects, places: Mapping[int, str]) -> list[InstallStep]:
    own = {strip_schema(names.log_table_name(i)): place for i, place in places.items()}
    return [
        InstallStep(
            table=own[log],
            what=f"log table {names.OWN_SCHEMA}.{log}",
            sql=f"DROP TABLE {names.OWN_SCHEMA}.{log}",
        )
        for log in sorted(own.keys() & present.logs.keys())
    ]


def _qualified_names(present: PostgresInstalledObjects) -> dict[int, str]:
    return {table_id: f"{namespace}.{name}" for (namespace, name), table_id in present.table_ids.items()}


def _release_steps(
    connection: PostgresConnection, present: PostgresInstalledObjects, table_ids: Seq[int]
) -> list[InstallStep]:
    """Return the steps that remove the triggers, then those that update the registry.

    Removing triggers waits for a cut that reads the table, and that cut may write the registry's row, hence the order.
    """
    released = [t for t, _ in registry.read_registered_tables(connection, released=True)]
    places = qualified_names([*(t for t, _ in registry.read_registered_tables(connection)), *released], table_ids)
    steps = _drop_function_steps(present, places)
    for table_id, place in places.items():
        if any(t.schema.table_id == table_id for t in released):
            continue
        if "captured_leaf" in present.other_tables and table_id in present.leaves:
            sql = statement("triggers", "leaves_left", table_id=str(table_id))
            steps.append(InstallStep(table=place, what="partitions", sql=sql))
        sql = registry.release_sql(table_id, RELEASING, TRIGGERS_GONE)
        steps.append(InstallStep(table=place, what=f"state {RELEASING}", sql=sql))
    return steps


def _log_removal_steps(present: PostgresInstalledObjects, reasons: Mapping[int, str]) -> list[InstallStep]:
    every = _qualified_names(present)
    places = {table_id: every[table_id] for table_id in reasons}
    return _drop_log_steps(present, places) + [
        InstallStep(
            table=place, what=f"state {RELEASED}", sql=registry.release_sql(table_id, RELEASED, reasons[table_id])
        )
        for table_id, place in places.items()
    ]
