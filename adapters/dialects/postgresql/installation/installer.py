"""Installation and removal of capture at a PostgreSQL source, the release of single tables, and the steps of each.

Everything is one transaction. CREATE TRIGGER waits for open transactions that wrote to its table, so the first fill
sees their rows; later writers fire the trigger. The locks are requested all at once with a short timeout, and released
between two attempts, so that the application does not queue behind a long transaction.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import partial

from venus.adapters.dialects.contract import InstallStep, SourceInstaller
from venus.adapters.dialects.postgresql import lock_waits, registry
from venus.adapters.dialects.postgresql import sql as names
from venus.adapters.dialects.postgresql.connection import PostgresConnection
from venus.adapters.dialects.postgresql.dictionary import tables as dictionary
from venus.adapters.dialects.postgresql.dictionary.tables import PostgresTable
from venus.adapters.dialects.postgresql.dictionary.types import can_widen
from venus.adapters.dialects.postgresql.installation import triggers
from venus.adapters.dialects.postgresql.installation.check import check, describe_key_change, find_large_values
from venus.adapters.dialects.postgresql.installation.other_pipelines import OtherPipelines, read_own_tables
from venus.adapters.dialects.postgresql.installation.triggers import ALWAYS, PostgresTrigger, TriggerFunction
from venus.adapters.dialects.postgresql.sql import literal, statement
from venus.adapters.dialects.registry_rules import (
    BY_SCRIPT,
    RELEASED,
    RELEASING,
    TRIGGERS_GONE,
    is_being_released,
    qualified_names,
    refuse_if_written,
)
from venus.adapters.dialects.rows import find_large_rows
from venus.adapters.dialects.statements import plain_script, refuse_blocked
from venus.codec.schema import fingerprint
from venus.errors import LockConflict, LockTimeout
from venus.migrations import run as migrations
from venus.model import Finding, TableSchema

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

    def find_large_rows(self, include: Seq[str], exclude: Seq[str]) -> list[Finding]:
        with self._connection.snapshot():
            rows = dictionary.choose_tables(dictionary.read_all_tables(self._connection), include, exclude)
            tables = dictionary.read_tables(self._connection, rows)
            return list(find_large_rows(find_large_values(self._connection, tables)))

    def plan_install(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        refuse_blocked(self.check(include, exclude))
        with self._connection.snapshot():
            return own_steps(self._connection) + all_table_steps(self._connection, include, exclude)

    def install(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        """Install the missing objects, in one transaction."""
        refuse_blocked(self.check(include, exclude))

        def install_missing() -> list[InstallStep]:
            own = self._run_steps(own_steps(self._connection))
            return own + self._run_steps(all_table_steps(self._connection, include, exclude))

        return self._run_with_retries(install_missing)

    def plan_uninstall(self) -> list[InstallStep]:
        """Return every statement of the removal in order.

        Dropping a function also drops its triggers, so VENUS need not own the tables.
        """
        connection = self._connection
        with connection.snapshot():
            present = PostgresInstalledObjects.read(connection)
            places = _qualified_names(present)
            steps = _drop_function_steps(present, places) + _drop_log_steps(present, places)
            if "reject_write" in present.functions:
                sql = "DROP FUNCTION venus.reject_write() CASCADE"
                steps.append(InstallStep(table="", what="triggers that reject writes", sql=sql))
            steps += [
                InstallStep(table="", what=f"table venus.{name}", sql=f"DROP TABLE venus.{name}")
                for name in ("side", *SHARED)
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
            removed = _log_removal_steps(present, dict.fromkeys(table_ids, BY_SCRIPT))
            return _release_steps(self._connection, present, table_ids) + removed

    def release(self, table_ids: Seq[int]) -> list[InstallStep]:
        """Remove the triggers of these tables. Each table has its own transaction, so a busy table delays no other."""

        def remove_triggers(table_id: int) -> list[InstallStep]:
            present = PostgresInstalledObjects.read(self._connection)
            return self._run_steps(_release_steps(self._connection, present, [table_id]))

        return [step for table_id in table_ids for step in self._run_with_retries(partial(remove_triggers, table_id))]

    def drop_logs(self, reasons: Mapping[int, str]) -> list[InstallStep]:
        """Remove the logs of these tables in one transaction, so that the registry always matches the logs."""

        def remove_logs() -> list[InstallStep]:
            present = PostgresInstalledObjects.read(self._connection)
            places = _qualified_names(present)
            written = (i for i in places if any(strip_schema(f) in present.functions for f in names.function_names(i)))
            refuse_if_written({i: places[i] for i in reasons}, written)
            return self._run_steps(_log_removal_steps(present, reasons))

        return self._run_with_retries(remove_logs)

    def _run_steps(self, steps: list[InstallStep]) -> list[InstallStep]:
        for step in steps:
            if not step.exists:
                self._connection.run(step.sql)
        return steps

    def _run_with_retries(self, attempt: Callable[[], list[InstallStep]]) -> list[InstallStep]:
        """Run `attempt` in a transaction. If a lock is busy, release all locks and try again."""
        self._on_change()
        connection, options = self._connection, self._connection.options
        for left in range(options.install_attempts, 0, -1):
            try:
                with connection.transaction():
                    connection.run(f"SET LOCAL lock_timeout = {int(options.install_lock_timeout_s * 1000)}")
                    return attempt()
            except LockConflict as error:
                blockers = _describe_holders(connection)
                if left == 1:
                    raise LockTimeout(
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

    Functions in the same schema that VENUS did not create stay.
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
            table=own[log], what=f"log table {names.OWN_SCHEMA}.{log}", sql=f"DROP TABLE {names.OWN_SCHEMA}.{log}"
        )
        for log in sorted(own.keys() & present.logs.keys())
    ]


def _qualified_names(present: PostgresInstalledObjects) -> dict[int, str]:
    """Return the schema and name of each captured table, by table id."""
    return {table_id: f"{namespace}.{name}" for (namespace, name), table_id in present.table_ids.items()}


def _release_steps(
    connection: PostgresConnection, present: PostgresInstalledObjects, table_ids: Seq[int]
) -> list[InstallStep]:
    """Return the steps that remove the triggers, then those that update the registry.

    The triggers come first, because removing them waits for a cut that reads the table, and that cut may write the
    registry's row.
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


