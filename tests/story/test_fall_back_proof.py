"""Repeated switches under writers, with kill -9 of every process and of both databases: no row is lost or doubled.

Each database is a PostgreSQL server of its own, so each can crash alone. The writers of the application record every
acknowledged write (tests/support/pipelines/switched_application.py). In the middle of each phase and at each switch,
all rows of both databases are compared with that record, and a probe repeatedly checks whether both accept a write.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from tests.simulation.patching import SourceEdit
from tests.support.databases.postgres import Server, running_server
from tests.support.pipelines.pipeline import Pipeline, with_password
from tests.support.pipelines.switched_application import (
    SCHEMA,
    SwitchedApplication,
    WriteProbe,
    hash_rows,
    query,
    read_rows,
)
from tests.support.processes.lifetimes import new_folder
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3600)]

QUIET = ("--quiet", "0.2", "--wait", "60")
#: Maximum attempts of one switch; most have a fault.
ATTEMPTS_MAX = 12
#: Victims of kill -9: processes of VENUS, a database, or the switching command.
VICTIMS = ("broker", "sync", "child", "old", "new")


class SwitchRun:
    """Two servers, a pipeline, and the application."""

    def __init__(self, folder: Path, servers: dict[str, Server], seed: int, edits: tuple[SourceEdit, ...] = ()) -> None:
        self.servers = servers
        self.urls = {name: server.create_database() for name, server in servers.items()}
        self.chance = random.Random(seed)
        self.application = SwitchedApplication(2)
        self.owner, self.follower = "old", "new"
        self.killed: list[str] = []
        old, new = (with_password(self.urls[name]) for name in ("old", "new"))
        # VENUS's own triggers then fire in its sessions too, and must recognise them
        self.pipeline = Pipeline(folder=folder, source=f"{old}&venus_always=true", targets={"main": new})
        if edits:
            self.pipeline.edit_processes(edits)

    def start(self) -> None:
        """Load the new database, and leave `venus sync` running."""
        query(self.urls["old"], SCHEMA)
        pipeline = self.pipeline
        pipeline.configure()
        pipeline.ask("install-triggers")
        pipeline.start_broker()
        pipeline.ask("migrate", "--target", "main")
        pipeline.start("sync", "sync")

    # -- checks ----------------------------------------------------------------------------------------------------

    def check_equal(self, where: str) -> None:
        """Check that both databases have every acknowledged write, and that the follower's logs are empty."""
        assert self.application.errors == [], where
        wanted = self.application.rows
        for name, url in self.urls.items():
            found = read_rows(url)
            if hash_rows(found) != hash_rows(wanted):
                lost = {t: sorted(wanted[t] - found[t])[:5] for t in wanted}
                more = {t: sorted(found[t] - wanted[t])[:5] for t in wanted}
                raise AssertionError(f"{where}: {name} lacks {lost} and has {more}")
        assert self.log_rows(self.follower) == 0, f"{where}: {self.follower} has logged changes of VENUS"

    def log_rows(self, name: str) -> int:
        """Count the log rows of the application's tables; the heartbeat's log may still have one from its ownership."""
        url = self.urls[name]
        if query(url, "SELECT to_regclass('venus.captured_table') IS NULL") == [(True,)]:
            return 0
        numbers = query(url, "SELECT table_id FROM venus.captured_table WHERE namespace = 'public'")
        return sum(int(query(url, f"SELECT count(*) FROM venus.l_{number:05}")[0][0]) for (number,) in numbers)

    def until_equal(self, where: str) -> None:
        """Wait until the follower has every row."""
        wanted = hash_rows(self.application.rows)

        def is_level() -> bool:
            return hash_rows(read_rows(self.urls[self.follower])) == wanted

        with suppress(AssertionError):  # `check_equal` reports the differences
            eventually(is_level, timeout_s=120.0, every_s=0.2)
        self.check_equal(f"{where}\n{self.pipeline.tail()}")

    # -- faults ----------------------------------------------------------------------------------------------------

    def kill(self, victim: str) -> None:
        """Kill with SIGKILL, and start again."""
        self.killed.append(victim)
        pipeline = self.pipeline
        if victim in self.servers:
            self.servers[victim].crash()
            self.servers[victim].start()
        elif victim == "broker":
            pipeline.kill("broker")
            pipeline.start_broker()
        elif victim == "sync":
            pipeline.kill("sync")
            pipeline.start("sync", "sync", "--take-over")
        elif victim == "child":
            for child in self.chance.sample(children := self._children(), min(1, len(children))):
                with suppress(psutil.NoSuchProcess):
                    child.kill()

    def _children(self) -> list[psutil.Process]:
        """Return the child processes of `venus sync`, which restarts a killed one."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if "--with-parent" in process.cmdline() and process.cwd() == str(self.pipeline.folder):
                    found.append(process)
        return sorted(found, key=lambda process: process.pid)

    # -- phases ----------------------------------------------------------------------------------------------------

    def write(self, count: int, *, faults: int) -> None:
        """Write to the owner under faults; compare all rows in the middle and at the end."""
        for part in ("in the middle of a phase", "at the end of a phase"):
            with self.application.write_in_background(self.urls[self.owner]):
                for _ in range(faults + 1):
                    self._until_written(count)
                    if faults:
                        self.kill(self.chance.choice(VICTIMS))
                self._until_written(count)
            self.until_equal(part)

    def _until_written(self, count: int) -> None:
        enough = self.application.writes + count
        eventually(lambda: self.application.writes >= enough or self.application.errors, timeout_s=120.0)

    def switch(self, *, faults: bool, eager: bool = False) -> None:
        """Switch, with a fault in most attempts; with `eager` the application tries the new owner all the time."""
        command = ("fallback",) if self.owner == "new" else ("cutover", "--target", "main", "--fall-back")
        before = self.application.writes
        with ExitStack() as stack:
            for attempt in range(ATTEMPTS_MAX):
                if eager and attempt == 0:
                    stack.enter_context(self.application.write_in_background(self.urls[self.follower], insists=True))
                if self._attempt(command, fault=faults and attempt < ATTEMPTS_MAX // 2):
                    break
                assert len(self.writable()) <= 1 or not self._has_begun, f"{self.writable()} accept writes"
            else:
                raise AssertionError(f"not switched in {ATTEMPTS_MAX} attempts\n{self.pipeline.tail()}")
            if eager:
                eventually(lambda: self.application.writes > before + 20 or self.application.errors)
        self.owner, self.follower = self.follower, self.owner
        if eager:
            self.until_equal("at a switch with writes at once")
        else:
            self.check_equal("at a switch")
        assert self.writable() == [self.owner], f"{self.writable()} accept writes, not {self.owner} alone"

    def _attempt(self, command: tuple[str, ...], *, fault: bool) -> bool:
        """Run the command once, with a fault at a random moment; return whether the switch is complete."""
        pipeline = self.pipeline
        pipeline.start("switch", *command, *QUIET)
        process = pipeline.running["switch"]
        victim = self.chance.choice((*VICTIMS, "switch", "switch", "")) if fault else ""
        if victim:
            with suppress(Exception):
                process.wait(self.chance.uniform(0.0, 6.0))
            if process.poll() is None and victim == "switch":
                self.killed.append(victim)
                process.kill()
            elif process.poll() is None:
                self.kill(victim)
        code = process.wait(240)
        del pipeline.running["switch"]
        return code == 0

    @property
    def _has_begun(self) -> bool:
        """Return whether any switch was begun: then the new database has a record."""
        url = self.urls["new"]
        return query(url, "SELECT to_regclass('venus.side') IS NOT NULL") == [(True,)] and bool(
            query(url, "SELECT FROM venus.side")
        )

    def writable(self) -> list[str]:
        """Return the databases that accept a write."""
        found = []
        for name, url in self.urls.items():
            with suppress(Exception):
                query(url, "UPDATE ledger SET note = note WHERE false")
                found.append(name)
        return found

    def close(self) -> None:
        """Stop everything."""
        self.pipeline.close()


@pytest.fixture
def servers() -> Iterator[dict[str, Server]]:
    homes = {name: new_folder("pg-") for name in ("old", "new")}
    with ExitStack() as stack:
        yield {name: stack.enter_context(running_server(home / "data")) for name, home in homes.items()}
    for home in homes.values():
        home.rmdir()


@pytest.mark.parametrize(
    "switches", [pytest.param(3, id="three"), pytest.param(20, id="twenty", marks=pytest.mark.slow)]
)
def test_switches_under_writers_and_kills(tmp_path: Path, servers: dict[str, Server], switches: int) -> None:
    run = SwitchRun(tmp_path, servers, seed=switches)
    try:
        run.start()
        with WriteProbe(run.urls["old"], run.urls["new"]) as probe:
            for number in range(switches):
                run.write(30, faults=1)
                probe.wait_until_accepted(run.owner, 60)
                run.switch(faults=True, eager=number % 2 == 1)
            run.write(30, faults=1)
            probe.wait_until_accepted(run.owner, 60)
        assert probe.violations == 0
        assert min(probe.accepted.values()) > 100
        assert query(run.urls["new"], "SELECT count(*) FROM venus.load_job") == [(1,)]
        assert query(run.urls["old"], "SELECT count(*) FROM venus.load_job") == [(0,)]
        assert len(run.killed) > 2 * switches
    finally:
        run.close()


_SWITCH = "venus.adapters.cutover.switch:Switch"
_CLOSED = "self._record(self.owner, SideState.CLOSED, self._number), self._schemas"
_CLOSED_BEFORE = "self._record(self.follower, SideState.FOLLOWING, 0), self._schemas"

#: Each rule, the edit that removes it, and the failure that the run then reports.
RULES = {
    "changes of VENUS are not captured": (
        (
            SourceEdit(
                where="venus.adapters.dialects.statements:Statements.__call__",
                old="return text",
                new="return text.replace(\"current_setting('venus.follows', true) = 'on'\", 'false')",
            ),
        ),
        "has logged changes of VENUS",
    ),
    "the owner is closed before the follower is opened": (
        (SourceEdit(where=f"{_SWITCH}.close_owner", old=_CLOSED, new=_CLOSED.replace("self._schemas", "[]")),),
        "accept writes",
    ),
    "the follower is closed before it can be opened": (
        (
            SourceEdit(
                where=f"{_SWITCH}.prepare", old=_CLOSED_BEFORE, new=_CLOSED_BEFORE.replace("self._schemas", "[]")
            ),
        ),
        "accept writes",
    ),
    "counters continue behind those of the other database": (
        (
            SourceEdit(
                where="venus.adapters.targets.postgresql.cutover.cutover_session:PostgresCutover.set_counters",
                old="return set_counters(self._session, self._all_tables, numberings)",
                new="return []",
            ),
        ),
        "was drawn before|duplicate key",
    ),
    "capture starts at the cut": (
        (
            SourceEdit(
                where=f"{_SWITCH}._start_following",
                old="start = self.follower.read_start()",
                new="time.sleep(1)\n"
                "    for schema in self._schemas:\n"
                "        if not schema.is_heartbeat:\n"
                "            self.follower._session.run(f'TRUNCATE venus.l_{schema.table_id:05}')\n"
                "    start = self.follower.read_start()",
            ),
        ),
        "lacks",
    ),
}


def switch_twice(run: SwitchRun) -> None:
    """Switch there and back without faults; raise AssertionError for anything that an application must never see."""
    run.start()
    with WriteProbe(run.urls["old"], run.urls["new"]) as probe:
        for eager in (False, True):
            run.write(30, faults=0)
            run.switch(faults=False, eager=eager)
        run.write(30, faults=0)
    assert not probe.violations, "['old', 'new'] accept writes"


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["", *RULES])
def test_without_a_rule_the_run_fails(tmp_path: Path, servers: dict[str, Server], rule: str) -> None:
    edits, report = RULES.get(rule, ((), ""))
    run = SwitchRun(tmp_path, servers, seed=1, edits=edits)
    try:
        if not rule:
            switch_twice(run)
            return
        with pytest.raises(AssertionError, match=report):
            switch_twice(run)
    finally:
        run.close()
