"""Two databases of different kinds between which an application is switched: PostgreSQL, and its former database.

Each pair has the table `ledger`, which the application writes, and `probe`, which shows whether a database accepts
writes. A subclass for each kind adds how its database is queried, killed and inspected.
"""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import psutil
import psycopg2

from tests.simulation.patching import SourceEdit
from tests.support.databases.postgres import Server, libpq
from tests.support.pipelines.pipeline import Pipeline, with_password
from tests.support.waiting import eventually

QUIET = ("--quiet", "0.2", "--wait", "120")
FORWARD = ("cutover", "--target", "main", "--fall-back")
BACK = ("fallback",)
#: Maximum attempts of one switch; only the first ones may have a fault.
_ATTEMPTS_MAX = 8
_FAULTS_MAX = 4
#: Sessions of PostgreSQL that wait for a lock.
_WAITING = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


class SwitchedPair(ABC):
    """The old database, the new one in PostgreSQL, and a pipeline between them."""

    #: The tables of the application in the old database, for `SwitchProof`.
    LEDGER: ClassVar[str]
    #: Their names in a spelling for both databases: PostgreSQL folds upper case.
    ledger: ClassVar[str] = "ledger"
    probe: ClassVar[str] = "probe"
    #: Statement that begins a transaction in the old database; PostgreSQL accepts it too.
    BEGIN: ClassVar[str] = "BEGIN"
    #: Queries of the old database: whether it has a table for its record, and the record's state.
    HAS_RECORD: ClassVar[str]
    READ_STATE: ClassVar[str] = "SELECT state FROM venus_side WHERE business <> ''"
    #: Errors of the old database's driver.
    ERRORS: ClassVar[tuple[type[Exception], ...]]

    def __init__(self, folder: Path, old: str, server: Server, schema: str) -> None:
        self._server, self._schema = server, schema
        self.new_url = server.create_database()
        self.pipeline = Pipeline(folder=folder, source=old, targets={"main": with_password(self.new_url)})

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """Return the error classes of both drivers."""
        return (psycopg2.Error, *self.ERRORS)

    def start(self, tables: str) -> None:
        """Load the new database and all other targets, and keep `venus sync` running."""
        self.old(tables)
        self.pipeline.configure()
        self.pipeline.ask("install-triggers")
        self.pipeline.start_broker()
        for name in self.pipeline.targets:
            self.pipeline.ask("migrate", "--target", name)
        self.pipeline.start("sync", "sync")
        self.pipeline.wait_until_connected(*self.pipeline.targets)  # otherwise a switch may count them as absent

    def close(self) -> None:
        """Stop all processes, and drop the new database."""
        self.pipeline.close()
        self._server.drop_database(self.new_url)

    @abstractmethod
    def connect_old(self) -> Any:
        """Connect to the old database as the application does, in autocommit mode."""

    @abstractmethod
    def count_logged(self) -> int:
        """Return the number of the application's changes in the old database's logs."""

    def count_loads(self) -> int:
        """Return the number of loads into the old database."""
        return int(self.old("SELECT count(*) FROM venus_load_job")[0][0])

    @abstractmethod
    def crash_old(self) -> None:
        """Kill the old database's server with SIGKILL, and restart it."""

    def state_of(self, name: str) -> str | None:
        """Return the state in the record of a database, or None without a record."""
        if name == "new":
            return str(self.new("SELECT state FROM venus.side")[0][0]) if self.has_begun else None
        found = self.old(self.READ_STATE) if self.old(self.HAS_RECORD) else []
        return next((state for (state,) in found), None)

    @property
    def states(self) -> tuple[str | None, str | None]:
        """Return the states of the old and the new database."""
        return self.state_of("old"), self.state_of("new")

    def is_waiting(self, name: str, begin: int) -> bool:
        """Return whether the command, whose log begins at `begin`, waits for a lock in this database."""
        return self.is_waiting_in_old(begin) if name == "old" else self.new(_WAITING) != []

    @abstractmethod
    def is_waiting_in_old(self, begin: int) -> bool:
        """Return whether the command waits for a lock in the old database."""

    def connect_new(self) -> Any:
        """Connect to PostgreSQL as the application does, in autocommit mode."""
        connection = psycopg2.connect(libpq(self.new_url), options=f"-c search_path={self._schema}")
        connection.autocommit = True
        return connection

    def connect(self, name: str) -> Any:
        """Connect to one of the two databases."""
        return self.connect_new() if name == "new" else self.connect_old()

    def crash_new(self) -> None:
        """Kill PostgreSQL with SIGKILL, and restart it."""
        self._server.crash()
        self._server.start()

    def old(self, text: str) -> list[tuple[Any, ...]]:
        """Run statements at the old database; return the rows of the last one."""
        with closing(self.connect_old()) as connection:
            return run_statements(connection, text)

    def new(self, text: str) -> list[tuple[Any, ...]]:
        """Run statements at PostgreSQL; return the rows of the last one."""
        with closing(self.connect_new()) as connection:
            return run_statements(connection, text)

    def switch(self, *command: str) -> Any:
        """Switch the application to the other database, and return the certificate."""
        return self.pipeline.ask(*command, *QUIET)["certificate"]

    @property
    def probe_write(self) -> str:
        """Execute a write that shows whether a database accepts writes."""
        return f"UPDATE {self.probe} SET n = n + 1"

    @property
    def has_begun(self) -> bool:
        """Return whether any switch was begun: then the new database has a record."""
        there = self.new("SELECT to_regclass('venus.side') IS NOT NULL")
        return there == [(True,)] and bool(self.new("SELECT 1 FROM venus.side"))

    def writable(self) -> list[str]:
        """Return the databases that accept a write.

        The new one is tried first: VENUS may have applied a change of the old one there, so it would be made twice.
        """
        found: list[str] = []
        for name, run in (("new", self.new), ("old", self.old)):
            with suppress(*self.errors):
                run(self.probe_write)
                found.insert(0, name)
        return found

    def read_ledger(self, name: str) -> dict[int, tuple[str, str]]:
        """Return the rows of the application in a database."""
        rows = (self.new if name == "new" else self.old)(f"SELECT id, amount, note FROM {self.ledger}")
        return {number: (f"{amount:.2f}", note) for number, amount, note in rows}


