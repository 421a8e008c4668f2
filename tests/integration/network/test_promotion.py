"""The head office is lost: another core set is promoted, capture continues there, and no row stays missing.

Broker processes, SQLite under writers, one target that read from the head office, and one below a region's set.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers import networks
from tests.support.brokers.servers import BrokerProcess, business_status
from tests.support.databases.postgres import Server
from tests.support.databases.sqlite import keep_writing
from tests.support.faults.proxy import Proxy
from tests.support.pipelines.end_to_end import Loop, run_at
from tests.support.ports import free_port
from tests.support.processes import forked
from tests.support.waiting import eventually
from venus.adapters.dialects.registry import open_source
from venus.adapters.targets.relational.apply_session import run_apply
from venus.adapters.targets.relational.full_sync import full_sync
from venus.adapters.upper.capture import run_capture, run_capture_fill
from venus.config import BrokerSettings, CaptureSettings, Settings, SourceSettings, TargetSettings
from venus.errors import Held
from venus.rpc.admin import AdminClient
from venus.rpc.producer import Producer
from venus.wire import broker_pb2

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
SURE_S = 60.0


class PromotableSets:
    """Head office, a second core set behind a connection that can be cut, a region below; a source and two targets."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder = folder
        self.file = folder / "app.db"
        self.write("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)", "INSERT INTO t VALUES (1, 'old'), (2, 'old')")
        self.targets = {name: server.create_database() for name in ("main", "region")}
        self.ports = {name: free_port() for name in ("hq", "second", "lyon")}
        self.at = {name: f"127.0.0.1:{port}" for name, port in self.ports.items()}
        self.line = Proxy(self.at["hq"])
        self.above: dict[str, list[str]] = {
            "hq": [],
            "second": [self.line.address],
            "lyon": [self.at["hq"], self.at["second"]],
        }
        self.brokers: dict[str, BrokerProcess] = {}
        self.loops: dict[str, Loop] = {}
        self.settings = {"main": self._settings(self.at["hq"]), "region": self._settings(self.at["lyon"])}
        (folder / "venus.toml").write_text(
            f'[source]\nurl = "sqlite:///{self.file}"\n[broker]\naddresses = ["{self.at["second"]}"]\n'
            + "".join(f'[targets.{name}]\nurl = "{url}"\n' for name, url in self.targets.items())
        )

    def _settings(self, nearest: str) -> Settings:
        further = () if nearest == self.at["second"] else ((self.at["second"],),)
        return Settings(
            source=SourceSettings.model_validate({"url": f"sqlite:///{self.file}"}),
            targets={name: TargetSettings.model_validate({"url": url}) for name, url in self.targets.items()},
            broker=BrokerSettings(addresses=(nearest,), further=further),
            capture=CaptureSettings(heartbeat_s=1.0),
        )

    def start(self, name: str) -> None:
        """Start a set of one broker."""
        above = self.above[name]
        tier, level = ("access", 1) if name == "lyon" else ("core", 0)
        chosen = networks.settings_of(self.folder / name, above, tier=tier, level=level, listen=self.at[name], http="")
        self.brokers[name] = BrokerProcess(chosen)

    def status(self, name: str) -> broker_pb2.BusinessStatus:
        return business_status(self.at[name])

    def alarms(self, name: str) -> str:
        """Return all alarms of a set."""
        with AdminClient(self.at[name]) as admin:
            status = admin.status()
        return "\n".join([*status.alarms, *(alarm for entry in status.businesses for alarm in entry.alarms)])

    def write(self, *statements: str) -> None:
        with closing(sqlite3.connect(self.file, timeout=30, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)

    def write_in_background(self) -> AbstractContextManager[None]:
        """Change rows in a thread until the end of the block."""
        return keep_writing(self.file, keys=97, every_s=0.01)

    def follow(self) -> None:
        """Install capture, load both targets, and start to follow."""
        with closing(open_source(self.settings["main"])) as source:
            source.installer.install(("t",), ())
        run_capture_fill(self.settings["main"], threading.Event())
        networks.has(self.at["lyon"], self.status("hq").next_offset)
        self.loops["capture"] = Loop(lambda stop: run_capture(self.settings["main"], stop))
        for name, settings in self.settings.items():
            full_sync(settings, name)
            self.loops[name] = Loop(partial(run_apply, settings, name))

    def rows(self, target: str = "") -> list[tuple[Any, ...]]:
        sql = "SELECT id, v FROM t ORDER BY id"
        if target:
            return run_at(self.targets[target], sql)
        with closing(sqlite3.connect(self.file, timeout=30)) as connection:
            return connection.execute(sql).fetchall()

    def venus(self, *arguments: str, code: int | tuple[int, ...] = 0) -> tuple[Any, str]:
        """Run a command; return its JSON document and its messages."""
        done = forked.run(
            [sys.executable, "-m", "venus.cli", *arguments, "--json"],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=SURE_S * 2,
        )
        codes = (code,) if isinstance(code, int) else code
        assert done.returncode in codes, f"{arguments} => {done.returncode}\n{done.stdout}{done.stderr}"
        return json.loads(done.stdout) if done.stdout.strip() else {}, done.stdout + done.stderr

    def close(self) -> None:
        for loop in self.loops.values():
            loop.end()
        for broker in self.brokers.values():
            broker.kill()
        self.line.close()


@pytest.fixture
def places(tmp_path: Path, postgres_server: Server) -> Iterator[PromotableSets]:
    made = PromotableSets(tmp_path, postgres_server)
    try:
        for name in ("hq", "second", "lyon"):
            made.start(name)
        made.follow()
        yield made
    finally:
        made.close()
        for url in made.targets.values():
            postgres_server.drop_database(url)


def test_another_core_set_becomes_the_home_and_no_row_stays_missing(places: PromotableSets) -> None:
    at = places
    eventually(lambda: at.status("second").mirror.state == "following", timeout_s=SURE_S)
    with at.write_in_background():
        _, said = at.venus("cluster", "promote", "--yes", code=3)
        assert "the home is not gone, set hq at" in said
        assert "two sets take writes" in said
        time.sleep(1.0)
        at.line.silence()
        before = at.status("second").next_offset
        eventually(lambda: at.status("hq").next_offset > before + 50, timeout_s=SURE_S)
        at.brokers["hq"].kill()
        at.line.cut()
        at.line.resume()
        _, said = at.venus("cluster", "promote", code=3)
        assert "set second would become the home of main in place of hq" in said
        document, _ = at.venus("cluster", "promote", "--yes")
        (done,) = document["businesses"]
        assert (done["set"], done["old_home"], done["home_term"]) == ("second", "hq", 1)

        (window,) = eventually(
            lambda: [w for w in at.status("second").losses if w.HasField("end_offset")], timeout_s=SURE_S
        )
        assert window.first_offset == done["next_offset"]
        assert window.rows >= 50
        eventually(lambda: at.status("second").next_offset > window.end_offset + 20, timeout_s=SURE_S)
    assert f"may have lost offsets {window.first_offset} to {window.end_offset - 1}" in at.alarms("second")
    eventually(lambda: "the promotion of this set" in at.venus("status", code=1)[1])

    networks.has(at.at["lyon"], window.end_offset, timeout_s=SURE_S)
    for name in ("main", "region"):
        verified, _ = at.venus("verify", "--repair", "--wait-s", "60", "--target", name)
        assert verified["verdict"] in ("same", "repaired")
        assert verified.get("losses", {"closed": True})["closed"]
    eventually(lambda: not at.status("second").losses)
    eventually(lambda: at.rows() == at.rows("main") == at.rows("region"), timeout_s=SURE_S)

    _restart_old_home(at)


def _restart_old_home(at: PromotableSets) -> None:
    """Start the old home: it steps down, and becomes a mirror by its configuration; both survive restarts."""
    at.brokers["second"].stop()
    at.start("second")
    assert "[cluster] upstream still names" in at.alarms("second")
    at.start("hq")
    assert eventually(lambda: at.status("hq").replaced, timeout_s=SURE_S)
    assert "this home was replaced: set second at" in at.alarms("hq")
    eventually(lambda: at.status("second").producer, timeout_s=SURE_S)
    with (
        Producer(at.at["hq"], "main", "late", window_bytes_max=1 << 20) as late,
        pytest.raises(Held, match="capture of business main is held by"),  # the client was redirected to the new home
    ):
        late.connect(0, 0)
    at.brokers["hq"].stop()
    at.above["hq"] = [at.at["second"]]
    at.start("hq")
    at.write("INSERT OR REPLACE INTO t VALUES (1000, 'continues')")
    eventually(lambda: at.rows() == at.rows("main") == at.rows("region"), timeout_s=SURE_S)
    networks.has(at.at["hq"], at.status("second").next_offset)
    assert at.status("hq").mirror.state == "following"
    at.brokers["second"].stop()
    at.start("second")
    eventually(lambda: at.status("second").producer, timeout_s=SURE_S)
    for name in ("hq", "lyon"):
        networks.wait_for_state(at.at[name], "following", SURE_S)
    found, _ = at.venus("cluster", "topology", at.at["hq"], at.at["lyon"], code=(0, 1))
    assert all("set lyon: main comes from second, not from set hq" in one for one in found["problems"])
    pulls = {one["set"]: one["pulls_from"] for one in found["sets"]}
    assert (pulls["second"], pulls["hq"]) == (None, "second")
    assert pulls["lyon"] in ("hq", "second")  # both core sets have everything
