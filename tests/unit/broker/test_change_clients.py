"""Subscriptions of `venus.client` that end early, and those that are closed."""

from __future__ import annotations

from typing import Any

import pytest

from venus.client import changes as client_changes
from venus.client.broker import Broker
from venus.rpc.address import BrokerAddress, ClientCredentials
from venus.wire import broker_pb2

ADDRESS = BrokerAddress("127.0.0.1:1", ClientCredentials())


class EndingClient:
    """A stream of which the first subscription ends before it has begun."""

    opened = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        type(self).opened += 1
        self.number = self.opened

    def open(self) -> int:
        return 0

    def begin(self, _requests: Any) -> None:
        pass

    def take(self, _timeout_s: float) -> list[broker_pb2.ChangesFrame]:
        frame = broker_pb2.ChangesFrame()
        if self.number == 1:
            frame.news.add(number=1, state=broker_pb2.ENDED, kind="Unavailable", error="the broker moves")
        return [frame]

    def close(self) -> None:
        pass


def test_a_subscription_that_ends_before_it_begins_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_changes, "ListenerClient", EndingClient)
    monkeypatch.setattr(client_changes, "RETRY_S", 0.0)
    with Broker(ADDRESS) as broker:
        assert broker.changes("items").poll(0.05) is None
    assert EndingClient.opened == 2


def test_closed_subscriptions_are_forgotten() -> None:
    with Broker(ADDRESS) as broker:
        kept = broker.changes("items")
        for _ in range(3):
            broker.changes("items").close()
        assert list(broker._open.values()) == [kept]
    assert not broker._open
