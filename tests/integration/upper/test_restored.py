"""A source is restored from a backup while broker and targets have continued: they become equal to it again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from tests.support.databases.backups import Database, Rows, make_restorable
from tests.support.databases.postgres import Server
from tests.support.pipelines.end_to_end import EndToEnd, end_to_end, run_at
from venus.adapters.targets.relational.full_sync import full_sync
from venus.adapters.upper.capture import read_broker_status, run_capture
from venus.adapters.verify.findings import ComparisonVerdict
from venus.cli.probes import read_overview
from venus.config import TargetSettings
from venus.errors import Diverged

pytestmark = pytest.mark.integration


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with make_restorable(request.param, tmp_path, request.getfixturevalue) as made:
        yield made


@pytest.fixture
def e2e(source: Database, database: str, tmp_path: Path) -> Iterator[EndToEnd]:
    """Make a pipeline without an installation, with a table `item` of four rows."""
    source.run(
        "CREATE TABLE item (id INTEGER NOT NULL PRIMARY KEY, v VARCHAR(40), n DECIMAL(10, 2))",
        "INSERT INTO item VALUES (1, 'one', 1), (2, 'two', 2), (3, 'three', 3), (4, 'four', 4)",
    )
    with end_to_end(tmp_path, source.url, database) as made:
        yield made


def wait_until_connected(e2e: EndToEnd) -> None:
    e2e.install()
    e2e.load()
    e2e.start()
    e2e.wait_until_caught_up()


def plain(rows: Rows) -> list[tuple[Any, ...]]:
    """Return rows in which equal numbers have the same text."""
    return sorted(tuple(Decimal(str(v)) if isinstance(v, int | float | Decimal) else v for v in row) for row in rows)


def read_rows(url: str, query: str) -> Rows:
    """Return a target's rows from any schema, or none if table or column do not exist yet."""
    try:
        return run_at(
            url,
            "SELECT set_config('search_path', string_agg(DISTINCT nspname, ', '), false) FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = relnamespace WHERE relname IN ('item', 'later')",
            query,
        )
    except (psycopg2.errors.UndefinedTable, psycopg2.errors.UndefinedColumn):
        return []


def wait_until_equal(e2e: EndToEnd, source: Database, query: str = "SELECT * FROM item") -> None:
    """Wait until the target has the source's rows; check that it keeps them."""

    def has_same_rows() -> bool:
        return plain(read_rows(e2e.target, query)) == plain(source.run(query))

    e2e.until(has_same_rows, "the target to have what the source has")
    e2e.wait_until_caught_up()
    assert has_same_rows()
    assert e2e.at_target("SELECT count(*) FROM venus.target_table WHERE state <> 'ACTIVE'") == [(0,)]


def check_second_load(e2e: EndToEnd, source: Database, server: Server, query: str = "SELECT * FROM item") -> None:
    """Load another target, to check that the broker's full data equals the source as well."""
    other = server.create_database()
    targets = e2e.settings.targets | {"other": TargetSettings.model_validate({"url": other})}
    try:
        full_sync(e2e.settings.model_copy(update={"targets": targets}), "other")
        assert plain(read_rows(other, query)) == plain(source.run(query))
    finally:
        server.drop_database(other)


def test_rows_after_the_backup_vanish_and_new_rows_arrive(
    e2e: EndToEnd, source: Database, postgres_server: Server
) -> None:
    wait_until_connected(e2e)
    e2e.stop("capture")
    source.back_up()
    e2e.start("capture")
    source.run(
        "UPDATE item SET v = 'lost' WHERE id = 1",
        "DELETE FROM item WHERE id = 2",
        "INSERT INTO item VALUES (10, 'lost', 10), (11, 'lost', 11)",
        "UPDATE item SET id = 12 WHERE id = 3",
    )
    wait_until_equal(e2e, source)
    e2e.stop("capture")

    source.restore()
    e2e.accept_moved()
    source.run("UPDATE item SET v = 'now' WHERE id = 4", "INSERT INTO item VALUES (10, 'now', 0.5)")
    e2e.start("capture")
    wait_until_equal(e2e, source)
    check_second_load(e2e, source, postgres_server)
    assert e2e.verify(leg="all").verdict is ComparisonVerdict.SAME


def test_a_backup_without_triggers_is_installed_and_read_again(
    e2e: EndToEnd, source: Database, postgres_server: Server
) -> None:
    source.back_up()
    wait_until_connected(e2e)
    source.run("INSERT INTO item VALUES (10, 'lost', 10)", "DELETE FROM item WHERE id = 2")
    wait_until_equal(e2e, source)
    e2e.stop("capture")

    source.restore()
    e2e.accept_moved()
    source.run("DELETE FROM item WHERE id = 3")
    e2e.install()
    e2e.start("capture")
    wait_until_equal(e2e, source)
    check_second_load(e2e, source, postgres_server)


