"""Every statement that changes rows is captured, and the application notices nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.mysql.conftest import Shop
from venus.cli.prove.follower import Follower

ITEM = "CREATE TABLE item (id int PRIMARY KEY, code varchar(9) UNIQUE, v int)"
ROWS = "INSERT INTO item VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)"


@pytest.mark.parametrize(
    "statement",
    [
        "REPLACE INTO item VALUES (1, 'z', 9)",
        "REPLACE INTO item VALUES (1, 'b', 9)",  # deletes 1 by its key and 2 by its code
        "INSERT INTO item VALUES (1, 'x', 9) ON DUPLICATE KEY UPDATE v = 10",
        "INSERT INTO item VALUES (7, 'b', 9) ON DUPLICATE KEY UPDATE id = 8",  # changes another row's key
        "INSERT IGNORE INTO item VALUES (1, 'x', 9), (4, 'd', 4), (5, 'c', 5)",
        "UPDATE IGNORE item SET id = id + 1",
        "UPDATE item SET id = id + 10 ORDER BY id DESC",
        "UPDATE item AS a JOIN item AS b ON b.id = a.id + 1 SET a.v = b.v",
        "DELETE a FROM item AS a JOIN item AS b ON b.id = a.id + 1",
        "DELETE FROM item ORDER BY id LIMIT 2",
        "INSERT INTO item SELECT id + 10, NULL, v FROM item",
    ],
)
def test_every_statement_is_captured(shop: Shop, statement: str) -> None:
    shop.run(ITEM, ROWS)
    follower = shop.capture()
    shop.run(statement)
    follower.drain()
    shop.check_same(follower, "item")


@pytest.mark.parametrize("mode", ["", "REPLACE", "IGNORE"])
def test_load_data_is_captured(shop: Shop, tmp_path: Path, mode: str) -> None:
    file = tmp_path / "rows.tsv"
    file.write_text("4\td\t4\n5\te\t5\n" + ("1\tb\t7\n" if mode else ""))
    shop.run(ITEM, ROWS, "SET GLOBAL local_infile = 1")
    follower = shop.capture()
    shop.run(f"LOAD DATA LOCAL INFILE '{file}' {mode} INTO TABLE item")
    follower.drain()
    shop.check_same(follower, "item")


def test_last_insert_id_stays_the_applications_own(shop: Shop) -> None:
    """The log table draws numbers too; LAST_INSERT_ID must not return one of them."""
    shop.run("CREATE TABLE doc (id int AUTO_INCREMENT PRIMARY KEY, v int) AUTO_INCREMENT = 500")
    shop.capture()
    with shop.app.cursor() as cursor:
        assert cursor.execute("INSERT INTO doc (v) VALUES (1), (2)") == 2
        assert cursor.lastrowid == 500
        cursor.execute("SELECT last_insert_id()")
        assert cursor.fetchall() == ((500,),)


def test_an_application_in_any_sql_mode_can_write(shop: Shop) -> None:
    shop.run("CREATE TABLE d (day date PRIMARY KEY, v int)")
    shop.capture()
    for mode in ("TRADITIONAL", "ANSI", "ORACLE", "", "NO_BACKSLASH_ESCAPES"):
        shop.run(f"SET sql_mode = '{mode}'", "REPLACE INTO d VALUES ('2026-01-01', 1)")
    shop.run("SET sql_mode = ''", "INSERT INTO d VALUES ('0000-00-00', 1)")  # a failure of the application's own


def truncate(shop: Shop) -> Follower:
    shop.run(ITEM, ROWS)
    follower = shop.capture()
    shop.run("TRUNCATE TABLE item", "INSERT INTO item VALUES (9, 'new', 9)")
    shop.clock.now += 10
    follower.drain()
    return follower


def test_truncate_is_noticed_and_repaired_by_a_new_fill(shop: Shop) -> None:
    follower = truncate(shop)
    state, reason = shop.state("item")
    assert state == "RESYNC"
    assert "TRUNCATE" in reason
    assert ("9",) in follower.rows("item")
    shop.source.capture.restart_fill(follower.table_id("item"))
    assert shop.state("item") == ("ACTIVE", "")
    follower.drain()
    shop.check_same(follower, "item")


def test_truncate_while_nothing_runs_is_noticed_at_the_start(shop: Shop) -> None:
    shop.run(ITEM, ROWS)
    shop.capture()
    shop.source.close()
    shop.run("TRUNCATE TABLE item")
    shop.restart()
    Follower(shop.source).drain()
    assert shop.state("item")[0] == "RESYNC"


def test_truncate_of_one_partition_is_noticed(shop: Shop) -> None:
    shop.run("CREATE TABLE part (id int PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 3")
    shop.run("INSERT INTO part VALUES (1), (2), (3)")
    follower = shop.capture()
    shop.run("ALTER TABLE part TRUNCATE PARTITION p1")
    shop.clock.now += 10
    follower.drain()
    assert shop.state("part")[0] == "RESYNC"


def test_ordinary_ddl_is_not_taken_as_a_truncate(shop: Shop) -> None:
    shop.run(ITEM, ROWS)
    follower = shop.capture()
    shop.run(
        "ALTER TABLE item ADD w int DEFAULT 5",
        "CREATE INDEX by_v ON item (v)",
        "ALTER TABLE item MODIFY v bigint",  # rebuilds the table: it is filled again
    )
    shop.clock.now += 10
    follower.drain()  # capture notices the rebuild here
    follower.drain()
    assert shop.state("item") == ("ACTIVE", "")
    shop.check_same(follower, "item")
