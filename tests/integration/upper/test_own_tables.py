"""A privilege on VENUS's own tables is revoked: status, alarms and health name the statement that restores it."""

from __future__ import annotations

import re
from contextlib import closing

import pytest
import sqlalchemy

from tests.integration.upper.test_privileges import (
    USER,
    LimitedSource,
    problems,
    settings_for_source,
)
from tests.integration.upper.test_privileges import mariadb as mariadb
from tests.integration.upper.test_privileges import postgres as postgres
from tests.integration.upper.test_privileges import refresh_often as refresh_often
from tests.integration.upper.test_real_sources import RunningAdapter, running
from tests.integration.upper.test_real_sources import _until_equal as until_equal
from tests.support.brokers.servers import business_status
from tests.support.waiting import eventually
from venus.adapters.dialects.registry import open_source
from venus.adapters.upper import periodic
from venus.broker.service.process import RunningBroker
from venus.cli.probes import read_overview
from venus.config import Settings
from venus.errors import Fenced
from venus.rpc.admin import AdminClient
from venus.text.alarm_rules import classify_sentence

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periodic, "LOOK_S", 0.2)


def check_alarm(source: LimitedSource, broker: RunningBroker, harm: str, table: str) -> None:
    """Revoke a privilege while capture runs, and grant it again as the alarm says."""
    shop, chosen = source.shop, settings_for_source(source, broker)
    shop.fill(5)
    shop.install(chosen)
    source.limit()
    with closing(open_source(chosen)) as opened:
        assert opened.capture.find_missing_grants() == []
    with running(chosen) as adapter:
        until_equal(shop, broker)
        source.administer(harm)
        if "USAGE" not in harm:  # the triggers' functions need this privilege as well
            shop.write_alike()
        (said,) = eventually(lambda: [p for p in problems(broker) if "may not be used" in p and "away since" not in p])
        found = re.fullmatch(
            rf"source: {table} is HALTED \(may not be used: nothing is captured until `(GRANT .*)`; then capture"
            r" continues by itself\)",
            said,
        )
        assert found, said
        assert USER in found[1]
        assert classify_sentence(said)[0].name == "table_halted"
        assert said in business_status(broker.address).alarms
        assert said in read_overview(chosen).problems
        source.administer(found[1])
        until_equal(shop, broker)
        eventually(lambda: not problems(broker))
        eventually(lambda: not [p for p in read_overview(chosen).problems if p.startswith("source")])
    assert adapter.reports[-1].connections == 2


@pytest.mark.parametrize(
    ("lost", "table"),
    [
        ("SELECT ON venus.checkpoint", "venus.checkpoint"),
        ("UPDATE ON venus.checkpoint", "venus.checkpoint"),
        ("INSERT ON venus.batch", "venus.batch"),
        ("SELECT ON venus.captured_table", "venus.captured_table"),
        ("UPDATE ON venus.heartbeat", "venus.heartbeat"),
        ("DELETE ON venus.dirty", "venus.dirty"),
        ("SELECT ON venus.seen", "venus.seen"),
        ("USAGE ON SCHEMA venus", "venus"),
    ],
)
def test_revoked_privileges_postgresql(postgres: LimitedSource, broker: RunningBroker, lost: str, table: str) -> None:
    check_alarm(postgres, broker, f"REVOKE {lost} FROM {USER}", re.escape(table))


@pytest.mark.parametrize(
    ("lost", "table"),
    [
        ("SELECT, INSERT, UPDATE, DELETE, TRIGGER", "venus_checkpoint"),
        ("UPDATE", "venus_checkpoint"),
        ("INSERT", "venus_batch"),
        ("DELETE", "venus_batch"),
        ("SELECT", "venus_captured_table"),
        ("UPDATE", "venus_heartbeat"),
        ("SELECT", "venus_innodb_table"),
    ],
)
def test_revoked_privileges_mariadb(mariadb: LimitedSource, broker: RunningBroker, lost: str, table: str) -> None:
    if not mariadb.is_narrow:
        pytest.skip("it has these privileges for the whole database")
    place = f"{sqlalchemy.make_url(mariadb.url).database}.{table}"
    check_alarm(mariadb, broker, f"REVOKE {lost} ON {place} FROM '{USER}'@'127.0.0.1'", re.escape(place))


