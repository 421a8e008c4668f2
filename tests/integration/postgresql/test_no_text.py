"""A text that is invalid in UTF-8 halts its table (a SQL_ASCII database accepts every byte); the others continue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.databases.postgres import Server
from tests.support.pipelines.end_to_end import EndToEnd, end_to_end, run_at
from venus.adapters.dialects.postgresql.source import PostgresSource
from venus.cli.prove.follower import Follower

pytestmark = pytest.mark.integration

TABLES = ("a", "bad", "c")


@pytest.fixture
def e2e(postgres_server: Server, database: str, tmp_path: Path) -> Iterator[EndToEnd]:
    name = f"ascii_{next(postgres_server.numbers)}"
    postgres_server.execute(
        f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    source = postgres_server.url(name)
    run_at(source, *(f"CREATE TABLE {t} (id int PRIMARY KEY, v text)" for t in TABLES))
    with end_to_end(tmp_path, source, database) as made:
        yield made
    postgres_server.drop_database(source)


def write(e2e: EndToEnd, number: int, bad: str = "'good'") -> None:
    """Write to all tables in one transaction, and once more to the other ones."""
    values = {t: bad if t == "bad" else "'good'" for t in TABLES}
    inserts = "; ".join(f"INSERT INTO {t} VALUES ({number}, {v})" for t, v in values.items())
    run_at(e2e.source, f"BEGIN; {inserts}; COMMIT")


def ids(e2e: EndToEnd) -> dict[str, list[int]]:
    return {t: [n for (n,) in e2e.at_target(f"SELECT id FROM {t} ORDER BY id")] for t in TABLES}


def find_halted(e2e: EndToEnd) -> list[tuple[object, ...]]:
    reason = "cannot be carried: a text has bytes%"
    return run_at(
        e2e.source, f"SELECT name FROM venus.captured_table WHERE state = 'PAUSED' AND reason LIKE '{reason}'"
    )


BAD = "convert_from('\\xff41', 'SQL_ASCII')"


def test_a_change_with_such_a_text_halts_its_table_alone(e2e: EndToEnd) -> None:
    e2e.install()
    e2e.load()
    e2e.start()
    write(e2e, 1)
    e2e.wait_until_caught_up()
    write(e2e, 2, BAD)
    e2e.until(lambda: find_halted(e2e) == [("bad",)], "the table to halt")
    write(e2e, 3)
    e2e.until(lambda: ids(e2e) == {"a": [1, 2, 3], "bad": [1], "c": [1, 2, 3]}, "the others to continue")
    run_at(e2e.source, "UPDATE bad SET v = 'corrected' WHERE id = 2")
    e2e.until(lambda: ids(e2e)["bad"] == [1, 2, 3], "the table to continue")
    assert not find_halted(e2e)


def test_an_existing_row_with_such_a_text_halts_its_table_alone(e2e: EndToEnd) -> None:
    write(e2e, 1, BAD)
    e2e.install()
    e2e.start("capture")
    e2e.until(lambda: find_halted(e2e) == [("bad",)], "the table to halt")
    run_at(e2e.source, "DELETE FROM bad", "INSERT INTO bad VALUES (2, 'good')")
    e2e.until(lambda: not find_halted(e2e), "the table to continue")
    e2e.stop("capture")
    e2e.load()
    assert ids(e2e) == {"a": [1], "bad": [2], "c": [1]}


def test_the_table_of_such_a_text_is_found_without_a_new_session(e2e: EndToEnd) -> None:
    """The opening reads few rows of several tables: an error in it does not say which table must halt."""
    with closing(PostgresSource(e2e.source)) as source:
        source.installer.install(["*"], [])
        follower = Follower(source)
        follower.drain()
        write(e2e, 1)
        follower.drain()
        write(e2e, 2, BAD)
        assert follower.source.capture.wait(0.001)
        follower.drain()
        assert find_halted(e2e) == [("bad",)]
        assert [len(follower.rows(t)) for t in TABLES] == [2, 1, 2]
