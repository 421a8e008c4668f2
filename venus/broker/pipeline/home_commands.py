"""Commands of the commit thread on a whole business: promotions and losses of its home, and its removal.

A removal deletes all data under the number of the business in one write batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future

from venus.broker.log.entry import EntryKind, record_entry
from venus.broker.machine import loss
from venus.broker.machine.business import Business
from venus.broker.machine.catalogue import BusinessCatalogue
from venus.broker.machine.half_messages import check_limit
from venus.broker.machine.mirror import Home, encode_home, home_term_of
from venus.broker.pipeline.commit_thread import CommitThread, Guard
from venus.broker.pipeline.group import CommandGroup
from venus.broker.snapshot.materialiser import Materialiser
from venus.broker.snapshot.snapshots import SnapshotManager
from venus.broker.store import keys
from venus.broker.store.rocks import Store, StoreBatch
from venus.errors import NotLeader, Refused, Unavailable
from venus.network.topology import PULLS_AS

BECOME_A_MIRROR = 'to make this set a mirror: [cluster] upstream = ["HOST:PORT"] of the home, then start it again'


def refuse_producer(business: Business) -> None:
    """Refuse producers unless this set is the home. Raises Refused, NotLeader."""
    state = business.proposed
    if state.is_mirror:
        assert state.mirror is not None
        raise Refused(
            f"{business.name} is mirrored here from set {state.mirror.set}: producers ship to the home",
            hint="`venus cluster promote` makes this set the home, after a disaster",
        )
    if state.is_replaced:
        raise replaced_error(business)


def refuse_epoch(business: Business, source_epoch: int, *, insists: bool = False) -> None:
    """Refuse a source with a higher epoch than this home ever assigned: it shipped to another home. Raises NotLeader.

    With `insists` the source is accepted anyway.
    """
    state = business.proposed
    was_here = bool(state.end_batch) and not loss.has_unmeasured(state.losses)
    if was_here and source_epoch > state.epoch and not insists:
        raise NotLeader(
            f"{business.name}: the source is at epoch {source_epoch} and this home has assigned {state.epoch} at most: "
            "another set has become the home since",
            hint=f"name the new home first in [broker] addresses; {BECOME_A_MIRROR}; if an old data directory was put "
            "in place here, and no other set is the home: `venus sync --take-over`",
        )


def refuse_consumer(business: Business) -> None:
    """Send consumers that rely on this queue to the new home. Raises NotLeader."""
    if business.committed.is_replaced:
        raise replaced_error(business)


def replaced_error(business: Business) -> NotLeader:
    """Return the error that names the new home."""
    home = business.committed.home
    assert home is not None, "a replaced business has a home"
    return NotLeader(
        f"{business.name}: {home} has become the home, this set was replaced",
        leader=next(iter(home.addresses), ""),
        hint=f"name the new home in [broker] addresses; {BECOME_A_MIRROR}",
    )


def check_promotable(business: Business) -> None:
    """Raise Refused if a promotion would make an incomplete home."""
    state = business.proposed
    if not state.is_mirror:
        raise Refused(f"{business.name} is not a mirror at this set, which is its home: producers ship to it")
    assert state.mirror is not None
    if state.mirror.only or state.mirror.where:
        part = [*state.mirror.only, *(f"{one.table} where {one.predicate}" for one in state.mirror.where)]
        raise Refused(
            f"{business.name}: only a part of it is mirrored here ({', '.join(part)}), so this set cannot "
            "become its home",
            hint="promote a core set: core sets have everything",
        )
    if not business.is_filled or not state.mirror.end:
        raise Refused(
            f"{business.name} has no whole full data here, so this set cannot become its home",
            hint="`venus cluster topology` shows the sets that have it; if none has, only the source is complete: "
            "install the triggers and migrate again at a new broker",
        )


def become_home(group: CommandGroup, business: Business, home: Home, at_us: int) -> Home:
    """Make a mirror the home, so that producers can ship to it. Raises Refused."""
    check_promotable(business)
    known = business.proposed.home
    check_limit(f"{business.name}: the new home", "home term", home.term, home_term_of(known))
    if home.term <= home_term_of(known):  # that home would make this one step down and lose its changes
        raise Refused(
            f"{business.name}: {known} has become the home meanwhile, home term {home_term_of(known)}",
            hint="if that set is gone as well, run the command again",
        )
    _propose_home(group, business, home, at_us)
    return home


def confirm_home(group: CommandGroup, business: Business, home: Home, at_us: int) -> bool:
    """Stay the home with a higher home term. Changes of the other home are missing here, as after a promotion.

    Return False if this set is not the home, or if its home term is already as high as that of `home`.
    """
    known = business.proposed.home
    if known is None or not known.here or home.term <= known.term:
        return False
    check_limit(f"{business.name}: set {home.set}", "home term", home.term, known.term)
    _propose_home(group, business, home, at_us)
    return True


def record_new_home(group: CommandGroup, business: Business, home: Home, at_us: int) -> bool:
    """Record that another set has become the home; a home here steps down.

    Return False if that home or one with a higher home term is already known.
    """
    if home.term <= home_term_of(business.proposed.home):
        return False
    check_limit(f"{business.name}: set {home.set}", "home term", home.term, home_term_of(business.proposed.home))
    _propose_home(group, business, home, at_us)
    return True


def close_losses(
    group: CommandGroup, business: Business, home_terms: Collection[int], compared: str, at_us: int
) -> list[str]:
    """Record that a group's target was compared with the source and repaired; return the groups still to compare.

    Raises Refused until the producer has reported what is missing.
    """
    named = [window for window in loss.promotion_losses(business.proposed.losses) if window.home_term in home_terms]
    if loss.has_unmeasured(named):
        raise Refused(
            f"{business.name}: the losses of the promotion to this home are not known yet",
            hint="`venus sync` reports it; then compare again",
        )
    with business.lock:
        groups = groups_with_targets(business.consumers)
    record = {"home_terms": sorted(home_terms), "group": compared, "groups": groups}
    if named:
        group.append(
            business, record_entry(EntryKind.CLOSED, epoch=business.proposed.epoch, at_us=at_us, record=record)
        )
    left = [window for window in loss.promotion_losses(business.proposed.losses) if window.home_term in home_terms]
    return sorted({name for window in left for name in groups if name not in window.verified})


def groups_with_targets(groups: Iterable[str]) -> list[str]:
    """Return the groups whose targets must be compared with the source: all but those of downstream sets."""
    return sorted(name for name in groups if not name.startswith(PULLS_AS))


def give_up(group: CommandGroup, business: Business, home_terms: Collection[int], at_us: int) -> None:
    """Close the losses of promotions without a comparison: the source is gone."""
    record = {"home_terms": sorted(home_terms), "given_up": True}
    group.append(business, record_entry(EntryKind.CLOSED, epoch=business.proposed.epoch, at_us=at_us, record=record))


def _propose_home(group: CommandGroup, business: Business, home: Home, at_us: int) -> None:
    """Propose the entry that sets the home."""
    record = encode_home(home)
    assert record is not None
    group.append(business, record_entry(EntryKind.HOME, epoch=business.proposed.epoch, at_us=at_us, record=record))


CONNECT_AGAIN = "another set was promoted at the same time, and this one stays the home: connect again"


class HomeCommands:
    """Commands about the home of businesses. Thread-safe.

    Futures are resolved once the command is applied; they fail where another broker leads.
    """

    def __init__(self, catalogue: BusinessCatalogue, commits: CommitThread, *, clock_us: Callable[[], int]) -> None:
        self._catalogue, self._commits, self._clock_us = catalogue, commits, clock_us
        self._listeners: list[Callable[[str, Unavailable], None]] = []

    def add_listener(self, listener: Callable[[str, Unavailable], None]) -> None:
        """Call a listener, in any thread, with the reason when clients of a business must connect again."""
        self._listeners.append(listener)

    def check_promotable(self, business: str) -> None:
        """Raise Refused if a promotion would make an incomplete home, Unavailable if the business is unknown."""
        check_promotable(self._catalogue.find(business))

    def become(self, business: str, home: Home) -> Future[Home]:
        """Make a mirror the home, so that producers can ship to it."""
        found = self._catalogue.find(business)
        return self._commits.submit(lambda group: become_home(group, found, home, self._clock_us()), business=found)

    def confirm(self, business: str, home: Home) -> Future[bool]:
        """Stay the home with a higher home term; False if this set is not the home, or has one as high."""
        found = self._catalogue.find(business)
        done: Future[bool] = self._commits.submit(
            lambda group: confirm_home(group, found, home, self._clock_us()), business=found
        )
        return self._notify_when_done(
            done, lambda: self._notify(found.name, Unavailable(f"{found.name}: {CONNECT_AGAIN}"))
        )

    def note(self, business: str, home: Home) -> Future[bool]:
        """Record that another set has become the home; False if it was known. A replaced home redirects its clients."""
        found = self._catalogue.find(business)
        done: Future[bool] = self._commits.submit(
            lambda group: record_new_home(group, found, home, self._clock_us()), business=found
        )
        return self._notify_when_done(done, lambda: self._notify_replaced(found))

    def _notify_when_done(self, future: Future[bool], notify: Callable[[], None]) -> Future[bool]:
        """Notify the listeners once the future's result is True, before later callbacks of the future run."""

        def on_done(done: Future[bool]) -> None:
            if done.exception() is None and done.result():
                notify()

        future.add_done_callback(on_done)
        return future

    def _notify_replaced(self, business: Business) -> None:
        """Notify the listeners if the business has another home."""
        if business.committed.is_replaced:
            self._notify(business.name, replaced_error(business))

    def _notify(self, business: str, error: Unavailable) -> None:
        """Call the listeners: clients of a business must connect again."""
        for listener in self._listeners:
            listener(business, error)

    def close_losses(self, business: str, home_terms: Collection[int], compared: str) -> Future[list[str]]:
        """Record that a group's target was compared and repaired; return the groups still to compare."""
        found = self._catalogue.find(business)
        return self._commits.submit(
            lambda group: close_losses(group, found, home_terms, compared, self._clock_us()),
            business=found,
        )

    def give_up(self, business: str, home_terms: Collection[int]) -> Future[None]:
        """Close the losses of promotions without a comparison."""
        found = self._catalogue.find(business)
        return self._commits.submit(lambda group: give_up(group, found, home_terms, self._clock_us()), business=found)

    def refuse_consumer(self, business: str) -> None:
        """Send consumers that rely on a queue to the new home. Raises NotLeader."""
        if self._catalogue.has_stored(business):
            refuse_consumer(self._catalogue.find(business))


