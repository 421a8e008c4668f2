"""A source or target that answers but is not usable: it refuses this URL, or has nothing installed yet."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psycopg2
import pytest
import sqlalchemy

from tests.support.databases.mariadb import MariaServer
from tests.support.databases.postgres import Server
from tests.support.pipelines.pipeline import PASSWORD, Pipeline

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROLE = "story_locked"
RIGHT = "the right one"


@pytest.fixture
def server_with_password(postgres_server: Server) -> Iterator[Server]:
    """Make the server require a password from one role."""
    file = Path(postgres_server.pg.pgdata) / "pg_hba.conf"
    text = file.read_text()
    postgres_server.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{RIGHT}'")
    file.write_text(f"local all {ROLE} scram-sha-256\n{text}")
    postgres_server.execute("SELECT pg_reload_conf()")
    yield postgres_server
    file.write_text(text)
    postgres_server.execute("SELECT pg_reload_conf()")
    postgres_server.execute(f"DROP ROLE {ROLE}")


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(folder=tmp_path, source=f"sqlite:///{tmp_path}/app.db", targets={})
    yield made
    with suppress(psycopg2.Error):
        made.targets = {}
        made.configure()
        made.close()


def refusal(pipeline: Pipeline, *command: str, environ: dict[str, str] | None = None) -> tuple[str, str]:
    """Return the error line and its hint."""
    line, hint = pipeline.venus(*command, code=2, environ=environ).err.splitlines()
    assert PASSWORD not in line
    return line, hint.strip()


def line_of(pipeline: Pipeline, url: str) -> int:
    text = (pipeline.folder / "venus.toml").read_text()
    return text[: text.index(url)].count("\n") + 1


@pytest.mark.parametrize("place", ["source", "target"])
def test_a_wrong_password_at_postgresql_is_named(
    pipeline: Pipeline, server_with_password: Server, database: str, place: str
) -> None:
    url = server_with_password.url(str(sqlalchemy.make_url(database).database), ROLE, PASSWORD)
    if place == "source":
        pipeline.source, key, command = url, "source.url", ["check"]
    else:
        pipeline.targets, key, command = {"main": url}, "targets.main.url", ["pause", "--target", "main"]
    pipeline.configure()

    line, hint = refusal(pipeline, *command)

    assert line.startswith(f"venus: venus.toml:{line_of(pipeline, url)}: {key}: {place} postgresql")
    assert f'password authentication failed for user "{ROLE}"' in line
    assert hint == ("Check [source] url." if place == "source" else "Check url in [targets.main].")
    variable = f"VENUS_{key.upper().replace('.', '__')}"
    line, _ = refusal(pipeline, *command, environ={variable: url})
    assert line.startswith(f"venus: environment: {variable}: {place} postgresql"), "the file is not to blame"


@pytest.mark.parametrize(
    ("user", "database", "says"),
    [(ROLE, "", "Access denied for user"), ("root", "no_such_one", "Unknown database 'no_such_one'")],
)
def test_a_wrong_password_or_database_at_mariadb_is_named(
    pipeline: Pipeline, mariadb_server: MariaServer, mariadb_database: str, user: str, database: str, says: str
) -> None:
    mariadb_server.execute(f"CREATE USER {ROLE}@'%' IDENTIFIED BY '{RIGHT}'")
    try:
        name = database or str(sqlalchemy.make_url(mariadb_database).database)
        pipeline.source = mariadb_server.url(name, user, "" if user == "root" else PASSWORD)
        pipeline.configure()

        line, hint = refusal(pipeline, "check")

        place = f"source 127.0.0.1:{mariadb_server.port}/{name} cannot be reached: "
        assert line.startswith(f"venus: venus.toml:{line_of(pipeline, pipeline.source)}: source.url: {place}")
        assert says in line
        assert hint == "Check [source] url."
    finally:
        mariadb_server.execute(f"DROP USER {ROLE}@'%'")


@pytest.mark.parametrize("fixture", ["database", "mariadb_database", ""])
def test_a_source_without_an_installation_counts_as_reached(
    pipeline: Pipeline, request: pytest.FixtureRequest, tmp_path: Path, fixture: str
) -> None:
    if fixture:
        pipeline.source = request.getfixturevalue(fixture)
    else:
        with closing(sqlite3.connect(tmp_path / "app.db")) as application:
            application.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    pipeline.configure()

    found = pipeline.ask("status", code=1)

    assert "source: no table is captured; run `venus install-triggers`" in found["problems"]
    assert found["source"]["error"] == ""
