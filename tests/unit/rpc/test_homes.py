"""Recognition of the brokers of a home by their status."""

from __future__ import annotations

import pytest

from venus.rpc.admin import is_home
from venus.wire import broker_pb2

HOME = broker_pb2.NetworkStatus(set="hq")
BELOW = broker_pb2.NetworkStatus(set="second", upstream=["hq:7400"])
MIRROR = broker_pb2.BusinessStatus(business="main", mirror=broker_pb2.MirrorStatus(state="following"))
MOVED = broker_pb2.Home(set="second", home_term=1)


@pytest.mark.parametrize(
    ("network", "entry", "wanted"),
    [
        (HOME, None, True),
        (HOME, broker_pb2.BusinessStatus(business="main"), True),
        (HOME, broker_pb2.BusinessStatus(business="main", home=MOVED, replaced=True), False),
        (HOME, MIRROR, False),
        (BELOW, None, False),
        (BELOW, broker_pb2.BusinessStatus(business="main"), False),
        (BELOW, MIRROR, False),
        (BELOW, broker_pb2.BusinessStatus(business="main", home=MOVED), True),  # a set that mirrors other businesses
        (BELOW, broker_pb2.BusinessStatus(business="main", home=MOVED, mirror=MIRROR.mirror), False),
        (BELOW, broker_pb2.BusinessStatus(home=broker_pb2.Home(set="third", home_term=2)), False),
    ],
)
def test_a_home_is_recognised_by_its_status(
    network: broker_pb2.NetworkStatus, entry: broker_pb2.BusinessStatus | None, wanted: bool
) -> None:
    assert is_home(network, entry) is wanted
