"""Eight writers against the poller on MariaDB: nothing is lost, every cut is consistent, the naive way loses rows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import sqlalchemy

from tests.support.databases.mariadb import MariaServer
from tests.support.databases.mariadb_workload import change_item, writers
from tests.support.databases.workload import ACCOUNTS, BALANCE, transfer_step
from venus.adapters.dialects.mysql.source import MysqlSource
from venus.cli.prove.follower import Follower

pytestmark = [pytest.mark.fault, pytest.mark.integration]

DURATIONS = [3, pytest.param(60, marks=pytest.mark.slow)]


@dataclass(slots=True)
class NaivePoller:
    """Reads what has a higher number than the last one read: the way that loses rows."""

    cursor: Any
    last: int = 0
    rows: dict[int, str] = field(default_factory=dict)

    def poll(self) -> None:
        self.cursor.execute(
            "SELECT l.seq, l.id, i.v FROM naive l LEFT JOIN item i ON i.id = l.id WHERE l.seq > %s ORDER BY l.seq",
            (self.last,),
        )
        for seq, key, value in self.cursor.fetchall():
            self.last = seq
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value


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
    follower, naive, cuts = start(mariadb_database), NaivePoller(session), 0
    with writers(mariadb_server, name_of(mariadb_database), change_item) as counts:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            cuts += follower.cut(fill=False) is not None
            naive.poll()
    assert not counts.failed
    cuts += len(follower.drain())
    naive.poll()
    session.execute("SELECT id, v FROM item")
    truth = dict(session.fetchall())
    captured = {int(str(key[0])): row["v"] for key, row in follower.rows("item").items()}
    assert {k for k in truth.keys() | captured.keys() if truth.get(k) != captured.get(k)} == set()
    lost = {k for k in truth.keys() | naive.rows.keys() if truth.get(k) != naive.rows.get(k)}
    assert lost, "the workload is too tame: even the naive poller lost nothing"
    assert cuts > 5
    assert counts.ended["commit"] > 50
    assert counts.ended["rollback"] > 5
    assert all(waiting == 0 for waiting, _ in follower.source.capture.read_backlog().values()), (
        "nothing is left in the logs"
    )
    follower.source.close()


@pytest.mark.parametrize("seconds", DURATIONS)
def test_money_that_moves_between_tables_is_never_half_way_in_a_cut(
    seconds: float, mariadb_server: MariaServer, mariadb_database: str, session: Any
) -> None:
    for table in ("giro", "savings"):
        session.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, balance int NOT NULL)")
        session.execute(f"INSERT INTO {table} SELECT seq, {BALANCE} FROM seq_0_to_{ACCOUNTS - 1}")
    follower = start(mariadb_database)
    totals: Counter[int] = Counter()
    with writers(mariadb_server, name_of(mariadb_database), transfer_step, steps_max=1) as counts:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if follower.cut(fill=False) is not None:
                rows = [r for t in ("giro", "savings") for r in follower.rows(t).values()]
                totals[sum(int(str(r["balance"])) for r in rows)] += 1
    assert not counts.failed
    assert totals.total() > 10
    assert set(totals) == {2 * ACCOUNTS * BALANCE}
    follower.source.close()
