"""The record of a business keeps possible losses of unclean elections until a repair of every target closes them."""

from __future__ import annotations

from dataclasses import replace

from venus.broker.machine.loss import Loss, groups_to_verify, record_losses, record_verification, unrecorded_terms
from venus.broker.replicas.replication_status import loss_alarms
from venus.coordination.operator_changes import find_problems
from venus.replication.records import Leadership, LiveBroker, LossWindow, Member, Policy

B = Member(broker="b", store="s")
KNOWN = Leadership(
    business="main",
    term=5,
    leader=B,
    in_sync=frozenset({B}),
    replicas=("b",),
    policy=Policy.AVAILABILITY,
    unclean_terms=(4, 5),
    version=9,
)
OPEN = Loss(term=4, first_offset=10, first_batch=2)
MEASURED = Loss(term=4, first_offset=10, end_offset=28, first_batch=2, last_batch=4, rows=15)
EMPTY = Loss(term=5, first_offset=28, end_offset=28, first_batch=5, last_batch=4)


def test_the_record_takes_a_loss_of_the_log_once() -> None:
    assert unrecorded_terms(KNOWN) == (4, 5)
    begun = record_losses(KNOWN, [OPEN])
    assert begun is not None
    assert [(w.first_offset, w.is_measured) for w in begun.losses] == [(10, False)]
    assert record_losses(begun, [OPEN]) is None
    known = record_losses(begun, [MEASURED])
    assert known is not None
    assert [(w.first_offset, w.end_offset, w.rows) for w in known.losses] == [(10, 28, 15)]
    assert unrecorded_terms(known) == (5,)
    assert record_losses(known, [MEASURED]) is None
    assert record_losses(known, [replace(MEASURED, rows=99)]) is None  # a measured window stays
    assert record_losses(known, [Loss(term=3, first_offset=1)]) is None  # closed long ago


def test_an_empty_window_is_closed() -> None:
    after = record_losses(KNOWN, [MEASURED, EMPTY])
    assert after is not None
    assert (after.unclean_terms, [w.term for w in after.losses]) == ((4,), [4])


def test_a_window_is_closed_once_every_target_was_compared() -> None:
    known = record_losses(KNOWN, [MEASURED])
    assert known is not None
    groups = ["main/one", "main/two"]
    half = record_verification(known, "main/one", [4], groups)
    assert groups_to_verify(half.losses[0], groups) == ["main/two"]
    assert half.unclean_terms == (4, 5)
    assert record_verification(half, "main/one", [4], groups) == half
    done = record_verification(half, "main/two", [4], groups)
    assert (done.losses, done.unclean_terms) == ((), (5,))


def test_a_window_that_began_later_or_is_unmeasured_stays_open() -> None:
    known = record_losses(KNOWN, [MEASURED, Loss(term=5, first_offset=40)])
    assert known is not None
    assert record_verification(known, "main/one", [5], ["main/one"]).losses == known.losses
    after = record_verification(known, "main/one", [4, 5], ["main/one"])
    assert [w.term for w in after.losses] == [5]
    assert after.unclean_terms == (5,)


def test_every_open_window_is_reported() -> None:
    known = replace(
        KNOWN, losses=(LossWindow(term=4, first_offset=10, end_offset=28, first_batch=2, last_batch=4, rows=15),)
    )
    sentence = "the unclean election of term 4 may have lost offsets 10 to 27 (15 changes in batches 2 to 4)"
    assert loss_alarms(known)[0].startswith(sentence)
    assert loss_alarms(known)[1].startswith(
        "the unclean election of term 5 may have lost changes that were acknowledged before"
    )
    said = find_problems([known], [LiveBroker(member=B, address="h:1")])
    assert any(line.startswith(f"main: {sentence}") for line in said)
    begun = replace(KNOWN, losses=(LossWindow(term=4, first_offset=10),))
    assert "offsets from 10 on, up to where the producer says" in loss_alarms(begun)[0]
