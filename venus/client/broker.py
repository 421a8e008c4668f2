"""A connection to a broker for programs: changes, rows and status; in threads or in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from google.protobuf.json_format import MessageToDict

from venus.client.changes import PATIENCE_S, RETRY_S, ChangeBatch, Changes, Start, Subscription
from venus.codec.subscription import OPERATION, ChangePosition
from venus.errors import ConfigError, Unavailable
from venus.model import PORT_MAX, is_address
from venus.predicates.syntax import parse
from venus.rpc.address import CONSUMER, BrokerAddress, ClientCredentials, find_by_directory
from venus.rpc.admin import AdminClient

_POLL_S = 1.0
#: How long each batch of a table's rows may take to arrive.
_ROWS_S = 120.0
#: How long a broker may be away before the rows arrive; less than _ROWS_S, so that the error says why they do not
#: arrive.
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
    """Return a client of the broker at HOST:PORT, or at one of several, separated by commas. The first call connects.

    With `directory` (brokers of any set) instead of an address, those brokers name the set nearest to `site`. With
    `ca`, the authority's certificate as a file, TLS is on; `certificate` and `key`, or `token_file`, prove who this
    client is. `client` is the program's name in the broker's status. Raises ConfigError.
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
    """Client of one business at a broker. Thread-safe: each subscription has a stream of its own."""

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
        The iterator raises Unavailable once the broker has been away for `patience_s`; a wrong argument raises
        ConfigError.
        """
        return self._subscribe(self._build_subscription(table, where, columns, group), start, patience_s)

    def _build_subscription(self, table: str, where: str, columns: Seq[str], group: str) -> Subscription:
        """Return the description of a subscription. Raises ConfigError."""
        if isinstance(columns, str):
            raise ConfigError(f"columns is {columns!r}: it should be a list of names", hint=f"write [{columns!r}]")
        if where:
            parse(where)  # finds a mistake even while the broker is away
        return Subscription(self._business, table, where, tuple(columns), group, self._client)

    def _subscribe(
        self,
        wanted: Subscription,
        start: Start | ChangePosition,
        patience_s: float = PATIENCE_S,
        on_news: Callable[[], None] = lambda: None,
    ) -> Changes:
        """Subscribe; `on_news` is called, in a thread of the connection, when there may be something to fetch."""
        found = Changes(
            self._address,
            wanted,
            start,
            patience_s=patience_s,
            on_close=lambda one: self._open.pop(id(one), None),
            on_news=on_news,
        )
        self._open[id(found)] = found
        return found

    def snapshot(self, table: str, *, where: str = "", columns: Seq[str] = ()) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a table at one moment, as Arrow with their `_sequence`. Raises ValueMisfit, Unavailable."""
        with self.changes(table, where=where, columns=columns, patience_s=_AWAY_S) as changes:
            while True:
                batch = changes.poll(_ROWS_S)
                if (rows := _snapshot_rows(table, batch)) is not None:
                    yield rows
                if batch is not None and batch.position is not None:
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


def _snapshot_rows(table: str, batch: ChangeBatch | None) -> pa.RecordBatch | None:
    """Return the rows of one batch of a snapshot, None if it has none. Raises Unavailable if rows are missing."""
    if batch is None or "truncate" in batch.operations:
        raise Unavailable(f"the rows of {table} did not arrive completely", hint="read them again")
    return batch.to_arrow().drop_columns([OPERATION]) if len(batch) else None


class AsyncChanges:
    """A subscription for an event loop: `async for batch in changes`, until `close`.

    The subscription holds a thread of the loop's executor only while it connects or reads batches that have arrived,
    not while it waits. Only one task at a time may take batches. No cancellation, such as that of `asyncio.wait_for`,
    loses a batch.
    """

    def __init__(self, subscribe: Callable[[Callable[[], None]], Changes]) -> None:
        self._loop, self._news = asyncio.get_running_loop(), asyncio.Event()
        self._fetching: asyncio.Future[None] | None = None
        self._changes = subscribe(self._notify)

    def _notify(self) -> None:
        """Wake the task that waits in the event loop: there may be something to fetch."""
        with suppress(RuntimeError):  # the event loop is closed: nothing waits for the news
            self._loop.call_soon_threadsafe(self._news.set)

    @property
    def position(self) -> ChangePosition | None:
        """The position after the newest batch that was returned; None before the first."""
        return self._changes.position

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ChangeBatch:
        """Wait for the next batch. Raises VenusError."""
        while not self._changes.is_closed:
            self._news.clear()
            if (batch := self._changes.take_ready()) is not None:
                return batch
            await self._fetch()
            if not self._changes.is_ready:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), None if self._changes.is_connected else RETRY_S)
        raise StopAsyncIteration

    async def _fetch(self) -> None:
        """Fetch batches in a thread. If this call is cancelled, the next call continues its fetch."""
        fetching = self._fetching or asyncio.ensure_future(asyncio.to_thread(self._changes.fetch, 0.0))
        self._fetching = fetching
        try:
            await asyncio.shield(fetching)
        finally:
            if fetching.done():
                self._fetching = None

    async def close(self) -> None:
        """End the subscription."""
        await asyncio.to_thread(self._changes.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncBroker:
    """Client of a broker for an event loop; `async with connect_async(address) as broker`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def changes(
        self,
        table: str,
        *,
        where: str = "",
        columns: Seq[str] = (),
        start: Start | ChangePosition = "snapshot",
        group: str = "",
        patience_s: float = PATIENCE_S,
    ) -> AsyncChanges:
        """Subscribe, with the arguments of `Broker.changes`, in the loop that is running."""
        wanted = self._broker._build_subscription(table, where, columns, group)
        return AsyncChanges(lambda notify: self._broker._subscribe(wanted, start, patience_s, notify))

    async def snapshot(
        self, table: str, *, where: str = "", columns: Seq[str] = ()
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the rows of a table at one moment, as Arrow with their `_sequence`. Raises ValueMisfit, Unavailable."""
        async with self.changes(table, where=where, columns=columns, patience_s=_AWAY_S) as changes:
            while True:
                try:
                    batch = await asyncio.wait_for(anext(changes), _ROWS_S)
                except TimeoutError:
                    batch = None
                if (rows := _snapshot_rows(table, batch)) is not None:
                    yield rows
                if batch is not None and batch.position is not None:
                    return

    async def status(self) -> dict[str, Any]:
        """Return the broker's status."""
        return await asyncio.to_thread(self._broker.status)

    async def close(self) -> None:
        """End all subscriptions."""
        await asyncio.to_thread(self._broker.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def connect_async(
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
) -> AsyncBroker:
    """Return a client for an event loop, with the arguments of `connect`."""
    return AsyncBroker(
        connect(
            address,
            directory=directory,
            site=site,
            business=business,
            ca=ca,
            certificate=certificate,
            key=key,
            token_file=token_file,
            client=client,
        )
    )
