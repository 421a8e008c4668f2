"""From MariaDB to PostgreSQL and back with the writes kept, as an operator goes through it (scenario 93)."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import psycopg2
import pymysql
import pytest

from tests.support.databases.mariadb import MariaServer
from tests.support.databases.postgres import Server, libpq
from tests.support.pipelines.pipeline import Pipeline, with_password
from tests.support.waiting import eventually
from venus.adapters.dialects.mysql.torture import COLUMNS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

QUIET = ("--quiet", "0.2", "--wait", "120")
FORWARD = ("cutover", "--target", "main", "--fall-back")
BACK = ("fallback",)
#: What an application gets from the database that does not accept writes.
CLOSED = (pymysql.err.OperationalError, psycopg2.errors.ReadOnlySqlTransaction)

_SHOP = """
CREATE TABLE customer (id bigint AUTO_INCREMENT PRIMARY KEY, name varchar(80) NOT NULL UNIQUE,
    credit decimal(10, 2) DEFAULT 0, since datetime(6) DEFAULT current_timestamp(6), note blob);
CREATE TABLE orders (no int AUTO_INCREMENT PRIMARY KEY, customer bigint, what varchar(12),
    FOREIGN KEY (customer) REFERENCES customer (id) ON DELETE CASCADE);
INSERT INTO customer (name, note) VALUES ('ann', x'00ff'), ('bob', NULL);
INSERT INTO orders (customer, what) VALUES (1, 'a'), (2, NULL);
"""


class MariaPair:
    """A MariaDB and a PostgreSQL database with a pipeline between them."""

    def __init__(self, folder: Path, server: MariaServer, old: str, new: str) -> None:
        self.server, self.new_url = server, new
        self.database = old.rpartition("/")[2]
        self.pipeline = Pipeline(folder=folder, source=old, targets={"main": with_password(new)})

    def start(self, schema: str = _SHOP) -> None:
        """Load the new database, and leave `venus sync` running."""
        self.old(schema)
        self.pipeline.configure()
        self.pipeline.ask("install-triggers")
        self.pipeline.start_broker()
        self.pipeline.ask("migrate", "--target", "main")
        self.pipeline.start("sync", "sync")

    def old(self, text: str) -> list[tuple[Any, ...]]:
        """Run statements at MariaDB; return the rows of the last one."""
        found: list[tuple[Any, ...]] = []
        for statement in filter(str.strip, text.split(";")):
            found = self.server.execute(statement, self.database)
        return found

    def connect_new(self) -> Any:
        """Connect to PostgreSQL as the application does."""
        connection = psycopg2.connect(libpq(self.new_url), options=f"-c search_path={self.database}")
        connection.autocommit = True
        return connection

    def new(self, text: str) -> list[tuple[Any, ...]]:
        """Run statements at PostgreSQL; return the rows of the last one."""
        with closing(self.connect_new()) as connection:
            cursor = connection.cursor()
            cursor.execute(text)
            return cursor.fetchall() if cursor.description else []

    def switch(self, *command: str) -> Any:
        """Make the other database the application's, and return the certificate."""
        return self.pipeline.ask(*command, *QUIET)["certificate"]

    def is_equal(self) -> bool:
        """Return whether both databases have the same rows."""
        queries = ("SELECT id, name, credit, note FROM customer ORDER BY 1", "SELECT * FROM orders ORDER BY 1")
        return all(to_plain(self.old(q)) == to_plain(self.new(q)) for q in queries)

    def until_equal(self) -> None:
        """Wait until both databases have the same rows."""
        eventually(self.is_equal, lambda: self.pipeline.tail(), timeout_s=120.0, every_s=0.1)

    def writable(self) -> list[str]:
        """Return the databases that accept a write."""
        found = []
        for name, run in (("old", self.old), ("new", self.new)):
            try:
                run("UPDATE orders SET what = what WHERE no = 1")
            except CLOSED:
                continue
            found.append(name)
        return found

    def count_logged(self) -> int:
        """Return how many changes of the application's tables wait in MariaDB's logs."""
        tables = self.old("SELECT table_id FROM venus_captured_table WHERE name <> 'venus_heartbeat'")
        return sum(self.old(f"SELECT count(*) FROM venus_l_{number:05}")[0][0] for (number,) in tables)


