"""The window that all businesses share: limited in total, fair, never closed."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from venus.flow.precedence import SMALL_BYTES
from venus.flow.write_queue import START_BYTES, WriteQueue, WriteSlot

MIB = 1 << 20


def build_queue(most: int = 48 * MIB, least: int = MIB) -> WriteQueue:
    return WriteQueue(most=most, least=least, target_s=0.1)


@given(st.lists(st.tuples(st.integers(1, 3 * MIB), st.sampled_from([0.0, 0.05, 0.3])), max_size=200))
def test_all_businesses_together_stay_within_the_window_and_each_is_served(steps: list[tuple[int, float]]) -> None:
    turns = build_queue(most=6 * MIB)
    going: deque[WriteSlot] = deque()
    asked = []
    for nbytes, waited_s in steps:
        asked.append(turns.request_slot(nbytes))
        if asked[-1].granted:
            going.append(asked[-1])
            large = [turn for turn in going if not turn.is_small]
            assert len(large) == 1 or sum(turn.nbytes for turn in large) <= 6 * MIB
        if waited_s and going:
            going.extend(turns.on_saved(going.popleft(), waited_s))
        assert turns.nbytes == sum(turn.nbytes for turn in going)
        assert MIB <= turns.size <= 6 * MIB
    while going:
        going.extend(turns.on_saved(going.popleft(), 0.3))
    assert all(turn.granted for turn in asked)
    assert (turns.nbytes, turns.waiting) == (0, 0)


def test_two_hundred_businesses_that_begin_at_once_share_one_window() -> None:
    turns = build_queue()
    asked = [turns.request_slot(MIB) for _ in range(200)]
    assert sum(turn.granted for turn in asked) == START_BYTES // MIB
    assert turns.nbytes == START_BYTES


def test_no_sender_waits_for_more_than_one_piece_of_each_other() -> None:
    turns = build_queue(most=4 * MIB)
    who = {turns.request_slot(MIB): n for n in range(20)}
    going = [turn for turn in who if turn.granted]
    pieces = [0] * 20
    for _ in range(400):
        turn = going.pop(0)
        pieces[who[turn]] += 1
        after = turns.on_saved(turn, 0.05)
        again = turns.request_slot(MIB)  # the last holder's turn comes with the next piece
        who[again] = who[turn]
        going += after + [again] * again.granted
        assert max(pieces) - min(pieces) <= 1
    assert pieces == [20] * 20


def test_small_pieces_overtake_large_ones_and_neither_waits_for_the_other() -> None:
    turns = build_queue(most=4 * MIB)
    large = [turns.request_slot(MIB) for _ in range(8)]
    small = [turns.request_slot(SMALL_BYTES) for _ in range(200)]
    assert sum(turn.granted for turn in small) == MIB // SMALL_BYTES, "a quarter of the window, beside it"
    assert turns.on_saved(large[0], 0.05) == [large[4]], "small ones do not take a large one's room"
    assert turns.on_saved(small[0], 0.05) == [small[16]]


def test_the_window_shrinks_once_for_everything_in_flight_and_recovers() -> None:
    turns = build_queue()
    going = deque(turns.request_slot(MIB) for _ in range(4))
    for _ in range(4):
        turns.on_saved(going.popleft(), 0.4)
    assert turns.size == START_BYTES // 2, "by half at most; the other three waited behind the same bytes"
    sizes = []
    for _ in range(100):
        turns.on_saved(turns.request_slot(turns.size), 0.05)
        sizes.append(turns.size)
    assert sizes == sorted(sizes)
    assert 2 * sizes[0] < sizes[-1] < 48 * MIB, "a step for each windowful"


def test_the_window_shrinks_by_the_lateness() -> None:
    turns = build_queue()
    turns.on_saved(turns.request_slot(3 * MIB), 0.125)
    assert turns.size == int(START_BYTES * 0.8)


def test_before_the_first_slow_answer_the_window_doubles() -> None:
    turns = build_queue()
    for _ in range(4):
        turns.on_saved(turns.request_slot(MIB), 0.01)
    assert turns.size == START_BYTES, "a window that is hardly used tells nothing"
    for _ in range(3):
        turns.on_saved(turns.request_slot(turns.size), 0.01)
    assert turns.size == 8 * START_BYTES


def test_the_smallest_window_still_lets_a_piece_of_any_size_through() -> None:
    turns = build_queue(most=2 * MIB)
    for _ in range(50):
        turns.on_saved(turns.request_slot(16 * MIB), 10.0)
    assert turns.size == MIB
    turn, behind = turns.request_slot(16 * MIB), turns.request_slot(16 * MIB)
    assert turn.granted
    assert not behind.granted
    assert turns.on_saved(turn, 10.0) == [behind]


def test_a_sender_that_gives_up_lets_the_next_one_through() -> None:
    turns = build_queue(most=4 * MIB)
    first = turns.request_slot(3 * MIB)
    second, third = turns.request_slot(3 * MIB), turns.request_slot(MIB)
    assert not third.granted, "it does not pass the one before"
    assert turns.give_up(second) == [third]
    assert turns.give_up(first) == []
    assert turns.nbytes == MIB
