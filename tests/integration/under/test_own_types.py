"""Enums and domains of a PostgreSQL source at the target: made, compared, followed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg2
import pytest

from tests.support.brokers.feed import query
from tests.support.pipelines.whole_way import WholeWay, difference_keys, whole_way
from venus.adapters.dialects.contract import SchemaChanged
from venus.adapters.dialects.postgresql.source import PostgresSource
from venus.adapters.targets.registry import open_target
from venus.adapters.targets.relational.control import read_progress, request_resync
from venus.adapters.targets.relational.full_sync import full_sync
from venus.cli.load import build_ddl
from venus.cli.prove.follower import Follower
from venus.errors import Refused

pytestmark = pytest.mark.integration

TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN code AS text CHECK (VALUE <> '') NOT NULL;
CREATE DOMAIN strict AS code CHECK (length(VALUE) > 1);
CREATE DOMAIN host AS inet;
"""
TABLES = """
CREATE TABLE felt (mood mood PRIMARY KEY, why code, moods mood[], host host, hosts host[]);
CREATE TABLE also (id int PRIMARY KEY, mood mood DEFAULT 'ok', why strict DEFAULT 'NONE');
INSERT INTO felt VALUES ('ok', 'A"\\b', '{sad,NULL,ok}', '::1/64', '{10.0.0.0/8,NULL}'), ('sad', 'Ü', NULL, NULL, NULL);
INSERT INTO also VALUES (1, 'sad', 'AB'), (2, NULL, DEFAULT);
"""
LABELS = "SELECT array_agg(enumlabel::text ORDER BY enumsortorder) FROM pg_enum JOIN pg_type t ON t.oid = enumtypid"


@pytest.fixture
def way(tmp_path: Path, database: str, second_database: str) -> Iterator[WholeWay]:
    query(database, TYPES + TABLES)
    with whole_way(tmp_path, database, second_database) as made:
        made.install()
        yield made


def test_they_are_made_before_the_tables_and_every_value_is_the_same(way: WholeWay) -> None:
    way.load()
    way.start()
    query(way.source, "INSERT INTO also VALUES (3, 'ok', 'XY')")
    query(way.source, "UPDATE felt SET moods = '{ok}' WHERE mood = 'sad'; DELETE FROM felt WHERE mood = 'ok'")
    way.caught_up()
    assert difference_keys(way.verify()) == set()
    assert query(way.target, "SELECT moods::text FROM felt") == [("{ok}",)]
    types = "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = '{}'::regclass"
    assert dict(query(way.target, f"{types.format('felt')} AND attnum > 0")) == {
        "mood": "mood",
        "why": "code",
        "moods": "mood[]",
        "host": "host",
        "hosts": "host[]",
    }
    for wrong in ("INSERT INTO also VALUES (9, 'ok', 'X')", "INSERT INTO felt (mood) VALUES ('ok')"):
        with pytest.raises(psycopg2.IntegrityError):
            query(way.target, wrong)


def test_a_new_label_arrives_before_the_rows_that_have_it(way: WholeWay) -> None:
    way.load()
    way.start()
    query(way.source, "ALTER TYPE mood ADD VALUE 'meh' BEFORE 'ok'")
    query(way.source, "ALTER TYPE mood ADD VALUE 'glad'")
    query(way.source, "INSERT INTO felt VALUES ('meh', 'A'), ('glad', 'B'); UPDATE also SET mood = 'glad'")
    way.caught_up()
    assert query(way.target, LABELS) == [(["sad", "meh", "ok", "glad"],)]
    assert difference_keys(way.verify()) == set()


def test_no_row_is_read_in_a_version_that_knows_its_label_not(way: WholeWay) -> None:
    with closing(PostgresSource(way.source)) as source:
        follower = Follower(source)
        follower.drain()
        query(way.source, "ALTER TYPE mood ADD VALUE 'glad'")
        query(way.source, "INSERT INTO felt VALUES ('glad', 'B')")
        with pytest.raises(SchemaChanged):
            source.capture.open_cut([])
        follower.drain()
        assert follower.schemas[follower.table_id("felt"), 2].types[-1].labels == ("sad", "ok", "glad")


def test_a_column_of_a_new_type_brings_its_type(way: WholeWay) -> None:
    way.load()
    way.start()
    query(way.source, "CREATE TYPE size AS ENUM ('s', 'm'); ALTER TABLE also ADD size size DEFAULT 'm', ADD h host[]")
    query(way.source, "INSERT INTO also (id, size) VALUES (7, 's')")
    way.caught_up()
    way.until(lambda: difference_keys(way.verify()) == set(), "the old rows to have their default")
    assert query(way.target, "SELECT DISTINCT size::text FROM also ORDER BY 1") == [("m",), ("s",)]