_NUMBERED = (keys.RLOG, keys.QUEUE, keys.ROW)


def forget(group: CommandGroup, business: Business, catalogue: BusinessCatalogue) -> None:
    """Add the removal of a business to a group. Raises Unavailable if the same group writes to the business.

    Entries above the high watermark are removed too: the brokers that could advance the watermark may be gone.
    """
    if business in group.touched_businesses():
        raise Unavailable(f"business {business.name!r} is being written", hint="try again")
    if business.pending:
        error = Unavailable(f"business {business.name!r} is being forgotten", hint="try again in a moment")
        group.refused.append((business, business.pending[0].index, error))
        business.pending.clear()
    put_removal(group.batch, business.number)
    catalogue.save_number(group.batch)
    group.durable = True


def put_removal(batch: StoreBatch, number: int) -> None:
    """Add the removal of everything under a business's number to a batch."""
    start = keys.number_prefix(number)
    for family in _NUMBERED:
        batch.delete_range(family, start, keys.after_prefix(start))
    put_state_removal(batch, number)


def put_state_removal(batch: StoreBatch, number: int) -> None:
    """Add the removal of only a business's state to a batch."""
    for prefix in keys.state_prefixes(number):
        batch.delete_range(keys.STATE, prefix, keys.after_prefix(prefix))


