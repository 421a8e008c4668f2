"""A small real source, PostgreSQL or SQLite, which an application writes to while it is captured."""

from __future__ import annotations

import random
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from tests.support.brokers.ledger import Ledger, Values
from venus.adapters.dialects.registry import open_source
from venus.config import Settings

TABLES = ("customer", "line")

_CREATE = (
    "CREATE TABLE customer (id INTEGER NOT NULL PRIMARY KEY, name TEXT, note TEXT)",
    """CREATE TABLE line (order_no INTEGER NOT NULL, pos INTEGER NOT NULL, item TEXT NOT NULL, amount INTEGER,
                          PRIMARY KEY (order_no, pos))""",
)


class Shop:
    """The application's side of a source."""

    def __init__(self, url: str, *, seed: int = 1, create: bool = True) -> None:
        self.url = url
        # capture may hold SQLite's lock for as long as a slow disk takes
        patience = {"timeout": 60} if url.startswith("sqlite") else {}
        self.engine = sa.create_engine(url, poolclass=NullPool, connect_args=patience)
        self._random = random.Random(seed)
        self._next = 1000
        self._run([sa.text(statement) for statement in _CREATE] if create else [])

    @classmethod
    def sqlite(cls, directory: Path) -> Shop:
        """Make a shop in a SQLite file."""
        shop = cls(f"sqlite:///{directory / 'shop.db'}")
        shop._run([sa.text("PRAGMA journal_mode = WAL")], begin=False)
        return shop

    def fill(self, rows: int) -> None:
        """Put rows into both tables at once."""
        self._run(
            [
                sa.text(f"INSERT INTO customer VALUES ({n}, 'Customer {n}', {'NULL' if n % 3 else repr('é' * 5)})")
                for n in range(rows)
            ]
            + [sa.text(f"INSERT INTO line VALUES ({n // 5}, {n % 5}, 'item {n}', {n})") for n in range(rows)]
        )

    def write(self, changes: int = 6) -> None:
        """Commit a transaction of random inserts, updates, deletes and key changes over both tables."""
        self._run([sa.text(self._statement()) for _ in range(changes)])

    def write_alike(self) -> None:
        """Commit a transaction that differs only in its keys, so that its capture always takes the same steps."""
        self._next += 10
        n = self._next
        inserts = [f"INSERT INTO customer VALUES ({n + i}, 'new', NULL)" for i in range(6)]
        changes = [
            f"UPDATE customer SET note = 'changed' WHERE id = {n}",
            f"UPDATE customer SET id = {n + 9} WHERE id = {n + 1}",
            f"DELETE FROM customer WHERE id = {n + 2}",
            f"INSERT INTO line VALUES ({n}, 1, 'item', 1)",
        ]
        self._run([sa.text(s) for s in inserts + changes])

    def _statement(self) -> str:
        self._next += 1
        key, order, pos = self._random.randrange(40), self._random.randrange(10), self._random.randrange(5)
        new = self._next
        return self._random.choice(
            [
                f"INSERT INTO customer VALUES ({new}, 'new {new}', NULL)",
                f"UPDATE customer SET note = 'changed {new}' WHERE id % 7 = {key % 7}",
                f"DELETE FROM customer WHERE id = {key}",
                f"UPDATE customer SET id = {new} WHERE id = {key}",
                f"INSERT INTO line VALUES ({new}, 1, 'item', {new})",
                f"UPDATE line SET amount = {new} WHERE order_no = {order}",
                f"DELETE FROM line WHERE order_no = {order} AND pos = {pos}",
            ]
        )

    def run(self, statement: str) -> None:
        """Run one statement."""
        self._run([sa.text(statement)])

    def write_order(self, order: int, amount: str) -> None:
        """Commit a transaction of four customers and an order of six lines, the last one with this amount."""
        lines = [f"INSERT INTO line VALUES ({order}, {pos}, 'item', {pos})" for pos in range(1, 6)]
        customers = [f"INSERT INTO customer VALUES ({10 * order + i}, 'new', NULL)" for i in range(4)]
        last = f"INSERT INTO line VALUES ({order}, 6, 'item', {amount})"
        self._run([sa.text(s) for s in [*customers, *lines, last]])

    def _run(self, statements: list[sa.TextClause], *, begin: bool = True) -> None:
        with self.engine.begin() if begin else self.engine.connect() as connection:
            for statement in statements:
                connection.execute(statement)

    def values(self, table: str) -> Values:
        """Return a table's rows as text."""
        keys = {"customer": 1, "line": 2}[table]
        with self.engine.connect() as connection:
            rows = connection.execute(sa.text(f"SELECT * FROM {table}")).all()
        text = [tuple(None if v is None else str(v) for v in row) for row in rows]
        return {row[:keys]: row[keys:] for row in text}

    def install(self, settings: Settings) -> None:
        """Install the triggers."""
        source = open_source(settings)
        try:
            source.installer.install(["*"], [])
        finally:
            source.close()

    def assert_equal(self, ledger: Ledger) -> None:
        """Compare source and broker, row by row."""
        for table in TABLES:
            assert ledger.values(table) == self.values(table), table
