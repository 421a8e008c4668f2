"""A cut-over that is taken back with the writes kept, as an operator goes through it (scenarios 88 to 92, 115)."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from tests.support.databases.postgres import Server, libpq
from tests.support.pipelines.pipeline import Pipeline, with_password
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

QUIET = ("--quiet", "0.2", "--wait", "120")

_SHOP = """
CREATE TABLE customer (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL UNIQUE,
    credit numeric(10, 2) DEFAULT 0 CHECK (credit >= 0), since timestamptz DEFAULT now(), note bytea);
CREATE TABLE orders (no serial PRIMARY KEY, customer bigint REFERENCES customer ON DELETE CASCADE, what varchar(12));
CREATE TABLE audited (what text);
CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO audited VALUES (TG_OP); RETURN NULL; END $$;
CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON orders FOR EACH ROW EXECUTE FUNCTION audit();
INSERT INTO customer (name, note) VALUES ('ann', '\\x00ff'), ('bob', NULL);
INSERT INTO orders (customer, what) VALUES (1, 'a'), (2, NULL);
"""
CLOSED = psycopg2.errors.ReadOnlySqlTransaction


def query(url: str, text: str) -> list[tuple[Any, ...]]:
    with closing(psycopg2.connect(libpq(url))) as connection:
        connection.autocommit = True
        cursor = connection.cursor()
        cursor.execute(text)
        return cursor.fetchall() if cursor.description else []


class Pair:
    """Two databases with a pipeline between them."""

    def __init__(self, folder: Path, old: str, new: str) -> None:
        self.old, self.new = old, new
        self.pipeline = Pipeline(
            folder=folder,
            source=with_password(old),
            targets={"main": with_password(new)},
            source_options='exclude = ["audited"]',
        )

    def start(self, schema: str = _SHOP) -> None:
        """Load the new database, and leave `venus sync` running."""
        query(self.old, schema)
        self.pipeline.configure()
        self.pipeline.ask("install-triggers")
        self.pipeline.start_broker()
        self.pipeline.ask("migrate", "--target", "main")
        self.pipeline.start("sync", "sync")

    def rows(self, url: str, table: str) -> list[tuple[Any, ...]]:
        """Return all rows of a table as texts."""
        return query(url, f"SELECT t::text FROM {table} t ORDER BY 1")

    def is_equal(self) -> bool:
        """Return whether both databases have the same rows."""
        return all(self.rows(self.old, t) == self.rows(self.new, t) for t in ("customer", "orders"))

    def until_equal(self) -> None:
        """Wait until both databases have the same rows."""
        eventually(self.is_equal, lambda: self.pipeline.tail(), timeout_s=120.0, every_s=0.1)

    def writable(self) -> list[str]:
        """Return the databases that accept a write."""
        found = []
        for name, url in (("old", self.old), ("new", self.new)):
            try:
                query(url, "UPDATE orders SET what = what WHERE no = 1")
            except CLOSED:
                continue
            found.append(name)
        return found


@pytest.fixture
def pair(tmp_path: Path, postgres_server: Server) -> Iterator[Pair]:
    old, new = postgres_server.create_database(), postgres_server.create_database()
    found = Pair(tmp_path, old, new)
    try:
        yield found
    finally:
        found.pipeline.close()
        postgres_server.drop_database(old)
        postgres_server.drop_database(new)


def test_there_and_back(pair: Pair) -> None:
    pair.start()
    pipeline = pair.pipeline
    rehearsal = pipeline.ask("cutover", "--target", "main", "--fall-back", "--rehearse", *QUIET)
    assert rehearsal["blocks"] == []
    found = pipeline.ask("cutover", "--target", "main", "--fall-back", *QUIET)["certificate"]
    assert found["equal"]
    assert pair.writable() == ["new"]

    query(pair.new, "INSERT INTO customer (name) VALUES ('carl')")
    query(pair.new, "INSERT INTO orders (customer, what) VALUES (3, 'there')")
    query(pair.new, "DELETE FROM customer WHERE name = 'bob'")
    pair.until_equal()
    assert query(pair.old, "SELECT count(*) FROM audited") == [(2,)]
    assert pipeline.ask("verify")["verdict"] == "same"

    back = pipeline.ask("fallback", *QUIET)["certificate"]
    assert back["equal"]
    assert pair.writable() == ["old"]
    query(pair.old, "INSERT INTO customer (name) VALUES ('dora')")
    query(pair.old, "INSERT INTO orders (customer, what) VALUES (4, 'back')")
    pair.until_equal()
    assert query(pair.old, "SELECT id FROM customer ORDER BY 1") == [(1,), (3,), (4,)]

    assert pipeline.stop("sync") == 0
    pipeline.ask("uninstall-triggers")
    assert pair.writable() == ["old", "new"]
    for url in (pair.old, pair.new):
        assert query(url, "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'venus%'") == [(0,)]


def cut_over(pair: Pair) -> Any:
    """Make the new database the application's."""
    return pair.pipeline.ask("cutover", "--target", "main", "--fall-back", *QUIET)["certificate"]


