"""Compares a captured table in the dictionary with its registered version, and says what has to happen. Reads only.

Ordinary DDL of the application is never hindered: what it breaks is noticed here, said, and mended by
`venus install-triggers` (VENUS 3.2: a table's description travels with its rows).
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace

from venus.adapters.dialects.sqlite.connection import quoted
from venus.adapters.dialects.sqlite.dictionary import Dictionary, Found, keeping_renamed, numbered
from venus.adapters.dialects.sqlite.registry import Captured
from venus.adapters.dialects.sqlite.statements import statement
from venus.adapters.dialects.sqlite.triggers import Made, capture_objects, log_table
from venus.codec.schema import fingerprint
from venus.model import TableSchema

#: Name of a table or trigger -> the table it belongs to and its text.
Objects = dict[str, tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How a registered table stands."""

    captured: Captured
    found: Found | None  # None: gone
    readable: bool
    schema: TableSchema  # the registered version, or the next one
    number_max: int
    missing: tuple[Made, ...] = ()
    reason: str = ""  # why changes may have been missed, empty if none were

    @property
    def is_new_version(self) -> bool:
        """Whether rows of the table now look different."""
        return self.schema.version != self.captured.schema.version

    @property
    def needs_fill(self) -> bool:
        """Whether rows that are there already have values that were never shipped: new, renamed, retyped columns."""
        before = {c.number: (c.name, c.type) for c in self.captured.schema.columns}
        return any(before.get(c.number) != (c.name, c.type) for c in self.schema.columns)

    @property
    def differs(self) -> bool:
        """Whether anything has to be stored."""
        return self.is_new_version or (bool(self.reason) and self.captured.table.state == "ACTIVE")


def objects(connection: sqlite3.Connection) -> Objects:
    """Return what the dictionary has, by name."""
    return {name: (table, sql) for _, name, table, sql in connection.execute(statement("dictionary", "objects"))}


def compare(dictionary: Dictionary, captured: Captured, present: Objects) -> Comparison:
    """Say how a registered table stands."""
    known = captured.schema
    unchanged = Comparison(captured=captured, found=None, readable=False, schema=known, number_max=captured.number_max)
    if known.name not in dictionary:
        return replace(unchanged, reason="the table is gone: dropped or renamed at the source")
    found = dictionary.table(known.name, known)
    schema = keeping_renamed(found.schema, {c.name: c for c in known.columns}, known.columns)
    schema, number_max = numbered(schema, captured.number_max)
    if key_numbers(schema) != key_numbers(known):
        reason = f"its key is now ({', '.join(schema.key)}), was ({', '.join(known.key)}): run `venus install-triggers`"
        return replace(unchanged, found=replace(found, schema=schema), number_max=number_max, reason=reason)
    if fingerprint(schema) != fingerprint(known):
        schema = replace(schema, version=known.version + 1)
    found = replace(found, schema=schema)
    made = capture_objects(found, known.table_id)
    missing = tuple(m for m in made if present.get(m.name, ("", ""))[1] != m.sql)
    return replace(
        unchanged,
        found=found,
        readable=all(m.kind != "table" for m in missing),
        schema=schema,
        number_max=number_max,
        missing=missing,
        reason=_reason(missing, found),
    )


def _reason(missing: tuple[Made, ...], found: Found) -> str:
    if missing:
        names = ", ".join(m.name for m in missing)
        return f"changes may have been missed, {names} not there or altered: run `venus install-triggers`"
    if found.untyped:
        return f"column {found.untyped[0]} has no type and no values to tell it by, and is left out"
    return ""


def key_numbers(schema: TableSchema) -> list[int]:
    """Return the field numbers of a table's key."""
    numbers = {c.name: c.number for c in schema.columns}
    return [numbers[name] for name in schema.key]


def stale_objects(present: Objects, table_id: int, made: list[Made]) -> list[str]:
    """Return statements that drop what stands in the way: triggers of this id that are not as they should be."""
    wanted = {m.name: m.sql for m in made}
    suffix = f"_{table_id:05}"
    return [
        statement("install", "drop_trigger", trigger=quoted(name))
        for name, (_, sql) in present.items()
        if name.startswith("venus_") and name.endswith(suffix) and name != log_table(table_id)
        if wanted.get(name) != sql
    ]
