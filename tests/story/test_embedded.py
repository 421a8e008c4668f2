"""`venus.pipeline` in a Python program: check, install, migrate, run, stop and verify within its process."""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path

import psycopg2
import pytest

from tests.support.databases.postgres import Server
from tests.support.waiting import eventually
from venus.adapters.verify.findings import ComparisonVerdict
from venus.cli import run as run_command
from venus.errors import ConfigError, NotInstalled, Refused, Unavailable, VenusError
from venus.pipeline import Pipeline, PipelineEvent

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PASSWORD = "s3cret-of-embedding"


class Shop:
    """A source of one table, its target, and the configuration of both."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder, self.target = folder, server.create_database()
        self.dsn = self.target.replace("+psycopg2", "")
        folder.mkdir()
        self.file = folder / "venus.toml"
        self.write("CREATE TABLE orders (id INTEGER PRIMARY KEY, amount INTEGER)", "INSERT INTO orders VALUES (1, 10)")
        self.configure()

    def configure(self, **changes: str) -> None:
        options = {"source": f"sqlite:///{self.folder}/shop.db", "target": self.target} | changes
        url = options["target"].replace("://postgres@", f"://postgres:{PASSWORD}@")
        self.file.write_text(
            f'[source]\nurl = "{options["source"]}"\n[targets.main]\nurl = "{url}"\n'
            f'[broker]\nlisten = "127.0.0.1:0"\nhttp = ""\ndata_dir = "{self.folder}/data"\nfree_bytes_min = 0\n'
            "[capture]\nheartbeat_s = 1.0\n"
        )

    def write(self, *statements: str) -> None:
        with closing(sqlite3.connect(self.folder / "shop.db", timeout=30)) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    def has_rows(self, rows: list[tuple[int, int]]) -> bool:
        return self.rows() == rows

    def rows(self) -> list[tuple[int, int]]:
        with closing(psycopg2.connect(self.dsn)) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT to_regclass('orders') IS NOT NULL")
            if cursor.fetchall() == [(False,)]:
                return []
            cursor.execute("SELECT id, amount FROM orders ORDER BY id")
            return cursor.fetchall()


@pytest.fixture
def open_shop(tmp_path: Path, postgres_server: Server) -> Iterator[Callable[[str], Shop]]:
    opened: list[Shop] = []

    def make(name: str) -> Shop:
        opened.append(Shop(tmp_path / name, postgres_server))
        return opened[-1]

    yield make
    for shop in opened:
        postgres_server.drop_database(shop.target)


@pytest.fixture
def shop(open_shop: Callable[[str], Shop]) -> Shop:
    return open_shop("shop")


def test_a_pipeline_inside_pytest_from_check_to_stop(shop: Shop, capfd: pytest.CaptureFixture[str]) -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    umask, frozen = os.umask(0o022), gc.get_freeze_count()
    events: list[PipelineEvent] = []
    try:
        with Pipeline.from_toml(shop.file, on_event=events.append) as pipeline:
            checked = pipeline.check()
            assert (checked.tables, checked.blocking) == (("main.orders",), [])
            installed = pipeline.install()
            assert [table.schema.qualified_name for table in installed.tables] == ["main.orders"]
            assert installed.created
            assert not pipeline.install().created
            migrated = pipeline.migrate()
            assert migrated.load.rows == {"public.orders": 1}
            assert migrated.first_fill is not None
            assert migrated.first_fill["main.orders"] == 1
            assert pipeline.migrate().load.already
            shop.write("INSERT INTO orders VALUES (2, 20)")
            report = pipeline.run(for_s=120, until=lambda: len(shop.rows()) == 2)
            assert report.capture is not None
            assert report.targets["main"] is not None
            assert (report.seconds < 120, report.problems) == (True, {})
            with pipeline.running():
                shop.write("UPDATE orders SET amount = 21 WHERE id = 2")
                eventually(lambda: shop.rows() == [(1, 10), (2, 21)], "the change")
                assert pipeline.verify().verdict is ComparisonVerdict.SAME
        assert os.umask(umask) == 0o022
    finally:
        os.umask(umask)
    assert {number: signal.getsignal(number) for number in handlers} == handlers
    assert gc.get_freeze_count() <= frozen  # frozen objects may be freed, but none is added
    assert {event.loop for event in events} == {"capture", "main"}
    assert "".join(capfd.readouterr()) == ""
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("venus-loop")]


def test_two_pipelines_run_in_one_process_and_stop_from_another_thread(open_shop: Callable[[str], Shop]) -> None:
    shops = [open_shop("first"), open_shop("second")]
    pipelines = [Pipeline.from_toml(shop.file) for shop in shops]
    for pipeline in pipelines:
        pipeline.install()
    threads = [threading.Thread(target=pipeline.run) for pipeline in pipelines]
    for thread in threads:
        thread.start()
    for number, shop in enumerate(shops):
        shop.write(f"INSERT INTO orders VALUES (9, {number})")
    for number, shop in enumerate(shops):
        eventually(partial(shop.has_rows, [(1, 10), (9, number)]), "its own rows only")
    with pytest.raises(Refused, match="runs already"):
        pipelines[0].run(for_s=0)
    for pipeline, thread in zip(pipelines, threads, strict=True):
        pipeline.stop()
        thread.join(60)
        assert not thread.is_alive()
        pipeline.run(for_s=0)  # and may be run again


def test_a_signal_handler_may_stop_a_run_at_any_moment(shop: Shop) -> None:
    pipeline = Pipeline.from_toml(shop.file)
    pipeline.install()
    with pipeline.running():
        run = pipeline._current
        assert run is not None
        stops = threading.Thread(target=pipeline.stop, daemon=True)
        with run._is_stopping._cond:  # type: ignore[attr-defined]
            stops.start()
            stops.join(60)
            assert not stops.is_alive(), "the main thread may have the event's lock when the signal comes"
        assert run.is_over.wait(60)


def test_a_run_can_be_stopped_while_it_looks_for_triggers(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreachable source can take ten seconds; a stop in this time was lost, and the run continued."""
    pipeline = Pipeline.from_toml(shop.file)
    pipeline.install()
    looks, may = threading.Event(), threading.Event()

    def look_late(*_: object) -> bool:
        looks.set()
        return may.wait(60)

    monkeypatch.setattr(run_command, "find_triggers", look_late)
    thread = threading.Thread(target=pipeline.run, daemon=True)
    thread.start()
    assert looks.wait(60)
    run = pipeline._current
    assert run is not None
    pipeline.stop()
    assert run._is_stopping.wait(60)
    may.set()
    thread.join(60)
    assert not thread.is_alive()


