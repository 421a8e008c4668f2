"""A database password changes while VENUS runs: the next connection uses the new one, at source and target."""

from __future__ import annotations

import itertools
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import sqlalchemy

from tests.integration.upper.shop import Shop
from tests.integration.upper.test_real_sources import _until_equal as until_equal
from tests.integration.upper.test_real_sources import running
from tests.support.brokers.deliveries import broker, feed
from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import Feed, following, items, put, query, settings_for, wait_until_caught_up
from tests.support.brokers.servers import settings as broker_settings
from tests.support.databases.postgres import Server, running_server
from tests.support.pipelines.applying import check_equal
from venus.adapters.targets.postgresql.session import TargetSession
from venus.adapters.targets.relational.control import read_progress
from venus.adapters.targets.relational.full_sync import full_sync
from venus.broker.service.process import start_in_thread
from venus.config import Settings, SourceSettings
from venus.security.secrets import resolve_passwords

__all__ = ["broker", "feed"]

pytestmark = pytest.mark.integration

USER = "rotating"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server that requires a password from one role."""
    home = tmp_path_factory.mktemp("pg-password")
    with running_server(home / "data") as started:
        hba = Path(query(started.url("postgres"), "SHOW hba_file")[0][0])
        hba.write_text(f"local all {USER} scram-sha-256\n" + hba.read_text())
        started.execute("SELECT pg_reload_conf()")
        started.execute(f"CREATE ROLE {USER} LOGIN SUPERUSER")
        yield started


@dataclass(frozen=True, slots=True)
class RotatedDatabase:
    """A database, the file with its password, and the function that changes the password."""

    admin: str
    url: str
    file: Path
    rotate: Callable[[], None]


@pytest.fixture
def place(server: Server, tmp_path: Path) -> Iterator[RotatedDatabase]:
    admin, numbers = server.create_database(), itertools.count()
    file = tmp_path / "password"

    def rotate() -> None:
        """Change the password, and end every connection that was made with the old one."""
        password = f"p@ss/{next(numbers)}"
        server.execute(f"ALTER ROLE {USER} PASSWORD '{password}'")
        file.write_text(password)
        file.chmod(0o600)
        query(admin, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{USER}'")

    rotate()
    name = sqlalchemy.make_url(admin).database
    yield RotatedDatabase(admin, server.url(str(name), USER), file, rotate)
    server.drop_database(admin)


def test_the_server_requires_the_password(place: RotatedDatabase) -> None:
    with pytest.raises(psycopg2.OperationalError, match="no password supplied"):
        psycopg2.connect(sqlalchemy.make_url(place.url).set(drivername="postgresql").render_as_string())


@pytest.mark.parametrize("way", ["password_file", "password_command"])
def test_a_target_continues_with_the_new_password(
    way: str, place: RotatedDatabase, broker: FakeDelivery, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("venus.security.secrets.COMMAND_EVERY_S", 0.2)
    where = str(place.file) if way == "password_file" else f"cat {place.file}"
    given: dict[str, Any] = {way: where}
    settings = resolve_passwords(settings_for(broker.address, {"a": place.url}, **given))
    feed.describe(items())
    feed.cut(*(put(i, "row", i) for i in range(9)))
    place.rotate()
    time.sleep(0.3)  # the password command does not run for every attempt
    full_sync(settings, "a")
    with following(settings, "a"):
        feed.cut(put(1, "new", 1))
        wait_until_caught_up(place.admin, broker)
        place.rotate()
        feed.cut(put(2, "new", 2))
        wait_until_caught_up(place.admin, broker)
    place.rotate()
    time.sleep(0.3)
    assert read_progress(settings, "a").unaccounted == 0
    check_equal(place.admin, feed)


def test_a_worker_reads_the_password_itself(place: RotatedDatabase, broker: FakeDelivery) -> None:
    from venus.adapters.targets.postgresql.database import PostgresDatabase

    settings = resolve_passwords(settings_for(broker.address, {"a": place.url}, password_file=str(place.file)))
    sent = pickle.dumps(PostgresDatabase(settings, "a").worker_url)
    place.rotate()
    session = TargetSession(pickle.loads(sent), application="test")
    assert session.row("SELECT 1") == (1,)
    session.close()


def test_capture_continues_with_the_new_password(place: RotatedDatabase, tmp_path: Path) -> None:
    at_broker = start_in_thread(broker_settings(tmp_path / "broker", review_after_s=0.2))
    try:
        shop = Shop(place.admin)
        source = SourceSettings.model_validate({"url": place.url, "password_file": str(place.file)})
        chosen: Settings = resolve_passwords(
            broker_settings(Path("unused"), address=at_broker.address).model_copy(update={"source": source})
        )
        shop.fill(10)
        shop.install(chosen)
        with running(chosen):
            until_equal(shop, at_broker)
            place.rotate()
            shop.write()
            until_equal(shop, at_broker)
    finally:
        at_broker.stop()
