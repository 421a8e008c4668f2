"""A broker with forty thousand tables with very long names: none of its answers is too long to send."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.integration.service.conftest import StartBroker
from tests.integration.service.test_http import get, metric
from tests.support.brokers.servers import BUSINESS, fill
from tests.support.waiting import eventually
from venus.broker.machine.business import TableFigures
from venus.broker.machine.records import save_table
from venus.broker.service.process import RunningBroker
from venus.broker.status.table_selection import SHOWN_MAX
from venus.broker.store.rocks import Store
from venus.errors import ConfigError
from venus.rpc.admin import AdminClient
from venus.rpc.channel import MESSAGE_BYTES_MAX
from venus.rpc.conditions import AdapterCondition, TableCondition
from venus.rpc.subscriber import Subscriber
from venus.spark import datasource_options
from venus.spark.datasource_options import DataSourceOptions
from venus.wire import broker_pb2

pytestmark = pytest.mark.integration

MANY = 40_000
HALTED = 39_999


def long_name(number: int) -> str:
    return f"t{number}".ljust(200, "_")


@pytest.fixture
def crowded_broker(start_broker: StartBroker, tmp_path: Path) -> RunningBroker:
    """Return a broker with many tables; a target has halted one of the last."""
    first = start_broker()
    fill(first.address, 1, 1)
    first.stop()
    store = Store(tmp_path / "data" / "db")
    batch = store.batch()
    for n in range(1_000, 1_000 + MANY):
        save_table(batch, 1, n, TableFigures(namespace="n" * 250, name=long_name(n), changes=n))
    store.write(batch, durable=True)
    store.close()
    return start_broker()


def halt_table(broker: RunningBroker) -> Subscriber:
    reader = Subscriber(broker.address, BUSINESS, f"{BUSINESS}/a", credit_bytes=1 << 20)
    reader.open(0, 0)
    reader.report(AdapterCondition.of([TableCondition(table_id=HALTED, name="far.behind", state="HALTED", reason="x")]))
    eventually(lambda: "far.behind is HALTED" in get(broker, "/health"))
    return reader


def test_a_halted_table_is_shown_everywhere_and_every_answer_is_short(crowded_broker: RunningBroker) -> None:
    with halt_table(crowded_broker), AdminClient(crowded_broker.address) as admin:
        found = admin.status()
        (entry,) = found.businesses
        assert len(entry.tables) == SHOWN_MAX
        assert HALTED in {table.table_id for table in entry.tables}
        assert entry.tables_total > MANY
        assert found.ByteSize() < MESSAGE_BYTES_MAX / 16
        assert any("far.behind is HALTED" in alarm for alarm in entry.alarms)
        page = json.loads(get(crowded_broker, "/status.json"))
        assert len(page["businesses"][0]["tables"]) == SHOWN_MAX
        metrics = get(crowded_broker, "/metrics")
        assert metric(metrics, f'venus_tables{{business="{BUSINESS}"}}') == entry.tables_total
        assert len(re.findall("^venus_table_changes_total", metrics, re.MULTILINE)) == SHOWN_MAX

        (whole,) = admin.whole_status(BUSINESS).businesses
        assert {table.table_id for table in whole.tables} >= set(range(1_000, 1_000 + MANY))
        assert len(whole.tables) == whole.tables_total
        assert broker_pb2.BusinessStatus(tables=whole.tables).ByteSize() > MESSAGE_BYTES_MAX, "one answer holds it"


def test_older_clients_and_clients_that_resolve_names_are_answered(crowded_broker: RunningBroker) -> None:
    name = long_name(HALTED)
    with AdminClient(crowded_broker.address) as admin:
        answer = admin._ask("", "Status", broker_pb2.StatusRequest(), broker_pb2.BrokerStatus)
        assert SHOWN_MAX < len(answer.businesses[0].tables) < MANY

        (entry,) = admin.status(named=[name, "t1000.none"]).businesses
        assert [table.table_id for table in entry.tables] == [HALTED]

    options = DataSourceOptions(address=crowded_broker.address, business=BUSINESS, table=f"{name}?")
    with pytest.raises(ConfigError, match=r"no table is called") as caught:
        datasource_options.find_table(options)
    assert caught.value.hint.startswith("there are: ")
