"""Foreign keys that hold only because a collation takes two spellings for one. Reads only.

SQLite compares a foreign key by the collation of the column that is referred to; PostgreSQL compares exactly, so such a
row refers to nothing at the target. The exact spelling is the way out.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping

from venus.adapters.dialects.sqlite.connection import quoted
from venus.adapters.dialects.sqlite.statements import statement
from venus.model import Finding, ForeignKey, Kind, TableSchema, counted

#: Of each child table.
ROWS_MAX = 1_000_000


def findings(connection: sqlite3.Connection, schemas: Mapping[str, TableSchema]) -> Iterator[Finding]:
    """Name the foreign keys between captured tables of which rows refer to another spelling."""
    for child in schemas.values():
        for key in child.foreign_keys:
            parent = schemas.get(key.referred_table)
            if parent is not None and _has_text(parent, key):
                yield from _finding(connection, child, key)


def _has_text(parent: TableSchema, key: ForeignKey) -> bool:
    kinds = {c.name: c.type.kind for c in parent.columns}
    return set(key.referred_columns) <= kinds.keys() and any(kinds[c] is Kind.TEXT for c in key.referred_columns)


def _finding(connection: sqlite3.Connection, child: TableSchema, key: ForeignKey) -> Iterator[Finding]:
    table, parent = f"main.{quoted(child.name)}", f"main.{quoted(key.referred_table)}"
    pairs = [(quoted(c), quoted(p)) for c, p in zip(key.columns, key.referred_columns, strict=True)]
    parts = {
        "child": table, "parent": parent, "rows": str(ROWS_MAX), "column": pairs[0][0], "referred": pairs[0][1],
        "match": " AND ".join(f"p.{p} = c.{c}" for c, p in pairs),
        "differ": " OR ".join(f"p.{p} <> c.{c} COLLATE BINARY" for c, p in pairs),
        "columns": ", ".join(c for c, _ in pairs), "values": ", ".join(f"p.{p}" for _, p in pairs),
    }  # fmt: skip
    try:
        count, example, referred = connection.execute(statement("structure", "other_spellings", **parts)).fetchone()
    except sqlite3.OperationalError:  # a collation or a function that only the application has
        return
    if count:
        yield Finding(
            where=child.qualified,
            message=f"foreign key {key.name} ({', '.join(key.columns)}) holds only by collation:"
            f" {counted(count, 'row')} refer to another spelling in {key.referred_table}, {example!r} to {referred!r};"
            " PostgreSQL compares exactly",
            remedy=statement("structure", "same_spelling", **parts),
        )
