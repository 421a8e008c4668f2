"""Before anything runs: check, dry run, install, uninstall, and their refusals (features 4: scenarios 1 to 6, 16)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from tests.support.databases.postgres import Server, libpq
from tests.support.pipelines.pipeline import PASSWORD, Pipeline, with_password

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture
def pipeline(tmp_path: Path, database: str) -> Iterator[Pipeline]:
    """Make a SQLite source with two tables, and a target; no process runs."""
    made = Pipeline(folder=tmp_path, source=f"sqlite:///{tmp_path}/app.db", targets={"main": with_password(database)})
    made.configure()
    run_at_source(made, "CREATE TABLE orders (id INTEGER PRIMARY KEY, v TEXT)")
    run_at_source(made, "CREATE TABLE lines (a INT, b INT, PRIMARY KEY (a, b))")
    yield made
    made.close()


def run_at_source(pipeline: Pipeline, *statements: str) -> None:
    with closing(sqlite3.connect(pipeline.folder / "app.db", isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def catalogue(pipeline: Pipeline) -> list[str]:
    with closing(sqlite3.connect(pipeline.folder / "app.db")) as connection:
        return [str(row) for row in connection.execute("SELECT * FROM sqlite_master ORDER BY type, name")]


def test_names_that_a_target_cannot_have_are_reported_before_anything_is_done(pipeline: Pipeline) -> None:
    long = "a_name_that_is_longer_than_the_sixty_three_bytes_that_postgresql_keeps_of_it"
    run_at_source(pipeline, f"CREATE TABLE {long} (id INTEGER PRIMARY KEY, xmin INT)")
    pipeline.targets["lake"] = f"parquet://{pipeline.folder}/lake"
    pipeline.configure()
    found = {f["message"]: f for f in pipeline.ask("check", code=3)["findings"]}
    (system,) = [message for message in found if "PostgreSQL has a system column called xmin" in message]
    assert found[system]["blocks"]
    assert "a folder of Parquet files" in found
    run_at_source(pipeline, f"ALTER TABLE {long} DROP COLUMN xmin")
    found = {f["message"]: f for f in pipeline.ask("check")["findings"]}
    (found_line,) = [message for message in found if "is too long and becomes" in message]
    assert found_line.startswith(f"main.{long}: the name {long} is too long and becomes a_name_that")


def test_a_user_without_privileges_gets_the_grants_and_nothing_is_changed(
    tmp_path: Path, postgres_server: Server, database: str
) -> None:
    with closing(psycopg2.connect(libpq(database))) as connection:
        connection.autocommit = True
        connection.cursor().execute(
            "CREATE TABLE t (id int PRIMARY KEY); DROP ROLE IF EXISTS story_reader; CREATE ROLE story_reader LOGIN;"
            "GRANT SELECT ON t TO story_reader"
        )
    reader = database.replace("://postgres@", "://story_reader@")
    pipeline = Pipeline(folder=tmp_path, source=reader, targets={})
    pipeline.configure()
    try:
        found = pipeline.ask("check", code=3)
        grants = " ".join(f["remedy"] + " ".join(f["details"]) for f in found["findings"] if f["blocks"])
        assert "GRANT" in grants
        assert "story_reader" in grants
        assert pipeline.venus("install-triggers", code=3).err.startswith("venus: ")
        with closing(psycopg2.connect(libpq(database))) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT count(*) FROM pg_namespace WHERE nspname = 'venus'")
            assert cursor.fetchone() == (0,)
    finally:
        pipeline.close()
        with closing(psycopg2.connect(libpq(database))) as connection:
            connection.autocommit = True
            connection.cursor().execute("DROP OWNED BY story_reader; DROP ROLE story_reader")


def test_a_url_that_the_database_rejects_is_named_by_line(pipeline: Pipeline, database: str) -> None:
    pipeline.source = with_password(database).replace("://postgres:", "://stranger:")
    pipeline.configure()

    refused = pipeline.venus("check", code=2)

    assert refused.err.startswith("venus: venus.toml:2: source.url: source postgresql://stranger:***@")
    assert 'role "stranger" does not exist' in refused.err
    assert PASSWORD not in refused.err


def test_a_url_that_the_target_rejects_is_named_by_line(pipeline: Pipeline, database: str) -> None:
    pipeline.targets = {"main": with_password(database).replace("://postgres:", "://stranger:")}
    pipeline.configure()

    refused = pipeline.venus("pause", "--target", "main", code=2)

    assert ": targets.main.url: target postgresql://stranger:***@" in refused.err
    assert refused.err.startswith("venus: venus.toml:")
    assert refused.err.splitlines()[1] == "  Check url in [targets.main]."
    assert PASSWORD not in refused.err


def test_a_missing_table_is_reported_with_the_nearest_name(pipeline: Pipeline) -> None:
    refused = pipeline.venus("check", code=2, environ={"VENUS_SOURCE__TABLES": "ordrs"})

    assert refused.err.splitlines() == [
        "venus: source.tables: 'ordrs' matches no table (did you mean orders?)",
        "  Tables: main.lines, main.orders.",
    ]


def test_a_broken_configuration_is_one_line_with_file_line_and_key(pipeline: Pipeline) -> None:
    file = pipeline.folder / "venus.toml"
    text = file.read_text()

    file.write_text(text.replace("heartbeat_s = 1.0", "hartbeat_s = 1.0"))
    line = text[: text.index("heartbeat_s")].count("\n") + 1
    wanted = f"venus: venus.toml:{line}: capture.hartbeat_s: no such option (did you mean heartbeat_s?)\n"
    assert pipeline.venus("status", code=2).err == wanted
    file.write_text(text + "[unfinished\n")
    assert f"venus.toml:{len(text.splitlines()) + 1}: not TOML" in pipeline.venus("status", code=2).err


def test_a_trigger_dropped_by_hand_is_recreated_alone_and_its_table_marked(pipeline: Pipeline) -> None:
    assert pipeline.ask("install-triggers")["created"]
    installed = catalogue(pipeline)
    (dropped,) = [row for row in installed if "'trigger'" in row and "venus_u_" in row and "'orders'" in row]
    name = dropped.split("'")[3]
    run_at_source(pipeline, f"DROP TRIGGER {name}")

    again = pipeline.ask("install-triggers")

    assert [step["what"] for step in again["created"] if "row of" not in step["what"]] == [f"trigger {name}"]
    assert {t["table"]: t["state"] for t in again["tables"]} == {"main.lines": "ACTIVE", "main.orders": "RESYNC"}
    assert sorted(catalogue(pipeline)) == sorted(installed)
    assert any("main.orders is RESYNC" in problem for problem in pipeline.status()["problems"])
    assert "Run `venus resync main.orders`" in pipeline.venus("resume", "orders", code=3).err
    assert (
        "will be compared with the full data: main.orders\n" in pipeline.venus("resync", "orders", "--differences").out
    )
    assert not any("RESYNC" in problem for problem in pipeline.status()["problems"])
    assert "active, comparing 0 of about" in " ".join(pipeline.venus("status", code=1).out.split())
    assert "will be read again from the source: main.orders\n" in pipeline.venus("resync", "orders").out
    assert "active, filling 0 of about" in " ".join(pipeline.venus("status", code=1).out.split())


def test_a_dropped_table_does_not_block_a_new_fill_of_another(pipeline: Pipeline) -> None:
    pipeline.ask("install-triggers")
    run_at_source(pipeline, "DROP TABLE lines")

    answer = pipeline.venus("resync", "--all", code=1)

    assert "will be read again from the source: main.orders\n" in answer.out
    assert "! main.lines no longer exists: `venus uninstall-triggers main.lines`" in " ".join(answer.out.split())
    assert pipeline.ask("resync", "lines", code=1)["left"] == ["main.lines"]
    assert pipeline.ask("uninstall-triggers", "lines")["released"]
    assert pipeline.ask("resync", "--all")["resync"] == ["main.orders"]


def test_refused_tables_are_named_and_the_others_installed(pipeline: Pipeline) -> None:
    run_at_source(
        pipeline,
        "CREATE TABLE loose (a TEXT, b TEXT)",
        "CREATE TABLE [nul*] (code TEXT PRIMARY KEY, b TEXT)",
        "INSERT INTO [nul*] VALUES (NULL, 'x')",
    )
    before = catalogue(pipeline)

    found = pipeline.ask("check", code=3)
    shown = " ".join(pipeline.venus("check", code=3).out.split())
    plan = pipeline.venus("install-triggers", "--dry-run", code=3)
    assert catalogue(pipeline) == before
    said = " ".join(pipeline.venus("install-triggers", code=3).out.split())

    blocking = {f["where"]: f["remedy"] for f in found["findings"] if f["blocks"]}
    assert blocking.keys() == {"main.loose", "main.nul*"}
    assert all("exclude the table" in remedy for remedy in blocking.values())
    assert "`venus install-triggers` refuses main.loose, main.nul* and installs the others" in shown
    assert "! main.loose: refused: no key" in " ".join(plan.err.split())
    assert "loose" not in plan.out
    assert "! main.nul*: refused: 1 rows have NULL in the key (code)" in said
    assert "2 tables refused: main.loose, main.nul*" in said
    captured = pipeline.ask("install-triggers", code=3)
    assert captured["refused"] == ["main.loose", "main.nul*"]
    assert {t["table"] for t in captured["tables"]} == {"main.lines", "main.orders"}
    pipeline.venus("install-triggers", environ={"VENUS_SOURCE__EXCLUDE": "loose,nul[*]"})


def test_nothing_is_installed_if_every_table_is_refused(pipeline: Pipeline) -> None:
    run_at_source(pipeline, "CREATE TABLE loose (a TEXT, b TEXT)")
    before = catalogue(pipeline)

    refused = pipeline.venus("install-triggers", code=3, environ={"VENUS_SOURCE__TABLES": "loose"})

    assert "main.loose" in refused.err
    assert len(refused.err.splitlines()) == 2
    assert catalogue(pipeline) == before


def test_a_missing_source_file_is_not_created(pipeline: Pipeline) -> None:
    (pipeline.folder / "app.db").unlink()

    for command in ("check", "install-triggers", "uninstall-triggers"):
        assert "app.db" in pipeline.venus(command, code=(2, 12, 75)).err
    assert not (pipeline.folder / "app.db").exists()


def test_migrating_before_installing_or_without_a_broker_names_the_remedy(pipeline: Pipeline) -> None:
    refused = pipeline.venus("migrate", "--target", "main", code=2)
    assert "install-triggers" in refused.err
    pipeline.venus("install-triggers")
    refused = pipeline.venus("migrate", "--target", "main", code=75)
    assert "venus broker" in refused.err


def test_a_table_that_is_excluded_later_is_named_because_it_is_still_captured(pipeline: Pipeline) -> None:
    pipeline.venus("install-triggers")
    assert "although" not in pipeline.venus("check").out
    pipeline.source_options = 'exclude = ["lines"]'
    pipeline.configure()
    sentence = "main.lines: is captured, although the configuration excludes it"
    assert sentence in pipeline.venus("install-triggers").out
    found = {f["where"]: f["message"] for f in pipeline.ask("check")["findings"]}
    assert found["main.lines"] in pipeline.venus("install-triggers").out