def to_plain(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [tuple(bytes(v) if isinstance(v, memoryview) else v for v in row) for row in rows]


@pytest.fixture
def pair(
    tmp_path: Path, mariadb_server: MariaServer, mariadb_database: str, postgres_server: Server
) -> Iterator[MariaPair]:
    new = postgres_server.create_database()
    found = MariaPair(tmp_path, mariadb_server, mariadb_database, new)
    try:
        yield found
    finally:
        found.pipeline.close()
        postgres_server.drop_database(new)


def test_there_and_back(pair: MariaPair) -> None:
    pair.start()
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
        connection.cursor().execute("INSERT INTO customer (name) VALUES ('rolled back')")  # draws number 4
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


def state_of(pair: MariaPair, name: str) -> str | None:
    """Return the state that the record of a database names."""
    if name == "new":
        if pair.new("SELECT to_regclass('venus.side') IS NULL") == [(True,)]:
            return None
        return next((state for (state,) in pair.new("SELECT state FROM venus.side")), None)
    if not pair.old("SHOW TABLES LIKE 'venus_side'"):
        return None
    return next((state for (state,) in pair.old("SELECT state FROM venus_side WHERE business <> ''")), None)


@dataclass(frozen=True)
class HeldStep:
    """A step of a switch at which a lock holds the command, and what a kill leaves there.

    `before`: the database and its state from which on the lock is taken; None = before the command.
    """

    command: tuple[str, ...]
    database: str
    lock: str
    before: tuple[str, str] | None
    records: tuple[str | None, str | None]
    writable: list[str]


#: A transaction that only reads: one that has written delays the command before this step.
_OLD_READ = "SELECT * FROM orders"
_NEW_WRITE = "LOCK TABLE orders IN ROW EXCLUSIVE MODE"
_OLD_RECORD = "SELECT * FROM venus_side FOR UPDATE"
STEPS = {
    "close": HeldStep(FORWARD, "old", _OLD_READ, None, (None, "FOLLOWING"), ["old"]),
    "stop": HeldStep(FORWARD, "old", "SELECT * FROM venus_checkpoint FOR UPDATE", None, ("CLOSED", "FOLLOWING"), []),
    "open": HeldStep(FORWARD, "new", _NEW_WRITE, ("new", "FOLLOWING"), ("STOPPED", "FOLLOWING"), []),
    "follow": HeldStep(FORWARD, "old", _OLD_RECORD, ("old", "STOPPED"), ("STOPPED", "OPEN"), ["new"]),
    "back-close": HeldStep(BACK, "new", _NEW_WRITE, None, ("FOLLOWING", "OPEN"), ["new"]),
    "back-stop": HeldStep(BACK, "new", "SELECT FROM venus.checkpoint FOR UPDATE", None, ("FOLLOWING", "CLOSED"), []),
    "back-open": HeldStep(BACK, "old", _OLD_RECORD, ("new", "STOPPED"), ("FOLLOWING", "STOPPED"), []),
    "back-follow": HeldStep(
        BACK, "new", "LOCK TABLE venus.applied IN EXCLUSIVE MODE", ("new", "STOPPED"), ("OPEN", "STOPPED"), ["old"]
    ),
}


@contextmanager
def open_holder(pair: MariaPair, database: str) -> Iterator[Callable[[str], None]]:
    """Open a transaction that can hold locks."""
    connection: Any = pair.server.connect(pair.database) if database == "old" else pair.connect_new()
    with closing(connection):
        if database == "new":
            connection.autocommit = False
            connection.cursor().execute("SET idle_in_transaction_session_timeout = 0")
        yield lambda text: connection.cursor().execute(text)


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_each_step_is_completed_by_the_same_command(pair: MariaPair, step: str) -> None:
    held = STEPS[step]
    pair.start()
    pipeline = pair.pipeline
    if held.command == BACK:
        pair.switch(*FORWARD)

    def records() -> tuple[str | None, str | None]:
        return state_of(pair, "old"), state_of(pair, "new")

    with open_holder(pair, held.database) as hold:
        if held.before is None:
            hold(held.lock)
        pipeline.start("switch", *held.command, *QUIET)
        if held.before is not None:
            database, state = held.before
            pipeline.until(lambda: state_of(pair, database) == state, f"the step before {step}", every_s=0.01)
            hold(held.lock)
        pipeline.until(lambda: records() == held.records and is_waiting(pair, held.database), "the command to wait")
        pipeline.kill("switch")
    pipeline.until(lambda: records() == held.records, "the records to stay")
    assert pair.writable() == held.writable
    command = " ".join(("venus", *held.command))
    advice = [p for p in pipeline.status()["problems"] if "is not finished" in p]
    assert bool(advice) == (not step.endswith("close"))
    assert all(f"`{command}` completes it" in p for p in advice)
    pair.switch(*held.command)
    owner = "new" if held.command == FORWARD else "old"
    assert pair.writable() == [owner]
    (pair.new if owner == "new" else pair.old)("INSERT INTO customer (name) VALUES ('carl')")
    pair.until_equal()


def is_waiting(pair: MariaPair, database: str) -> bool:
    """Return whether a session waits for a lock."""
    if database == "new":
        return pair.new("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'") != [(0,)]
    locked = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
    metadata = "SELECT count(*) FROM information_schema.processlist WHERE state LIKE 'Waiting for table metadata lock%'"
    return pair.old(locked) != [(0,)] or pair.old(metadata) != [(0,)]


def test_a_transaction_with_an_older_snapshot_cannot_write_after_the_close(pair: MariaPair) -> None:
    pair.start()
    pair.switch(*FORWARD)
    pair.switch(*BACK)
    with closing(pair.server.connect(pair.database)) as late:
        cursor = late.cursor()
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        pair.switch(*FORWARD)
        with pytest.raises(pymysql.err.OperationalError, match="keeps this database equal"):
            cursor.execute("UPDATE orders SET what = 'late' WHERE no = 1")


def test_triggers_of_the_application_are_named_and_may_be_adapted(pair: MariaPair) -> None:
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
#: Rows that MariaDB would store with other values, or in the place of another row.
_UNLIKE = (
    "('a', 'small', 'abcd', '0')",
    "('b', 'small', 'ab', '0')",
    "('c', 'small', 'abcd', '1 day 02:00:00')",
)


def test_a_value_that_the_old_database_would_change_waits_in_quarantine(pair: MariaPair) -> None:
    pair.start(_TEXTS)
    pipeline = pair.pipeline
    pair.switch(*FORWARD)
    pair.new("INSERT INTO label VALUES ('good', 'large', 'efgh', '838:59:59')")
    for row in _UNLIKE:
        pair.new(f"INSERT INTO label VALUES {row}")
    pair.new("UPDATE orders SET what = 'follows'")
    pipeline.until(lambda: pair.old("SELECT what FROM orders") == [("follows",)], "the other table to follow")

    def waiting() -> list[str]:
        document = pipeline.ask("quarantine", "list", "--target", "@source", code=(0, 1))
        return [row["key"] for row in document["quarantine"]["@source"]]

    pipeline.until(lambda: len(waiting()) == len(_UNLIKE), "the rows to wait", every_s=0.5)
    assert pair.old("SELECT name FROM label ORDER BY name") == [("A",), ("good",)]
    assert pipeline.venus(*BACK, *QUIET, code=3).err.count("quarantine")


def dump(pair: MariaPair) -> list[tuple[Any, ...]]:
    """Return every value of the table as the server stores it."""
    exact = [f"{name} * 1e0" for name, c in COLUMNS.items() if c.type.startswith(("float", "double"))]
    columns = ", ".join([*(f"hex({name}), concat({name})" for name in COLUMNS), *exact])
    return pair.old(f"SELECT id, {columns} FROM torture ORDER BY id")


def test_every_type_comes_back_byte_for_byte(pair: MariaPair) -> None:
    numbers = count(1)
    declared = ", ".join(f"{name} {c.type}" for name, c in COLUMNS.items())
    pair.old("CREATE TABLE orders (no int PRIMARY KEY, what text); INSERT INTO orders VALUES (1, 'probe')")
    pair.old(f"CREATE TABLE torture (id int PRIMARY KEY, {declared})")
    for name, column in COLUMNS.items():
        for sql, _ in column.values:
            pair.server.execute(f"INSERT INTO torture (id, {name}) VALUES ({next(numbers)}, {sql})", pair.database)
    pair.start("")
    pair.switch(*FORWARD)
    before = dump(pair)  # the first write there gives each row another key, so it comes back as a whole
    pair.new("UPDATE torture SET id = id + 1000000")
    pair.pipeline.until(lambda: len(pair.old("SELECT 1 FROM torture WHERE id > 1000000")) == len(before), "all rows")
    assert [(i - 1_000_000, *row) for i, *row in dump(pair)] == before
    assert pair.pipeline.ask("verify")["verdict"] == "same"
    assert pair.switch(*BACK)["equal"]


_LEDGER = """
CREATE TABLE ledger (id bigint AUTO_INCREMENT PRIMARY KEY, amount decimal(12, 2) NOT NULL, note text);
CREATE TABLE orders (no int PRIMARY KEY, what text);
INSERT INTO orders VALUES (1, 'probe');
"""


class Application:
    """An application with one connection: it writes rows, and knows which ones were acknowledged."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self.rows: dict[int, tuple[str, str]] = {}
        self.errors: list[str] = []
        self.writes = 0

    @contextmanager
    def writing(self, connect: Callable[[], Any]) -> Iterator[None]:
        """Write to this database within the block."""
        self._stop.clear()
        thread = threading.Thread(target=self._run, args=(connect,))
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _run(self, connect: Callable[[], Any]) -> None:
        with closing(connect()) as connection:
            cursor = connection.cursor()
            while not self._stop.wait(0.005):
                try:
                    self._write(cursor)
                except (psycopg2.Error, pymysql.Error) as error:
                    self.errors.append(str(error))
                    return

    def _write(self, cursor: Any) -> None:
        amount, note = f"{self._random.randrange(10**6) / 100:.2f}", f"note {self.writes}"
        known = list(self.rows)
        if len(known) < 20 or self._random.random() < 0.5:
            cursor.execute("INSERT INTO ledger (amount, note) VALUES (%s, %s) RETURNING id", (amount, note))
            ((number,),) = cursor.fetchall()
            assert number not in self.rows
            self.rows[number] = (amount, note)
        elif self._random.random() < 0.7:
            number = self._random.choice(known)
            cursor.execute("UPDATE ledger SET amount = %s, note = %s WHERE id = %s", (amount, note, number))
            self.rows[number] = (amount, note)
        else:
            number = self._random.choice(known)
            cursor.execute("DELETE FROM ledger WHERE id = %s", (number,))
            del self.rows[number]
        self.writes += 1


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "switches", [pytest.param(3, id="three"), pytest.param(20, id="twenty", marks=pytest.mark.nightly)]
)
def test_switches_in_a_row_under_writers(pair: MariaPair, switches: int) -> None:
    pair.start(_LEDGER)
    pipeline, application, chance = pair.pipeline, Application(7), random.Random(7)

    def rows(run: Callable[[str], list[tuple[Any, ...]]]) -> dict[int, tuple[str, str]]:
        return {i: (f"{a:.2f}", n) for i, a, n in run("SELECT id, amount, note FROM ledger")}

    def write_with_a_kill(owner: str) -> None:
        """Write to the owner, kill a process meanwhile, and wait until the follower has every row."""
        enough = [application.writes + 40, application.writes + 80]
        connect = pair.connect_new if owner == "new" else lambda: pair.server.connect(pair.database, autocommit=True)
        with application.writing(connect):
            eventually(lambda: application.writes > enough[0] or application.errors)
            if chance.random() < 0.5:
                pipeline.kill("broker")
                pipeline.start_broker()
            else:
                pipeline.kill("sync")
                pipeline.start("sync", "sync", "--take-over")
            eventually(lambda: application.writes > enough[1] or application.errors)
        assert application.errors == []
        follower = pair.old if owner == "new" else pair.new
        eventually(lambda: rows(follower) == application.rows, pipeline.tail, timeout_s=120.0, every_s=0.2)

    owner = "old"
    for _ in range(switches):
        write_with_a_kill(owner)
        assert pair.switch(*(BACK if owner == "new" else FORWARD))["equal"]
        assert rows(pair.old) == rows(pair.new) == application.rows
        owner = "old" if owner == "new" else "new"
        assert pair.writable() == [owner]
    write_with_a_kill(owner)
    assert pair.new("SELECT count(*) FROM venus.load_job") == [(1,)]
    assert pair.old("SELECT count(*) FROM venus_load_job") == [(0,)]
