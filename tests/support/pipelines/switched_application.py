"""An application that switches between two databases: its writers, and a probe of which database accepts writes.

A writer records every acknowledged transaction. Each transaction also writes its number into a journal, in which a
writer whose connection was lost in COMMIT looks up the outcome. Writers own different rows; together they know the
expected content of both databases.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg2

from tests.support.databases.postgres import libpq
from tests.support.waiting import eventually

SCHEMA = """
CREATE TABLE ledger (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, writer int NOT NULL, code text UNIQUE,
    amount numeric(12, 2) NOT NULL, note text);
CREATE TABLE line (ledger bigint REFERENCES ledger ON DELETE CASCADE, no int, what varchar(20),
    PRIMARY KEY (ledger, no));
CREATE TABLE journal (op bigint PRIMARY KEY);
"""
#: The tables, with an expression that returns a row as text.
TABLES = {
    "ledger": "concat_ws('|', id, writer, code, amount, note)",
    "line": "concat_ws('|', ledger, no, what)",
    "journal": "op::text",
}
CLOSED = psycopg2.errors.ReadOnlySqlTransaction
#: Errors of a lost connection or transaction, after which the application retries.
_LOST = (psycopg2.OperationalError, psycopg2.InterfaceError)
_NUMBERS = 1_000_000
_PAUSE_S = 0.005

Rows = dict[str, set[str]]


def query(url: str, text: str, *params: object) -> list[tuple[Any, ...]]:
    """Run one statement in a connection of its own; return its rows."""
    with closing(psycopg2.connect(libpq(url))) as connection:
        connection.autocommit = True
        cursor = connection.cursor()
        cursor.execute(text, params or None)
        return cursor.fetchall() if cursor.description else []


def read_rows(url: str) -> Rows:
    """Read all rows of a database as texts. A duplicate row raises AssertionError."""
    found = {}
    for table, shown in TABLES.items():
        rows = [row for (row,) in query(url, f"SELECT {shown} FROM {table}")]
        found[table] = set(rows)
        assert len(found[table]) == len(rows), f"{table} has rows twice"
    return found


def hash_rows(rows: Rows) -> str:
    """Return one hash of all rows."""
    text = "\n".join(f"{table}:{row}" for table in sorted(rows) for row in sorted(rows[table]))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(slots=True)
class LedgerRow:
    """A row that a writer owns, with its lines."""

    code: str
    amount: str
    note: str
    lines: dict[int, str] = field(default_factory=dict)


class Writer:
    """One connection of the application."""

    def __init__(self, number: int, drawn: set[int], lock: threading.Lock) -> None:
        self._number = number
        self._random = random.Random(number)
        self._drawn, self._lock = drawn, lock
        self._rolled_back: set[int] = set()
        self.rows: dict[int, LedgerRow] = {}
        self.ops: set[int] = set()
        self._tries = 0
        self.errors: list[str] = []

    def run(self, url: str, stop: threading.Event, pause_s: float, *, insists: bool) -> None:
        """Write until the stop, or until the database rejects writes; with `insists` retry rejected writes."""
        while not stop.is_set():
            try:
                with closing(psycopg2.connect(libpq(url))) as connection:
                    while not stop.wait(pause_s):
                        self._write(connection, url)
            except CLOSED:
                if not insists:
                    return
                stop.wait(0.02)
            except _LOST:
                stop.wait(0.05)
            except (psycopg2.Error, AssertionError) as error:
                self.errors.append(f"writer {self._number}: {error}")
                return

    def _write(self, connection: Any, url: str) -> None:
        """Execute one transaction, and find its outcome."""
        self._tries += 1
        op = self._number * _NUMBERS + self._tries
        cursor = connection.cursor()
        record: Callable[[], None] | None = None
        try:
            cursor.execute("INSERT INTO journal VALUES (%s)", (op,))
            record = self._choose()(cursor)
            if record is None:
                connection.rollback()
                return
            connection.commit()
        except _LOST:
            if record is None or not self._was_committed(url, op):
                raise
        record()
        self.ops.add(op)
        with self._lock:  # durable rows keep the numbers drawn before
            self._drawn |= self._rolled_back
        self._rolled_back.clear()

    @staticmethod
    def _was_committed(url: str, op: int) -> bool:
        """Return whether the journal has this transaction; retry until the database answers."""
        while True:
            with suppress(psycopg2.OperationalError):
                return query(url, "SELECT FROM journal WHERE op = %s", op) != []

    def _choose(self) -> Callable[[Any], Callable[[], None] | None]:
        """Return a random kind of transaction; it returns a function that records its effect once committed."""
        if len(self.rows) < 8:
            return self._insert
        return self._random.choice(
            (self._insert, self._insert, self._update, self._delete, self._swap, self._move_line, self._draw)
        )

    def _values(self) -> tuple[str, str, str]:
        """Return a unique code, a random amount and a note."""
        amount = f"{self._random.randrange(10**6) / 100:.2f}"
        return f"c{self._number}.{self._tries}", amount, f"note {self._tries} ä€ \\ '"

    def _insert(self, cursor: Any) -> Callable[[], None]:
        code, amount, note = self._values()
        number = self._take_number(cursor, code, amount, note)
        lines = dict.fromkeys(range(self._random.randrange(3)), f"line {self._tries}")
        for no, what in lines.items():
            cursor.execute("INSERT INTO line VALUES (%s, %s, %s)", (number, no, what))
        row = LedgerRow(code, amount, note, lines)

        def record() -> None:
            with self._lock:
                self._drawn.add(number)
            self.rows[number] = row

        return record

    def _take_number(self, cursor: Any, code: str, amount: str, note: str) -> int:
        """Insert a row; return its number, which must not have been drawn before."""
        text = "INSERT INTO ledger (writer, code, amount, note) VALUES (%s, %s, %s, %s) RETURNING id"
        cursor.execute(text, (self._number, code, amount, note))
        number = int(cursor.fetchone()[0])
        with self._lock:
            assert number not in self._drawn, f"number {number} was drawn before"
        return number

    def _draw(self, cursor: Any) -> None:
        """Draw a number and roll back; outsiders may know the number, so it must not be drawn again."""
        self._rolled_back.add(self._take_number(cursor, *self._values()))

    def _pick(self) -> int:
        """Return the number of a random row of this writer."""
        return self._random.choice(list(self.rows))

    def _update(self, cursor: Any) -> Callable[[], None]:
        number, (_, amount, note) = self._pick(), self._values()
        cursor.execute("UPDATE ledger SET amount = %s, note = %s WHERE id = %s", (amount, note, number))
        assert cursor.rowcount == 1, f"row {number} is gone"

        def record() -> None:
            self.rows[number].amount, self.rows[number].note = amount, note

        return record

    def _delete(self, cursor: Any) -> Callable[[], None]:
        number = self._pick()
        cursor.execute("DELETE FROM ledger WHERE id = %s", (number,))
        assert cursor.rowcount == 1, f"row {number} is gone"
        return lambda: self.rows.__delitem__(number)

    def _swap(self, cursor: Any) -> Callable[[], None]:
        """Exchange the unique values of two rows."""
        one, other = self._random.sample(list(self.rows), 2)
        codes = self.rows[one].code, self.rows[other].code
        for code, number in ((None, one), (codes[0], other), (codes[1], one)):
            cursor.execute("UPDATE ledger SET code = %s WHERE id = %s", (code, number))

        def record() -> None:
            self.rows[other].code, self.rows[one].code = codes

        return record

    def _move_line(self, cursor: Any) -> Callable[[], None]:
        """Change a key."""
        number = self._pick()
        lines = self.rows[number].lines
        if not lines:
            return self._update(cursor)
        before, after = next(iter(lines)), max(lines) + 1
        cursor.execute("UPDATE line SET no = %s WHERE ledger = %s AND no = %s", (after, number, before))
        assert cursor.rowcount == 1, f"line {before} of {number} is gone"
        return lambda: lines.__setitem__(after, lines.pop(before))

    def add_to(self, found: Rows) -> None:
        """Add this writer's rows, which must exist, to `found`."""
        found["journal"].update(map(str, self.ops))
        for number, row in self.rows.items():
            found["ledger"].add(f"{number}|{self._number}|{row.code}|{row.amount}|{row.note}")
            found["line"].update(f"{number}|{no}|{what}" for no, what in row.lines.items())


