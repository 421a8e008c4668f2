"""Consumers on a real store: attachments and their tokens, two positions, and absence across restarts."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.integration.engine.test_businesses import hold_commit_thread
from tests.integration.engine.test_retention import tick
from tests.integration.engine.test_watermark import Replicas, settle
from tests.support.engines import engines
from tests.support.engines.engines import BUSINESS, WAIT_S, Clock, Producer, status
from tests.support.waiting import eventually
from venus.broker.core import Core
from venus.broker.machine.business import Business
from venus.broker.machine.records import load_all
from venus.broker.pipeline import shared_log, upkeep
from venus.broker.pipeline.shared_log import StandaloneLog
from venus.broker.store.rocks import Store
from venus.errors import NotLeader, Refused, SnapshotExpired, Unavailable
from venus.wire import broker_pb2

DAY_S = 86_400.0
TTL_S = 100.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


def consumer(engine: Core, group: str = "g") -> broker_pb2.ConsumerStatus:
    return next(c for c in status(engine).consumers if c.group == group)


def is_known(engine: Core) -> bool:
    return any(c.group == "g" for c in status(engine).consumers)


def test_only_time_in_which_the_broker_ran_counts_as_absence(tmp_path: Path, clock: Clock) -> None:
    engine = engines.make(tmp_path, clock, consumer_ttl_s=TTL_S)
    Producer(engine).commit(engines.rows(0, 10))
    engine.subscriptions.detach(BUSINESS, "g", engine.subscriptions.attach(BUSINESS, "g", 0))
    for _ in range(4):  # 80 s in four runs; the broker is off for ten days each time
        tick(engine, clock, 20)
        assert is_known(engine)
        engine.stop()
        clock.now_s += 10 * DAY_S
        engine = engines.make(tmp_path, clock, consumer_ttl_s=TTL_S)
        tick(engine, clock, 1)
    clock.wall_ahead_s += 365 * DAY_S
    tick(engine, clock, 5)
    clock.wall_ahead_s -= 2 * 365 * DAY_S
    tick(engine, clock, 5)
    assert is_known(engine)

    tick(engine, clock, 10)

    assert not is_known(engine)
    assert status(engine).counters["expired_consumers"] == 1
    engine.stop()


def test_an_absence_is_not_lost_in_a_crash(tmp_path: Path, clock: Clock) -> None:
    engine = engines.make(tmp_path / "a", clock, consumer_ttl_s=TTL_S)
    Producer(engine).commit(engines.rows(0, 10))
    engine.subscriptions.detach(BUSINESS, "g", engine.subscriptions.attach(BUSINESS, "g", 0))
    tick(engine, clock, 50)
    tick(engine, clock, 40)
    shutil.copytree(tmp_path / "a" / "db", tmp_path / "b" / "db")
    engine.stop()

    engine = engines.make(tmp_path / "b", clock, consumer_ttl_s=TTL_S)
    tick(engine, clock, 5)
    assert is_known(engine)
    tick(engine, clock, 10)
    assert not is_known(engine)
    engine.stop()


def test_a_suspended_broker_process_expels_no_peer(tmp_path: Path, clock: Clock) -> None:
    engine = engines.make(tmp_path, clock, consumer_ttl_s=TTL_S)
    Producer(engine).commit(engines.rows(0, 10))
    engine.subscriptions.detach(BUSINESS, "g", engine.subscriptions.attach(BUSINESS, "g", 0))
    tick(engine, clock, 30 * DAY_S)
    assert is_known(engine)
    engine.stop()


def test_an_older_stream_neither_moves_nor_detaches_the_group(tmp_path: Path, clock: Clock) -> None:
    engine = engines.make(tmp_path, clock)
    producer = Producer(engine)
    for n in range(5):
        producer.commit(engines.rows(n, 10))
    older = engine.subscriptions.attach(BUSINESS, "g", 0)
    newer = engine.subscriptions.attach(BUSINESS, "g", 10, kept=0)

    assert not engine.subscriptions.acknowledge(BUSINESS, "g", older, 50)
    engine.subscriptions.detach(BUSINESS, "g", older)
    assert (consumer(engine).acknowledged, consumer(engine).kept, consumer(engine).connected) == (10, 0, True)

    assert engine.subscriptions.acknowledge(BUSINESS, "g", newer, 40, 20)
    assert (consumer(engine).acknowledged, consumer(engine).kept) == (40, 20)
    engine.subscriptions.detach(BUSINESS, "g", newer)
    assert not consumer(engine).connected
    assert not engine.subscriptions.acknowledge(BUSINESS, "g", newer, 50)
    engine.stop()


def test_transient_readers_of_one_name_do_not_disturb_each_other_or_a_group(tmp_path: Path, clock: Clock) -> None:
    engine = engines.make(tmp_path, clock, retain_bytes=0)
    producer = Producer(engine)
    for n in range(5):
        producer.commit(engines.rows(n, 10))
    group = engine.subscriptions.attach(BUSINESS, "g", 20)
    first = engine.subscriptions.attach(BUSINESS, "g", 0, transient=True)
    second = engine.subscriptions.attach(BUSINESS, "g", 50, transient=True)
    engine.subscriptions.acknowledge(BUSINESS, "g", second, 50)
    engine.subscriptions.detach(BUSINESS, "g", second)
    tick(engine, clock)
    assert status(engine).log_start == 0
    engine.subscriptions.detach(BUSINESS, "g", first)
    tick(engine, clock)
    assert status(engine).log_start == 20
    assert (consumer(engine).acknowledged, consumer(engine).connected) == (20, True)
    engine.subscriptions.detach(BUSINESS, "g", group)
    assert is_known(engine), "a group that stays was taken for a reader that leaves"
    engine.stop()


def test_both_positions_survive_a_restart_and_the_kept_offset_is_in_the_status(tmp_path: Path, clock: Clock) -> None:
    engine = engines.make(tmp_path, clock, retain_bytes=500)
    producer = Producer(engine)
    for n in range(20):
        producer.commit(engines.rows(n, 10, b"x" * 20))
    engine.subscriptions.acknowledge(BUSINESS, "g", engine.subscriptions.attach(BUSINESS, "g", 0), 200, 50)
    tick(engine, clock)
    engine.stop()

    engine = engines.make(tmp_path, clock, retain_bytes=500)
    found = status(engine)
    (held,) = found.consumers
    assert (held.acknowledged, held.kept, held.backlog_bytes) == (200, 50, 0)
    assert found.held_bytes == held.held_bytes > 15 * 10 * 20
    assert any("held tables of g, from offset 50 on" in alarm for alarm in found.alarms)
    engine.subscriptions.attach(BUSINESS, "g", 200)
    tick(engine, clock)
    assert engine.subscriptions.read(BUSINESS, 50, 1).increments, "an attachment gave up what was kept"
    engine.subscriptions.attach(BUSINESS, "g", 200, kept=200)
    tick(engine, clock)
    assert status(engine).log_start > 100
    assert not [alarm for alarm in status(engine).alarms if "held tables" in alarm]
    engine.stop()


def test_a_new_group_is_on_disk_before_its_attachment_is_acknowledged(tmp_path: Path, clock: Clock) -> None:
    engine = engines.make(tmp_path / "a", clock)
    Producer(engine).commit(engines.rows(0, 10))
    engine.subscriptions.attach(BUSINESS, "g", 10, kept=5)
    shutil.copytree(tmp_path / "a" / "db", tmp_path / "b" / "db")
    engine.stop()

    engine = engines.make(tmp_path / "b", clock)
    assert (consumer(engine).acknowledged, consumer(engine).kept) == (10, 5)
    engine.stop()


def test_a_group_that_is_connected_is_not_forgotten(tmp_path: Path, clock: Clock) -> None:
    engine = engines.make(tmp_path, clock)
    Producer(engine).commit(engines.rows(0, 10))
    token = engine.subscriptions.attach(BUSINESS, "g", 0)
    with pytest.raises(Refused, match="consumer g of main is connected"):
        engine.subscriptions.forget(BUSINESS, "g")
    engine.subscriptions.detach(BUSINESS, "g", token)
    engine.subscriptions.forget(BUSINESS, "g")
    assert not is_known(engine)
    engine.stop()
    engine = engines.make(tmp_path, clock)
    assert not is_known(engine)
    engine.stop()


@dataclass(frozen=True, slots=True)
class HinderedLog(StandaloneLog):
    """A leader's log that refuses proposals while `held` contains a reason."""

    held: tuple[list[str], ...] = ()

    def term(self, business: Business) -> int:
        if self.held[0]:
            raise Unavailable(self.held[0][0])
        return business.log.terms.newest


