"""Which set is the home of a business, as commands of the commit thread: promotions, and what they may have lost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future

from venus.broker.log.entry import EntryKind, note
from venus.broker.machine import home as homes
from venus.broker.machine import loss
from venus.broker.machine.business import Business
from venus.broker.machine.catalogue import Catalogue
from venus.broker.machine.home import Home
from venus.broker.machine.reach import check_reach
from venus.broker.pipeline.commit_thread import CommitThread
from venus.broker.pipeline.group import Group
from venus.errors import NotLeader, Refused, Unavailable
from venus.network.topology import PULLS_AS

BECOME_A_MIRROR = 'to make this set a mirror: [cluster] upstream = ["HOST:PORT"] of the home, then start it again'


def refuse_producer(business: Business) -> None:
    """Refuse a producer whose home is another set. Raises Refused, NotLeader."""
    state = business.proposed
    if state.is_mirror:
        assert state.mirror is not None
        raise Refused(
            f"{business.name} is mirrored here from set {state.mirror.set}: producers ship to the home",
            hint="`venus cluster promote` makes this set the home, after a disaster",
        )
    if state.is_replaced:
        raise replaced(business)


def refuse_epoch(business: Business, source_epoch: int, *, insists: bool = False) -> None:
    """Refuse a source with a higher epoch than was ever given here: it has been at another home. Raises NotLeader.

    Whoever `insists` takes over all the same.
    """
    state = business.proposed
    was_here = bool(state.end_batch) and not loss.in_doubt(state.losses)
    if was_here and source_epoch > state.epoch and not insists:
        raise NotLeader(
            f"{business.name}: the source is at epoch {source_epoch} and this home has given {state.epoch} at most: "
            "another set has become the home since",
            hint=f"name the new home first in [broker] addresses; {BECOME_A_MIRROR}; if an old data directory was put "
            "in place here, and no other set is the home: `venus sync --take-over`",
        )


def refuse_consumer(business: Business) -> None:
    """Send whoever relies on this queue to the new home. Raises NotLeader."""
    if business.committed.is_replaced:
        raise replaced(business)


def replaced(business: Business) -> NotLeader:
    """Say who is the home."""
    home = business.committed.home
    assert home is not None, "somebody has replaced it"
    return NotLeader(
        f"{business.name}: {home} has become the home, this set was replaced",
        leader=next(iter(home.addresses), ""),
        hint=f"name the new home in [broker] addresses; {BECOME_A_MIRROR}",
    )


def check_promotable(business: Business) -> None:
    """Raise Refused where a promotion would make a home that lacks something."""
    state = business.proposed
    if not state.is_mirror:
        raise Refused(f"{business.name} is not a mirror at this set, which is its home: producers ship to it")
    assert state.mirror is not None
    if state.mirror.only or state.mirror.where:
        part = [*state.mirror.only, *(f"{one.table} where {one.predicate}" for one in state.mirror.where)]
        raise Refused(
            f"{business.name}: only a part of it is mirrored here ({', '.join(part)}), so this set cannot "
            "become its home",
            hint="promote a core set: those have everything",
        )
    if not business.is_filled or not state.mirror.end:
        raise Refused(
            f"{business.name} has no whole full data here, so this set cannot become its home",
            hint="`venus cluster topology` shows who has it; if nobody has, the source is the record: install the "
            "triggers and migrate again at a new broker",
        )


def become_home(group: Group, business: Business, home: Home, at_us: int) -> Home:
    """Let producers ship for what was a mirror. Raises Refused."""
    check_promotable(business)
    known = business.proposed.home
    check_reach(f"{business.name}: the new home", "home term", home.term, homes.term_of(known))
    if home.term <= homes.term_of(known):  # it would have this one step down, and what was taken until then is lost
        raise Refused(
            f"{business.name}: {known} has become the home meanwhile, home term {homes.term_of(known)}",
            hint="if that set is gone as well, run the command again",
        )
    _append(group, business, home, at_us)
    return home


def confirm_home(group: Group, business: Business, home: Home, at_us: int) -> bool:
    """Stay the home with a higher home term, as a promotion does: what another home took meanwhile is not here.

    False = this set is not the home, or has a home term as high.
    """
    known = business.proposed.home
    if known is None or not known.here or home.term <= known.term:
        return False
    check_reach(f"{business.name}: set {home.set}", "home term", home.term, known.term)
    _append(group, business, home, at_us)
    return True


def note_home(group: Group, business: Business, home: Home, at_us: int) -> bool:
    """Note that another set has become the home; False = that, or a later one, is known. A home here steps down."""
    if home.term <= homes.term_of(business.proposed.home):
        return False
    check_reach(f"{business.name}: set {home.set}", "home term", home.term, homes.term_of(business.proposed.home))
    _append(group, business, home, at_us)
    return True


def close_losses(group: Group, business: Business, home_terms: Collection[int], compared: str, at_us: int) -> list[str]:
    """Note that a group's target was compared with the source and repaired; return the groups that still are to be.

    Raises Refused while the producer has not said what is missing.
    """
    named = [window for window in loss.of_promotions(business.proposed.losses) if window.home_term in home_terms]
    if loss.in_doubt(named):
        raise Refused(
            f"{business.name}: what the promotion to this home may have lost is not known yet",
            hint="`venus sync` tells it; then compare again",
        )
    with business.lock:
        groups = targets_of(business.consumers)
    record = {"home_terms": sorted(home_terms), "group": compared, "groups": groups}
    if named:
        group.append(business, note(EntryKind.CLOSED, epoch=business.proposed.epoch, at_us=at_us, record=record))
    left = [window for window in loss.of_promotions(business.proposed.losses) if window.home_term in home_terms]
    return sorted({name for window in left for name in groups if name not in window.verified})


def targets_of(groups: Iterable[str]) -> list[str]:
    """Return the consumer groups that have a target: nobody compares a set below with the source."""
    return sorted(name for name in groups if not name.startswith(PULLS_AS))


def give_up(group: Group, business: Business, home_terms: Collection[int], at_us: int) -> None:
    """Give up what promotions may have lost: the source is gone, and nothing can be compared."""
    record = {"home_terms": sorted(home_terms), "given_up": True}
    group.append(business, note(EntryKind.CLOSED, epoch=business.proposed.epoch, at_us=at_us, record=record))


def _append(group: Group, business: Business, home: Home, at_us: int) -> None:
    record = homes.encode(home)
    assert record is not None
    group.append(business, note(EntryKind.HOME, epoch=business.proposed.epoch, at_us=at_us, record=record))


AGAIN = "another set was promoted at the same time, and this one stays the home: connect again"


class Homes:
    """Thread-safe. Futures are resolved once what they say is applied; they fail where another broker leads."""

    def __init__(self, catalogue: Catalogue, commits: CommitThread, *, clock_us: Callable[[], int]) -> None:
        self._catalogue, self._commits, self._clock_us = catalogue, commits, clock_us
        self._listeners: list[Callable[[str, Unavailable], None]] = []

    def on_moved(self, listener: Callable[[str, Unavailable], None]) -> None:
        """Call a listener, in any thread, when producers and consumers of a business have to connect again, and why."""
        self._listeners.append(listener)

    def check_promotable(self, business: str) -> None:
        """Raise Refused where a promotion would make a home that lacks something; Unavailable if it is not known."""
        check_promotable(self._catalogue.known(business))

    def become(self, business: str, home: Home) -> Future[Home]:
        """Let producers ship for what was a mirror."""
        found = self._catalogue.known(business)
        return self._commits.submit(lambda group: become_home(group, found, home, self._clock_us()), business=found)

    def confirm(self, business: str, home: Home) -> Future[bool]:
        """Stay the home with a higher home term; False = this set is not the home, or has one as high."""
        found = self._catalogue.known(business)
        done: Future[bool] = self._commits.submit(
            lambda group: confirm_home(group, found, home, self._clock_us()), business=found
        )
        return self._told(done, lambda: self._say(found.name, Unavailable(f"{found.name}: {AGAIN}")))

    def note(self, business: str, home: Home) -> Future[bool]:
        """Note that another set has become the home; False = it was known. A home here sends everybody there."""
        found = self._catalogue.known(business)
        done: Future[bool] = self._commits.submit(
            lambda group: note_home(group, found, home, self._clock_us()), business=found
        )
        return self._told(done, lambda: self._replaced(found))

    def _told(self, future: Future[bool], tell: Callable[[], None]) -> Future[bool]:
        """Tell the listeners once it is done, before whoever waits for it."""

        def settled(done: Future[bool]) -> None:
            if done.exception() is None and done.result():
                tell()

        future.add_done_callback(settled)
        return future

    def _replaced(self, business: Business) -> None:
        if business.committed.is_replaced:
            self._say(business.name, replaced(business))

    def _say(self, business: str, error: Unavailable) -> None:
        for listener in self._listeners:
            listener(business, error)

    def close_losses(self, business: str, home_terms: Collection[int], compared: str) -> Future[list[str]]:
        """Note that a group's target was compared and repaired; return the groups that still are to be."""
        found = self._catalogue.known(business)
        return self._commits.submit(
            lambda group: close_losses(group, found, home_terms, compared, self._clock_us()),
            business=found,
        )

    def give_up(self, business: str, home_terms: Collection[int]) -> Future[None]:
        """Give up what promotions may have lost."""
        found = self._catalogue.known(business)
        return self._commits.submit(lambda group: give_up(group, found, home_terms, self._clock_us()), business=found)

    def refuse_consumer(self, business: str) -> None:
        """Send whoever relies on a queue to the new home. Raises NotLeader."""
        if self._catalogue.has(business):
            refuse_consumer(self._catalogue.known(business))