#: What holds the command at each step: the database, a lock in it, the records then, and which one accepts writes after
#: a kill.
HELD = {
    "close": ("old", "LOCK TABLE orders IN ROW EXCLUSIVE MODE", (None, "FOLLOWING"), ["old"]),
    "stop": ("old", "SELECT FROM venus.checkpoint FOR UPDATE", ("CLOSED", "FOLLOWING"), []),
    "open": ("new", "LOCK TABLE orders IN ROW EXCLUSIVE MODE", ("STOPPED", "FOLLOWING"), []),
    "follow": ("old", "LOCK TABLE venus.applied IN EXCLUSIVE MODE", ("STOPPED", "OPEN"), ["new"]),
}


def state_of(url: str) -> str | None:
    """Return the state that the record of a database names."""
    if query(url, "SELECT to_regclass('venus.side') IS NULL") == [(True,)]:
        return None
    return next((state for (state,) in query(url, "SELECT state FROM venus.side")), None)


@pytest.mark.parametrize("step", HELD)
def test_a_kill_at_each_step_is_completed_by_the_same_command(pair: Pair, step: str) -> None:
    pair.start()
    database, lock, records, writable = HELD[step]
    with closing(psycopg2.connect(libpq(getattr(pair, database)))) as holder:
        holder.cursor().execute("SET idle_in_transaction_session_timeout = 0")
        if step in ("close", "stop"):
            holder.cursor().execute(lock)
        pair.pipeline.start("cutover", "cutover", "--target", "main", "--fall-back", *QUIET)
        if step in ("open", "follow"):
            wanted = {"open": (pair.new, "FOLLOWING"), "follow": (pair.old, "STOPPED")}[step]
            pair.pipeline.until(lambda: state_of(wanted[0]) == wanted[1], f"the step before {step}", every_s=0.01)
            holder.cursor().execute(lock)

        def is_held() -> bool:
            waits = query(getattr(pair, database), _WAITS.format(holder=holder.info.backend_pid))
            return (state_of(pair.old), state_of(pair.new)) == records and waits != [(0,)]

        pair.pipeline.until(is_held, "the command to wait")
        pair.pipeline.kill("cutover")
    pair.pipeline.until(lambda: (state_of(pair.old), state_of(pair.new)) == records, "the records to stay")
    assert pair.writable() == writable
    advice = [p for p in pair.pipeline.status()["problems"] if "is not finished" in p]
    assert bool(advice) == (step != "close")
    assert all("`venus cutover --target main --fall-back` completes it" in p for p in advice)
    cut_over(pair)
    assert pair.writable() == ["new"]
    query(pair.new, "INSERT INTO customer (name) VALUES ('carl')")
    pair.until_equal()


