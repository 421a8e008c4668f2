"""The registry of captured tables and the checkpoint row at a PostgreSQL source (VENUS 3.1, 3.3).

`PostgresCapturedTable` is a registered table combined with its entry in the dictionary; capture works on these
objects.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from venus.adapters.dialects.contract import MissingGrant, RegisteredTable, SourceRegistry, SourceState
from venus.adapters.dialects.postgresql.connection import PostgresConnection, PostgresNotPermitted
from venus.adapters.dialects.postgresql.dictionary import tables as dictionary
from venus.adapters.dialects.postgresql.dictionary.tables import PostgresTable
from venus.adapters.dialects.postgresql.sql import literal, log_table_name, quote, statement
from venus.adapters.dialects.registry_rules import (
    FAILING,
    batch_records,
    batch_values,
    comparison_values,
    halt_reason,
    parse_schema,
    registered_table,
    source_state,
    version_values,
)
from venus.codec.schema import fingerprint
from venus.errors import Fenced, NotInstalled, Refused
from venus.model import LOG_ROWS_COUNTED_MAX, BatchNo, BatchRecord, Epoch, SourceIdentity, TableSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresCapturedTable:
    """A captured table. `table` is None if it was dropped. `usable`: the table still has the registered version."""

    registered: RegisteredTable
    table: PostgresTable | None
    usable: bool

    @property
    def schema(self) -> TableSchema:
        """The registered version."""
        return self.registered.schema

    @classmethod
    def combine(cls, known: RegisteredTable, table: PostgresTable | None) -> PostgresCapturedTable:
        """Combine a registered table with the dictionary. Ignores the stored fingerprint, which may be outdated."""
        usable = (
            table is not None
            and bool(table.key)
            and not table.unsupported
            and fingerprint(table.to_schema(known.schema.table_id, known.schema.version)) == fingerprint(known.schema)
        )
        return cls(registered=known, table=table, usable=usable)


#: Cache of the registry's schemas by table: the version of the row, and the schema.
SchemaCache = dict[int, tuple[str, TableSchema]]


def is_installed(connection: PostgresConnection) -> bool:
    """Return whether the registry exists."""
    return bool(connection.row("SELECT to_regclass('venus.captured_table') IS NOT NULL")[0])


def read_registered_tables(
    connection: PostgresConnection, known: SchemaCache | None = None, *, released: bool = False
) -> list[tuple[RegisteredTable, str]]:
    """Return the captured tables, or the released ones, with their fingerprints. Updates the cache `known`."""
    known = {} if known is None else known
    with connection.snapshot():
        tables = connection.rows(statement("registry", "tables", released=str(released).lower()))
        missing = [r[1] for r in tables if known.get(r[1], ("",))[0] != r[0]]
        wires: dict[int, bytes] = (
            dict(connection.rows(statement("registry", "schemas"), {"tables": missing})) if missing else {}
        )
    found = []
    for row, table_id, mark, state, reason, *fill in tables:
        if table_id in wires:
            known[table_id] = (row, parse_schema(bytes(wires[table_id])))
        found.append((registered_table(known[table_id][1], state, reason, fill), mark))
    return found


def load_captured_tables(
    connection: PostgresConnection, schemas: SchemaCache | None = None
) -> tuple[list[PostgresCapturedTable], str]:
    """Read the captured tables from registry and dictionary in one snapshot, and the mark of the registry's state."""
    with connection.snapshot():
        known = read_registered_tables(connection, schemas)
        rows = {(r[1], r[2]): r for r in dictionary.read_all_tables(connection)}
        wanted = [rows[k] for t, _ in known if (k := (t.schema.namespace, t.schema.name)) in rows]
        tables = {(t.namespace, t.name): t for t in dictionary.read_tables(connection, wanted)}
        mark = connection.row(statement("registry", "mark"))[0]
    return [PostgresCapturedTable.combine(t, tables.get((t.schema.namespace, t.schema.name))) for t, _ in known], mark


