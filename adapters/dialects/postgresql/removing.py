"""Removal of VENUS's objects from a PostgreSQL source: all of them, or those that capture single tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq

from venus.adapters.dialects.contract import InstallStep
from venus.adapters.dialects.postgresql import names, registry
from venus.adapters.dialects.postgresql.connection import Connection
from venus.adapters.dialects.postgresql.install import SHARED, Present, local_name, patiently, run_steps
from venus.adapters.dialects.postgresql.statements import statement
from venus.adapters.dialects.releasing import BY_SCRIPT, RELEASED, RELEASING, TRIGGERS_GONE, places_of, refuse_written
from venus.migrations import run as migrations

# -- plans -------------------------------------------------------------------------------------------------------


def _function_removals(present: Present, places: Mapping[int, str]) -> list[InstallStep]:
    """Return the steps that remove the functions of these tables, and the triggers with them.

    The schema may contain functions that are not VENUS's.
    """
    own = {local_name(f): places[i] for i in places for f in names.functions(i)}
    return [
        InstallStep(
            table=own[function],
            what=f"function {names.OWN_SCHEMA}.{function} and its triggers",
            sql=f"DROP FUNCTION {names.OWN_SCHEMA}.{function}() CASCADE",
        )
        for function in sorted(own.keys() & present.functions.keys())
    ]


def _log_removals(present: Present, places: Mapping[int, str]) -> list[InstallStep]:
    own = {local_name(names.log_table(i)): place for i, place in places.items()}
    return [
        InstallStep(
            table=own[log],
            what=f"log table {names.OWN_SCHEMA}.{log}",
            sql=f"DROP TABLE {names.OWN_SCHEMA}.{log}",
        )
        for log in sorted(own.keys() & present.logs.keys())
    ]


def uninstall_plan(connection: Connection) -> list[InstallStep]:
    """Return every statement of the removal in order.

    Dropping a function also drops its triggers, so VENUS need not own the tables.
    """
    with connection.reading():
        present = Present.read(connection)
        places = _places(present)
        steps = _function_removals(present, places) + _log_removals(present, places)
        steps += [
            InstallStep(table="", what=f"table venus.{name}", sql=f"DROP TABLE venus.{name}")
            for name in SHARED
            if name in present.others
        ]
        with connection.sqlalchemy() as lent:
            own = migrations.sql(lent, "source", schema=names.OWN_SCHEMA, direction="downgrade")
    return steps + [InstallStep(table="", what="VENUS's own tables", sql=sql) for sql in own]


def _places(present: Present) -> dict[int, str]:
    return {table_id: f"{namespace}.{name}" for (namespace, name), table_id in present.table_ids.items()}


def release_plan(connection: Connection, table_ids: Seq[int]) -> list[InstallStep]:
    """Return every statement that takes these tables out of capture, in order."""
    with connection.reading():
        present = Present.read(connection)
        return [
            *_release_steps(connection, present, table_ids),
            *_log_drops(present, dict.fromkeys(table_ids, BY_SCRIPT)),
        ]


def _release_steps(connection: Connection, present: Present, table_ids: Seq[int]) -> list[InstallStep]:
    """Return the steps that remove the triggers, then those that update the registry.

    Removing triggers waits for a cut that reads the table, and that cut may write the registry's row, hence the order.
    """
    released = [t for t, _ in registry.registered(connection, released=True)]
    places = places_of([*(t for t, _ in registry.registered(connection)), *released], table_ids)
    steps = _function_removals(present, places)
    for table_id, place in places.items():
        if any(t.schema.table_id == table_id for t in released):
            continue
        if "captured_leaf" in present.others and table_id in present.leaves:
            sql = statement("triggers", "leaves_left", table_id=str(table_id))
            steps.append(InstallStep(table=place, what="partitions", sql=sql))
        sql = registry.release_sql(table_id, RELEASING, TRIGGERS_GONE)
        steps.append(InstallStep(table=place, what=f"state {RELEASING}", sql=sql))
    return steps


def _log_drops(present: Present, reasons: Mapping[int, str]) -> list[InstallStep]:
    every = _places(present)
    places = {table_id: every[table_id] for table_id in reasons}
    return _log_removals(present, places) + [
        InstallStep(
            table=place, what=f"state {RELEASED}", sql=registry.release_sql(table_id, RELEASED, reasons[table_id])
        )
        for table_id, place in places.items()
    ]


# -- execution ---------------------------------------------------------------------------------------------------


def uninstall(connection: Connection) -> list[InstallStep]:
    """Remove everything, in one transaction."""

    def attempt() -> list[InstallStep]:
        steps = uninstall_plan(connection)
        run_steps(connection, steps)
        return steps

    return patiently(connection, attempt)


def release(connection: Connection, table_ids: Seq[int]) -> list[InstallStep]:
    """Remove the triggers of these tables. Each table has its own transaction, so a busy table delays no other."""

    def one(table_id: int) -> Callable[[], list[InstallStep]]:
        def attempt() -> list[InstallStep]:
            steps = _release_steps(connection, Present.read(connection), [table_id])
            run_steps(connection, steps)
            return steps

        return attempt

    return [step for table_id in table_ids for step in patiently(connection, one(table_id))]


def drop_logs(connection: Connection, reasons: Mapping[int, str]) -> list[InstallStep]:
    """Remove the logs of these tables in one transaction, so that the registry always matches the logs."""

    def attempt() -> list[InstallStep]:
        present = Present.read(connection)
        places = _places(present)
        written = (i for i in places if any(local_name(f) in present.functions for f in names.functions(i)))
        refuse_written({i: places[i] for i in reasons}, written)
        steps = _log_drops(present, reasons)
        run_steps(connection, steps)
        return steps

    return patiently(connection, attempt)
