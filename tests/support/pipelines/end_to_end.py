"""A whole pipeline in one process: a source, a broker, a target, capture and apply as threads that can be stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psycopg2

from tests.support.brokers.servers import settings as broker_settings
from tests.support.databases.postgres import Server, libpq
from tests.support.waiting import eventually
from venus.adapters.dialects.registry import open_source
from venus.adapters.dialects.registry_rules import confirm_identity
from venus.adapters.targets.relational.apply_session import run_apply
from venus.adapters.targets.relational.control import read_progress
from venus.adapters.targets.relational.full_sync import full_sync
from venus.adapters.upper import periodic
from venus.adapters.upper.capture import run_capture, run_capture_fill
from venus.adapters.verify.findings import VerifyResult
from venus.adapters.verify.run import VerifyOptions, run_verify
from venus.broker.service.process import RunningBroker, start_in_thread
from venus.config import BrokerSettings, CaptureSettings, Settings, SourceSettings, TargetSettings
from venus.rpc.address import broker_address
from venus.rpc.admin import AdminClient

WAIT_S = 60.0


class Loop:
    """A loop in a thread."""

    def __init__(self, run: Callable[[threading.Event], None]) -> None:
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self._run = run
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def _main(self) -> None:
        try:
            self._run(self.stop)
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        """Stop the loop, and raise its error."""
        self.stop.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


@dataclass
class EndToEnd:
    """The pipeline from one source to one target."""

    folder: Path
    source: str
    target: str
    options: dict[str, Any] = field(default_factory=dict)
    on_error: str = "halt"
    loops: dict[str, Loop] = field(default_factory=dict)
    #: Addresses of external brokers; if empty, the pipeline starts its own broker.
    addresses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        addresses = self.addresses
        if not addresses:
            self.broker: RunningBroker = start_in_thread(broker_settings(self.folder / "broker", free_bytes_min=0))
            addresses = (self.broker.address,)
        self.settings = Settings(
            source=SourceSettings.model_validate({"url": self.source, **self.options}),
            targets={"main": TargetSettings.model_validate({"url": self.target, "on_error": self.on_error})},
            broker=BrokerSettings(addresses=addresses),
            capture=CaptureSettings(heartbeat_s=1.0),
        )

    def install(self) -> None:
        """Install the triggers."""
        opened = open_source(self.settings)
        try:
            opened.installer.install(self.settings.source.tables, self.settings.source.exclude)
        finally:
            opened.close()

    def accept_moved(self) -> None:
        """Accept the source as the captured database, which is the first step of `venus install-triggers --moved`."""
        opened = open_source(self.settings)
        try:
            confirm_identity(opened.registry, moved=True)
        finally:
            opened.close()

    def load(self) -> None:
        """Read the source and load the target."""
        run_capture_fill(self.settings, threading.Event())
        full_sync(self.settings, "main")

    def start(self, *names: str) -> None:
        """Start capture and apply, or one of them."""
        ways: dict[str, Callable[[threading.Event], None]] = {
            "capture": lambda stop: run_capture(self.settings, stop),
            "apply": lambda stop: run_apply(self.settings, "main", stop),
        }
        for name in names or ways:
            self.loops[name] = Loop(ways[name])

    def resume(self) -> None:
        """Start the loops that do not run; a failed test may have stopped them."""
        if missing := [name for name in ("capture", "apply") if name not in self.loops]:
            self.start(*missing)

    def stop(self, *names: str) -> None:
        """Stop loops."""
        for name in names or list(self.loops):
            self.loops.pop(name).end()

    def wait_until_caught_up(self) -> None:
        """Wait until the source's log is empty and the target has everything."""
        self.until(self.has_caught_up, "the target to catch up")

    def log_rows(self) -> int:
        """Return the number of changes in the source's log, without heartbeats, which may come at any time."""
        opened = open_source(self.settings)
        try:
            beats = {
                table.schema.table_id for table in opened.registry.read_registered_tables() if table.schema.is_heartbeat
            }
            return sum(rows for table_id, (rows, _) in opened.capture.read_backlog().items() if table_id not in beats)
        finally:
            opened.close()

    def has_caught_up(self) -> bool:
        if self.log_rows():
            return False
        with AdminClient(broker_address(self.settings)) as admin:
            (found,) = admin.status("main").businesses
        position = read_progress(self.settings, "main").position
        return not found.halves and position is not None and position.offset >= found.next_offset

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition."""
        eventually(condition, what, every_s=0.05)

    def at_target(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements at the target as another program would."""
        return run_at(self.target, *statements)

    def verify(self, **options: Any) -> VerifyResult:
        """Compare source and target."""
        return run_verify(self.settings, VerifyOptions(**{"target": "main", **options}))

    def close(self) -> None:
        """Stop every part."""
        try:
            self.stop()
        finally:
            if not self.addresses:
                self.broker.stop()


def run_at(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements at a PostgreSQL database in one session, each a transaction; return the last one's rows."""
    connection = psycopg2.connect(libpq(url))
    try:
        connection.autocommit = True
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []
    finally:
        connection.close()


@contextmanager
def end_to_end(folder: Path, source: str, target: str, *, on_error: str = "halt", **options: Any) -> Iterator[EndToEnd]:
    """Make a pipeline, and stop it at the end; `options` are those of [source].

    Comparisons of the dictionary are not delayed: on a busy machine one slow comparison would delay the next by 100
    times its duration.
    """
    with patch.object(periodic, "REFRESH_SHARE", 1):
        e2e = EndToEnd(folder, source, target, options, on_error)
        try:
            yield e2e
        finally:
            e2e.close()


@contextmanager
def start_numbered(
    folder: Path, server: Server, tables: Sequence[str], *, rows: int, on_error: str = "halt"
) -> Iterator[EndToEnd]:
    """Run a pipeline between two databases of a server, with tables (id, v) of this many rows."""
    source, target = server.create_database(), server.create_database()
    for name in tables:
        run_at(
            source,
            f"CREATE TABLE {name} (id int PRIMARY KEY, v text)",
            f"INSERT INTO {name} SELECT n, 'v' || n FROM generate_series(1, {rows}) n",
        )
    with end_to_end(folder, source, target, on_error=on_error) as made:
        made.install()
        made.load()
        made.start()
        made.wait_until_caught_up()
        yield made
    server.drop_database(source)
    server.drop_database(target)


def difference_keys(result: VerifyResult) -> set[tuple[str, tuple[str, ...], str, str]]:
    """Return the findings as (table, key, kind, fault)."""
    return {(d.table.partition(".")[2], tuple(d.key.values()), d.kind.value, d.fault.value) for d in result.differences}


def values(result: VerifyResult, table: str, key: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the differing columns of one finding."""
    (one,) = [d for d in result.differences if d.table.endswith(f".{table}") and tuple(d.key.values()) == tuple(key)]
    return {c.column: dict(c.values) for c in one.columns}
