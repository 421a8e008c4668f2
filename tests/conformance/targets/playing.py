"""What every test of the suite does with a target: load it, let it follow, and compare it with what was written."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.conformance.targets.places import TargetPlace
from tests.support.feed import Feed, wait_for
from venus.adapters.targets.contract import FollowReport, Target
from venus.adapters.targets.registry import open_target
from venus.adapters.targets.views import TargetTable
from venus.config import Settings


@dataclass(slots=True)
class Stage:
    """A target, what is written to its broker, and how to look into it."""

    place: TargetPlace
    feed: Feed
    settings: Settings
    target: Target

    @classmethod
    def at(cls, place: TargetPlace, broker: str, feed: Feed) -> Stage:
        settings = place.settings(broker)
        return cls(place, feed, settings, open_target(settings, place.name))

    @contextmanager
    def following(self) -> Iterator[list[FollowReport]]:
        """Run the loop; what it raises is raised here."""
        stop, reports, errors = threading.Event(), list[FollowReport](), list[BaseException]()

        def run() -> None:
            try:
                self.target.follow(stop, reports.append)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield reports
        finally:
            stop.set()
            thread.join(60)
            assert not thread.is_alive()
        if errors:
            raise errors[0]

    def reaches(self, offset: int) -> None:
        """Wait until everything below an offset is applied."""
        wait_for(lambda: self.target.look().offset >= offset, f"offset {offset}")

    def catches_up(self) -> None:
        """Follow until the queue's end."""
        with self.following():
            self.reaches(self.feed.broker.next_offset)

    def table(self, name: str) -> TargetTable:
        """Return what the target says of a table."""
        return next(t for t in self.target.look().tables if t.name == name)

    def equal(self) -> None:
        """Compare every table with what was written."""
        for number, schema in self.feed.schemas.items():
            assert self.place.rows(self.settings, schema) == self.feed.model[number], schema.name
