"""Sixteen brokers share the matching of many skewed subscriptions, and eight of them die at once.

Scenario 105 with a fifth of its subscriptions; nightly with all of them, as `python -m bench.all --only S3`.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.brokers.etcd import EtcdCluster
from tests.support.brokers.overlays import AccessBroker, BrokerOverlay
from tests.support.predicates.matching import crowded_events, crowded_interests, match_by_brute_force
from venus.network.matching.indexes import TableIndex
from venus.network.matching.interests import Events

pytestmark = pytest.mark.slow

TABLE = "main/1"
INTERESTS, ALL_INTERESTS = 20_000, 100_000
INSTALLED_S = 600.0
ROUNDS = 30
HEALED_S = 10.0
#: Largest ratio of the most loaded broker to the mean, once subspaces are at the brokers with the least work.
BALANCE = 1.5
#: Retries for a broker that a busy machine delays: others match for it until the next exchanges of load.
BALANCE_TRIES = 5


def require_balance(others: BrokerOverlay, access: AccessBroker, local: TableIndex, batches: list[Events]) -> None:
    """Match all batches, repeatedly after more exchanges of load, until the other brokers share one pass evenly."""
    found: list[tuple[float, list[int]]] = []
    for _ in range(BALANCE_TRIES):
        before, counters = others.matched_pairs(), access.overlay.remote.counters
        matched = counters.changes_elsewhere
        for batch in batches:
            assert access.match(TABLE, batch).pairs() == local.match(batch).pairs()
        share = (counters.changes_elsewhere - matched) / sum(batch.count for batch in batches)
        pairs = [count - before[address] for address, count in others.matched_pairs().items()]
        found.append((share, pairs))
        if share > 0.9 and max(pairs) * len(pairs) <= BALANCE * sum(pairs):
            return
        access.wait_for_rounds(2)
    raise AssertionError(f"changes matched elsewhere, and pairs compared by each broker: {found}")


@pytest.mark.parametrize(
    "count", [INTERESTS, pytest.param(ALL_INTERESTS, marks=[pytest.mark.nightly, pytest.mark.timeout(1800)])]
)
@pytest.mark.parametrize("members", ["addresses", "etcd"])
def test_eight_of_sixteen_die_at_once_under_many_subscriptions(
    tmp_path: Path, request: pytest.FixtureRequest, members: str, count: int
) -> None:
    etcd: EtcdCluster | None = request.getfixturevalue("etcd_server") if members == "etcd" else None
    interests = crowded_interests(count)
    batches = [crowded_events(200, seed) for seed in range(ROUNDS)]
    local = TableIndex(interests, batches[0])
    few = crowded_events(5)
    assert local.match(few).pairs() == match_by_brute_force(interests, few)
    with BrokerOverlay(tmp_path, 16, etcd=etcd, brokers=16, exchange_s=0.5) as others:
        others.wait_until_whole()
        with AccessBroker(others.addresses[8:10], brokers=16, lease_s=6.0) as access:
            access.subscribe(TABLE, interests)
            access.wait_until_installed(INSTALLED_S)
            for some in (batches[:10], batches[10:20]):
                for batch in some:
                    assert access.match(TABLE, batch).pairs() == local.match(batch).pairs()
                access.wait_for_rounds(2)
            require_balance(others, access, local, batches)

            killed = time.monotonic()
            others.kill(8)
            assert access.match(TABLE, batches[0]).pairs() == local.match(batches[0]).pairs()
            first_s = time.monotonic() - killed
            others.wait_until_whole(access.address, timeout_s=HEALED_S)
            for batch in batches:
                assert access.match(TABLE, batch).pairs() == local.match(batch).pairs()
            assert first_s < 3.0  # 1 s on an otherwise idle machine
