"""The under adapter's end of the stream from the broker (VENUS 3.3): increments, or full data and then increments.

One thread reads ahead within the credit. Credit is returned as the caller takes increments, so a slow caller holds at
most `credit_bytes`, here and at the broker.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq

from venus.codec.batch import digest
from venus.codec.stored_rows import Chunk, RowTotals, decode_chunk
from venus.errors import DigestMismatch, ProtocolError, Unavailable, VenusError
from venus.model import FULL
from venus.network.row_filters import RowsIdentity
from venus.rpc import limits, reports
from venus.rpc.channel import KEEPALIVE_S
from venus.rpc.compression import BodyDecompressor, check_frame, cost
from venus.rpc.conditions import AdapterCondition
from venus.rpc.duplex import BrokerChannel, Duplex
from venus.rpc.reports import encode
from venus.rpc.sealed import SUBSCRIBE, subscribe
from venus.wire import broker_pb2

ANSWER_TIMEOUT_S = 60.0
STARVED_S = 0.02
#: Credit is returned at least this often, however little it is: so the broker detects consumers that take nothing.
CREDIT_EVERY_S = 1.0

#: Minimum interval of acknowledgements, as the broker logs them: each one costs both ends as much as an increment.
ACKNOWLEDGE_EVERY_S = 0.2

_WITH_BODY = (broker_pb2.COMMITTED, broker_pb2.AHEAD)
_IN_THE_QUEUE = (broker_pb2.COMMITTED, broker_pb2.DECIDED)

Arrival = broker_pb2.Increment | broker_pb2.SnapshotChunk | int  # int: progress


class Subscriber(Duplex[broker_pb2.ConsumerFrame, broker_pb2.DeliveryFrame]):
    """Stream of one consumer group."""

    method, open_call = SUBSCRIBE, staticmethod(subscribe)
    thread_name = "venus-subscriber"

    def __init__(
        self,
        address: str,
        business: str,
        group: str,
        *,
        credit_bytes: int,
        transient: bool = False,
        ahead: bool = False,
        only: Seq[str] = (),
        set_id: str = "",
        where: Seq[broker_pb2.RowFilter] = (),
        keepalive_s: float = KEEPALIVE_S,
    ) -> None:
        super().__init__(address, business, keepalive_s)
        self._open = broker_pb2.Open(
            business=business,
            group=group,
            credit_bytes=credit_bytes,
            transient=transient,
            ahead=ahead,
            only=only,
            set_id=set_id,
            where=where,
        )
        self._credit_bytes = credit_bytes
        self._decompressor = BodyDecompressor()
        self._arrived: deque[Arrival] = deque()
        self._opened: broker_pb2.Opened | None = None
        self._position = 0
        self._splits_left = 0
        self._taken_bytes = 0  # credit to give back
        self._credited_at = time.monotonic()
        self._starved = False
        self._acknowledge = self._kept = 0
        self._acknowledged_at = float("-inf")
        self._has_deadline = False  # the writer wakes at a deadline to acknowledge
        self._unaccounted: int | None = None
        self._report: broker_pb2.AdapterReport | None = None
        #: Messages whose bytes did not hash to their digest.
        self.digest_mismatches = 0

    # -- calls ---------------------------------------------------------------------------------------------------

    def open(
        self,
        offset: int,
        epoch: int,
        table_ids: Seq[int] = (),
        *,
        kept: int | None = None,
        rows: RowsIdentity | None = None,
        rows_at: int | None = None,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> broker_pb2.Opened:
        """Start at `offset`; raise OffsetTrimmed or OffsetDiverged if the broker cannot continue from there.

        The broker keeps the queue from `kept` on; None means from where it already keeps it for this group. `rows`:
        the identity of the caller's rows, as of the offset `rows_at` (None means `offset`). Raises OtherRows if the
        broker's set has other rows.
        """
        self._open.offset, self._open.epoch = offset, epoch
        if kept is not None:
            self._open.kept = kept
        if rows is not None:
            self._open.rows.CopyFrom(reports.to_wire(rows))
            if rows_at is not None:
                self._open.rows_at = rows_at
        self._open.table_ids.extend(table_ids)
        return self._connection.call(self._business, lambda channel: self._start(channel, timeout_s))

    def _start(self, channel: BrokerChannel, timeout_s: float) -> broker_pb2.Opened:
        """Open a stream at the broker and wait for its answer."""
        self._open_stream(channel)
        offset = self._open.offset
        with self._lock:
            if not self._wait(lambda: self._opened is not None, timeout_s):
                raise Unavailable(f"the broker did not answer within {timeout_s:g} s")
            assert self._opened is not None
            self._splits_left = len(self._opened.snapshot.splits) if offset == FULL else 0
            self._position = self._opened.snapshot.offset if offset == FULL else offset
            return self._opened

    def chunks(self, timeout_s: float = ANSWER_TIMEOUT_S) -> Iterator[Chunk]:
        """Yield the full data of a subscription at offset -1; afterwards `increments` continues from its cut."""
        totals = RowTotals()
        while self._splits_left:
            with self._lock:
                self._starved = True
                if not self._wait(lambda: bool(self._arrived), timeout_s):
                    raise Unavailable(f"no chunk of the full data for {timeout_s:g} s")
                self._starved = False
                chunk = self._arrived.popleft()
                if not isinstance(chunk, broker_pb2.SnapshotChunk):
                    raise ProtocolError("an increment came before the end of the full data")
                self._return_credit(cost(chunk))
            found = decode_chunk(chunk.body)
            totals.add(found.rows)
            if found.end:
                if found.totals != totals:
                    raise ProtocolError(f"a split of the full data arrived with {totals.rows} rows, or others")
                totals = RowTotals()
            self._splits_left -= found.end
            yield found

    def increments(self, timeout_s: float) -> list[broker_pb2.Increment]:
        """Return the increments that have arrived, in offset order; [] if none came within the timeout.

        With `ahead`, increments may not be committed yet: the caller checks the `state` of each one.
        """
        assert not self._splits_left, "take the chunks first"
        with self._lock:
            first_s = min(timeout_s, STARVED_S) if self._owes_credit else timeout_s
            if not self._wait(lambda: bool(self._arrived), first_s) and timeout_s > first_s:
                self._starved = True  # give back all credit: the next increment may be larger than what is left
                if self._owes_credit:
                    self._wake()
                self._wait(lambda: bool(self._arrived), timeout_s - first_s)
                self._starved = False
            taken: list[broker_pb2.Increment] = []
            for arrival in self._arrived:
                if isinstance(arrival, int):
                    self._position = max(self._position, arrival)
                elif isinstance(arrival, broker_pb2.Increment):
                    taken.append(arrival)
                    if arrival.state in _IN_THE_QUEUE:
                        self._position = arrival.base_offset + arrival.count
            self._arrived.clear()
            self._return_credit(sum(map(cost, taken)))
            return taken

    @property
    def position(self) -> int:
        """Every increment below this offset was returned or is not for this subscriber."""
        with self._lock:
            return self._position

    def acknowledge(self, offset: int, *, kept: int | None = None, unaccounted: int | None = None) -> None:
        """Queue an acknowledgement: every offset below this one is applied, `unaccounted` changes are unaccounted for.

        Nothing below `kept` will be requested again; None means nothing below `offset`.
        """
        with self._lock:
            self._check()
            kept = offset if kept is None else min(kept, offset)
            if self._opened is not None and not self._opened.HasField("kept"):
                offset = kept  # an older broker keeps one position, and would trim what is still needed
            if unaccounted is not None:
                self._unaccounted = unaccounted
            self._acknowledge, self._kept = max(self._acknowledge, offset), max(self._kept, kept)
            if unaccounted is not None or not self._has_deadline:
                self._wake()

    def report(self, condition: AdapterCondition) -> None:
        """Queue a report of the tables' condition."""
        with self._lock:
            self._check()
            self._report = encode(condition)
            self._wake()

    # -- both threads --------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Raise the error that ended the stream, once all that arrived is taken; raise Unavailable after `close`."""
        if self._error is not None and not self._arrived:
            raise self._error
        if self._closing:
            raise Unavailable("this subscriber is closed")

    def _wait(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until a condition holds; return False after the timeout."""
        end = time.monotonic() + timeout_s
        while not done():  # what has arrived counts, even if the stream has failed after it
            self._check()
            left = end - time.monotonic()
            if left <= 0:
                return False
            self._news.wait(left)
        if self._closing:
            self._check()
        return True

    def _return_credit(self, nbytes: int) -> None:
        """Count taken bytes, and return their credit if it is due."""
        self._taken_bytes += nbytes
        if self._credit_due():
            self._wake()

    @property
    def _owes_credit(self) -> bool:
        """Whether there is credit to return that will not travel with the next acknowledgement."""
        return bool(self._taken_bytes) and not self._has_deadline

    def _credit_due(self) -> bool:
        """Return whether credit must be returned now."""
        if not self._taken_bytes:
            return False
        late = time.monotonic() - self._credited_at > CREDIT_EVERY_S
        return self._starved or late or 4 * self._taken_bytes >= self._credit_bytes

    def _first_frame(self) -> broker_pb2.ConsumerFrame:
        return broker_pb2.ConsumerFrame(open=self._open)

    def _take_frame(self) -> tuple[broker_pb2.ConsumerFrame | None, float | None]:
        self._has_deadline = False
        has_news = self._unaccounted is not None or self._report is not None
        early_s = self._acknowledged_at + ACKNOWLEDGE_EVERY_S - time.monotonic()
        if not ((self._acknowledge and (early_s <= 0 or self._closing)) or has_news or self._credit_due()):
            self._has_deadline = bool(self._acknowledge)
            return None, early_s if self._acknowledge else None
        frame = broker_pb2.ConsumerFrame(
            acknowledge=self._acknowledge,
            credit_bytes=self._taken_bytes,
            unaccounted_rows=self._unaccounted,
            kept=self._kept if self._acknowledge else None,
            report=self._report,
        )
        if self._acknowledge:
            self._acknowledged_at = time.monotonic()
        self._acknowledge = self._taken_bytes = 0
        self._credited_at = time.monotonic()
        self._unaccounted = self._report = None
        return frame, None

    def on_end(self, error: VenusError) -> None:
        self.digest_mismatches += isinstance(error, DigestMismatch)
        super().on_end(error)

    def on_frame(self, frame: broker_pb2.DeliveryFrame) -> None:
        limits.check(frame, "from the broker: ")
        check_frame(frame.increments)
        arrived: list[Arrival] = list(frame.increments)
        if frame.HasField("chunk"):
            arrived.append(frame.chunk)
        for message in arrived:
            assert not isinstance(message, int)
            if isinstance(message, broker_pb2.Increment):
                if message.state not in _WITH_BODY:
                    continue
                if message.HasField("squeezed"):
                    message.body = self._decompressor.body(message)
                    message.ClearField("squeezed")
            if digest(message.body) != message.digest:
                raise DigestMismatch("a message from the broker arrived damaged; nothing of it was used")
        if frame.progress:
            arrived.append(frame.progress)
        with self._lock:
            if frame.HasField("opened"):
                self._opened = frame.opened
            if arrived and isinstance(arrived[0], int) and self._arrived and isinstance(self._arrived[-1], int):
                self._arrived.pop()  # progress costs no credit: of two consecutive values the newer one suffices
            self._arrived.extend(arrived)
            self._news.notify_all()
