"""A key gets a wider type at the source: targets alter theirs and continue, under writers and within one cut."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import sqlalchemy

from tests.support.brokers.feed import query
from tests.support.databases.mariadb import MariaServer
from tests.support.databases.postgres import libpq
from tests.support.pipelines.end_to_end import EndToEnd, Loop, end_to_end
from venus.adapters.dialects.registry import open_source
from venus.adapters.targets.relational.control import read_progress
from venus.adapters.verify.findings import ComparisonVerdict

pytestmark = pytest.mark.integration

TABLES = (
    "CREATE TABLE customer (id int NOT NULL PRIMARY KEY, code varchar(4) NOT NULL UNIQUE, name varchar(20))",
    "CREATE TABLE orders (id int NOT NULL, customer_id int NOT NULL, note varchar(20), PRIMARY KEY (id),"
    " CONSTRAINT of_customer FOREIGN KEY (customer_id) REFERENCES customer (id))",
    "CREATE TABLE word (w varchar(4) NOT NULL PRIMARY KEY, n numeric(4) NOT NULL)",
    "INSERT INTO customer VALUES (1, 'a', 'Ann'), (2, 'b', 'Bob'), (3, 'c', 'Cat')",
    "INSERT INTO orders VALUES (1, 1, 'first'), (2, 2, 'second')",
    "INSERT INTO word VALUES ('a', 1), ('b', 2)",
)
WIDER = {
    "postgresql": (
        "ALTER TABLE customer ALTER id TYPE bigint, ALTER code TYPE varchar(40)",
        "INSERT INTO customer VALUES (3000000000, 'much longer', 'Dan')",
        "ALTER TABLE orders ALTER customer_id TYPE bigint, ALTER id TYPE bigint",
        "ALTER TABLE word ALTER w TYPE text, ALTER n TYPE numeric(20)",
    ),
    "mysql": (
        "ALTER TABLE orders DROP FOREIGN KEY of_customer",
        "ALTER TABLE customer MODIFY id bigint NOT NULL, MODIFY code varchar(40) NOT NULL",
        "INSERT INTO customer VALUES (3000000000, 'much longer', 'Dan')",
        "ALTER TABLE orders MODIFY customer_id bigint NOT NULL, MODIFY id bigint NOT NULL",
        "ALTER TABLE orders ADD CONSTRAINT of_customer FOREIGN KEY (customer_id) REFERENCES customer (id)",
        "ALTER TABLE word MODIFY w varchar(40) NOT NULL, MODIFY n decimal(20) NOT NULL",
    ),
}
BEHIND = (
    "INSERT INTO orders VALUES (4000000000, 3000000000, 'wide'), (3, 1, 'third')",
    "INSERT INTO word VALUES ('a long word', 12345678901234567890)",
    "UPDATE customer SET id = 5000000000 WHERE id = 3",
    "UPDATE orders SET note = 'changed' WHERE id = 1",
    "DELETE FROM orders WHERE id = 2",
    "DELETE FROM word WHERE w = 'a'",
)
KEYS = {"customer": "id", "orders": "id", "word": "w"}


class Shop:
    """A source of one dialect, with a session of its application."""

    def __init__(self, make: str, url: str, session: Any, namespace: str) -> None:
        self.make, self.url, self.namespace = make, url, namespace
        self._session = session

    def do(self, *statements: str) -> list[tuple[Any, ...]]:
        """Execute statements, each in a transaction of its own."""
        cursor = self._session.cursor()
        for text in statements:
            cursor.execute(text)
        return [tuple(row) for row in cursor.fetchall()] if cursor.description else []


@pytest.fixture(params=["postgresql", "mysql"])
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    if request.param == "postgresql":
        url = request.getfixturevalue("database")
        with closing(psycopg2.connect(libpq(url))) as session:
            session.autocommit = True
            yield Shop(request.param, url, session, "public")
        return
    url = request.getfixturevalue("mariadb_database")
    server: MariaServer = request.getfixturevalue("mariadb_server")
    name = str(sqlalchemy.make_url(url).database)
    with closing(server.connect(name, autocommit=True)) as session:
        yield Shop(request.param, url, session, name)


@contextmanager
def at_work(folder: Path, shop: Shop, target: str) -> Iterator[EndToEnd]:
    shop.do(*TABLES)
    with end_to_end(folder, shop.url, target) as e2e:
        e2e.install()
        e2e.load()
        e2e.start()
        e2e.wait_until_caught_up()
        yield e2e


def assert_followed(e2e: EndToEnd, shop: Shop) -> None:
    """Compare the rows by VENUS's comparison and by SQL; check states, types and the foreign key."""
    e2e.wait_until_caught_up()
    e2e.until(lambda: e2e.verify().verdict is ComparisonVerdict.SAME, "all tables to be the same")
    for table, key in KEYS.items():
        here = shop.do(f"SELECT * FROM {table} ORDER BY {key}")
        assert sorted(map(str, here)) == sorted(map(str, query(e2e.target, f"SELECT * FROM {shop.namespace}.{table}")))
    with closing(open_source(e2e.settings)) as source:
        assert {(t.state, t.reason) for t in source.registry.read_registered_tables()} == {("ACTIVE", "")}
    assert {t.state for t in read_progress(e2e.settings, "main").tables} == {"ACTIVE"}
    types = (
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = '{}'::regclass AND attname = '{}'"
    )
    assert [
        query(e2e.target, types.format(f"{shop.namespace}.{t}", c))[0][0]
        for t, c in (("customer", "id"), ("orders", "id"), ("orders", "customer_id"))
    ] == ["bigint"] * 3


