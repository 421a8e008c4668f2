"""Comparison of a captured table with its registered version, and with the dictionary that capture saw last.

VENUS never blocks the application's DDL. The comparison detects and reports what DDL breaks, and
`venus install-triggers` repairs it (VENUS 3.2: a table's description travels with its rows).

No trigger fires when a column is dropped and added again, when two columns exchange names, or when a generated column
gets another expression. VENUS therefore compares the text of CREATE TABLE, which ALTER TABLE edits, and
`schema_version`, which every DDL statement raises by one. Dropping a column and adding it again may restore the same
text, but needs two statements.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace

from venus.adapters.dialects.sqlite import registry
from venus.adapters.dialects.sqlite.connection import quote
from venus.adapters.dialects.sqlite.dictionary.tables import (
    SqliteDictionary,
    SqliteTable,
    assign_numbers,
    keep_renamed_columns,
    log_table_name,
)
from venus.adapters.dialects.sqlite.installation.triggers import SqliteOwnObject, build_capture_objects, valve_name
from venus.adapters.dialects.sqlite.registry import SqliteRegistryEntry
from venus.adapters.dialects.sqlite.sql import statement
from venus.codec.schema import fingerprint
from venus.model import TableSchema

#: The table and the text of a table or trigger, by its name.
DictionaryObjects = dict[str, tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteTableComparison:
    """A registered table compared with the dictionary."""

    captured: SqliteRegistryEntry
    table: SqliteTable | None  # None: the table is gone
    readable: bool
    schema: TableSchema  # the registered version, or the next one
    number_max: int
    missing: tuple[SqliteOwnObject, ...] = ()
    reason: str = ""  # why changes may have been missed, empty if none were

    @property
    def is_new_version(self) -> bool:
        """Whether the table's version differs from the registered one."""
        return self.schema.version != self.captured.schema.version

    @property
    def needs_fill(self) -> bool:
        """Whether existing rows have values that were never shipped: new, renamed or retyped columns."""
        before = {c.number: (c.name, c.type) for c in self.captured.schema.columns}
        return any(before.get(c.number) != (c.name, c.type) for c in self.schema.columns)

    @property
    def has_changes(self) -> bool:
        """Whether the registry must be updated."""
        return self.is_new_version or (bool(self.reason) and self.captured.table.state == "ACTIVE")


def read_objects(connection: sqlite3.Connection) -> DictionaryObjects:
    """Return the objects of the dictionary by name."""
    return {name: (table, sql) for _, name, table, sql in connection.execute(statement("dictionary", "objects"))}


def compare_table(
    dictionary: SqliteDictionary, captured: SqliteRegistryEntry, present: DictionaryObjects
) -> SqliteTableComparison:
    """Compare a registered table with the dictionary. Reads only."""
    known = captured.schema
    unchanged = SqliteTableComparison(
        captured=captured, table=None, readable=False, schema=known, number_max=captured.number_max
    )
    if known.name not in dictionary:
        return replace(unchanged, reason="the table is gone: dropped or renamed at the source")
    found = dictionary.read_table(known.name, known)
    schema = keep_renamed_columns(found.schema, {c.name: c for c in known.columns}, known.columns)
    schema, number_max = assign_numbers(schema, captured.number_max)
    if key_numbers(schema) != key_numbers(known):
        reason = f"its key is now ({', '.join(schema.key)}), was ({', '.join(known.key)}): run `venus install-triggers`"
        return replace(unchanged, table=replace(found, schema=schema), number_max=number_max, reason=reason)
    if fingerprint(schema) != fingerprint(known):
        schema = replace(schema, version=known.version + 1)
    found = replace(found, schema=schema)
    made = build_capture_objects(found, known.table_id)
    missing = tuple(m for m in made if present.get(m.name, ("", ""))[1] != m.sql)
    return replace(
        unchanged,
        table=found,
        readable=all(m.kind != "table" for m in missing),
        schema=schema,
        number_max=number_max,
        missing=missing,
        reason=_resync_reason(missing, found),
    )


def _resync_reason(missing: tuple[SqliteOwnObject, ...], found: SqliteTable) -> str:
    if missing:
        names = ", ".join(m.name for m in missing)
        return f"changes may have been missed, {names} missing or altered: run `venus install-triggers`"
    if found.untyped:
        return f"column {found.untyped[0]} has no declared type and no values that decide it, and is left out"
    return ""


