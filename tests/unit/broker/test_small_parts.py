"""Review times, retention, the buffer, and records of the queue."""

from __future__ import annotations

import pytest

from venus.broker.log import entry
from venus.broker.machine import consumers, queue_index
from venus.broker.machine.consumers import QueueMark
from venus.broker.machine.queue_index import QueuedBatch, QueueTail
from venus.broker.machine.review_schedule import ASKED_MAX, ReviewSchedule, pause_s
from venus.broker.queue.buffer import ENTRY_BYTES, BodyBuffer
from venus.broker.store import keys
from venus.errors import Corruption

DAY_US = 86_400 * 10**6


def test_the_pauses_double_up_to_a_minute() -> None:
    assert [pause_s(n, 6.0) for n in range(7)] == [6, 12, 24, 48, 60, 60, 60]
    assert [pause_s(n, 0.5) for n in range(3)] == [0.5, 1, 2]
    assert pause_s(10**6, 6.0) == 60


def test_a_review_that_reached_no_producer_does_not_count() -> None:
    reviews = ReviewSchedule(first_s=6.0)
    reviews.expect(1, 100.0)
    assert reviews.due_batches(105.9) == []
    for _ in range(100):
        assert reviews.due_batches(106.0) == [1]
    assert reviews.exhausted_batches() == []
    for n in range(ASKED_MAX):
        assert reviews.record_delivered([1, 2], 106.0 + n) == 1
    assert reviews.exhausted_batches() == [1]
    reviews.settle([1])
    assert (reviews.due_batches(10**9), reviews.exhausted_batches()) == ([], [])


def test_tombstones_are_dated_by_marks() -> None:
    marks: list[QueueMark] = []
    for hour in range(60):
        marks = consumers.add_mark(
            marks, QueueMark(at_us=hour * 3600 * 10**6, sequence=hour * 10, next_offset=hour * 5)
        )

    now = 59 * 3600 * 10**6
    assert consumers.tombstone_limit(marks, 10**9, now) == 350  # 24 h earlier
    assert consumers.tombstone_limit(marks, 100, now) == 200  # a consumer still needs it
    assert consumers.tombstone_limit(marks, 10**9, DAY_US // 2) == 0
    assert consumers.add_mark(marks, QueueMark(at_us=marks[-1].at_us + 1, sequence=0, next_offset=0)) is marks


def body(n: int) -> bytes:
    return bytes(1000 - ENTRY_BYTES - 1) + bytes([n])


def test_the_buffer_evicts_delivered_entries_first_and_then_the_middle() -> None:
    buffer = BodyBuffer(10_000)
    for n in range(10):
        buffer.save((1, n), body(n))
    buffer.mark_delivered(1, 3)
    assert buffer.get((1, 0)) == body(0)  # the delivered entry that was used last

    buffer.save((1, 10), body(10))
    assert (buffer.get((1, 1)), buffer.get((1, 0))) == (None, body(0))
    for n in range(11, 13):
        buffer.save((1, n), body(n))
    assert [n for n in range(13) if buffer.get((1, n))] == [3, 4, 5, 6, 7, 8, 9, 10, 11, 12]

    buffer.save((1, 13), body(13))

    kept = [n for n in range(14) if buffer.get((1, n))]
    assert kept[:2] == [3, 4]  # the lagging consumer reads these next
    assert kept[-4:] == [10, 11, 12, 13]  # and these are the tail
    assert buffer.status().nbytes <= 10_000


def test_unsaved_bytes_evict_saved_ones() -> None:
    buffer = BodyBuffer(10_000)
    for n in range(10):
        buffer.save((1, n), body(n))

    buffer.hold(4_000)
    assert buffer.status().nbytes <= 10_000
    buffer.release(4_000)
    buffer.hold(50_000)
    assert buffer.status().nbytes == buffer.status().unsaved_bytes == 50_000, "nothing else is kept beside it"


def test_hits_and_misses_are_counted() -> None:
    buffer = BodyBuffer(10_000)
    buffer.save((1, 1), b"a")

    buffer.get((1, 1))
    buffer.get((1, 2))

    assert (buffer.status().hits, buffer.status().misses) == (1, 1)


def place(base_offset: int, count: int = 10) -> QueuedBatch:
    return QueuedBatch(
        base_offset=base_offset,
        index=base_offset,
        count=count,
        epoch=2,
        batch_no=7,
        cut=6,
        first_sequence=1,
        last_sequence=10,
        committed_at_us=-5,
        captured_at_us=6,
        digest=2**64 - 1,
        nbytes=99,
        before=2**40,
        cut_end=True,
        tables=(1, 2**32 - 1),
    )


def test_a_record_of_the_queue_is_read_as_it_was_written() -> None:
    assert queue_index.decode(30, place(30).encode()) == place(30)


def test_the_tail_finds_the_batch_that_holds_an_offset() -> None:
    tail = QueueTail(places_max=10)
    tail.extend(place(n) for n in range(0, 300, 10))

    assert tail.walk(50) is None  # truncated
    assert [found.base_offset for found in tail.walk(285) or ()] == [280, 290]
    assert [found.base_offset for found in tail.walk(290) or ()] == [290]


def test_a_damaged_entry_is_noticed() -> None:
    noted = entry.record_entry(entry.EntryKind.EPOCH, epoch=1, at_us=2, record={"epoch": 3})
    assert entry.decode(noted.encode(7), 7, where="here") == noted

    with pytest.raises(Corruption, match="here"):
        entry.decode(noted.encode(7), 8, where="here")


def test_each_flipped_bit_of_an_entry_is_noticed() -> None:
    """Kind, term, epoch, time, digest, seal and body: every part of an entry is covered by the seal."""
    stored = entry.record_entry(entry.EntryKind.DECIDE, epoch=3, at_us=2, record={"verdict": 1}).encode(7)
    for bit in range(8 * len(stored)):
        flipped = bytearray(stored)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corruption):
            entry.decode(bytes(flipped), 7, where="here")
    for end in range(len(stored)):
        with pytest.raises(Corruption):
            entry.decode(stored[:end], 7, where="here")


def test_the_end_of_a_prefix() -> None:
    assert keys.after_prefix(b"ab") == b"ac"
    assert keys.after_prefix(b"a\xff\xff") == b"b"
    assert keys.after_prefix(b"\xff") == b""
    assert keys.row_prefix(1, 2**32 - 1) < keys.after_prefix(keys.row_prefix(1, 2**32 - 1)) <= keys.row_prefix(2, 0)
