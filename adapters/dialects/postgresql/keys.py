"""How a table without a key can be given one: a number that tells equal rows apart. Pure, but for `read`.

What works depends on the table. A member of an inheritance tree takes no identity, and gets the column with its parent;
a partitioned table's key holds the columns by which it is divided; a typed table takes no column; a table whose row
type is somebody's column cannot be rewritten. All statements may be run again, and in any order of the tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from venus.adapters.dialects.postgresql.connection import Connection
from venus.adapters.dialects.postgresql.dictionary import Table
from venus.adapters.dialects.postgresql.names import literal, qualified, quoted
from venus.adapters.dialects.postgresql.statements import statement

COLUMN = "venus_record_id"
#: PostgreSQL's own limit, dropped columns included.
_COLUMNS_MAX = 1600


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyless:
    """What decides how a table can be given a key."""

    partitioned: bool
    typed: bool
    numbers_used: int
    #: A parent or a child by inheritance.
    inherits: bool
    has_primary: bool
    #: Names of columns, here and in every table of the same tree.
    columns: frozenset[str]
    #: The column that is offered is there already, as its parent's statement has left it.
    numbered: bool
    #: By which columns it and its partitions are partitioned, "" for an expression.
    divided_by: tuple[str, ...]
    foreign_partition: str
    #: A column that has the row type of a table of the tree, alone or inside another type: no rewriting then.
    row_type_in: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Statements that give a table a key, or why there are none, and what to know."""

    statements: tuple[str, ...] = ()
    remark: str = ""


def read(connection: Connection, tables: Iterable[Table]) -> dict[int, Keyless]:
    """Ask the dictionary about these tables."""
    oids = {"tables": [t.oid for t in tables]}
    if not oids["tables"]:
        return {}
    rows = connection.rows(statement("check", "with_keyless") + statement("check", "keyless"), oids)
    return {
        r[0]: Keyless(
            partitioned=r[1],
            typed=r[2],
            numbers_used=r[3],
            inherits=r[4],
            has_primary=r[5],
            columns=frozenset(r[6] or ()),
            numbered=bool(r[7]),
            divided_by=tuple(r[8] or ()),
            foreign_partition=r[9] or "",
            row_type_in=r[10] or "",
        )
        for r in rows
    }


def offer(table: Table, facts: Keyless) -> Offer:
    """Return what gives a table a key."""
    if facts.numbers_used >= _COLUMNS_MAX:
        return Offer(remark="it has as many columns as PostgreSQL allows")
    if facts.partitioned:
        return _partitioned(table, facts)
    column = quoted(_column(facts))
    word = "UNIQUE" if facts.has_primary else "PRIMARY KEY"
    key = f"ALTER TABLE {table.name_sql} ADD {word} ({column})"
    if facts.numbered:
        return Offer(statements=(key,), remark="the column is there already")
    if facts.inherits:
        remark = "children get the column as well, and need a key of their own"
        return Offer(statements=(*_numbered(table, column, facts), key), remark=remark)
    if facts.row_type_in:
        remark = f"row by row, because {facts.row_type_in} is of its type"
        return Offer(statements=(*_detached(table, facts), *_numbered(table, column, facts), key), remark=remark)
    add = f"ALTER TABLE {table.name_sql} ADD COLUMN {column} bigint GENERATED ALWAYS AS IDENTITY {word}"
    remark = "it no longer follows its type then" if facts.typed else "only SELECT * shows it"
    return Offer(statements=(*_detached(table, facts), add), remark=remark)


def _detached(table: Table, facts: Keyless) -> tuple[str, ...]:
    return (f"ALTER TABLE {table.name_sql} NOT OF",) if facts.typed else ()


def _partitioned(table: Table, facts: Keyless) -> Offer:
    if "" in facts.divided_by:
        return Offer(remark="it is partitioned by an expression, and PostgreSQL allows no key on such a table")
    if facts.foreign_partition:
        return Offer(remark=f"its partition {facts.foreign_partition} is a foreign table, which cannot have a key")
    column = quoted(_column(facts))
    columns = list(map(quoted, facts.divided_by))
    nulls = ", ".join(f"ALTER COLUMN {c} SET NOT NULL" for c in columns)
    # a partition may have a primary key of its own
    key = f"ALTER TABLE {table.name_sql} {nulls}, ADD UNIQUE ({', '.join([column, *columns])})"
    numbered = () if facts.numbered else _numbered(table, column, facts)
    divided_by = ", ".join(facts.divided_by)
    return Offer(statements=(*numbered, key), remark=f"rows with NULL in ({divided_by}) have to get a value first")


def _column(facts: Keyless) -> str:
    """Return the column's name: one that no table of the tree has, unless it is this very column."""
    name, number = COLUMN, 1
    while name in facts.columns and not (facts.numbered and number == 1):
        number += 1
        name = f"{COLUMN}_{number}"
    return name


def _numbered(table: Table, column: str, facts: Keyless) -> tuple[str, ...]:
    """Return what adds the column with its numbers, to children and partitions as well."""
    alter = f"ALTER TABLE {table.name_sql}"
    if not facts.row_type_in:
        return (f"{alter} ADD COLUMN IF NOT EXISTS {column} bigserial",)
    # a default would have the table rewritten, which PostgreSQL refuses as long as its row type is a column's
    sequence = qualified(table.namespace, f"{COLUMN}_{table.oid}_seq")
    return (
        f"{alter} ADD COLUMN IF NOT EXISTS {column} bigint",
        f"CREATE SEQUENCE IF NOT EXISTS {sequence} OWNED BY {table.name_sql}.{column}",
        f"{alter} ALTER COLUMN {column} SET DEFAULT nextval({literal(sequence)})",
        f"UPDATE {table.name_sql} SET {column} = DEFAULT WHERE {column} IS NULL",
        f"{alter} ALTER COLUMN {column} SET NOT NULL",
    )
