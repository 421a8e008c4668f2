"""Every statement that a check suggests for a table without a key is executed here, on every kind of table."""

from __future__ import annotations

import random
import subprocess

import pytest

from tests.integration.postgresql.conftest import Sql, Start
from tests.support.databases.postgres import Server, libpq
from venus.adapters.dialects.postgresql.source import PostgresSource
from venus.cli.install import build_key_script
from venus.cli.prove.follower import Follower
from venus.model import Finding

pytestmark = pytest.mark.integration


#: Tables without a key, with two indistinguishable rows each.
KINDS = {
    "plain": "CREATE TABLE plain (a int); INSERT INTO plain VALUES (1), (1)",
    "empty": "CREATE TABLE empty (); INSERT INTO empty DEFAULT VALUES; INSERT INTO empty DEFAULT VALUES",
    "quoted": 'CREATE TABLE "Odd ""name"", 100%%s" ("A b" int); INSERT INTO "Odd ""name"", 100%%s" VALUES (1), (1)',
    "named": "CREATE TABLE named (venus_record_id text); INSERT INTO named VALUES ('x'), ('x')",
    "named twice": "CREATE TABLE named (venus_record_id text, venus_record_id_2 text);"
    "INSERT INTO named VALUES ('x'), ('x')",
    "nearly": "CREATE TABLE nearly (venus_record_id bigint DEFAULT 1); INSERT INTO nearly VALUES (1), (1)",
    "identity": "CREATE TABLE counted (a int GENERATED ALWAYS AS IDENTITY, b int);"
    "INSERT INTO counted (b) VALUES (1), (1)",
    "unlogged": "CREATE UNLOGGED TABLE quick (a int); INSERT INTO quick VALUES (1), (1)",
    "typed": "CREATE TYPE pair AS (a int, b text); CREATE TABLE typed OF pair;"
    "INSERT INTO typed VALUES (1, 'x'), (1, 'x')",
    "parent": "CREATE TABLE parent (a int); CREATE TABLE child (b int) INHERITS (parent);"
    "CREATE TABLE grandchild () INHERITS (child); INSERT INTO parent VALUES (1), (1);"
    "INSERT INTO child VALUES (1, 1), (1, 1); INSERT INTO grandchild VALUES (1, 1), (1, 1)",
    "two parents": "CREATE TABLE left_one (a int); CREATE TABLE right_one (b int);"
    "CREATE TABLE both_ones () INHERITS (left_one, right_one); INSERT INTO both_ones VALUES (1, 1), (1, 1);"
    "INSERT INTO left_one VALUES (1), (1)",
    "parent with a key": "CREATE TABLE parent (a int PRIMARY KEY); CREATE TABLE child () INHERITS (parent);"
    "INSERT INTO child VALUES (1), (1); INSERT INTO parent VALUES (1)",
    "child that has such a column": "CREATE TABLE parent (a int); CREATE TABLE child (venus_record_id text)"
    " INHERITS (parent); INSERT INTO child VALUES (1, 'x'), (1, 'x'); INSERT INTO parent VALUES (1), (1)",
    "list": "CREATE TABLE parted (a int, b text) PARTITION BY LIST (a); CREATE TABLE parted_1 PARTITION OF parted"
    " FOR VALUES IN (1); INSERT INTO parted VALUES (1, 'x'), (1, 'x')",
    "range by two": 'CREATE TABLE parted (a int, "B c" date, d text) PARTITION BY RANGE (a, "B c");'
    "CREATE TABLE parted_1 PARTITION OF parted DEFAULT; INSERT INTO parted "
    "VALUES (1, '2026-01-01', 'x'), (1, '2026-01-01', 'x')",
    "sub-partitioned": "CREATE TABLE parted (a int, b int) PARTITION BY LIST (a); CREATE TABLE parted_1 PARTITION OF"
    " parted FOR VALUES IN (1) PARTITION BY HASH (b); CREATE TABLE parted_1_0 PARTITION OF parted_1 FOR VALUES WITH"
    " (MODULUS 1, REMAINDER 0); INSERT INTO parted VALUES (1, 1), (1, 1)",
    "partition with a key": "CREATE TABLE parted (a int, b int) PARTITION BY LIST (a); CREATE TABLE parted_1 PARTITION"
    " OF parted (PRIMARY KEY (b)) FOR VALUES IN (1); INSERT INTO parted VALUES (1, 1), (1, 2)",
    "row type in a column": "CREATE TABLE inner_one (a int); CREATE TABLE outer_one (id int PRIMARY KEY, v inner_one);"
    "INSERT INTO inner_one VALUES (1), (1); INSERT INTO outer_one VALUES (1, ROW(1))",
    "row type in an array": "CREATE TABLE inner_one (a int);"
    "CREATE TABLE outer_one (id int PRIMARY KEY, v inner_one[]);"
    "INSERT INTO inner_one VALUES (1), (1); INSERT INTO outer_one VALUES (1, ARRAY[ROW(1)::inner_one])",
    "row type of a parent": "CREATE TABLE parent (a int); CREATE TABLE child () INHERITS (parent); CREATE TABLE"
    " outer_one (id int PRIMARY KEY, v parent); INSERT INTO parent VALUES (1), (1); INSERT INTO child VALUES (1), (1)",
    "row type of a child": "CREATE TABLE parent (a int); CREATE TABLE child () INHERITS (parent); CREATE TABLE"
    " outer_one (id int PRIMARY KEY, v child); INSERT INTO parent VALUES (1), (1); INSERT INTO child VALUES (1), (1)",
    "row type of a partitioned table": "CREATE TABLE parted (a int) PARTITION BY LIST (a);"
    "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1);"
    "CREATE TABLE outer_one (id int PRIMARY KEY, v parted); INSERT INTO parted VALUES (1), (1)",
    "unique over NULL": "CREATE TABLE loose (a int UNIQUE); INSERT INTO loose VALUES (NULL), (NULL)",
    "other schema": 'CREATE SCHEMA "Else"; CREATE TABLE "Else".plain (a int); INSERT INTO "Else".plain VALUES (1), (1)',
}

