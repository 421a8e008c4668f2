"""Comparisons while an application writes: rollbacks, key changes, cascades, TRUNCATE, and never a false finding.

The planted differences are in rows that no transaction changes; all other rows change all the time. bench/verify.py
measures the load of the issue (1,000 changes/s, a million rows, 20 runs).
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.databases.postgres import Server
from tests.support.databases.shops import PostgresShop, Shop, SqliteShop
from tests.support.pipelines.end_to_end import EndToEnd, difference_keys, end_to_end, run_at

pytestmark = [pytest.mark.fault, pytest.mark.integration, pytest.mark.timeout(600)]

RUNS = 4
Found = tuple[str, tuple[str, ...], str, str]


@pytest.mark.slow
def test_a_postgresql_shop_in_use(tmp_path: Path, postgres_server: Server, second_database: str) -> None:
    source = postgres_server.create_database()
    shop = PostgresShop(postgres_server, source, source)
    run_at(
        source,
        "INSERT INTO shop.account (id, owner, balance) VALUES (90000001, 'untouched', 1)",
        "INSERT INTO shop.entry (account, no, amount) VALUES (90000001, 5, 1)",
    )
    with end_to_end(tmp_path, source, second_database, tables=["shop.*"]) as e2e:
        e2e.install()
        e2e.load()
        e2e.start()
        e2e.at_target(
            "SET session_replication_role = replica",
            "DELETE FROM shop.entry WHERE account = 90000001",
            "INSERT INTO shop.entry (account, no, amount, at) VALUES (-1, -1, 1, now())",
        )
        run_at(
            source,
            "SET session_replication_role = replica",
            "INSERT INTO shop.scratch VALUES ('past the trigger', '1 day')",
        )
        planted = {
            ("entry", ("90000001", "5"), "missing", "apply"),
            ("entry", ("-1", "-1"), "extra", "apply"),
            ("scratch", ("past the trigger",), "missing", "capture"),
        }
        _compare_under_load(shop, e2e, planted, {("scratch", ("past the trigger",), "missing", "capture")})
    postgres_server.drop_database(source)


@pytest.mark.slow
def test_a_sqlite_shop_in_use(tmp_path: Path, second_database: str) -> None:
    shop = SqliteShop(tmp_path)
    with closing(sqlite3.connect(shop.file)) as connection, connection:
        connection.execute("CREATE TABLE quiet (id INTEGER PRIMARY KEY, v TEXT)")
        connection.executemany("INSERT INTO quiet VALUES (?, 'x')", [(n,) for n in range(100)])
    with end_to_end(tmp_path, shop.url, second_database) as e2e:
        e2e.install()
        e2e.load()
        e2e.start()
        e2e.at_target(
            "SET session_replication_role = replica",
            "DELETE FROM quiet WHERE id = 3",
            "INSERT INTO orders VALUES (-1, 1, now(), 'ghost', 1)",
        )
        planted: set[Found] = {("quiet", ("3",), "missing", "apply"), ("orders", ("-1",), "extra", "apply")}
        _compare_under_load(shop, e2e, planted, set())


def _compare_under_load(shop: Shop, e2e: EndToEnd, planted: set[Found], fleeting: set[Found]) -> None:
    e2e.wait_until_caught_up()
    shop.open_doors()
    seen = 0
    try:
        for _ in range(RUNS):
            for leg in ("ends", "all"):
                result = e2e.verify(leg=leg, wait_s=60.0)
                # a TRUNCATE removes the differences that were planted in its table
                assert planted - fleeting <= difference_keys(result) <= planted, (
                    difference_keys(result),
                    result.undecided_rows,
                )
                assert not result.undecided_rows
                seen += sum(t.in_flight for t in result.tables)
    finally:
        shop.close_doors()
    e2e.wait_until_caught_up()
    assert planted - fleeting <= difference_keys(e2e.verify(leg="all")) <= planted
    assert seen > 0, "nothing was on its way: this has tested nothing"
