"""The offset that a consumer needs, its applied offset, and the length of its absence."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from venus.broker.machine import consumers, records
from venus.broker.machine.consumers import AWAY_STEP_MAX_US, ConsumerState, kept_offsets


def consumer(acknowledged: int, kept: int | None = None, *, token: int = 0, transient: bool = False) -> ConsumerState:
    kept = acknowledged if kept is None else kept
    return ConsumerState(group="g", acknowledged=acknowledged, kept=kept, token=token, transient=transient)


@pytest.mark.parametrize(
    ("found", "pins", "point"),
    [
        ([], [], 100),
        ([consumer(40)], [], 40),
        ([consumer(80, 40)], [], 40),
        ([consumer(140)], [], 100),
        ([consumer(40, transient=True)], [], 100),
        ([consumer(40, transient=True, token=1)], [], 40),
        ([consumer(40), consumer(60)], [30], 30),
    ],
)
def test_the_trim_point_is_that_of_the_slowest_counted_consumer(
    found: list[ConsumerState], pins: list[int], point: int
) -> None:
    assert consumers.trim_point(100, kept_offsets(found), pins) == point


@pytest.mark.parametrize(
    ("known", "offset", "kept", "wanted"),
    [
        (None, 50, None, (50, 50)),  # nothing is kept for an unknown group
        (None, 50, 30, (50, 30)),
        (None, 50, 5, (50, 10)),  # the queue begins at 10: earlier offsets cannot be kept
        (consumer(50, 30), 50, None, (50, 30)),  # a stream is reopened: nothing is released
        (consumer(50, 30), 80, None, (80, 30)),
        (consumer(50, 30), 80, 60, (80, 60)),
        (consumer(50, 30), 20, None, (20, 20)),  # a target that was restored from a backup
        (consumer(50, 30), 50, 90, (50, 50)),
    ],
)
def test_an_attachment_alone_releases_nothing(
    known: ConsumerState | None, offset: int, kept: int | None, wanted: tuple[int, int]
) -> None:
    made = consumers.attach(known, consumer(offset, token=7), kept=kept, log_start=10)

    assert (made.acknowledged, made.kept) == wanted
    assert (made.token, made.away_us) == (7, 0)


@pytest.mark.parametrize(
    ("applied", "kept", "wanted"),
    [
        (70, None, (70, 70)),  # an older consumer reports one position
        (70, 40, (70, 40)),
        (70, 20, (70, 30)),  # no position decreases
        (40, None, (50, 40)),
        (40, 35, (50, 35)),
        (0, 45, (50, 45)),
        (0, None, (50, 30)),
        (400, None, (100, 100)),  # an offset beyond the end cannot be applied
        (70, 400, (70, 70)),
    ],
)
def test_an_acknowledgement_moves_both_positions_forward(
    applied: int, kept: int | None, wanted: tuple[int, int]
) -> None:
    made = consumers.acknowledge(consumer(50, 30, token=1), applied=applied, kept=kept, end=100, now_us=9)

    assert (made.acknowledged, made.kept, made.updated_at_us) == (*wanted, 9)


def test_only_time_in_which_the_broker_ran_counts_as_absence() -> None:
    here, gone = consumer(1, token=1), consumer(1)
    assert consumers.count_absence(here, 10**9) == here
    assert consumers.count_absence(gone, 5).away_us == 5
    assert consumers.count_absence(gone, -5).away_us == 0
    assert consumers.count_absence(gone, 10**15).away_us == AWAY_STEP_MAX_US
    assert [consumers.has_expired(replace(gone, away_us=n * 10**6), 10) for n in (10, 11)] == [False, True]
    assert not consumers.has_expired(replace(here, away_us=11 * 10**6), 10)
    assert consumers.detach(replace(here, away_us=5), now_us=3).away_us == 0


def test_an_absence_is_stored_in_steps_of_minutes() -> None:
    """Rarely enough to cost nothing, often enough for a broker that restarts every day."""
    passed = [replace(consumer(1), away_us=n * 10**6) for n in range(0, 7 * 86400, 60)]
    stored = sum(consumers.should_store_absence(a, b, 7 * 86400.0) for a, b in itertools.pairwise(passed))

    assert stored == 7 * 86400 // 600 - 1


def test_a_record_of_an_older_version_has_one_position() -> None:
    found = records.decode_consumer({"group": "g", "acknowledged": 5, "transient": False, "updated_at_us": 3})

    assert found == replace(consumer(5), updated_at_us=3)
    assert records.decode_consumer(records.consumer_record(consumer(9, 5))) == consumer(9, 5)
