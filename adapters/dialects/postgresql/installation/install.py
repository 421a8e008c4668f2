"""The steps that install capture at a PostgreSQL source: own tables, log tables, functions, triggers, registration."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from venus.adapters.dialects.contract import InstallStep
from venus.adapters.dialects.postgresql import names, registry
from venus.adapters.dialects.postgresql.connection import PostgresConnection
from venus.adapters.dialects.postgresql.dictionary import tables as dictionary
from venus.adapters.dialects.postgresql.dictionary.tables import PostgresKeyColumn, PostgresTable
from venus.adapters.dialects.postgresql.dictionary.types import can_widen
from venus.adapters.dialects.postgresql.installation import triggers
from venus.adapters.dialects.postgresql.installation.findings import describe_key_change
from venus.adapters.dialects.postgresql.installation.triggers import PostgresTrigger, TriggerFunction
from venus.adapters.dialects.postgresql.names import literal
from venus.adapters.dialects.postgresql.sql import statement
from venus.adapters.dialects.released_tables import is_being_released
from venus.codec.schema import fingerprint
from venus.migrations import run as migrations
from venus.model import Column, Kind, LogicalType, TableSchema

logger = logging.getLogger(__name__)

#: The heartbeat table, which is captured like any other. A plan needs it before the table exists.
HEARTBEAT = PostgresTable(
    oid=0,
    namespace=names.OWN_SCHEMA,
    name="heartbeat",
    kind="r",
    unlogged=False,
    per_row=False,
    from_only=False,
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
        PostgresKeyColumn(
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
class PostgresInstalledObjects:
    """The installed objects and the registered tables."""

    triggers: dict[tuple[int, str], tuple[str, str]]
    functions: dict[str, str]
    #: Log tables by name, with their key columns as (type, collation).
    logs: dict[str, tuple[tuple[str, str], ...]]
    #: VENUS's other tables.
    other_tables: frozenset[str]
    schemas: dict[tuple[str, str], TableSchema]
    #: The tables that are released or being released, with their fingerprints.
    released: dict[tuple[str, str], tuple[TableSchema, str]]
    #: The captured partitions, by table.
    leaves: dict[int, frozenset[int]]

    @classmethod
    def read(cls, connection: PostgresConnection) -> PostgresInstalledObjects:
        """Read the dictionary and the registry."""
        known = registry.read_registered_tables(connection) if registry.is_installed(connection) else []
        out = [(t, mark) for t, mark in known if is_being_released(t)]
        out += registry.read_registered_tables(connection, released=True) if known else []
        others = frozenset(r[0] for r in connection.rows(statement("triggers", "others")))
        leaves = connection.rows(statement("triggers", "leaves")) if "captured_leaf" in others else []
        return cls(
            triggers={(r[0], r[1]): (r[2], r[3]) for r in connection.rows(statement("triggers", "present"))},
            functions=dict(connection.rows(statement("triggers", "functions"))),
            logs={r[0]: tuple(zip(r[1], r[2], strict=True)) for r in connection.rows(statement("triggers", "logs"))},
            other_tables=others,
            leaves={r[0]: frozenset(r[1]) for r in leaves},
            schemas={(t.schema.namespace, t.schema.name): t.schema for t, _ in known if not is_being_released(t)},
            released={(t.schema.namespace, t.schema.name): (t.schema, mark) for t, mark in out},
        )

    @property
    def table_ids(self) -> dict[tuple[str, str], int]:
        """The numbers of the registered tables."""
        out = {place: schema.table_id for place, (schema, _) in self.released.items()}
        return out | {place: schema.table_id for place, schema in self.schemas.items()}

    def find_missing(self, table: PostgresTable, table_id: int, *, always: bool) -> list[str]:
        """Return the objects of a registered table that are missing or altered."""
        steps = table_steps(table, table_id, self, always=always)
        return [s.what for s in steps if not s.exists and not s.what.startswith(("state ", *_HARMLESS))]


def own_steps(connection: PostgresConnection) -> list[InstallStep]:
    """Return the steps that create VENUS's own tables."""
    with connection.sqlalchemy() as lent:
        statements = migrations.render_sql(lent, "source", schema=names.OWN_SCHEMA)
    if not statements:
        return [InstallStep(table="", what="VENUS's own tables", sql="", exists=True)]
    return [InstallStep(table="", what="VENUS's own tables", sql=sql) for sql in statements]


def all_table_steps(connection: PostgresConnection, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
    """Return the steps of the chosen and of the captured tables."""
    present = PostgresInstalledObjects.read(connection)
    rows = dictionary.read_all_tables(connection)
    chosen = dictionary.choose_tables(rows, include, exclude)
    # captured tables stay captured even if the patterns no longer choose them
    kept = [r for r in rows if (r[1], r[2]) in present.schemas and r not in chosen and (r[1], r[2]) != _HEARTBEAT]
    tables = dictionary.read_tables(connection, chosen + kept)
    heartbeat = dictionary.read_tables(connection, [r for r in rows if (r[1], r[2]) == _HEARTBEAT]) or [HEARTBEAT]
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
            steps += table_steps(table, table_id, present, always=connection.options.always)
    return steps


def table_steps(
    table: PostgresTable, table_id: int, present: PostgresInstalledObjects, *, always: bool
) -> list[InstallStep]:
    """Return the steps of one table. A repaired table ends as RESYNC, and a released one is captured again."""
    where = f"{table.namespace}.{table.name}"
    place = (table.namespace, table.name)
    known = place in present.schemas
    if known:
        # refresh_schemas takes in partitions that joined since, with their rows
        joined = present.leaves.get(table_id, frozenset())
        table = replace(table, leaves=tuple(leaf for leaf in table.leaves if leaf.oid in joined))
    steps = _log_steps(where, table, table_id, present)
    for function in triggers.build_functions(table, table_id):
        steps += _function_steps(where, function, present)
    for trigger in triggers.build_triggers(table, table_id):
        steps += _trigger_steps(where, trigger, present, always=always)
    mended = known and any(not s.exists and not s.what.startswith(_HARMLESS) for s in steps)
    numbered = place in present.table_ids
    steps.append(
        InstallStep(table=where, what="registration", sql=registry.register_sql(table, table_id), exists=numbered)
    )
    if not known:
        steps += _leaf_steps(where, table, table_id)
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


def _leaf_steps(where: str, table: PostgresTable, table_id: int) -> list[InstallStep]:
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
    what = RENEWED if function.is_equivalent_to(body) else "function "
    step = InstallStep(table=where, what=f"{what}{function.name}", sql=function.sql, exists=body == function.body)
    if strip_schema(function.name) in present.functions:
        return [step]
    return [step, InstallStep(table=where, what=f"function {function.name}", sql=triggers.revoke_sql(function.name))]


def _trigger_steps(
    where: str, trigger: PostgresTrigger, present: PostgresInstalledObjects, *, always: bool
) -> list[InstallStep]:
    definition, enabled = present.triggers.get((trigger.table_oid, trigger.name), ("", ""))
    same = trigger.is_same_as(definition) and enabled == _ENABLED[always]
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
