"""Eight writers against the poller: no change is lost, every cut is consistent, and a naive poller misses changes.

The naive poller (`number > last`) reads the same changes in the same run. It must miss some; otherwise the workload
would prove nothing about the real poller.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg2
import pytest

from tests.support.databases.postgres import libpq
from tests.support.databases.races import NaiveReader, Race
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


@pytest.mark.parametrize("seconds", DURATIONS)
def test_no_change_of_eight_writers_is_lost(
    seconds: float, database: str, application: psycopg2.extensions.connection
) -> None:
    cursor = application.cursor()
    cursor.execute("CREATE TABLE item (id int PRIMARY KEY, v text NOT NULL)")
    cursor.execute(NAIVE)
    follower = start(database)
    naive, cuts = NaiveReader(cursor, "naive.log"), 0
    with writers(database, change_item) as counts:
        race = Race(seconds, counts.ended, cuts_min=int(10 * seconds / 8))
        while not race.is_over(cuts, is_hard=bool(naive.missed)):
            cuts += follower.cut(fill=False) is not None
            naive.poll()
    assert not counts.failed
    follower.drain()
    cursor.execute("SELECT id, v FROM item")
    truth = dict(cursor.fetchall())
    captured = {int(str(key[0])): row["v"] for key, row in follower.rows("item").items()}
    assert {k for k in truth.keys() | captured.keys() if truth.get(k) != captured.get(k)} == set()
    assert naive.missed, "the workload is too tame: even the naive reader missed nothing"
    assert race.has_enough(cuts)
    follower.source.close()


@pytest.mark.parametrize("seconds", DURATIONS)
def test_a_cut_never_shows_half_of_a_transfer_between_tables(
    seconds: float, database: str, application: psycopg2.extensions.connection
) -> None:
    cursor = application.cursor()
    for table in ("giro", "savings"):
        cursor.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, balance int NOT NULL)")
        cursor.execute(f"INSERT INTO {table} SELECT i, {BALANCE} FROM generate_series(0, {ACCOUNTS - 1}) i")
    follower = start(database)
    totals: list[int] = []
    with writers(database, transfer_step, steps_max=1) as counts:
        race = Race(seconds, counts.ended, cuts_min=20)
        while not race.is_over(len(totals)):
            if follower.cut(fill=False) is not None:
                totals.append(
                    sum(int(str(r["balance"])) for t in ("giro", "savings") for r in follower.rows(t).values())
                )
    assert not counts.failed
    assert len(totals) > 20
    assert set(totals) == {2 * ACCOUNTS * BALANCE}
    follower.source.close()
