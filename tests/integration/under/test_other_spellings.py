"""Foreign keys that hold by collation only are named before the load; the printed statement makes them exact."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy

from tests.support.brokers.feed import query
from tests.support.databases.mariadb import MariaServer
from tests.support.pipelines.end_to_end import EndToEnd, difference_keys, end_to_end
from venus.adapters.dialects.registry import open_source
from venus.adapters.targets.relational.full_sync import full_sync
from venus.adapters.upper.capture import run_capture_fill
from venus.model import Finding

pytestmark = pytest.mark.integration

_CODE = "varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci"
TABLES = {
    "mariadb": (
        f"CREATE TABLE customer (code {_CODE} NOT NULL PRIMARY KEY, name varchar(50))",
        f"CREATE TABLE invoice (id int PRIMARY KEY, code {_CODE},"
        " CONSTRAINT invoice_customer FOREIGN KEY (code) REFERENCES customer (code) ON UPDATE CASCADE)",
        f"CREATE TABLE line (id int PRIMARY KEY, code {_CODE},"
        " CONSTRAINT line_customer FOREIGN KEY (code) REFERENCES customer (code))",
        "INSERT INTO customer VALUES ('abc', 'Ann'), ('stra\u00dfe', 'Bob'), ('x ', 'blank'), ('\u00e9', 'accent')",
        "INSERT INTO invoice VALUES (1, 'ABC'), (2, 'STRASSE'), (3, 'x'), (4, 'E'), (5, 'abc'), (6, NULL)",
        "INSERT INTO line VALUES (1, 'abc')",
    ),
    "sqlite": (
        "CREATE TABLE customer (code TEXT COLLATE NOCASE NOT NULL PRIMARY KEY, name TEXT)",
        "CREATE TABLE invoice (id INTEGER PRIMARY KEY, code TEXT REFERENCES customer (code))",
        "CREATE TABLE line (id INTEGER PRIMARY KEY, code TEXT REFERENCES customer (code))",
        "INSERT INTO customer VALUES ('abc', 'Ann'), ('x', 'Bob')",
        "INSERT INTO invoice VALUES (1, 'ABC'), (2, 'X'), (5, 'abc'), (6, NULL)",
        "INSERT INTO line VALUES (1, 'abc')",
    ),
}
#: For each dialect: rows that refer to another spelling, and the name of the foreign key.
EXPECTED = {"mariadb": ("4 rows", "invoice_customer"), "sqlite": ("2 rows", "invoice_fk0")}


class CollatedSource:
    """A source of one dialect with the tables of this test."""

    def __init__(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self.dialect: str = request.param
        self._file = folder / "app.db"
        self.url = f"sqlite:///{self._file}"
        if self.dialect == "mariadb":
            self._server: MariaServer = request.getfixturevalue("mariadb_server")
            self.url = request.getfixturevalue("mariadb_database")
        self.do(*TABLES[self.dialect])

    def do(self, *statements: str) -> None:
        if self.dialect == "sqlite":
            with closing(sqlite3.connect(self._file, isolation_level=None)) as connection:
                for text in statements:
                    connection.execute(text)
            return
        name = sqlalchemy.make_url(self.url).database
        with closing(self._server.connect(name, autocommit=True)) as server, server.cursor() as cursor:
            for text in statements:
                cursor.execute(text)


@pytest.fixture(params=["mariadb", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> CollatedSource:
    return CollatedSource(request, tmp_path)


@pytest.fixture
def e2e(place: CollatedSource, tmp_path: Path, second_database: str) -> Iterator[EndToEnd]:
    with end_to_end(tmp_path, place.url, second_database) as made:
        yield made


def collation_findings(e2e: EndToEnd, *exclude: str) -> list[Finding]:
    with closing(open_source(e2e.settings)) as source:
        return [f for f in source.installer.check(["*"], exclude) if "holds only by collation" in f.message]


def constraints(e2e: EndToEnd) -> dict[str, bool]:
    return dict(query(e2e.target, "SELECT conname, convalidated FROM pg_constraint WHERE contype = 'f'"))


def test_such_a_foreign_key_is_named_and_the_printed_statement_makes_it_exact(
    e2e: EndToEnd, place: CollatedSource
) -> None:
    rows, name = EXPECTED[place.dialect]
    (finding,) = collation_findings(e2e)
    assert not finding.blocks
    assert f"foreign key {name} (code) holds only by collation: {rows} refer to another spelling" in finding.message
    assert finding.where.endswith(".invoice")
    assert collation_findings(e2e, "customer") == []

    e2e.install()
    run_capture_fill(e2e.settings, threading.Event())
    report = full_sync(e2e.settings, "main")
    validate = next(line for line in report.warnings if name in line).partition(";")[0].partition(": ")[0]
    assert constraints(e2e)[name] is False
    e2e.start()
    place.do(finding.remedy)
    assert collation_findings(e2e) == []
    e2e.wait_until_caught_up()
    query(e2e.target, validate)
    assert all(constraints(e2e).values())
    assert difference_keys(e2e.verify()) == set()
