"""What an unclean election or a promotion leaves in doubt in the state of a business, and how that ends. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from venus.broker.machine import loss
from venus.broker.machine.half import Half, State


def doubt(state: State, terms: Iterable[int]) -> State:
    """Note that leaders of these terms lacked what was acknowledged before, as far as anybody knows."""
    losses = state.losses
    for term in terms:
        losses = loss.begun(losses, term, state.next_offset, state.last_batch + 1)
    return replace(state, losses=losses)


def close(state: State, record: Mapping[str, Any]) -> State:
    """Close windows of promotions: a group's target was compared and repaired, or an operator gives them up."""
    if record.get("given_up"):
        return replace(state, losses=loss.given_up(state.losses, record["home_terms"]))
    after = loss.closed(state.losses, record["home_terms"], group=record["group"], groups=record["groups"])
    return replace(state, losses=after)


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
