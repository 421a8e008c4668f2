"""Eight writers against the poller: nothing is lost, every cut is consistent, and the naive way loses rows.

The naive poller (`number > last`) reads the same changes of the same run. It must lose some: otherwise the workload
would prove nothing about the poller that must not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import psycopg2
import pytest

from tests.support.databases.postgres import libpq
from tests.support.databases.workload import ACCOUNTS, BALANCE, change_item, transfer_step, writers
from venus.adapters.dialects.postgresql.source import PostgresSource
from venus.cli.prove.follower import Follower

pytestmark = [pytest.mark.fault, pytest.mark.integration]

DURATIONS = [4, pytest.param(60, marks=pytest.mark.slow)]


@pytest.fixture
def application(database: str) -> Iterator[psycopg2.extensions.connection]:
    connection = psycopg2.connect(libpq(database))
    connection.autocommit = True
    yield connection
    connection.close()


def start(database: str) -> Follower:
    source = PostgresSource(database)
    source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain()
    return follower


NAIVE = """
CREATE SCHEMA naive;
CREATE TABLE naive.log (seq bigserial PRIMARY KEY, id int NOT NULL);
CREATE FUNCTION naive.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF TG_OP <> 'INSERT' THEN INSERT INTO naive.log (id) VALUES (OLD.id); END IF;
  IF TG_OP <> 'DELETE' THEN INSERT INTO naive.log (id) VALUES (NEW.id); END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER naive AFTER INSERT OR UPDATE OR DELETE ON item FOR EACH ROW EXECUTE FUNCTION naive.note();
"""


@dataclass(slots=True)
class NaivePoller:
    """Reads what has a higher number than the last one read: the way that loses rows."""

    connection: psycopg2.extensions.connection
    last: int = 0
    rows: dict[int, str] = field(default_factory=dict)

    def poll(self) -> None:
        cursor = self.connection.cursor()
        cursor.execute(
            "SELECT l.seq, l.id, i.v FROM naive.log l LEFT JOIN item i ON i.id = l.id WHERE l.seq > %s ORDER BY l.seq",
            (self.last,),
        )
        for seq, key, value in cursor.fetchall():
            self.last = seq
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value


@pytest.mark.parametrize("seconds", DURATIONS)
def test_no_change_of_eight_writers_is_lost(
    seconds: float, database: str, application: psycopg2.extensions.connection
) -> None:
    cursor = application.cursor()
    cursor.execute("CREATE TABLE item (id int PRIMARY KEY, v text NOT NULL)")
    cursor.execute(NAIVE)
    follower = start(database)
    naive = NaivePoller(application)
    cuts = 0
    with writers(database, change_item) as counts:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            cuts += follower.cut(fill=False) is not None
            naive.poll()
    assert not counts.failed
    cuts += len(follower.drain())
    naive.poll()
    cursor.execute("SELECT id, v FROM item")
    truth = dict(cursor.fetchall())
    captured = {int(str(key[0])): row["v"] for key, row in follower.rows("item").items()}
    assert {k for k in truth.keys() | captured.keys() if truth.get(k) != captured.get(k)} == set()
    lost = {k for k in truth.keys() | naive.rows.keys() if truth.get(k) != naive.rows.get(k)}
    assert lost, "the workload is too tame: even the naive poller lost nothing"
    assert cuts > 10 * seconds / 8
    assert counts.ended["commit"] > 50
    assert counts.ended["rollback"] > 5
    follower.source.close()


@pytest.mark.parametrize("seconds", DURATIONS)
def test_money_that_moves_between_tables_is_never_half_way_in_a_cut(
    seconds: float, database: str, application: psycopg2.extensions.connection
) -> None:
    cursor = application.cursor()
    for table in ("giro", "savings"):
        cursor.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, balance int NOT NULL)")
        cursor.execute(f"INSERT INTO {table} SELECT i, {BALANCE} FROM generate_series(0, {ACCOUNTS - 1}) i")
    follower = start(database)
    totals = []
    with writers(database, transfer_step, steps_max=1) as counts:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if follower.cut(fill=False) is not None:
                totals.append(
                    sum(int(str(r["balance"])) for t in ("giro", "savings") for r in follower.rows(t).values())
                )
    assert not counts.failed
    assert len(totals) > 20
    assert set(totals) == {2 * ACCOUNTS * BALANCE}
    follower.source.close()
