"""Every statement of the Oracle target, as the session sends it, for a table that has a column of every type.

They are the same for every version, because they use no feature of later versions.
"""

from __future__ import annotations

from dataclasses import replace

from venus.adapters.dialects.oracle.sql import literal
from venus.adapters.targets.oracle import ddl
from venus.adapters.targets.oracle.rowsql import OracleTableStatements, bind_column, row_sql, statement
from venus.adapters.targets.oracle.session import split_statements, to_oracle
from venus.adapters.targets.oracle.types import binding, read_sql
from venus.model import Column, ForeignKey, Index, Kind, LogicalType, TableSchema

_KINDS = [
    *(LogicalType(kind=kind) for kind in Kind if kind is not Kind.INT),
    LogicalType(kind=Kind.DECIMAL, precision=10, scale=2),
    LogicalType(kind=Kind.TEXT, length=20),
    LogicalType(kind=Kind.TIMESTAMP, precision=9),
]


def make_full_schema() -> TableSchema:
    """Return a table with a column of every type, and a key of a number, a text and a timestamp."""
    columns = [
        Column(name="id", number=1, type=LogicalType(kind=Kind.INT, length=8), nullable=False, comment="it's the key"),
        Column(name="code", number=2, type=LogicalType(kind=Kind.TEXT), default_sql="'x'"),
        Column(name="at", number=3, type=LogicalType(kind=Kind.TIMESTAMPTZ)),
    ]
    columns += [Column(name=f"C{n}", number=n, type=kind) for n, kind in enumerate(_KINDS, 4)]
    return TableSchema(
        table_id=7,
        version=1,
        namespace="shop",
        name="everything",
        columns=tuple(columns),
        key=("id", "code", "at"),
        indexes=(Index(name="second", columns=("C4", "C5"), unique=True),),
        foreign_keys=(
            ForeignKey(
                name="itself",
                columns=("id", "code", "at"),
                referred_namespace="shop",
                referred_table="everything",
                referred_columns=("id", "code", "at"),
                on_delete="CASCADE",
            ),
        ),
        comment="everything",
    )


def target_statements() -> list[str]:
    """Return every statement once."""
    schema = make_full_schema()
    placed = ddl.place_table(schema, "APP", "auto")
    sql = row_sql(placed, "main/o")
    texts = [*_own_statements(), *_rows(sql), *_read_statements(placed), *_tables(placed)]
    block = f"BEGIN DBMS_APPLICATION_INFO.SET_MODULE('VENUS', {literal('apply main/o')}); END;"
    return sorted({block, *(to_oracle(one)[0] for text in texts for one in split_statements(text))})


def _own_statements() -> list[str]:
    """Return the statements about VENUS's own tables and the dictionary."""
    parts = {"table": '"ITEMS"'}
    return [
        statement(file, block, **parts) for file in ("install", "own", "dictionary") for block in statement.blocks(file)
    ]


def _rows(sql: OracleTableStatements) -> list[str]:
    """Return the statements that write rows."""
    placed = sql.placed
    bound = [bind_column(placed, c.name, c.type, []) for c in placed.schema.wire_columns]
    values = [c.binding.sql.replace("{b}", f":{n}") for n, c in enumerate(bound, 1)]
    parts = {"values": ", ".join([*values, "EMPTY_CLOB()"]), "columns": f'{placed.wire_columns}, "LATE"'}
    plain = [block for block in statement.blocks("apply") if block not in ("insert", "find_stage")]
    return [
        sql.text("insert", **parts),
        sql.text("find_stage", name="x"),
        *(sql.text(block, offset="5") for block in plain),
        f"DELETE FROM {placed.sql}",
        f'UPDATE {placed.sql} SET "C4" = NULL WHERE "C4" IS NOT NULL',
        *("SAVEPOINT venus", "ROLLBACK TO SAVEPOINT venus"),
    ]


def _read_statements(placed: ddl.OraclePlacedTable) -> list[str]:
    """Return the statements that read rows for a comparison."""
    columns = ", ".join(
        read_sql(placed.types[c.name], f"T.{placed.column(c.name)}") for c in placed.schema.wire_columns
    )
    keys = placed.schema.wire_columns[:3]
    where = " AND ".join(
        f"T.{placed.column(c.name)} = {binding(c.type, placed.types[c.name]).sql.replace('{b}', ':1')}" for c in keys
    )
    return [f'SELECT {columns} FROM {placed.sql} T WHERE {where} OR RTRIM(T."C9") = :2']


def _tables(placed: ddl.OraclePlacedTable) -> list[str]:
    """Return the DDL of the table, and of its change to a later version."""
    schema = placed.schema
    wider = [replace(c, type=LogicalType(kind=Kind.INT, length=8)) if c.name == "id" else c for c in schema.columns]
    narrow = [replace(c, type=LogicalType(kind=Kind.INT, length=4)) if c.name == "id" else c for c in schema.columns]
    later = replace(
        schema, version=2, columns=(*wider, Column(name="LATE", number=99, type=LogicalType(kind=Kind.TEXT)))
    )
    old = ddl.place_table(replace(schema, columns=tuple(narrow)), "APP", "auto")
    there = {
        old.fold(c.name): ddl.OracleTargetColumn(name=old.fold(c.name), declared=old.types[c.name], not_null=True)
        for c in schema.columns
    }
    step = ddl.plan_step(old, ddl.place_table(later, "APP", "auto"), there, "o", has_begun=False)
    return [
        ddl.create_table(placed),
        *ddl.comment_statements(placed),
        *ddl.index_statements(placed),
        *ddl.foreign_key_statements(placed, [placed]),
        *step.statements,
        f'ALTER TABLE {placed.sql} RENAME COLUMN "C4" TO "C400"',
    ]
