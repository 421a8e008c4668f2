"""The HTTP/2 flow-control windows that both ends announce, and the absence of pings after data."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.integration.service.conftest import time_commit
from tests.support.brokers.servers import BUSINESS
from tests.support.faults.proxy import Direction, Proxy
from venus.broker.service.process import RunningBroker
from venus.rpc.channel import WINDOW_BYTES
from venus.rpc.producer import Producer
from venus.rpc.subscriber import Subscriber

pytestmark = pytest.mark.integration

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS, _PING = 4, 6
_INITIAL_WINDOW_SIZE = 4
#: Time to wait: the first ping on a connection with data would come at once, as would a reduction of the window.
QUIET_S = 0.5


class RecordingProxy(Proxy):
    """Proxy that records the bytes of its only connection, by direction."""

    def __init__(self, target: str) -> None:
        self.kept = {way: bytearray() for way in Direction}
        super().__init__(target)

    def _damage_data(self, data: bytes, way: Direction) -> bytes:
        self.kept[way] += data
        return data


def frames(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the type and the payload of every complete frame."""
    at = len(_PREFACE) if content.startswith(_PREFACE) else 0
    while at + 9 <= len(content):
        size = int.from_bytes(content[at : at + 3], "big")
        yield content[at + 3], content[at + 9 : at + 9 + size]
        at += 9 + size


def windows(content: bytes) -> list[int]:
    """Return every initial stream window that this end has announced."""
    said = [payload for kind, payload in frames(content) if kind == _SETTINGS]
    settings = [struct.unpack_from(">HI", payload, at) for payload in said for at in range(0, len(payload), 6)]
    return [value for name, value in settings if name == _INITIAL_WINDOW_SIZE]


def pings(content: bytes) -> int:
    return sum(kind == _PING for kind, _ in frames(content))


def test_windows_are_wide_from_the_start_and_no_ping_follows_data(broker: RunningBroker) -> None:
    up, down = RecordingProxy(broker.address), RecordingProxy(broker.address)
    with (
        closing(up),
        closing(down),
        Producer(up.address, BUSINESS, "test", window_bytes_max=8 << 20) as sender,
        Subscriber(down.address, BUSINESS, "test", credit_bytes=1 << 20) as reader,
    ):
        sender.connect(0, 0)
        time_commit(sender, 1, rows=1000)
        reader.open(0, 0)
        assert next(iter(reader.increments(60.0))).count == 1000
        time.sleep(QUIET_S)
        for content in (bytes(kept) for line in (up, down) for kept in line.kept.values()):
            assert windows(content) == [WINDOW_BYTES]
            assert pings(content) == 0
