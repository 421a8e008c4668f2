"""The codec reads and writes COPY text exactly as PostgreSQL does."""

from __future__ import annotations

import io
from contextlib import closing

import psycopg2
import pytest

from tests.support.databases.postgres import libpq
from venus.codec.columns import to_columns
from venus.codec.copy_text import from_copy, to_copy
from venus.codec.row_bytes import Layout
from venus.model import Column, Kind, LogicalType, TableSchema

pytestmark = pytest.mark.integration

TEXT, BYTES = LogicalType(kind=Kind.TEXT), LogicalType(kind=Kind.BYTES)
SCHEMA = TableSchema(
    table_id=1,
    version=1,
    namespace="public",
    name="t",
    columns=(
        Column(name="id", number=1, type=TEXT),
        Column(name="a", number=2, type=TEXT),
        Column(name="b", number=16, type=BYTES),
        Column(name="c", number=2047, type=TEXT),
    ),
    key=("id",),
)
HARD = ["\\N", "", "\\", "\t\n\\.", "🙂é", None, "\\\\x41", "\\."]


def test_every_character_is_copied_unchanged_from_one_table_to_another(database: str) -> None:
    layout = Layout.of(SCHEMA)
    rows = [
        (i, "".join(map(chr, range(i + 1, i + 41))), bytes(range(256)) if i % 3 else None, HARD[i % len(HARD)])
        for i in range(300)
    ]
    rows.append((300, "x" * 20_000, b"", None))
    with closing(psycopg2.connect(libpq(database))) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b bytea, c text)")
        cursor.execute("CREATE TABLE copied (LIKE t)")
        cursor.executemany("INSERT INTO t VALUES (%s, %s, %s, %s)", rows)
        out = io.BytesIO()
        cursor.copy_expert("COPY (SELECT id, a, b, c FROM t ORDER BY id) TO STDOUT", out)

        record_ids, others, _ = from_copy(out.getvalue(), layout, flagged=False)
        text = to_copy(record_ids, others, layout)

        assert text == out.getvalue()
        columns = to_columns(record_ids, others, layout)
        assert [tuple(row) for row in zip(*columns, strict=True)] == [(str(i), *rest) for i, *rest in rows]
        cursor.copy_expert("COPY copied FROM STDIN", io.BytesIO(text))
        cursor.execute("SELECT * FROM copied ORDER BY id")
        assert [(i, a, None if b is None else bytes(b), c) for i, a, b, c in cursor.fetchall()] == rows