class BusinessRemoval:
    """Permanent removal of a business while the broker runs."""

    def __init__(
        self,
        catalogue: BusinessCatalogue,
        commits: CommitThread,
        materialiser: Materialiser,
        snapshots: SnapshotManager,
        store: Store,
        guard: Guard,
    ) -> None:
        self._catalogue = catalogue
        self._commits = commits
        self._materialiser = materialiser
        self._snapshots = snapshots
        self._store = store
        self._guard = guard

    def __call__(self, business: str) -> None:
        """Remove a business permanently: its log, queue, rows, state and snapshots; free the space before returning.

        Raises Unavailable for an unknown one, Refused while a producer or a consumer is connected.
        """
        found = self._catalogue.begin_forgetting(business)
        try:
            self._commits.submit(lambda _: None, line=found).result()  # earlier commands of the business are done
            self._materialiser.forget(found).result()
            self._snapshots.forget(found)
            self._commits.submit(lambda group: forget(group, found, self._catalogue), line=found).result()
        except BaseException:
            found.is_forgotten = False
            self._catalogue.cancel_forgetting(found)
            self._materialiser.notify(found)
            raise
        self._catalogue.finish_forgetting(business)
        with self._guard():
            reclaim_space(self._store, found)


def reclaim_space(store: Store, business: Business) -> None:
    """Compact the key ranges of a removed business to free their space."""
    start, stop = _key_range(business)
    for family in _NUMBERED:
        store.compact(family, start, stop)


def _key_range(business: Business) -> tuple[bytes, bytes]:
    """Return the bounds of the keys of a business in the families of its log, queue and rows."""
    prefix = keys.number_prefix(business.number)
    return prefix, keys.after_prefix(prefix)
