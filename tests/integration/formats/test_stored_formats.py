"""Data that earlier versions stored is opened by this version, which continues to work with it.

tests/fixtures has a folder for each released version, and one for the commit before all names were changed;
tests/support/formats.py wrote them. Each ends between the commit at the source and that at the broker.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support import formats
from tests.support.brokers.etcd import EtcdCluster, require_binary
from tests.support.brokers.ledger import read_ledger
from tests.support.databases.postgres import Server, libpq
from tests.support.pipelines.end_to_end import run_at
from tests.support.pipelines.pipeline import Pipeline
from tests.support.ports import free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

FIXTURES = Path(__file__).parents[2] / "fixtures"
VERSIONS = sorted(folder.name for folder in FIXTURES.iterdir() if (folder / "standalone.tar.xz").exists())
QUERIES = ("SELECT * FROM customers ORDER BY id", "SELECT * FROM lines ORDER BY order_id, line_no")
#: Changes of every kind, applied to the stored data.
MORE = (
    "INSERT INTO lines VALUES (200, 1, 'later', 7)",
    "UPDATE customers SET balance = balance * 2, since = 'later' WHERE id > 30",
    "DELETE FROM customers WHERE id = 111",
    "ALTER TABLE lines ADD COLUMN remark VARCHAR(10)",
    "UPDATE lines SET remark = 'new' WHERE order_id = 5",
)


def test_fixtures_exist_for_the_release_and_for_the_commit_before_the_renaming() -> None:
    assert set(VERSIONS) >= {"before-0.1.0", "0.1.0"}


def unpack(version: str, name: str, folder: Path) -> Any:
    """Unpack an archive; return the address of the broker that wrote it."""
    shutil.unpack_archive(FIXTURES / version / f"{name}.tar.xz", folder)
    return json.loads((folder / "expected.json").read_text())


def restore(server: Server, url: str, file: Path) -> None:
    command = [str(server.bin / "psql"), "--quiet", "-v", "ON_ERROR_STOP=1", "-f", str(file), libpq(url)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def to_sqlite_types(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return rows of any driver in the types of the SQLite driver."""

    def value(found: Any) -> Any:
        if isinstance(found, Decimal):
            return float(found)
        return bytes(found) if isinstance(found, memoryview) else found

    return [tuple(value(found) for found in row) for row in rows]


def assert_equal(source: formats.Source, target: str) -> None:
    """Compare all rows with plain SQL."""
    for query in QUERIES:
        assert to_sqlite_types(source.run(query)) == to_sqlite_types(run_at(target, query))


def assert_lake(source: formats.Source, lake: Path) -> None:
    """Compare the lake's newest state with the source, as a reader without VENUS."""
    found = pq.read_table(lake / "current" / "main.customers").sort_by("id").to_pylist()
    rows = to_sqlite_types(source.run("SELECT id, name, balance, photo, note, since FROM customers ORDER BY id"))
    names = ("id", "name", "balance", "photo", "note", "since")
    assert to_sqlite_types([tuple(row[name] for name in names) for row in found]) == rows


def check_opened(pipeline: Pipeline, address: str, expected: Any) -> None:
    """Check the broker's queue, full data and half message before any process continues."""
    status = pipeline.status()
    broker = status["broker"]
    assert broker["next_offset"] == expected["next_offset"]
    assert [half["batch_no"] for half in broker["halves"]] == expected["halves"]
    acknowledged = {consumer["group"]: consumer["acknowledged"] for consumer in broker["consumers"]}
    assert {target["group"] for target in status["targets"]} == acknowledged.keys()
    assert all(0 < acknowledged[target["group"]] <= target["offset"] for target in status["targets"])
    ledger = read_ledger(address)  # the queue from offset 0, and the full data as well
    assert len(ledger.digests) == expected["halves"][0] - 1, "every decided batch, and no other"
    assert ("100", "1") in ledger.values("lines")
    assert ("101", "1") not in ledger.values("lines")


