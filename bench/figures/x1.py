"""X1: 10,000 subscriptions to rows of one table, half equality, half ranges, at a broker, on real streams.

Each stream carries 500 subscriptions of a client. Changes are committed batch by batch, folded into the full data,
matched with the row as it was, and sent; a stream has a batch when its client has read the changes. Clients count the
changes that they get; the sum must equal that of a comparison of every change with every subscription.

The limit of the machine is printed beside the p99: equally large and frequent frames from a bare gRPC server to bare
clients, without commits, folding and matching.
"""

from __future__ import annotations

import multiprocessing
import random
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import numpy as np

from bench import bare
from bench.fan_out import Messages, ProcessUsage, one_broker
from bench.figures.figure import Figure, FigureResult, at_least, at_most, percentile
from bench.venus_transmission import BUSINESS
from venus.codec import schema as schemas_codec
from venus.codec.batch import digest
from venus.codec.columns import from_columns
from venus.codec.packed import PackedBytes
from venus.codec.row_bytes import Layout
from venus.model import Column, Kind, LogicalType, TableSchema
from venus.rpc.listener import ListenerClient
from venus.wire import broker_pb2, change_pb2

SUBSCRIPTIONS, STREAMS = 10_000, 20
ROWS, BATCH, STEADY_BATCH = 50_000, 250, 50
#: Batches that are committed at once.
PART = 100
AMOUNTS, WIDTH = 1_000_000, 200
GOAL_RATE, STEADY_RATE, GOAL_P99_MS = 20_000, 5_000, 50.0
PAPER = "Electric: 4,000 to 6,000 changes/s, 6 ms"
NOW, PATIENCE_S = -2, 300.0
ORDERS = TableSchema(
    table_id=1,
    version=1,
    namespace="shop",
    name="orders",
    key=("id",),
    columns=(
        Column(name="id", number=1, type=LogicalType(kind=Kind.INT, length=8), nullable=False),
        Column(name="tenant", number=2, type=LogicalType(kind=Kind.TEXT)),
        Column(name="amount", number=3, type=LogicalType(kind=Kind.INT, length=8)),
        Column(name="note", number=4, type=LogicalType(kind=Kind.TEXT)),
    ),
)
LAYOUT = Layout.of(ORDERS)
spawn = multiprocessing.get_context("spawn")


class Orders:
    """Generator of changes to the measured table; counts the messages that subscribers must get for them."""

    def __init__(self, lows: Sequence[int]) -> None:
        self._chance = random.Random(4)
        self._rows: dict[int, tuple[int, int]] = {}
        self._lows = np.sort(np.array(lows))
        #: Changes that subscribers must get; those of the first fill are not counted.
        self.expected = 0

    def make(self, batch_no: int, first_sequence: int, rows: int) -> broker_pb2.Half:
        """Return the next half message: inserts until all rows exist, then updates, of which 5 % change the tenant."""
        if len(self._rows) < ROWS:
            ids = list(range(len(self._rows), len(self._rows) + rows))
            new = [(self._chance.randrange(SUBSCRIPTIONS), self._chance.randrange(AMOUNTS)) for _ in ids]
        else:
            ids = self._chance.sample(range(ROWS), rows)
            new = [self._next_values(*self._rows[n]) for n in ids]
            self.expected += sum(self._count_messages(self._rows[n], row) for n, row in zip(ids, new, strict=True))
        self._rows.update(zip(ids, new, strict=True))
        texts = [
            [str(n) for n in ids],
            [f"tenant-{tenant}" for tenant, _ in new],
            [str(amount) for _, amount in new],
            ["x" * 70] * rows,
        ]
        return make_half_of(batch_no, first_sequence, *from_columns(texts, LAYOUT))

    def _next_values(self, tenant: int, _: int) -> tuple[int, int]:
        """Return the next tenant and amount of a row that is updated."""
        moves = self._chance.random() < 0.05
        return (tenant + 1) % SUBSCRIPTIONS if moves else tenant, self._chance.randrange(AMOUNTS)

    def _count_messages(self, old: tuple[int, int], new: tuple[int, int]) -> int:
        """Return how many subscriptions match a row before or after its change."""
        tenants = sum(tenant % 2 == 0 for tenant in {old[0], new[0]})
        below, above = sorted((old[1], new[1]))
        both = self._count_ranges(above - WIDTH, below)
        return tenants + self._count_ranges(below - WIDTH, below) + self._count_ranges(above - WIDTH, above) - both

    def _count_ranges(self, low: int, high: int) -> int:
        """Return how many subscribed ranges begin between two amounts."""
        return max(0, int(np.searchsorted(self._lows, high, "right") - np.searchsorted(self._lows, low, "left")))


