"""State of a listener's stream: subscriptions that begin or are live, and live changes that wait for the client."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from venus.broker.listening.listening import JudgedBatch, Listener, WantedSubscription
from venus.broker.service.subscription_reader import ROWS
from venus.codec.changed_rows import cost
from venus.errors import Refused, Unavailable, VenusError
from venus.model import TableSchema
from venus.text.formatting import suggest_nearest
from venus.wire import broker_pb2

#: Live changes that wait for a client.
LIVE_BYTES_MAX = 4 << 20


@dataclass(slots=True)
class LiveSubscription:
    """A subscription that is matched live, from the offset `start` on; `judged_as` is its number in `Listening`."""

    wanted: WantedSubscription
    table_id: int
    judged_as: int
    start: int


@dataclass(slots=True)
class LiveBatch:
    """A matched batch that waits for the client: its changes for this stream, and their size."""

    judged: JudgedBatch
    changes: Sequence[broker_pb2.ChangedRows]
    nbytes: int
    has_news: bool


@dataclass(frozen=True, slots=True)
class PendingSubscription:
    """A subscription that is to begin at an offset, with all rows, or now; a restarted one has `table_id`."""

    wanted: WantedSubscription
    offset: int
    epoch: int = 0
    table: str = ""
    columns: tuple[str, ...] = ()
    table_id: int = 0
    is_reload: bool = False

    @property
    def together(self) -> tuple[object, ...]:
        """A key that is equal for subscriptions that can read the queue together."""
        rows_of = self.wanted.number if self.offset == ROWS else 0
        return self.table.lower(), self.table_id, self.offset, self.epoch, rows_of


class PendingSubscriptions:
    """Subscriptions that wait to begin, in order, and the numbers of those that begin now and are not live yet."""

    def __init__(self) -> None:
        self._waiting: dict[int, PendingSubscription] = {}
        self.starting: set[int] = set()

    def __len__(self) -> int:
        return len(self._waiting) + len(self.starting)

    def __contains__(self, number: int) -> bool:
        return number in self._waiting or number in self.starting

    def add(self, one: PendingSubscription) -> None:
        """Queue a subscription that is to begin."""
        self._waiting[one.wanted.number] = one

    def end(self, number: int) -> None:
        """Remove a subscription that its client ended, or that ended with an error."""
        self._waiting.pop(number, None)
        self.starting.discard(number)

    def take_together(self) -> list[PendingSubscription]:
        """Return the next subscriptions that can read the queue together, and count them as begun."""
        found: list[PendingSubscription] = []
        for one in self._waiting.values():
            if found and one.together != found[0].together:
                break
            found.append(one)
        self.starting = {one.wanted.number for one in found}
        for number in self.starting:
            del self._waiting[number]
        return found


class ClientLost(Unavailable):
    """The client has left, or no longer reads."""


class ClientSilent(ClientLost):
    """The client has read nothing for too long."""


class WaitingChanges:
    """Judged batches that wait for the client, up to `LIVE_BYTES_MAX`; beyond that, one gap replaces them."""

    def __init__(self) -> None:
        self._batches: deque[LiveBatch] = deque()
        self._nbytes = 0

    def __bool__(self) -> bool:
        return bool(self._batches)

    @property
    def first(self) -> LiveBatch:
        """The oldest batch."""
        return self._batches[0]

    def add(self, judged: JudgedBatch, changes: Sequence[broker_pb2.ChangedRows]) -> None:
        """Add the result of matching a batch."""
        nbytes = sum(cost(one) for one in changes)
        self._batches.append(LiveBatch(judged, changes, nbytes, bool(judged.is_gap or judged.ended or judged.reloads)))
        self._nbytes += nbytes
        if self._nbytes > LIVE_BYTES_MAX:
            self._replace_by_gap()

    def drop_first(self) -> None:
        """Remove the oldest batch."""
        self._nbytes -= self._batches.popleft().nbytes

    def _replace_by_gap(self) -> None:
        """Replace the waiting batches by one gap: the slow client gets their changes from the queue later."""
        last = self._batches[-1].judged
        gap = JudgedBatch(last.business, 0, last.next_offset, last.epoch, is_gap=True)
        for batch in self._batches:  # reading the queue again would not show these news
            gap.ended += batch.judged.ended
            gap.reloads += batch.judged.reloads
            gap.schemas += batch.judged.schemas
        self._batches = deque([LiveBatch(gap, (), 0, has_news=True)])
        self._nbytes = 0


def end_news(number: int, error: VenusError) -> broker_pb2.SubscriptionNews:
    """Return the news that a subscription has ended with this error."""
    kind = next(one.__name__ for one in type(error).__mro__ if one.__module__ == VenusError.__module__)
    return broker_pb2.SubscriptionNews(
        number=number, state=broker_pb2.ENDED, kind=kind, error=str(error), hint=error.hint
    )


def own_news(judged: JudgedBatch, listener: Listener) -> JudgedBatch:
    """Return the result of matching a batch for one listener, without the changes and the news of others."""
    return replace(
        judged,
        changes={},
        ended=[one for one in judged.ended if one[0] is listener],
        reloads=[one for one in judged.reloads if one[0] is listener],
    )


def choose_columns(
    some: Iterable[PendingSubscription], table: TableSchema, unfit: dict[int, VenusError]
) -> list[WantedSubscription]:
    """Return subscriptions with the numbers of their columns; add those whose columns the table lacks to `unfit`."""
    found: list[WantedSubscription] = []
    for one in some:
        try:
            if one.wanted.number not in unfit:
                found.append(_with_columns(one, table))
        except Refused as error:
            unfit[one.wanted.number] = error
    return found


def _with_columns(one: PendingSubscription, table: TableSchema) -> WantedSubscription:
    """Return the subscription with the numbers of its columns. Raises Refused for a column that the table lacks."""
    if not one.columns:
        return one.wanted
    numbers = {column.name: column.number for column in table.columns}
    missing = next((name for name in one.columns if name not in numbers), None)
    if missing is not None:
        raise Refused(
            f"{table.qualified_name} has no column {missing}{suggest_nearest(missing, numbers)}",
            hint=f"it has: {', '.join(numbers)}",
        )
    return replace(one.wanted, columns=frozenset(numbers[name] for name in one.columns))