@pytest.mark.parametrize("live", [True, False], ids=["live", "one-cut"])
def test_a_wider_key_is_followed_by_the_target(live: bool, tmp_path: Path, shop: Shop, second_database: str) -> None:
    with at_work(tmp_path, shop, second_database) as e2e:
        if not live:
            e2e.stop("capture")
        for text in (*WIDER[shop.make], *BEHIND):
            shop.do(text)
            if live:
                e2e.wait_until_caught_up()
        if not live:
            e2e.start("capture")
        assert_followed(e2e, shop)


class Writers:
    """Sessions that continuously insert, change and delete rows by their keys."""

    def __init__(self, run: Callable[[int, int], None]) -> None:
        self.rounds = [0, 0]
        self._loops = [Loop(lambda stop, n=n: self._write(stop, n, run)) for n in range(2)]  # type: ignore[misc]

    def _write(self, stop: threading.Event, number: int, run: Callable[[int, int], None]) -> None:
        while not stop.is_set():
            run(number, self.rounds[number])
            self.rounds[number] += 1

    def wait(self, e2e: EndToEnd, rounds: int) -> None:
        """Wait until each session has completed this many more rounds."""
        goal = [done + rounds for done in self.rounds]
        e2e.until(lambda: all(d >= g for d, g in zip(self.rounds, goal, strict=True)), "writers to write")

    def end(self) -> None:
        """End the sessions; raise the error of any statement."""
        for loop in self._loops:
            loop.end()


def test_a_wider_key_is_followed_while_writers_run(tmp_path: Path, database: str, second_database: str) -> None:
    engine = sqlalchemy.create_engine(database, isolation_level="AUTOCOMMIT")
    wide = threading.Event()

    def write(number: int, turn: int) -> None:
        base = 10_000 * (number + 1) + turn
        ids = [base, base + (3_000_000_000 if wide.is_set() else 100_000)]
        with engine.connect() as session:
            for one in ids:
                session.exec_driver_sql(f"INSERT INTO word VALUES ('{one}', {one})")
                session.exec_driver_sql(f"INSERT INTO part VALUES ({one}, {number}, 'new')")
            session.exec_driver_sql(f"UPDATE part SET v = 'changed' WHERE id = {ids[1]}")
            session.exec_driver_sql(f"DELETE FROM part WHERE id = {ids[0]}")
            session.exec_driver_sql(f"UPDATE word SET w = 'x{base}' WHERE w = '{ids[1]}'")

    with engine.connect() as session:
        session.exec_driver_sql("CREATE TABLE word (w varchar(12) PRIMARY KEY, n bigint UNIQUE)")
        session.exec_driver_sql("CREATE TABLE part (id int, p int, v text, PRIMARY KEY (id, p)) PARTITION BY LIST (p)")
        for n in range(2):
            session.exec_driver_sql(f"CREATE TABLE part_{n} PARTITION OF part FOR VALUES IN ({n})")
    with end_to_end(tmp_path, database, second_database) as e2e:
        e2e.install()
        e2e.load()
        e2e.start()
        writers = Writers(write)
        try:
            writers.wait(e2e, 10)
            with engine.connect() as session:
                session.exec_driver_sql("ALTER TABLE part ALTER id TYPE bigint")
                session.exec_driver_sql("ALTER TABLE word ALTER w TYPE varchar(30)")
            wide.set()
            writers.wait(e2e, 10)
        finally:
            writers.end()
        e2e.wait_until_caught_up()
        e2e.until(lambda: e2e.verify().verdict is ComparisonVerdict.SAME, "all tables to be the same")
        for table in ("word", "part"):
            rows = f"SELECT * FROM {table} ORDER BY 1, 2"
            assert query(e2e.target, rows) == query(database, rows)
        assert query(database, "SELECT count(*) FROM part WHERE id > 2147483647") > [(9,)]
        with closing(open_source(e2e.settings)) as source:
            assert {(t.state, t.reason) for t in source.registry.read_registered_tables()} == {("ACTIVE", "")}
    engine.dispose()
