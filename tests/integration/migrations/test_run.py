"""VENUS's own tables are created, upgraded and removed without a trace, beside other objects in the database."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from importlib.resources import as_file, files
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from tests.support.databases.postgres import Server, libpq
from tests.support.waiting import eventually
from venus.errors import Refused
from venus.migrations import VERSION_TABLE, run

pytestmark = pytest.mark.integration

SOURCE = {"checkpoint", "batch", "captured_table", "heartbeat"}


@pytest.fixture
def postgres(database: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine(database)
    yield engine
    engine.dispose()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[sa.Engine]:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'a.db'}", connect_args={"timeout": 120})
    yield engine
    engine.dispose()


def dump(server: Server, url: str) -> str:
    command = [str(server.bin / "pg_dump"), "--schema-only", libpq(url)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return "\n".join(line for line in text.splitlines() if "restrict " not in line)


def tables(engine: sa.Engine, schema: str | None) -> set[str]:
    return set(sa.inspect(engine).get_table_names(schema=schema))


def test_sqlite_gets_prefixed_tables_and_drops_them_again(sqlite: sa.Engine) -> None:
    with sqlite.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE mine (id INTEGER PRIMARY KEY)")
    shown = run.render_sql(sqlite, "source", schema=None)
    assert tables(sqlite, None) == {"mine"}, "showing changes nothing"

    assert run.upgrade(sqlite, "source", schema=None) == shown
    assert tables(sqlite, None) == {"mine", VERSION_TABLE} | {f"venus_{name}" for name in SOURCE}
    assert run.is_installed(sqlite, "source", schema=None)
    assert not run.is_installed(sqlite, "target", schema=None)
    assert run.upgrade(sqlite, "source", schema=None) == run.render_sql(sqlite, "source", schema=None) == []

    shown = run.render_sql(sqlite, "source", schema=None, direction="downgrade")
    assert run.downgrade(sqlite, "source", schema=None) == shown
    assert tables(sqlite, None) == {"mine"}
    assert run.downgrade(sqlite, "source", schema=None) == []


def test_checkpoint_and_heartbeat_have_one_row(sqlite: sa.Engine) -> None:
    run.upgrade(sqlite, "source", schema=None)
    with sqlite.connect() as connection:
        assert connection.exec_driver_sql("SELECT * FROM venus_checkpoint").all() == [(1, 0, 1, 0)]
        assert connection.exec_driver_sql("SELECT * FROM venus_heartbeat").all() == [(1, 0)]


@pytest.mark.parametrize("sides", [("source",), ("target",), ("source", "target"), ("target", "source")])
def test_postgresql_is_unchanged_after_both_sides_were_removed(
    postgres: sa.Engine, postgres_server: Server, database: str, sides: tuple[run.Side, ...]
) -> None:
    before = dump(postgres_server, database)
    dumps = [before]
    for side in sides:
        run.upgrade(postgres, side, schema="venus")
        dumps.append(dump(postgres_server, database))
    assert len(set(dumps)) == len(dumps)

    for side in reversed(sides):
        dumps.pop()
        assert run.downgrade(postgres, side, schema="venus")
        assert dump(postgres_server, database) == dumps[-1]


def test_removing_one_side_leaves_the_other_one(postgres: sa.Engine) -> None:
    run.upgrade(postgres, "source", schema="venus")
    run.upgrade(postgres, "target", schema="venus")
    run.downgrade(postgres, "source", schema="venus")

    assert run.is_installed(postgres, "target", schema="venus")
    assert not tables(postgres, "venus") & SOURCE
    run.upgrade(postgres, "source", schema="venus")
    assert tables(postgres, "venus") >= SOURCE


def test_a_schema_that_a_dba_created_stays(postgres: sa.Engine, postgres_server: Server, database: str) -> None:
    with postgres.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA venus")
    before = dump(postgres_server, database)
    run.upgrade(postgres, "source", schema="venus")
    run.downgrade(postgres, "source", schema="venus")

    assert dump(postgres_server, database) == before


def test_the_applications_own_alembic_is_not_touched(postgres: sa.Engine, tmp_path: Path) -> None:
    versions = tmp_path / "app" / "versions"
    versions.mkdir(parents=True)
    (tmp_path / "app" / "env.py").write_text(
        "from alembic import context\n"
        "context.configure(connection=context.config.attributes['connection'])\n"
        "with context.begin_transaction():\n    context.run_migrations()\n"
    )
    (versions / "one.py").write_text("revision = 'app_1'\ndown_revision = None\ndef upgrade(): pass\n")
    config = Config()
    config.set_main_option("script_location", str(tmp_path / "app"))
    config.set_main_option("path_separator", "os")
    with postgres.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    run.upgrade(postgres, "source", schema="venus")
    run.downgrade(postgres, "source", schema="venus")

    with postgres.connect() as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() == "app_1"


def test_an_open_transaction_of_the_caller_decides_over_the_migration(postgres: sa.Engine) -> None:
    with postgres.connect() as connection:
        outer = connection.begin()
        connection.exec_driver_sql("CREATE TABLE mine (id int)")
        run.upgrade(connection, "source", schema="venus")
        assert outer.is_active
        outer.rollback()
    assert not sa.inspect(postgres).has_schema("venus")
    assert tables(postgres, "public") == set()


def test_a_failure_half_way_changes_nothing(postgres: sa.Engine) -> None:
    with postgres.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA venus")
        connection.exec_driver_sql("CREATE TABLE venus.heartbeat (id int)")
    with pytest.raises(sa.exc.ProgrammingError):
        run.upgrade(postgres, "source", schema="venus")

    assert tables(postgres, "venus") == {"heartbeat"}


def test_a_failure_half_way_changes_nothing_in_sqlite(sqlite: sa.Engine) -> None:
    with sqlite.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE venus_heartbeat (id int)")
    with pytest.raises(sa.exc.OperationalError):
        run.upgrade(sqlite, "source", schema=None)

    assert tables(sqlite, None) == {"venus_heartbeat"}


@pytest.mark.parametrize("place", ["postgres", "sqlite"])
def test_two_concurrent_migrations_run_one_after_the_other(place: str, request: pytest.FixtureRequest) -> None:
    engine: sa.Engine = request.getfixturevalue(place)
    schema = "venus" if place == "postgres" else None
    results: list[object] = []

    def create() -> None:
        try:
            results.append(len(run.upgrade(engine, "source", schema=schema)))
        except Exception as e:
            results.append(e)

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results, key=str)[:3] == [0, 0, 0]
    assert [type(r) for r in results] == [int] * 4
    assert any(results)


def test_an_upgrade_and_a_reading_load_do_not_deadlock(postgres: sa.Engine) -> None:
    """A reader locks the tables in the order of own.sql, each with the lock of a SELECT."""
    run.upgrade(postgres, "target", schema="venus")
    with postgres.begin() as connection:
        for statement in run._render(connection, "venus", "target_0005:target_0002", "downgrade"):
            connection.exec_driver_sql(statement)
    upgrades: list[object] = []

    def upgrade() -> None:
        try:
            upgrades.append(run.upgrade(postgres, "target", schema="venus"))
        except sa.exc.OperationalError as error:
            upgrades.append(error)

    def is_waiting() -> bool:
        with postgres.connect() as other:
            return bool(other.exec_driver_sql("SELECT FROM pg_locks WHERE NOT granted").all())

    thread = threading.Thread(target=upgrade)
    with postgres.connect() as reader:
        reader.exec_driver_sql("SELECT FROM venus.load_manifest")
        thread.start()
        eventually(is_waiting, "the upgrade to wait for the reader")
        reader.exec_driver_sql("SELECT FROM venus.target_table")
    thread.join()
    assert isinstance(upgrades[0], list), upgrades


def test_a_driver_connection_in_a_transaction_is_used_unchanged(tmp_path: Path) -> None:
    raw = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    raw.execute("BEGIN IMMEDIATE")
    engine = sa.create_engine("sqlite://", creator=lambda: raw, poolclass=sa.StaticPool)
    with engine.connect() as connection:
        run.upgrade(connection, "source", schema=None)
        assert raw.in_transaction
        assert raw.execute("SELECT count(*) FROM venus_checkpoint").fetchone() == (1,)
    engine.dispose()


def test_a_migration_logs_nothing(sqlite: sa.Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    run.upgrade(sqlite, "source", schema=None)

    assert not [r for r in caplog.records if r.name.startswith("alembic")]


def test_names_fit_into_thirty_bytes_with_their_prefix(sqlite: sa.Engine) -> None:
    run.upgrade(sqlite, "source", schema=None)
    inspector = sa.inspect(sqlite)
    tables = inspector.get_table_names()
    columns = [c["name"] for t in tables for c in inspector.get_columns(t)]
    names = tables + columns + [str(u["name"]) for t in tables for u in inspector.get_unique_constraints(t)]

    assert [n for n in names if len(n.encode()) > 30] == []


def test_revisions_are_named_after_their_side() -> None:
    found = [f.name for f in files("venus.migrations.versions").iterdir() if f.name.endswith(".py")]
    assert all(n.startswith(("source_", "target_", "__init__")) for n in found)


def test_the_newest_revisions_are_those_of_alembic() -> None:
    with as_file(files("venus.migrations")) as folder:
        config = Config()
        config.set_main_option("script_location", str(folder))
        heads = ScriptDirectory.from_config(config).get_heads()

    assert set(heads) == {run.newest_revision("source"), run.newest_revision("target")}


def test_alembic_is_not_called_if_no_revision_is_missing(sqlite: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alembic would take a quarter of a second to find nothing, at the start of nearly every command."""
    run.upgrade(sqlite, "source", schema=None)
    monkeypatch.delattr(run, "_render")

    assert run.upgrade(sqlite, "source", schema=None) == []


@pytest.mark.parametrize(("place", "side"), [("sqlite", "source"), ("postgres", "source"), ("postgres", "target")])
def test_tables_of_a_newer_version_are_refused_in_one_line_and_unchanged(
    place: str, side: run.Side, request: pytest.FixtureRequest
) -> None:
    """An older version that is installed again meets such tables."""
    engine = request.getfixturevalue(place)
    schema = None if place == "sqlite" else "venus"
    run.upgrade(engine, side, schema=schema)
    version = VERSION_TABLE if schema is None else f"venus.{VERSION_TABLE}"
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {version} SET version_num = '{side}_9999'")
    before = tables(engine, schema)

    for act in (run.upgrade, run.downgrade, run.render_sql):
        with pytest.raises(Refused, match=f"have revision {side}_9999; this version knows revisions up to") as refused:
            act(engine, side, schema=schema)
        assert "\n" not in str(refused.value)
        assert refused.value.hint == "install the VENUS that wrote them, or a newer one"
    assert tables(engine, schema) == before
    assert run.is_installed(engine, side, schema=schema)
