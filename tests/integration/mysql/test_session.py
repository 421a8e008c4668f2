"""What the server's configuration gives to every session, and VENUS's sessions must not take over."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.integration.mysql.conftest import Shop
from tests.support.follower import Follower
from tests.support.mariadb import MariaServer

Configure = Callable[[str, int], None]


@pytest.fixture
def configure(mariadb_server: MariaServer) -> Iterator[Configure]:
    """Give a variable of the server another value for one test."""
    before: dict[str, int] = {}

    def to(name: str, value: int) -> None:
        ((before[name],),) = mariadb_server.execute(f"SELECT CAST(@@global.{name} + 0 AS UNSIGNED)")
        mariadb_server.execute(f"SET GLOBAL {name} = {value}")

    yield to
    for name, value in before.items():
        mariadb_server.execute(f"SET GLOBAL {name} = {value}")


def test_a_limit_on_rows_loses_no_change(shop: Shop, configure: Configure) -> None:
    shop.run("CREATE TABLE item (id int PRIMARY KEY, v int)", "INSERT INTO item SELECT seq, seq FROM seq_1_to_60")
    before = shop.capture()
    configure("sql_select_limit", 14)
    shop.restart()
    follower = Follower(shop.source)
    follower.tables = before.tables
    shop.run("SET sql_select_limit = DEFAULT", "UPDATE item SET v = 0 ORDER BY id DESC", "SET sql_select_limit = 1000")
    follower.drain()
    shop.same(follower, "item")


def test_keys_that_begin_alike_for_longer_than_the_server_sorts_by_are_all_read(shop: Shop) -> None:
    """A SET is sorted by its text, by no index; the server compares 1,024 bytes unless told otherwise."""
    labels = ", ".join(f"'{letter * 60}'" for letter in "abcdefghijklmnopqrst")
    shop.run(
        f"CREATE TABLE item (k set({labels}) PRIMARY KEY)",
        "INSERT INTO item SELECT (1 << 20) - 1 - seq FROM seq_0_to_300",
    )
    shop.source.install(["*"], [])
    follower = Follower(shop.source)
    follower.drain(fill_rows=7)
    assert len(follower.rows("item")) == 301


def test_a_small_sort_buffer_stops_nothing(shop: Shop, configure: Configure) -> None:
    configure("sort_buffer_size", 32768)
    shop.run("CREATE TABLE item (k varchar(768) PRIMARY KEY)")
    follower = shop.capture()
    shop.run("INSERT INTO item SELECT concat(repeat('a', 100), seq) FROM seq_1_to_3000")
    follower.drain()
    assert len(follower.rows("item")) == 3000


def test_what_is_said_behind_a_cut_is_committed(shop: Shop, configure: Configure) -> None:
    """With CHAIN a COMMIT begins the next transaction, which nobody would end."""
    configure("completion_type", 1)
    shop.run("CREATE TABLE item (id int PRIMARY KEY)")
    follower = shop.capture()
    shop.run("INSERT INTO item VALUES (1)")
    follower.drain()
    shop.source.set_table_state(follower.table_id("item"), "RESYNC", "")
    assert shop.run("SELECT state FROM venus_captured_table WHERE name = 'item'") == [("RESYNC",)]


def test_a_definition_is_read_in_one_spelling(shop: Shop, configure: Configure) -> None:
    configure("sql_quote_show_create", 0)
    shop.run(
        "CREATE TABLE item (id int PRIMARY KEY, twice int AS (id * 2) VIRTUAL)", "INSERT INTO item (id) VALUES (1)"
    )
    follower = shop.capture()
    shop.source.refresh_schemas()
    shop.run("ALTER TABLE item MODIFY twice int AS (id * 3) VIRTUAL")
    shop.source.refresh_schemas()
    follower.drain()
    shop.same(follower, "item")
