"""The broker set's side of client streams (all tables or some) and of single requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.simulation.brokers.clients import Clients, SnapshotRead
from tests.simulation.brokers.disk import BUSINESS
from tests.simulation.brokers.streams import Stream
from venus.broker.queue.reduced_batches import TableChoice
from venus.codec.stored_rows import SealedChunk
from venus.errors import Unavailable, VenusError
from venus.network.row_filters import RowFilter
from venus.wire import broker_pb2

FRAME_BYTES = 300


class TierReading(SnapshotRead):
    """Position of a consumer's stream, and the tables that it requests."""

    def __init__(
        self, group: str, token: int, offset: int, only: tuple[str, ...], where: tuple[RowFilter, ...]
    ) -> None:
        super().__init__(group, token, offset)
        self.only = TableChoice(only, where) if only or where else None


class TierClients(Clients):
    """The streams and requests of one process, which always leads because its set has one broker."""

    def _let_in(self) -> None:
        """Admit every client."""

    def subscribe(
        self,
        stream: Stream,
        group: str,
        offset: int,
        epoch: int,
        only: tuple[str, ...],
        where: tuple[RowFilter, ...] = (),
        wanted: broker_pb2.Open | None = None,
    ) -> None:
        """Begin a stream at an offset."""
        core = self._host.core
        try:
            opened = core.subscriptions.check_position(BUSINESS, offset, epoch, wanted)
            token = core.subscriptions.attach(BUSINESS, group, offset)
        except VenusError as error:
            stream.end(error)
            return
        stream.on_end = lambda: self._consumer_left(stream)
        self.consumers[stream] = TierReading(group, token, offset, only, where)
        if not stream.open:
            stream._leave()
            return
        self._answer(stream, opened)
        self.deliver()

    def _answer(self, stream: Stream, *what: Any) -> None:
        """Answer a client, and add the rows that this set should have, for the judge."""
        host: Any = self._host
        stream.down("opened", *what, host.world.judge.rows.admitted_at(host))

    def deliver(self) -> None:
        """Send committed increments to all consumers that lack them."""
        for stream, reading in list(self.consumers.items()):
            if not stream.open or reading.unheard > 2:
                continue
            only = reading.only if isinstance(reading, TierReading) else None
            try:
                found = self._host.core.subscriptions.read(BUSINESS, reading.offset, FRAME_BYTES, (), only)
            except VenusError as error:
                stream.end(error)
                continue
            if found.next_offset > reading.offset:
                reading.offset = found.next_offset
                reading.unheard += bool(found.increments)
                stream.down("increments", found.increments, found.next_offset)

    def open_snapshot(self, request: broker_pb2.OpenSnapshotRequest) -> broker_pb2.Snapshot:
        """Make a snapshot, for which other callers wait. Raises the product's errors."""
        if self._making:
            raise Unavailable("another snapshot is being made")
        self._making = True
        try:
            return self._host.core.full_data.open(request)
        except TimeoutError as error:
            raise Unavailable("it takes too long") from error
        finally:
            self._making = False

    def read_split(self, request: broker_pb2.ReadSplitRequest) -> Iterator[SealedChunk]:
        """Read a split of a snapshot."""
        return self._host.core.full_data.read_split(request)


def request(
    client: Any, upper: Any, ask: Callable[[Any], Any], answered: Callable[[Any, VenusError | None], None]
) -> None:
    """Call another set; `answered` gets the answer or the error once, in the client's process."""
    loop, network, life = client.loop, client.world.network, client.life
    done = False

    def finish(answer: Any, error: VenusError | None) -> None:
        nonlocal done
        if not done:
            done = True
            client.run(life, answered, (answer, error))

    def on_arrival() -> None:
        if not upper.up:
            return
        upper.run(upper.life, at_upper, ())

    def at_upper() -> None:
        answer, error = None, None
        try:
            answer = ask(upper)
        except VenusError as raised:
            error = raised
        if network.passes(upper.name, client.name):
            loop.after(network.delay(), finish, answer, error)

    if network.passes(client.name, upper.name):
        loop.after(network.delay(), on_arrival)
    loop.after(4.0 + loop.random.random(), finish, None, Unavailable("no answer"))
    if not upper.up:
        loop.after(0.1 * loop.random.random(), finish, None, Unavailable("the connection is refused"))
