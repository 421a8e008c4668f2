"""A broker with a producer and a target; a test opens its page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.brokers.servers import BUSINESS, commit, settings, take
from tests.support.engines.batches import half, other_table
from venus.broker.service.process import RunningBroker, start_in_thread
from venus.config import AlarmsSettings
from venus.rpc.conditions import AdapterCondition, TableCondition
from venus.rpc.producer import Producer
from venus.rpc.subscriber import Subscriber

REASON = 'row {"id": 17}: <b>too long</b> for varchar(10)'
HALTED = AdapterCondition.of(
    [TableCondition(table_id=1, name="shop.items", state="HALTED", reason=REASON, quarantined=1)]
)
ROWS = 20
NOT_KNOWN = "\N{EN DASH}"


class PageBroker:
    """A broker, its producer, and a target that applies what the producer commits."""

    def __init__(self, folder: Path, **options: Any) -> None:
        alarms = AlarmsSettings(check_s=0.1, late_s=1e9)  # the timestamps of test batches are years old
        chosen = settings(folder / "data", **options).model_copy(update={"alarms": alarms})
        self.broker: RunningBroker = start_in_thread(chosen, on_fatal=lambda error: None)
        self.url = f"http://{self.broker.http_address}/"
        self.producer = Producer(self.broker.address, BUSINESS, "shop-db", window_bytes_max=1 << 20)
        self.producer.connect(0, 0)
        self._batches = 0
        self.commit_more(1)
        self.target = Subscriber(self.broker.address, BUSINESS, f"{BUSINESS}/eu", credit_bytes=1 << 20)
        self.target.open(0, 0)
        self.follow()

    def commit_more(self, batches: int) -> None:
        """Commit more batches."""
        first = self._batches + 1
        commit(self.producer, [half(first + n, rows=ROWS) for n in range(batches)])
        self._batches += batches

    def commit_more_tables(self, count: int) -> None:
        """Commit a batch for each of this many new tables."""
        for n in range(self._batches + 1, self._batches + count + 1):
            commit(self.producer, [half(n, rows=ROWS, table=other_table(n))])
        self._batches += count

    def follow(self) -> None:
        """Apply and acknowledge everything."""
        take(self.target, self._batches * ROWS)
        self.target.acknowledge(self._batches * ROWS)

    def close(self) -> None:
        """Stop the broker and its clients."""
        self.target.close()
        self.producer.close()
        self.broker.stop()
