"""`venus migrate` at a broker without free space: it says why it waits and what ends that, and continues by itself."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.integration.service.conftest import StartBroker
from tests.support.brokers.feed import query
from tests.support.brokers.servers import traffic
from tests.support.waiting import eventually
from venus.broker.service.process import RunningBroker
from venus.broker.store.files import FreeSpace
from venus.cli import status_tables
from venus.cli.app import run
from venus.config import DegradeSettings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

MIB = 1 << 20
#: Gauges of other resources are ignored.
NO_LANE = DegradeSettings(cpu_percent=0, memory_percent=0, lag_ms=0, sustain_s=600, restore_s=1)


class CapturedErrors:
    """Everything written to stderr so far."""

    def __init__(self, captured: pytest.CaptureFixture[str]) -> None:
        self._captured, self._text = captured, ""

    def wait_for_words(self, words: str, command: Future[int]) -> str:
        """Wait for a text in stderr; return everything written."""
        deadline = time.monotonic() + 120
        while words not in self.text():
            assert time.monotonic() < deadline, f"{words} is not said: {self._text}"
            assert not command.done(), f"it has ended with {command.result()}: {self._text}"
            time.sleep(0.05)
        return self._text

    def text(self) -> str:
        """Return everything written so far."""
        written = self._captured.readouterr()
        self._text += written.err + written.out
        return self._text


def configure(folder: Path, broker: RunningBroker, database: str) -> str:
    """Write a configuration and a source with rows; return the configuration's path."""
    with closing(sqlite3.connect(folder / "app.db", isolation_level=None)) as application:
        application.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, v TEXT)")
        application.execute("INSERT INTO orders VALUES (1, 'one'), (2, 'two')")
    file = folder / "venus.toml"
    file.write_text(
        f'[source]\nurl = "sqlite:///{folder}/app.db"\n[targets.main]\nurl = "{database}"\n'
        f'[broker]\naddress = "{broker.address}"\n'
    )
    assert run(["install-triggers", "-c", str(file)]) == 0
    return str(file)


@contextmanager
def run_migration(file: str, free_space: dict[str, int]) -> Iterator[Future[int]]:
    """Run the command in a thread; free the disk at the end, so that it ends even if the test has failed."""
    with ThreadPoolExecutor(1) as pool:
        try:
            yield pool.submit(run, ["migrate", "-c", file])
        finally:
            free_space["bytes"] = 1 << 40


@pytest.fixture
def free_space(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return the free bytes that the broker sees, in a dictionary that the test may change."""
    found = {"bytes": 1 << 40}
    monkeypatch.setattr(FreeSpace, "read_free", lambda self: found["bytes"])
    monkeypatch.setattr(status_tables, "LOOK_S", 0.1)
    return found


@pytest.mark.usefixtures("no_venus_environment")
def test_a_full_disk_is_named_while_it_lasts(
    start_broker: StartBroker,
    tmp_path: Path,
    database: str,
    free_space: dict[str, int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    free_space["bytes"] = MIB // 2
    broker = start_broker(free_bytes_min=MIB, degrade=NO_LANE)
    file, said = configure(tmp_path, broker, database), CapturedErrors(capsys)
    with run_migration(file, free_space) as command:
        shown = said.wait_for_words("continues by itself", command)
        data = tmp_path / "data"
        full = f"waits: broker: too little free space: {data} has only 0 MiB free, 1 MiB are needed: "
        assert full in " ".join(shown.split())
        assert "free some space there, then capture continues by itself" in " ".join(shown.split())

        free_space["bytes"] = 1 << 40
        assert command.result(timeout=200) == 0
    assert query(database, "SELECT count(*) FROM orders") == [(2,)]


@pytest.mark.usefixtures("no_venus_environment")
def test_a_degraded_lane_is_named_while_it_lasts(
    start_broker: StartBroker,
    tmp_path: Path,
    database: str,
    free_space: dict[str, int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    free_space["bytes"] = 3 * MIB // 2  # writes are accepted, but space is short
    broker = start_broker(free_bytes_min=MIB, degrade=NO_LANE.model_copy(update={"sustain_s": 0.1}))
    eventually(lambda: {lane.name for lane in traffic(broker.address).lanes if lane.degraded_since_us} >= {"full data"})
    file, said = configure(tmp_path, broker, database), CapturedErrors(capsys)
    with run_migration(file, free_space) as command:
        shown = said.wait_for_words("the lane recovers by itself well below the limit", command)
        assert "waits: broker: lane 3 (full data) is degraded since" in shown
        assert f"free some space at {tmp_path / 'data'}" in " ".join(shown.split())

        free_space["bytes"] = 1 << 40
        assert command.result(timeout=200) == 0
    assert query(database, "SELECT count(*) FROM orders") == [(2,)]
