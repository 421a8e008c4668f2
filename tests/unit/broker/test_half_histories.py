"""Thousands of random histories of one queue: crashes of producers and broker, zombies, loss, duplication, delay.

The broker of this model is half_messages.py itself; source, producers and network are models. After each history the
queue must have every row of the source once, in order, and no undecided half message. Without any one of the mechanisms
that must fail, or the simulation would prove nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.engines.half_histories import Network, World, run_histories
from venus.broker.machine import half_messages
from venus.broker.machine.half_messages import HalfMessage, HalfState, SharedSequence
from venus.model import Verdict

HISTORIES = 800


@pytest.mark.parametrize("network", Network)
def test_every_row_arrives_once_and_in_order_and_nothing_stays_undecided(network: Network) -> None:
    assert run_histories(network, HISTORIES) == {"exact": HISTORIES}


def test_offsets_are_dense() -> None:
    world = World(7, Network.WILD)

    world.run()

    ends = [outcome.next_offset for outcome in world.broker.state.outcomes if outcome.verdict is Verdict.COMMIT]
    assert world.broker.offsets[0] == 0
    assert ends[-1] == world.broker.state.next_offset == len(world.broker.queue)


def disable_fence(_state: HalfState, _epoch: int) -> None:
    """Accept every producer, whatever its epoch."""


def remove_without_cascade(state: HalfState, batch_no: int) -> tuple[HalfState, tuple[HalfMessage, ...]]:
    """Remove the one half message, but keep those that were captured after it."""
    removed = tuple(found for found in state.halves if found.batch_no == batch_no)
    return replace(state, halves=SharedSequence(f for f in state.halves if f.batch_no != batch_no)), removed


def find_by_number(
    state: HalfState, batch_no: int, _digest: int, _mismatch: type[Exception]
) -> half_messages.HalfStage:
    """Apply a decision about a batch number to the half message that has the number now."""
    if state.find_undecided(batch_no) is not None:
        return half_messages.HalfStage.HALF
    return half_messages.HalfStage.COMMITTED if batch_no <= state.last_batch else half_messages.HalfStage.ABSENT


@pytest.mark.parametrize(
    ("name", "without", "network"),
    [
        ("check_fencing", disable_fence, Network.WILD),
        ("roll_back", remove_without_cascade, Network.FIFO),
        ("find_stage", find_by_number, Network.LATE_DECISIONS),
    ],
    ids=["without fencing", "without the cascade", "without the digest"],
)
def test_a_disabled_mechanism_is_noticed(
    name: str, without: Any, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half_messages, name, without)

    ends = run_histories(network, 150)

    assert ends.get("exact", 0) < 150, "the simulation does not test this mechanism"


def test_a_disabled_fence_at_the_source_is_noticed() -> None:
    ends = run_histories(Network.WILD, 300, source_fences=False)

    assert ends.get("exact", 0) < 300
