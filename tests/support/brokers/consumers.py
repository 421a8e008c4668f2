"""Consumers for tests: at a real broker, with the rows that they received, or with credit granted by hand."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Any

from tests.support.brokers.servers import BUSINESS, business_status
from tests.support.engines.stored import plain_rows
from venus.broker.service.process import RunningBroker
from venus.codec.packed import PackedBytes
from venus.codec.stored_rows import Chunk
from venus.rpc.channel import open_channel
from venus.rpc.sealed import subscribe
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2, change_pb2

Rows = dict[tuple[int, bytes], bytes]


def subscriber(broker: RunningBroker, **options: Any) -> Subscriber:
    """Return a consumer of group g with a credit of one MiB."""
    return Subscriber(broker.address, BUSINESS, "g", **{"credit_bytes": 1 << 20, **options})


def rows_of(tables: Any) -> Rows:
    """Return the rows of a batch's tables; a deleted row is empty."""
    return {
        (table.table_id, record_id): row
        for table in tables
        for record_id, row in zip(
            PackedBytes.from_wire(table.record_ids, table.record_id_sizes).split(),
            PackedBytes.from_wire(table.rows, table.row_sizes).split(),
            strict=True,
        )
    }


def rows_in_chunk(chunk: Chunk) -> Rows:
    """Return the rows of a chunk of full data."""
    return {(chunk.table_id, record_id): row for _, _, record_id, row in plain_rows(chunk.rows)}


def rows_in(bodies: list[bytes]) -> Rows:
    """Return the newest row of each record in some batches."""
    found: Rows = {}
    for body in bodies:
        found |= rows_of(change_pb2.BatchBody.FromString(body).tables)
    return found


def is_materialised(broker: RunningBroker, offset: int) -> bool:
    """Return whether the full data has everything below an offset."""
    return business_status(broker.address).materialised_offset >= offset


def consumer_status(broker: RunningBroker) -> broker_pb2.ConsumerStatus:
    """Return the broker's status of its first consumer."""
    return next(c for c in business_status(broker.address).consumers if c.group == "g")


class RawConsumer:
    """A consumer's stream that grants credit only on request."""

    def __init__(self, address: str, **fields: Any) -> None:
        self._channel = open_channel(address)
        self._frames: SimpleQueue[broker_pb2.ConsumerFrame | None] = SimpleQueue()
        opening = broker_pb2.Open(**{"business": BUSINESS, "group": "raw", **fields})
        self._frames.put(broker_pb2.ConsumerFrame(open=opening))
        self.received: list[broker_pb2.Increment] = []
        call = subscribe(self._channel, iter(self._frames.get, None))
        self._thread = threading.Thread(target=self._read, args=(call,), daemon=True)
        self._thread.start()

    def _read(self, call: Any) -> None:
        for frame in call:
            self.received.extend(frame.increments)

    def grant(self, nbytes: int) -> None:
        """Grant this many bytes of credit."""
        self.send(broker_pb2.ConsumerFrame(credit_bytes=nbytes))

    def send(self, frame: broker_pb2.ConsumerFrame) -> None:
        self._frames.put(frame)

    def __enter__(self) -> RawConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self._frames.put(None)
        self._thread.join(10)
        self._channel.close()
