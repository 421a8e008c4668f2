"""From the installation to the removal with the Oracle dialect, by the real commands (scenarios 1 to 6, 41).

The database is the stand-in (tests/support/oracle/standin.py), not an Oracle: everything but the driver is as in
production, but this proves nothing about the behaviour of a real Oracle.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from tests.support.brokers.feed import query
from tests.support.databases.mariadb import MariaServer, catalogue
from tests.support.databases.postgres import Server
from tests.support.oracle.sqlplus import read
from tests.support.oracle.standin import SCHEMA, StandIn
from tests.support.pipelines.pipeline import Pipeline
from tests.support.pipelines.story_places import standin_pipeline
from venus.adapters.dialects.oracle.proving import quote_names
from venus.adapters.dialects.oracle.torture import STANDIN

pytestmark = [pytest.mark.integration, pytest.mark.quick, pytest.mark.timeout(600)]

QUIET = ("--quiet", "0.5", "--wait", "120")
TABLES = (
    'CREATE TABLE "STUDENT" ("ID" NUMBER(9) PRIMARY KEY, "NAME" VARCHAR2(40) NOT NULL, "ACTIVE" NUMBER(1),'
    ' "PHOTO" BLOB, "ESSAY" CLOB)',
    'CREATE TABLE "ENROLL" ("STUDENT_ID" NUMBER(9) NOT NULL, "COURSE" VARCHAR2(20) NOT NULL, "GRADE" NUMBER(5,2),'
    ' "SEEN" DATE, PRIMARY KEY ("STUDENT_ID", "COURSE"), FOREIGN KEY ("STUDENT_ID") REFERENCES "STUDENT" ("ID"))',
    'CREATE TABLE "TOKEN" ("ID" RAW(16) PRIMARY KEY, "V" VARCHAR2(10))',
    "INSERT INTO \"TOKEN\" VALUES (X'000102030405060708090a0b0c0d0e0f', 'old')",
    """INSERT INTO "STUDENT" VALUES (1, 'Ann', 1, x'00ff', NULL), (2, 'Bob', 0, NULL, REPEAT('größe 🙂', 100000))""",
    """INSERT INTO "ENROLL" VALUES (1, 'Math', 9.5, '2026-11-20 08:30:00'), (2, 'Math', NULL, NULL)""",
    # rows of an Oracle's dictionary about a sequence, and about a column that is numbered by it
    "INSERT INTO DICTIONARY.ALL_SEQUENCES VALUES ('APP', 'STUDENT_SEQ', 120, 1, 1, 999999999, 'N'),"
    " ('APP', 'TICKETS', 105, 5, 1, 999999999, 'N')",
    "INSERT INTO DICTIONARY.ALL_TAB_IDENTITY_COLS VALUES ('APP', 'STUDENT', 'ID', 'BY DEFAULT', 'STUDENT_SEQ')",
)


def insert_torture(cursor: Any, first: int) -> None:
    """Insert a row for each of the hardest values of every type."""
    every = [(name.upper(), sql) for name, column in STANDIN.items() for sql, _ in column.values]
    for number, (name, sql) in enumerate(every, first):
        cursor.execute(quote_names(f'INSERT INTO "TORTURE" ("ID", "{name}") VALUES ({number}, {sql})'))


@pytest.fixture
def application(mariadb_oracle_server: MariaServer) -> Iterator[Any]:
    """Make a school, and open an autocommit session."""
    StandIn(mariadb_oracle_server).prepare()
    with closing(mariadb_oracle_server.connect(SCHEMA, autocommit=True)) as connection:
        cursor = connection.cursor()
        for statement in TABLES:
            cursor.execute(statement)
        columns = ", ".join(f'"{name.upper()}" {column.type}' for name, column in STANDIN.items())
        cursor.execute(f'CREATE TABLE "TORTURE" ("ID" NUMBER(9) NOT NULL PRIMARY KEY, {columns})')
        insert_torture(cursor, 1)
        yield cursor


@pytest.fixture
def pipeline(
    application: Any,
    mariadb_oracle_server: MariaServer,
    postgres_server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Pipeline]:
    with standin_pipeline(tmp_path, mariadb_oracle_server, postgres_server, monkeypatch) as made:
        yield made


def test_an_unknown_type_is_refused_in_one_line(pipeline: Pipeline, mariadb_oracle_server: MariaServer) -> None:
    untouched = catalogue(mariadb_oracle_server, SCHEMA)
    for asked, said in (
        ("ACTIVE=boolean", "venus: --type-map ACTIVE: write TABLE.COLUMN, or a type such as VARCHAR2 or RAW(16)"),
        ("STUDENT.ACTIVE=bool", "venus: column APP.STUDENT.ACTIVE: NUMBER(1) cannot be carried as 'bool'"),
    ):
        refused = pipeline.venus("install-triggers", "--type-map", asked, code=2).err
        assert refused.splitlines()[0] == said
    assert catalogue(mariadb_oracle_server, SCHEMA) == untouched


def test_an_operator_completes_every_step_up_to_the_cut_over(
    pipeline: Pipeline, application: Any, mariadb_oracle_server: MariaServer
) -> None:
    untouched = catalogue(mariadb_oracle_server, SCHEMA)
    asked = ("--type-map", "STUDENT.ACTIVE=boolean", "--type-map", "RAW(16)=uuid")
    checked = pipeline.ask("check", *asked)
    assert checked["blocks"] == 0
    assert "column ID fits uuid: all 1 rows were read" in {f["message"] for f in checked["findings"]}
    printed = pipeline.venus("install-triggers", "--dry-run", *asked).out
    assert "travels as boolean" in printed
    assert len(read(printed).statements) > 30
    assert "have not been run" in pipeline.venus("install-triggers", "--adopt", code=3).err
    assert "cannot be combined" in pipeline.venus("install-triggers", "--adopt", "--dry-run", code=2).err
    assert catalogue(mariadb_oracle_server, SCHEMA) == untouched
    created = pipeline.ask("install-triggers", *asked)["created"]
    assert {"table": "APP.STUDENT", "what": "column ACTIVE travels as boolean"} in created
    assert pipeline.ask("install-triggers", *asked)["created"] == []

    pipeline.start_broker()
    pipeline.ask("migrate", "--target", "main")
    pipeline.start("sync", "sync", "--target", "main")
    application.execute("""INSERT INTO "STUDENT" VALUES (3, 'Carl', 1, REPEAT('x', 600000), NULL)""")
    application.execute("""UPDATE "ENROLL" SET "GRADE" = 10 WHERE "STUDENT_ID" = 2""")
    application.execute("""INSERT INTO "ENROLL" VALUES (3, 'Art', 8, '2026-11-21 09:00:00')""")
    insert_torture(application, 1001)
    application.execute("INSERT INTO \"TOKEN\" VALUES (X'ff0102030405060708090a0b0c0d0e0f', 'new')")
    application.execute('DELETE FROM "TOKEN" WHERE "V" = \'old\'')
    pipeline.wait_until_caught_up("main")
    found = query(pipeline.targets["main"], "SELECT id::text, pg_typeof(id)::text FROM app.token")
    assert found == [("ff010203-0405-0607-0809-0a0b0c0d0e0f", "uuid")]
    assert pipeline.ask("verify")["verdict"] == "same"
    target = pipeline.targets["main"]
    assert query(target, "SELECT id, active, length(photo), length(essay) FROM app.student ORDER BY id") == [
        (1, True, 2, None),
        (2, False, None, 700_000),
        (3, True, 600_000, None),
    ]
    cut_over(pipeline, application, target)
    assert pipeline.stop("sync") == 0
    pipeline.ask("uninstall-triggers")
    assert catalogue(mariadb_oracle_server, SCHEMA) == untouched


def cut_over(pipeline: Pipeline, application: Any, target: str) -> None:
    """List the obstacles, rehearse, cut over, and write as the application does afterwards."""
    query(target, "UPDATE app.enroll SET grade = 1 WHERE student_id = 2")
    said = pipeline.venus("cutover", "--target", "main", *QUIET, code=3).err
    assert "APP.ENROLL is not the same everywhere" in said
    query(target, "UPDATE app.enroll SET grade = 10 WHERE student_id = 2")

    rehearsal = pipeline.ask("cutover", "--target", "main", "--rehearse", *QUIET)
    assert (rehearsal["blocks"], rehearsal["certificate"]["equal"]) == ([], True)
    found = pipeline.ask("cutover", "--target", "main", *QUIET)["certificate"]
    assert [t["hash"] for t in found["tables"]] == [t["hash"] for t in rehearsal["certificate"]["tables"]]
    assert json.loads((pipeline.folder / "cutover-main.json").read_text()) == found
    assert {c["next"] for c in found["counters"]} == {120, 105}
    assert [f["orphans"] for f in found["foreign_keys"]] == [0]

    assert query(target, "INSERT INTO app.student (name) VALUES ('new') RETURNING id") == [(120,)]
    assert query(target, "SELECT nextval('app.tickets'), nextval('app.tickets')") == [(105, 110)]
    with pytest.raises(psycopg2.errors.ForeignKeyViolation):
        query(target, "INSERT INTO app.enroll VALUES (9, 'Math')")
    application.execute("""DELETE FROM "ENROLL" WHERE "STUDENT_ID" = 3""")
    pipeline.until(lambda: any("1 change of" in p for p in pipeline.status()["problems"]), "the late write to be seen")
    assert query(target, "SELECT count(*) FROM app.enroll") == [(3,)]
