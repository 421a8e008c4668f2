"""A scrub without pauses finds no damage in the store of a busy broker.

A false finding would stop a healthy broker forever, so this is the scrub's most important property.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.engines import engines
from tests.support.engines.engines import BUSINESS, Clock, Errors, Producer
from venus.broker.core import Core
from venus.broker.pipeline import consumer_groups, upkeep
from venus.broker.snapshot import materialiser, scavenger, scrub
from venus.broker.store import keys
from venus.broker.store.rocks import Store
from venus.model import ChangeKind
from venus.wire import broker_pb2

pytestmark = [pytest.mark.fault, pytest.mark.integration]

KEYS = 400
HOUR_S = 3600.0
#: Factor by which a slow machine may take longer for the first pass after a start.
PASS_S_MAX = 60.0


@pytest.fixture(autouse=True)
def _restless(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(scrub, "PASS_EVERY_S", 0.0)
    monkeypatch.setattr(scrub, "BUSY_EVERY", 1)
    monkeypatch.setattr(scrub, "_STEP_ROWS", 50)
    monkeypatch.setattr(scrub, "RUN_ROWS_MAX", 40)
    monkeypatch.setattr(materialiser, "IDLE_S", 0.001)
    monkeypatch.setattr(materialiser, "SCRUB_REST", 0)
    monkeypatch.setattr(scavenger, "PASS_EVERY_S", 0.0)
    monkeypatch.setattr(scavenger, "BUSY_EVERY", 1)
    monkeypatch.setattr(upkeep, "MAINTAIN_EVERY_S", 0.0)
    monkeypatch.setattr(consumer_groups, "_PIECE_BYTES_MAX", 1 << 10)
    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # more switches between the threads' steps
    yield
    sys.setswitchinterval(switch_s)


def changes(chance: random.Random) -> list[tuple[bytes, bytes | None]]:
    """Return inserts, updates and deletes of different keys."""
    chosen = chance.sample(range(KEYS), chance.randrange(1, 60))
    return [(b"%08d" % n, None if chance.random() < 0.3 else chance.randbytes(chance.randrange(40))) for n in chosen]


def commit_random_batch(producer: Producer, chance: random.Random, version: int) -> None:
    """Commit one batch of a random table, sometimes after a TRUNCATE or as the end of a sweep."""
    options: dict[str, object] = {"table_id": chance.randrange(1, 5), "version": version}
    if chance.random() < 0.05:
        options["markers"] = [(ChangeKind.TRUNCATE, 0)]
    elif chance.random() < 0.05:
        options["markers"] = [(ChangeKind.SWEEP_END, max(1, producer.sequence - chance.randrange(1, 500)))]
    producer.commit(changes(chance), **options)


def run_broker_until_scrubbed(path: Path, clock: Clock, errors: Errors, chance: random.Random, seconds: float) -> int:
    """Run a broker until the scrub has completed a pass; return the number of passes."""
    engine: Core = engines.make(path, clock, errors, retain_bytes=4096)
    producer = Producer(engine, source_last_batch=0)
    passes, last = 0, 0
    began = time.monotonic()
    while time.monotonic() - began < (seconds if passes else seconds + PASS_S_MAX) and not errors.fatal:
        commit_random_batch(producer, chance, 1 + int(clock.now_s) // 86_400 % 7)
        clock.now_s += chance.choice((0.001, 1.0, HOUR_S))
        if chance.random() < 0.02:
            engines.full_data(engine, table_id=1)
        if chance.random() < 0.2:
            time.sleep(0.01)
        at = engine.catalogue.find(BUSINESS).scrubbed_at_us
        passes, last = passes + (at != last), at
    engine.stop()
    return passes


@pytest.mark.parametrize(
    ("seed", "seconds"), [(1, 3.0), *(pytest.param(n, 20.0, marks=pytest.mark.slow) for n in range(2, 9))]
)
def test_a_scrub_beside_a_broker_at_work_finds_nothing(tmp_path: Path, seed: int, seconds: float) -> None:
    chance, clock, errors = random.Random(seed), Clock(), Errors()
    passes = 0
    for _ in range(3):
        passes += run_broker_until_scrubbed(tmp_path, clock, errors, chance, seconds)
        assert errors.fatal == []
    assert passes >= 3


def test_a_batch_committed_while_the_walk_ends_is_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk over the queue reads once more beyond its end: batches found there were committed meanwhile."""
    engine = engines.make(tmp_path)
    producer = Producer(engine)
    for n in range(3):
        producer.commit(engines.rows(n, 1))
    engines.full_data(engine)
    look = Store._cursor
    committed: list[broker_pb2.Decided] = []

    walking = threading.get_ident()  # the engine's own threads read the store as well

    def commit_and_return(store: Store, family: str, *, fill_cache: bool) -> Any:
        if family == keys.QUEUE and threading.get_ident() == walking and not committed:
            committed.append(producer.commit(engines.rows(9, 1)))
        return look(store, family, fill_cache=fill_cache)

    monkeypatch.setattr(Store, "_cursor", commit_and_return)
    assert sum(scrub.check_queue(engine.store, engine.catalogue.find(BUSINESS), rows_of_batch=0)) == 3
    assert committed
    engine.stop()