class SwitchedApplication:
    """All writers of the application."""

    def __init__(self, writers: int) -> None:
        drawn: set[int] = set()
        lock = threading.Lock()
        self._writers = [Writer(number + 1, drawn, lock) for number in range(writers)]

    @property
    def writes(self) -> int:
        """Return the number of acknowledged transactions."""
        return sum(len(writer.ops) for writer in self._writers)

    @property
    def errors(self) -> list[str]:
        """Return errors that an application must never see."""
        return [error for writer in self._writers for error in writer.errors]

    @property
    def rows(self) -> Rows:
        """Return the rows that both databases must contain; call it only while no writer runs."""
        found: Rows = {table: set() for table in TABLES}
        for writer in self._writers:
            writer.add_to(found)
        return found

    @contextmanager
    def write_in_background(self, url: str, *, insists: bool = False) -> Iterator[None]:
        """Write to a database within the block, or until it rejects writes; with `insists` retry rejected writes."""
        stop = threading.Event()
        threads = [
            threading.Thread(target=w.run, args=(url, stop, _PAUSE_S), kwargs={"insists": insists}, daemon=True)
            for w in self._writers
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join()


class WriteProbe:
    """Continuous probe of two databases: both at once must never accept a write.

    The probe opens a write in each database without changing a row, and holds both. The new database counts from the
    moment VENUS has closed the old one, in the step that writes its record.
    """

    _WRITE = "UPDATE ledger SET note = note WHERE false"
    _RECORD = "SELECT to_regclass('venus.side') IS NOT NULL"

    def __init__(self, old: str, new: str) -> None:
        self._urls = {"old": old, "new": new}
        self._stop = threading.Event()
        self._connections: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.probes = 0
        #: How often each database alone accepted a write.
        self.accepted = {"old": 0, "new": 0}
        self.violations = 0

    def __enter__(self) -> WriteProbe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def wait_until_accepted(self, name: str, count: int) -> None:
        """Wait until this database alone has accepted this many more writes."""
        enough = self.accepted[name] + count
        eventually(lambda: self.accepted[name] >= enough, f"{name} to accept writes", timeout_s=120.0)

    def _run(self) -> None:
        while not self._stop.wait(0.002):
            found = [name for name in ("new", "old") if self._accepts(name)]
            for connection in self._connections.values():
                with suppress(psycopg2.Error):
                    connection.rollback()
            self.probes += 1
            self.violations += len(found) == 2
            for name in found if len(found) == 1 else ():
                self.accepted[name] += 1

    def _accepts(self, name: str) -> bool:
        """Open a write and hold it; return whether the database accepts it."""
        try:
            connection = self._connections.get(name)
            if connection is None or connection.closed:
                connection = self._connections[name] = psycopg2.connect(libpq(self._urls[name]))
            cursor = connection.cursor()
            if name == "new" and not self._has_record(cursor):
                return False
            cursor.execute(self._WRITE)
        except psycopg2.Error:
            return False
        return True

    def _has_record(self, cursor: Any) -> bool:
        cursor.execute(self._RECORD)
        if not cursor.fetchone()[0]:
            return False
        cursor.execute("SELECT FROM venus.side")
        return cursor.fetchone() is not None
