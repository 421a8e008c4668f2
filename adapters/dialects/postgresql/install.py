"""Installation of capture at a PostgreSQL source: own tables, log tables, functions, triggers, registration.

Everything is one transaction. CREATE TRIGGER waits for open transactions that wrote to its table, so the first fill
sees their rows; later writers fire the trigger. The locks are requested all at once with a short timeout, and released
between two attempts, so that the application does not queue behind a long transaction.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from venus.adapters.dialects.contract import InstallStep
from venus.adapters.dialects.postgresql import dictionary, names, registry, triggers, waits
from venus.adapters.dialects.postgresql.check import check
from venus.adapters.dialects.postgresql.connection import Connection, LockTimeout
from venus.adapters.dialects.postgresql.dictionary import KeyColumn, Table
from venus.adapters.dialects.postgresql.findings import key_change
from venus.adapters.dialects.postgresql.names import literal
from venus.adapters.dialects.postgresql.statements import statement
from venus.adapters.dialects.postgresql.triggers import Function, Trigger
from venus.adapters.dialects.postgresql.types import can_widen
from venus.adapters.dialects.releasing import is_leaving
from venus.codec.schema import fingerprint
from venus.errors import DatabaseUnavailable, Refused
from venus.migrations import run as migrations
from venus.model import Column, Kind, LogicalType, TableSchema

logger = logging.getLogger(__name__)

#: The heartbeat table, which is captured like any other. A plan needs it before the table exists.
HEARTBEAT = Table(
    oid=0,
    namespace=names.OWN_SCHEMA,
    name="heartbeat",
    kind="r",
    unlogged=False,
    per_row=False,
    only=False,
    row_security=False,
    rows_estimate=0,
    comment="",
    columns=(
        Column(name="id", number=1, type=LogicalType(kind=Kind.INT, length=4), nullable=False, source_type="integer"),
        Column(
            name="beat_at", number=2, type=LogicalType(kind=Kind.INT, length=8), nullable=False, source_type="bigint"
        ),
    ),
    key=(
        KeyColumn(
            name="id",
            number=1,
            spelled="integer",
            log_type="bigint",
            collation="",
            equals="pg_catalog.=",
            identity=True,
            index_name_sql="",
            index_name="",
        ),
    ),
    key_choices=(),
    indexes=(),
    foreign_keys=(),
    leaves=(),
    unsupported=(),
    signature="",
)
_HEARTBEAT = (HEARTBEAT.namespace, HEARTBEAT.name)
#: The dialect's own tables that all logs share, with the block that creates each.
SHARED = {"dirty": "dirty_table", "captured_leaf": "leaves_table", "seen": "seen_table"}
#: A log that an older version made only as wide as the key. It missed no change.
WIDTH = "width of log table "
#: A function to be replaced by a newer one. It missed no change either.
RENEWED = "newer function "
_HARMLESS = (WIDTH, RENEWED)
_RETRY_AFTER_S = 1.0
#: pg_trigger.tgenabled: O fires for ordinary sessions, A for replicas too.
_ENABLED = {False: "O", True: "A"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """The installed objects and the registered tables."""

    triggers: dict[tuple[int, str], tuple[str, str]]
    functions: dict[str, str]
    #: Log tables by name, with their key columns as (type, collation).
    logs: dict[str, tuple[tuple[str, str], ...]]
    #: VENUS's other tables.
    others: frozenset[str]
    schemas: dict[tuple[str, str], TableSchema]
    #: The tables that are released or being released, with their fingerprints.
    out: dict[tuple[str, str], tuple[TableSchema, str]]
    #: The captured partitions, by table.
    leaves: dict[int, frozenset[int]]

    @classmethod
    def read(cls, connection: Connection) -> Present:
        """Read the dictionary and the registry."""
        known = registry.registered(connection) if registry.is_installed(connection) else []
        out = [(t, mark) for t, mark in known if is_leaving(t)]
        out += registry.registered(connection, released=True) if known else []
        others = frozenset(r[0] for r in connection.rows(statement("triggers", "others")))
        leaves = connection.rows(statement("triggers", "leaves")) if "captured_leaf" in others else []
        return cls(
            triggers={(r[0], r[1]): (r[2], r[3]) for r in connection.rows(statement("triggers", "present"))},
            functions=dict(connection.rows(statement("triggers", "functions"))),
            logs={r[0]: tuple(zip(r[1], r[2], strict=True)) for r in connection.rows(statement("triggers", "logs"))},
            others=others,
            leaves={r[0]: frozenset(r[1]) for r in leaves},
            schemas={(t.schema.namespace, t.schema.name): t.schema for t, _ in known if not is_leaving(t)},
            out={(t.schema.namespace, t.schema.name): (t.schema, mark) for t, mark in out},
        )

    @property
    def table_ids(self) -> dict[tuple[str, str], int]:
        """The numbers of the registered tables."""
        out = {place: schema.table_id for place, (schema, _) in self.out.items()}
        return out | {place: schema.table_id for place, schema in self.schemas.items()}

    def lacks(self, table: Table, table_id: int, *, always: bool) -> list[str]:
        """Return the objects of a registered table that are missing or altered."""
        steps = table_steps(table, table_id, self, always=always)
        return [s.what for s in steps if not s.exists and not s.what.startswith(("state ", *_HARMLESS))]


# -- plans -------------------------------------------------------------------------------------------------------


def install_plan(connection: Connection, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
    """Return every statement of the installation in order. Raises Refused if a finding blocks."""
    _refuse_blocked(connection, include, exclude)
    with connection.reading():
        return _own_steps(connection) + _table_steps(connection, include, exclude)


def _refuse_blocked(connection: Connection, include: Seq[str], exclude: Seq[str]) -> None:
    blocking = [f for f in check(connection, include, exclude) if f.blocks]
    if blocking:
        lines = "; ".join(f"{f.where} {f.message}" for f in blocking)
        raise Refused(f"cannot install: {lines}", hint="; ".join(dict.fromkeys(f.remedy for f in blocking if f.remedy)))


def _own_steps(connection: Connection) -> list[InstallStep]:
    with connection.sqlalchemy() as lent:
        statements = migrations.sql(lent, "source", schema=names.OWN_SCHEMA)
    if not statements:
        return [InstallStep(table="", what="VENUS's own tables", sql="", exists=True)]
    return [InstallStep(table="", what="VENUS's own tables", sql=sql) for sql in statements]


def _table_steps(connection: Connection, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
    present = Present.read(connection)
    rows = dictionary.all_tables(connection)
    chosen = dictionary.listed(rows, include, exclude)
    # captured tables stay captured even if the patterns no longer choose them
    kept = [r for r in rows if (r[1], r[2]) in present.schemas and r not in chosen and (r[1], r[2]) != _HEARTBEAT]
    tables = dictionary.read(connection, chosen + kept)
    heartbeat = dictionary.read(connection, [r for r in rows if (r[1], r[2]) == _HEARTBEAT]) or [HEARTBEAT]
    next_id = max(present.table_ids.values(), default=0) + 1
    steps = [
        InstallStep(
            table="", what=f"table venus.{name}", sql=statement("triggers", block), exists=name in present.others
        )
        for name, block in SHARED.items()
    ]
    for table in [*heartbeat, *sorted(tables, key=lambda t: (t.namespace, t.name))]:
        table_id = present.table_ids.get((table.namespace, table.name))
        if table_id is None:
            table_id, next_id = next_id, next_id + 1
        if table.key and not table.unsupported:
            steps += table_steps(table, table_id, present, always=connection.options.always)
    return steps


def table_steps(table: Table, table_id: int, present: Present, *, always: bool) -> list[InstallStep]:
    """Return the steps of one table. A repaired table ends as RESYNC, and a released one is captured again."""
    where = f"{table.namespace}.{table.name}"
    place = (table.namespace, table.name)
    known = place in present.schemas
    if known:
        # refresh_schemas takes in partitions that joined since, with their rows
        joined = present.leaves.get(table_id, frozenset())
        table = replace(table, leaves=tuple(leaf for leaf in table.leaves if leaf.oid in joined))
    steps = _log_steps(where, table, table_id, present)
    for function in triggers.functions(table, table_id):
        steps += _function_steps(where, function, present)
    for trigger in triggers.triggers(table, table_id):
        steps += _trigger_steps(where, trigger, present, always=always)
    mended = known and any(not s.exists and not s.what.startswith(_HARMLESS) for s in steps)
    numbered = place in present.table_ids
    steps.append(
        InstallStep(table=where, what="registration", sql=registry.register_sql(table, table_id), exists=numbered)
    )
    if not known:
        steps += _leaf_steps(where, table, table_id)
    if place in present.out:
        return steps + _take_up_steps(where, table, *present.out[place])
    if known and key_change(present.schemas[place], table):
        version = table.schema(table_id, present.schemas[place].version + 1)
        steps.append(InstallStep(table=where, what="registration", sql=registry.new_version_sql(version)))
        mended = True
    if mended:
        steps.append(InstallStep(table=where, what="state RESYNC", sql=_resync_sql(table_id)))
    return steps


def _take_up_steps(where: str, table: Table, was: TableSchema, mark: str) -> list[InstallStep]:
    """Return the steps that capture a released table again, in its present version and with all its rows."""
    steps = []
    if fingerprint(table.schema(was.table_id, was.version)) != mark:
        version = table.schema(was.table_id, was.version + 1)
        steps.append(InstallStep(table=where, what="registration", sql=registry.new_version_sql(version)))
    forgotten = statement("triggers", "seen_mended", number=f"{was.table_id:05}")
    sql = f"{registry.take_up_sql(table, was.table_id)}; {forgotten}"
    return [*steps, InstallStep(table=where, what="state ACTIVE, to be read again", sql=sql)]


def _leaf_steps(where: str, table: Table, table_id: int) -> list[InstallStep]:
    return [
        InstallStep(
            table=where,
            what=f"partition {leaf.namespace}.{leaf.name}",
            sql=statement("triggers", "leaf_joined", table_id=str(table_id), leaf=str(leaf.oid)),
        )
        for leaf in table.leaves
    ]


def _log_steps(where: str, table: Table, table_id: int, present: Present) -> list[InstallStep]:
    name = names.log_table(table_id)
    what = f"log table {name}"
    create = triggers.log_table(table, table_id)
    existing = present.logs.get(local_name(name))
    required = tuple((k.log_type, k.collation) for k in table.key)
    if existing and existing != required and _can_widen(existing, required):
        return [
            InstallStep(table=where, what=what, sql=create, exists=True),
            *(
                InstallStep(table=where, what=f"{WIDTH}{name}", sql=triggers.widen(name, k, wide))
                for k, (wide, _), (narrow, _) in zip(names.log_keys(len(required)), required, existing, strict=True)
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


def log_widths(table: Table, table_id: int, present: Present) -> list[InstallStep]:
    """Return the steps that a log needs to accept every value of its key's present types."""
    return [s for s in _log_steps("", table, table_id, present) if s.what.startswith(WIDTH)]


