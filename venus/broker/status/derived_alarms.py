"""Alarms that a broker derives from its own status: adapters that are away or late. Pure: the time is an argument.

`venus status` also reads the databases and derives its own alarms (venus/cli/overview.py), in the same words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from venus.conditions import apply_problems, clock_problem, set_problems, silence_sentence
from venus.network.topology import PULLS_AS
from venus.wire import broker_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """The time by this broker's clock, and how far that clock was set back since the start."""

    us: int
    set_back_us: int = 0

    def age_s(self, moment_us: int) -> float:
        """Return the age of a moment by this broker's clock. One in the future came before the clock was set back."""
        return (self.us - moment_us + (self.set_back_us if moment_us > self.us else 0)) / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class LateLimits:
    """Ages beyond which capture or a target is late."""

    capture_s: float
    target_s: float


def derive_alarms(status: broker_pb2.BrokerStatus, now: ClockReading, late: LateLimits) -> Iterator[tuple[str, str]]:
    """Yield business and alarm for each adapter that is away or late, of the businesses led here."""
    for entry in status.businesses:
        if not is_led_elsewhere(entry):
            yield from (
                (entry.business, text)
                for text in [*_capture_alarms(entry, now, late.capture_s), *_target_alarms(entry, now, late.target_s)]
            )


def is_led_elsewhere(entry: broker_pb2.BusinessStatus) -> bool:
    """Return whether another broker of the cluster serves the producers and consumers of a business."""
    return entry.HasField("replication") and not entry.replication.mode


def _capture_alarms(entry: broker_pb2.BusinessStatus, now: ClockReading, late_s: float) -> Iterator[str]:
    if not entry.last_captured_at_us or entry.HasField("mirror"):
        return  # nothing was ever captured, or it is captured at another set
    captured_us, committed_us = entry.last_captured_at_us, entry.last_committed_at_us or entry.last_captured_at_us
    if not entry.producer:
        age_s = max(0.0, (now.us - captured_us) / 1e6)
        yield (
            "source -> broker: capture is not connected; "
            f"the newest change at the broker is {age_s:,.0f} s old; is `venus sync` running?"
        )
        return
    # only this broker's clock counts, the monotonic one if it saw the commit; the source's clock may differ
    silent_s = entry.committed_ago_ms / 1000 if entry.HasField("committed_ago_ms") else now.age_s(committed_us)
    if silent_s > late_s and not (entry.HasField("source") and entry.source.report.paused):
        yield silence_sentence(silent_s, max(entry.halves_total, len(entry.halves)))
    elif said := clock_problem((committed_us - captured_us) / 1e6, late_s):
        yield said


def _target_alarms(entry: broker_pb2.BusinessStatus, now: ClockReading, late_s: float) -> Iterator[str]:
    for consumer in entry.consumers:
        if consumer.group.startswith(PULLS_AS):
            yield from set_problems(
                consumer.group, connected=consumer.connected, backlog_rows=consumer.backlog_rows,
                late_s=now.age_s(consumer.oldest_unacknowledged_us) if consumer.oldest_unacknowledged_us else 0.0,
                late_max_s=late_s,
            )  # fmt: skip
            continue
        if consumer.HasField("reported") and (consumer.reported.report.paused or consumer.reported.report.cut_over):
            continue  # a pause has an alarm of its own, and a cut-over is intended
        yield from apply_problems(
            consumer.group.removeprefix(f"{entry.business}/"), connected=consumer.connected,
            backlog_rows=consumer.backlog_rows,
            late_s=now.age_s(consumer.oldest_unacknowledged_us) if consumer.oldest_unacknowledged_us else 0.0,
            late_max_s=late_s,
        )  # fmt: skip
