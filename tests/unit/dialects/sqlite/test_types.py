"""Declared types become logical types; for a name without a meaning the content decides."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from venus.adapters.dialects.sqlite.dictionary.types import (
    Affinity,
    affinity,
    content_type,
    declared_type,
    portable_default,
)
from venus.model import Kind, LogicalType


@pytest.mark.parametrize(
    ("declared", "kind", "sizes"),
    [
        ("INTEGER", Kind.INT, (0, 0, 8)),
        ("bigint unsigned", Kind.INT, (0, 0, 8)),
        ("smallint", Kind.INT, (0, 0, 2)),
        ("VARCHAR(255)", Kind.TEXT, (0, 0, 255)),
        ("NATIVE CHARACTER(70)", Kind.TEXT, (0, 0, 70)),
        ("CHAR(3)", Kind.TEXT, (0, 0, 3)),
        ("CLOB", Kind.TEXT, (0, 0, 0)),
        ("DECIMAL( 10 , 5 )", Kind.DECIMAL, (10, 5, 0)),
        ("NUMERIC(8)", Kind.DECIMAL, (8, 0, 0)),
        ("NUMERIC", Kind.DECIMAL, (0, 0, 0)),
        ("DECIMAL(2,5)", Kind.DECIMAL, (0, 0, 0)),
        ("DOUBLE PRECISION", Kind.FLOAT, (0, 0, 8)),
        ("float(24)", Kind.FLOAT, (0, 0, 8)),
        ("BOOLEAN", Kind.BOOL, (0, 0, 0)),
        ("datetime", Kind.TIMESTAMP, (6, 0, 0)),
        ("TIMESTAMP(3) WITH TIME ZONE", Kind.TIMESTAMPTZ, (6, 0, 0)),
        ("UUID", Kind.UUID, (0, 0, 0)),
        ("JSON", Kind.JSON, (0, 0, 0)),
        ("LONGBLOB", Kind.BYTES, (0, 0, 0)),
        ("VARBINARY(16)", Kind.BYTES, (0, 0, 0)),
    ],
)
def test_names_with_a_meaning_decide_the_type(declared: str, kind: Kind, sizes: tuple[int, int, int]) -> None:
    precision, scale, length = sizes
    assert declared_type(declared) == LogicalType(kind=kind, precision=precision, scale=scale, length=length)


@pytest.mark.parametrize("declared", ["", "ANY", "STRING", "MONEY", "ENUM('a', 'b')"])
def test_names_without_a_meaning_decide_nothing(declared: str) -> None:
    assert declared_type(declared) is None


def test_the_content_decides_only_if_it_is_of_one_kind() -> None:
    assert content_type({"integer", "null"}) == LogicalType(kind=Kind.INT, length=8)
    assert content_type({"integer", "real"}) == LogicalType(kind=Kind.DECIMAL)
    assert content_type({"integer", "text"}) is None
    assert content_type({"null"}) is None


_PIECES = st.sampled_from(["INT", "CHAR", "CLOB", "TEXT", "BLOB", "REAL", "FLOA", "DOUB", "X", " ", "BIG", "POINT"])


@given(st.lists(_PIECES, max_size=4).map("".join))
def test_affinity_is_sqlites_own(declared: str) -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute(f"CREATE TABLE t (c {declared})")
    stored = [
        connection.execute("INSERT INTO t VALUES (?) RETURNING typeof(c)", (v,)).fetchone()[0] for v in ("1", 1.0)
    ]
    connection.close()
    shown = {
        Affinity.INTEGER: ["integer", "integer"],
        Affinity.NUMERIC: ["integer", "integer"],
        Affinity.REAL: ["real", "real"],
        Affinity.TEXT: ["text", "text"],
        Affinity.BLOB: ["text", "real"],
    }
    assert stored == shown[affinity(declared.strip())]


@pytest.mark.parametrize(
    ("default", "declared", "portable"),
    [
        ("0", "INTEGER", "0"),
        ("-1.50", "DECIMAL(5,2)", "-1.50"),
        ("'it''s'", "TEXT", "'it''s'"),
        ('"odd"', "TEXT", ""),
        ("CURRENT_TIMESTAMP", "DATETIME", "(CURRENT_TIMESTAMP AT TIME ZONE 'UTC')"),
        ("CURRENT_TIMESTAMP", "TEXT", ""),
        ("1", "BOOLEAN", "true"),
        ("abs(1)", "INTEGER", ""),
        ("NULL", "TEXT", ""),
        (None, "TEXT", ""),
    ],
)
def test_only_defaults_with_the_same_meaning_everywhere_are_carried(
    default: str | None, declared: str, portable: str
) -> None:
    logical = declared_type(declared)
    assert logical is not None
    assert portable_default(default, logical) == portable
