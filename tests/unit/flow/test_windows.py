"""A window shrinks for a slow consumer, grows again, and never stops a consumer permanently."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from venus.flow.admission import WINDOW_STEP_BYTES, DeliveryWindow


def test_a_fast_consumer_keeps_its_whole_credit() -> None:
    window = DeliveryWindow(most=16 << 20, slow_s=5)
    for second in range(100):
        window.on_sent(16 << 20, second)
        assert not window.halve_if_slow(second + 1)
        window.on_returned(16 << 20, second + 1)
    assert window.size == window.room == 16 << 20
    assert window.slow_since is None


def test_the_window_is_halved_for_each_missing_answer_and_the_consumer_is_named() -> None:
    window = DeliveryWindow(most=16 << 20, slow_s=5)
    window.on_sent(1 << 20, 100.0)
    halved = [second for second in range(100, 200) if window.halve_if_slow(float(second))]
    assert halved == list(range(105, 200, 5))
    assert window.size == WINDOW_STEP_BYTES
    assert window.slow_since == 100.0


def test_the_window_grows_by_a_step_for_each_fast_answer() -> None:
    window = DeliveryWindow(most=1 << 20, slow_s=5)
    window.on_sent(1 << 20, 0.0)
    assert window.halve_if_slow(5.0)
    assert window.size == 1 << 19
    window.on_returned(1 << 20, 11.0)
    assert window.slow_since == 0.0, "an answer that took too long is no sign of speed"
    for n in range(1, 8):
        window.on_sent(1000, 12.0 + n)
        window.on_returned(1000, 12.5 + n)
        assert window.size == (1 << 19) + n * WINDOW_STEP_BYTES
    assert window.slow_since is None


def test_a_consumer_without_outstanding_frames_is_not_slow() -> None:
    window = DeliveryWindow(most=1 << 20, slow_s=5)
    assert not window.halve_if_slow(1000.0)
    window.on_sent(10, 1000.0)
    window.on_returned(10, 1000.1)
    assert not window.halve_if_slow(2000.0)


@given(st.lists(st.tuples(st.sampled_from("srl"), st.integers(1, 1 << 22), st.floats(0, 10)), max_size=200))
def test_the_window_stays_between_one_step_and_the_credit(events: list[tuple[str, int, float]]) -> None:
    window, now, out = DeliveryWindow(most=1 << 22, slow_s=5), 0.0, 0
    for kind, nbytes, later in events:
        now += later
        if kind == "s" and window.room:
            window.on_sent(nbytes, now)
            out += nbytes
        elif kind == "r":
            back = min(out, nbytes)
            window.on_returned(back, now)
            out -= back
        else:
            window.halve_if_slow(now)
        assert WINDOW_STEP_BYTES <= window.size <= 1 << 22
        assert window.outstanding == out
    window.on_returned(out, now)
    assert window.room > 0, "who has given everything back can always be sent something"


def test_a_small_window_is_used_by_halves_and_a_full_one_to_its_end() -> None:
    window = DeliveryWindow(most=1 << 20, slow_s=5)
    window.on_sent((1 << 20) - 100, 0.0)
    assert window.room == 100
    assert window.halve_if_slow(5.0)
    window.on_returned((1 << 20) - 100, 11.0)
    window.on_sent(300_000, 11.0)
    assert window.size == 1 << 19
    assert window.room == 0, "room for a few messages would be a frame for a few messages"
    window.on_returned(100_000, 17.0)
    assert window.room == (1 << 19) - 200_000