def read_fingerprint(connection: PostgresConnection, captured: Iterable[PostgresCapturedTable]) -> str:
    """Return a text that changes with the registry, or with the dictionary's entries of tables and partitions.

    The statement is prepared (capture/cut_statements.py).
    """
    tables = [c.table for c in captured if c.table]
    oids = [t.oid for t in tables] + [leaf.oid for t in tables for leaf in t.leaves]
    return str(connection.row(f"EXECUTE venus_fingerprint ('{{{','.join(map(str, oids))}}}')")[0])


def require_installation(connection: PostgresConnection) -> None:
    """Raise NotInstalled if there is no registry, Refused if it has no dirty marks."""
    if not is_installed(connection):
        raise NotInstalled(
            f"source {connection.place}: nothing is installed", hint="run `venus install-triggers` first"
        )
    if not connection.row("SELECT to_regclass('venus.dirty') IS NOT NULL")[0]:
        raise Refused(
            f"source {connection.place}: the triggers are from an older version of VENUS",
            hint="run `venus install-triggers` again, then `venus resync --all`",
        )


def register_sql(table: PostgresTable, table_id: int) -> str:
    """Return the statement that registers a table."""
    schema = table.to_schema(table_id, 1)
    return statement(
        "registry",
        "register",
        namespace=literal(table.namespace),
        name=literal(table.name),
        table=literal(table.name_sql),
        **_version_parts(schema),
    )


def new_version_sql(schema: TableSchema) -> str:
    """Return the statement that makes `schema` the registered version of its table."""
    return statement("registry", "new_version", **_version_parts(schema))


def _version_parts(schema: TableSchema) -> dict[str, str]:
    """Return the columns of the registry's row for a version, with their values as SQL."""
    return {name: literal(value) for name, value in version_values(schema).items()}


def recapture_sql(table: PostgresTable, table_id: int) -> str:
    """Return the statement that captures a released table again and restarts its fill."""
    return statement("registry", "take_up", table=literal(table.name_sql), table_id=str(table_id))


def release_sql(table_id: int, state: str, reason: str) -> str:
    """Return the statement that stores RELEASING or RELEASED for a table."""
    return statement("registry", "release", state=literal(state), reason=literal(reason), table_id=str(table_id))


def set_state(connection: PostgresConnection, table_id: int, state: str, reason: str) -> None:
    """Store a table's state."""
    values = {"table_id": table_id, "state": state, "reason": reason}
    if connection.run(statement("registry", "set_state"), values) != 1:
        raise Refused(f"table {table_id} is not registered")


def mark_missed_changes(connection: PostgresConnection, table_id: int, reason: str) -> None:
    """Mark a table RESYNC, unless it has just been released: then its triggers are missing on purpose."""
    connection.run(statement("registry", "missed"), {"table_id": table_id, "reason": reason})


def count_waiting(connection: PostgresConnection, table_ids: Iterable[int], most: int = 0) -> dict[int, int]:
    """Return how many log rows of these tables wait, counting to `most` (0 = to the end)."""
    bound = f" LIMIT {most}" if most else ""
    counts = [f"SELECT {t}, count(*) FROM (SELECT FROM {log_table_name(t)}{bound}) l" for t in table_ids]
    return dict(connection.rows(" UNION ALL ".join(counts))) if counts else {}


def table_oids(captured: Iterable[PostgresCapturedTable]) -> dict[int, int]:
    """Return the oids of captured tables by table_id; 0 for a dropped table."""
    return {c.schema.table_id: c.table.oid if c.table is not None else 0 for c in captured}


def read_table_oids(connection: PostgresConnection) -> dict[int, int]:
    """Read the oids of captured tables by table_id from the catalog: unlike the dictionary, it waits for no lock."""
    require_installation(connection)
    return dict(connection.rows(statement("registry", "oids")))


