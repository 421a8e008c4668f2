"""Eight writers against the poller on MariaDB: no change is lost, cuts are consistent, a naive poller misses some."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy

from tests.support.databases.mariadb import MariaServer
from tests.support.databases.mariadb_workload import change_item, writers
from tests.support.databases.races import NaiveReader, Race
from tests.support.databases.workload import ACCOUNTS, BALANCE, transfer_step
from venus.adapters.dialects.mysql.source import MysqlSource
from venus.cli.prove.follower import Follower

pytestmark = [pytest.mark.fault, pytest.mark.integration]

DURATIONS = [3, pytest.param(60, marks=pytest.mark.slow)]


_NAIVE = (
    "CREATE TABLE naive (seq bigint AUTO_INCREMENT PRIMARY KEY, id int NOT NULL)",
    "CREATE TRIGGER naive_i AFTER INSERT ON item FOR EACH ROW INSERT INTO naive (id) VALUES (NEW.id)",
    "CREATE TRIGGER naive_u AFTER UPDATE ON item FOR EACH ROW INSERT INTO naive (id) VALUES (OLD.id), (NEW.id)",
    "CREATE TRIGGER naive_d AFTER DELETE ON item FOR EACH ROW INSERT INTO naive (id) VALUES (OLD.id)",
)


@pytest.fixture
def session(mariadb_server: MariaServer, mariadb_database: str) -> Iterator[Any]:
    connection = mariadb_server.connect(name_of(mariadb_database), autocommit=True)
    yield connection.cursor()
    connection.close()


def name_of(url: str) -> str:
    return str(sqlalchemy.make_url(url).database)


def start(url: str) -> Follower:
    source = MysqlSource(url)
    source.installer.install(["*"], ["naive"])
    follower = Follower(source)
    follower.drain()
    return follower


@pytest.mark.parametrize("seconds", DURATIONS)
def test_no_change_of_eight_writers_is_lost(
    seconds: float, mariadb_server: MariaServer, mariadb_database: str, session: Any
) -> None:
    session.execute("CREATE TABLE item (id int PRIMARY KEY, v varchar(40) NOT NULL)")
    for statement in _NAIVE:
        session.execute(statement)
    follower, naive, cuts = start(mariadb_database), NaiveReader(session, "naive"), 0
    with writers(mariadb_server, name_of(mariadb_database), change_item) as counts:
        race = Race(seconds, counts.ended, cuts_min=5)
        while not race.is_over(cuts, is_hard=bool(naive.missed)):
            cuts += follower.cut(fill=False) is not None
            naive.poll()
    assert not counts.failed
    follower.drain()
    session.execute("SELECT id, v FROM item")
    truth = dict(session.fetchall())
    captured = {int(str(key[0])): row["v"] for key, row in follower.rows("item").items()}
    assert {k for k in truth.keys() | captured.keys() if truth.get(k) != captured.get(k)} == set()
    assert naive.missed, "the workload is too tame: even the naive reader missed nothing"
    assert race.has_enough(cuts)
    assert all(waiting == 0 for waiting, _ in follower.source.capture.read_backlog().values()), (
        "nothing is left in the logs"
    )
    follower.source.close()


@pytest.mark.parametrize("seconds", DURATIONS)
def test_a_cut_never_shows_half_of_a_transfer_between_tables(
    seconds: float, mariadb_server: MariaServer, mariadb_database: str, session: Any
) -> None:
    for table in ("giro", "savings"):
        session.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, balance int NOT NULL)")
        session.execute(f"INSERT INTO {table} SELECT seq, {BALANCE} FROM seq_0_to_{ACCOUNTS - 1}")
    follower = start(mariadb_database)
    totals: Counter[int] = Counter()
    with writers(mariadb_server, name_of(mariadb_database), transfer_step, steps_max=1) as counts:
        race = Race(seconds, counts.ended, cuts_min=10)
        while not race.is_over(totals.total()):
            if follower.cut(fill=False) is not None:
                rows = [r for t in ("giro", "savings") for r in follower.rows(t).values()]
                totals[sum(int(str(r["balance"])) for r in rows)] += 1
    assert not counts.failed
    assert totals.total() > 10
    assert set(totals) == {2 * ACCOUNTS * BALANCE}
    follower.source.close()