def find_halted(way: WholeWay) -> dict[str, str]:
    return {t.source_name: t.reason for t in read_progress(way.settings, "main").tables if t.state == "HALTED"}


def read_again(way: WholeWay) -> bool:
    return query(way.source, "SELECT count(*) FROM venus.captured_table WHERE fill_done = 0") == [(0,)]


def in_one_transaction(url: str, *statements: str) -> None:
    query(url, "; ".join(("BEGIN", *statements, "COMMIT")))


def test_a_renamed_label_is_renamed_at_the_target_too(way: WholeWay) -> None:
    way.load()
    way.start()
    query(way.source, "INSERT INTO also VALUES (3, 'ok', 'XY')")
    query(way.source, "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'")
    query(way.source, "INSERT INTO also VALUES (4, 'fine', 'XY')")
    way.until(
        lambda: find_halted(way) or (read_again(way) and difference_keys(way.verify()) == set()),
        "both to be equal again",
    )
    assert find_halted(way) == {}
    assert query(way.target, LABELS) == [(["sad", "fine"],)]
    assert query(way.target, "SELECT mood::text FROM felt ORDER BY felt.mood") == [("sad",), ("fine",)]


def test_a_label_is_renamed_and_another_added_at_once(way: WholeWay) -> None:
    way.load()
    in_one_transaction(
        way.source, "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'", "ALTER TYPE mood ADD VALUE 'meh' BEFORE 'fine'"
    )
    query(way.source, "INSERT INTO also VALUES (4, 'meh', 'XY')")
    way.start()
    way.until(
        lambda: find_halted(way) or (read_again(way) and difference_keys(way.verify()) == set()),
        "both to be equal again",
    )
    assert find_halted(way) == {}
    assert [label for (labels,) in query(way.target, LABELS) for label in labels if label != "ok"] == [
        "sad",
        "meh",
        "fine",
    ]


def test_the_statements_that_a_reason_names_bring_the_tables_back(way: WholeWay) -> None:
    way.load()
    way.start()
    in_one_transaction(
        way.source,
        "ALTER TYPE mood RENAME VALUE 'ok' TO 'x'",
        "ALTER TYPE mood RENAME VALUE 'sad' TO 'ok'",
        "ALTER TYPE mood RENAME VALUE 'x' TO 'sad'",
    )
    way.until(lambda: sorted(find_halted(way)) == ["public.also", "public.felt"], "both tables to halt")
    said = "the labels of public.mood are (sad, ok) here and (ok, sad) at the source: ALTER TYPE"
    assert all(said in reason for reason in find_halted(way).values())
    way.until(lambda: read_again(way) and not way.log_rows(), "the source to be read again")
    for text in (
        next(iter(find_halted(way).values())).partition("at the source: ")[2].partition("; then")[0].split("; ")
    ):
        query(way.target, text)
    commands = (re.findall(r"`venus resync (\S+) --target (\S+)`", reason) for reason in find_halted(way).values())
    for name, target in [one for each in commands for one in each]:
        request_resync(way.settings, target, name)
    way.until(lambda: not find_halted(way) and difference_keys(way.verify()) == set(), "both to be equal again")
    assert query(way.target, LABELS) == [(["ok", "sad"],)]


def test_another_type_of_that_name_is_refused_with_both(way: WholeWay) -> None:
    query(way.target, "CREATE TYPE mood AS ENUM ('ok', 'sad'); CREATE DOMAIN code AS text NOT NULL")
    with pytest.raises(Refused) as refused:
        way.load()
    said = str(refused.value)
    assert "type public.mood has the labels (ok, sad), the source (sad, ok)" in said
    assert "type public.code is domain over text NOT NULL here, domain over text CHECK ((VALUE <> ''::text))" in said


def test_the_same_types_or_a_wider_enum_are_taken(way: WholeWay) -> None:
    query(way.target, TYPES.replace("'ok'", "'ok', 'more'"))
    way.load()
    assert query(way.target, "SELECT count(*) FROM felt") == [(2,)]


def test_a_missing_label_is_named_with_the_statement_that_adds_it(way: WholeWay) -> None:
    query(way.target, "CREATE TYPE mood AS ENUM ('ok')")
    with pytest.raises(Refused, match=r"""ALTER TYPE "public"."mood" ADD VALUE IF NOT EXISTS 'sad' BEFORE 'ok'"""):
        way.load()


