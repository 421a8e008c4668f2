"""The commands of docs/tutorial/first-week.md in order and unchanged, on the stand-in for Oracle.

`sqlplus` is a program of the tests that follows the manual (tests/support/oracle/sqlplus.py); all other commands are
real. Addresses come from the environment; `&` and `>` mean the same as in a shell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.feed import query
from tests.support.databases.mariadb import MariaServer, catalogue
from tests.support.databases.postgres import Server
from tests.support.oracle.sqlplus import read
from tests.support.oracle.standin import SCHEMA, StandIn
from tests.support.pipelines.pipeline import Pipeline
from tests.support.pipelines.story_places import standin_pipeline

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]

DOCUMENT = (Path(__file__).parents[2] / "docs" / "tutorial" / "first-week.md").read_text()
TABLES = (
    'CREATE TABLE "STUDENT" ("ID" NUMBER(9) PRIMARY KEY, "NAME" VARCHAR2(40) NOT NULL, "SEEN" DATE)',
    'CREATE TABLE "ENROLL" ("STUDENT_ID" NUMBER(9) NOT NULL, "COURSE" VARCHAR2(20) NOT NULL, "GRADE" NUMBER(5,2),'
    ' PRIMARY KEY ("STUDENT_ID", "COURSE"), FOREIGN KEY ("STUDENT_ID") REFERENCES "STUDENT" ("ID"))',
    """INSERT INTO "STUDENT" SELECT seq, CONCAT('student ', seq), '2026-11-20 08:30:00' FROM seq_1_to_500""",
    """INSERT INTO "ENROLL" SELECT seq, 'Math', 9.5 FROM seq_1_to_400""",
    'CREATE VIEW "PASSED" AS SELECT "STUDENT_ID" FROM "ENROLL" WHERE "GRADE" >= 6',
)


def commands() -> list[str]:
    """Return the command lines of the document."""
    blocks = re.findall(r"```console\n(.*?)```", DOCUMENT, re.DOTALL)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]


@pytest.fixture
def application(mariadb_oracle_server: MariaServer) -> Iterator[Any]:
    StandIn(mariadb_oracle_server).prepare()
    with closing(mariadb_oracle_server.connect(SCHEMA, autocommit=True)) as connection:
        cursor = connection.cursor()
        for statement in TABLES:
            cursor.execute(statement)
        yield cursor


@pytest.fixture
def pipeline(
    application: Any,
    mariadb_oracle_server: MariaServer,
    postgres_server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Pipeline]:
    with standin_pipeline(tmp_path, mariadb_oracle_server, postgres_server, monkeypatch, password=False) as made:
        example = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)[0]
        configured = (tmp_path / "venus.toml").read_text()
        (tmp_path / "venus.toml").write_text(example + configured[configured.index("[broker]") :])
        urls = {"VENUS_SOURCE__URL": made.source, "VENUS_TARGETS__MAIN__URL": made.targets["main"]}
        made.environ |= urls
        for name, value in urls.items():
            monkeypatch.setenv(name, value)
        yield made


def test_the_commands_of_the_first_week_work(
    pipeline: Pipeline, application: Any, mariadb_oracle_server: MariaServer
) -> None:
    untouched = catalogue(mariadb_oracle_server, SCHEMA)
    line = commands()
    assert len(line) >= 14
    for number, command in enumerate(line):
        if command.startswith("sqlplus"):
            assert catalogue(mariadb_oracle_server, SCHEMA) == untouched, "another user than the DBA has changed it"
            run_sqlplus(pipeline, command, mariadb_oracle_server)
            continue
        run(pipeline, command)
        if command.startswith("venus sync"):
            application.execute("""INSERT INTO "STUDENT" VALUES (501, 'late', NULL)""")
            pipeline.wait_until_caught_up("main")
        if "--dry-run" in line[number]:
            assert (pipeline.folder / command.rpartition("> ")[2]).stat().st_size > 1_000
    assert catalogue(mariadb_oracle_server, SCHEMA) == untouched
    target = pipeline.targets["main"]
    assert query(target, "SELECT count(*), max(name) FROM app.student WHERE id > 500") == [(1, "late")]
    assert query(target, "SELECT count(*) FROM app.enroll") == [(400,)]
    for report in ("assessment.html", "verification.html"):
        assert (pipeline.folder / report).read_text().startswith("<!doctype html>")
    assert (pipeline.folder / "fixes.sql").read_text() == "-- nothing blocks\n"
    assert (pipeline.folder / "cutover-main.txt").exists()


def run(pipeline: Pipeline, command: str) -> None:
    """Run one line as a shell does."""
    words = command.split()
    assert words.pop(0) == "venus", command
    if words[-1] == "&":
        pipeline.start(words[0], *words[:-1])
        if words[0] == "broker":
            pipeline.until_said("broker listens on", "the broker")
        return
    if words[0] == "uninstall-triggers" and len(words) == 1:
        assert pipeline.stop("sync") == 0  # as the line above it in the document says
    at = words.index(">") if ">" in words else len(words)
    answer = pipeline.venus(*words[:at], code=(0, 1) if words[0] == "status" else 0)
    if at < len(words):
        (pipeline.folder / words[at + 1]).write_text(answer.out)


def run_sqlplus(pipeline: Pipeline, command: str, server: MariaServer) -> None:
    """Run a script as a DBA does."""
    script = read((pipeline.folder / command.rpartition("@")[2]).read_text())
    with closing(StandIn(server).connect()) as session:
        for statement in script.statements:
            session.cursor().execute(statement)
        session.commit()
