"""Enums and domains of a PostgreSQL source are created, compared and followed at the target."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg2
import pytest

from tests.support.brokers.feed import query
from tests.support.pipelines.end_to_end import EndToEnd, difference_keys, end_to_end
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
def e2e(tmp_path: Path, database: str, second_database: str) -> Iterator[EndToEnd]:
    query(database, TYPES + TABLES)
    with end_to_end(tmp_path, database, second_database) as made:
        made.install()
        yield made


def test_types_are_created_before_the_tables_and_every_value_is_the_same(e2e: EndToEnd) -> None:
    e2e.load()
    e2e.start()
    query(e2e.source, "INSERT INTO also VALUES (3, 'ok', 'XY')")
    query(e2e.source, "UPDATE felt SET moods = '{ok}' WHERE mood = 'sad'; DELETE FROM felt WHERE mood = 'ok'")
    e2e.wait_until_caught_up()
    assert difference_keys(e2e.verify()) == set()
    assert query(e2e.target, "SELECT moods::text FROM felt") == [("{ok}",)]
    types = "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = '{}'::regclass"
    assert dict(query(e2e.target, f"{types.format('felt')} AND attnum > 0")) == {
        "mood": "mood",
        "why": "code",
        "moods": "mood[]",
        "host": "host",
        "hosts": "host[]",
    }
    for wrong in ("INSERT INTO also VALUES (9, 'ok', 'X')", "INSERT INTO felt (mood) VALUES ('ok')"):
        with pytest.raises(psycopg2.IntegrityError):
            query(e2e.target, wrong)


def test_a_new_label_arrives_before_the_rows_that_have_it(e2e: EndToEnd) -> None:
    e2e.load()
    e2e.start()
    query(e2e.source, "ALTER TYPE mood ADD VALUE 'meh' BEFORE 'ok'")
    query(e2e.source, "ALTER TYPE mood ADD VALUE 'glad'")
    query(e2e.source, "INSERT INTO felt VALUES ('meh', 'A'), ('glad', 'B'); UPDATE also SET mood = 'glad'")
    e2e.wait_until_caught_up()
    assert query(e2e.target, LABELS) == [(["sad", "meh", "ok", "glad"],)]
    assert difference_keys(e2e.verify()) == set()


def test_no_row_is_read_with_a_version_that_lacks_its_label(e2e: EndToEnd) -> None:
    with closing(PostgresSource(e2e.source)) as source:
        follower = Follower(source)
        follower.drain()
        query(e2e.source, "ALTER TYPE mood ADD VALUE 'glad'")
        query(e2e.source, "INSERT INTO felt VALUES ('glad', 'B')")
        with pytest.raises(SchemaChanged):
            source.capture.open_cut([])
        follower.drain()
        assert follower.schemas[follower.table_id("felt"), 2].types[-1].labels == ("sad", "ok", "glad")


def test_a_column_of_a_new_type_creates_its_type(e2e: EndToEnd) -> None:
    e2e.load()
    e2e.start()
    query(e2e.source, "CREATE TYPE size AS ENUM ('s', 'm'); ALTER TABLE also ADD size size DEFAULT 'm', ADD h host[]")
    query(e2e.source, "INSERT INTO also (id, size) VALUES (7, 's')")
    e2e.wait_until_caught_up()
    e2e.until(lambda: difference_keys(e2e.verify()) == set(), "the old rows to have their default")
    assert query(e2e.target, "SELECT DISTINCT size::text FROM also ORDER BY 1") == [("m",), ("s",)]


def find_halted(e2e: EndToEnd) -> dict[str, str]:
    return {t.source_name: t.reason for t in read_progress(e2e.settings, "main").tables if t.state == "HALTED"}


def read_again(e2e: EndToEnd) -> bool:
    return query(e2e.source, "SELECT count(*) FROM venus.captured_table WHERE fill_done = 0") == [(0,)]


def in_one_transaction(url: str, *statements: str) -> None:
    query(url, "; ".join(("BEGIN", *statements, "COMMIT")))


def test_a_renamed_label_is_renamed_at_the_target_too(e2e: EndToEnd) -> None:
    e2e.load()
    e2e.start()
    query(e2e.source, "INSERT INTO also VALUES (3, 'ok', 'XY')")
    query(e2e.source, "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'")
    query(e2e.source, "INSERT INTO also VALUES (4, 'fine', 'XY')")
    e2e.until(
        lambda: find_halted(e2e) or (read_again(e2e) and difference_keys(e2e.verify()) == set()),
        "both to be equal again",
    )
    assert find_halted(e2e) == {}
    assert query(e2e.target, LABELS) == [(["sad", "fine"],)]
    assert query(e2e.target, "SELECT mood::text FROM felt ORDER BY felt.mood") == [("sad",), ("fine",)]


def test_a_label_is_renamed_and_another_added_at_once(e2e: EndToEnd) -> None:
    e2e.load()
    in_one_transaction(
        e2e.source, "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'", "ALTER TYPE mood ADD VALUE 'meh' BEFORE 'fine'"
    )
    query(e2e.source, "INSERT INTO also VALUES (4, 'meh', 'XY')")
    e2e.start()
    e2e.until(
        lambda: find_halted(e2e) or (read_again(e2e) and difference_keys(e2e.verify()) == set()),
        "both to be equal again",
    )
    assert find_halted(e2e) == {}
    assert [label for (labels,) in query(e2e.target, LABELS) for label in labels if label != "ok"] == [
        "sad",
        "meh",
        "fine",
    ]


def test_the_statements_in_a_reason_repair_the_tables(e2e: EndToEnd) -> None:
    e2e.load()
    e2e.start()
    in_one_transaction(
        e2e.source,
        "ALTER TYPE mood RENAME VALUE 'ok' TO 'x'",
        "ALTER TYPE mood RENAME VALUE 'sad' TO 'ok'",
        "ALTER TYPE mood RENAME VALUE 'x' TO 'sad'",
    )
    e2e.until(lambda: sorted(find_halted(e2e)) == ["public.also", "public.felt"], "both tables to halt")
    said = "the labels of public.mood are (sad, ok) here and (ok, sad) at the source: ALTER TYPE"
    assert all(said in reason for reason in find_halted(e2e).values())
    e2e.until(lambda: read_again(e2e) and not e2e.log_rows(), "the source to be read again")
    for text in (
        next(iter(find_halted(e2e).values())).partition("at the source: ")[2].partition("; then")[0].split("; ")
    ):
        query(e2e.target, text)
    commands = (re.findall(r"`venus resync (\S+) --target (\S+)`", reason) for reason in find_halted(e2e).values())
    for name, target in [one for each in commands for one in each]:
        request_resync(e2e.settings, target, name)
    e2e.until(lambda: not find_halted(e2e) and difference_keys(e2e.verify()) == set(), "both to be equal again")
    assert query(e2e.target, LABELS) == [(["ok", "sad"],)]


def test_another_type_of_the_same_name_is_refused_with_both_definitions(e2e: EndToEnd) -> None:
    query(e2e.target, "CREATE TYPE mood AS ENUM ('ok', 'sad'); CREATE DOMAIN code AS text NOT NULL")
    with pytest.raises(Refused) as refused:
        e2e.load()
    said = str(refused.value)
    assert "type public.mood has the labels (ok, sad), the source (sad, ok)" in said
    assert "type public.code is domain over text NOT NULL here, domain over text CHECK ((VALUE <> ''::text))" in said


def test_identical_types_or_a_wider_enum_are_accepted(e2e: EndToEnd) -> None:
    query(e2e.target, TYPES.replace("'ok'", "'ok', 'more'"))
    e2e.load()
    assert query(e2e.target, "SELECT count(*) FROM felt") == [(2,)]


def test_a_missing_label_is_named_with_the_statement_that_adds_it(e2e: EndToEnd) -> None:
    query(e2e.target, "CREATE TYPE mood AS ENUM ('ok')")
    with pytest.raises(Refused, match=r"""ALTER TYPE "public"."mood" ADD VALUE IF NOT EXISTS 'sad' BEFORE 'ok'"""):
        e2e.load()


def test_a_second_load_adds_the_labels_that_appeared_meanwhile(e2e: EndToEnd) -> None:
    e2e.load()
    query(e2e.source, "ALTER TYPE mood ADD VALUE 'glad'")
    query(e2e.source, "INSERT INTO felt VALUES ('glad', 'B')")
    e2e.start("capture")
    e2e.until(lambda: e2e.log_rows() == 0, "the change to be captured")
    e2e.stop("capture")
    e2e.at_target("DELETE FROM venus.applied", "DELETE FROM venus.load_job")  # a load that starts over
    full_sync(e2e.settings, "main")
    assert query(e2e.target, "SELECT count(*) FROM felt") == [(3,)]


@contextmanager
def into_one_schema(folder: Path, source: str, target: str) -> Iterator[EndToEnd]:
    """Install a pipeline whose target puts all tables into one schema."""
    with end_to_end(folder, source, target) as made:
        options = made.settings.targets["main"].model_copy(update={"schema_": "copy"})
        made.settings = made.settings.model_copy(update={"targets": {"main": options}})
        made.install()
        yield made


def test_types_are_created_in_the_one_schema_of_a_target(tmp_path: Path, database: str, second_database: str) -> None:
    query(database, TYPES + TABLES)
    query(database, "ALTER TABLE also ADD CHECK (mood <> 'sad' OR mood IS NULL OR id = 1)")
    with into_one_schema(tmp_path, database, second_database) as e2e:
        e2e.load()
        assert query(
            second_database, "SELECT typnamespace::regnamespace::text FROM pg_type WHERE typname = 'mood'"
        ) == [("copy",)]
        checks = "SELECT count(*) FROM pg_constraint WHERE contype = 'c' AND conrelid = 'copy.also'::regclass"
        assert query(second_database, checks) == [(1,)]
        assert difference_keys(e2e.verify()) == set()
        assert 'CREATE TYPE "copy"."mood" AS ENUM' in build_ddl(e2e.settings, open_target(e2e.settings, "main")).text


def test_two_types_with_the_same_name_in_one_schema_are_refused(
    tmp_path: Path, database: str, second_database: str
) -> None:
    query(database, TYPES + TABLES)
    query(database, "CREATE SCHEMA b; CREATE TYPE b.also AS ENUM ('x'); ALTER TABLE felt ADD other b.also")
    refused = pytest.raises(Refused, match=r"type b.also and public.also would both become copy.also")
    with into_one_schema(tmp_path, database, second_database) as e2e, refused:
        e2e.load()


def test_types_that_are_not_created_are_reported(tmp_path: Path, database: str, second_database: str) -> None:
    query(database, TYPES + TABLES)
    query(database, "CREATE TYPE pair AS (a int, m mood); ALTER TABLE felt ADD pairs pair[], ADD at point")
    with end_to_end(tmp_path, database, second_database) as e2e:
        head = build_ddl(e2e.settings, open_target(e2e.settings, "main")).text.partition("-- Schemas")[0]
    notes = [line for line in head.splitlines() if "type of column" in line]
    assert len(notes) == 1
    assert "public.felt: type of column pairs public.pair[]: neither an enum nor a domain" in notes[0]


def test_an_existing_table_may_have_types_that_were_created_by_hand(
    tmp_path: Path, database: str, second_database: str
) -> None:
    types = "CREATE EXTENSION vector; CREATE TYPE pair AS (a int, b text); CREATE TYPE span AS RANGE (subtype = inet)"
    table = 'CREATE TABLE found (id int PRIMARY KEY, at vector(3), pair pair, pairs pair[], "Span" span, spans span[])'
    query(database, f"{types}; {table}")
    query(database, "INSERT INTO found VALUES (1, '[1,2,3]', '(1,x)', '{\"(2,y)\"}', '[10.0.0.1,10.0.0.9)', NULL)")
    query(second_database, f"{types}; {table}")
    with end_to_end(tmp_path, database, second_database) as e2e:
        e2e.install()
        e2e.load()
        assert query(e2e.target, "SELECT f::text FROM found f") == query(e2e.source, "SELECT f::text FROM found f")


def test_an_existing_table_with_a_type_of_another_schema_is_refused(
    tmp_path: Path, database: str, second_database: str
) -> None:
    query(database, "CREATE TYPE pair AS (a int, b text); CREATE TABLE found (id int PRIMARY KEY, pair pair)")
    here = "CREATE SCHEMA other; CREATE TYPE other.pair AS (a int, b text); CREATE TYPE pair AS (a int, b text)"
    query(second_database, f"{here}; CREATE TABLE found (id int PRIMARY KEY, pair other.pair)")
    with end_to_end(tmp_path, database, second_database) as e2e:
        e2e.install()
        with pytest.raises(Refused, match=r"found\.pair is other\.pair, the source needs public\.pair"):
            e2e.load()
