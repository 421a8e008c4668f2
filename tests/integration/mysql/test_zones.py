"""TIMESTAMP keys while the session's time zone sets clocks back: one local hour occurs twice."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import sqlalchemy

from tests.integration.mysql.conftest import Shop
from tests.support.databases.mariadb import MariaServer, running_mariadb

#: Both times are 02:30 in Berlin.
FIRST, SECOND = "2024-10-27 00:30:00", "2024-10-27 01:30:00"
FIRST_S, SECOND_S = 1729989000, 1729992600


@pytest.fixture(scope="module")
def berlin() -> Iterator[MariaServer]:
    """Start a server on a machine in Berlin: a session has the machine's time zone unless it sets another."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Europe/Berlin"
    try:
        with running_mariadb() as server:
            yield server
    finally:
        if before is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = before


@pytest.fixture
def shop(berlin: MariaServer) -> Iterator[Shop]:
    url = berlin.create_database()
    name = str(sqlalchemy.make_url(url).database)
    shop = Shop(berlin, url, berlin.connect(name, autocommit=True))
    yield shop
    shop.close()
    berlin.drop_database(url)


def make_moments(shop: Shop) -> None:
    """Make a table with a key in each of the two hours, written by a session in UTC."""
    shop.run(
        "CREATE TABLE moment (k timestamp NOT NULL DEFAULT '2000-01-01 00:00:00', n int, v int, PRIMARY KEY (k, n))",
        "SET time_zone = '+00:00'",
        f"INSERT INTO moment VALUES ('{FIRST}', 1, 1), ('{SECOND}', 1, 2)",
        "SET time_zone = 'SYSTEM'",
    )
    assert shop.run("SELECT count(DISTINCT CAST(k AS CHAR)) FROM moment") == [(1,)]


def read_values(shop: Shop) -> dict[tuple[str, str], str]:
    rows = shop.run("SET time_zone = '+00:00'", "SELECT CAST(k AS CHAR), n, v FROM moment")
    shop.run("SET time_zone = 'SYSTEM'")
    return {(f"{k}+00", str(n)): str(v) for k, n, v in rows}


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE moment SET v = 5 WHERE v = 2",
        "UPDATE moment SET v = 5 WHERE v = 1",
        "DELETE FROM moment WHERE v = 2",
        "DELETE FROM moment WHERE v = 1",
        f"UPDATE moment SET n = 2, k = from_unixtime({SECOND_S}) WHERE v = 1",
        f"INSERT INTO moment VALUES (from_unixtime({SECOND_S}), 3, 3)",
        f"UPDATE moment SET k = from_unixtime({SECOND_S + 600}) WHERE v = 1",
    ],
)
def test_the_two_hours_are_different_keys(shop: Shop, change: str) -> None:
    make_moments(shop)
    follower = shop.capture()
    shop.run(change)
    follower.drain()
    assert {k: r["v"] for k, r in follower.rows("moment").items()} == read_values(shop)


def test_a_key_that_moves_by_this_hour_leaves_no_old_row(shop: Shop) -> None:
    make_moments(shop)
    shop.run("DELETE FROM moment WHERE v = 2")
    follower = shop.capture()
    shop.run(f"UPDATE moment SET k = from_unixtime({SECOND_S})")
    follower.drain()
    assert {k: r["v"] for k, r in follower.rows("moment").items()} == read_values(shop)
    shop.run(f"UPDATE moment SET k = from_unixtime({FIRST_S})")
    follower.drain()
    assert {k: r["v"] for k, r in follower.rows("moment").items()} == read_values(shop)


@pytest.mark.parametrize("change", ["DELETE FROM parent WHERE id = 2", "UPDATE parent SET id = 9 WHERE id = 2"])
def test_a_cascade_logs_the_right_one_of_the_two_hours(shop: Shop, change: str) -> None:
    shop.run(
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "INSERT INTO parent VALUES (1), (2)",
        "CREATE TABLE moment (k timestamp NOT NULL DEFAULT '2000-01-01 00:00:00', n int, v int, PRIMARY KEY (k, n),"
        " FOREIGN KEY (v) REFERENCES parent (id) ON DELETE CASCADE ON UPDATE CASCADE)",
        "SET time_zone = '+00:00'",
        f"INSERT INTO moment VALUES ('{FIRST}', 1, 1), ('{SECOND}', 1, 2)",
        "SET time_zone = 'SYSTEM'",
    )
    follower = shop.capture()
    shop.run(change)
    follower.drain()
    assert {k: r["v"] for k, r in follower.rows("moment").items()} == read_values(shop)
