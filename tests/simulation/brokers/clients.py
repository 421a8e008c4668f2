"""The broker's side of client streams: it calls the product's ingest and delivery as the service does."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import xxhash

from tests.simulation.brokers.disk import BUSINESS
from tests.simulation.brokers.streams import Stream
from venus.broker.replicas.replicated_logs import write_refusal
from venus.codec.stored_rows import decode_chunk
from venus.errors import DigestMismatch, Unavailable, VenusError
from venus.model import FULL
from venus.wire import broker_pb2

if TYPE_CHECKING:
    from tests.simulation.brokers.host import BrokerHost

#: Simulated time that a thread sleeps while it waits for a lock.
WAITS_S = 0.01


class Clients:
    """The client streams of one broker process."""

    def __init__(self, host: BrokerHost) -> None:
        self._host = host
        self.producers: dict[Stream, int] = {}  # stream -> producer epoch
        self.consumers: dict[Stream, SnapshotRead] = {}
        self._making = False  # whether a snapshot is being made; only one is made at a time

    def end(self, error: VenusError) -> None:
        """End every stream, because this broker no longer leads or its copy is about to be removed."""
        for stream in [*self.producers, *self.consumers]:
            stream.end(error)

    def _let_in(self) -> None:
        """Refuse writes unless this broker leads, as the gate of the service does."""
        standing = self._host.shared.standing(BUSINESS)
        if not standing.leads:
            raise write_refusal(BUSINESS, standing)

    def _make_reply_callback(self, stream: Stream, tell: Callable[[Any], None]) -> Callable[[Future[Any]], None]:
        """Return a callback for the core's result: it replies in the loop, or ends the stream with the error."""
        term = self._host.acknowledges_in

        def on_settled(done: Future[Any]) -> None:
            error = done.exception()
            if error is None:
                self._host.world.judge.on_answer(self._host, term)
                self._host.soon(0.0002, tell, done.result())
            elif isinstance(error, VenusError):
                self._host.soon(0.0002, stream.end, error)
            else:
                raise error

        return on_settled

    # -- producers -------------------------------------------------------------------------------------------------

    def init(self, stream: Stream, epoch: int, last_batch: int) -> None:
        """Begin a producer's stream."""
        producers = self._host.core.producers
        try:
            self._let_in()
            found = producers.init(BUSINESS, "adapter", epoch, last_batch)
        except VenusError as error:
            stream.end(error)
            return
        stream.on_end = lambda: self._producer_left(stream)
        if not stream.open:  # the stream broke while this process was paused
            stream._leave()
            return

        def tell(ack: broker_pb2.InitAck) -> None:
            self.producers[stream] = ack.epoch
            stream.down("ack", ack)

        found.add_done_callback(self._make_reply_callback(stream, tell))

    def _producer_left(self, stream: Stream) -> None:
        self.producers.pop(stream, None)
        try:
            self._host.core.producers.leave(BUSINESS)
        except Unavailable:
            return  # a copy is being installed

    def halves(self, stream: Stream, epoch: int, halves: list[broker_pb2.Half]) -> None:
        """Accept half messages whose digests are right."""
        if any(xxhash.xxh3_64_intdigest(half.body) != half.digest for half in halves):
            self._host.loop.counts["a damaged half message was refused"] += 1
            stream.end(DigestMismatch("a half message is damaged"))
            return
        self._ask(stream, lambda core: core.producers.take_halves(BUSINESS, epoch, halves), "halves")

    def decide(self, stream: Stream, epoch: int, batch_no: int, digest: int, verdict: int) -> None:
        """Execute a decision."""
        self._ask(stream, lambda core: core.producers.decide(BUSINESS, epoch, batch_no, digest, verdict), "decided")

    def _ask(self, stream: Stream, ask: Callable[[Any], Future[Any]], word: str) -> None:
        """Submit a request to the core; its answer goes to the client as a message `word`."""
        try:
            found = ask(self._host.core)
        except VenusError as error:
            stream.end(error)
            return
        found.add_done_callback(self._make_reply_callback(stream, lambda result: stream.down(word, result)))

    def tick(self) -> None:
        """Send due reviews of undecided half messages to producers, and deliver increments to consumers."""
        try:
            due = self._host.core.producers.due_reviews()
        except VenusError:
            return
        for business, epoch, refs in due:
            for stream, known in list(self.producers.items()):
                if known == epoch and stream.open:
                    self._host.loop.counts["review"] += 1
                    stream.down("review", refs)
                    self._host.core.producers.count_delivered_reviews(business, [ref.batch_no for ref in refs])
        self.deliver()

    # -- consumers -------------------------------------------------------------------------------------------------

    def open(
        self,
        stream: Stream,
        group: str,
        offset: int,
        epoch: int,
        transient: bool,
        wanted: broker_pb2.Open | None = None,
    ) -> None:
        """Begin a consumer's stream, with the full data if it requests that."""
        if offset == FULL and self._making:  # the thread would wait for the other snapshot
            if stream.open:
                self._host.soon(WAITS_S, self.open, stream, group, offset, epoch, transient, wanted)
            return
        core, snapshot, rows = self._host.core, None, None
        try:
            if not transient:
                self._let_in()
            if offset == FULL:
                snapshot, rows = self._full_data(group)
                offset, epoch = snapshot.offset, snapshot.epoch
                if wanted is not None and snapshot.HasField("rows"):
                    wanted.rows.CopyFrom(snapshot.rows)
            opened = core.subscriptions.check_position(BUSINESS, offset, epoch, wanted)
            token = core.subscriptions.attach(BUSINESS, group, offset, transient=transient)
        except (VenusError, TimeoutError) as error:
            stream.end(error if isinstance(error, VenusError) else Unavailable("it takes too long"))
            return
        stream.on_end = lambda: self._consumer_left(stream)
        self.consumers[stream] = SnapshotRead(group, token, offset)
        if not stream.open:
            stream._leave()
            return
        self._answer(stream, opened, snapshot, rows)
        self.deliver()

    def _answer(self, stream: Stream, *what: Any) -> None:
        """Confirm a consumer's stream."""
        stream.down("opened", *what)

    def _full_data(self, group: str) -> tuple[broker_pb2.Snapshot, dict[bytes, bytes]]:
        """Make a snapshot and read it; return both."""
        full_data = self._host.core.full_data
        self._making = True
        try:
            snapshot = full_data.open(broker_pb2.OpenSnapshotRequest(business=BUSINESS, splits=1, holder=group))
        finally:
            self._making = False
        rows: dict[bytes, bytes] = {}
        for split in snapshot.splits:
            request = broker_pb2.ReadSplitRequest(snapshot_id=snapshot.snapshot_id, split=split)
            for sealed in full_data.read_split(request):
                found = decode_chunk(sealed.body).rows
                ids, packed = found.record_ids, found.rows
                rows.update(zip(ids.split(), packed.split(), strict=True))
        full_data.close(snapshot.snapshot_id)
        return snapshot, rows

    def _consumer_left(self, stream: Stream) -> None:
        reading = self.consumers.pop(stream, None)
        if reading is not None:
            try:
                self._host.core.subscriptions.detach(BUSINESS, reading.group, reading.token)
            except Unavailable:
                return

    def acknowledge(self, stream: Stream, offset: int) -> None:
        """Record the offset that a consumer acknowledges."""
        reading = self.consumers.get(stream)
        if reading is None:
            return
        reading.unheard = 0
        self._host.core.subscriptions.acknowledge(BUSINESS, reading.group, reading.token, offset)
        self.deliver()

    def deliver(self) -> None:
        """Send committed increments to all consumers that lack them."""
        for stream, reading in list(self.consumers.items()):
            if not stream.open or reading.unheard > 2:
                continue
            try:
                found = self._host.core.subscriptions.read(BUSINESS, reading.offset, 300)
            except VenusError as error:
                stream.end(error)
                continue
            if found.increments:
                reading.offset = found.next_offset
                reading.unheard += 1
                stream.down("increments", found.increments)


class SnapshotRead:
    """Position of a consumer's stream; `unheard` counts frames that the client has not acknowledged."""

    def __init__(self, group: str, token: int, offset: int) -> None:
        self.group, self.token, self.offset = group, token, offset
        self.unheard = 0
