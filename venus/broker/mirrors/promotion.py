"""A set that mirrors a home which is gone becomes the home itself (Minos: every core set has every business)."""

from __future__ import annotations

from collections.abc import Sequence

from venus.broker.core import Core
from venus.broker.machine import home as homes
from venus.broker.machine.home import Home
from venus.broker.mirrors.former import Answer
from venus.broker.mirrors.place import Place
from venus.errors import Refused
from venus.wire import broker_pb2

WAIT_S = 60.0


def look(core: Core, place: Place, business: str, answers: Sequence[Answer], *, force: bool) -> broker_pb2.Promoted:
    """Say what a promotion would do. Raises Refused, with the way out; Unavailable for an unknown business.

    `answers` of the set above and the home; none = there is nobody to ask.
    """
    if place.tier != "core":
        raise Refused(
            f"set {place.set} is of tier {place.tier}: only a core set becomes the home, because those have everything",
            hint='run it at a core set, or start this one with [cluster] tier = "core" if it mirrors everything',
        )
    core.homes.check_promotable(business)
    trouble = _trouble(business, answers)
    if trouble and not force:
        raise Refused(
            f"{business}: {trouble}",
            hint="stop the brokers of the old home first; with --force two sets take writes until the old one is "
            "reached and told to step down, and what it takes until then is not here",
        )
    found = core.catalogue.known(business)
    state = found.committed
    assert state.mirror is not None, "only a mirror is promoted"
    return broker_pb2.Promoted(
        business=business, set=place.set, old_set=state.mirror.set, home_term=_term(business, state.home, answers),
        next_offset=state.next_offset, last_batch=state.last_batch, last_committed_at_us=found.committed_at_us,
        trouble=trouble or "; ".join(answer.trouble for answer in answers),
    )  # fmt: skip


def promote(core: Core, said: broker_pb2.Promoted, own: Sequence[str]) -> broker_pb2.Promoted:
    """Become the home; the answer says how far the queue came. Blocking. Raises Refused, NotLeader."""
    home = Home(set=said.set, term=said.home_term, addresses=tuple(own), here=True)
    core.homes.become(said.business, home).result(WAIT_S)
    state = core.catalogue.known(said.business).committed
    said.next_offset, said.last_batch = state.next_offset, state.last_batch
    return said


def _trouble(business: str, answers: Sequence[Answer]) -> str:
    """Return why the home may not be gone; empty = nobody answers for it."""
    if not answers:
        return "whether the home is gone cannot be asked: [cluster] upstream is not set"
    alive = [answer for answer in answers if answer.is_home(business)]
    if not alive:
        return ""
    first = alive[0]
    why = f" ({first.trouble})" if first.trouble else ""
    return f"the home is not gone, {first.set} at {first.address} answers{why}: there would be two homes"


def _term(business: str, known: Home | None, answers: Sequence[Answer]) -> int:
    """Return a home term above every one that is known."""
    told = [
        entry.home.home_term
        for answer in answers
        if answer.status is not None
        for entry in answer.status.businesses
        if entry.business == business
    ]
    return max([homes.term_of(known), *told]) + 1
