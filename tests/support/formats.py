"""Writes the stored data of a version, to prove that later versions open it: one archive per kind of broker set.

python -m tests.support.formats FOLDER [TREE]; TREE is another checkout, whose commands do the work. The script uses
only a version's commands, options and table names at a source, which are its interface. So one script serves every
version.

Each archive ends in the middle of a cut: the half message is on the brokers' disks, the source has committed the batch,
and no broker has the decision. One earlier half message was rolled back.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg2

from tests.support.brokers.etcd import EtcdCluster, require_binary, running_etcd
from tests.support.brokers.servers import business_status
from tests.support.databases.postgres import Server, libpq, running_server
from tests.support.ports import free_port
from venus.wire.broker_pb2 import BusinessStatus

ROOT = Path(__file__).parents[2]
WAIT_S = 120.0
MEMBERS = "abc"
BUSINESS = "main"
CLUSTER = "formats"
ARCHIVES = ("standalone", "cluster")

#: {number} and {bytes} are types of the database. Both ends can read every value unchanged.
TABLES = (
    "CREATE TABLE customers (id INTEGER NOT NULL PRIMARY KEY, name VARCHAR(40), balance DECIMAL(12, 2), photo {bytes},"
    " note TEXT)",
    "CREATE TABLE lines (order_id INTEGER NOT NULL, line_no INTEGER NOT NULL, sku VARCHAR(20), quantity INTEGER,"
    " PRIMARY KEY (order_id, line_no))",
)
CHANGES = (
    "UPDATE customers SET balance = balance + 1.25, note = NULL WHERE id < 10",
    "DELETE FROM customers WHERE id = 11",
    "UPDATE customers SET id = 111 WHERE id = 12",
    "DELETE FROM lines WHERE order_id = 3",
    "ALTER TABLE customers ADD COLUMN since VARCHAR(10)",
    "UPDATE customers SET since = '2026-11-26' WHERE id BETWEEN 20 AND 25",
)
ROLLED_BACK = "INSERT INTO lines VALUES (100, 1, 'rolled back once', 1)"
UNDECIDED = (
    "INSERT INTO lines VALUES (101, 1, 'undecided', 2)",
    "UPDATE customers SET note = 'undecided' WHERE id = 1",
)

OPTIONS = """\
[broker]
listen = "127.0.0.1:{port}"
{reach}
http = "127.0.0.1:0"
data_dir = "{data}"
free_bytes_min = 0
review_after_s = 1.0
[capture]
heartbeat_s = 3600.0
[lake]
commit_s = 0.1
refresh_s = 0.1
"""
MEMBER = """\
[cluster]
name = "{cluster}"
broker_id = "{member}"
etcd = {etcd}
lease_s = 2.0
"""


class Source:
    """The application's database."""

    def __init__(self, url: str) -> None:
        self.url = url

    def connect(self) -> Any:
        """Open an autocommit connection."""
        if self.url.startswith("sqlite"):
            return sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=30, isolation_level=None)
        connection = psycopg2.connect(libpq(self.url))
        connection.autocommit = True
        return connection

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements; return the rows of the last one."""
        with closing(self.connect()) as connection:
            cursor = connection.cursor()
            for statement in statements:
                cursor.execute(statement)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    def create(self) -> None:
        """Create the tables and their first rows."""
        sqlite = self.url.startswith("sqlite")
        if sqlite:
            self.run("PRAGMA journal_mode = WAL")
        for table in TABLES:
            self.run(table.format(bytes="BLOB" if sqlite else "bytea"))
        blob = "X'00ff{:02x}'" if sqlite else "'\\x00ff{:02x}'"
        for n in range(1, 41):
            photo = blob.format(n) if n % 3 else "NULL"
            self.run(f"INSERT INTO customers VALUES ({n}, 'name ä{n}', {n}.50, {photo}, 'note\n\t{n}')")
            self.run(f"INSERT INTO lines VALUES ({n // 4}, {n % 4}, 'sku{n}', NULL)")

    @contextmanager
    def batches_locked(self) -> Iterator[None]:
        """Let no local transaction of a capture commit within the block."""
        sqlite = self.url.startswith("sqlite")
        with closing(self.connect()) as connection:
            connection.cursor().execute("BEGIN IMMEDIATE" if sqlite else "BEGIN")
            if not sqlite:
                connection.cursor().execute("LOCK TABLE venus.batch IN SHARE MODE")
            yield
            connection.cursor().execute("ROLLBACK")

    def is_waited_for(self) -> bool:
        """Return whether a local transaction waits for `batches_locked`; SQLite does not show that."""
        if self.url.startswith("sqlite"):
            return True
        return bool(self.run("SELECT count(*) FROM pg_locks WHERE NOT granted")[0][0])

    def last_batch(self) -> int:
        """Return the last batch that the source has committed."""
        table = "venus_checkpoint" if self.url.startswith("sqlite") else "venus.checkpoint"
        return int(self.run(f"SELECT last_batch FROM {table}")[0][0])


@dataclass(slots=True)
class Commands:
    """A configuration in a folder, and the processes of a checkout that use it."""

    folder: Path
    tree: Path
    brokers: list[str]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def run(self, *arguments: str, codes: Sequence[int] = (0,)) -> str:
        """Run a command to its end; return its output."""
        done = subprocess.run(self._command(arguments), capture_output=True, text=True, check=False, **self._place())
        if done.returncode not in codes:
            raise SystemExit(f"venus {' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}")
        return str(done.stdout)

    def start(self, name: str, *arguments: str) -> None:
        """Start a command that runs in the background."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(self._command(arguments), stdout=log, stderr=log, **self._place())

    def kill(self, *names: str) -> None:
        """Kill processes with SIGKILL, all of them before the first has ended."""
        for name in names:
            self.running[name].kill()
        for name in names:
            self.running.pop(name).wait()

    def status(self) -> Any:
        """Return the document of `venus status`."""
        return json.loads(self.run("status", "--json", codes=(0, 1)))

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition."""
        end = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > end:
                said = "\n".join(f"{log.name}: {log.read_text()[-2000:]}" for log in self.folder.glob("*.log"))
                raise SystemExit(f"waited in vain for {what}\n{said}")
            time.sleep(0.1)

    def wait_until_caught_up(self) -> None:
        """Wait until every target has every change."""
        self.until(lambda: is_caught_up(self.status()), "the targets to catch up")

    def close(self) -> None:
        """Stop all running processes."""
        self.kill(*self.running)

    def _command(self, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "venus.cli", *arguments]

    def _place(self) -> dict[str, Any]:
        own = {name: value for name, value in os.environ.items() if not name.startswith("VENUS_")}
        return {"cwd": self.folder, "env": own | {"PYTHONPATH": str(self.tree)}, "stdin": subprocess.DEVNULL}


def is_caught_up(status: Any) -> bool:
    """Return whether no change is in flight from the source to any target."""
    broker = status["broker"]
    if status["source"]["error"] or broker["error"] or broker["halves"]:
        return False
    logged = sum(table["log_rows"] for table in status["source"]["tables"])
    return not logged and all(target["offset"] >= broker["next_offset"] > 0 for target in status["targets"])


# -- the pipeline --------------------------------------------------------------------------------------------------


def follow(commands: Commands, source: Source, targets: Sequence[str]) -> None:
    """Load the targets, follow changes of every kind, and roll one half message back."""
    source.create()
    commands.run("install-triggers")
    for target in targets:
        commands.run("migrate", "--target", target)
        commands.start(f"apply-{target}", "sync", "--apply-only", "--target", target)
    commands.start("capture", "sync", "--capture-only")
    commands.wait_until_caught_up()
    for change in CHANGES:
        source.run(change)
        commands.wait_until_caught_up()
    with hold_half_on_disk(commands, source, ROLLED_BACK):
        commands.kill("capture")
    commands.start("capture", "sync", "--capture-only")
    commands.wait_until_caught_up()


def stop_in_the_middle(commands: Commands, source: Source, brokers: Sequence[str]) -> dict[str, Any]:
    """Stop everything between the source's commit and the broker's; return the broker's address."""
    before = source.last_batch()
    with hold_half_on_disk(commands, source, *UNDECIDED) as broker:
        commands.kill(*brokers)
    commands.until(lambda: source.last_batch() > before, "the source to commit its batch")
    commands.close()
    return {"next_offset": broker.next_offset, "halves": [half.batch_no for half in broker.halves]}


