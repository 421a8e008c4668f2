"""A cut-over compares the target's constraints with the source's, and lists the statements that repair the target."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy

from tests.integration.cutover.test_sources import HEAD, WISH
from tests.integration.under.test_ddl_file import _MARIADB, _SQLITE
from tests.support.brokers.feed import query
from tests.support.databases.mariadb import MariaServer
from tests.support.pipelines.end_to_end import EndToEnd, end_to_end
from tests.unit.dialects.oracle.test_structure import ROWS, SCHEMA
from venus.adapters.cutover.run import CutoverOutcome, CutoverRequest, run_cutover
from venus.adapters.dialects.oracle.dictionary.structure import add_structure
from venus.adapters.targets.postgresql.cutover import guarantees
from venus.adapters.targets.postgresql.database import PostgresDatabase
from venus.adapters.targets.postgresql.schema.ddl import build_sections
from venus.errors import Refused

pytestmark = pytest.mark.integration

_POSTGRES = """
CREATE TYPE mood AS ENUM ('sad', 'merry');
CREATE DOMAIN short AS text DEFAULT 'x' CONSTRAINT few CHECK (length(VALUE) < 9);
CREATE SEQUENCE tickets;
CREATE TABLE parent (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, mood mood NOT NULL DEFAULT 'sad');
CREATE TABLE "Child" (
    no serial, parent bigint NOT NULL REFERENCES parent ON DELETE CASCADE, code short CONSTRAINT coded UNIQUE,
    price numeric(10, 2) DEFAULT 0.50, at timestamptz DEFAULT now(), ticket int DEFAULT nextval('tickets'),
    tags text[] DEFAULT '{}', name varchar(20) COLLATE "C", kind text, CONSTRAINT "Fair" CHECK (price >= 0),
    CONSTRAINT known CHECK (kind IN ('a', 'b')) NOT VALID, CONSTRAINT limited CHECK (name <> '' OR kind IS NULL),
    PRIMARY KEY (no, parent));
