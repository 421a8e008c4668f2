"""Which set is the home of a business: what operators, other sets and comparisons say of that."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future

from venus.broker.machine.business import Business
from venus.broker.machine.catalogue import Catalogue
from venus.broker.machine.home import Home
from venus.broker.pipeline import home_commands
from venus.broker.pipeline.commit_thread import CommitThread
from venus.errors import Unavailable

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
        home_commands.check_promotable(self._catalogue.known(business))

    def become(self, business: str, home: Home) -> Future[Home]:
        """Let producers ship for what was a mirror."""
        found = self._catalogue.known(business)
        return self._commits.submit(
            lambda group: home_commands.become_home(group, found, home, self._clock_us()), business=found
        )

    def confirm(self, business: str, home: Home) -> Future[bool]:
        """Stay the home with a higher home term; False = this set is not the home, or has one as high."""
        found = self._catalogue.known(business)
        done: Future[bool] = self._commits.submit(
            lambda group: home_commands.confirm_home(group, found, home, self._clock_us()), business=found
        )
        return self._told(done, lambda: self._say(found.name, Unavailable(f"{found.name}: {AGAIN}")))

    def note(self, business: str, home: Home) -> Future[bool]:
        """Note that another set has become the home; False = it was known. A home here sends everybody there."""
        found = self._catalogue.known(business)
        done: Future[bool] = self._commits.submit(
            lambda group: home_commands.note_home(group, found, home, self._clock_us()), business=found
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
            self._say(business.name, home_commands.replaced(business))

    def _say(self, business: str, error: Unavailable) -> None:
        for listener in self._listeners:
            listener(business, error)

    def close_losses(self, business: str, home_terms: Collection[int], compared: str) -> Future[list[str]]:
        """Note that a group's target was compared and repaired; return the groups that still are to be."""
        found = self._catalogue.known(business)
        return self._commits.submit(
            lambda group: home_commands.close_losses(group, found, home_terms, compared, self._clock_us()),
            business=found,
        )

    def give_up(self, business: str, home_terms: Collection[int]) -> Future[None]:
        """Give up what promotions may have lost."""
        found = self._catalogue.known(business)
        return self._commits.submit(
            lambda group: home_commands.give_up(group, found, home_terms, self._clock_us()), business=found
        )

    def refuse_consumer(self, business: str) -> None:
        """Send whoever relies on a queue to the new home. Raises NotLeader."""
        if self._catalogue.has(business):
            home_commands.refuse_consumer(self._catalogue.known(business))
