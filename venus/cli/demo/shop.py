"""A small shop in SQLite with a workload, and its comparison with a target: the source of demo and story tests.

The values are chosen to be awkward: decimals, dates before 1970, blobs of every byte, empty strings beside NULLs, and
text in several scripts with emoji. The comparison shares no code that converts values with VENUS.
"""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from importlib.resources import files
from pathlib import Path
from typing import Any

import sqlalchemy as sa

SHOWN_MAX = 10


@dataclass(slots=True, kw_only=True)
class ShopComparison:
    """Result of a comparison: the rows compared, and the differences."""

    rows: dict[str, int] = field(default_factory=dict)
    different: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """The number of compared rows of the source."""
        return sum(self.rows.values())


def compare_shop(source: Path, target: str, *, schema: str = "public") -> ShopComparison:
    """Compare every table of the shop with a PostgreSQL database, row by row."""
    result = ShopComparison()
    engine = sa.create_engine(target)
    try:
        with closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as here, engine.connect() as there:
            here.execute("BEGIN")
            there = there.execution_options(stream_results=True)
            for table, key in TABLES.items():
                compare_table(here, there, schema, table, key, result)
    finally:
        engine.dispose()
    return result


def compare_table(
    here: sqlite3.Connection,
    there: sa.Connection,
    schema: str,
    table: str,
    key: tuple[str, ...],
    result: ShopComparison,
) -> None:
    """Compare a table by merging both sides in key order."""
    columns = [(row[1], row[2].upper()) for row in here.execute(f"PRAGMA table_info({table})")]
    read = [value_reader(declared) for _, declared in columns]
    places = [[name for name, _ in columns].index(name) for name in key]
    selected = ", ".join(f'"{name}"' for name, _ in columns)
    ours = canonical_rows(here.execute(f"SELECT {selected} FROM {table} ORDER BY {', '.join(key)}"), read)
    ordered = ", ".join(f'"{name}"' + (' COLLATE "C"' if is_text(columns, name) else "") for name in key)
    theirs = canonical_rows(
        there.execute(sa.text(f'SELECT {selected} FROM "{schema}"."{table}" ORDER BY {ordered}')), read
    )
    result.rows[table] = 0

    def record_difference(what: str) -> None:
        """Count a difference, and keep the first few as examples."""
        result.different += 1
        if len(result.examples) < SHOWN_MAX:
            result.examples.append(f"{table}: {what}")

    left, right = next(ours, None), next(theirs, None)
    while left is not None or right is not None:
        left_key = None if left is None else sort_key(left[p] for p in places)
        right_key = None if right is None else sort_key(right[p] for p in places)
        if right_key is None or (left_key is not None and left_key < right_key):
            record_difference(f"missing at the target: {left}")
            left, taken = next(ours, None), 1
        elif left_key is None or right_key < left_key:
            record_difference(f"only at the target: {right}")
            right, taken = next(theirs, None), 0
        else:
            if left != right:
                record_difference(f"source {left}, target {right}")
            left, right, taken = next(ours, None), next(theirs, None), 1
        result.rows[table] += taken


