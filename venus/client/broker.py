"""A connection to a broker for programs: changes, rows and status; in threads or in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from collections.abc import Sequence as Seq
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from google.protobuf.json_format import MessageToDict

from venus.client.changes import PATIENCE_S, ChangeBatch, Changes, Start, Subscription
from venus.codec.subscription import OPERATION, ChangePosition
from venus.errors import ConfigError, Unavailable
from venus.model import PORT_MAX, is_address
from venus.rpc.address import CONSUMER, BrokerAddress, ClientCredentials, find_by_directory
from venus.rpc.admin import AdminClient

_POLL_S = 1.0
#: How long the rows of a table may take to arrive, each batch.
_ROWS_S = 120.0
#: How long a broker may be away before the rows; less than _ROWS_S, so that the error says why they do not arrive.
_AWAY_S = 100.0


def connect(
    address: str = "",
    *,
    directory: str = "",
    site: str = "",
    business: str = "main",
    ca: str = "",
    certificate: str = "",
    key: str = "",
    token_file: str = "",
    client: str = "",
) -> Broker:
    """Return a broker at HOST:PORT, or one of several, separated by commas. Nothing is sent before the first call.

    With `directory` instead of an address, brokers of any set answer which set is the nearest to `site`.
    With `ca`, the authority's certificate as a file, TLS is on; `certificate` and `key`, or `token_file`, prove who
    this client is. `client` is its name in the broker's status. Raises ConfigError.
    """
    if address and directory:
        raise ConfigError("address and directory are both given", hint="an address needs no directory")
    for one in (address or directory).split(","):
        if not is_address(one):
            raise ConfigError(
                f"{one!r} should be HOST:PORT, with a port up to {PORT_MAX}", hint="several are separated by commas"
            )
    proof = ClientCredentials(ca=ca, certificate=certificate, key=key, token_file=token_file)
    if directory:
        return Broker(find_by_directory(directory.split(","), CONSUMER, business, site, proof), business, client)
    return Broker(BrokerAddress(address, proof), business, client)


class Broker:
    """A broker, and one business in it. Thread-safe: each subscription has a stream of its own."""

    def __init__(self, address: BrokerAddress, business: str = "main", client: str = "") -> None:
        self._address, self._business, self._client = address, business, client
        self._open: dict[int, Changes] = {}  # by identity, until they are closed

    def changes(
        self,
        table: str,
        *,
        where: str = "",
        columns: Seq[str] = (),
        start: Start | ChangePosition = "snapshot",
        group: str = "",
        patience_s: float = PATIENCE_S,
    ) -> Changes:
        """Subscribe to the rows of a table inside a predicate: an iterator of batches, which connects again by itself.

        `start`: "snapshot" = all rows as insertions, then their changes; "now"; or a position. With `group`, the broker
        keeps the acknowledged position and the queue from there on, and a subscription at "snapshot" continues there.
        It raises Unavailable once the broker was away for `patience_s`, and ConfigError for a wrong argument.
        """
        if isinstance(columns, str):
            raise ConfigError(f"columns is {columns!r}: it should be a list of names", hint=f"write [{columns!r}]")
        wanted = Subscription(self._business, table, where, tuple(columns), group, self._client)
        found = Changes(
            self._address, wanted, start, patience_s=patience_s, on_close=lambda one: self._open.pop(id(one), None)
        )
        self._open[id(found)] = found
        return found

    def snapshot(self, table: str, *, where: str = "", columns: Seq[str] = ()) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a table at one moment, as Arrow with their `_sequence`. Raises ValueMisfit, Unavailable."""
        with self.changes(table, where=where, columns=columns, patience_s=_AWAY_S) as changes:
            while True:
                batch = changes.poll(_ROWS_S)
                if batch is None or "truncate" in batch.operations:
                    raise Unavailable(f"the rows of {table} did not arrive completely", hint="read them again")
                if len(batch):
                    yield batch.to_arrow().drop_columns([OPERATION])
                if batch.position is not None:
                    return

    def status(self) -> dict[str, Any]:
        """Return the broker's status, as /status.json of its HTTP port has it."""
        with AdminClient(self._address) as admin:
            return MessageToDict(admin.status(self._business), preserving_proto_field_name=True)

    def close(self) -> None:
        """End all subscriptions."""
        for changes in list(self._open.values()):
            changes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncChanges:
    """The same subscription for an event loop: `async for batch in changes`."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ChangeBatch:
        """Wait for the next batch. Raises VenusError."""
        while (found := await asyncio.to_thread(self._changes.poll, _POLL_S)) is None:
            pass
        return found

    async def close(self) -> None:
        """End the subscription."""
        await asyncio.to_thread(self._changes.close)


class AsyncBroker:
    """A broker for an event loop; `async with connect_async(address) as broker`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def changes(self, table: str, **options: Any) -> AsyncChanges:
        """Subscribe, with the arguments of `Broker.changes`."""
        return AsyncChanges(self._broker.changes(table, **options))

    async def snapshot(self, table: str, **options: Any) -> AsyncIterator[pa.RecordBatch]:
        """Yield the rows of a table, with the arguments of `Broker.snapshot`."""
        rows = self._broker.snapshot(table, **options)
        while (batch := await asyncio.to_thread(next, rows, None)) is not None:
            yield batch

    async def status(self) -> dict[str, Any]:
        """Return the broker's status."""
        return await asyncio.to_thread(self._broker.status)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._broker.close)


def connect_async(address: str = "", **options: Any) -> AsyncBroker:
    """Return a broker for an event loop, with the arguments of `connect`."""
    return AsyncBroker(connect(address, **options))