def test_a_second_load_adds_the_labels_that_came_meanwhile(way: WholeWay) -> None:
    way.load()
    query(way.source, "ALTER TYPE mood ADD VALUE 'glad'")
    query(way.source, "INSERT INTO felt VALUES ('glad', 'B')")
    way.start("capture")
    way.until(lambda: way.log_rows() == 0, "the change to be captured")
    way.stop("capture")
    way.at_target("DELETE FROM venus.applied", "DELETE FROM venus.load_job")  # a load that begins again
    full_sync(way.settings, "main")
    assert query(way.target, "SELECT count(*) FROM felt") == [(3,)]


@contextmanager
def into_one_schema(folder: Path, source: str, target: str) -> Iterator[WholeWay]:
    """Install a pipeline whose target puts everything into one schema."""
    with whole_way(folder, source, target) as made:
        options = made.settings.targets["main"].model_copy(update={"schema_": "copy"})
        made.settings = made.settings.model_copy(update={"targets": {"main": options}})
        made.install()
        yield made


def test_they_go_into_the_one_schema_of_a_target(tmp_path: Path, database: str, second_database: str) -> None:
    query(database, TYPES + TABLES)
    query(database, "ALTER TABLE also ADD CHECK (mood <> 'sad' OR mood IS NULL OR id = 1)")
    with into_one_schema(tmp_path, database, second_database) as way:
        way.load()
        assert query(
            second_database, "SELECT typnamespace::regnamespace::text FROM pg_type WHERE typname = 'mood'"
        ) == [("copy",)]
        checks = "SELECT count(*) FROM pg_constraint WHERE contype = 'c' AND conrelid = 'copy.also'::regclass"
        assert query(second_database, checks) == [(1,)]
        assert difference_keys(way.verify()) == set()
        assert 'CREATE TYPE "copy"."mood" AS ENUM' in build_ddl(way.settings, open_target(way.settings, "main")).text


def test_two_types_that_would_become_one_are_refused(tmp_path: Path, database: str, second_database: str) -> None:
    query(database, TYPES + TABLES)
    query(database, "CREATE SCHEMA b; CREATE TYPE b.also AS ENUM ('x'); ALTER TABLE felt ADD other b.also")
    refused = pytest.raises(Refused, match=r"type b.also and public.also would both become copy.also")
    with into_one_schema(tmp_path, database, second_database) as way, refused:
        way.load()


def test_types_that_are_not_made_are_reported(tmp_path: Path, database: str, second_database: str) -> None:
    query(database, TYPES + TABLES)
    query(database, "CREATE TYPE pair AS (a int, m mood); ALTER TABLE felt ADD pairs pair[], ADD at point")
    with whole_way(tmp_path, database, second_database) as way:
        head = build_ddl(way.settings, open_target(way.settings, "main")).text.partition("-- Schemas")[0]
    notes = [line for line in head.splitlines() if "type of column" in line]
    assert len(notes) == 1
    assert "public.felt: type of column pairs public.pair[]: neither an enum nor a domain" in notes[0]


def test_a_table_that_is_there_may_have_types_that_are_made_by_hand(
    tmp_path: Path, database: str, second_database: str
) -> None:
    types = "CREATE EXTENSION vector; CREATE TYPE pair AS (a int, b text); CREATE TYPE span AS RANGE (subtype = inet)"
    table = 'CREATE TABLE found (id int PRIMARY KEY, at vector(3), pair pair, pairs pair[], "Span" span, spans span[])'
    query(database, f"{types}; {table}")
    query(database, "INSERT INTO found VALUES (1, '[1,2,3]', '(1,x)', '{\"(2,y)\"}', '[10.0.0.1,10.0.0.9)', NULL)")
    query(second_database, f"{types}; {table}")
    with whole_way(tmp_path, database, second_database) as way:
        way.install()
        way.load()
        assert query(way.target, "SELECT f::text FROM found f") == query(way.source, "SELECT f::text FROM found f")


def test_a_table_that_is_there_with_a_type_of_another_schema_is_refused(
    tmp_path: Path, database: str, second_database: str
) -> None:
    query(database, "CREATE TYPE pair AS (a int, b text); CREATE TABLE found (id int PRIMARY KEY, pair pair)")
    here = "CREATE SCHEMA other; CREATE TYPE other.pair AS (a int, b text); CREATE TYPE pair AS (a int, b text)"
    query(second_database, f"{here}; CREATE TABLE found (id int PRIMARY KEY, pair other.pair)")
    with whole_way(tmp_path, database, second_database) as way:
        way.install()
        with pytest.raises(Refused, match=r"found\.pair is other\.pair, the source needs public\.pair"):
            way.load()
