"""Home of each business after promotions: this set, an upstream set, or a set that was unreachable.

A core set that mirrors a home which is gone can become the home itself: every core set has every business (Minos).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress

from venus.broker.core import Core
from venus.broker.machine.mirror import Home, home_from_wire, home_term_of
from venus.broker.mirrors.previous_home import HomeAnswer, HomeMonitor, ask_homes
from venus.broker.mirrors.topology_position import SetPosition
from venus.errors import Refused, VenusError
from venus.rpc.address import ClientCredentials
from venus.wire import broker_pb2

logger = logging.getLogger(__name__)

WAIT_S = 60.0
NOTE_S = 5.0


class HomeSuccession:
    """Promotions of this set. All state but the monitor of the former home is in the logs. Thread-safe."""

    def __init__(self, core: Core, place: SetPosition, upstream: Sequence[str], proof: ClientCredentials) -> None:
        self._core, self._place, self._upstream, self._proof = core, place, tuple(upstream), proof
        self._own: tuple[str, ...] = ()
        self._former = HomeMonitor(set=place.set, upstream=self._upstream, proof=proof, own=self)

    def start(self, own: Sequence[str]) -> None:
        """Set the addresses of this set; monitor other homes if it was promoted."""
        self._own = tuple(own)
        if self.promoted_homes():
            self.start_monitor()

    def start_monitor(self) -> None:
        """Start monitoring the former home and other homes."""
        self._former.start()

    def add_rival(self, home: Home) -> None:
        """Monitor a set that claims to be the home."""
        self._former.add(home.addresses)

    def stop(self) -> None:
        """End the monitor."""
        self._former.stop()

    def promoted_homes(self) -> dict[str, Home]:
        """Return the businesses whose home this set has become by a promotion."""
        found = {business.name: business.committed.home for business in self._core.catalogue.list_stored()}
        return {name: home for name, home in found.items() if home is not None and home.here}

    def step_down(self, business: str, home: Home) -> None:
        """Make another set the home of a business, if this broker leads it."""
        with suppress(VenusError, TimeoutError):
            self._core.homes.note(business, home).result(NOTE_S)

    def outrank(self, business: str, term: int) -> None:
        """Raise this set's home term above `term`, if this broker leads the business."""
        home = Home(set=self._place.set, term=term + 1, addresses=self._own, here=True)
        with suppress(VenusError, TimeoutError):
            if self._core.homes.confirm(business, home).result(NOTE_S):
                logger.warning(
                    "%s: another set was promoted at the same time; this one stays the home, home term %d",
                    business,
                    home.term,
                )

    @property
    def is_home(self) -> bool:
        """Whether this set accepts the writes of all its businesses, by configuration or by promotions."""
        if not self._upstream:
            return True
        here = self.promoted_homes()
        return bool(here) and all(b.name in here for b in self._core.catalogue.list_stored() if b.committed.mirror)

    def accepts_writes(self, business: str) -> bool:
        """Whether producers may ship for a business here."""
        return business in self.promoted_homes() or (self.is_home and not self._core.catalogue.has_stored(business))

    def promote(self, business: str, named: Iterable[str], *, force: bool, only_look: bool) -> broker_pb2.Promoted:
        """Make this set the home. `named` are further known addresses of the old home. Blocking."""
        answers = ask_homes([*self._upstream, *named], self._proof)
        said = preview_promotion(self._core, self._place, business, answers, force=force)
        if not only_look:
            said = become_home(self._core, said, self._own)
            logger.warning("%s: this set was promoted: it is the home now, home term %d", business, said.home_term)
            self.start_monitor()
        return said

    def is_on_newest_home(self, name: str, entry: broker_pb2.BusinessStatus) -> bool:
        """Whether the upstream follows the newest home known here. Records a newer home."""
        if not self._core.catalogue.has_stored(name):
            return not entry.replaced
        other, business = home_from_wire(entry.home), self._core.catalogue.find(name)
        known = business.committed.home
        if known is not None and known.here:
            return True
        if home_term_of(other) < home_term_of(known) or entry.replaced:
            return False
        if other is not None and known is not None and other.term == known.term and other.set != known.set:
            return False  # both were promoted: the one that remains will raise its home term
        if other is not None and other.term > home_term_of(known) and business.committed.is_mirror:
            with suppress(VenusError):  # another broker of this set leads, or the next poll retries
                self._core.homes.note(name, other).result(NOTE_S)
        return True

    def alarms(self, business: str = "") -> list[str]:
        """Return alarms of promotions against the configuration and of the old home, of one business or of all."""
        here = self.promoted_homes()
        if not self._upstream:
            return self._former.problems(business)
        if not here or (business and business not in here):
            return []
        names, above = business or ", ".join(sorted(here)), ", ".join(self._upstream)
        said = (
            f"this set was promoted and is the home of {names}, though [cluster] upstream still names {above}: remove "
            "upstream from the configuration once the old home is a mirror, or is gone for good; until then it is "
            "monitored, and asked to step down"
        )
        return [said, *self._former.problems(business)]


