"""The credit that a client of subscriptions returns."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from venus.codec.changed_rows import frame_cost
from venus.rpc.listener import CREDIT_EVERY_S, CREDIT_PART, ListenerClient
from venus.wire import broker_pb2

CREDIT = 1 << 20


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("venus.rpc.listener.time", SimpleNamespace(monotonic=made.monotonic))
    return made


@pytest.fixture
def client(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[ListenerClient]:
    """Yield a client without a broker."""
    monkeypatch.setattr("venus.rpc.duplex._connect", lambda *_: SimpleNamespace(close=lambda: None))
    with ListenerClient("127.0.0.1:1", "main", credit_bytes=CREDIT) as made:
        yield made


def take(client: ListenerClient, nbytes: int) -> int:
    """Let a frame arrive and take it; return its price."""
    frame = broker_pb2.ChangesFrame(changes=[broker_pb2.ChangedRows(stored=b"x" * nbytes)])
    client.on_frame(frame)
    assert client.take(0.0) == [frame]
    return frame_cost(frame)


def test_credit_of_small_frames_is_returned_together(client: ListenerClient, clock: Clock) -> None:
    assert client.next_frame(0) == (None, None, False)
    prices = []
    for _ in range(10):
        prices.append(take(client, 100))
        frame, pause_s, _ = client.next_frame(0)
        assert frame is None
        assert pause_s is not None
        assert 0 < pause_s <= CREDIT_EVERY_S

    clock.now += CREDIT_EVERY_S
    frame, _, _ = client.next_frame(0)

    assert frame == broker_pb2.ListenerFrame(credit_bytes=sum(prices))
    assert client.next_frame(0) == (None, None, False)


def test_credit_of_much_is_returned_at_once(client: ListenerClient) -> None:
    price = take(client, int(CREDIT_PART * CREDIT))

    frame, _, _ = client.next_frame(0)

    assert frame == broker_pb2.ListenerFrame(credit_bytes=price)
