"""What an unclean election does to the state of a business: the doubt that it begins, and how it ends. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from venus.broker.machine import loss
from venus.broker.machine.half import Half, State


def doubt(state: State, terms: Iterable[int]) -> State:
    """Note that leaders of these terms lacked what was acknowledged before, as far as anybody knows."""
    losses = state.losses
    for term in terms:
        losses = loss.begun(losses, term, state.next_offset, state.last_batch + 1)
    return replace(state, losses=losses)


def pass_over(state: State, missing: Half) -> tuple[State, tuple[tuple[int, Half], ...]]:
    """Go on behind what is missing: `missing` is the source's newest batch, with the offsets of all that are."""
    assert not state.halves, "what is undecided is decided before"
    end = state.next_offset + missing.lost
    losses = loss.measured(
        state.losses,
        first_offset=state.next_offset,
        end_offset=end,
        first_batch=state.last_batch + 1,
        last_batch=missing.batch_no,
        rows=missing.first_sequence - 1 - state.last_sequence if missing.lost else 0,
    )
    if not missing.lost:
        return replace(state, losses=losses), ()
    after = replace(
        state,
        last_batch=missing.batch_no,
        last_sequence=missing.last_sequence,
        next_offset=end,
        losses=losses,
    )
    return after, ((state.next_offset, missing),)
