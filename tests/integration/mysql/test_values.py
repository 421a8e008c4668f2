"""Values without a canonical form are never silently changed."""

from __future__ import annotations

import pytest

from tests.integration.mysql.conftest import Shop
from venus.errors import ConfigError, Refused

DAYS = "CREATE TABLE days (id int PRIMARY KEY, d date NOT NULL, t datetime(3), s timestamp NULL)"
ZERO = "INSERT INTO days VALUES (1, '2026-01-01', NULL, NULL), (2, '0000-00-00', '2026-00-10 01:02:03', 0)"
LAX = "SET sql_mode = 'ALLOW_INVALID_DATES'"


def test_zero_dates_refuse_the_installation(shop: Shop) -> None:
    shop.run(LAX, DAYS, ZERO)
    with pytest.raises(Refused, match="zero date") as refused:
        shop.source.installer.install(["*"], [])
    assert "venus_zero_dates=null" in refused.value.hint


@pytest.mark.parametrize("value", ["'0000-00-00'", "'2026-02-31'", "'2026-05-00'"])
def test_a_row_that_cannot_be_carried_halts_its_table_and_is_retried(shop: Shop, value: str) -> None:
    shop.run(LAX, DAYS, "CREATE TABLE other (id int PRIMARY KEY)")
    follower = shop.capture()
    shop.run(f"INSERT INTO days VALUES (1, '2026-01-01', NULL, NULL), (2, {value}, NULL, NULL)")
    shop.run("INSERT INTO other VALUES (1)")
    follower.drain()
    state, reason = shop.state("days")
    assert state == "PAUSED"
    assert "id='2'" in reason
    assert "column d" in reason
    assert set(follower.rows("other")) == {("1",)}
    shop.source.capture.refresh_schemas()
    assert shop.state("days")[0] == "PAUSED"
    shop.run("UPDATE days SET d = '2026-02-01' WHERE id = 2")
    shop.source.capture.refresh_schemas()
    assert shop.state("days") == ("ACTIVE", "")
    follower.drain()
    shop.check_same(follower, "other")
    assert [r["d"] for r in follower.rows("days").values()] == ["2026-01-01", "2026-02-01"]


def test_a_row_that_fits_into_no_message_halts_its_table(shop: Shop) -> None:
    shop.run("CREATE TABLE doc (id int PRIMARY KEY, body longblob)", "CREATE TABLE other (id int PRIMARY KEY)")
    follower = shop.capture()
    shop.run("INSERT INTO doc VALUES (7, repeat('x', 16000000)), (8, 'small')", "INSERT INTO other VALUES (1)")
    follower.drain()
    assert shop.state("doc") == ("PAUSED", "cannot be carried: row id='7': 15.3 MiB, a row can have 15 MiB")
    assert set(follower.rows("other")) == {("1",)}


def test_zero_dates_become_null_where_the_url_says_so(shop: Shop) -> None:
    shop.options = "?venus_zero_dates=null"
    shop.run(LAX, DAYS, ZERO)
    follower = shop.capture()
    assert follower.rows("days")["2",] == {"id": "2", "d": None, "t": None, "s": None}
    assert all(c.nullable for c in shop.schema(follower, "days").columns[1:])
    shop.run("INSERT INTO days VALUES (3, '0000-00-00', '2026-01-01 00:00:00.5', NULL)")
    follower.drain()
    assert follower.rows("days")["3",] == {"id": "3", "d": None, "t": "2026-01-01 00:00:00.5", "s": None}


@pytest.mark.parametrize("option", ["venus_zero_dates=keep", "venus_nonsense=1", "ssl=x"])
def test_an_unknown_option_is_refused(shop: Shop, option: str) -> None:
    shop.options = f"?{option}"
    with pytest.raises(ConfigError, match=option.partition("=")[0]):
        _ = shop.source


def test_generated_and_invisible_columns_are_carried(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE g (id int PRIMARY KEY, a int, b int AS (a * 2) VIRTUAL, c int AS (a + 1) STORED, x int INVISIBLE)"
    )
    follower = shop.capture()
    shop.run("INSERT INTO g (id, a, x) VALUES (1, 5, 9)")
    follower.drain()
    assert follower.rows("g")["1",] == {"id": "1", "a": "5", "b": "10", "c": "6", "x": "9"}


def test_the_server_and_the_application_may_be_in_any_time_zone(shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY, s timestamp(3) NULL)")
    follower = shop.capture()
    shop.run("SET time_zone = '+05:30'", "INSERT INTO t VALUES (1, '2026-01-01 00:00:00.250')")
    follower.drain()
    assert follower.rows("t")["1",]["s"] == "2025-12-31 18:30:00.25+00"


@pytest.mark.parametrize(
    ("charset", "value"), [("cp1251", "98"), ("ascii", "E4"), ("greek", "AA"), ("tis620", "A0"), ("gbk", "A2A0")]
)
def test_bytes_that_are_no_valid_text_halt_their_table(shop: Shop, charset: str, value: str) -> None:
    """The server returns a question mark for them; a stored question mark is a text like any other."""
    shop.run(
        f"CREATE TABLE old (id int PRIMARY KEY, t text CHARACTER SET {charset})", "INSERT INTO old VALUES (1, '?')"
    )
    follower = shop.capture()
    assert follower.rows("old")["1",]["t"] == "?"
    shop.run(f"INSERT INTO old VALUES (2, x'61{value}')")
    follower.drain()
    assert shop.state("old") == (
        "PAUSED",
        f"cannot be carried: row id='2': column t: its bytes '61{value}' are not text in {charset}",
    )
    shop.run("UPDATE old SET t = 'a' WHERE id = 2")
    shop.source.capture.refresh_schemas()
    follower.drain()
    shop.check_same(follower, "old")


def test_keys_with_bytes_that_are_no_valid_text_are_not_taken_as_one_key(shop: Shop) -> None:
    shop.run("CREATE TABLE old (k varchar(9) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY)")
    follower = shop.capture()
    shop.run("INSERT INTO old VALUES (x'e4'), (x'e5')")
    follower.drain()
    assert shop.state("old")[0] == "PAUSED"


@pytest.mark.parametrize("when", ["filled", "changed"])
def test_half_a_surrogate_pair_halts_its_table_alone(shop: Shop, when: str) -> None:
    """MariaDB accepts it as utf8mb4; no decoder does."""
    shop.run("CREATE TABLE doc (id int PRIMARY KEY, t text)", "CREATE TABLE other (id int PRIMARY KEY)")
    row = "INSERT INTO doc VALUES (1, x'eda080')"
    if when == "filled":
        shop.run(row)
    follower = shop.capture()
    if when == "changed":
        shop.run(row)
    shop.run("INSERT INTO other VALUES (1)")
    follower.drain()
    assert shop.state("doc") == ("PAUSED", "cannot be carried: a text has the bytes eda080, which are no Unicode")
    assert set(follower.rows("other")) == {("1",)}