def local_name(name: str) -> str:
    """Return a name in VENUS's schema without the schema."""
    return name.removeprefix(f"{names.OWN_SCHEMA}.")


def _function_steps(where: str, function: Function, present: Present) -> list[InstallStep]:
    body = present.functions.get(local_name(function.name), "")
    what = RENEWED if function.captures_like(body) else "function "
    step = InstallStep(table=where, what=f"{what}{function.name}", sql=function.sql, exists=body == function.body)
    if local_name(function.name) in present.functions:
        return [step]
    return [step, InstallStep(table=where, what=f"function {function.name}", sql=triggers.revoke(function.name))]


def _trigger_steps(where: str, trigger: Trigger, present: Present, *, always: bool) -> list[InstallStep]:
    definition, enabled = present.triggers.get((trigger.table_oid, trigger.name), ("", ""))
    same = trigger.same_as(definition) and enabled == _ENABLED[always]
    sql = trigger.sql.replace("CREATE TRIGGER", "CREATE OR REPLACE TRIGGER", 1) if definition else trigger.sql
    steps = [InstallStep(table=where, what=f"trigger {trigger.name}", sql=sql, exists=same)]
    if not same and (always or (definition and enabled != _ENABLED[always])):
        word = "ENABLE ALWAYS" if always else "ENABLE"
        sql = f"ALTER TABLE {trigger.table_sql} {word} TRIGGER {trigger.name}"
        steps.append(InstallStep(table=where, what=f"trigger {trigger.name}", sql=sql))
    return steps


