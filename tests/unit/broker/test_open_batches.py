"""A batch that several sets need is decoded once, whatever else is requested meanwhile, within a memory limit."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest
import xxhash

from tests.support.predicates.predicate_histories import BYTES, IDS, ROWS, SCHEMA
from venus.broker.machine.business import Business
from venus.broker.machine.queue_index import QueuedBatch
from venus.broker.machine.review_schedule import ReviewSchedule
from venus.broker.queue import reduced_batches
from venus.broker.queue.reduced_batches import (
    ENTRY_BYTES,
    OPEN_BYTES,
    OPEN_PRICE,
    OpenBatch,
    ReducedBatchCache,
    WantedPart,
)
from venus.codec.packed import PackedBytes
from venus.network.row_filters import fit_filters, parse_filters, with_tables
from venus.wire import change_pb2

VERSIONS = {(1, 1): SCHEMA}
BUSINESS = Business(1, "main", ReviewSchedule(first_s=1.0))


@pytest.fixture
def decoded_batches(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Record the decoded batches in order."""
    found: list[bytes] = []
    begin = OpenBatch.__init__

    def record_call(batch: OpenBatch, body: bytes) -> None:
        found.append(body)
        begin(batch, body)

    monkeypatch.setattr(reduced_batches.OpenBatch, "__init__", record_call)
    return found


def wanted_part(text: str) -> WantedPart:
    filters = with_tables(parse_filters({"t": text}), [SCHEMA])
    return WantedPart(frozenset(), filters, fit_filters(filters, [SCHEMA]), VERSIONS)


def body(number: int) -> bytes:
    ids = PackedBytes.of([IDS[n] for n in range(4)])
    rows = PackedBytes.of([BYTES[row] for row in ROWS[number : number + 4]])
    found = change_pb2.BatchBody(batch_no=number, first_sequence=4 * number, count=4, cut=number, cut_end=True)
    found.tables.add(
        table_id=1,
        schema_version=1,
        count=4,
        record_ids=ids.data,
        record_id_sizes=ids.wire_sizes(),
        rows=rows.data,
        row_sizes=rows.wire_sizes(),
    )
    return found.SerializeToString()


def place(number: int, whole: bytes) -> QueuedBatch:
    return QueuedBatch(
        base_offset=4 * number,
        index=number,
        batch_no=number,
        count=4,
        epoch=1,
        cut=number,
        cut_end=True,
        committed_at_us=1,
        captured_at_us=1,
        first_sequence=4 * number,
        last_sequence=4 * number + 3,
        nbytes=len(whole),
        before=0,
        digest=xxhash.xxh3_64_intdigest(whole),
        tables=(1,),
    )


PARTS = [wanted_part(f"region = '{region}' and amount > {n}") for region in ("EU", "US", "eu") for n in (5, 50)]


def test_a_batch_is_decoded_once_and_each_set_gets_its_part(decoded_batches: list[bytes]) -> None:
    cut, wholes = ReducedBatchCache(), [body(n) for n in range(1, 20)]
    found = [cut.body(BUSINESS, place(n, whole), whole, one)[1] for n, whole in enumerate(wholes, 1) for one in PARTS]
    # the first batch is decoded twice, before the other sets were known
    assert len(decoded_batches) == len(wholes) + 1
    assert found == [OpenBatch(whole).reduce(one).body for whole in wholes for one in PARTS]


def test_a_part_is_built_once_for_all_sets_with_the_same_options() -> None:
    cut, whole = ReducedBatchCache(), body(1)
    cut.body(BUSINESS, place(1, whole), whole, PARTS[0])  # before the other sets were known
    found = [cut.body(BUSINESS, place(1, whole), whole, one) for one in PARTS[1:] * 2]
    assert len({id(made) for _, made in found}) == len({made for _, made in found}) < len(PARTS) - 1
    assert all(digest == xxhash.xxh3_64_intdigest(made) for digest, made in found)
    assert cut.open_nbytes > OPEN_BYTES + OPEN_PRICE * len(whole), "what was made counts"


def test_another_batch_at_the_same_index_is_decoded_itself(decoded_batches: list[bytes]) -> None:
    cut, one, other = ReducedBatchCache(), body(1), body(9)
    for whole in (one, other):
        here = replace(place(1, whole), base_offset=4)
        found = [cut.body(BUSINESS, here, whole, part)[1] for part in PARTS]
        assert found == [OpenBatch(whole).reduce(part).body for part in PARTS]


def test_a_single_set_keeps_no_batch_and_the_cache_is_limited(decoded_batches: list[bytes]) -> None:
    wholes = [body(n) for n in range(1, 10)]
    two = 2 * (OPEN_BYTES + OPEN_PRICE * len(wholes[0]) + ENTRY_BYTES) + 20
    cut = ReducedBatchCache(open_bytes_max=two)
    for n, whole in enumerate(wholes, 1):
        cut.body(BUSINESS, place(n, whole), whole, PARTS[0])
    assert cut.open_nbytes == 0
    for one in PARTS[1:3]:
        for n, whole in enumerate(wholes, 1):
            cut.body(BUSINESS, place(n, whole), whole, one)
            assert cut.open_nbytes <= two
    assert cut.open_nbytes > 0
    assert len(decoded_batches) == 3 * len(wholes), "those of a whole pass do not fit"
    tight = ReducedBatchCache(open_bytes_max=10)
    for one in PARTS:
        tight.body(BUSINESS, place(1, wholes[0]), wholes[0], one)
    assert tight.open_nbytes == 0


def _memory_behind(cut: ReducedBatchCache, parts: list[WantedPart], batches: int) -> int:
    """Return the memory that remains used after this many small batches."""
    wholes = [body(1 + n % 10) for n in range(batches)]
    cut.body(BUSINESS, place(10**6, wholes[0]), wholes[0], PARTS[0])  # allocations that happen once
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for n, whole in enumerate(wholes, 1):
        for one in parts:
            cut.body(BUSINESS, place(n, whole), whole, one)
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return taken


@pytest.mark.full
def test_small_cached_parts_take_no_more_memory_than_large_ones() -> None:
    assert _memory_behind(ReducedBatchCache(1 << 20, 1 << 20), PARTS[:1], 6000) < 3 << 19


@pytest.mark.full
def test_small_decoded_batches_take_no_more_memory_than_large_ones() -> None:
    assert _memory_behind(ReducedBatchCache(1 << 20, 1 << 20), PARTS[:3], 1000) < 3 << 19
