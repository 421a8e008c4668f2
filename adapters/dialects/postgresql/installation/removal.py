"""Removal of VENUS's objects from a PostgreSQL source: all of them, or those that capture single tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq

from venus.adapters.dialects.contract import InstallStep
from venus.adapters.dialects.postgresql import names, registry
from venus.adapters.dialects.postgresql.connection import PostgresConnection
from venus.adapters.dialects.postgresql.installation.install import (
    SHARED,
    PostgresInstalledObjects,
    run_steps,
    run_with_retries,
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
from venus.migrations import run as migrations

# -- plans -------------------------------------------------------------------------------------------------------


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


def plan_uninstall(connection: PostgresConnection) -> list[InstallStep]:
    """Return every statement of the removal in order.

    Dropping a function also drops its triggers, so VENUS need not own the tables.
    """
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


def _qualified_names(present: PostgresInstalledObjects) -> dict[int, str]:
    return {table_id: f"{namespace}.{name}" for (namespace, name), table_id in present.table_ids.items()}


def plan_release(connection: PostgresConnection, table_ids: Seq[int]) -> list[InstallStep]:
    """Return every statement that takes these tables out of capture, in order."""
    with connection.snapshot():
        present = PostgresInstalledObjects.read(connection)
        return [
            *_release_steps(connection, present, table_ids),
            *_log_removal_steps(present, dict.fromkeys(table_ids, BY_SCRIPT)),
        ]


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


# -- execution ---------------------------------------------------------------------------------------------------


def uninstall(connection: PostgresConnection) -> list[InstallStep]:
    """Remove everything, in one transaction."""

    def attempt() -> list[InstallStep]:
        steps = plan_uninstall(connection)
        run_steps(connection, steps)
        return steps

    return run_with_retries(connection, attempt)


def release(connection: PostgresConnection, table_ids: Seq[int]) -> list[InstallStep]:
    """Remove the triggers of these tables. Each table has its own transaction, so a busy table delays no other."""

    def one(table_id: int) -> Callable[[], list[InstallStep]]:
        def attempt() -> list[InstallStep]:
            steps = _release_steps(connection, PostgresInstalledObjects.read(connection), [table_id])
            run_steps(connection, steps)
            return steps

        return attempt

    return [step for table_id in table_ids for step in run_with_retries(connection, one(table_id))]


def drop_logs(connection: PostgresConnection, reasons: Mapping[int, str]) -> list[InstallStep]:
    """Remove the logs of these tables in one transaction, so that the registry always matches the logs."""

    def attempt() -> list[InstallStep]:
        present = PostgresInstalledObjects.read(connection)
        places = _qualified_names(present)
        written = (i for i in places if any(strip_schema(f) in present.functions for f in names.function_names(i)))
        refuse_if_written({i: places[i] for i in reasons}, written)
        steps = _log_removal_steps(present, reasons)
        run_steps(connection, steps)
        return steps

    return run_with_retries(connection, attempt)