def make_half_of(batch_no: int, first_sequence: int, record_ids: PackedBytes, rows: PackedBytes) -> broker_pb2.Half:
    """Return a half message with one section of these rows."""
    body = change_pb2.BatchBody(
        batch_no=batch_no,
        first_sequence=first_sequence,
        count=len(record_ids),
        cut=batch_no,
        cut_end=True,
        captured_at_us=time.time_ns() // 1000,
        schemas=[schemas_codec.to_wire(ORDERS)] if batch_no == 1 else [],
    )
    body.tables.add(
        table_id=1,
        schema_version=1,
        count=len(record_ids),
        record_ids=record_ids.data,
        record_id_sizes=record_ids.wire_sizes(),
        rows=rows.data,
        row_sizes=rows.wire_sizes(),
    )
    encoded = body.SerializeToString()
    return broker_pb2.Half(batch_no=batch_no, digest=digest(encoded), body=encoded)


def make_predicates(lows: Sequence[int]) -> list[str]:
    """Return the predicates of all subscriptions: half on a tenant, half on ranges of amounts that begin at `lows`."""
    tenants = [f"tenant = 'tenant-{n}'" for n in range(0, SUBSCRIPTIONS, 2)]
    return tenants + [f"amount between {low} and {low + WIDTH}" for low in lows]


# -- the clients, in a process of their own ----------------------------------------------------------------------------


@dataclass(slots=True)
class _Stream:
    """How many changes a stream has received, and when each position arrived."""

    changes: int = 0
    position: int = 0
    live: int = 0
    frames: int = 0
    nbytes: int = 0
    arrivals: list[tuple[int, float]] = field(default_factory=list)

    def read(self, client: ListenerClient) -> None:
        """Record the changes of this stream until it is closed."""
        with suppress(Exception):  # it is closed
            while True:
                for frame in client.take(1.0):
                    now = time.monotonic()
                    self.frames += 1
                    self.nbytes += frame.ByteSize()
                    self.live += sum(news.state == broker_pb2.LIVE for news in frame.news)
                    assert not any(news.state == broker_pb2.ENDED for news in frame.news)
                    for changes in frame.changes:
                        self.changes += len(changes.operations)
                        if changes.next_offset:
                            self.position = max(self.position, changes.next_offset)
                            self.arrivals.append((changes.next_offset, now))