def preview_promotion(
    core: Core, place: SetPosition, business: str, answers: Sequence[HomeAnswer], *, force: bool
) -> broker_pb2.Promoted:
    """Return what a promotion would do. Raises Refused with a hint, Unavailable for an unknown business.

    `answers` are of the upstream sets and the home; none = no address is configured.
    """
    if place.tier != "core":
        raise Refused(
            f"set {place.set} is of tier {place.tier}: only a core set becomes the home, because those have everything",
            hint='run it at a core set, or start this one with [cluster] tier = "core" if it mirrors everything',
        )
    core.homes.check_promotable(business)
    trouble = _home_problem(business, answers)
    if trouble and not force:
        raise Refused(
            f"{business}: {trouble}",
            hint="stop the brokers of the old home first; with --force two sets take writes until the old one is "
            "reached and asked to step down, and what it accepts until then is not here",
        )
    found = core.catalogue.find(business)
    state = found.committed
    assert state.mirror is not None, "only a mirror is promoted"
    return broker_pb2.Promoted(
        business=business,
        set=place.set,
        old_set=state.mirror.set,
        home_term=_next_home_term(business, state.home, answers),
        next_offset=state.next_offset,
        last_batch=state.last_batch,
        last_committed_at_us=found.committed_at_us,
        trouble=trouble or "; ".join(answer.trouble for answer in answers),
    )


def become_home(core: Core, said: broker_pb2.Promoted, own: Sequence[str]) -> broker_pb2.Promoted:
    """Become the home; the result has the end of the queue. Blocking. Raises Refused, NotLeader."""
    home = Home(set=said.set, term=said.home_term, addresses=tuple(own), here=True)
    core.homes.become(said.business, home).result(WAIT_S)
    state = core.catalogue.find(said.business).committed
    said.next_offset, said.last_batch = state.next_offset, state.last_batch
    return said


def _home_problem(business: str, answers: Sequence[HomeAnswer]) -> str:
    """Return why the home may still be alive; empty = no broker of it answers."""
    if not answers:
        return "whether the home is gone cannot be asked: [cluster] upstream is not set"
    alive = [answer for answer in answers if answer.is_home(business)]
    if not alive:
        return ""
    first = alive[0]
    why = f" ({first.trouble})" if first.trouble else ""
    return f"the home is not gone, {first.set} at {first.address} answers{why}: there would be two homes"


def _next_home_term(business: str, known: Home | None, answers: Sequence[HomeAnswer]) -> int:
    """Return a home term above every known one."""
    terms = [
        entry.home.home_term
        for answer in answers
        if answer.status is not None
        for entry in answer.status.businesses
        if entry.business == business
    ]
    return max([home_term_of(known), *terms]) + 1
