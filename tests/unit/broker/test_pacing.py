"""Large work in the broker's threads makes room for small commits: shorter steps and groups, and the scrub waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.engines import engines
from tests.support.waiting import eventually
from venus.broker.machine.business import Business
from venus.broker.machine.review_schedule import ReviewSchedule
from venus.broker.pipeline.commit_thread import RESTING_GROUP_BYTES, SHARED_GROUP_BYTES, CommitThread
from venus.broker.pipeline.shared_log import StandaloneLog
from venus.broker.queue.buffer import BodyBuffer
from venus.broker.snapshot.materialiser import (
    CATCH_UP_REST_BUFFERS,
    CATCH_UP_REST_S,
    SCRUB_REST,
    STEP_BYTES_LEAST,
    STEP_BYTES_MAX,
    Materialiser,
    MaterialiserPacing,
)
from venus.broker.snapshot.scrub import Scrub
from venus.flow.precedence import SHARE_MOST, Precedence

NOW = 100.0
KIB = 1 << 10


def paused_precedence() -> Precedence:
    """Return a precedence whose small commits have been late for a while."""
    precedence = Precedence(0.001)
    precedence.on_arrival("small", 100, NOW)
    precedence.share = SHARE_MOST
    return precedence


def make_pacing(precedence: Precedence, pauses: list[float]) -> MaterialiserPacing:
    def pause(seconds: float) -> bool:
        pauses.append(seconds)
        return False

    store: Any = None
    return MaterialiserPacing(store, precedence, monotonic=lambda: NOW, pause=pause)


def test_a_turn_is_followed_by_its_pause() -> None:
    pauses: list[float] = []
    make_pacing(paused_precedence(), pauses).pause_after(NOW - 0.01)
    assert pauses == [pytest.approx(0.01 * SHARE_MOST)]
    make_pacing(Precedence(0.001), pauses).pause_after(NOW - 0.01)
    assert len(pauses) == 1


def test_steps_are_shorter_while_large_work_pauses() -> None:
    assert make_pacing(Precedence(0.001), []).step_bytes() == STEP_BYTES_MAX
    assert STEP_BYTES_LEAST <= make_pacing(paused_precedence(), []).step_bytes() < STEP_BYTES_MAX / 4


def take_bytes(precedence: Precedence) -> int:
    """Let two businesses flood a commit thread; return the number of bytes that it takes at once."""
    store: Any = None
    thread = CommitThread(
        store,
        BodyBuffer(1 << 30),
        monotonic=lambda: NOW,
        publish=lambda _: None,
        maintain=lambda _: None,
        rest_s=lambda: 1.0,
        on_fatal=lambda _: None,
        shared=StandaloneLog(),
        precedence=precedence,
    )
    for n in range(400):
        business = Business(1 + n % 2, f"flood{n % 2}", ReviewSchedule(first_s=1.0))
        thread.submit(lambda _: None, 10 * KIB, line=business)
    commands = thread._take()
    assert commands is not None
    return sum(command.nbytes for command in commands)


def test_groups_are_shorter_while_large_work_pauses() -> None:
    assert take_bytes(Precedence(0.001)) >= SHARED_GROUP_BYTES[1]
    assert RESTING_GROUP_BYTES <= take_bytes(paused_precedence()) < SHARED_GROUP_BYTES[1] / 4


def test_steps_of_the_full_data_and_the_scrub_pause_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[bool] = set()
    asked: list[int] = []

    def step(_scrub: Scrub, *, busy: bool) -> bool:
        seen.add(busy)
        return False

    def step_bytes(_pacing: MaterialiserPacing) -> int:
        asked.append(1)
        return 1

    monkeypatch.setattr(Scrub, "step", step)
    monkeypatch.setattr(MaterialiserPacing, "step_bytes", step_bytes)
    monkeypatch.setattr(MaterialiserPacing, "must_pause", lambda _: True)
    engine = engines.make(tmp_path)
    producer = engines.Producer(engine)
    for n in range(3):
        producer.commit(engines.rows(n, 1))
    (business,) = engine.catalogue.list_all()
    eventually(lambda: business.materialised.offset == business.visible_offset and bool(seen))
    engine.stop()
    assert asked
    assert seen == {True}


@dataclass(frozen=True)
class FollowerLog(StandaloneLog):
    """The log of a replica that catches up until it is in sync."""

    in_sync: threading.Event = field(default_factory=threading.Event)

    def catches_up(self, business: Business) -> bool:
        return not self.in_sync.is_set()


@dataclass
class Follower:
    """A replica that catches up, with 100 KiB that are not in the full data; its buffer has `buffer` bytes."""

    folder: Path
    buffer: int = 1 << 20

    def __post_init__(self) -> None:
        self.log, self.clock, self.disk = FollowerLog(), engines.Clock(), engines.Disk()
        self.engine = engines.make(
            self.folder, self.clock, shared=self.log, free_bytes=self.disk, buffer_bytes_max=self.buffer
        )
        producer = engines.Producer(self.engine)
        for n in range(10):
            producer.commit(engines.rows(10 * n, 10, b"x" * KIB))
        (self.business,) = self.engine.catalogue.list_all()

    def wait_for_full_data(self) -> None:
        eventually(lambda: self.business.materialised.offset == self.business.visible_offset)

    def wait_for_snapshot(self) -> None:
        self.engine.materialiser.checkpoint(self.business, self.folder / "copy").result(engines.WAIT_S)
        self.wait_for_full_data()

    def let_time_pass(self) -> None:
        self.clock.now_s += CATCH_UP_REST_S
        self.wait_for_full_data()

    def be_in_sync(self) -> None:
        self.log.in_sync.set()
        self.wait_for_full_data()


@pytest.mark.parametrize("act", [Follower.be_in_sync, Follower.let_time_pass, Follower.wait_for_snapshot])
def test_the_full_data_pauses_while_a_replica_catches_up_but_not_forever(
    act: Callable[[Follower], None], tmp_path: Path
) -> None:
    follower = Follower(tmp_path)
    follower.disk.wait_for_rounds()
    assert follower.business.materialised.offset == 0
    act(follower)
    follower.engine.stop()


def test_the_full_data_of_a_replica_that_catches_up_lags_by_a_few_buffers_at_most(tmp_path: Path) -> None:
    follower = Follower(tmp_path, buffer=20 * KIB)
    business, most = follower.business, CATCH_UP_REST_BUFFERS * 20 * KIB
    assert business.nbytes > most
    eventually(lambda: business.unmaterialised_bytes() < most)
    follower.engine.stop()


@pytest.mark.parametrize(("nbytes", "busy"), [(10 * KIB, False), (100 * KIB, True)])
def test_the_scrub_waits_after_a_large_step_although_no_more_work_waits(
    nbytes: int, busy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under load the full data has caught up at the end of nearly every round, and the next one begins at once."""
    behind_rows: set[bool] = set()
    engine = engines.make(tmp_path)

    def step(_scrub: Scrub, *, busy: bool) -> bool:
        (business,) = engine.catalogue.list_all()
        if business.materialised.offset > seen_offset[0]:
            behind_rows.add(busy)
            seen_offset[0] = business.materialised.offset
        return False

    producer = engines.Producer(engine)
    producer.commit(engines.rows(0, 1))
    (business,) = engine.catalogue.list_all()
    eventually(lambda: business.materialised.offset == business.visible_offset)
    seen_offset = [business.materialised.offset]
    monkeypatch.setattr(Scrub, "step", step)
    producer.commit(engines.rows(1, nbytes // 1000, b"x" * 1000))
    eventually(lambda: bool(behind_rows))
    engine.stop()
    assert behind_rows == {busy}


@pytest.mark.parametrize("every_s", [0.01, 0.5])
def test_the_scrub_takes_little_time_however_often_the_thread_wakes(every_s: float) -> None:
    """Each commit of a table with subscriptions ends a round, and the scrub looked up 2,000 rows in each round."""
    now, took = [NOW], [0.0]

    def step(*, busy: bool) -> bool:
        assert not busy
        now[0] += 0.003
        took[0] += 0.003
        return True

    idle: Any = SimpleNamespace(step=lambda **_: False, is_at_work=False)
    none: Any = None
    scrub: Any = SimpleNamespace(step=step, is_at_work=True)
    materialiser = Materialiser(
        none, BodyBuffer(1), none, monotonic=lambda: now[0], scavenger=idle, scrub=scrub, on_fatal=lambda _: None
    )
    rounds = 1000
    for _ in range(rounds):
        now[0] += every_s
        materialiser._run_round()
    share = took[0] / (now[0] - NOW)
    assert 0.5 / SCRUB_REST < share < 1.1 / SCRUB_REST if every_s < 0.1 else 0.02 < share < 0.06