def find_unreadable_tables(connection: PostgresConnection, oids: Mapping[int, int]) -> dict[int, str]:
    """Return the tables that may not be read, or whose logs may not be read, with the remedy for messages.

    The result includes tables whose triggers may not write to the log, so that the application's statements fail.
    """
    known = {table_id: oid for table_id, oid in oids.items() if oid}
    values = {"tables": list(known), "oids": list(known.values())}
    rows = connection.rows(statement("registry", "unreadable"), values) if known else []
    return {table_id: f"`{grant}`{FAILING if fails else ''}" for table_id, grant, fails in rows if grant}


def find_missing_grants(connection: PostgresConnection) -> list[MissingGrant]:
    """Return the missing privileges on VENUS's own tables."""
    return [
        MissingGrant(table=table, grant=grant) for table, grant in connection.rows(statement("registry", "own_lacking"))
    ]


def restart_fill(connection: PostgresConnection, table_id: int) -> None:
    """Restart the fill of a table."""
    connection.run(statement("registry", "restart_fill"), {"table_id": table_id})


def begin_comparison(connection: PostgresConnection, table_id: int, reason: str) -> bool:
    """Turn the fill of a table into a comparison; return False if the fill has read rows already."""
    values = {"table_id": table_id, "reason": reason}
    return connection.run(statement("registry", "begin_comparison"), values) == 1


def restart_with_sweep(connection: PostgresConnection, table_id: int, version: int) -> None:
    """Make the fill end in a sweep, and raise the version of the table to this one unless it is higher already."""
    connection.run(statement("registry", "sweep"), {"table_id": table_id})
    for known, _ in read_registered_tables(connection):
        if known.schema.table_id == table_id and known.schema.version < version:
            connection.run(new_version_sql(replace(known.schema, version=version)))


def read_state(connection: PostgresConnection) -> SourceState:
    """Read the checkpoint row."""
    return source_state(connection.row(statement("registry", "state")))


def add_batches_sql(batches: Seq[BatchRecord]) -> list[str]:
    """Return the statements that insert batch rows. The values contain only numbers and hexadecimal digits."""
    rows = [str(row) for row in batch_values(batches)]
    if len(rows) == 1:
        return [statement("registry", "add_one_batch", row=rows[0])]
    return [statement("registry", "add_batch", rows=", ".join(rows))]