def run_statements(connection: Any, text: str) -> list[tuple[Any, ...]]:
    """Run statements; return the rows of the last one."""
    cursor, found = connection.cursor(), []
    for statement in filter(str.strip, text.split(";")):
        cursor.execute(statement)
        found = list(cursor.fetchall()) if cursor.description else []
    return found


class LedgerApplication:
    """An application with one connection: it writes rows, and records the acknowledged ones.

    After it lost its connection in a write, it looks up the outcome. No number may be drawn twice.
    """

    def __init__(self, pair: SwitchedPair, seed: int) -> None:
        self._pair = pair
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._drawn: set[int] = set()
        self.rows: dict[int, tuple[str, str]] = {}
        self.errors: list[str] = []
        self.writes = 0

    @contextmanager
    def write_in_background(self, name: str, *, insists: bool = False) -> Iterator[None]:
        """Write to this database within the block; with `insists` retry while it rejects writes."""
        self._stop.clear()
        thread = threading.Thread(target=self._run, args=(name, insists))
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def until_written(self, count: int) -> None:
        """Wait for this number of writes."""
        enough = self.writes + count
        eventually(lambda: self.writes >= enough or self.errors, self._pair.pipeline.tail, timeout_s=120.0)

    def _run(self, name: str, insists: bool) -> None:
        note = ""
        while not self._stop.is_set():
            try:
                with closing(self._pair.connect(name)) as connection:
                    self._look_for(connection, note)
                    while not self._stop.wait(0.005):
                        note = f"note {self.writes} {self._random.random()}"
                        self._write(connection, note)
                    self._draw_unseen(connection)
            except AssertionError as error:
                self.errors.append(str(error))
                return
            except self._pair.errors as error:
                if "keeps this database equal" in str(error) and not insists:
                    self.errors.append(str(error))
                    return
                self._stop.wait(0.05)

    def _look_for(self, connection: Any, note: str) -> None:
        """Look up the outcome of the write in which the last connection was lost."""
        rows = run_statements(connection, f"SELECT id, amount, note FROM {self._pair.ledger}")
        found = {i: (f"{a:.2f}", n) for i, a, n in rows}
        lost = {i: row for i, row in self.rows.items() if found.get(i) != row}
        more = {i: row for i, row in found.items() if self.rows.get(i) != row}
        assert len(lost) <= 1, f"the ledger lacks {lost}"
        assert all(row[1] == note for row in more.values()), f"the ledger has {more}"
        self._drawn |= set(more)
        self.rows = found

    def _write(self, connection: Any, note: str) -> None:
        amount = f"{self._random.randrange(10**6) / 100:.2f}"
        known, chance, ledger = list(self.rows), self._random.random(), self._pair.ledger
        if len(known) < 20 or chance < 0.4:
            text = f"INSERT INTO {ledger} (amount, note) VALUES ({amount}, '{note}') RETURNING id"
            number = self._draw(run_statements(connection, text))
            self.rows[number] = (amount, note)
        elif chance < 0.8:
            number = self._random.choice(known)
            run_statements(connection, f"UPDATE {ledger} SET amount = {amount}, note = '{note}' WHERE id = {number}")
            self.rows[number] = (amount, note)
        else:
            number = self._random.choice(known)
            run_statements(connection, f"DELETE FROM {ledger} WHERE id = {number}")
            del self.rows[number]
        self.writes += 1

    def _draw_unseen(self, connection: Any) -> None:
        """Draw a number that outsiders may know, for a row that never reaches the other database."""
        cursor = connection.cursor()
        cursor.execute(self._pair.BEGIN)
        cursor.execute(f"INSERT INTO {self._pair.ledger} (amount, note) VALUES (0, 'drawn') RETURNING id")
        (number,) = cursor.fetchall()[0]
        cursor.execute(f"DELETE FROM {self._pair.ledger} WHERE id = {number}")
        cursor.execute("COMMIT")
        self._draw([(number,)])

    def _draw(self, returned: list[tuple[Any, ...]]) -> int:
        number = int(returned[0][0])
        assert number not in self._drawn, f"number {number} was drawn before"
        self._drawn.add(number)
        return number


