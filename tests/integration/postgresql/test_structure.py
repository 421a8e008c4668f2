"""The structure of a PostgreSQL table as the dictionary reads it: carried as PostgreSQL DDL, or listed as left out."""

from __future__ import annotations

from contextlib import closing

import psycopg2
import pytest

from tests.integration.postgresql.conftest import Sql, Start
from tests.support.databases.postgres import libpq
from venus.adapters.dialects.contract import Numbering, OtherObject, SchemaChanged
from venus.adapters.dialects.postgresql.connection import PostgresConnection
from venus.adapters.dialects.postgresql.source import PostgresSource
from venus.model import UNFINISHED, Check, Index, TableSchema

pytestmark = pytest.mark.integration

_TABLES = """
CREATE FUNCTION public.own(text) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT true';
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE goods (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, no serial, name text NOT NULL, "Price" numeric(10,2),
    state varchar(10) DEFAULT 'new' || '', at timestamptz DEFAULT now() - interval '1 day', own bool DEFAULT own('x'),
    doc jsonb DEFAULT '{}', twice numeric GENERATED ALWAYS AS ("Price" * 2) STORED, up int REFERENCES parent ON DELETE
    CASCADE ON UPDATE SET NULL, other int, during int4range, sorted text COLLATE "C",
    CONSTRAINT fair CHECK ("Price" >= 0 AND state <> ')'), CHECK (own(name)), UNIQUE (name, state),
    CONSTRAINT later UNIQUE (other) DEFERRABLE, EXCLUDE USING gist (during WITH &&),
    FOREIGN KEY (other) REFERENCES parent MATCH FULL);
CREATE INDEX plain ON goods (state);
CREATE INDEX falling ON goods ("Price" DESC, lower(name));
CREATE UNIQUE INDEX part ON goods (name) WHERE state = 'new';
CREATE INDEX inside ON goods USING gin (doc jsonb_path_ops);
CREATE INDEX covering ON goods (up) INCLUDE (name);
CREATE INDEX owned ON goods ((own(name)));
CREATE SEQUENCE tickets START 100 INCREMENT 5;
SELECT nextval('tickets'), nextval('goods_no_seq');
CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10);
CREATE VIEW cheap AS SELECT * FROM goods WHERE "Price" < 1;
CREATE TYPE mood AS ENUM ('ok');
"""


@pytest.fixture
def goods(database: str) -> tuple[PostgresSource, TableSchema]:
    with closing(psycopg2.connect(libpq(database))) as connection:
        connection.cursor().execute(_TABLES)
        connection.commit()
    source = PostgresSource(database)
    return source, next(t for t in source.dictionary.read_tables(["*"], []) if t.name == "goods")


def test_every_property_of_a_table_besides_its_rows(goods: tuple[PostgresSource, TableSchema]) -> None:
    source, schema = goods
    source.close()

    assert schema.checks == (Check(name="fair", sql="((\"Price\" >= (0)::numeric) AND ((state)::text <> ')'::text))"),)
    assert {i.name: (i.definition, i.unique, i.constraint) for i in schema.indexes} == {
        "plain": ("", False, False),
        "goods_name_state_key": ("", True, True),
        "later": ("", True, True),
        "falling": ('USING btree ("Price" DESC, lower(name))', False, False),
        "part": ("USING btree (name) WHERE ((state)::text = 'new'::text)", True, False),
        "inside": ("USING gin (doc jsonb_path_ops)", False, False),
        "covering": ("USING btree (up) INCLUDE (name)", False, False),
    }
    assert next(i for i in schema.indexes if i.name == "plain") == Index(name="plain", columns=("state",))
    assert [(k.columns, k.on_delete, k.on_update) for k in schema.foreign_keys] == [
        (("other",), "", ""),
        (("up",), "CASCADE", "SET NULL"),
    ]
    defaults = {c.name: c.default_sql for c in schema.columns}
    assert defaults["state"] == "('new'::text || ''::text)"
    assert defaults["at"] == "(now() - '1 day'::interval)"
    assert defaults["doc"] == "'{}'"
    assert defaults["own"] == ""
    needs_function = "it needs function public.own(text), which is not carried"
    assert sorted((o.what, o.name, o.reason) for o in schema.left_out) == [
        ("check constraint", "goods_name_check", needs_function),
        ("collation of column", "sorted", "the target sorts by its own default"),
        ("default of column", "own", "it needs an object of the application that is not carried"),
        (
            "exclusion constraint",
            "goods_during_excl",
            "a replaced row would conflict with itself; add it after the cut-over",
        ),
        ("foreign key", "goods_other_fkey", "it becomes MATCH SIMPLE"),
        ("generated column", "twice", "its values are carried; the target does not compute it for new rows"),
        ("index", "owned", needs_function),
        ("unique constraint", "later", "DEFERRABLE is left out: it becomes an immediate unique index"),
    ]


def test_properties_that_a_domain_loses_are_listed(database: str) -> None:
    with closing(psycopg2.connect(libpq(database))) as connection:
        connection.cursor().execute(
            "CREATE FUNCTION public.own(text) RETURNS text IMMUTABLE LANGUAGE sql AS $$ SELECT 'x' $$;"
            "CREATE DOMAIN word AS text COLLATE \"C\" DEFAULT own('a')"
            " CONSTRAINT whole CHECK (VALUE <> '') CONSTRAINT ours CHECK (own(VALUE) = 'x');"
            'CREATE TABLE item (id int PRIMARY KEY, w word, gone word COLLATE "default" DEFAULT NULL)'
        )
        connection.commit()
    with closing(PostgresSource(database)) as source:
        (schema,) = source.dictionary.read_tables(["item"], [])
    (word,) = schema.types
    assert (word.default_sql, [c.name for c in word.checks]) == ("", ["whole"])
    needs_function = "it needs function public.own(text), which is not carried"
    assert [(o.what, o.name, o.reason) for o in schema.left_out] == [
        ("collation of column", "w", "the target sorts by its own default"),
        ("default of column", "gone", "it needs an object of the application that is not carried"),
        ("check constraint", "public.word.ours", needs_function),
        ("default of domain", "public.word", needs_function),
        ("collation of domain", "public.word", "the target sorts by its own default"),
    ]


