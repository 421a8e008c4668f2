"""Which set is the home of a business: what operators, other sets and comparisons say of that."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future

from venus.broker.machine.catalogue import Catalogue
from venus.broker.machine.home import Home
from venus.broker.pipeline import home_commands
from venus.broker.pipeline.commit_thread import CommitThread


class Homes:
    """Thread-safe. Futures are resolved once what they say is applied; they fail where another broker leads."""

    def __init__(self, catalogue: Catalogue, commits: CommitThread, *, clock_us: Callable[[], int]) -> None:
        self._catalogue, self._commits, self._clock_us = catalogue, commits, clock_us

    def check_promotable(self, business: str) -> None:
        """Raise Refused where a promotion would make a home that lacks something; Unavailable if it is not known."""
        home_commands.check_promotable(self._catalogue.known(business))

    def become(self, business: str, home: Home) -> Future[Home]:
        """Let producers ship for what was a mirror."""
        found = self._catalogue.known(business)
        return self._commits.submit(
            lambda group: home_commands.become_home(group, found, home, self._clock_us()), business=found
        )

    def note(self, business: str, home: Home) -> Future[bool]:
        """Note that another set has become the home; False = it was known."""
        found = self._catalogue.known(business)
        return self._commits.submit(
            lambda group: home_commands.note_home(group, found, home, self._clock_us()), business=found
        )

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