#: Tables that cannot get a key; the check suggests another remedy.
REFUSED = {
    "by expression": (
        "CREATE TABLE parted (a int) PARTITION BY RANGE ((a + 1)); CREATE TABLE parted_1 PARTITION OF parted DEFAULT",
        "partitioned by an expression",
    ),
    "foreign partition": (
        "CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing;"
        "CREATE TABLE parted (a int) PARTITION BY LIST (a);"
        "CREATE FOREIGN TABLE parted_1 PARTITION OF parted FOR VALUES IN (1) SERVER nowhere",
        "is a foreign table",
    ),
    "foreign": (
        "CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing;"
        "CREATE FOREIGN TABLE far (a int) SERVER nowhere",
        "capture it at its own server",
    ),
}


def keyless(source: PostgresSource) -> list[Finding]:
    return [f for f in source.installer.check(["*.*"], []) if f.blocks]


@pytest.mark.parametrize("order", ["as listed", "the other way round"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_suggested_statements_give_the_table_a_key(
    kind: str, order: str, sql: Sql, source: PostgresSource, capture: Start
) -> None:
    sql(KINDS[kind].replace("%%", "%"))
    found = keyless(source)
    assert found
    for finding in found if order == "as listed" else reversed(found):
        assert finding.script
        assert all(statement in finding.remedy for statement in finding.script)
        for statement in finding.script:
            sql(statement)
    assert keyless(source) == []
    names = {s.qualified_name for s in source.dictionary.read_tables(["*.*"], [])}
    assert {f.where for f in found} <= names
    source.installer.install(["*.*"], [])
    follower = Follower(source)
    follower.drain()
    for schema in source.dictionary.read_tables(["*.*"], []):
        if schema.qualified_name in {f.where for f in found}:
            (count,) = sql(f"SELECT count(*) FROM {_only_clause(sql, schema.namespace, schema.name)}")[0]
            assert len(follower.tables[schema.table_id]) == count


def _only_clause(sql: Sql, namespace: str, name: str) -> str:
    query = "SELECT CASE WHEN relkind = 'p' THEN '' ELSE 'ONLY ' END || quote_ident(%s) || '.' || quote_ident(%s)"
    return str(sql(f"{query} FROM pg_class WHERE relname = %s", namespace, name, name)[0][0])


@pytest.mark.parametrize("kind", KINDS)
def test_one_table_at_a_time_with_a_check_in_between_has_the_same_result(
    kind: str, sql: Sql, source: PostgresSource
) -> None:
    sql(KINDS[kind].replace("%%", "%"))
    choose = random.Random(kind).choice
    for _ in range(len(keyless(source))):
        for statement in choose(keyless(source)).script:
            sql(statement)
    assert keyless(source) == []


def test_one_script_gives_every_kind_of_table_its_key(
    sql: Sql, source: PostgresSource, database: str, postgres_server: Server
) -> None:
    for number, kind in enumerate(KINDS):
        sql(f"CREATE SCHEMA s{number}; SET search_path = s{number}; {KINDS[kind].replace('%%', '%')}")
    sql("RESET search_path")
    sql("CREATE TABLE parted (a int) PARTITION BY RANGE ((a + 1))")
    script = build_key_script(source.installer.check(["*.*"], []), transactional=True)
    psql = [str(postgres_server.bin / "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", "-", libpq(database)]
    done = subprocess.run(psql, input=script, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [f.where for f in keyless(source)] == ["public.parted"]
    assert "public.parted: has no usable key" in script


@pytest.mark.parametrize("kind", REFUSED)
def test_a_table_that_can_have_no_key_is_refused_with_the_reason_and_another_remedy(
    kind: str, sql: Sql, source: PostgresSource
) -> None:
    made, why = REFUSED[kind]
    sql(made)
    (finding,) = keyless(source)
    assert finding.script == ()
    assert why in finding.remedy
    assert "exclude" in finding.remedy
    assert "ALTER TABLE" not in finding.remedy
