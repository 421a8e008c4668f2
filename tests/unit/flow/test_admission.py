"""Which producers are admitted, which must pause and for how long; no business uses the memory of another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from venus.flow.admission import (
    PAUSE_MAX_S,
    RELEASED_S,
    Admission,
    AdmissionLimits,
    AdmissionVerdict,
    Limiter,
    LimiterRecord,
    Slots,
)
from venus.flow.degradation import Degradation, Lane, Watermark
from venus.flow.write_queue import LEAST_BYTES, MemoryShares

MIB = 1 << 20
LAG = Watermark(resource="lag", high=1, low=1, sustain_s=0, deepest=Lane.HALVES)


def build_admission(**limits: float) -> Admission:
    return Admission(AdmissionLimits(**limits), Degradation((LAG,), restore_s=1))  # type: ignore[arg-type]


def judge(admission: Admission, now: float, *, rows: int = 1, nbytes: int = 100, behind: int = 0) -> AdmissionVerdict:
    return admission.judge_halves("main", "p", rows=rows, nbytes=nbytes, behind_bytes=behind, now=now)


def test_without_limits_every_peer_is_admitted() -> None:
    admission = build_admission()
    assert not admission.counts_rows
    for now in range(100):
        assert judge(admission, now, rows=10**9, nbytes=10**9) == AdmissionVerdict()
    assert admission.record.entries() == []


def test_a_producer_over_its_rate_pauses_or_is_refused() -> None:
    admission = build_admission(rows_per_s=100, burst_s=1)
    assert judge(admission, 0, rows=100) == AdmissionVerdict()
    assert judge(admission, 0, rows=50) == AdmissionVerdict(pause_s=0.5)
    assert judge(admission, 0, rows=50) == AdmissionVerdict(pause_s=1.0)
    assert judge(admission, 0, rows=50) == AdmissionVerdict(pause_s=1.0, refused=True), "nothing of it was taken"
    assert judge(admission, 1.0, rows=0) == AdmissionVerdict()
    found = admission.record.entries()[0]
    assert (found.limiter, found.business, found.peer, found.times) == (Limiter.ROWS, "main", "p", 3)
    assert found.is_active(1.0 + RELEASED_S - 0.1), "it has to wait for a second"
    assert not found.is_active(1.0 + RELEASED_S + 0.1)


def test_a_limiter_is_active_as_long_as_its_announced_wait_and_no_longer() -> None:
    record = LimiterRecord()
    record.record_delay(Limiter.ROWS, "main", "p", 60.0, 0.0)
    record.record_delay(Limiter.ROWS, "main", "q", 1.0, 1.0)
    record.record_wait(Limiter.TURN, "main", "p", 60.0, 0.0)
    notified, waited = record.entries()
    assert notified.is_active(60.0)
    assert not waited.is_active(RELEASED_S + 0.1)


def test_the_longer_of_two_waits_is_reported_with_its_name() -> None:
    admission = build_admission(rows_per_s=100, bytes_per_s=1000, burst_s=1)
    assert judge(admission, 0, rows=150, nbytes=3000) == AdmissionVerdict(pause_s=2.0)
    assert [found.limiter for found in admission.record.entries()] == [Limiter.BYTES]


def test_each_business_has_its_own_tokens_and_a_new_producer_inherits_the_debt() -> None:
    admission = build_admission(bytes_per_s=100, burst_s=1)
    assert judge(admission, 0, nbytes=300).pause_s == 2
    assert admission.judge_halves("other", "p", rows=1, nbytes=100, behind_bytes=0, now=0) == AdmissionVerdict()
    assert admission.judge_halves("main", "q", rows=1, nbytes=1, behind_bytes=0, now=0).refused


def test_lagging_full_data_delays_and_long_lag_refuses() -> None:
    admission = build_admission(behind_bytes_max=MIB)
    assert judge(admission, 0, behind=MIB) == AdmissionVerdict()
    assert judge(admission, 0, behind=MIB + 1).pause_s == pytest.approx(0.1, rel=0.01)
    assert judge(admission, 0, behind=3 * MIB).refused
    assert judge(admission, 0, behind=1000 * MIB).pause_s == PAUSE_MAX_S


def test_half_messages_of_a_degraded_lane_pause_and_are_not_lost() -> None:
    admission = build_admission()
    for now in range(4):
        admission.degradation.step({"lag": 5}, now)
    assert admission.degradation.is_degraded(Lane.HALVES)
    assert judge(admission, 5) == AdmissionVerdict(pause_s=0.5)
    assert [found.limiter for found in admission.record.entries()] == [Limiter.DEGRADED]


def test_new_snapshots_wait_while_full_data_is_degraded() -> None:
    admission = build_admission()
    admission.degradation.step({"lag": 5}, 0)
    assert admission.snapshot_wait_s("main", "load", 0) == 0
    admission.degradation.step({"lag": 5}, 1)
    assert admission.snapshot_wait_s("main", "load", 1) > 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4 * MIB)), max_size=300))
def test_a_new_business_always_has_room_and_the_memory_is_limited(arrivals: list[tuple[int, int]]) -> None:
    sharing = MemoryShares(32 * MIB, 0.1)
    for business, nbytes in arrivals:
        if sharing.has_room(str(business)):
            sharing.add(str(business), nbytes)
        assert sharing.has_room("a new peer")
        assert sharing.nbytes <= 32 * MIB + 4 * 4 * MIB, "the last frame of each may exceed it"


def test_a_business_alone_gets_two_thirds() -> None:
    sharing = MemoryShares(30 * MIB, 0.1)
    while sharing.has_room("main"):
        sharing.add("main", MIB)
    assert sharing.bytes_of("main") == 20 * MIB


def test_messages_that_the_disk_cannot_take_in_time_are_not_received() -> None:
    sharing = MemoryShares(30 * MIB, 0.1)
    sharing.add("main", MIB)
    sharing.remove("main", MIB, 0.01)
    sharing.add("main", 20 * MIB)
    sharing.remove("main", MIB, 0.44)  # it waits four times as long as it should
    assert not sharing.has_room("main")
    sharing.remove("main", 13 * MIB, 0)
    assert not sharing.has_room("main"), "6 MiB would wait for longer than 100 ms"
    sharing.remove("main", 2 * MIB, 0)
    assert sharing.has_room("main")
    sharing.remove("main", MIB, 100.0)
    sharing.remove("main", 2 * MIB, 0)
    assert sharing.bytes_of("main") == LEAST_BYTES / 2
    assert sharing.has_room("main"), "a frame or two may always wait"


def test_a_slow_connection_is_not_taken_as_a_queue() -> None:
    """Remote replicas: each answer takes 300 ms, however little is in flight."""
    sharing = MemoryShares(30 * MIB, 0.1)
    for _ in range(100):
        while sharing.has_room("main"):
            sharing.add("main", MIB)
        sharing.remove("main", 4 * MIB, 0.3)
    assert sharing.bytes_of("main") > 10 * MIB


def test_names_without_stored_data_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer of any business may send another name each time, with a half message that is refused."""
    monkeypatch.setattr("venus.flow.write_queue.BUSINESSES_MAX", 10)
    held = MemoryShares(30 * MIB, 0.1)
    held.add("main", MIB)
    for n in range(1000):
        held.add(f"another {n}", n)
        held.remove(f"another {n}", n, 0.01)
    held.remove("another 0", 0, 0.01)

    assert len(held._businesses) <= 10
    assert (held.bytes_of("main"), held.nbytes) == (MIB, MIB)


def test_slots_are_limited() -> None:
    slots = Slots(2)
    assert [slots.acquire() for _ in range(3)] == [True, True, False]
    slots.release()
    assert slots.acquire()
    slots.release()
    slots.release()
    with pytest.raises(AssertionError):
        slots.release()