_WAITS = "SELECT count(*) FROM pg_stat_activity WHERE {holder} = ANY (pg_blocking_pids(pid))"


def test_an_interrupted_switch_is_undone(pair: Pair) -> None:
    pair.start()
    with closing(psycopg2.connect(libpq(pair.new))) as holder:
        pair.pipeline.start("cutover", "cutover", "--target", "main", "--fall-back", *QUIET)
        pair.pipeline.until(lambda: state_of(pair.new) == "FOLLOWING", "the new database to follow", every_s=0.01)
        holder.cursor().execute("LOCK TABLE orders IN ROW EXCLUSIVE MODE")
        pair.pipeline.until(lambda: state_of(pair.old) == "STOPPED", "the old database to be stopped")
        pair.pipeline.kill("cutover")
    pair.pipeline.ask("cutover", "--target", "main", "--undo")
    assert pair.writable() == ["old"]
    query(pair.old, "INSERT INTO customer (name) VALUES ('carl')")
    pair.until_equal()
    assert "there is nothing to undo" in pair.pipeline.venus("cutover", "--target", "main", "--undo", code=3).err


def test_what_cannot_come_back_is_named_before_and_quarantined_after(pair: Pair) -> None:
    pair.start(
        _SHOP
        + "CREATE TABLE made (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED);"
        + "ALTER TABLE orders ENABLE ALWAYS TRIGGER audit;"
    )
    pipeline = pair.pipeline
    said = pipeline.venus("cutover", "--target", "main", "--fall-back", *QUIET, code=3).err
    assert "public.made.twice is generated and cannot be written: changes could not come back" in said
    assert "ALTER TABLE orders ENABLE TRIGGER audit" in said
    assert pair.writable() == ["old", "new"]
    query(pair.old, "ALTER TABLE orders ENABLE TRIGGER audit; ALTER TABLE made ALTER twice DROP EXPRESSION")
    pipeline.until(lambda: _rehearses(pipeline), "capture to notice that")
    cut_over(pair)

    query(pair.new, "ALTER TABLE orders ADD COLUMN extra int DEFAULT 7")
    query(pair.new, "ALTER TABLE customer DROP CONSTRAINT customer_credit_check")
    query(pair.new, "INSERT INTO customer (name, credit) VALUES ('in debt', -1)")
    query(pair.new, "INSERT INTO orders (customer, what) VALUES (1, 'later')")
    pipeline.until(lambda: pair.rows(pair.old, "orders") == pair.rows(pair.new, "orders"), "the other table to follow")
    (waiting,) = pipeline.ask("quarantine", "list", "--target", "@source", code=1)["quarantine"]["@source"]
    assert (waiting["table"], "customer_credit_check" in waiting["message"]) == ("public.customer", True)
    said = pipeline.venus("fallback", *QUIET, code=3).err
    assert "quarantine" in said
    assert pair.writable() == ["new"]


def _rehearses(pipeline: Pipeline) -> bool:
    arguments = ("cutover", "--target", "main", "--fall-back", "--rehearse", *QUIET)
    return pipeline.venus(*arguments, code=(0, 3, 12)).code == 0


def test_a_new_database_that_was_restored_overwrites_nothing(pair: Pair, postgres_server: Server) -> None:
    pair.start()
    pipeline = pair.pipeline
    cut_over(pair)
    query(pair.new, "INSERT INTO customer (name) VALUES ('in the backup')")
    pair.until_equal()
    pipeline.stop("sync")
    name, backup = (url.rpartition("/")[2].partition("?")[0] for url in (pair.new, postgres_server.create_database()))
    postgres_server.execute(f"DROP DATABASE {backup}")
    postgres_server.execute(f"CREATE DATABASE {backup} TEMPLATE {name}")
    pipeline.start("sync", "sync")
    query(pair.new, "UPDATE customer SET name = 'after the backup' WHERE name = 'in the backup'")
    pair.until_equal()
    pipeline.stop("sync")
    before = pair.rows(pair.old, "customer")
    postgres_server.drop_database(pair.new)
    postgres_server.execute(f"CREATE DATABASE {name} TEMPLATE {backup}")
    postgres_server.execute(f"DROP DATABASE {backup}")
    pipeline.start("sync", "sync")
    pipeline.until(lambda: "was restored from a backup" in pipeline.tail(), "the restored database to be named")
    assert pair.rows(pair.old, "customer") == before
    assert not pair.is_equal()
    pipeline.ask("resync", "--all")
    pair.until_equal()
    assert pair.rows(pair.old, "customer") != before