@contextmanager
def hold_half_on_disk(commands: Commands, source: Source, *changes: str) -> Iterator[BusinessStatus]:
    """Commit changes, and run the block while the broker has their half message but the source has not committed it."""
    capture = commands.running["capture"]
    capture.send_signal(signal.SIGSTOP)
    source.run(*changes)
    found: list[BusinessStatus] = []

    def is_there() -> bool:
        found[:] = [business_status(address) for address in commands.brokers]
        return any(broker.halves for broker in found) and source.is_waited_for()

    with source.batches_locked():
        capture.send_signal(signal.SIGCONT)
        commands.until(is_there, "a half message")
        yield found[0]


# -- the archives ----------------------------------------------------------------------------------------------------


def dump(server: Server, url: str, file: Path) -> None:
    """Write a database as SQL."""
    command = [str(server.bin / "pg_dump"), "--no-owner", "--file", str(file), libpq(url)]
    subprocess.run(command, check=True)


def records(etcd: EtcdCluster) -> list[dict[str, Any]]:
    """Return etcd's keys and values in base64, without keys that belong to a lease."""
    command = [require_binary("etcdctl"), f"--endpoints={etcd.addresses[0]}", "get", "--prefix", "/", "-w", "json"]
    said = subprocess.run(command, capture_output=True, check=True, env=os.environ | {"ETCDCTL_API": "3"}).stdout
    return [{"key": kv["key"], "value": kv["value"]} for kv in json.loads(said)["kvs"] if not kv.get("lease")]


