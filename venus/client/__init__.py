"""VENUS as a library: the rows of a broker and their changes, for Python programs (docs/how-to/python.md).

    from venus.client import connect

    with connect("127.0.0.1:7400") as broker:
        for batch in broker.changes("shop.orders", where="region = 'EU'", start="snapshot", group="mailer"):
            send(batch.to_arrow())
            batch.acknowledge()

Errors are those of venus.errors.
"""

from venus.client.broker import AsyncBroker, AsyncChanges, Broker, connect, connect_async
from venus.client.changes import ChangeBatch, Changes
from venus.codec.subscription import ChangePosition

__all__ = [
    "AsyncBroker",
    "AsyncChanges",
    "Broker",
    "ChangeBatch",
    "ChangePosition",
    "Changes",
    "connect",
    "connect_async",
]