def continue_pipeline(
    pipeline: Pipeline, source: formats.Source, server: Server, expected: Any, configure: Callable[[], None]
) -> None:
    """Decide the half message, follow more changes, and load a new target from the full data."""
    pipeline.start("sync", "sync")
    pipeline.wait_until_caught_up(*pipeline.targets)
    assert pipeline.status()["broker"]["next_offset"] >= expected["next_offset"] + len(formats.UNDECIDED)
    assert source.run("SELECT sku FROM lines WHERE order_id = 101") == [("undecided",)]
    main = pipeline.targets["main"]
    assert_equal(source, main)
    for change in MORE:
        source.run(change)
    pipeline.wait_until_caught_up(*pipeline.targets)
    assert_equal(source, main)
    states = {table["name"]: table["state"] for table in pipeline.status()["source"]["tables"]}
    assert set(states.values()) == {"ACTIVE"}, states
    assert pipeline.ask("verify", "--target", "main")["verdict"] == "same"
    pipeline.targets["second"] = server.create_database()
    configure()
    pipeline.venus("migrate", "--target", "second")
    assert_equal(source, pipeline.targets["second"])


@contextmanager
def end_pipeline(pipeline: Pipeline, server: Server) -> Iterator[None]:
    try:
        yield
    finally:
        pipeline.close()
        for url in (*pipeline.targets.values(), pipeline.source):
            if url.startswith("postgresql"):
                server.drop_database(url)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_broker_a_lake_a_target_and_a_sqlite_source_continue(
    version: str, tmp_path: Path, postgres_server: Server
) -> None:
    expected = unpack(version, "standalone", tmp_path)
    target = postgres_server.create_database()
    restore(postgres_server, target, tmp_path / "target.sql")
    source = formats.Source(f"sqlite:///{tmp_path}/app.db")
    targets = {"main": target, "lake": f"parquet://{tmp_path}/lake"}
    pipeline = Pipeline(tmp_path, source.url, targets)

    def configure() -> None:
        pipeline.configure()
        with (tmp_path / "venus.toml").open("a") as options:
            options.write("[lake]\ncommit_s = 0.1\nrefresh_s = 0.1\n")

    configure()
    with end_pipeline(pipeline, postgres_server):
        pipeline.start_broker()
        check_opened(pipeline, pipeline.broker, expected)
        continue_pipeline(pipeline, source, postgres_server, expected, configure)
        pipeline.until(lambda: is_fresh(source, tmp_path / "lake"), "the lake's state to have every change")


def is_fresh(source: formats.Source, lake: Path) -> bool:
    try:
        assert_lake(source, lake)
    except (AssertionError, OSError):
        return False
    return True


@pytest.mark.parametrize("version", VERSIONS)
def test_three_brokers_their_records_in_etcd_and_a_postgresql_source_continue(
    version: str, tmp_path: Path, postgres_server: Server, etcd_server: EtcdCluster
) -> None:
    expected = unpack(version, "cluster", tmp_path)
    source, target = postgres_server.create_database(), postgres_server.create_database()
    restore(postgres_server, source, tmp_path / "source.sql")
    restore(postgres_server, target, tmp_path / "target.sql")
    put_records(etcd_server, json.loads((tmp_path / "etcd.json").read_text()))
    pipeline = Pipeline(tmp_path, source, {"main": target})
    ports = {member: free_port() for member in formats.MEMBERS}

    def configure() -> None:
        formats.write_members(tmp_path, ports, source, pipeline.targets, etcd_server.addresses)

    configure()
    with end_pipeline(pipeline, postgres_server):
        for member in formats.MEMBERS:
            pipeline.start(member, "broker", "-c", f"{member}.toml")
        pipeline.until(lambda: pipeline.status()["broker"]["known"], "a leader")
        check_opened(pipeline, ",".join(f"127.0.0.1:{port}" for port in ports.values()), expected)
        continue_pipeline(pipeline, formats.Source(source), postgres_server, expected, configure)


def put_records(etcd: EtcdCluster, records: list[dict[str, str]]) -> None:
    """Store the records of the old etcd under the same keys."""
    for record in records:
        key, value = (base64.b64decode(record[name]).decode() for name in ("key", "value"))
        command = [require_binary("etcdctl"), f"--endpoints={etcd.addresses[0]}", "put", "--", key]
        subprocess.run(
            command, input=value, text=True, check=True, capture_output=True, env=os.environ | {"ETCDCTL_API": "3"}
        )
