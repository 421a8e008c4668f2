"""The effect of each message about a half message: arrival, commit, rollback, review."""

from __future__ import annotations

import pytest

from venus.broker.machine import half_messages
from venus.broker.machine.half_messages import HalfAction, HalfMessage, HalfStage, HalfState
from venus.errors import Diverged, Fenced, IllegalTransition, ProtocolError
from venus.model import Verdict

EPOCH = 3


def message(batch_no: int, digest: int = 0, count: int = 2) -> HalfMessage:
    return HalfMessage(batch_no=batch_no, digest=digest or batch_no * 11, first_sequence=batch_no * 10, count=count)


def with_halves(*numbers: int) -> HalfState:
    state = half_messages.raise_epoch(HalfState(), EPOCH, "p")
    for number in numbers:
        state = half_messages.add_half(state, message(number))
    return state


def test_every_pair_of_stage_and_event_is_in_the_table_or_a_contradiction() -> None:
    missing = {(s, e) for s in HalfStage for e in half_messages.HalfEvent} - set(half_messages._NEXT)

    assert missing == {
        (HalfStage.ABSENT, half_messages.HalfEvent.COMMIT),
        (HalfStage.COMMITTED, half_messages.HalfEvent.ROLLBACK),
        (HalfStage.ROLLED_BACK, half_messages.HalfEvent.COMMIT),
    }


def test_offsets_are_consecutive_also_after_an_empty_batch() -> None:
    state = with_halves(1)
    state = half_messages.add_half(state, message(2, count=0))
    state = half_messages.add_half(state, message(3))

    state, placed = half_messages.commit(state, 3)

    assert [offset for offset, _ in placed] == [0, 2, 3]
    assert (state.next_offset, state.last_batch, state.last_sequence) == (5, 3, 31)


def test_a_number_can_be_used_again_after_a_rollback() -> None:
    state, removed = half_messages.roll_back(with_halves(1, 2, 3), 2)
    assert [found.batch_no for found in removed] == [2, 3]
    again = message(2, digest=99)

    assert half_messages.judge_arrival(state, EPOCH, again) is HalfAction.PERSIST
    state = half_messages.add_half(state, again)

    assert (
        half_messages.judge_decision(state, EPOCH, 2, 22, Verdict.ROLLBACK) is HalfAction.ANSWER
    )  # a late decision about the first use
    with pytest.raises(IllegalTransition):
        half_messages.judge_decision(state, EPOCH, 2, 22, Verdict.COMMIT)
    assert half_messages.judge_decision(state, EPOCH, 2, 99, Verdict.COMMIT) is HalfAction.COMMIT


def test_a_committed_batch_stays_committed() -> None:
    state, _ = half_messages.commit(with_halves(1, 2), 2)

    assert half_messages.judge_decision(state, EPOCH, 1, 11, Verdict.COMMIT) is HalfAction.ANSWER
    assert half_messages.recorded_answer(state, 1, 11, Verdict.COMMIT).next_offset == 2
    with pytest.raises(IllegalTransition, match="COMMITTED"):
        half_messages.judge_decision(state, EPOCH, 1, 11, Verdict.ROLLBACK)
    with pytest.raises(IllegalTransition, match="committed with digest"):
        half_messages.judge_decision(state, EPOCH, 1, 12, Verdict.COMMIT)
    with pytest.raises(ProtocolError):
        half_messages.judge_arrival(state, EPOCH, message(2, digest=5))


def test_a_commit_older_than_the_record_is_still_a_commit() -> None:
    state = with_halves()
    for number in range(1, half_messages.OUTCOMES_MAX + 5):
        state, _ = half_messages.commit(half_messages.add_half(state, message(number)), number)

    assert len(state.outcomes) == half_messages.OUTCOMES_MAX
    assert half_messages.judge_decision(state, EPOCH, 1, 11, Verdict.COMMIT) is HalfAction.ANSWER
    with pytest.raises(IllegalTransition):
        half_messages.judge_decision(state, EPOCH, 1, 11, Verdict.ROLLBACK)


def test_a_decision_about_an_unknown_batch_is_refused() -> None:
    state = with_halves(1)

    with pytest.raises(IllegalTransition, match="ABSENT"):
        half_messages.judge_decision(state, EPOCH, 2, 22, Verdict.COMMIT)
    assert half_messages.judge_decision(state, EPOCH, 2, 22, Verdict.ROLLBACK) is HalfAction.ANSWER
    assert half_messages.judge_decision(state, EPOCH, 1, 11, Verdict.UNKNOWN) is HalfAction.WAIT


def test_gaps_repetitions_and_strangers_are_distinguished() -> None:
    state = with_halves(1, 2)

    assert half_messages.judge_arrival(state, EPOCH, message(4)) is HalfAction.RESEND
    assert half_messages.judge_arrival(state, EPOCH, message(2)) is HalfAction.ANSWER
    for epoch in (EPOCH - 1, EPOCH + 1):
        with pytest.raises(Fenced):
            half_messages.judge_arrival(state, epoch, message(3))
        with pytest.raises(Fenced):
            half_messages.judge_decision(state, epoch, 2, 22, Verdict.COMMIT)


def test_sequences_never_decrease() -> None:
    state = with_halves(1, 2)

    with pytest.raises(Diverged, match="back in time"):
        half_messages.judge_arrival(state, EPOCH, HalfMessage(batch_no=3, digest=1, first_sequence=21, count=1))
    assert (
        half_messages.judge_arrival(state, EPOCH, HalfMessage(batch_no=3, digest=1, first_sequence=22, count=1))
        is HalfAction.PERSIST
    )


def test_the_epoch_rises_above_both_sides() -> None:
    assert half_messages.next_epoch(with_halves(), 0, 0) == EPOCH + 1
    assert half_messages.next_epoch(with_halves(), 9, 0) == 10


def test_the_epoch_is_above_the_time_so_that_no_lost_history_had_it() -> None:
    assert half_messages.next_epoch(with_halves(), 9, 1_700_000_000_123_456) == 1_700_000_000_124
    assert half_messages.next_epoch(with_halves(), 1_700_000_000_200, 1_700_000_000_123_456) == 1_700_000_000_201


def test_a_source_that_is_ahead_is_refused() -> None:
    half_messages.check_producer(with_halves(1, 2), 2)
    with pytest.raises(Diverged) as refused:
        half_messages.check_producer(with_halves(1, 2), 3)
    assert "`venus migrate` for each target" in refused.value.hint