def test_a_new_group_that_was_refused_is_on_disk_before_the_next_answer(tmp_path: Path, clock: Clock) -> None:
    why: list[str] = []
    engine = engines.make(tmp_path / "a", clock, shared=HinderedLog(held=(why,)))
    Producer(engine).commit(engines.rows(0, 10))
    why.append("1 of 3 replicas is in sync")
    with pytest.raises(Unavailable, match="1 of 3"):
        engine.subscriptions.attach(BUSINESS, "g", 10, kept=5)
    assert not is_known(engine)
    why.clear()

    engine.subscriptions.attach(BUSINESS, "g", 10, kept=5)
    shutil.copytree(tmp_path / "a" / "db", tmp_path / "b" / "db")
    engine.stop()
    engine = engines.make(tmp_path / "b", clock)
    assert (consumer(engine).acknowledged, consumer(engine).kept) == (10, 5)
    engine.stop()


def test_the_log_records_the_state_of_an_unattached_group_at_the_end_of_a_term(tmp_path: Path, clock: Clock) -> None:
    """The commit thread executes the end of a term; by then a group may have attached in a newer term."""
    engine = engines.make(tmp_path, clock)
    Producer(engine).commit(engines.rows(0, 10))
    older = {group: engine.subscriptions.attach(BUSINESS, group, 0) for group in ("g", "back")}
    tick(engine, clock)
    business = engine.catalogue.find(BUSINESS)
    with engine.commits._ready:  # nothing is logged meanwhile
        for group, token in older.items():
            assert engine.subscriptions.acknowledge(BUSINESS, group, token, 5)
        engine.subscriptions.retire(business)
        assert not engine.subscriptions.acknowledge(BUSINESS, "g", older["g"], 9)
    newer = engine.subscriptions.attach(BUSINESS, "back", 7)
    engine.commits.submit(lambda _: shared_log.end_term(engine.store, business)).result(WAIT_S)

    assert (consumer(engine).acknowledged, consumer(engine).connected) == (0, False)
    assert engine.subscriptions.acknowledge(BUSINESS, "back", newer, 8)
    assert (consumer(engine, "back").acknowledged, consumer(engine, "back").connected) == (8, True)
    engine.stop()


