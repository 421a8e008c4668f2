"""Whether a broker belongs to the home of a business, according to its status. Pure."""

from __future__ import annotations

from venus.wire import broker_pb2


def is_home(network: broker_pb2.NetworkStatus, entry: broker_pb2.BusinessStatus | None) -> bool:
    """Return whether producers may ship for a business there: by configuration, or since its promotion.

    `entry` None: the broker has no data of the business yet.
    """
    if entry is not None and (entry.replaced or entry.HasField("mirror")):
        return False
    was_promoted = entry is not None and bool(entry.home.home_term) and entry.home.set == network.set
    return was_promoted or not network.upstream