_HEARTBEAT = (names.OWN_SCHEMA, dictionary.HEARTBEAT.name)
#: The dialect's own tables that all logs share, with the block that creates each.
SHARED = {"dirty": "dirty_table", "captured_leaf": "leaves_table", "seen": "seen_table", "identity": "identity_table"}
#: Description of a log that an older version created only as wide as the key. It has missed no change.
WIDTH = "width of log table "
#: Description of a function to be replaced by a newer one. It has missed no change either.
RENEWED = "newer function "
_HARMLESS = (WIDTH, RENEWED)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresInstalledObjects:
    """The objects of VENUS that are installed in the database, and the registered tables."""

    triggers: dict[tuple[int, str], tuple[str, str]]
    functions: dict[str, str]
    #: Log tables by name, with their key columns as (type, collation).
    logs: dict[str, tuple[tuple[str, str], ...]]
    #: VENUS's other tables.
    other_tables: frozenset[str]
    other_pipelines: OtherPipelines
    schemas: dict[tuple[str, str], TableSchema]
    #: The tables that are released or being released, with their fingerprints.
    released: dict[tuple[str, str], tuple[TableSchema, str]]
    #: The captured partitions, by table.
    leaves: dict[int, frozenset[int]]

    @classmethod
    def read(cls, connection: PostgresConnection) -> PostgresInstalledObjects:
        """Read the installed objects from the dictionary, and the tables from the registry."""
        known = registry.read_registered_tables(connection) if registry.is_installed(connection) else []
        out = [(t, mark) for t, mark in known if is_being_released(t)]
        out += registry.read_registered_tables(connection, released=True) if known else []
        others = read_own_tables(connection)
        leaves = connection.rows(statement("triggers", "leaves")) if "captured_leaf" in others else []
        return cls(
            triggers={(r[0], r[1]): (r[2], r[3]) for r in connection.rows(statement("triggers", "present")) if r[2]},
            functions=dict(connection.rows(statement("triggers", "functions"))),
            logs={r[0]: tuple(zip(r[1], r[2], strict=True)) for r in connection.rows(statement("triggers", "logs"))},
            other_tables=frozenset(others),
            other_pipelines=OtherPipelines.read(connection, others),
            leaves={r[0]: frozenset(r[1]) for r in leaves},
            schemas={(t.schema.namespace, t.schema.name): t.schema for t, _ in known if not is_being_released(t)},
            released={(t.schema.namespace, t.schema.name): (t.schema, mark) for t, mark in out},
        )

    @property
    def table_ids(self) -> dict[tuple[str, str], int]:
        """The numbers of the registered tables."""
        out = {place: schema.table_id for place, (schema, _) in self.released.items()}
        return out | {place: schema.table_id for place, schema in self.schemas.items()}

    def find_missing(self, table: PostgresTable, table_id: int) -> list[str]:
        """Return the objects of a registered table that are missing or altered."""
        steps = table_steps(table, table_id, self)
        return [s.what for s in steps if not s.exists and not s.what.startswith(("state ", *_HARMLESS))]


