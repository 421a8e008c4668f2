"""A replica: its own triggers do not fire for replicated rows, and `venus check` says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.integration.mysql.conftest import Shop
from tests.support.databases.mariadb import DEFAULT_MODE, running_mariadb


@pytest.fixture
def replica() -> Iterator[Shop]:
    """Start a replica with a table of its primary; yield it and a session at the primary."""
    with (
        running_mariadb(DEFAULT_MODE, "--log-bin=log", "--binlog-format=ROW", "--server-id=1") as primary,
        running_mariadb(DEFAULT_MODE, "--server-id=2") as server,
    ):
        primary.execute("GRANT REPLICATION SLAVE ON *.* TO 'taker'@'127.0.0.1' IDENTIFIED BY 'pw'")
        server.execute(
            f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {primary.port}, MASTER_USER = 'taker',"
            " MASTER_PASSWORD = 'pw', MASTER_LOG_POS = 4"
        )
        server.execute("START SLAVE")
        primary.execute("CREATE DATABASE shop")
        primary.execute("CREATE TABLE shop.item (id int PRIMARY KEY)")
        shop = Shop(server, server.url("shop"), primary.connect("shop", autocommit=True))
        shop.wait_for("SELECT 1 FROM information_schema.tables WHERE table_schema = 'shop' AND table_name = 'item'")
        with closing(shop):
            yield shop
        server.execute("STOP SLAVE")


def test_check_says_that_no_triggers_fire_and_its_remedy_works(replica: Shop) -> None:
    (finding,) = replica.source.installer.check(["*"], [])
    assert "fire no triggers" in finding.message
    follower = replica.capture("item")
    replica.run("INSERT INTO item VALUES (1)")
    replica.wait_for("SELECT 1 FROM shop.item WHERE id = 1")
    follower.drain()
    assert follower.rows("item") == {}

    statements = finding.remedy.partition(", or ")[2].partition(" (")[0]
    for statement in statements.split("; "):
        replica.server.execute(statement)
    assert replica.source.installer.check(["*"], []) == []
    replica.run("INSERT INTO item VALUES (2)")
    replica.wait_for("SELECT 1 FROM shop.item WHERE id = 2")
    follower.drain()
    assert set(follower.rows("item")) == {("2",)}