def pack(folder: Path, names: Sequence[str], expected: Any, archive: Path) -> None:
    """Put files and folders into an archive."""
    (folder / "expected.json").write_text(json.dumps(expected, indent=1))
    with tarfile.open(archive, "w:xz", preset=9) as packed:
        for name in (*names, "expected.json"):
            packed.add(folder / name, name, filter=_anonymous)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return None if Path(entry.name).name in ("LOCK", "LOG") or "LOG.old" in entry.name else entry


def configuration(source: str, targets: dict[str, str], **options: str) -> str:
    """Return a configuration; `options` are those of [broker]."""
    named = "".join(f'[targets.{name}]\nurl = "{url}"\n' for name, url in targets.items())
    return f'[source]\nurl = "{source}"\n{named}' + OPTIONS.format(**({"reach": ""} | options))


def write_standalone(folder: Path, tree: Path, server: Server, archive: Path) -> None:
    """Write the archive of SQLite, one broker, a PostgreSQL target and a lake."""
    source, target = Source(f"sqlite:///{folder}/app.db"), server.create_database()
    port = free_port()
    commands = Commands(folder, tree, [f"127.0.0.1:{port}"])
    targets = {"main": target, "lake": f"parquet://{folder}/lake"}
    (folder / "venus.toml").write_text(configuration(source.url, targets, port=str(port), data="data"))
    try:
        commands.start("broker", "broker")
        follow(commands, source, list(targets))
        expected = stop_in_the_middle(commands, source, ["broker"])
    finally:
        commands.close()
    source.run("PRAGMA wal_checkpoint(TRUNCATE)")
    dump(server, target, folder / "target.sql")
    pack(folder, ["data", "app.db", "lake", "target.sql"], expected, archive)


def write_cluster(folder: Path, tree: Path, server: Server, archive: Path) -> None:
    """Write the archive of PostgreSQL, three brokers with an etcd, and a PostgreSQL target."""
    source, target = Source(server.create_database()), server.create_database()
    ports = {member: free_port() for member in MEMBERS}
    commands = Commands(folder, tree, [f"127.0.0.1:{port}" for port in ports.values()])
    with running_etcd() as etcd:
        patient = f"{source.url}&venus_lock_timeout_s=600"  # longer than the lock on batches is held
        write_members(folder, ports, patient, {"main": target}, etcd.addresses)
        try:
            for member in MEMBERS:
                commands.start(member, "broker", "-c", f"{member}.toml")
            follow(commands, source, ["main"])
            expected = stop_in_the_middle(commands, source, MEMBERS)
        finally:
            commands.close()
        (folder / "etcd.json").write_text(json.dumps(records(etcd), indent=1))
    dump(server, source.url, folder / "source.sql")
    dump(server, target, folder / "target.sql")
    pack(folder, [*MEMBERS, "etcd.json", "source.sql", "target.sql"], expected, archive)


def write_members(
    folder: Path, ports: dict[str, int], source: str, targets: dict[str, str], etcd: Sequence[str]
) -> None:
    """Write a configuration for each member, and one for all other processes."""
    reach = f"addresses = {json.dumps([f'127.0.0.1:{port}' for port in ports.values()])}"
    for member, port in ports.items():
        own = configuration(source, targets, port=str(port), data=member)
        own += MEMBER.format(cluster=CLUSTER, member=member, etcd=json.dumps(list(etcd)))
        (folder / f"{member}.toml").write_text(own)
    (folder / "venus.toml").write_text(configuration(source, targets, port=str(free_port()), data="x", reach=reach))


def main(out: Path, tree: Path) -> None:
    """Write both archives, unless they exist."""
    out.mkdir(parents=True, exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="formats-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        server = stack.enter_context(running_server(home / "pg"))
        for write, name in ((write_standalone, ARCHIVES[0]), (write_cluster, ARCHIVES[1])):
            archive = out / f"{name}.tar.xz"
            if not archive.exists():
                (home / name).mkdir()
                write(home / name, tree, server, archive)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve() if len(sys.argv) > 2 else ROOT)
