"""Resending, coalescing and the send window of a producer."""

from __future__ import annotations

from venus.flow.precedence import SMALL_BYTES
from venus.rpc.channel import FRAME_BYTES
from venus.rpc.outgoing import OVERHEAD_BYTES, Outgoing
from venus.wire import broker_pb2


def half(batch_no: int, nbytes: int = 10) -> broker_pb2.Half:
    return broker_pb2.Half(batch_no=batch_no, digest=batch_no * 7, body=b"x" * nbytes)


def decision(batch_no: int, verdict: broker_pb2.Verdict.ValueType = broker_pb2.COMMIT) -> broker_pb2.Decision:
    return broker_pb2.Decision(epoch=1, batch_no=batch_no, digest=batch_no * 7, verdict=verdict)


def numbers(frame: broker_pb2.ProducerFrame) -> list[int]:
    return [h.batch_no for h in frame.halves]


def test_everything_queued_is_sent_in_one_frame() -> None:
    outgoing = Outgoing()
    for n in (1, 2, 3):
        outgoing.add_half(half(n))
    outgoing.add_decision(decision(1))
    frame = outgoing.take()
    assert numbers(frame) == [1, 2, 3]
    assert [d.batch_no for d in frame.decisions] == [1]
    assert not outgoing


def warm_up() -> Outgoing:
    """Return an outgoing queue whose frames have their maximum size."""
    outgoing = Outgoing()
    for _ in range(10):
        outgoing.add_half(half(0))
        outgoing.take()
        outgoing.on_persisted(0)
    return outgoing