def own_steps(connection: PostgresConnection) -> list[InstallStep]:
    """Return the steps that create VENUS's own tables."""
    with connection.sqlalchemy() as lent:
        statements = migrations.render_sql(lent, "source", schema=names.OWN_SCHEMA)
    what = "VENUS's own tables"
    return [InstallStep(table="", what=what, sql=sql, exists=not sql) for sql in statements or [""]]


def all_table_steps(connection: PostgresConnection, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
    """Return the steps that capture the chosen tables, and repair the capture of those captured already."""
    present = PostgresInstalledObjects.read(connection)
    rows = dictionary.read_all_tables(connection)
    chosen = dictionary.choose_tables(rows, include, exclude)
    # captured tables stay captured even if the patterns no longer choose them
    kept = [r for r in rows if (r[1], r[2]) in present.schemas and r not in chosen and (r[1], r[2]) != _HEARTBEAT]
    tables = dictionary.read_tables(connection, chosen + kept)
    heartbeat = dictionary.read_tables(connection, [r for r in rows if (r[1], r[2]) == _HEARTBEAT]) or [
        dictionary.HEARTBEAT
    ]
    next_id = max(present.table_ids.values(), default=0) + 1
    steps = [
        InstallStep(
            table="", what=f"table venus.{name}", sql=statement("triggers", block), exists=name in present.other_tables
        )
        for name, block in SHARED.items()
    ]
    for table in [*heartbeat, *sorted(tables, key=lambda t: (t.namespace, t.name))]:
        table_id = present.table_ids.get((table.namespace, table.name))
        if table_id is None:
            table_id, next_id = next_id, next_id + 1
        if table.key and not table.unsupported:
            steps += table_steps(table, table_id, present, log_bytes_max=connection.log_bytes_max)
    return steps


def table_steps(
    table: PostgresTable, table_id: int, present: PostgresInstalledObjects, *, log_bytes_max: int = 0
) -> list[InstallStep]:
    """Return the steps that capture one table. A repaired table ends as RESYNC; a released one is captured again."""
    where = f"{table.namespace}.{table.name}"
    place = (table.namespace, table.name)
    known = place in present.schemas
    if known:
        # refresh_schemas adds partitions that joined since, with their rows
        joined = present.leaves.get(table_id, frozenset())
        table = replace(table, leaves=tuple(leaf for leaf in table.leaves if leaf.oid in joined))
    steps = _log_steps(where, table, table_id, present)
    for function in triggers.build_functions(table, table_id, log_bytes_max):
        steps += _function_steps(where, function, present)
    for trigger in triggers.build_triggers(table, table_id):
        steps += _trigger_steps(where, trigger, present)
    mended = known and any(not s.exists and not s.what.startswith(_HARMLESS) for s in steps)
    numbered = place in present.table_ids
    steps.append(
        InstallStep(table=where, what="registration", sql=registry.register_sql(table, table_id), exists=numbered)
    )
    if not known:
        steps += _partition_steps(where, table, table_id)
    if place in present.released:
        return steps + _recapture_steps(where, table, *present.released[place])
    if known and describe_key_change(present.schemas[place], table):
        version = table.to_schema(table_id, present.schemas[place].version + 1)
        steps.append(InstallStep(table=where, what="registration", sql=registry.new_version_sql(version)))
        mended = True
    if mended:
        steps.append(InstallStep(table=where, what="state RESYNC", sql=_resync_sql(table_id)))
    return steps


def _recapture_steps(where: str, table: PostgresTable, was: TableSchema, mark: str) -> list[InstallStep]:
    """Return the steps that capture a released table again, in its present version and with all its rows."""
    steps = []
    if fingerprint(table.to_schema(was.table_id, was.version)) != mark:
        version = table.to_schema(was.table_id, was.version + 1)
        steps.append(InstallStep(table=where, what="registration", sql=registry.new_version_sql(version)))
    forgotten = statement("triggers", "seen_mended", number=f"{was.table_id:05}")
    sql = f"{registry.recapture_sql(table, was.table_id)}; {forgotten}"
    return [*steps, InstallStep(table=where, what="state ACTIVE, to be read again", sql=sql)]


def _partition_steps(where: str, table: PostgresTable, table_id: int) -> list[InstallStep]:
    return [
        InstallStep(
            table=where,
            what=f"partition {leaf.namespace}.{leaf.name}",
            sql=statement("triggers", "leaf_joined", table_id=str(table_id), leaf=str(leaf.oid)),
        )
        for leaf in table.leaves
    ]


def _log_steps(where: str, table: PostgresTable, table_id: int, present: PostgresInstalledObjects) -> list[InstallStep]:
    name = names.log_table_name(table_id)
    what = f"log table {name}"
    create = triggers.log_table_sql(table, table_id)
    existing = present.logs.get(strip_schema(name))
    required = tuple((k.log_type, k.collation) for k in table.key)
    if existing and existing != required and _can_widen(existing, required):
        return [
            InstallStep(table=where, what=what, sql=create, exists=True),
            *(
                InstallStep(table=where, what=f"{WIDTH}{name}", sql=triggers.widen_sql(name, k, wide))
                for k, (wide, _), (narrow, _) in zip(
                    names.log_key_columns(len(required)), required, existing, strict=True
                )
                if narrow != wide
            ),
        ]
    same = existing == required
    steps = [InstallStep(table=where, what=what, sql=create, exists=same)]
    if existing is not None and not same:
        steps.insert(0, InstallStep(table=where, what=what, sql=f"DROP TABLE {name}"))
    return steps


def _can_widen(existing: Seq[tuple[str, str]], required: Seq[tuple[str, str]]) -> bool:
    if len(existing) != len(required):
        return False
    pairs = zip(existing, required, strict=True)
    return all(c == collation and can_widen(t, to) for (t, c), (to, collation) in pairs)


def widening_steps(table: PostgresTable, table_id: int, present: PostgresInstalledObjects) -> list[InstallStep]:
    """Return the steps that a log needs to accept every value of its key's present types."""
    return [s for s in _log_steps("", table, table_id, present) if s.what.startswith(WIDTH)]


def strip_schema(name: str) -> str:
    """Return a name in VENUS's schema without the schema."""
    return name.removeprefix(f"{names.OWN_SCHEMA}.")


def _function_steps(where: str, function: TriggerFunction, present: PostgresInstalledObjects) -> list[InstallStep]:
    body = present.functions.get(strip_schema(function.name), "")
    what = RENEWED if function.is_equivalent_to(body, present.other_pipelines.groups) else "function "
    step = InstallStep(table=where, what=f"{what}{function.name}", sql=function.sql, exists=body == function.body)
    if strip_schema(function.name) in present.functions:
        return [step]
    return [step, InstallStep(table=where, what=f"function {function.name}", sql=triggers.revoke_sql(function.name))]


def _trigger_steps(where: str, trigger: PostgresTrigger, present: PostgresInstalledObjects) -> list[InstallStep]:
    definition, enabled = present.triggers.get((trigger.table_oid, trigger.name), ("", ""))
    states = present.other_pipelines.trigger_states
    same, state = trigger.is_same_as(definition) and enabled in states, states[0]
    sql = trigger.sql.replace("CREATE TRIGGER", "CREATE OR REPLACE TRIGGER", 1) if definition else trigger.sql
    steps = [InstallStep(table=where, what=f"trigger {trigger.name}", sql=sql, exists=same)]
    if not same and (state == ALWAYS or (definition and enabled != state)):
        steps.append(InstallStep(table=where, what=f"trigger {trigger.name}", sql=trigger.enable_sql(state)))
    return steps


def _resync_sql(table_id: int) -> str:
    reason = literal("a trigger was missing or altered and was created again: changes were missed")
    mended = statement("triggers", "seen_mended", number=f"{table_id:05}")
    return f"UPDATE venus.captured_table SET state = 'RESYNC', reason = {reason} WHERE table_id = {table_id}; {mended}"
