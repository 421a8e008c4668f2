"""Subscriptions of `venus.client` that end early or are closed, and the errors about wrong arguments."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from venus.client import ChangePosition, connect
from venus.client import changes as client_changes
from venus.client.broker import Broker
from venus.errors import ConfigError, OffsetDiverged, Unavailable
from venus.rpc.address import BrokerAddress, ClientCredentials
from venus.wire import broker_pb2

ADDRESS = BrokerAddress("127.0.0.1:1", ClientCredentials())


class EndingClient:
    """A stream whose first subscription ends before it has begun."""

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


def test_a_subscription_that_ends_before_it_begins_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"table": ""}, "'' cannot be the name of a table"),
        ({"group": " mailer"}, "' mailer' cannot be the name of a group"),
        ({"columns": ["id", ""]}, "'' cannot be the name of a column"),
        ({"columns": "id"}, "columns is 'id': it should be a list of names"),
        ({"start": "later"}, "a subscription cannot start at 'later'"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], message: str) -> None:
    with Broker(ADDRESS) as broker, pytest.raises(ConfigError, match=re.escape(message)) as caught:
        broker.changes(**{"table": "items"} | arguments)
    assert caught.value.hint


@pytest.mark.parametrize("address", ["", "localhost", "a:1,b", "a:99999"])
def test_a_wrong_address_is_named(address: str) -> None:
    with pytest.raises(ConfigError, match="should be HOST:PORT"):
        connect(address)


def test_an_address_together_with_a_directory_is_refused() -> None:
    with pytest.raises(ConfigError, match="are both given"):
        connect("a:1", directory="b:1")
    with pytest.raises(ConfigError, match="'b' should be HOST:PORT"):
        connect(directory="a:1,b")


def test_the_reason_for_waiting_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class AbsentClient(EndingClient):
        def open(self) -> int:
            raise Unavailable("the broker cannot be reached")

    monkeypatch.setattr(client_changes, "ListenerClient", AbsentClient)
    monkeypatch.setattr(client_changes, "RETRY_S", 0.0)
    with caplog.at_level(logging.WARNING), Broker(ADDRESS) as broker, pytest.raises(Unavailable):
        broker.changes("items", patience_s=0.02).poll(5)
    assert caplog.messages == ["the broker cannot be reached (trying again for up to 0.02 s)"]


def test_a_position_that_the_broker_never_had_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    class DivergedClient(EndingClient):
        def begin(self, _requests: Any) -> None:
            raise OffsetDiverged("beyond the end", hint="`venus resync`")

    monkeypatch.setattr(client_changes, "ListenerClient", DivergedClient)
    with Broker(ADDRESS) as broker, pytest.raises(OffsetDiverged, match="beyond the end") as caught:
        broker.changes("items", start=ChangePosition(9, 1)).poll(5)
    assert caught.value.hint == "subscribe again without a position: all rows come, then their changes"