def test_a_run_without_triggers_starts_nothing(shop: Shop) -> None:
    """Capture and the loop of a target would both report it, each in its own words."""
    events: list[PipelineEvent] = []
    with pytest.raises(NotInstalled, match="no triggers are installed"):
        Pipeline.from_toml(shop.file, on_event=events.append).run(for_s=60)
    assert events == []


def test_errors_are_venus_errors_without_passwords(shop: Shop) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        Pipeline.from_toml(shop.folder / "absent.toml")
    with pytest.raises(NotInstalled):
        Pipeline.from_toml(shop.file).run(for_s=60)
    with pytest.raises(ConfigError, match="no table is captured yet"):
        Pipeline.from_toml(shop.file).migrate()
    with pytest.raises(ConfigError, match="for_s is -1"):
        Pipeline.from_toml(shop.file).run(for_s=-1)
    with pytest.raises(Refused, match="does not run"):
        Pipeline.from_toml(shop.file).connect()
    with pytest.raises(Unavailable):
        Pipeline.from_toml(shop.file, own_broker=False).connect().status()
    shop.write("DROP TABLE orders", "CREATE TABLE orders (id INTEGER)")
    assert Pipeline.from_toml(shop.file).check().blocking
    with pytest.raises(Refused, match="orders"):
        Pipeline.from_toml(shop.file).install()
    shop.configure(target="postgresql://postgres@127.0.0.1:1/gone")
    findings = str(Pipeline.from_toml(shop.file).check().findings)
    assert "target main" in findings
    assert PASSWORD not in findings
    shop.configure(source=f"sqlite:///{shop.folder}/absent.db")
    with pytest.raises(VenusError, match="absent"):
        Pipeline.from_toml(shop.file).check()


def test_an_error_of_a_callback_ends_the_run_and_is_raised(shop: Shop) -> None:
    class MistakeError(Exception):
        pass

    def fail(*_: object) -> bool:
        raise MistakeError

    Pipeline.from_toml(shop.file).install()
    with pytest.raises(MistakeError):
        Pipeline.from_toml(shop.file).run(until=fail)
    with pytest.raises(MistakeError):
        Pipeline.from_toml(shop.file, on_event=fail).run(for_s=120)
    with pytest.raises(MistakeError), Pipeline.from_toml(shop.file).running(), nullcontext():
        fail()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("venus-loop")]