def read_backlog(connection: PostgresConnection, oids: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """Return by table how many log rows wait, and the age of the oldest transaction that still writes to it."""
    try:
        return _read_backlog(connection, oids)
    except PostgresNotPermitted:
        hidden = find_unreadable_tables(connection, oids)
        if not hidden:
            raise
        return _read_backlog(connection, {t: oid for t, oid in oids.items() if t not in hidden})


def _read_backlog(connection: PostgresConnection, oids: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    if not oids:
        return {}
    counts = dict.fromkeys(oids, 0)
    with connection.snapshot():
        dirty = [r[0] for r in connection.rows(statement("registry", "dirty")) if r[0] in oids]
        counts |= count_waiting(connection, dirty, LOG_ROWS_COUNTED_MAX)
        present = {"tables": list(filter(None, oids.values()))}
        ages: dict[int, float] = dict(connection.rows(statement("registry", "blockers"), present))
    return {table_id: (int(counts[table_id]), int(ages.get(oid, 0))) for table_id, oid in oids.items()}


#: Facts that distinguish a database from one loaded from its dump. A copy of the server's files has the same facts.
DECISIVE_FACTS = (("system", "database"), ("database",))


class PostgresRegistry(SourceRegistry):
    """The registry of one source, and the state that capture has loaded from it."""

    def __init__(self, connection: PostgresConnection) -> None:
        self._connection = connection
        self._schemas: SchemaCache = {}
        self.captured: list[PostgresCapturedTable] = []
        self.mark = ""
        self.is_loaded = False

    def load(self, *, again: bool = False) -> bool:
        """Read the registry and the dictionary; return False if they were loaded already."""
        if self.is_loaded and not again:
            return False
        require_installation(self._connection)
        self.captured, self.mark = self.read_captured_tables()
        self.is_loaded = True
        return True

    def read_captured_tables(self) -> tuple[list[PostgresCapturedTable], str]:
        """Read the captured tables and the registry's mark, without caching them."""
        return load_captured_tables(self._connection, self._schemas)

    def invalidate(self) -> None:
        """Load the registry again before the next use."""
        self.is_loaded = False

    def read_registered_tables(self) -> list[RegisteredTable]:
        require_installation(self._connection)
        return [t for t, _ in read_registered_tables(self._connection, self._schemas)]

    def read_released_tables(self) -> list[RegisteredTable]:
        require_installation(self._connection)
        return [t for t, _ in read_registered_tables(self._connection, self._schemas, released=True)]

    def read_row_counts(self) -> dict[int, int]:
        schemas = [t.schema for t in self.read_registered_tables()]
        named = {s.table_id: f"{quote(s.namespace)}.{quote(s.name)}" for s in schemas}
        asked = {"ids": list(named), "names": list(named.values())}
        return dict(self._connection.rows(statement("registry", "row_counts"), asked)) if named else {}

    def read_registry_fingerprint(self) -> str:
        return str(self._connection.row(statement("registry", "sign"))[0])

    def set_table_state(self, table_id: int, state: str, reason: str) -> None:
        set_state(self._connection, table_id, state, reason)
        self.is_loaded = False

    def begin_comparison(self, table_id: int, reason: str) -> bool:
        return begin_comparison(self._connection, table_id, reason)

    def advance_comparison(self, table_id: int, before: str, after: str, rows_done: int, *, done: bool) -> bool:
        values = comparison_values(table_id, before, after, rows_done, done=done)
        return self._connection.run(statement("registry", "advance_comparison"), values) == 1

    def halt(self, epoch: Epoch, table_id: int, why: str) -> None:
        with self._connection.transaction():
            held = self._connection.row(statement("registry", "settle"))[0]
            if held != epoch:
                place = self._connection.place
                raise Fenced(f"source {place}: epoch {held} is in force, this adapter has {epoch}")
            for table, _ in read_registered_tables(self._connection):
                if table.schema.table_id == table_id and table.state != "PAUSED":
                    set_state(self._connection, table_id, "PAUSED", halt_reason(table, why))
        self.is_loaded = False

    def read_state(self) -> SourceState:
        require_installation(self._connection)
        return read_state(self._connection)

    def raise_epoch(self, epoch: Epoch) -> SourceState:
        rows = self._connection.rows(statement("registry", "raise_epoch"), {"epoch": epoch})
        if not rows:
            held = read_state(self._connection).epoch
            raise Fenced(f"source {self._connection.place}: epoch {held} is in force, {epoch} is older")
        return source_state(rows[0])

    def read_identity(self) -> SourceIdentity | None:
        exists, has_system = self._connection.row(statement("registry", "has_identity"))
        if not exists:
            return None
        present = {"database": str(self._connection.row(statement("registry", "database"))[0])}
        if has_system:
            present["system"] = str(self._connection.row(statement("registry", "system"))[0])
        stored = self._connection.rows(statement("registry", "identity"))
        recorded = json.loads(stored[0][0]) if stored else {}
        return SourceIdentity(recorded=recorded, present=present, decisive=DECISIVE_FACTS)

    def store_identity(self, facts: Mapping[str, str]) -> None:
        self._connection.run(
            statement("registry", "store_identity"), {"facts": json.dumps(dict(facts), sort_keys=True)}
        )

    def read_batches(self, numbers: Seq[BatchNo]) -> dict[BatchNo, BatchRecord]:
        with self._connection.transaction():
            self._connection.run(statement("registry", "settle"))
            rows = self._connection.rows(statement("registry", "batches"), {"numbers": [int(n) for n in numbers]})
        return batch_records(rows)
