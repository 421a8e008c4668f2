"""Writers against the poller, with Oracle's trigger text on MariaDB in Oracle mode: every change is captured, once.

The sequence is cached and unordered, as on a RAC. A naive reader (`SEQ > last`) reads the same changes and must miss
some; otherwise the workload would prove nothing.
"""

from __future__ import annotations

import random
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.ledger import read_ledger
from tests.support.brokers.servers import settings
from tests.support.databases.mariadb import MariaServer
from tests.support.databases.races import NaiveReader, Race
from tests.support.oracle.standin import SCHEMA, StandIn
from tests.support.oracle.workload import KEYS, change_item, writers
from tests.support.waiting import eventually
from venus.adapters.dialects.oracle.source import OracleSource
from venus.adapters.upper import capture
from venus.broker.service.process import start_in_thread
from venus.cli.prove.follower import Follower
from venus.config import Settings
from venus.errors import Unavailable

pytestmark = [pytest.mark.fault, pytest.mark.integration]

ACCOUNTS, BALANCE = 10, 1000
SECONDS = [2, pytest.param(60, marks=pytest.mark.slow)]


@pytest.fixture
def standin(mariadb_oracle_server: MariaServer) -> StandIn:
    standin = StandIn(mariadb_oracle_server)
    standin.prepare()
    return standin


def transfer_step(cursor: Any, rng: random.Random) -> None:
    """Move money between two tables; the total never changes."""
    amount = rng.randrange(1, 100)
    source, target = rng.sample(("GIRO", "SAVINGS"), 2)
    for table, change in ((source, -amount), (target, amount)):
        sql = f'UPDATE "{table}" SET "BALANCE" = "BALANCE" + (%s) WHERE "ID" = %s'
        cursor.execute(sql, (change, rng.randrange(ACCOUNTS)))


def log_items(cursor: Any) -> None:
    """Return the numbers of a table's log entries for the naive reader."""
    cursor.execute("CREATE TABLE N_LOG (SEQ BIGINT AUTO_INCREMENT PRIMARY KEY, K INT NOT NULL)")
    for event, row in (("INSERT", "NEW"), ("DELETE", "OLD"), ("UPDATE", "NEW")):
        old = "INSERT INTO N_LOG (K) VALUES (:OLD.ID);" if event == "UPDATE" else ""
        cursor.execute(
            f'CREATE TRIGGER N_{event} AFTER {event} ON "ITEM" FOR EACH ROW'
            f" BEGIN {old} INSERT INTO N_LOG (K) VALUES (:{row}.ID); END;"
        )


@pytest.mark.parametrize("seconds", SECONDS)
def test_no_change_of_six_writers_is_lost(seconds: float, standin: StandIn) -> None:
    with (
        closing(standin.server.connect(SCHEMA, autocommit=True)) as connection,
        closing(OracleSource(standin)) as source,
    ):
        cursor = connection.cursor()
        cursor.execute('CREATE TABLE "ITEM" ("ID" NUMBER(9) NOT NULL PRIMARY KEY, "V" VARCHAR2(40) NOT NULL)')
        log_items(cursor)
        source.installer.install(["ITEM"], [])
        follower = Follower(source)
        follower.drain()
        naive, cuts = NaiveReader(cursor, "N_LOG"), 0
        with writers(standin, change_item) as ended:
            race = Race(seconds, ended, cuts_min=int(seconds))
            while not race.is_over(cuts, is_hard=bool(naive.missed)):
                cuts += follower.cut(fill=False) is not None
                naive.poll()
        follower.drain()
        cursor.execute('SELECT "ID", "V" FROM "ITEM"')
        truth = {int(key): value for key, value in cursor.fetchall()}
        captured = {int(str(key[0])): row["V"] for key, row in follower.rows("ITEM").items()}
        assert captured == truth
        assert naive.missed, "the workload is too tame: even the naive reader missed nothing"
        assert race.has_enough(cuts)


@pytest.mark.parametrize("seconds", SECONDS)
def test_a_cut_never_shows_half_of_a_transfer_between_tables(seconds: float, standin: StandIn) -> None:
    with (
        closing(standin.server.connect(SCHEMA, autocommit=True)) as connection,
        closing(OracleSource(standin)) as source,
    ):
        cursor = connection.cursor()
        for table in ("GIRO", "SAVINGS"):
            cursor.execute(
                f'CREATE TABLE "{table}" ("ID" NUMBER(9) NOT NULL PRIMARY KEY, "BALANCE" NUMBER(9) NOT NULL)'
            )
            cursor.executemany(f'INSERT INTO "{table}" VALUES (%s, {BALANCE})', [(n,) for n in range(ACCOUNTS)])
        source.installer.install(["GIRO", "SAVINGS"], [])
        follower = Follower(source)
        follower.drain()
        totals: list[int] = []
        with writers(standin, transfer_step) as ended:
            race = Race(seconds, ended, cuts_min=int(seconds))
            while not race.is_over(len(totals)):
                if follower.cut(fill=False) is not None:
                    every = [*follower.rows("GIRO").values(), *follower.rows("SAVINGS").values()]
                    totals.append(sum(int(str(row["BALANCE"])) for row in every))
        assert race.has_enough(len(totals))
        assert set(totals) == {2 * ACCOUNTS * BALANCE}


def test_the_full_data_at_the_broker_equals_the_source(standin: StandIn, tmp_path: Path) -> None:
    """The whole path to the broker with the real upper adapter; only the driver is the stand-in's."""
    with closing(standin.server.connect(SCHEMA, autocommit=True)) as connection:
        cursor = connection.cursor()
        cursor.execute('CREATE TABLE "ITEM" ("ID" NUMBER(9) NOT NULL PRIMARY KEY, "V" VARCHAR2(40) NOT NULL)')
        cursor.executemany('INSERT INTO "ITEM" VALUES (%s, %s)', [(n, f"before {n}") for n in range(0, KEYS, 2)])
        with closing(OracleSource(standin)) as source:
            source.installer.install(["ITEM"], [])
        fatal: list[BaseException] = []
        broker = start_in_thread(settings(tmp_path / "broker", review_after_s=0.2), on_fatal=fatal.append)
        chosen = settings(Path("unused"), address=broker.address)
        stop, errors = threading.Event(), list[BaseException]()
        adapter = threading.Thread(target=_capture, args=(chosen, standin, stop, errors))
        adapter.start()
        try:
            with writers(standin, change_item):
                stop.wait(4)

            def has_arrived() -> bool:
                cursor.execute('SELECT "ID", "V" FROM "ITEM"')
                truth = {(str(key),): (value,) for key, value in cursor.fetchall()}
                try:
                    ledger = read_ledger(broker.address)
                except Unavailable:  # nothing has arrived yet
                    return False
                return "ITEM" in ledger.schemas and ledger.values("ITEM") == truth

            assert eventually(has_arrived)
        finally:
            stop.set()
            adapter.join(60)
            broker.stop()
        assert not errors
        assert not fatal


def _capture(chosen: Settings, standin: StandIn, stop: threading.Event, errors: list[BaseException]) -> None:
    try:
        capture.run_capture(chosen, stop, outside=capture.CaptureDependencies(source=lambda _: OracleSource(standin)))
    except BaseException as e:
        errors.append(e)