class DoubleWriteProbe:
    """Continuous probe of both databases: both at once must never accept a write.

    The probe opens a write in each and holds both. The new database counts from the moment VENUS has closed the old
    one, in the step that writes its record.
    """

    def __init__(self, pair: SwitchedPair) -> None:
        self._pair = pair
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.violations = 0
        #: How often each database alone accepted a write.
        self.accepted = {"old": 0, "new": 0}

    def __enter__(self) -> DoubleWriteProbe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.005):
            with suppress(*self._pair.errors), closing(self._pair.connect_new()) as new:
                found = ["new"] if self._pair.has_begun and self._accepts(new) else []
                with closing(self._pair.connect_old()) as old:
                    found += ["old"] if self._accepts(old) else []
                self.violations += len(found) == 2
                for name in found if len(found) == 1 else ():
                    self.accepted[name] += 1

    def _accepts(self, connection: Any) -> bool:
        """Open a write, which is rolled back with the connection; return whether the database accepts it."""
        try:
            connection.cursor().execute(self._pair.BEGIN)
            connection.cursor().execute(self._pair.probe_write)
        except self._pair.errors:
            return False
        return True


class SwitchProof:
    """Repeated switches while an application writes, with kill -9 of processes and databases."""

    def __init__(self, pair: SwitchedPair, seed: int, edits: tuple[SourceEdit, ...] = ()) -> None:
        self.pair = pair
        self.chance = random.Random(seed)
        self.application = LedgerApplication(pair, seed)
        self.owner, self.follower = "old", "new"
        self.killed: list[str] = []
        #: Victims by name, with the function that kills each.
        self.victims: dict[str, Callable[[], None]] = {
            "broker": self._kill_broker,
            "sync": self._kill_sync,
            "child": self._kill_child,
            "old": pair.crash_old,
            "new": pair.crash_new,
        }
        if edits:
            pair.pipeline.edit_processes(edits)
        pair.start(pair.LEDGER)

    def run(self, switches: int, *, faults: bool) -> None:
        """Switch this many times; raise AssertionError for anything that an application must never see."""
        with DoubleWriteProbe(self.pair) as probe:
            for number in range(switches + 1):
                self._write(faults=faults)
                eventually(lambda: probe.accepted[self.owner], f"{self.owner} to accept writes", timeout_s=120.0)
                if number < switches:
                    self._switch(faults=faults, eager=number % 3 != 0)
        assert probe.violations == 0, "both accept writes"
        assert min(probe.accepted.values()) > 0
        assert self.pair.new("SELECT count(*) FROM venus.load_job") == [(1,)]
        assert self.pair.count_loads() == 0

    # -- faults ------------------------------------------------------------------------------------------------------

    def _kill(self, victim: str) -> None:
        self.killed.append(victim)
        self.victims[victim]()

    def _kill_broker(self) -> None:
        self.pair.pipeline.kill("broker")
        self.pair.pipeline.start_broker()

    def _kill_sync(self) -> None:
        self.pair.pipeline.kill("sync")
        self.pair.pipeline.start("sync", "sync", "--take-over")

    def _kill_child(self) -> None:
        """Kill one of the loops of `venus sync`, which restarts it."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if "--with-parent" in process.cmdline() and process.cwd() == str(self.pair.pipeline.folder):
                    found.append(process)
        if found:
            with suppress(psutil.NoSuchProcess):
                self.chance.choice(sorted(found, key=lambda one: one.pid)).kill()

    # -- phases ------------------------------------------------------------------------------------------------------

    def _write(self, *, faults: bool) -> None:
        """Write to the owner under faults; compare all rows in the middle and at the end."""
        for part in ("in the middle of a phase", "at the end of a phase"):
            with self.application.write_in_background(self.owner):
                self.application.until_written(30)
                if faults:
                    self._kill(self.chance.choice(list(self.victims)))
                    self.application.until_written(30)
            self._until_equal(part)

    def _until_equal(self, where: str) -> None:
        pair, application = self.pair, self.application
        with suppress(AssertionError):  # `_check_equal` reports the differences
            eventually(
                lambda: application.errors or pair.read_ledger(self.follower) == application.rows,
                timeout_s=120.0,
                every_s=0.2,
            )
        self._check_equal(where)

    def _check_equal(self, where: str) -> None:
        """Check that both databases have every acknowledged write, and that the follower's logs are empty."""
        assert self.application.errors == [], f"{where}: {self.application.errors}"
        wanted = self.application.rows
        for name in ("old", "new"):
            found = self.pair.read_ledger(name)
            lost = {i: row for i, row in wanted.items() if found.get(i) != row}
            more = {i: row for i, row in found.items() if wanted.get(i) != row}
            assert found == wanted, f"{where}: {name} lacks {lost} and has {more}\n{self.pair.pipeline.tail()}"
        if self.follower == "old":
            assert self.pair.count_logged() == 0, f"{where}: old has logged changes of VENUS"

    def _switch(self, *, faults: bool, eager: bool) -> None:
        """Switch, with a fault in most attempts; with `eager` the application continually tries the new owner."""
        command = BACK if self.owner == "new" else FORWARD
        for attempt in range(_ATTEMPTS_MAX):
            if eager and attempt == 0:
                with self.application.write_in_background(self.follower, insists=True):
                    done = self._attempt(command, fault=faults)
                    if done:
                        self.application.until_written(20)
            else:
                done = self._attempt(command, fault=faults and attempt < _FAULTS_MAX)
            if done:
                break
            writable = self.pair.writable()
            assert len(writable) <= 1 or not self.pair.has_begun, f"{writable} accept writes"
        else:
            raise AssertionError(f"not switched in {_ATTEMPTS_MAX} attempts\n{self.pair.pipeline.tail()}")
        self.owner, self.follower = self.follower, self.owner
        self._until_equal("at a switch")
        writable = self.pair.writable()
        assert writable == [self.owner], f"{writable} accept writes, not {self.owner} alone"

    def _attempt(self, command: tuple[str, ...], *, fault: bool) -> bool:
        """Run the command once, with a fault at a random moment; return whether the switch is complete."""
        pipeline = self.pair.pipeline
        pipeline.start("switch", *command, *QUIET)
        process = pipeline.running["switch"]
        victim = self.chance.choice((*self.victims, "switch", "switch", "")) if fault else ""
        if victim:
            with suppress(Exception):
                process.wait(self.chance.uniform(0.0, 6.0))
            if process.poll() is None and victim == "switch":
                self.killed.append(victim)
                process.kill()
            elif process.poll() is None:
                self._kill(victim)
        code = process.wait(240)
        del pipeline.running["switch"]
        return code == 0
