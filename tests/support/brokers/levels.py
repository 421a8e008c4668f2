"""Three levels of two broker sets each, a source and two targets; tests kill processes and cut connections.

hq  <- second        core: hq is the home, second mirrors it
north, south         tandem, each below both core sets
east, west           access, each below both tandem sets; a target at each, which may move to the other access set
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg2

from tests.support.brokers import networks
from tests.support.brokers.feed import query
from tests.support.brokers.servers import BrokerProcess, business_status
from tests.support.databases.postgres import libpq
from tests.support.faults.proxy import Proxy
from tests.support.ports import free_port
from tests.support.processes import forked
from tests.support.waiting import eventually
from venus.adapters.dialects.registry import open_source
from venus.adapters.targets.relational.full_sync import full_sync
from venus.adapters.upper.capture import run_capture_fill
from venus.config import BrokerSettings, CaptureSettings, Settings, SourceSettings, TargetSettings

#: For each set: tier, level, and the sets it may pull from, nearest first.
SETS: Mapping[str, tuple[str, int, tuple[str, ...]]] = {
    "hq": ("core", 0, ()),
    "second": ("core", 0, ("hq",)),
    "north": ("tandem", 1, ("hq", "second")),
    "south": ("tandem", 1, ("second", "hq")),
    "east": ("access", 2, ("north", "south")),
    "west": ("access", 2, ("south", "north")),
}
LEVELS = (("hq", "second"), ("north", "south"), ("east", "west"))
#: For each target: the access sets, nearest first.
TARGETS = {"a": ("east", "west"), "b": ("west", "east")}
KEYS = 400
WRITERS = 3
PAUSE_S = 0.01
SURE_S = 90.0

TABLES = (
    "CREATE TABLE items (id int PRIMARY KEY, version bigint NOT NULL, written timestamptz DEFAULT clock_timestamp())",
    "CREATE TABLE marks (name text PRIMARY KEY, number bigint NOT NULL)",
    "CREATE SEQUENCE versions",
    "INSERT INTO items SELECT n, nextval('versions') FROM generate_series(1, 200) n",
    "INSERT INTO marks VALUES ('newest', 0)",
)
#: The source writes each version of a row once, so a target must insert it once and remove it once.
AUDIT = (
    "CREATE SCHEMA audit",
    "CREATE TABLE audit.applied (id int, version bigint, put bool, took interval)",
    """CREATE FUNCTION audit.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF TG_OP <> 'INSERT' THEN INSERT INTO audit.applied VALUES (OLD.id, OLD.version, false); END IF;
        IF TG_OP <> 'DELETE' THEN
            INSERT INTO audit.applied VALUES (NEW.id, NEW.version, true, clock_timestamp() - NEW.written);
        END IF;
        RETURN NULL; END $$""",
    "CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON items FOR EACH ROW EXECUTE FUNCTION audit.note()",
    "ALTER TABLE items ENABLE ALWAYS TRIGGER audit",
)
TWICE = "SELECT id, version, put, count(*) FROM audit.applied GROUP BY 1, 2, 3 HAVING count(*) > 1"
TOOK = "SELECT extract(epoch FROM took) FROM audit.applied WHERE put"


class BrokerLevels:
    """The sets of all levels, their source and targets. Each connection has its own proxy."""

    def __init__(self, folder: Path, source: str, targets: Mapping[str, str]) -> None:
        self.folder, self.source, self.targets = folder, source, targets
        self.at = {name: f"127.0.0.1:{free_port()}" for name in SETS}
        links = [(lower, upper) for lower, (_, _, above) in SETS.items() for upper in above]
        links += [(target, upper) for target, above in TARGETS.items() for upper in above]
        self.lines = {link: Proxy(self.at[link[1]]) for link in (*links, ("capture", "hq"))}
        self.brokers: dict[str, BrokerProcess] = {}
        self.clients: dict[str, subprocess.Popen[Any]] = {}
        #: For each set: the first offset of its queue.
        self.began_at: dict[str, int] = {}
        self._marks = 0
        self._source = psycopg2.connect(libpq(source))
        self._source.autocommit = True
        for name in SETS:
            self.start(name)

    # -- processes -------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start the broker of a set."""
        tier, level, above = SETS[name]
        upstream = [self.lines[name, upper].address for upper in above]
        self.brokers[name] = BrokerProcess(
            networks.settings_of(self.folder / name, upstream, tier=tier, level=level, listen=self.at[name], http="")
        )

    def begin(self, client: str) -> None:
        """Start capture, or the apply loop of a target, as a process."""
        part = ["--capture-only"] if client == "capture" else ["--apply-only", "--target", client]
        with (self.folder / f"{client}.log").open("ab") as log:
            self.clients[client] = forked.popen(
                [sys.executable, "-m", "venus.cli", "sync", *part, "-c", str(self._file(client))],
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )

    def kill(self, client: str) -> None:
        """Send SIGKILL."""
        self.clients[client].kill()
        self.clients[client].wait()

    def settings(self, client: str) -> Settings:
        """Return the settings of capture, or of a target's process."""
        sets = TARGETS.get(client, ("hq",))
        reach = [(self.lines[client, name].address,) for name in sets]
        return Settings(
            source=SourceSettings.model_validate({"url": self.source, "tables": ["public.items", "public.marks"]}),
            targets={name: TargetSettings.model_validate({"url": url}) for name, url in self.targets.items()},
            broker=BrokerSettings(addresses=reach[0], further=tuple(reach[1:])),
            capture=CaptureSettings(heartbeat_s=1.0),
        )

    def _file(self, client: str) -> Path:
        """Write the configuration of capture or of a target's process; return its path."""
        path, broker = self.folder / f"{client}.toml", self.settings(client).broker
        further = ", ".join(f'["{one[0]}"]' for one in broker.further)
        path.write_text(
            f'[source]\nurl = "{self.source}"\ntables = ["public.items", "public.marks"]\n'
            "[capture]\nheartbeat_s = 1.0\n"
            f'[broker]\naddresses = ["{broker.addresses[0]}"]\nfurther = [{further}]\n'
            + "".join(f'[targets.{name}]\nurl = "{url}"\n' for name, url in self.targets.items())
        )
        return path

    def follow(self) -> None:
        """Install, load both targets from their access sets, and start to follow."""
        for statement in TABLES:
            query(self.source, statement)
        capture = self.settings("capture")
        source = open_source(capture)
        try:
            source.installer.install(capture.source.tables, ())
        finally:
            source.close()
        run_capture_fill(capture, threading.Event())
        for name in ("east", "west"):
            networks.has(self.at[name], 201)
        for name in self.targets:
            full_sync(self.settings(name), name)
            for statement in AUDIT:
                query(self.targets[name], statement)
        for client in ("capture", *self.targets):
            self.begin(client)
        self.level()
        self.began_at = {name: business_status(address).log_start for name, address in self.at.items()}

    def close(self) -> None:
        """Stop all processes."""
        for client in self.clients:
            self.kill(client)
        for broker in self.brokers.values():
            broker.kill()
        for line in self.lines.values():
            line.close()
        self._source.close()

    # -- the source and the targets --------------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Let writers work within the block; each version is written once."""
        stop, errors = threading.Event(), list[BaseException]()
        threads = [threading.Thread(target=self._write, args=(n, stop, errors)) for n in range(WRITERS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not errors, errors

    def _write(self, number: int, stop: threading.Event, errors: list[BaseException]) -> None:
        rng = random.Random(number)
        put = (
            "INSERT INTO items VALUES (%s, nextval('versions'), clock_timestamp()) ON CONFLICT (id) DO UPDATE SET "
            "version = EXCLUDED.version, written = EXCLUDED.written"
        )
        connection = psycopg2.connect(libpq(self.source))
        try:
            while not stop.wait(PAUSE_S):
                with connection, connection.cursor() as cursor:
                    for key in sorted(rng.sample(range(1, KEYS), rng.randint(1, 4))):
                        cursor.execute("DELETE FROM items WHERE id = %s" if rng.random() < 0.25 else put, (key,))
        except BaseException as error:  # reported at the end
            errors.append(error)
        finally:
            connection.close()

    def mark(self) -> Callable[[str], bool]:
        """Write a mark; return a function that says whether a target has it."""
        self._marks += 1
        number = self._marks
        self._source.cursor().execute("UPDATE marks SET number = %s", (number,))
        return lambda target: bool(query(self.targets[target], "SELECT number FROM marks")[0][0] >= number)

    def level(self) -> None:
        """Write a mark, and wait until every target has it."""
        has = self.mark()
        for target in self.targets:
            eventually(partial(has, target), timeout_s=SURE_S)

    def rows(self, url: str) -> list[tuple[Any, ...]]:
        """Return all rows of the source or of a target."""
        items = "SELECT id, version, written AT TIME ZONE 'UTC' FROM items ORDER BY id"
        return query(url, items) + query(url, "SELECT * FROM marks")
