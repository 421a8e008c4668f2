"""PostgreSQL's own WHERE gives the same result as VENUS for every row and every predicate."""

from __future__ import annotations

import random

import numpy as np
import psycopg2
import pytest

from tests.support.databases.postgres import libpq
from tests.support.predicates.generators import SAMPLES, SCHEMA, pack_rows, random_predicate, random_row
from tests.support.predicates.predicate_histories import BYTES, IDS, ROWS, random_text, where
from tests.support.predicates.predicate_histories import SCHEMA as HISTORIES
from venus.codec.filtering import find_inside
from venus.codec.packed import PackedBytes
from venus.predicates.ranges import compile_predicate
from venus.predicates.syntax import PredicateRefused

pytestmark = pytest.mark.integration


def test_where_has_the_same_result(database: str) -> None:
    rng = random.Random(8)
    rows = [random_row(n, rng) for n in range(500)]
    record_ids, values = pack_rows(rows)
    connection = psycopg2.connect(libpq(database))
    cursor = connection.cursor()
    columns = ", ".join(f"{s.name} {s.sql_type}" for s in SAMPLES)
    cursor.execute(f"SET TIME ZONE 'UTC'; CREATE TABLE things (id bigint, {columns})")
    cursor.executemany(f"INSERT INTO things VALUES (%s{', %s' * len(SAMPLES)})", rows)
    empty = 0
    for _ in range(1500):
        text = random_predicate(rng)
        cursor.execute(f"SELECT id FROM things WHERE {text}")
        wanted = {n for (n,) in cursor.fetchall()}
        try:
            predicate = compile_predicate(text, SCHEMA)
        except PredicateRefused:
            assert not wanted, text
            empty += 1
            continue
        found = set(np.flatnonzero(find_inside(predicate, record_ids, values, SCHEMA)).tolist())
        assert found == wanted, text
        if rng.random() < 0.2:
            cursor.execute(f"SELECT id FROM things WHERE {predicate.canonical}")
            assert {n for (n,) in cursor.fetchall()} == wanted, predicate.canonical
    assert 0 < empty < 300
    connection.close()


def test_the_histories_are_checked_against_postgresql_too(database: str) -> None:
    """tests/unit/predicates/test_histories.py takes SQLite's result as right: PostgreSQL and VENUS agree with it."""
    rng = random.Random(9)
    encoded = PackedBytes.of([IDS[0]] * len(ROWS)), PackedBytes.of([BYTES[row] for row in ROWS])
    connection = psycopg2.connect(libpq(database))
    cursor = connection.cursor()
    cursor.execute('CREATE TABLE t (n int, region text COLLATE "C", amount numeric(9, 2), day date)')
    cursor.executemany("INSERT INTO t VALUES (%s, %s, %s, %s)", [(n, *row) for n, row in enumerate(ROWS)])
    sizes = set()
    for text in dict.fromkeys(random_text(rng) for _ in range(800)):
        cursor.execute(f"SELECT n FROM t WHERE {text}")
        wanted = {n for (n,) in cursor.fetchall()}
        assert {ROWS[n] for n in wanted} == where(text), text
        found = find_inside(compile_predicate(text, HISTORIES), *encoded, HISTORIES)
        assert set(np.flatnonzero(found).tolist()) == wanted, text
        sizes.add(len(wanted))
    assert len(sizes) > 40
    connection.close()
