"""Findings about one table, from its definition in the dictionary. Pure.

A table without a key can often be given a number column that distinguishes equal rows. The statements depend on the
table. A member of an inheritance tree gets the column with its parent and takes no identity. A partitioned table's key
must include the partition columns. A typed table accepts no column. A table whose row type is the type of a column
cannot be rewritten. All statements may run repeatedly, and in any order of the tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from venus.adapters.dialects.column_choice import WAY_OUT
from venus.adapters.dialects.postgresql.dictionary.tables import PostgresTable
from venus.adapters.dialects.postgresql.names import literal, qualify, quote
from venus.adapters.dialects.type_changes import keeps_text
from venus.model import CHILD_TABLE, Finding, TableSchema

COLUMN = "venus_record_id"
#: PostgreSQL's limit, dropped columns included.
_COLUMNS_MAX = 1600


@dataclass(frozen=True, slots=True, kw_only=True)
class KeylessFacts:
    """The facts that decide how a table can be given a key."""

    partitioned: bool
    typed: bool
    numbers_used: int
    #: Whether it is a parent or a child by inheritance.
    inherits: bool
    has_primary: bool
    #: Names of columns of every table in the same tree.
    columns: frozenset[str]
    #: Whether the offered column exists already, because the parent's statement added it.
    numbered: bool
    #: The partition columns of the table and its partitions, "" for an expression.
    divided_by: tuple[str, ...]
    foreign_partition: str
    #: A column with the row type of a table of the tree, alone or inside another type: it forbids rewriting.
    row_type_in: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOffer:
    """Statements that give a table a key, or the reason why there are none, with a remark."""

    statements: tuple[str, ...] = ()
    remark: str = ""


def offer_key(table: PostgresTable, facts: KeylessFacts) -> KeyOffer:
    """Return the statements that give a table a key."""
    if facts.numbers_used >= _COLUMNS_MAX:
        return KeyOffer(remark="it has as many columns as PostgreSQL allows")
    if facts.partitioned:
        return _offer_for_partitioned(table, facts)
    column = quote(_number_column(facts))
    word = "UNIQUE" if facts.has_primary else "PRIMARY KEY"
    key = f"ALTER TABLE {table.name_sql} ADD {word} ({column})"
    if facts.numbered:
        return KeyOffer(statements=(key,), remark="the column exists already")
    if facts.inherits:
        remark = "children get the column too, and need a key of their own"
        return KeyOffer(statements=(*_number_statements(table, column, facts), key), remark=remark)
    if facts.row_type_in:
        remark = f"row by row, because {facts.row_type_in} has its row type"
        return KeyOffer(
            statements=(*_detach_statements(table, facts), *_number_statements(table, column, facts), key),
            remark=remark,
        )
    add = f"ALTER TABLE {table.name_sql} ADD COLUMN {column} bigint GENERATED ALWAYS AS IDENTITY {word}"
    remark = "the table then no longer follows its type" if facts.typed else "only SELECT * shows it"
    return KeyOffer(statements=(*_detach_statements(table, facts), add), remark=remark)


def _detach_statements(table: PostgresTable, facts: KeylessFacts) -> tuple[str, ...]:
    return (f"ALTER TABLE {table.name_sql} NOT OF",) if facts.typed else ()


def _offer_for_partitioned(table: PostgresTable, facts: KeylessFacts) -> KeyOffer:
    if "" in facts.divided_by:
        return KeyOffer(remark="it is partitioned by an expression, and PostgreSQL allows no key on such a table")
    if facts.foreign_partition:
        return KeyOffer(remark=f"its partition {facts.foreign_partition} is a foreign table, which cannot have a key")
    column = quote(_number_column(facts))
    columns = list(map(quote, facts.divided_by))
    nulls = ", ".join(f"ALTER COLUMN {c} SET NOT NULL" for c in columns)
    # a partition may have a primary key of its own
    key = f"ALTER TABLE {table.name_sql} {nulls}, ADD UNIQUE ({', '.join([column, *columns])})"
    numbered = () if facts.numbered else _number_statements(table, column, facts)
    divided_by = ", ".join(facts.divided_by)
    return KeyOffer(statements=(*numbered, key), remark=f"rows with NULL in ({divided_by}) must get a value first")


def _number_column(facts: KeylessFacts) -> str:
    """Return the name of the number column, which no table of the tree uses for another column."""
    name, number = COLUMN, 1
    while name in facts.columns and not (facts.numbered and number == 1):
        number += 1
        name = f"{COLUMN}_{number}"
    return name


def _number_statements(table: PostgresTable, column: str, facts: KeylessFacts) -> tuple[str, ...]:
    """Return the statements that add the numbered column, also to children and partitions."""
    alter = f"ALTER TABLE {table.name_sql}"
    if not facts.row_type_in:
        return (f"{alter} ADD COLUMN IF NOT EXISTS {column} bigserial",)
    # a default would rewrite the table, which PostgreSQL refuses while a column has its row type
    sequence = qualify(table.namespace, f"{COLUMN}_{table.oid}_seq")
    return (
        f"{alter} ADD COLUMN IF NOT EXISTS {column} bigint",
        f"CREATE SEQUENCE IF NOT EXISTS {sequence} OWNED BY {table.name_sql}.{column}",
        f"{alter} ALTER COLUMN {column} SET DEFAULT nextval({literal(sequence)})",
        f"UPDATE {table.name_sql} SET {column} = DEFAULT WHERE {column} IS NULL",
        f"{alter} ALTER COLUMN {column} SET NOT NULL",
    )


_WAY_OUT = "run `venus install-triggers`, then `venus resync`"


def describe_key_change(known: TableSchema, table: PostgresTable) -> str:
    """Return how the key has changed; empty if it is unchanged or wider."""
    if not table.key:
        return f"its key is gone: give it one, {_WAY_OUT}"
    now = tuple(k.name for k in table.key)
    if now != known.key:
        return f"its key was ({', '.join(known.key)}) and is ({', '.join(now)}): {_WAY_OUT}"
    before = {c.name: c for c in known.columns}
    for column in table.columns:
        was = before.get(column.name)
        if column.name not in known.key:
            continue
        if was is None or was.number != column.number or not keeps_text(was.type, column.type):
            return f"key column {column.name} was recreated as {column.source_type}: {_WAY_OUT}"
    return ""


#: The quotes around the bodies of VENUS's functions.
_DOLLAR = "$venus$"


def table_findings(table: PostgresTable, keyless: KeylessFacts | None = None) -> Iterator[Finding]:
    """Yield the findings about one table. `keyless`: the facts about a table without a key."""
    where = f"{table.namespace}.{table.name}"
    if table.kind == "f":
        yield Finding(
            where=where,
            message="is a foreign table: changes at its own server fire no trigger here",
            remedy="exclude it, and capture it at its own server",
            blocks=True,
        )
        return
    yield from _key_findings(where, table, keyless)
    for column, why in table.unsupported:
        yield Finding(
            where=f"{where}.{column}",
            message=f"cannot be carried exactly: {why}",
            remedy=f"{WAY_OUT}, or change the column's type",
            blocks=True,
        )
    if any(_DOLLAR in k.name for k in table.key):
        yield Finding(where=where, message=f"a key column's name contains {_DOLLAR}", remedy="rename it", blocks=True)
    if table.unlogged:
        yield Finding(
            where=where,
            message="is unlogged: a crash of the server empties it, and no trigger fires",
            remedy="ALTER TABLE ... SET LOGGED, or resync it after a crash",
        )
    for left in table.left_out:
        if left.what == CHILD_TABLE:
            yield Finding(
                where=where, message=f"has the child table {left.name}, which is not carried", remedy=left.reason
            )
    if table.row_security:
        yield Finding(
            where=where,
            message="has row security: only its owner or a role with BYPASSRLS sees all rows",
            remedy="let VENUS connect as such a role; a read that would be filtered fails instead",
        )


def _key_findings(where: str, table: PostgresTable, keyless: KeylessFacts | None) -> Iterator[Finding]:
    if table.key:
        return
    offered = offer_key(table, keyless) if keyless else KeyOffer()
    if offered.statements:
        remedy = f"{'; '.join(offered.statements)} ({offered.remark}), or another PRIMARY KEY, or a unique index"
        remedy += " on NOT NULL columns; or exclude the table"
    else:
        remedy = f"exclude the table: {offered.remark}" if offered.remark else "exclude the table"
    if table.key_choices:
        remedy += "; nearest: " + "; ".join(table.key_choices)
    yield Finding(
        where=where,
        message="has no usable key: rows without one cannot be distinguished",
        remedy=remedy,
        blocks=True,
        details=table.key_choices,
        script=offered.statements,
    )
