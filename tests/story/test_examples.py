"""The examples of docs/how-to/python.md run unchanged, with a real source, target and broker."""

from __future__ import annotations

import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import uvicorn

from tests.support.databases.postgres import Server
from tests.support.ports import free_port
from tests.support.waiting import eventually
from venus.client import connect
from venus.errors import Refused
from venus.pipeline import Pipeline

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture
def shop(tmp_path: Path, postgres_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a source with one order and a configuration, and change into their folder."""
    url = postgres_server.create_database()
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("shop.db", timeout=60)) as source, source:
        source.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, amount INTEGER)")
        source.execute("INSERT INTO orders VALUES (1, 10)")
    Path("venus.toml").write_text(
        f'[source]\nurl = "sqlite:///shop.db"\n[targets.main]\nurl = "{url}"\n'
        '[broker]\nlisten = "127.0.0.1:0"\nhttp = ""\ndata_dir = "data"\nfree_bytes_min = 0\n'
    )
    yield tmp_path
    postgres_server.drop_database(url)


def load_example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_for_pytest_works(shop: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(shop)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [*command, str(EXAMPLES / "test_shop.py")],
        capture_output=True,
        text=True,
        env=environ,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_the_tasks_for_airflow_run_in_order(shop: Path) -> None:
    tasks = load_example("airflow_tasks")
    assert tasks.check() == ["main.orders"]
    assert tasks.load() == 1
    with closing(sqlite3.connect("shop.db", timeout=60)) as source, source:
        source.execute("INSERT INTO orders VALUES (2, 20)")
    seconds = chain((1.0,), repeat(20.0))  # a busy machine needs longer only to begin
    eventually(lambda: tasks.follow(next(seconds)) == {} and tasks.verify() == "SAME", "the order", timeout_s=120.0)
    with closing(sqlite3.connect("shop.db", timeout=60)) as source, source:
        source.execute("CREATE TABLE notes (text TEXT)")
    with pytest.raises(Refused):
        tasks.check()


def test_the_web_server_streams_changes(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Pipeline.from_toml("venus.toml") as pipeline:
        pipeline.install()
        with pipeline.running(), pipeline.connect() as broker:
            address = pipeline.address
            monkeypatch.setenv("BROKER", address)
            port = free_port()
            server = uvicorn.Server(uvicorn.Config(load_example("stream_changes").app, port=port, log_level="warning"))
            thread = threading.Thread(target=server.run, daemon=True)
            thread.start()
            eventually(lambda: server.started, "the web server")
            eventually(lambda: [rows for rows in broker.snapshot("orders") if rows.num_rows], "the row at the broker")
            with urlopen(f"http://127.0.0.1:{port}/", timeout=60) as answer:
                assert json.loads(answer.readline())["row"] == {"id": 1, "amount": 10}
                with closing(sqlite3.connect("shop.db", timeout=60)) as source, source:
                    source.execute("UPDATE orders SET amount = 11")
                change = json.loads(answer.readline())
            assert (change["operation"], change["row"]) == ("update", {"id": 1, "amount": 11})
            with connect(address) as other:
                eventually(lambda: not _subscriptions(other.status()), "the end of the subscription of a lost reader")
            server.should_exit = True
            thread.join(60)


def _subscriptions(status: dict[str, Any]) -> int:
    found = [one.get("value", 0) for one in status["traffic"]["gauges"] if one["name"] == "subscriptions"]
    return int(found[0]) if found else 0