def test_a_table_that_was_captured_after_the_backup_is_captured_again(
    e2e: EndToEnd, source: Database, postgres_server: Server
) -> None:
    wait_until_connected(e2e)
    e2e.stop("capture")
    source.back_up()
    source.run(
        "CREATE TABLE later (id INTEGER NOT NULL PRIMARY KEY, v VARCHAR(40))",
        "INSERT INTO later VALUES (1, 'lost'), (2, 'lost')",
    )
    e2e.install()
    e2e.start("capture")
    wait_until_equal(e2e, source, "SELECT * FROM later")
    e2e.stop("capture")

    source.restore()
    e2e.accept_moved()
    e2e.start("capture")
    wait_until_equal(e2e, source)
    assert [said for said in read_overview(e2e.settings).release_notices if "later is not known to the source" in said]
    source.run(
        "CREATE TABLE later (id INTEGER NOT NULL PRIMARY KEY, v VARCHAR(40))", "INSERT INTO later VALUES (2, 'now')"
    )
    e2e.install()
    wait_until_equal(e2e, source, "SELECT * FROM later")
    check_second_load(e2e, source, postgres_server, "SELECT * FROM later")


@pytest.mark.parametrize("digits", [2, 4, 0], ids=["as before", "with more digits", "not at all"])
def test_a_column_that_was_added_after_the_backup_may_be_added_again_differently(
    digits: int, e2e: EndToEnd, source: Database, postgres_server: Server
) -> None:
    wait_until_connected(e2e)
    e2e.stop("capture")
    source.back_up()
    e2e.start("capture")
    source.run("ALTER TABLE item ADD COLUMN w DECIMAL(10, 2)", "UPDATE item SET w = 7.25")
    query = "SELECT id, v, n, w FROM item"
    wait_until_equal(e2e, source, query)
    e2e.stop("capture")

    source.restore()
    e2e.accept_moved()
    if digits:
        source.run(
            f"ALTER TABLE item ADD COLUMN w DECIMAL(10, {digits})",
            f"UPDATE item SET w = {1.1234:.{digits}f} WHERE id < 3",
        )
    else:
        query = "SELECT id, v, n FROM item"
    source.run("INSERT INTO item (id, v, n) VALUES (10, 'now', 0.5)")
    e2e.start("capture")
    wait_until_equal(e2e, source, query)
    check_second_load(e2e, source, postgres_server, query)


@pytest.mark.parametrize(
    ("source", "how"), [("sqlite", "load"), ("sqlite", "restore"), ("mariadb", "load")], indirect=["source"]
)
def test_a_restore_during_capture_is_noticed(how: str, e2e: EndToEnd, source: Database) -> None:
    """The session does not end, and the epoch is that of the backup."""
    wait_until_connected(e2e)
    e2e.stop("capture")
    e2e.start("capture")
    source.run("UPDATE item SET v = 'in the backup' WHERE id = 1")
    e2e.wait_until_caught_up()
    source.back_up()
    source.run("UPDATE item SET v = 'lost' WHERE id = 1", "INSERT INTO item VALUES (10, 'lost', 10)")
    wait_until_equal(e2e, source)

    getattr(source, how)()
    source.run("INSERT INTO item VALUES (11, 'now', 0.5)")
    wait_until_equal(e2e, source)


def test_a_copy_ships_nothing_until_it_is_confirmed(
    tmp_path: Path, database: str, request: pytest.FixtureRequest
) -> None:
    """PostgreSQL gives a database that was made from a template or a dump another number."""
    with make_restorable("postgresql", tmp_path, request.getfixturevalue) as source:
        source.run(
            "CREATE TABLE item (id INTEGER NOT NULL PRIMARY KEY, v VARCHAR(40))", "INSERT INTO item VALUES (1, 'one')"
        )
        with end_to_end(tmp_path, source.url, database) as e2e:
            wait_until_connected(e2e)
            e2e.stop("capture")
            source.back_up()
            source.restore()
            source.run("UPDATE item SET v = 'of the copy'")
            before = read_broker_status(e2e.settings)
            with pytest.raises(Diverged, match="it is not the database that was captured"):
                run_capture(e2e.settings, threading.Event())
            after = read_broker_status(e2e.settings)
            assert (after.epoch, after.last_batch, after.next_offset) == (
                before.epoch,
                before.last_batch,
                before.next_offset,
            )
            assert [said for said in read_overview(e2e.settings).problems if "it is not the database" in said]
            assert e2e.at_target("SELECT v FROM item") == [("one",)]
            e2e.accept_moved()
            e2e.start("capture")
            wait_until_equal(e2e, source)