def test_a_proposal_about_a_group_from_an_ended_term_counts_if_its_entry_stays(tmp_path: Path, clock: Clock) -> None:
    replicas = Replicas()
    engine = engines.make(tmp_path, clock, watermark=replicas)
    Producer(engine).commit(engines.rows(0, 10))
    business = engine.catalogue.find(BUSINESS)
    end = business.log.end
    replicas.held = end - 1
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(engine.subscriptions.attach, BUSINESS, "g", 5)
        eventually(lambda: business.log.end > end)
        settle(engine)
        engine.subscriptions.retire(business)
        ends = partial(shared_log.end_term, engine.store, business)
        engine.commits.refuse_waiting(business, NotLeader("another broker leads"), ends)
        with pytest.raises(NotLeader):
            asked.result(WAIT_S)
    assert not is_known(engine)

    replicas.held = None
    engine.commits.advance()
    eventually(lambda: is_known(engine))  # the next leader has it as well
    assert (consumer(engine).acknowledged, consumer(engine).connected) == (5, False)
    engine.stop()


def advance(clock: Clock) -> None:
    clock.now_s += 1


def test_nothing_is_logged_of_a_group_after_its_forgetting(tmp_path: Path, clock: Clock) -> None:
    """Its last acknowledgement may still be unlogged: logged later, it would restore the group at a restart."""
    engine = engines.make(tmp_path, clock)
    Producer(engine).commit(engines.rows(0, 10))
    token = engine.subscriptions.attach(BUSINESS, "g", 0)
    tick(engine, clock)
    engine.subscriptions.acknowledge(BUSINESS, "g", token, 10)
    engine.subscriptions.detach(BUSINESS, "g", token)
    go = hold_commit_thread(engine)
    with ThreadPoolExecutor(1) as pool:
        # the upkeep that logs pending positions runs in the group in which it is forgotten, and in no earlier one
        engine.commits.submit(lambda _group: advance(clock), line=engine.catalogue.find(BUSINESS))
        asked = pool.submit(engine.subscriptions.forget, BUSINESS, "g")
        eventually(lambda: len(engine.commits._waiting) == 2)
        go.set()
        asked.result(WAIT_S)
    tick(engine, clock)
    assert not is_known(engine)
    engine.stop()
    engine = engines.make(tmp_path, clock)
    assert not is_known(engine)
    engine.stop()