CREATE INDEX "By name" ON "Child" (lower(name) DESC, at) WHERE kind <> 'a USING b';
CREATE INDEX by_at ON "Child" (at);
CREATE UNIQUE INDEX one_name ON "Child" (name) WHERE kind IS NOT NULL;
INSERT INTO parent (mood) VALUES ('merry');
INSERT INTO "Child" (parent, code, name) VALUES (1, 'c', 'n');
"""
#: DDL that removes a constraint at the target, and DDL that only makes the target different.
WEAKER = {
    'ALTER TABLE "Child" DROP CONSTRAINT "Fair"': "check Fair is missing",
    'ALTER TABLE "Child" DROP CONSTRAINT limited, ADD CONSTRAINT limited CHECK (name IS NOT NULL)': (
        "check limited differs"
    ),
    'ALTER TABLE "Child" DROP CONSTRAINT known': "check known is missing",
    'ALTER TABLE "Child" DROP CONSTRAINT coded': "unique constraint coded is missing",
    "DROP INDEX one_name": "index one_name is missing",
    "ALTER TABLE parent ALTER mood DROP NOT NULL": "NOT NULL of column mood is missing",
    "ALTER DOMAIN short DROP CONSTRAINT few": 'check few of domain "public"."short" is missing',
}
OTHER = {
    "DROP INDEX by_at": "index by_at is missing",
    'DROP INDEX "By name"; CREATE INDEX "By name" ON "Child" (name)': "index By name differs",
    'ALTER TABLE "Child" ALTER price DROP DEFAULT': "default of column price is missing",
    "ALTER TABLE \"Child\" ALTER tags SET DEFAULT '{a}'": "default of column tags differs",
    'ALTER TABLE "Child" ALTER ticket DROP DEFAULT; DROP SEQUENCE "Child_ticket_seq"': (
        "numbering of column ticket is missing"
    ),
    'ALTER TABLE "Child" ALTER kind SET NOT NULL': "NOT NULL of column kind is not at the source",
    'ALTER TABLE "Child" ADD CONSTRAINT own CHECK (no > 0)': "check own is not at the source",
    'CREATE UNIQUE INDEX own_index ON "Child" (at)': "unique index own_index is not at the source",
}


def rehearse(e2e: EndToEnd) -> CutoverOutcome:
    return run_cutover(e2e.settings, "main", CutoverRequest(rehearse=True, quiet_s=0.0, wait_s=120.0, head=HEAD))


def start_equal(e2e: EndToEnd) -> EndToEnd:
    e2e.install()
    e2e.load()
    e2e.start()
    e2e.wait_until_caught_up()
    return e2e


def schema_differences(found: CutoverOutcome) -> dict[str, tuple[str, bool]]:
    return {d["what"]: (d["statement"], d["blocks"]) for d in found.certificate["schema_differences"]}


def test_differences_are_listed_and_weaker_constraints_forbid_a_cutover(
    tmp_path: Path, second_database: str, database: str
) -> None:
    query(database, _POSTGRES)
    with end_to_end(tmp_path, database, second_database) as e2e:
        start_equal(e2e)
        assert (schema_differences(rehearse(e2e)), rehearse(e2e).blocks) == ({}, ())
        query(second_database, "UPDATE \"Child\" SET kind = 'a'; UPDATE parent SET mood = 'merry'")
        query(database, "UPDATE \"Child\" SET kind = 'a'")
        e2e.wait_until_caught_up()
        for statement in (*WEAKER, *OTHER):
            query(second_database, statement)

        found = rehearse(e2e)
        assert {what: blocks for what, (_, blocks) in schema_differences(found).items()} == (
            dict.fromkeys(WEAKER.values(), True) | dict.fromkeys(OTHER.values(), False)
        )
        assert len(found.blocks) == len(WEAKER)
        with pytest.raises(Refused, match=r'public.Child: check Fair is missing: ALTER TABLE "public"."Child" ADD'):
            run_cutover(e2e.settings, "main", WISH)
        for statement, _ in schema_differences(found).values():
            query(second_database, statement)
        mended = rehearse(e2e)
        assert (schema_differences(mended), mended.blocks) == ({}, ())


def test_an_operator_may_accept_weaker_constraints(tmp_path: Path, second_database: str, database: str) -> None:
    query(database, "CREATE TABLE t (id int PRIMARY KEY, v int CONSTRAINT fair CHECK (v > 0))")
    with end_to_end(tmp_path, database, second_database) as e2e:
        start_equal(e2e)
        query(second_database, "ALTER TABLE t DROP CONSTRAINT fair")
        request = CutoverRequest(quiet_s=0.0, wait_s=120.0, head=HEAD, leave_differences=True)
        (found,) = run_cutover(e2e.settings, "main", request).certificate["schema_differences"]
        assert (found["table"], found["what"], found["blocks"]) == ("public.t", "check fair is missing", True)


def test_a_target_made_from_sqlite_has_no_differences(tmp_path: Path, second_database: str) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as app:
        app.executescript(f"PRAGMA journal_mode = wal; {_SQLITE}")
    with end_to_end(tmp_path, f"sqlite:///{tmp_path / 'shop.db'}", second_database) as e2e:
        assert schema_differences(rehearse(start_equal(e2e))) == {}


def test_a_target_made_from_mariadb_has_no_differences(
    tmp_path: Path, second_database: str, mariadb_server: MariaServer, mariadb_database: str
) -> None:
    with closing(mariadb_server.connect(str(sqlalchemy.make_url(mariadb_database).database), autocommit=True)) as app:
        for text in _MARIADB:
            app.cursor().execute(text)
    with end_to_end(tmp_path, mariadb_database, second_database) as e2e:
        assert schema_differences(rehearse(start_equal(e2e))) == {}


def test_a_table_made_from_oracle_has_no_differences(tmp_path: Path, second_database: str, database: str) -> None:
    with end_to_end(tmp_path, database, second_database) as e2e:
        opened = PostgresDatabase(e2e.settings, "main")
        placed = [opened.place(add_structure(SCHEMA, ROWS))]
        for _, statements in build_sections(placed):
            for statement in statements:
                query(second_database, statement)
        with closing(opened.connect("test")) as session:
            assert guarantees.find_schema_differences(session, placed, {SCHEMA.table_id}) == []
            query(second_database, f"ALTER TABLE {placed[0].sql} DROP CONSTRAINT fair")
            (found,) = guarantees.find_schema_differences(session, placed, {SCHEMA.table_id})
        assert (found.what, found.blocks) == ("check fair is missing", True)