def known_to_the_broker(source: LimitedSource, broker: RunningBroker) -> Settings:
    """Capture once, because the broker knows no business before its first half message."""
    chosen = settings_for_source(source, broker)
    source.shop.fill(5)
    source.shop.install(chosen)
    source.limit()
    with running(chosen):
        until_equal(source.shop, broker)
    return chosen


def find_alarms(broker: RunningBroker) -> list[str]:
    return [said for said in problems(broker) if "may not be used" in said and "away since" not in said]


@pytest.mark.parametrize(
    ("lost", "table"), [("CREATE TEMPORARY TABLES", "venus_claimed"), ("DELETE", "venus_innodb_table")]
)
def test_privileges_missing_at_the_start_of_mariadb(
    mariadb: LimitedSource, broker: RunningBroker, lost: str, table: str
) -> None:
    """MariaDB applies a revoked or granted privilege on a whole database only to new sessions."""
    if not mariadb.is_narrow:
        pytest.skip("it has these privileges for the whole database")
    chosen = known_to_the_broker(mariadb, broker)
    account = f"'{USER}'@'127.0.0.1'"
    name = sqlalchemy.make_url(mariadb.url).database
    place = f"{name}.*" if table == "venus_claimed" else f"{name}.{table}"
    mariadb.administer(f"REVOKE {lost} ON {place} FROM {account}")
    with running(chosen):
        (said,) = eventually(lambda: find_alarms(broker))
        needed = lost if table == "venus_claimed" else "SELECT, INSERT, DELETE"
        assert f"source: {name}.{table} is HALTED" in said
        assert f"`GRANT {needed} ON {place} TO {account}`" in said
        mariadb.shop.write_alike()
        mariadb.administer(f"GRANT {needed} ON {place} TO {account}")
        until_equal(mariadb.shop, broker)
        eventually(lambda: not problems(broker))


def test_privileges_missing_at_the_start_of_postgresql(postgres: LimitedSource, broker: RunningBroker) -> None:
    chosen = known_to_the_broker(postgres, broker)
    postgres.administer(f"REVOKE SELECT ON venus.checkpoint, venus.captured_table FROM {USER}")
    with running(chosen):
        eventually(lambda: len(find_alarms(broker)) == 2)
        postgres.administer(f"GRANT SELECT, UPDATE ON venus.checkpoint TO {USER}")
        eventually(lambda: len(find_alarms(broker)) == 1)
        postgres.shop.write_alike()
        postgres.administer(f"GRANT SELECT, UPDATE ON venus.captured_table TO {USER}")
        until_equal(postgres.shop, broker)
        eventually(lambda: not problems(broker))


def test_privileges_missing_before_the_first_half_message_are_reported(
    postgres: LimitedSource, broker: RunningBroker
) -> None:
    """The broker has no such business before the first half message, and drops the report once the adapter has gone."""
    chosen = settings_for_source(postgres, broker)
    postgres.shop.fill(5)
    postgres.shop.install(chosen)
    postgres.limit()
    postgres.administer(f"REVOKE SELECT ON venus.checkpoint FROM {USER}")

    def alarms() -> list[str]:
        with AdminClient(broker.address) as admin:
            status = admin.status()
        every = [*status.alarms, *(alarm for entry in status.businesses for alarm in entry.alarms)]
        return [alarm for alarm in every if "venus.checkpoint is HALTED" in alarm]

    with running(chosen):
        (said,) = eventually(alarms)
        assert "away since" not in said
    (said,) = eventually(lambda: [alarm for alarm in alarms() if "its adapter has been away since" in alarm])
    assert classify_sentence(said)[0].name == "table_halted"
    postgres.administer(f"GRANT SELECT, UPDATE ON venus.checkpoint TO {USER}")
    with running(chosen):
        until_equal(postgres.shop, broker)
        eventually(lambda: not alarms())


def test_a_waiting_adapter_may_be_taken_over(postgres: LimitedSource, broker: RunningBroker) -> None:
    chosen = known_to_the_broker(postgres, broker)
    postgres.administer(f"REVOKE SELECT ON venus.checkpoint FROM {USER}")
    waiting = RunningAdapter(chosen)
    waiting.thread.start()
    eventually(lambda: find_alarms(broker))
    with running(chosen, take_over=True):
        waiting.thread.join(60)
        assert [type(error) for error in waiting.errors] == [Fenced]
        postgres.administer(f"GRANT SELECT, UPDATE ON venus.checkpoint TO {USER}")
        postgres.shop.write_alike()
        until_equal(postgres.shop, broker)
