"""Every part of VENUS finds the leader among several addresses: capture, fill, load, apply, comparison, commands."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.brokers.servers import settings
from tests.support.faults.not_leader import NotLeading
from tests.support.pipelines.end_to_end import EndToEnd
from tests.support.ports import free_port
from tests.support.processes import forked
from venus.adapters.verify.findings import ComparisonVerdict
from venus.broker.service.process import start_in_thread
from venus.config import BrokerSettings

pytestmark = pytest.mark.integration


@pytest.fixture
def e2e(tmp_path: Path, database: str) -> Iterator[EndToEnd]:
    """Make a list of addresses: an unreachable broker and a follower come before the leader."""
    source = tmp_path / "app.db"
    with sqlite3.connect(source) as app:
        app.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT)")
        app.executemany("INSERT INTO item VALUES (?, ?)", [(n, f"item {n}") for n in range(500)])
    app.close()
    made = EndToEnd(tmp_path, f"sqlite:///{source}", database)
    other = start_in_thread(settings(tmp_path / "other"))
    with NotLeading(other.address, follows=made.broker.address) as follower:
        broker = BrokerSettings(addresses=(f"127.0.0.1:{free_port()}", follower.address, made.broker.address))
        made.settings = made.settings.model_copy(update={"broker": broker})
        try:
            yield made
            assert follower.refused, "it was never asked"
        finally:
            made.close()
            other.stop()


def test_the_whole_pipeline_uses_the_leader(e2e: EndToEnd, tmp_path: Path) -> None:
    e2e.install()
    e2e.load()
    e2e.start()
    with sqlite3.connect(tmp_path / "app.db", timeout=60) as app:
        app.execute("UPDATE item SET name = 'new' WHERE id < 100")
        app.execute("DELETE FROM item WHERE id >= 400")
    app.close()
    e2e.wait_until_caught_up()

    assert e2e.at_target("SELECT count(*), count(*) FILTER (WHERE name = 'new') FROM item") == [(400, 100)]
    assert e2e.verify().verdict is ComparisonVerdict.SAME
    e2e.stop()


def test_a_command_is_sent_to_the_leader(e2e: EndToEnd, tmp_path: Path) -> None:
    e2e.install()
    e2e.load()
    config = tmp_path / "venus.toml"
    addresses = ", ".join(f'"{address}"' for address in e2e.settings.broker.addresses)
    config.write_text(f"[broker]\naddresses = [{addresses}]\n")

    def venus(*arguments: str) -> str:
        command = [sys.executable, "-m", "venus.cli", *arguments, "-c", str(config)]
        done = forked.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    assert "main" in venus("forget", "--business", "main", "--yes")