def sort_key(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return a key that sorts like both databases: text by its UTF-8 bytes, numbers by value."""
    return tuple(value.encode() if isinstance(value, str) else value for value in values)


def is_text(columns: list[tuple[str, str]], name: str) -> bool:
    """Return whether a column holds text, which must be compared by bytes."""
    return any(n == name and declared.startswith(("TEXT", "VARCHAR")) for n, declared in columns)


def canonical_rows(rows: Iterable[Any], read: list[Callable[[Any], Any]]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of either database, each value converted to a common form by its column's `read`."""
    for row in rows:
        yield tuple(None if value is None else convert(value) for convert, value in zip(read, row, strict=True))


def value_reader(declared: str) -> Callable[[Any], Any]:
    """Return the function that converts a value of this declared type, from either database, to a common form."""
    readers: dict[str, Callable[[Any], Any]] = {
        "INTEGER": int,
        "REAL": float,
        "TEXT": str,
        "VARCHAR": str,
        "DECIMAL": lambda value: Decimal(str(value)).normalize(),
        "BOOLEAN": bool,
        "BLOB": bytes,
        "DATE": lambda value: value if isinstance(value, date) else date.fromisoformat(value),
        "TIMESTAMP": lambda value: value if isinstance(value, datetime) else datetime.fromisoformat(value),
    }
    return readers[declared.partition("(")[0]]


TABLES = {
    "customers": ("id",),
    "products": ("sku",),
    "orders": ("id",),
    "order_lines": ("order_id", "line_no"),
}
NAMES = ("Ada Lovelace", "Søren Kierkegaard", "屠呦呦", "Владимир Вернадский", "مريم ميرزاخاني", "O'Brien 🍀", "Zoë")
NOTES = (None, "", " ", "pays late", "tab\there", 'quote " and \\ back', "two\nlines", "👩‍👩‍👧 family", "NULL", "\\N")
STATES = ("new", "paid", "packed", "shipped 📦")
EPOCH = datetime(2026, 1, 1, 8, 0, 0)


def load_statements() -> dict[str, str]:
    """Return the SQL blocks of shop.sql by name."""
    blocks: dict[str, list[str]] = {}
    name = ""
    for line in files(__package__).joinpath("shop.sql").read_text(encoding="utf-8").splitlines():
        if line.startswith("-- ") and line.endswith(" --"):
            name = line[3:-3]
            blocks[name] = []
        elif name:
            blocks[name].append(line)
    return {name: "\n".join(lines).strip() for name, lines in blocks.items()}


SQL = load_statements()


@contextmanager
def open_shop(file: Path) -> Iterator[sqlite3.Connection]:
    """Open the shop as an application does: foreign keys on, WAL, a long timeout for other writers."""
    with closing(sqlite3.connect(file, timeout=30.0, isolation_level=None)) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        yield connection


def build_shop(file: Path, *, customers: int, products: int, orders: int, seed: int = 7) -> int:
    """Create and fill the shop; return its number of rows."""
    draw = random.Random(seed)
    with open_shop(file) as connection:
        connection.executescript(SQL["tables"])
        connection.execute("BEGIN")
        connection.executemany(SQL["insert_customer"], (build_customer(draw, n) for n in range(customers)))
        connection.executemany(SQL["insert_product"], (build_product(draw, f"P-{n:05}") for n in range(products)))
        for number in range(1, orders + 1):
            placed = (EPOCH + timedelta(seconds=number * 37, microseconds=number * 1009)).isoformat(" ")
            total = draw_amount(draw, 100_000)
            connection.execute(SQL["insert_order"], (draw.randint(1, customers), placed, draw.choice(STATES), total))
            lines = [
                build_order_line(draw, number, n, f"P-{draw.randrange(products):05}")
                for n in range(1, draw.randint(2, 5))
            ]
            connection.executemany(SQL["insert_line"], lines)
        connection.execute("COMMIT")
        return sum(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES)


def build_customer(draw: random.Random, number: int) -> tuple[Any, ...]:
    """Return a random row for the table customers."""
    born = None if number % 11 == 0 else (date(1925, 1, 1) + timedelta(days=draw.randrange(29_000))).isoformat()
    photo = None if number % 3 else draw.randbytes(draw.choice((0, 1, 64, 700)))
    created = (EPOCH + timedelta(seconds=number)).isoformat(" ")
    name = draw.choice(NAMES)
    return name, f"customer{number}@example.org", draw_amount(draw, 1_000_000), born, photo, draw.choice(NOTES), created


def build_product(draw: random.Random, sku: str) -> tuple[Any, ...]:
    """Return a random row for the table products."""
    name = f"{draw.choice(('Chair', 'Tisch', '灯', 'Ковёр', '🪑'))} {sku}"
    weight = None if draw.random() < 0.1 else draw.uniform(0.001, 90)
    return sku, name, draw_amount(draw, 90_000), weight, draw.randrange(1000), draw.random() < 0.9


def build_order_line(draw: random.Random, order: int, number: int, sku: str) -> tuple[Any, ...]:
    """Return a random row for the table order_lines."""
    return order, number, sku, draw.randint(1, 9), draw_amount(draw, 90_000)


def draw_amount(draw: random.Random, cents: int) -> float:
    """Return a random amount with two decimals, as applications pass it to SQLite."""
    return draw.randrange(1, cents) / 100


@dataclass(slots=True)
class Workload:
    """Workload of the shop: short transactions in a separate thread, some of which are rolled back."""

    file: Path
    pause_s: float = 0.002
    seed: int = 11
    transactions: int = 0
    rolled_back: int = 0
    error: BaseException | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> Workload:
        """Start the thread that runs transactions."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="shop", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the thread after its transaction, and raise the error of the thread, if there was one."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        """Run random transactions until the stop; keep the error that ends them."""
        draw = random.Random(self.seed)
        self.seed += 1
        try:
            with open_shop(self.file) as connection:
                while not self._stop.wait(self.pause_s):
                    connection.execute("BEGIN IMMEDIATE")
                    draw.choice(ACTIONS)(connection, draw)
                    undone = draw.random() < 0.05
                    connection.execute("ROLLBACK" if undone else "COMMIT")
                    self.rolled_back += undone
                    self.transactions += not undone
        except BaseException as error:
            self.error = error


def pick_key(connection: sqlite3.Connection, draw: random.Random, table: str, column: str) -> Any:
    """Return the key of an approximately random row."""
    low, high = connection.execute(f"SELECT min(rowid), max(rowid) FROM {table}").fetchone()
    query = f"SELECT {column} FROM {table} WHERE rowid >= ? ORDER BY rowid LIMIT 1"
    return connection.execute(query, (draw.randint(low, high),)).fetchone()[0]


def place_order(connection: sqlite3.Connection, draw: random.Random) -> None:
    """Place a random order, which changes four tables in one transaction."""
    buyer = pick_key(connection, draw, "customers", "id")
    now = datetime.fromtimestamp(time.time()).isoformat(" ")
    order = connection.execute(SQL["insert_order"], (buyer, now, "new", draw_amount(draw, 50_000))).lastrowid
    assert order is not None
    for number in range(1, draw.randint(2, 5)):
        sku = pick_key(connection, draw, "products", "sku")
        connection.execute(SQL["insert_line"], build_order_line(draw, order, number, sku))
        connection.execute(SQL["sell"], (1, sku))
    connection.execute(SQL["charge"], (draw_amount(draw, 10_000), buyer))


def ship_order(connection: sqlite3.Connection, draw: random.Random) -> None:
    """Mark a random order as shipped: update one row."""
    connection.execute(SQL["ship_order"], (pick_key(connection, draw, "orders", "id"),))


def cancel_order(connection: sqlite3.Connection, draw: random.Random) -> None:
    """Delete an order, and its lines by cascade."""
    connection.execute(SQL["cancel_order"], (pick_key(connection, draw, "orders", "id"),))


def rename_product(connection: sqlite3.Connection, draw: random.Random) -> None:
    """Give a random product another SKU: change a primary key."""
    old = pick_key(connection, draw, "products", "sku")
    connection.execute(SQL["rename_product"], (f"R-{draw.randrange(10**9):09}", old))


def move_lines(connection: sqlite3.Connection, draw: random.Random) -> None:
    """Renumber the lines of a random order: change one half of a composite key."""
    connection.execute(SQL["move_line"], (pick_key(connection, draw, "orders", "id"),))


def replace_product(connection: sqlite3.Connection, draw: random.Random) -> None:
    """INSERT OR REPLACE a row, which may remove another one without an ordinary DELETE."""
    connection.execute(SQL["replace_product"], build_product(draw, f"N-{draw.randrange(300):05}"))


def write_note(connection: sqlite3.Connection, draw: random.Random) -> None:
    """Write text and bytes that are hard to carry."""
    values = draw.choice(NOTES), draw.randbytes(draw.randrange(300)), pick_key(connection, draw, "customers", "id")
    connection.execute(SQL["note_customer"], values)


def insert_and_delete(connection: sqlite3.Connection, draw: random.Random) -> None:
    """Insert, update and delete one key in one transaction."""
    connection.execute(SQL["replace_product"], build_product(draw, "X-MOMENT"))
    connection.execute(SQL["sell"], (3, "X-MOMENT"))
    connection.execute("DELETE FROM products WHERE sku = 'X-MOMENT'")


ACTIONS = (
    place_order,
    place_order,
    place_order,
    ship_order,
    ship_order,
    cancel_order,
    rename_product,
    move_lines,
    replace_product,
    write_note,
    insert_and_delete,
)
