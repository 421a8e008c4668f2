"""Refused logins, certificates and calls are counted in metrics."""

from __future__ import annotations

from venus.security import audit
from venus.security.audit import KNOWN_MAX, PENDING_MAX, REPEATED_S, SILENT_S, Refusals


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_connection_without_a_call_is_counted_after_a_while() -> None:
    clock = Clock()
    refusals = Refusals(clock)
    for _ in range(3):
        refusals.on_connection_begin()
    refusals.on_call("ipv4:1.2.3.4:5")
    refusals.on_call("ipv4:1.2.3.4:5")

    assert refusals.counts() == (0, 0)
    clock.now += SILENT_S + 1
    assert refusals.counts() == (0, 2)
    assert refusals.counts() == (0, 2)


def test_a_repeated_refusal_is_logged_periodically() -> None:
    clock = Clock()
    refusals = Refusals(clock)

    assert [refusals.record_refusal("eve", "Decide") for _ in range(3)] == [True, False, False]
    assert refusals.record_refusal("eve", "Forget")
    clock.now += REPEATED_S
    assert refusals.record_refusal("eve", "Decide")
    assert refusals.counts() == (5, 0)


def test_counters_use_limited_memory() -> None:
    refusals = Refusals(Clock())
    for _ in range(PENDING_MAX + 10):
        refusals.on_connection_begin()
    for number in range(KNOWN_MAX + 10):
        refusals.on_call(str(number))
        refusals.record_refusal(str(number), "x")

    assert refusals.counts()[1] == 10
    assert max(len(refusals._known), len(refusals._logged)) <= KNOWN_MAX
    assert len(refusals._pending) <= audit.PENDING_MAX