def test_a_group_is_forgotten_with_its_entry_though_the_operator_got_an_error(tmp_path: Path, clock: Clock) -> None:
    """Otherwise memory would keep the group that the log has dropped, and log its absence: the group would reappear."""
    replicas = Replicas()
    engine = engines.make(tmp_path, clock, watermark=replicas)
    Producer(engine).commit(engines.rows(0, 10))
    engine.subscriptions.detach(BUSINESS, "g", engine.subscriptions.attach(BUSINESS, "g", 0))
    tick(engine, clock)
    business = engine.catalogue.find(BUSINESS)
    end = business.log.end
    replicas.held = end - 1
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(engine.subscriptions.forget, BUSINESS, "g")
        eventually(lambda: business.log.end > end)
        settle(engine)
        engine.commits.refuse_waiting(business, Unavailable("nothing was heard of b"))
        with pytest.raises(Unavailable, match="nothing was heard of b"):
            asked.result(WAIT_S)

    replicas.held = None
    engine.commits.advance()
    eventually(lambda: not business.pending)
    settle(engine)
    assert not is_known(engine)
    engine.stop()


def test_a_lease_expires_only_by_time_in_which_the_broker_ran(tmp_path: Path, clock: Clock) -> None:
    """Neither a clock that is set nor a broker that is off ends the lease of a load in progress."""
    engine = engines.make(tmp_path, clock)
    Producer(engine).commit(engines.rows(0, 10))
    eventually(lambda: engines.full_data(engine) != {})
    request = broker_pb2.OpenSnapshotRequest(business=BUSINESS, lease_s=60)
    snapshot = engine.full_data.open(request)
    clock.wall_ahead_s += 365 * DAY_S
    tick(engine, clock)
    assert engine.full_data.renew(snapshot.snapshot_id).offset == 10
    engine.stop()
    clock.now_s += 10 * DAY_S

    engine = engines.make(tmp_path, clock)
    tick(engine, clock)
    assert len(engines.chunks(engine, snapshot, snapshot.splits[0])[0].rows) == 10
    Producer(engine, source_last_batch=1).commit(engines.rows(10, 5))
    clock.wall_ahead_s -= 2 * 365 * DAY_S
    newer = engine.full_data.open(request)
    assert newer.offset == 15, "a snapshot of an earlier process was shared"
    clock.now_s += 31
    Producer(engine, source_last_batch=2).commit(engines.rows(20, 5))
    assert engine.full_data.open(request).offset == 20, "an old snapshot was shared for the clock's sake"
    tick(engine, clock, 61)
    with pytest.raises(SnapshotExpired):
        engine.full_data.renew(snapshot.snapshot_id)
    engine.stop()


def test_a_short_absence_is_stored_when_the_broker_stops(tmp_path: Path, clock: Clock) -> None:
    """Otherwise a broker that is often restarted would never forget a consumer."""
    engine = engines.make(tmp_path, clock, consumer_ttl_s=7 * DAY_S)
    Producer(engine).commit(engines.rows(0, 10))
    engine.subscriptions.detach(BUSINESS, "g", engine.subscriptions.attach(BUSINESS, "g", 0))
    tick(engine, clock, 9)
    tick(engine, clock, 9)
    engine.stop()

    store = Store(tmp_path / "db")
    (business,) = load_all(store, 6.0)
    store.close()

    assert business.consumers["g"].away_us == 18 * 10**6


def test_positions_of_many_groups_are_logged_in_parts_until_all_are_logged(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "ACKNOWLEDGED_MAX", 8)
    engine = engines.make(tmp_path, clock)
    Producer(engine).commit(engines.rows(0, 10))
    groups = [f"g{n}" for n in range(50)]
    tokens = {name: engine.subscriptions.attach(BUSINESS, name, 0) for name in groups}
    for _ in range(20):  # the entry of their attachment
        tick(engine, clock, 1)
    (business,) = engine.catalogue.list_stored()
    before = business.log.end
    with engine.commits._ready:  # nothing is logged meanwhile
        for name in groups:
            engine.subscriptions.acknowledge(BUSINESS, name, tokens[name], 10)
    tick(engine, clock, 1)
    assert business.log.end - before <= 16, "a commit would wait for all of them"
    for _ in range(20):
        tick(engine, clock, 1)
    assert business.log.end - before == len(groups)
    engine.stop()
    engine = engines.make(tmp_path, clock)
    assert all(consumer(engine, name).acknowledged == 10 for name in groups)
    engine.stop()
