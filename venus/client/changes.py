"""One subscription by content as an iterator, which connects again by itself and continues at its position."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

import pyarrow as pa

from venus.codec.subscription import ChangePosition, ChangeSet, SubscriptionView, as_lines
from venus.errors import ConfigError, Diverged, Overloaded, VenusError
from venus.model import is_name
from venus.rpc.address import BrokerAddress
from venus.rpc.limits import GROUP_CHARS_MAX, REPORTED_NAME_CHARS_MAX
from venus.rpc.listener import ListenerClient
from venus.wire import broker_pb2

logger = logging.getLogger(__name__)

#: How a subscription begins: with all rows, or with changes from now on.
Start = Literal["snapshot", "now"]

_NUMBER = 1
_OFFSETS = {"snapshot": -1, "now": -2}
_WAIT_S = 1.0
#: How long to wait for a broker that is away, and between two attempts.
PATIENCE_S, RETRY_S = 300.0, 0.5
_BEGIN_AGAIN = "subscribe again without a position: all rows come, then their changes"


@dataclass(frozen=True, slots=True)
class Subscription:
    """Parameters of a subscription: its business, table and rows, and the name under which its position is kept."""

    business: str
    table: str
    where: str = ""
    columns: tuple[str, ...] = ()
    group: str = ""
    client: str = ""

    def __post_init__(self) -> None:
        """Check the names. Raises ConfigError."""
        names = [("table", self.table), *(("column", column) for column in self.columns), ("group", self.group or "-")]
        for what, name in names:
            chars_max = GROUP_CHARS_MAX if what == "group" else REPORTED_NAME_CHARS_MAX
            if not is_name(name, chars_max):
                raise ConfigError(
                    f"{name[:40]!r} cannot be the name of a {what}",
                    hint=f"a name has 1 to {chars_max} printable characters, and no space at either end",
                )


class ChangeBatch:
    """Changes in order. `position` is where to resume after them; None = more of the transaction or load follows."""

    def __init__(self, changes: Changes, found: ChangeSet) -> None:
        self._changes, self._found = changes, found

    def __len__(self) -> int:
        return len(self._found.operations)

    @property
    def table(self) -> str:
        """The table's name, with its namespace."""
        return self._found.table.qualified_name

    @property
    def position(self) -> ChangePosition | None:
        """Where to resume after this batch."""
        return self._found.position

    @property
    def operations(self) -> list[str]:
        """The operation of each change: insert, update, delete, or truncate, after which all earlier rows are gone."""
        return self._found.names

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows as dictionaries; a deletion has only its key. Decimals and times are text, unrounded."""
        return self._found.values(self._changes.wanted.columns)

    def to_arrow(self) -> pa.RecordBatch:
        """Return the changes as Arrow: the columns of the table, `_operation` and `_sequence`. Raises ValueMisfit."""
        return self._found.to_arrow(self._changes.wanted.columns)

    def lines(self) -> Iterator[str]:
        """Yield each change as a line of JSON."""
        return as_lines(self._found, self._changes.wanted.columns)

    def acknowledge(self) -> None:
        """Let the broker keep the position after this batch under the name of the group."""
        if self._found.position is not None:
            self._changes.acknowledge(self._found.position)


class Changes:
    """Iterator over the changes of a subscription; it ends with `close`.

    Only one thread at a time may take batches. `acknowledge` and `close` may be called from any thread. Batches that
    the program has not taken stay at the broker, except for about 8 MiB.
    """

    def __init__(
        self,
        address: BrokerAddress,
        wanted: Subscription,
        start: Start | ChangePosition = "snapshot",
        *,
        patience_s: float = PATIENCE_S,
        on_close: Callable[[Changes], object] = lambda _: None,
        on_news: Callable[[], None] = lambda: None,
    ) -> None:
        if not isinstance(start, ChangePosition) and start not in _OFFSETS:
            raise ConfigError(
                f"a subscription cannot start at {start!r}",
                hint='it starts at "snapshot", at "now", or at a position, like ChangePosition.parse("1234-5")',
            )
        self._address, self.wanted, self._start = address, wanted, start
        self._patience_s, self._on_close, self._on_news = patience_s, on_close, on_news
        self._client: ListenerClient | None = None
        self._view = SubscriptionView(_NUMBER)
        self._ready: deque[ChangeBatch] = deque()
        self._reading = threading.Lock()
        self._closing = threading.Event()
        self._had_rows = False
        self._acknowledged = 0
        self._waits_since, self._retry_at, self._complaint = 0.0, 0.0, ""
        #: The position after the newest batch that was returned; None before the first.
        self.position: ChangePosition | None = start if isinstance(start, ChangePosition) else None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ChangeBatch:
        """Wait for the next batch. Raises VenusError."""
        while (found := self.poll(_WAIT_S)) is None:
            if self.is_closed:
                raise StopIteration
        return found

    def poll(self, timeout_s: float) -> ChangeBatch | None:
        """Return the next batch, None if there is none within the time. Raises VenusError."""
        end = time.monotonic() + timeout_s
        while (batch := self.take_ready()) is None:
            left = end - time.monotonic()
            if left <= 0 or self.is_closed:
                return None
            self.fetch(left)
        return batch

    def take_ready(self) -> ChangeBatch | None:
        """Return a batch that has been fetched, None without one. Never waits."""
        if not self._ready or self.is_closed:
            return None
        batch = self._ready.popleft()
        self.position = batch.position or self.position
        return batch

    @property
    def is_closed(self) -> bool:
        """Whether the subscription has ended by `close`."""
        return self._closing.is_set()

    @property
    def is_ready(self) -> bool:
        """Whether a batch has been fetched."""
        return bool(self._ready)

    @property
    def is_connected(self) -> bool:
        """Whether there is a stream from a broker."""
        return self._client is not None

    def fetch(self, timeout_s: float) -> None:
        """Fetch the batches that have arrived, or arrive within the time; connect first. Raises VenusError.

        A broker that is away is tried again every `RETRY_S`, for `patience_s` at most.
        """
        with self._reading:
            if self._ready or self.is_closed:
                return
            pause_s = self._retry_at - time.monotonic()
            if self._client is None and pause_s > 0:
                self._closing.wait(min(pause_s, timeout_s))
            else:
                self._read(timeout_s)

    def _read(self, timeout_s: float) -> None:
        """Read the frames that arrive within the time, connecting first if necessary."""
        try:
            client = self._client or self._connect()
            for frame in client.take(timeout_s):
                self._complaint = ""
                self._ready.extend(ChangeBatch(self, found) for found in self._view.take(frame))
        except Diverged as error:
            self._disconnect()
            if self.is_closed:
                return
            if self._start != "snapshot":
                raise type(error)(str(error), hint=_BEGIN_AGAIN) from error
            self._view.position, self._had_rows = None, True
        except VenusError as error:
            self._disconnect()
            if self.is_closed:
                return
            if not error.retryable and not isinstance(error, Overloaded):
                raise
            self._wait_for_broker(error)

    def _connect(self) -> ListenerClient:
        """Connect to the broker, and subscribe from the present position on."""
        if self._start == "now" and self._view.position is None and self._view.partial_sequence:
            raise Diverged("the stream broke in the middle of the first transaction, which has no position yet")
        wanted = self.wanted
        client = ListenerClient(
            self._address, wanted.business, group=wanted.group, client=wanted.client, on_news=self._on_news
        )
        try:
            kept = client.open()
            if kept and self._view.position is None and self._start != "now" and not self._had_rows:
                self._view.position = ChangePosition(kept)
            position = self._view.position or (self._start if isinstance(self._start, ChangePosition) else None)
            request = broker_pb2.SubscriptionRequest(
                number=_NUMBER, table=wanted.table, predicate=wanted.where, columns=wanted.columns
            )
            if position is not None:
                request.offset, request.epoch = position.offset, position.epoch
            else:
                request.offset = _OFFSETS[str(self._start)]
                if self._had_rows:
                    self._announce_reload()
                self._had_rows = request.offset == _OFFSETS["snapshot"]
            client.begin([request])
            if self._acknowledged:  # the acknowledgement may have been lost with the previous stream
                client.acknowledge(self._acknowledged)
        except BaseException:
            client.close()
            raise
        self._client, self._waits_since = client, 0.0
        if self.is_closed:  # meanwhile, by another thread
            self._disconnect()
        return client

    def _announce_reload(self) -> None:
        """Add a batch that declares earlier rows void: all rows come again. If no table is known, add nothing."""
        if not self._view.versions:
            return
        message = broker_pb2.ChangesFrame(
            news=[broker_pb2.SubscriptionNews(number=_NUMBER, state=broker_pb2.RELOADS, table_id=self._view.table_id)]
        )
        self._ready.extend(ChangeBatch(self, found) for found in self._view.take(message))

    def _wait_for_broker(self, error: VenusError) -> None:
        """Wait before the next attempt. Raises the error if the broker has been away for too long."""
        if str(error) != self._complaint:
            self._complaint = str(error)
            logger.warning("%s (trying again for up to %g s)", error, self._patience_s)
        now = time.monotonic()
        self._waits_since = self._waits_since or now
        if now - self._waits_since > self._patience_s:
            raise error
        self._retry_at = now + RETRY_S

    def acknowledge(self, position: ChangePosition) -> None:
        """Store a position at the broker under the group's name; if the broker is away, as soon as it is back."""
        if self.wanted.group:
            self._acknowledged = max(self._acknowledged, position.offset)
            if (client := self._client) is not None:
                client.acknowledge(position.offset)

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def close(self) -> None:
        """End the subscription."""
        self._closing.set()
        self._disconnect()
        self._on_close(self)
        self._on_news()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