def listen(address: str, texts: Sequence[str], orders: Connection) -> None:
    """Run the clients; for each ordered offset, wait until all streams have it, and send what they have received."""
    clients, streams = [ListenerClient(address, BUSINESS, client=f"x1-{n}") for n in range(STREAMS)], list[_Stream]()
    for n, client in enumerate(clients):
        client.open()
        wanted = [
            broker_pb2.SubscriptionRequest(number=m + 1, table="orders", predicate=text, offset=NOW)
            for m, text in enumerate(texts[n::STREAMS])
        ]
        client.begin(wanted)
        streams.append(_Stream())
        threading.Thread(target=streams[-1].read, args=(client,), daemon=True).start()
    until = time.monotonic() + PATIENCE_S
    while sum(stream.live for stream in streams) < len(texts) and time.monotonic() < until:
        time.sleep(0.01)
    orders.send(sum(stream.live for stream in streams))
    while (end := orders.recv()) is not None:
        until = time.monotonic() + PATIENCE_S
        while min(stream.position for stream in streams) < end and time.monotonic() < until:
            time.sleep(0.002)
        arrivals = [stream.arrivals for stream in streams]
        frames, nbytes = sum(stream.frames for stream in streams), sum(stream.nbytes for stream in streams)
        orders.send((sum(stream.changes for stream in streams), arrivals, frames, nbytes))
        for stream in streams:
            stream.arrivals, stream.frames, stream.nbytes = [], 0, 0
    for client in clients:
        client.close()


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure figure X1 and return its lines."""
    lows = [random.Random(2).randrange(AMOUNTS) for _ in range(SUBSCRIPTIONS // 2)]
    lows = [n * (AMOUNTS // (SUBSCRIPTIONS // 2)) + low % 97 for n, low in enumerate(lows)]
    batches, seconds = (80, 3) if quick else (800, 20)
    with one_broker() as broker:
        table = Orders(lows)
        sender = Messages(broker.address, BATCH, table.make)
        sender.commit_many(ROWS // BATCH)
        orders, theirs = spawn.Pipe()
        process = spawn.Process(target=listen, args=(broker.address, make_predicates(lows), theirs))
        process.start()
        try:
            assert orders.recv() == SUBSCRIPTIONS
            return _measure(broker.process.pid, sender, table, orders, batches, seconds)
        finally:
            with suppress(OSError):
                orders.send(None)
            process.join(30)
            sender.close()


def _commit_flat_out(sender: Messages, orders: Connection, batches: int) -> tuple[int, float]:
    """Commit batches, at most two parts ahead of the streams; return the changes that arrived, and when the last did.

    If too many changes wait, the broker drops them and the streams read the queue again, so another number of changes
    arrives.
    """
    for first in range(0, batches, PART):
        sender.commit_many(min(PART, batches - first))
        if first:
            orders.recv()
        orders.send(sender.end)
    got, arrivals, *_ = orders.recv()
    return got, max(stream[-1][1] for stream in arrivals)


def _measure(
    pid: int, sender: Messages, table: Orders, orders: Connection, batches: int, seconds: int
) -> list[FigureResult]:
    """Measure the highest rate, then the latency at a steady rate; return the lines."""
    sender.commit_many(8)
    orders.send(sender.end)
    orders.recv()
    used, began = ProcessUsage(pid), time.monotonic()
    got, ended = _commit_flat_out(sender, orders, batches)
    rate, pairs = batches * BATCH / (ended - began), table.expected
    assert got == pairs, f"{got:,} changes of subscriptions arrived, {pairs:,} are right"
    sender.rows = STEADY_BATCH
    sent = sender.send_steadily(STEADY_RATE / STEADY_BATCH, seconds)
    orders.send(sender.end)
    got, arrivals, frames, nbytes = orders.recv()
    assert got == table.expected, f"{got:,} changes of subscriptions arrived, {table.expected:,} are right"
    late = [1000 * (at - sent[offset]) for stream in arrivals for offset, at in stream if offset in sent]
    beside = f"{pairs / ((batches + 8) * BATCH):.1f} concerned by a change, {used.peak_mib:.0f} MiB"
    what = f"{SUBSCRIPTIONS:,} subscriptions on {STREAMS} streams, half tenant = N, half ranges ({beside})"
    return [
        at_least(what, rate, GOAL_RATE, "changes/s", paper=PAPER),
        at_most(
            f"the same at {STEADY_RATE:,} changes/s, p99",
            percentile(late, 99),
            GOAL_P99_MS,
            "ms",
            peer=_measure_limit(frames, nbytes, seconds),
        ),
    ]


def _measure_limit(frames: int, nbytes: int, seconds: int) -> str:
    """Measure a bare gRPC server with equal frames; return its p99 as text."""
    every_s = seconds * STREAMS / frames
    late = bare.fan_out(streams=STREAMS, nbytes=nbytes // frames, every_s=every_s, seconds=seconds)
    return f"the same {frames / seconds:,.0f} frames/s from bare gRPC {percentile(late, 99):.0f} ms"


FIGURE = Figure(id="X1", title="many subscriptions", measure=run)