def test_a_frame_is_limited_and_a_large_half_message_is_sent_alone() -> None:
    outgoing = warm_up()
    outgoing.add_half(half(1, 3 * FRAME_BYTES))
    outgoing.add_half(half(2, FRAME_BYTES // 2))
    outgoing.add_half(half(3, FRAME_BYTES // 2))
    assert [numbers(outgoing.take()) for _ in range(3)] == [[1], [2], [3]]


def test_resending_repeats_half_messages_from_the_number_on_and_unanswered_decisions_in_order() -> None:
    outgoing = Outgoing()
    for n in range(1, 6):
        outgoing.add_half(half(n))
    outgoing.add_decision(decision(1))
    outgoing.take()
    outgoing.add_half(half(6))
    outgoing.add_decision(decision(2))
    outgoing.resend(3)
    frame = outgoing.take()
    assert numbers(frame) == [3, 4, 5, 6]
    assert [d.batch_no for d in frame.decisions] == [1, 2]


def test_acknowledged_half_messages_leave_the_window_even_if_queued_again() -> None:
    outgoing = Outgoing()
    for n in range(1, 5):
        outgoing.add_half(half(n))
    assert outgoing.unacknowledged_bytes == 4 * (10 + OVERHEAD_BYTES)
    outgoing.take()
    outgoing.resend(1)
    outgoing.on_persisted(3)
    assert outgoing.unacknowledged_bytes == 10 + OVERHEAD_BYTES
    assert numbers(outgoing.take()) == [4]


def test_a_later_commit_in_the_queue_replaces_the_earlier() -> None:
    outgoing = Outgoing()
    outgoing.add_decision(decision(1))
    outgoing.add_decision(decision(2))
    outgoing.add_decision(decision(3, broker_pb2.ROLLBACK))
    outgoing.add_decision(decision(3))
    assert [(d.batch_no, d.verdict) for d in outgoing.take().decisions] == [
        (2, broker_pb2.COMMIT),
        (3, broker_pb2.ROLLBACK),
        (3, broker_pb2.COMMIT),
    ]


def test_a_rollback_drops_its_half_messages_and_reserves_their_numbers_until_answered() -> None:
    outgoing = Outgoing()
    for n in (1, 2, 3):
        outgoing.add_half(half(n))
    outgoing.take()
    outgoing.add_decision(decision(2, broker_pb2.ROLLBACK))
    assert outgoing.is_rolling_back
    assert outgoing.unacknowledged_bytes == 10 + OVERHEAD_BYTES
    outgoing.take()
    assert outgoing.is_rolling_back
    outgoing.on_decided(broker_pb2.Decided(verdict=broker_pb2.ROLLBACK, batch_no=2))
    assert not outgoing.is_rolling_back
    outgoing.resend(0)
    assert numbers(outgoing.take()) == [1]


def test_an_answered_commit_is_not_repeated() -> None:
    outgoing = Outgoing()
    outgoing.add_decision(decision(2))
    outgoing.take()
    outgoing.add_decision(decision(5))
    outgoing.take()
    outgoing.on_decided(broker_pb2.Decided(verdict=broker_pb2.COMMIT, batch_no=2))
    outgoing.resend(9)
    assert [d.batch_no for d in outgoing.take().decisions] == [5]


def test_unknown_is_sent_once_and_waits_for_no_answer() -> None:
    outgoing = Outgoing()
    outgoing.add_decision(decision(2, broker_pb2.UNKNOWN))
    assert len(outgoing.take().decisions) == 1
    outgoing.resend(1)
    assert not outgoing


def test_a_decision_that_is_waited_for_stays_so_when_another_replaces_it() -> None:
    outgoing = Outgoing()
    outgoing.add_decision(decision(1))
    for n in (2, 3):
        patient = decision(n)
        patient.can_wait = True
        outgoing.add_decision(patient)
    (hurried,) = outgoing.take().decisions
    assert (hurried.batch_no, hurried.can_wait) == (3, False)
    patient.can_wait = True
    outgoing.add_decision(patient)
    assert outgoing.take().decisions[0].can_wait


def frame_sizes(outgoing: Outgoing, count: int) -> list[int]:
    return [len(outgoing.take().halves) for _ in range(count)]


def test_frames_begin_small_and_double_with_each_acknowledgement() -> None:
    outgoing, each, sizes = Outgoing(), SMALL_BYTES // 4 - OVERHEAD_BYTES, []
    for n in range(1, 401):
        outgoing.add_half(half(n, each))
    for _ in range(4):
        sizes += frame_sizes(outgoing, 1)
        assert not outgoing, "the next half messages go when these are on disk"
        assert frame_sizes(outgoing, 1) == [0]
        outgoing.on_persisted(sum(sizes) - 1)
        assert not outgoing, "all of them"
        outgoing.on_persisted(sum(sizes))
        assert outgoing
    assert sizes == [4, 8, 16, 32]
    assert frame_sizes(outgoing, 3) == [FRAME_BYTES // SMALL_BYTES * 4] * 3, "no further, and one behind the other"


def test_decisions_do_not_wait_for_half_messages_in_flight() -> None:
    outgoing = Outgoing()
    outgoing.add_half(half(1, SMALL_BYTES))
    outgoing.take()
    outgoing.add_half(half(2, SMALL_BYTES))
    outgoing.add_decision(decision(1))
    assert outgoing
    frame = outgoing.take()
    assert (len(frame.halves), len(frame.decisions)) == (0, 1)


def test_queued_messages_are_sent_at_once_when_the_stream_ends() -> None:
    outgoing = Outgoing()
    outgoing.add_half(half(1, SMALL_BYTES))
    outgoing.take()
    outgoing.add_half(half(2, SMALL_BYTES))
    assert not outgoing
    outgoing.hurry()
    assert numbers(outgoing.take()) == [2]


def test_after_a_refusal_frames_are_small_again() -> None:
    outgoing, each = warm_up(), SMALL_BYTES // 4 - OVERHEAD_BYTES
    for n in range(1, 101):
        outgoing.add_half(half(n, each))
    assert frame_sizes(outgoing, 1) == [64]
    outgoing.resend()
    assert frame_sizes(outgoing, 2) == [4, 0]
    outgoing.on_persisted(4)
    assert frame_sizes(outgoing, 1) == [8]


def test_frames_undone_by_a_rollback_keep_no_later_one_small() -> None:
    outgoing = Outgoing()
    for n in (1, 2):
        outgoing.add_half(half(n, SMALL_BYTES))
        outgoing.take()
    outgoing.add_decision(decision(1, broker_pb2.ROLLBACK))
    outgoing.take()
    outgoing.add_half(half(1, SMALL_BYTES))
    outgoing.take()
    outgoing.on_persisted(1)
    for n in (2, 3):
        outgoing.add_half(half(n, SMALL_BYTES - OVERHEAD_BYTES))
    assert numbers(outgoing.take()) == [2, 3]


def test_of_two_commits_the_one_with_the_later_batch_is_sent_in_either_order() -> None:
    """A cut is committed, and a review asks about one of its first half messages."""
    for numbers_asked in ((9, 7), (7, 9)):
        outgoing = Outgoing()
        for n in numbers_asked:
            outgoing.add_decision(decision(n))
        assert [d.batch_no for d in outgoing.take().decisions] == [9]


def test_a_half_message_is_sent_directly_only_after_durable_ones() -> None:
    outgoing = warm_up()
    outgoing.add_half(half(1))
    assert outgoing.find_half() == half(1)
    outgoing.record_half()
    assert not outgoing
    outgoing.add_half(half(2))
    assert outgoing.find_half() is None, "the one before it is not on disk yet"
    outgoing.on_persisted(1)
    assert outgoing.find_half() == half(2)
    outgoing.add_half(half(3))
    assert outgoing.find_half() is None, "two go in a frame"
    outgoing.take()
    outgoing.on_persisted(3)
    outgoing.add_decision(decision(3))
    outgoing.add_half(half(4))
    assert outgoing.find_half() is None, "a decision waits in front of it"


def test_a_directly_sent_half_message_is_resent_and_counts_in_the_window() -> None:
    outgoing = Outgoing()
    outgoing.add_half(half(1))
    outgoing.record_half()
    assert outgoing.unacknowledged_bytes
    outgoing.add_half(half(2))
    assert not outgoing, "small frames wait for each other"
    outgoing.resend()
    assert numbers(outgoing.take()) == [1, 2]
    outgoing.on_persisted(2)
    assert not outgoing.unacknowledged_bytes


def test_a_commit_is_sent_directly_only_for_durable_half_messages() -> None:
    outgoing = Outgoing()
    outgoing.add_decision(decision(2))
    assert outgoing.find_commit(1) is None
    assert outgoing.find_commit(2) == decision(2)
    outgoing.record_commit()
    assert not outgoing
    outgoing.resend()
    assert [d.batch_no for d in outgoing.take().decisions] == [2]


def test_a_rollback_and_a_commit_after_one_are_never_sent_directly() -> None:
    outgoing = Outgoing()
    outgoing.add_decision(decision(2, broker_pb2.ROLLBACK))
    assert outgoing.find_commit(9) is None
    outgoing.add_decision(decision(1))
    assert outgoing.find_commit(9) is None
