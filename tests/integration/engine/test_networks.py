"""A store keeps only as many network ids as fit into a message to a consumer."""

from __future__ import annotations

from venus.broker.core import Core
from venus.broker.mirrors import network_membership
from venus.rpc import limits
from venus.wire import broker_pb2


def test_no_more_network_ids_are_kept_than_a_consumer_accepts(mirror: Core) -> None:
    """The set above sends them one at a time; with one id too many, no client could ever read here again."""
    first = network_membership.save_network_ids(mirror, ["home"])
    for look in range(3):
        said = ["home", *(f"{look}-{n}" for n in range(limits.NETWORKS_MAX - 1))]
        mirror.networks = network_membership.save_network_ids(mirror, said)

    found = network_membership.read_network_ids(mirror)
    assert found[:1] == first
    assert found == mirror.networks
    limits.check(broker_pb2.Opened(networks=found))
