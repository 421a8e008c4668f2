"""A small business does not wait for the floods of others, and no business waits for a checkpoint of the store."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.integration.engine.test_storage import CommitHold
from tests.support.engines import engines
from tests.support.engines.engines import BUSINESS, WAIT_S, Clock, Producer
from tests.support.waiting import eventually
from venus.broker.store import keys, reads
from venus.broker.store.reads import KeyCount
from venus.broker.store.rocks import Store

FLOOD = [f"flood{n}" for n in range(2)]


def test_a_small_business_is_answered_before_floods_that_arrived_first(tmp_path: Path) -> None:
    stop = CommitHold()
    engine = engines.make(tmp_path, Clock(), on_write=stop)
    floods = [Producer(engine, business) for business in FLOOD]
    small = Producer(engine)
    stop.hold.set()
    answered: list[str] = []

    def send(producer: Producer, business: str, nbytes: int) -> None:
        message = producer.next_half(engines.rows(0, 1, b"q" * nbytes))
        future = engine.producers.take_halves(business, producer.epoch, [message])
        future.add_done_callback(lambda _: answered.append(business))

    send(floods[0], FLOOD[0], 100)
    assert stop.held.wait(WAIT_S)
    for _ in range(8):
        for producer, business in zip(floods, FLOOD, strict=True):
            send(producer, business, 200_000)
    send(small, BUSINESS, 10)
    stop.release()
    eventually(lambda: len(answered) == 18)
    assert answered.index(BUSINESS) == 1, answered
    engine.stop()


def longest_pause_fraction(work: Callable[[], object]) -> float:
    """Return the longest time in which no other thread got the interpreter's lock, as a fraction of the whole."""
    pauses, done = [0.0], threading.Event()

    def beat() -> None:
        while not done.is_set():
            began = time.perf_counter()
            time.sleep(0.0005)
            pauses.append(time.perf_counter() - began)

    beating = threading.Thread(target=beat)
    beating.start()
    began = time.perf_counter()
    work()
    took = time.perf_counter() - began
    done.set()
    beating.join()
    return max(pauses) / took


def test_a_checkpoint_of_large_memtables_stops_no_other_work(tmp_path: Path) -> None:
    """The best run counts, because other load on the machine causes pauses too."""
    store, random_keys = Store(tmp_path / "store"), random.Random(7)
    shares: list[float] = []
    for n in range(30):
        if shares and min(shares) < 0.5:
            break
        for _ in range(6):
            batch = store.batch()
            row_keys = [b"%012d" % random_keys.randrange(10**9) for _ in range(10_000)]
            batch.put_many(keys.ROW, row_keys, [b"x" * 100] * len(row_keys))
            store.write(batch, durable=False)
        copy = tmp_path / "copies" / str(n)
        shares.append(longest_pause_fraction(partial(store.checkpoint, copy)))
    store.close()
    assert min(shares) < 0.5, shares


def test_many_keys_are_written_and_counted_in_pieces(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    batch, wanted = store.batch(), [b"%08d" % n for n in range(1_500)]
    batch.put_many(keys.ROW, wanted, [b"v" + key for key in wanted])
    store.write(batch, durable=False)
    assert store.look_up(keys.ROW, wanted) == {key: b"v" + key for key in wanted}
    found = store.count_keys(keys.ROW, b"", b"00001400", entries_max=10**6, marks_max=100)
    assert found == KeyCount(1_400, wanted[:1_400:16], ended=True)
    store.close()


def test_rows_that_fill_the_memory_are_flushed_before_they_are_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look up a key among them, RocksDB would sort them all while it holds the interpreter's lock."""
    monkeypatch.setattr(reads, "SORTED_ENTRIES_MAX", 100)
    store = Store(tmp_path / "store")

    def look_up_among(count: int) -> int:
        batch, wanted = store.batch(), [b"%08d" % n for n in range(count)]
        batch.put_many(keys.ROW, wanted, wanted)
        store.write(batch, durable=False)
        assert store.look_up(keys.ROW, wanted[-2:]) == {key: key for key in wanted[-2:]}
        return int(store._views[keys.ROW].property_int_value("rocksdb.num-entries-active-mem-table"))

    assert look_up_among(100) == 100
    assert look_up_among(1) == 0
    store.close()
