"""`venus sync` ends with one line if waiting cannot help, for each source and target; otherwise it waits quietly."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.support.pipelines.pipeline import Pipeline
from tests.support.ports import free_ports

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

Start = Callable[..., Pipeline]


def missing_database_url(url: str) -> str:
    """Return the URL of a missing database at the same server."""
    return make_url(url).set(database="not_there").render_as_string(hide_password=False)


@pytest.fixture
def source(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return an empty source of the kind that the test selects."""
    kind = request.param
    if kind == "sqlite":
        with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
            connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
        return f"sqlite:///{tmp_path}/app.db"
    return str(request.getfixturevalue({"postgresql": "database", "mariadb": "mariadb_database"}[kind]))


@pytest.fixture
def start(tmp_path: Path, second_database: str) -> Iterator[Start]:
    made: list[Pipeline] = []

    def pipeline(source: str, target: str = second_database, *, broker: bool = True) -> Pipeline:
        made.append(Pipeline(folder=tmp_path, source=source, targets={"main": target}))
        made[0].configure()
        if broker:
            made[0].start_broker()
        return made[0]

    yield pipeline
    for one in made:
        one.targets = {}
        one.configure()  # a missing database has no counters
        one.close()


KINDS = pytest.mark.parametrize("source", ["sqlite", "postgresql", "mariadb"], indirect=True)


@KINDS
def test_a_missing_source_ends_it(source: str, start: Start) -> None:
    missing = (
        missing_database_url(source) if not source.startswith("sqlite") else source.replace("app.db", "not_there.db")
    )
    said = start(missing, broker=False).venus("sync", "--capture-only", code=2).err
    assert said.count("\nvenus: ") + said.startswith("venus: ") == 1
    assert "not_there" in said.splitlines()[-2]


@KINDS
def test_a_source_without_triggers_ends_sync(source: str, start: Start) -> None:
    said = start(source).venus("sync", code=3).err.splitlines()
    assert [line for line in said if line.startswith("venus: ")] == [said[-2]]
    assert "installed" in said[-2]
    assert "`venus install-triggers`" in said[-1]


def test_a_missing_target_ends_it(start: Start, second_database: str, tmp_path: Path) -> None:
    made = start(f"sqlite:///{tmp_path}/app.db", missing_database_url(second_database), broker=False)
    said = made.venus("sync", "--apply-only", code=2).err.splitlines()
    assert said[-2].startswith("venus: venus.toml:")
    assert 'database "not_there" does not exist' in said[-2]
    assert len([line for line in said if "not_there" in line]) == 1


def test_a_refused_login_ends_it(start: Start, second_database: str, tmp_path: Path) -> None:
    url = make_url(second_database).set(username="stranger").render_as_string(hide_password=False)
    said = start(f"sqlite:///{tmp_path}/app.db", url, broker=False).venus("sync", "--apply-only", code=2).err
    assert 'role "stranger" does not exist' in said


@pytest.mark.parametrize("kind", ["postgresql", "parquet"])
def test_a_target_that_was_never_loaded_ends_its_loop_alone(
    kind: str, start: Start, second_database: str, tmp_path: Path
) -> None:
    target = second_database if kind == "postgresql" else f"parquet:///{tmp_path}/lake"
    said = start(f"sqlite:///{tmp_path}/app.db", target).venus("sync", "--apply-only", code=3).err.splitlines()
    assert said == ["venus: target main has not been loaded yet", "  venus migrate --target main"]


@pytest.mark.parametrize("source", ["sqlite"], indirect=True)
def test_an_unloaded_target_beside_capture_waits_quietly_until_it_is_loaded(source: str, start: Start) -> None:
    made = start(source)
    made.venus("install-triggers")
    made.start("sync", "sync")
    made.until_said("waiting: target main has not been loaded yet; venus migrate", "the line")
    made.venus("migrate")
    made.until_said("\nmain: rows ", "the target to follow")
    text = made.log.read_text()
    assert text.count("has not been loaded yet") == 1
    assert made.stop("sync") == 0


def test_a_server_that_is_down_is_waited_for_with_one_line(start: Start, tmp_path: Path) -> None:
    """The circuit breaker opens meanwhile, and the target is tried five times or more."""
    (port,) = free_ports(1)
    made = start(f"sqlite:///{tmp_path}/app.db", f"postgresql://postgres@127.0.0.1:{port}/shop", broker=False)
    made.start("sync", "sync", "--apply-only", "--json")
    made.until(lambda: made.log.read_text().count('"circuit": "open"') >= 2, "the circuit to open")
    warned = [line for line in made.log.read_text().splitlines() if "WARNING" in line]
    assert len(warned) == 1, warned
    assert made.stop("sync") == 0