def _resync_sql(table_id: int) -> str:
    reason = literal("a trigger was missing or altered and was created again: changes were missed")
    mended = statement("triggers", "seen_mended", number=f"{table_id:05}")
    return f"UPDATE venus.captured_table SET state = 'RESYNC', reason = {reason} WHERE table_id = {table_id}; {mended}"


# -- execution ---------------------------------------------------------------------------------------------------


def install(connection: Connection, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
    """Install what is missing, in one transaction."""
    _refuse_blocked(connection, include, exclude)

    def attempt() -> list[InstallStep]:
        own = _own_steps(connection)
        run_steps(connection, own)
        steps = _table_steps(connection, include, exclude)
        run_steps(connection, steps)
        return own + steps

    return patiently(connection, attempt)


def run_steps(connection: Connection, steps: Seq[InstallStep]) -> None:
    """Run the steps whose objects are missing."""
    for step in steps:
        if not step.exists:
            connection.run(step.sql)


def patiently(connection: Connection, attempt: Callable[[], list[InstallStep]]) -> list[InstallStep]:
    """Run `attempt` in a transaction. If it gets no lock, let the application proceed and try again."""
    options = connection.options
    for left in range(options.install_attempts, 0, -1):
        try:
            with connection.transaction():
                connection.run(f"SET LOCAL lock_timeout = {int(options.install_lock_timeout_s * 1000)}")
                return attempt()
        except LockTimeout as error:
            blockers = _blockers(connection)
            if left == 1:
                raise DatabaseUnavailable(
                    f"source {connection.place}: a table was in use for too long: {blockers}",
                    hint="end that session, or run this command again later; nothing was changed",
                ) from error
            logger.warning("waiting for a lock: %s", blockers)
            time.sleep(_RETRY_AFTER_S)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _blockers(connection: Connection) -> str:
    found = waits.holders(connection, (r[0] for r in dictionary.all_tables(connection)), waits.FROM_TRIGGERS)
    return ", ".join(f"{w.holder} on {w.table}" for w in found) or "a session that ended meanwhile"
