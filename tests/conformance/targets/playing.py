"""What every test of the suite does with a target: load it, follow the queue, and compare it with the rows written."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from tests.conformance.targets.places import TargetPlace
from tests.support.brokers.feed import Feed
from tests.support.pipelines.loops import run_loop
from tests.support.waiting import eventually
from venus.adapters.targets.contract import FollowReport, Target
from venus.adapters.targets.registry import open_target
from venus.adapters.targets.views import TargetTable
from venus.config import Settings, TargetSettings


@dataclass(slots=True)
class Stage:
    """A target under test, the feed of its broker, and access to its rows."""

    place: TargetPlace
    feed: Feed
    settings: Settings
    target: Target

    @classmethod
    def at(cls, place: TargetPlace, broker: str, feed: Feed) -> Stage:
        settings = place.settings(broker)
        return cls(place, feed, settings, open_target(settings, place.name))

    def configure(self, *, apply: dict[str, int] | None = None, **target: object) -> Stage:
        """Return the same target with other options."""
        name = self.place.name
        given = self.settings.targets[name].model_dump(by_alias=True, exclude_unset=True) | target
        changes = {
            "targets": {name: TargetSettings.model_validate(given)},
            "apply": self.settings.apply.model_copy(update=apply or {}),
        }
        settings = self.settings.model_copy(update=changes)
        return Stage(self.place, self.feed, settings, open_target(settings, name))

    def follow_in_thread(self) -> AbstractContextManager[list[FollowReport]]:
        """Run the apply loop in a thread; raise its errors in the test."""
        return run_loop(self.target.follow)

    def wait_until_applied(self, offset: int) -> None:
        """Wait until every change below an offset is applied."""
        eventually(lambda: self.target.read_view().offset >= offset, f"offset {offset}")

    def follow_to_end(self) -> None:
        """Follow until the queue's end."""
        with self.follow_in_thread():
            self.wait_until_applied(self.feed.broker.next_offset)

    def table(self, name: str) -> TargetTable:
        """Return the target's view of a table."""
        return next(t for t in self.target.read_view().tables if t.name == name)

    def compare_tables(self) -> None:
        """Compare every table of the target with the rows written to the broker."""
        for number, schema in self.feed.schemas.items():
            assert self.place.rows(self.settings, schema) == self.feed.model[number], schema.name
