"""Brokers that share the matching of subscriptions over gRPC join, match for another one, die, and leave."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.brokers.overlays import AccessBroker, BrokerOverlay
from tests.support.predicates.matching import crowded_events, crowded_interests, match_by_brute_force
from tests.support.waiting import eventually

TABLE = "main/1"
INTERESTS = crowded_interests(800)
CHANGES = crowded_events(60)
WANTED = match_by_brute_force(INTERESTS, CHANGES)


@pytest.fixture
def overlay(tmp_path: Path) -> Iterator[BrokerOverlay]:
    with BrokerOverlay(tmp_path, 4, brokers=8) as found:
        yield found


def test_brokers_match_for_another_one_which_matches_itself_when_they_die(overlay: BrokerOverlay) -> None:
    overlay.wait_until_whole()
    with AccessBroker(overlay.addresses[:1], brokers=8) as access:
        access.subscribe(TABLE, INTERESTS)
        access.wait_until_installed()

        def is_matched_elsewhere() -> bool:
            assert access.match(TABLE, CHANGES).pairs() == WANTED
            return access.overlay.remote.counters.changes_elsewhere > 0

        eventually(is_matched_elsewhere)
        eventually(
            lambda: (
                sum(status.pairs > 0 for status in overlay.statuses().values()) >= 2
                or (access.match(TABLE, CHANGES) and False)
            ),
            "several brokers that match",
        )
        overlay.kill(4)
        assert not any(broker.is_alive for broker in overlay.brokers.values())
        began = time.monotonic()
        counters = access.overlay.remote.counters
        elsewhere = counters.changes_elsewhere
        # it matches them itself, by its own candidate list or because it has taken over the dead brokers' subspaces
        assert access.match(TABLE, CHANGES).pairs() == WANTED
        assert time.monotonic() - began < 60
        assert counters.changes_elsewhere == elsewhere


def test_a_broker_with_too_many_requests_matches_its_own_changes_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("venus.broker.matching.overlay.REQUESTS_MAX", 0)
    with AccessBroker([], brokers=8) as access:
        access.subscribe(TABLE, INTERESTS)
        access.wait_until_installed()
        assert access.match(TABLE, CHANGES).pairs() == WANTED
        assert access.overlay.remote.counters.unanswered > 0
    assert "a request failed" not in caplog.text


def are_neighbours(overlay: BrokerOverlay, others: int) -> bool:
    """Return whether each living broker knows this many others."""
    return all(status.neighbours == others for status in overlay.statuses().values())


def test_a_stopped_broker_leaves_and_a_restarted_one_joins_again(overlay: BrokerOverlay) -> None:
    eventually(lambda: are_neighbours(overlay, 3), "four brokers that know each other")
    stopped = overlay.addresses[0]
    assert overlay.brokers[stopped].stop() == 0
    eventually(lambda: are_neighbours(overlay, 2), "three that have forgotten the other one")
    overlay.wait_until_whole()
    overlay.start(0)
    overlay.wait_until_whole()
    eventually(lambda: overlay.status(stopped).neighbours >= 2, "its neighbours")


def test_subscriptions_that_their_owner_does_not_renew_are_dropped(overlay: BrokerOverlay) -> None:
    overlay.wait_until_whole()
    with AccessBroker(overlay.addresses[:1], brokers=8) as access:
        access.subscribe(TABLE, INTERESTS)
        access.wait_until_installed()

        def are_all_shown() -> bool:
            # the access broker is responsible for some itself if it has joined an empty part of the overlay
            elsewhere = sum(status.installed_interests for status in overlay.statuses().values())
            return elsewhere > 0 and elsewhere + access.overlay.installed.interests >= len(INTERESTS)

        eventually(are_all_shown, "installed interests in the status")
    eventually(
        lambda: not any(status.installed_interests for status in overlay.statuses().values()), "dropped interests"
    )


def test_subscriptions_that_come_and_go_are_exact_at_each_moment(overlay: BrokerOverlay) -> None:
    overlay.wait_until_whole()
    present = dict(enumerate(INTERESTS))
    with AccessBroker(overlay.addresses[:1], brokers=8) as access:
        access.subscribe(TABLE, INTERESTS)
        for step in range(8):
            more = crowded_interests(40, seed=100 + step)
            access.subscribe(TABLE, more, first=1000 * (step + 1))
            present |= dict(enumerate(more, 1000 * (step + 1)))
            numbers = list(present)
            wanted = sorted(
                (row, numbers[n]) for row, n in match_by_brute_force([present[k] for k in numbers], CHANGES)
            )
            assert access.match(TABLE, CHANGES).pairs() == wanted
        assert np.array(numbers).max() > 8000
