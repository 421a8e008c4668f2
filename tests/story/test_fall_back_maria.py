"""From MariaDB to PostgreSQL and back without losing new writes, as an operator does it (scenario 93)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.simulation.patching import SourceEdit
from tests.support.databases.mariadb import MariaServer
from tests.support.databases.postgres import Server
from tests.support.pipelines.held_steps import (
    SHORT_WAITS,
    build_steps,
    choose_steps,
    hold_step,
    kill_and_complete,
    start_pair,
    wait_until_reported,
)
from tests.support.pipelines.old_databases import MariaPair
from tests.support.pipelines.switched_pair import BACK, FORWARD, QUIET, run_statements
from tests.support.waiting import eventually
from venus.adapters.dialects.mysql.torture import COLUMNS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

_SHOP = """
CREATE TABLE customer (id bigint AUTO_INCREMENT PRIMARY KEY, name varchar(80) NOT NULL UNIQUE,
    credit decimal(10, 2) DEFAULT 0, since datetime(6) DEFAULT current_timestamp(6), note blob);
CREATE TABLE orders (no int AUTO_INCREMENT PRIMARY KEY, customer bigint, what varchar(12),
    FOREIGN KEY (customer) REFERENCES customer (id) ON DELETE CASCADE);
INSERT INTO customer (name, note) VALUES ('ann', x'00ff'), ('bob', NULL);
INSERT INTO orders (customer, what) VALUES (1, 'a'), (2, NULL);
CREATE TABLE probe (n int PRIMARY KEY);
INSERT INTO probe VALUES (1);
"""


class ShopPair(MariaPair):
    """A pair with the tables of the shop."""

    def is_equal(self) -> bool:
        """Return whether both databases have the same rows."""
        queries = ("SELECT id, name, credit, note FROM customer ORDER BY 1", "SELECT * FROM orders ORDER BY 1")
        return all(to_plain(self.old(q)) == to_plain(self.new(q)) for q in queries)

    def until_equal(self) -> None:
        """Wait until both databases have the same rows."""
        eventually(self.is_equal, lambda: self.pipeline.tail(), timeout_s=120.0, every_s=0.1)


def to_plain(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [tuple(bytes(v) if isinstance(v, memoryview) else v for v in row) for row in rows]


@pytest.fixture
def pair(
    tmp_path: Path, mariadb_server: MariaServer, mariadb_database: str, postgres_server: Server
) -> Iterator[ShopPair]:
    found = ShopPair(tmp_path, mariadb_server, mariadb_database, postgres_server)
    try:
        yield found
    finally:
        found.close()


def test_a_switch_to_postgresql_and_back(pair: ShopPair) -> None:
    pair.start(_SHOP)
    pipeline = pair.pipeline
    assert pipeline.ask(*FORWARD, "--rehearse", *QUIET)["blocks"] == []
    assert pair.switch(*FORWARD)["equal"]
    assert pair.writable() == ["new"]
    assert "the old database follows" in pipeline.venus("status", code=(0, 1)).out

    pair.new("INSERT INTO customer (name) VALUES ('carl')")
    pair.new("INSERT INTO orders (customer, what) VALUES (3, 'there')")
    pair.new("DELETE FROM customer WHERE name = 'bob'")
    with closing(pair.connect_new()) as connection:
        connection.autocommit = False
        connection.cursor().execute("INSERT INTO customer (name) VALUES ('rolled back')")  # draws the number 4
    pair.until_equal()
    assert pair.count_logged() == 0
    assert pipeline.ask("verify")["verdict"] == "same"

    assert pipeline.ask(*BACK, "--rehearse", *QUIET)["blocks"] == []
    assert pair.switch(*BACK)["equal"]
    assert pair.writable() == ["old"]
    pair.old("INSERT INTO customer (name) VALUES ('dora')")
    pair.old("INSERT INTO orders (customer, what) VALUES (5, 'back')")
    pair.until_equal()
    assert pair.old("SELECT id FROM customer ORDER BY 1") == [(1,), (3,), (5,)]
    assert pair.new("SELECT count(*) FROM venus.load_job") == [(1,)]
    assert pair.old("SELECT count(*) FROM venus_load_job") == [(0,)]

    assert pipeline.stop("sync") == 0
    pipeline.ask("uninstall-triggers")
    assert pair.writable() == ["old", "new"]
    assert pair.old("SHOW TABLES LIKE 'venus%'") == []
    assert pair.old("SHOW TRIGGERS") == []


STEPS = build_steps()


@pytest.mark.parametrize("step", choose_steps(STEPS, "stop", "follow", "back-open"))
def test_a_kill_at_each_step_is_completed_by_the_same_command(pair: ShopPair, step: str) -> None:
    kill_and_complete(pair, STEPS[step], _SHOP, "INSERT INTO customer (name) VALUES ('carl')")
    pair.until_equal()


#: Sessions of a switch wait one second for locks, so that the test need not hold a lock for long.
_SHORT_WAITS = (
    SourceEdit(
        where="venus.adapters.targets.mysql.cutover.side:MysqlSide._limit_lock_waits",
        old="max(milliseconds // 1000, 1)",
        new="1",
    ),
    *SHORT_WAITS,
)


@pytest.mark.parametrize("step", choose_steps([step for step in STEPS if step != "back-close"], "back-open"))
def test_a_lock_that_is_held_for_longer_than_its_time_limit_delays_each_step(pair: ShopPair, step: str) -> None:
    held = STEPS[step]
    pipeline = pair.pipeline
    pipeline.edit_processes(_SHORT_WAITS)
    pipeline.source += "?venus_lock_timeout_s=1"
    start_pair(pair, held, _SHOP)
    with hold_step(pair, held) as begin:
        wait_until_reported(pipeline, begin)
        assert held.writable or pair.writable() == []
    assert pipeline.running.pop("switch").wait(240) == 0, pipeline.tail()
    assert pair.writable() == [held.owner]
    pair.until_equal()


def test_a_lock_that_is_never_released_ends_the_switch_with_a_remedy(pair: ShopPair) -> None:
    pipeline = pair.pipeline
    pipeline.edit_processes(_SHORT_WAITS)
    pipeline.source += "?venus_lock_timeout_s=1"
    pair.start(_SHOP)
    pair.switch(*FORWARD)
    with closing(pair.connect_old()) as holder:
        run_statements(holder, STEPS["back-open"].lock)
        said = pipeline.venus(*BACK, "--quiet", "0.2", "--wait", "3", code=75).err
        assert re.search(
            r"^venus: .*Lock wait timeout exceeded.*; open transactions: .*session \d+", said, re.MULTILINE
        )
        assert "End the transaction that holds the lock, and run the command again" in said
        assert pair.writable() == ["new"]
    pair.switch(*BACK)
    assert pair.writable() == ["old"]


def test_a_transaction_with_an_older_snapshot_cannot_write_after_the_closing(pair: ShopPair) -> None:
    pair.start(_SHOP)
    pair.switch(*FORWARD)
    pair.switch(*BACK)
    with closing(pair.server.connect(pair.database)) as late:
        cursor = late.cursor()
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        pair.switch(*FORWARD)
        with pytest.raises(pymysql.err.OperationalError, match="keeps this database equal"):
            cursor.execute("UPDATE orders SET what = 'late' WHERE no = 1")


def test_triggers_of_the_application_are_named_and_may_be_changed(pair: ShopPair) -> None:
    pair.start(
        _SHOP
        + "CREATE TABLE audited (what varchar(20), id int AUTO_INCREMENT PRIMARY KEY);"
        + "CREATE TRIGGER audit AFTER INSERT ON orders FOR EACH ROW INSERT INTO audited (what) VALUES ('insert');"
    )
    pipeline = pair.pipeline
    said = pipeline.venus(*FORWARD, *QUIET, code=3).err
    assert "trigger audit of orders would fire for changes of VENUS" in said
    assert pair.writable() == ["old", "new"]
    adapted = "IF @venus_apply IS NULL THEN INSERT INTO audited (what) VALUES ('insert'); END IF"
    pair.server.execute(f"CREATE OR REPLACE TRIGGER audit AFTER INSERT ON orders FOR EACH ROW {adapted}", pair.database)
    pair.switch(*FORWARD)
    before = pair.old("SELECT count(*) FROM audited")
    pair.new("INSERT INTO orders (customer, what) VALUES (1, 'there')")
    pair.until_equal()
    assert pair.old("SELECT count(*) FROM audited") == before
    pair.switch(*BACK)
    pair.old("INSERT INTO orders (customer, what) VALUES (1, 'back')")
    assert pair.old("SELECT count(*) FROM audited") != before


_TEXTS = """
CREATE TABLE label (name varchar(20) COLLATE utf8mb4_general_ci PRIMARY KEY, kind enum('small', 'large'),
    code binary(4), at time);