def key_numbers(schema: TableSchema) -> list[int]:
    """Return the field numbers of a table's key."""
    numbers = {c.name: c.number for c in schema.columns}
    return [numbers[name] for name in schema.key]


def drop_stale_triggers(present: DictionaryObjects, table_id: int, made: list[SqliteOwnObject]) -> list[str]:
    """Return the statements that drop outdated triggers of this table."""
    wanted = {m.name: m.sql for m in made}
    suffix, kept = f"_{table_id:05}", (log_table_name(table_id), valve_name(table_id))
    return [
        statement("install", "drop_trigger", trigger=quote(name))
        for name, (_, sql) in present.items()
        if name.startswith("venus_") and name.endswith(suffix) and name not in kept
        if wanted.get(name) != sql and not registry.is_reject_trigger(name)
    ]


#: VACUUM, ANALYZE and changes of other objects raise schema_version without changing any name.
_UNEXPLAINED_MAX = 1
#: One statement renames or drops an object of these kinds together with everything that belongs to it.
_SEVERAL_AT_ONCE = ("virtual", "shadow")


@dataclass(frozen=True, slots=True, kw_only=True)
class DictionarySummary:
    """A summary of the dictionary at one moment."""

    version: int
    #: Number of columns of every object that has a text, by type and name; 0 if it is not a table.
    columns: dict[str, int] = field(default_factory=dict)
    #: Digest of each table's text.
    texts: dict[str, str] = field(default_factory=dict)


def read_summary(connection: sqlite3.Connection) -> DictionarySummary:
    """Read the summary of the dictionary. The caller opens the transaction."""
    kinds = {name: kind for name, kind, *_ in connection.execute(statement("dictionary", "tables"))}
    look = DictionarySummary(version=int(connection.execute(statement("dictionary", "schema_version")).fetchone()[0]))
    widths = dict(connection.execute(statement("dictionary", "widths")).fetchall())
    for kind, name, _, sql in connection.execute(statement("dictionary", "objects")).fetchall():
        is_table = kind == "table"
        if not sql or (is_table and kinds.get(name) in _SEVERAL_AT_ONCE):
            continue
        look.columns[_object_key(kind, name)] = 0
        if is_table:
            look.columns[_object_key(kind, name)] = widths[name]
            look.texts[_object_key(kind, name)] = hashlib.blake2b(sql.encode(), digest_size=8).hexdigest()
    return look


def _object_key(kind: str, name: str) -> str:
    """Return the name by which a summary of the dictionary lists an object."""
    return f"{kind} {name}"


def read_stored_summary(connection: sqlite3.Connection) -> DictionarySummary | None:
    """Return the summary that was stored last; None if an older version installed capture."""
    row = connection.execute(statement("registry", "look")).fetchone()
    return DictionarySummary(**json.loads(row[0])) if row and row[0] else None


def store_summary(connection: sqlite3.Connection, look: DictionarySummary) -> None:
    """Store a summary in the fingerprint column of the heartbeat table. Older versions ignore it and still work."""
    connection.execute(statement("registry", "note_look"), (json.dumps(asdict(look)),))


@contextmanager
def note_own_changes(connection: sqlite3.Connection) -> Iterator[None]:
    """Record the DDL of the block as VENUS's own, so that capture ignores it. The caller opens the transaction."""
    is_noted = registry.is_installed(connection) and read_stored_summary(connection) == read_summary(connection)
    yield
    if is_noted and registry.is_installed(connection):  # all DDL since then is VENUS's own
        store_summary(connection, read_summary(connection))


def may_have_altered(before: DictionarySummary | None, look: DictionarySummary, table: str) -> bool:
    """Return whether ALTER TABLE may have changed a table's values: True in doubt, False without two summaries."""
    this = _object_key("table", table)
    if before is None or this not in before.columns or this not in look.columns:
        return False
    gone = before.columns[this] - look.columns[this]
    own = look.version - before.version - _count_other_statements(before, look, this)
    if gone > 0:
        return own != gone  # with one more statement, a remaining column may have got the name of a dropped one
    return before.texts[this] != look.texts[this] or not 0 <= own <= _UNEXPLAINED_MAX


def _count_other_statements(before: DictionarySummary, look: DictionarySummary, this: str) -> int:
    """Return the smallest number of statements that can have changed the other objects.

    A statement creates or changes at most one object, and drops at most one table; a rename does both.
    """
    made = sum(before.columns.get(name) != width for name, width in look.columns.items() if name != this)
    dropped = sum(width > 0 and name not in look.columns for name, width in before.columns.items())
    return max(made, dropped)
