"""What stands in the way of capturing a table, from what the dictionary says of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from venus.adapters.dialects.columns import WAY_OUT
from venus.adapters.dialects.keyforms import keeps_text
from venus.adapters.dialects.postgresql.dictionary import Table
from venus.adapters.dialects.postgresql.names import literal, qualified, quoted
from venus.model import HEIR, Finding, TableSchema

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


_WAY_OUT = "run `venus install-triggers`, then `venus resync`"


def key_change(known: TableSchema, table: Table) -> str:
    """Say what has become of the key; empty if it is what it was, or wider."""
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


#: protobuf keeps 19000-19999 for itself; PostgreSQL's attribute numbers end at 1600.
_DOLLAR = "$venus$"


def of_table(table: Table, keyless: Keyless | None = None) -> Iterator[Finding]:
    """Yield everything there is to say about one table; `keyless` = how one without a key can be given one."""
    where = f"{table.namespace}.{table.name}"
    if table.kind == "f":
        yield Finding(
            where=where,
            message="is a foreign table: what changes behind it fires no trigger here",
            remedy="exclude it, and capture it where it lives",
            blocks=True,
        )
        return
    yield from _key(where, table, keyless)
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
            message="is unlogged: after a crash of the server it is empty, and no trigger says so",
            remedy="ALTER TABLE ... SET LOGGED, or resync it after a crash",
        )
    for left in table.left_out:
        if left.what == HEIR:
            yield Finding(where=where, message=f"has the heir {left.name}: it is not carried", remedy=left.reason)
    if table.row_security:
        yield Finding(
            where=where,
            message="has row security: only its owner or a role with BYPASSRLS sees all rows",
            remedy="let VENUS connect as such a role; reads that would be filtered are errors, never fewer rows",
        )


def _key(where: str, table: Table, keyless: Keyless | None) -> Iterator[Finding]:
    if table.key:
        return
    offered = offer(table, keyless) if keyless else Offer()
    if offered.statements:
        remedy = f"{'; '.join(offered.statements)} ({offered.remark}), or another PRIMARY KEY, or a unique index"
        remedy += " on NOT NULL columns; or exclude the table"
    else:
        remedy = f"exclude the table: {offered.remark}" if offered.remark else "exclude the table"
    if table.key_choices:
        remedy += "; nearest: " + "; ".join(table.key_choices)
    yield Finding(
        where=where,
        message="has no usable key: rows without one cannot be told apart",
        remedy=remedy,
        blocks=True,
        details=table.key_choices,
        script=offered.statements,
    )