CREATE TABLE orders (no int PRIMARY KEY, what varchar(12));
INSERT INTO label VALUES ('A', 'small', 'abcd', '100:00:00');
INSERT INTO orders VALUES (1, 'probe');
"""
#: Rows that MariaDB would store with other values, or in place of another row.
_UNLIKE = (
    "('a', 'small', 'abcd', '0')",
    "('b', 'small', 'ab', '0')",
    "('c', 'small', 'abcd', '1 day 02:00:00')",
)


def test_a_value_that_the_old_database_would_alter_is_quarantined(pair: ShopPair) -> None:
    pair.start(_TEXTS)
    pipeline = pair.pipeline
    pair.switch(*FORWARD)
    pair.new("INSERT INTO label VALUES ('good', 'large', 'efgh', '838:59:59')")
    for row in _UNLIKE:
        pair.new(f"INSERT INTO label VALUES {row}")
    pair.new("UPDATE orders SET what = 'follows'")
    pipeline.until(lambda: pair.old("SELECT what FROM orders") == [("follows",)], "the other table to follow")

    def quarantined_keys() -> list[str]:
        document = pipeline.ask("quarantine", "list", "--target", "@source", code=(0, 1))
        return [row["key"] for row in document["quarantine"]["@source"]]

    pipeline.until(lambda: len(quarantined_keys()) == len(_UNLIKE), "the rows to wait", every_s=0.5)
    assert pair.old("SELECT name FROM label ORDER BY name") == [("A",), ("good",)]
    assert pipeline.venus(*BACK, *QUIET, code=3).err.count("quarantine")


def dump(pair: ShopPair) -> list[tuple[Any, ...]]:
    """Return every value of the table as the server stores it."""
    exact = [f"{name} * 1e0" for name, c in COLUMNS.items() if c.type.startswith(("float", "double"))]
    columns = ", ".join([*(f"hex({name}), concat({name})" for name in COLUMNS), *exact])
    return pair.old(f"SELECT id, {columns} FROM torture ORDER BY id")


def test_every_type_comes_back_byte_for_byte(pair: ShopPair) -> None:
    numbers = count(1)
    declared = ", ".join(f"{name} {c.type}" for name, c in COLUMNS.items())
    pair.old("CREATE TABLE orders (no int PRIMARY KEY, what text); INSERT INTO orders VALUES (1, 'probe')")
    pair.old(f"CREATE TABLE torture (id int PRIMARY KEY, {declared})")
    for name, column in COLUMNS.items():
        for sql, _ in column.values:
            pair.server.execute(f"INSERT INTO torture (id, {name}) VALUES ({next(numbers)}, {sql})", pair.database)
    pair.start("")
    pair.switch(*FORWARD)
    before = dump(pair)  # the first write gives each row another key, so that the whole row is sent back
    pair.new("UPDATE torture SET id = id + 1000000")
    pair.pipeline.until(lambda: len(pair.old("SELECT 1 FROM torture WHERE id > 1000000")) == len(before), "all rows")
    assert [(i - 1_000_000, *row) for i, *row in dump(pair)] == before
    assert pair.pipeline.ask("verify")["verdict"] == "same"
    assert pair.switch(*BACK)["equal"]
