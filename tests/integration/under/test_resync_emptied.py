"""A table that is emptied during its resync: rows from before do not reappear."""

from __future__ import annotations

import threading

import pytest

from tests.support.brokers.feed import Feed, following, items, put, rows_at, settings_for, wait_until_caught_up
from tests.support.brokers.real_broker import RealBroker
from tests.support.waiting import eventually
from venus.adapters.targets.relational.control import read_progress, request_resync
from venus.adapters.targets.relational.full_sync import full_sync
from venus.adapters.targets.relational.resync import Resyncs

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("how", ["truncated", "swept"])
def test_deleted_rows_do_not_reappear(
    database: str, real: RealBroker, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = Feed(real)
    feed.describe(items())
    feed.cut(*(put(i, "old", i) for i in range(50)))
    settings = settings_for(feed.broker.address, {"a": database})
    full_sync(settings, "a")
    loaded, emptied = threading.Event(), threading.Event()
    look = Resyncs._check_load

    def replace_after_truncate(self: Resyncs, session: object, catalogue: object, state: object) -> bool:
        """Let the side table replace the table only after the truncate."""
        if not emptied.is_set():
            if any(load.cut is not None for load in self._loads.values()):
                loaded.set()
            return False
        return look(self, session, catalogue, state)  # type: ignore[arg-type]

    monkeypatch.setattr(Resyncs, "_check_load", replace_after_truncate)
    request_resync(settings, "a", "items")
    with following(settings, "a"):
        assert loaded.wait(60)
        if how == "truncated":
            feed.truncate(1, put(7, "new", 7))
        else:
            before = feed.sweep_begin(1)
            feed.cut(put(7, "new", 7))
            feed.model[1] = {k: r for k, r in feed.model[1].items() if k == ("7",)}
            feed.sweep_end(1, before)
        wait_until_caught_up(database, feed.broker)
        emptied.set()
        eventually(lambda: not read_progress(settings, "a").resyncing, "the resync")

    assert rows_at(database, items()) == feed.model[1] == {("7",): ("new", "7")}
