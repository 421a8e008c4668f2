"""Time that is missing between the beats of a clock is no reason to isolate a peer."""

from __future__ import annotations

from venus.flow.breaker import KEPT, Stalls


def record_beats(*beats: float) -> Stalls:
    found = Stalls(every_s=0.1)
    for beat in beats:
        found.record_beat(beat)
    return found


def test_beats_in_time_show_no_stall() -> None:
    assert record_beats(0.0, 0.1, 0.2, 0.25).missing_s(0.0, 0.3) == 0.0


def test_a_late_beat_shows_a_stall_within_the_requested_time_only() -> None:
    stalls = record_beats(0.0, 1.0, 1.1)
    assert stalls.missing_s(0.0, 1.1) == 0.9
    assert round(stalls.missing_s(0.5, 1.1), 9) == 0.5
    assert round(stalls.missing_s(0.0, 0.4), 9) == 0.3
    assert stalls.missing_s(1.0, 1.1) == 0.0


def test_a_missing_beat_shows_a_stall_too() -> None:
    assert round(record_beats(0.0).missing_s(0.0, 2.0), 9) == 1.9


def test_while_no_beat_is_expected_there_is_no_stall() -> None:
    stalls = record_beats(0.0, 0.1)
    stalls.pause()
    assert stalls.missing_s(0.0, 60.0) == 0.0
    stalls.record_beat(60.0)
    assert stalls.missing_s(0.0, 60.0) == 0.0


def test_the_memory_of_stalls_is_limited() -> None:
    stalls = record_beats(*range(3 * KEPT))
    assert stalls.missing_s(0, KEPT) == 0.0, "that long ago is unknown"
    assert len(stalls._gaps) == KEPT


def test_of_many_stalls_only_those_within_the_requested_time_are_read() -> None:
    stalls = record_beats(*(0.2 * n for n in range(KEPT)))
    last = 0.2 * (KEPT - 1)

    class ReadCountingList(list[tuple[float, float]]):
        read = 0

        def __reversed__(self):  # type: ignore[no-untyped-def]
            for gap in super().__reversed__():
                self.read += 1
                yield gap

    gaps = ReadCountingList(stalls._gaps)
    stalls._gaps = gaps  # type: ignore[assignment]
    assert round(stalls.missing_s(last - 1.0, last), 9) == 0.5
    assert gaps.read < 10
