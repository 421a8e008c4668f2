"""The poll interval: shorter while there are changes, longer while the source is idle."""

from venus.adapters.upper.batching import RECENT_S, PollInterval


def test_an_idle_source_is_polled_ever_more_rarely() -> None:
    pace = PollInterval(min_s=0.002, max_s=0.05)
    assert [pace.next_delay_s(now) for now in range(7)] == [0.002, 0.004, 0.008, 0.016, 0.032, 0.05, 0.05]


def test_the_interval_stays_short_after_recent_traffic() -> None:
    pace = PollInterval(min_s=0.002, max_s=0.05)
    for now in range(8):
        pace.next_delay_s(now)
    pace.on_traffic(100.0)
    assert {pace.next_delay_s(100.0 + n * RECENT_S / 100) for n in range(100)} == {0.002}
    assert pace.next_delay_s(100.0 + RECENT_S) == 0.002
    assert pace.next_delay_s(100.1 + RECENT_S) == 0.004


def test_a_maximum_below_the_minimum_counts_as_the_minimum() -> None:
    pace = PollInterval(min_s=0.1, max_s=0.01)
    assert [pace.next_delay_s(n) for n in range(3)] == [0.1] * 3