def test_constraints_that_the_source_does_not_enforce_are_listed(database: str) -> None:
    with closing(psycopg2.connect(libpq(database))) as connection:
        connection.cursor().execute(
            "CREATE TABLE parent (id int PRIMARY KEY);"
            "CREATE TABLE item (id int PRIMARY KEY, up int CONSTRAINT ref REFERENCES parent NOT ENFORCED,"
            " n int CONSTRAINT small CHECK (n < 5) NO INHERIT NOT ENFORCED,"
            " CONSTRAINT odd CHECK (n <> 6) NO INHERIT)"
        )
        connection.commit()
    with closing(PostgresSource(database)) as source:
        (schema,) = source.dictionary.read_tables(["item"], [])
    assert schema.checks == (Check(name="odd", sql="(n <> 6)"),)
    assert schema.foreign_keys == ()
    why = "the source does not enforce it, so rows may violate it"
    assert [(o.what, o.name, o.reason) for o in schema.left_out] == [
        ("check constraint", "small", why),
        ("foreign key", "ref", why),
    ]


@pytest.mark.parametrize("name", ["a USING b", 'a" ON c USING d', "plain"])
def test_a_definition_is_the_text_after_the_table_name(name: str, database: str) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    with closing(psycopg2.connect(libpq(database))) as connection:
        connection.cursor().execute(
            f"CREATE TABLE {quoted} (id int PRIMARY KEY, {quoted} text) PARTITION BY HASH (id);"
            f"CREATE INDEX i ON {quoted} ({quoted} DESC) WHERE {quoted} <> 'x USING y ('"
        )
        connection.commit()
    with closing(PostgresSource(database)) as source:
        (schema,) = source.dictionary.read_tables(["*"], [])
    column = name if name == "plain" else quoted
    assert [(i.columns, i.definition) for i in schema.indexes] == [
        ((name,), f"USING btree ({column} DESC) WHERE ({column} <> 'x USING y ('::text)")
    ]


def test_partitions_become_one_table_and_that_is_reported(goods: tuple[PostgresSource, TableSchema]) -> None:
    source, _ = goods
    with closing(source):
        (parted,) = source.dictionary.read_tables(["parted"], [])

    assert [o.what for o in parted.left_out] == ["partitions"]


def test_counters_and_other_objects_are_listed(goods: tuple[PostgresSource, TableSchema]) -> None:
    source, _ = goods
    with closing(source):
        source.installer.install(["*"], [])
        found = {n.name: n for n in source.dictionary.read_numberings()}
        others = source.dictionary.read_other_objects()

    assert found["goods_id_seq"].table == "goods"
    assert (found["goods_id_seq"].column, found["goods_id_seq"].always, found["goods_id_seq"].next_value) == (
        "id",
        True,
        1,
    )
    assert (found["goods_no_seq"].column, found["goods_no_seq"].next_value) == ("no", 2)
    assert found["tickets"] == Numbering(
        namespace="public", name="tickets", next_value=105, increment=5, minimum=1, maximum=2**63 - 1
    )
    assert OtherObject(kind="view", name="public.cheap") in others
    assert OtherObject(kind="enum type", name="public.mood") in others
    assert not [o for o in others if "venus" in o.name]


def test_an_index_that_is_not_valid_is_listed_and_makes_no_version(sql: Sql, capture: Start) -> None:
    """REINDEX CONCURRENTLY has such an index for as long as it works."""
    sql("CREATE TABLE item (id int PRIMARY KEY, n int)")
    sql("INSERT INTO item VALUES (1, 1), (2, 1)")
    source = capture().source
    with pytest.raises(psycopg2.errors.UniqueViolation):
        sql("CREATE UNIQUE INDEX CONCURRENTLY half ON item (n)")
    assert source.capture.refresh_schemas() == []
    sql("CREATE INDEX whole ON item (n)")
    (schema,) = source.capture.refresh_schemas()
    assert (schema.version, [i.name for i in schema.indexes]) == (2, ["whole"])
    assert [(o.name, o.reason) for o in schema.left_out] == [("half", UNFINISHED)]
    sql("DROP INDEX half")
    assert source.capture.refresh_schemas() == []


@pytest.mark.parametrize(
    "message",
    [
        "cache lookup failed for attribute 1 of relation 16515",
        "could not open relation with OID 16515",
        "tuple concurrently updated",
    ],
)
def test_an_object_that_is_dropped_while_the_dictionary_is_read_is_read_again(
    sql: Sql, database: str, message: str
) -> None:
    sql(
        f"CREATE FUNCTION public.overtaken() RETURNS void LANGUAGE plpgsql AS"
        f" $$ BEGIN RAISE EXCEPTION '{message}' USING ERRCODE = 'XX000'; END $$"
    )
    with closing(PostgresConnection(database)) as connection, pytest.raises(SchemaChanged, match=message):
        connection.run("SELECT public.overtaken()")
