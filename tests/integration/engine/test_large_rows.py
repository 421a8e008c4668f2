"""Rows and log entries of very different sizes: every piece that is read fits into a message."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.engines import engines
from tests.support.engines.engines import BUSINESS, Producer, rows
from venus.broker.core import Core
from venus.broker.replicas import copies
from venus.broker.replicas.copies import CopyPlace, CopyPool
from venus.codec.stored_rows import decode_chunk
from venus.config.sections import LimitsSettings
from venus.rpc.channel import FRAME_BYTES, MESSAGE_BYTES_MAX, REPLICA_BYTES_MAX
from venus.wire import broker_pb2

pytestmark = pytest.mark.integration

SMALL, LARGE = 200, 64


def engine_at(path: Path) -> Core:
    return engines.make(path, limits=LimitsSettings(slow_request_ms=0))


def test_large_rows_behind_small_ones_are_loaded_in_chunks_that_a_message_holds(tmp_path: Path) -> None:
    """In a table of documents whose first ones are empty, 64 rows of 400 kB came as one chunk, which never fitted."""
    engine = engine_at(tmp_path)
    producer = Producer(engine)
    producer.commit(rows(0, SMALL))
    for n in range(SMALL, SMALL + LARGE, 8):
        producer.commit(rows(n, 8, b"q" * 400_000))
    snapshot = engine.full_data.open(broker_pb2.OpenSnapshotRequest(business=BUSINESS, splits=1))
    [split] = snapshot.splits
    request = broker_pb2.ReadSplitRequest(snapshot_id=snapshot.snapshot_id, split=split, chunk_bytes=FRAME_BYTES)

    found = list(engine.full_data.read_split(request))

    assert max(len(sealed.body) for sealed in found) < 2 * FRAME_BYTES < MESSAGE_BYTES_MAX
    sizes = [size for sealed in found for size in engines.rows_of(decode_chunk(sealed.body)).values()]
    assert sorted(map(len, sizes)) == [1] * SMALL + [400_000] * LARGE
    engine.stop()


def test_large_batches_behind_small_ones_are_copied_in_pieces_that_a_message_holds(tmp_path: Path) -> None:
    """After small commits, a large cut's half messages came as one piece, and the replica was never installed."""
    engine = engine_at(tmp_path)
    producer = Producer(engine)
    for n in range(70):
        producer.commit(rows(n, 1))
    first = producer.batch_no + 1
    for n in range(30):
        producer.send(producer.next_half(rows(100 + n, 1, b"q" * (1 << 20)), cut=first, cut_end=n == 29))
    standing = CopyPool(engine, time.monotonic)
    copy = standing.acquire(engines.the_business(engine), "")

    pieces = list(copies.read_pieces(copy, CopyPlace()))

    assert max(sum(map(len, piece.values)) for piece in pieces) < 3 * FRAME_BYTES < REPLICA_BYTES_MAX
    log = [key for piece in pieces if piece.area == 0 for key in piece.keys]
    assert len(log) == len(set(log)) == engines.the_business(engine).log.applied
    standing.close()
    engine.stop()