_LEDGER = """
CREATE TABLE ledger (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, amount numeric(12, 2) NOT NULL, note text);
CREATE TABLE customer (id int PRIMARY KEY);
CREATE TABLE orders (no int PRIMARY KEY, what text);
CREATE TABLE audited (what text);
INSERT INTO orders VALUES (1, 'probe');
"""


class Application:
    """An application with one connection: it writes rows, and knows which ones were acknowledged."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.rows: dict[int, tuple[str, str]] = {}
        self.errors: list[str] = []
        self.writes = 0

    @contextmanager
    def writing(self, url: str) -> Iterator[None]:
        """Write to this database within the block."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, args=(url,))
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()

    def _run(self, url: str) -> None:
        with closing(psycopg2.connect(libpq(url))) as connection:
            connection.autocommit = True
            cursor = connection.cursor()
            while not self._stop.wait(0.005):
                try:
                    self._write(cursor)
                except psycopg2.Error as error:
                    self.errors.append(str(error))
                    return

    def _write(self, cursor: psycopg2.extensions.cursor) -> None:
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


def rows_of(url: str) -> dict[int, tuple[str, str]]:
    return {i: (a, n) for i, a, n in query(url, "SELECT id, amount::text, note FROM ledger")}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "switches", [pytest.param(3, id="three"), pytest.param(20, id="twenty", marks=pytest.mark.nightly)]
)
def test_switches_in_a_row_under_writers(pair: Pair, switches: int) -> None:
    pair.start(_LEDGER)
    application, chance = Application(7), random.Random(7)
    owner, follower = pair.old, pair.new
    for number in range(switches):
        write_with_a_kill(pair, application, chance, owner, follower)
        if number:
            assert pair.writable() == ["old" if owner == pair.old else "new"]
        command = ("fallback",) if owner == pair.new else ("cutover", "--target", "main", "--fall-back")
        certificate = pair.pipeline.ask(*command, *QUIET)["certificate"]
        assert certificate["equal"]
        assert rows_of(owner) == rows_of(follower) == application.rows
        owner, follower = follower, owner
        assert pair.writable() == ["old" if owner == pair.old else "new"]
    write_with_a_kill(pair, application, chance, owner, follower)
    assert query(pair.new, "SELECT count(*) FROM venus.load_job") == [(1,)]
    assert query(pair.old, "SELECT count(*) FROM venus.load_job") == [(0,)]


def write_with_a_kill(pair: Pair, application: Application, chance: random.Random, owner: str, follower: str) -> None:
    """Write to the owner, kill a process meanwhile, and wait until the follower has every row."""
    enough = [application.writes + 40, application.writes + 80]
    with application.writing(owner):
        eventually(lambda: application.writes > enough[0] or application.errors)
        if chance.random() < 0.5:
            pair.pipeline.kill("broker")
            pair.pipeline.start_broker()
        else:
            pair.pipeline.kill("sync")
            pair.pipeline.start("sync", "sync", "--take-over")
        eventually(lambda: application.writes > enough[1] or application.errors)
    assert application.errors == []
    eventually(lambda: rows_of(follower) == application.rows, pair.pipeline.tail, timeout_s=120.0, every_s=0.2)
