"""Core, tandem and access, two sets of each, under writers: kill -9 and cut lines at every level, whole sets gone.

Afterwards every target equals the source row by row and has applied each version once, every set has the bytes of the
home at its offsets, and no set has taken the full data again.
"""

from __future__ import annotations

import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.brokers import hops, networks
from tests.support.brokers.feed import query
from tests.support.brokers.levels import LEVELS, SETS, SURE_S, TARGETS, TOOK, TWICE, BrokerLevels
from tests.support.brokers.servers import BUSINESS, business_status, take
from tests.support.databases.postgres import Server
from tests.support.waiting import eventually
from venus.adapters.targets.relational.control import read_progress
from venus.errors import VenusError
from venus.network.directory import BACK_AFTER_S
from venus.rpc.subscriber import Subscriber

pytestmark = [pytest.mark.fault, pytest.mark.integration]


@pytest.fixture
def levels(tmp_path: Path, postgres_server: Server) -> Iterator[BrokerLevels]:
    urls = [postgres_server.create_database() for _ in range(1 + len(TARGETS))]
    made = BrokerLevels(tmp_path, urls[0], dict(zip(TARGETS, urls[1:], strict=True)))
    try:
        made.follow()
        yield made
    finally:
        made.close()
        for url in urls:
            postgres_server.drop_database(url)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_kill_and_a_cut_at_every_level(levels: BrokerLevels) -> None:
    with levels.writing():
        _damage_every_level(levels, random.Random(5), each=1)
        _lose_an_access_set(levels)
        levels.start("east")
    _check_everything(levels)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_twenty_kills_and_twenty_cuts_at_every_level(levels: BrokerLevels) -> None:
    with levels.writing():
        lines = _hops(levels, 20.0)
        took = {
            level: hops.format_times(f"after harm, level {level}", values, "s")
            for level, values in _damage_every_level(levels, random.Random(7), each=20).items()
        }
        _lose_both_tandem_sets(levels)
        _lose_the_home_for_a_while(levels)
        _lose_an_access_set(levels)
        levels.start("east")
        began = time.monotonic()
        eventually(lambda: _reads_at(levels, "a", "east"), timeout_s=BACK_AFTER_S + SURE_S)
        lines.append(f"target a was back at its nearest set after {time.monotonic() - began:.0f} s")
        levels.level()
    for target, url in levels.targets.items():
        lines.append(hops.format_times(f"source to target {target}", [1000 * float(s) for (s,) in query(url, TOOK)]))
    sys.stdout.write("\n".join(["", f"{'':<24} {'p50':>8} {'p99':>8} {'max':>8}", *lines, *took.values(), ""]))
    _check_everything(levels)


# -- faults ------------------------------------------------------------------------------------------------------------


def _damage_every_level(levels: BrokerLevels, rng: random.Random, *, each: int) -> dict[int, list[float]]:
    """Kill brokers and cut lines this often at each level, in random order.

    Return for each level the seconds from each fault until both targets had all rows written until then.
    """
    plan = [(level, kind) for level in range(len(LEVELS)) for kind in ("kill", "cut") for _ in range(each)]
    rng.shuffle(plan)
    took = defaultdict(list)
    for level, kind in plan:
        name, began = rng.choice(LEVELS[level]), time.monotonic()
        if kind == "kill":
            levels.brokers[name].kill()
            time.sleep(rng.uniform(0.0, 1.0))
            levels.start(name)
        else:
            _cut(levels, rng, name)
        levels.level()
        took[level].append(time.monotonic() - began)
    return {level: took[level] for level in sorted(took)}


def _cut(levels: BrokerLevels, rng: random.Random, name: str) -> None:
    """Cut one of the lines to or from a set, at once or after a silence."""
    line = levels.lines[rng.choice([link for link in levels.lines if name in link])]
    if rng.random() < 0.5:
        line.silence()
        time.sleep(rng.uniform(0.2, 1.5))
    line.cut()
    line.resume()


def _lose_an_access_set(levels: BrokerLevels) -> None:
    """Kill the access set of target a, which continues at the other one."""
    levels.brokers["east"].kill()
    levels.level()
    assert _reads_at(levels, "a", "west")


def _lose_both_tandem_sets(levels: BrokerLevels) -> None:
    """Kill both tandem sets: the access sets serve what they have, and continue below the first one that restarts."""
    for name in LEVELS[1]:
        levels.brokers[name].kill()
    for name in LEVELS[2]:
        assert networks.wait_for_state(levels.at[name], "cut off").set in LEVELS[1]
    levels.start("south")
    levels.level()
    for name in LEVELS[2]:
        assert networks.wait_for_state(levels.at[name], "following").address == levels.lines[name, "south"].address
    levels.start("north")


def _lose_the_home_for_a_while(levels: BrokerLevels) -> None:
    """Kill the home for a while: capture waits, because a mirror takes no writes."""
    levels.brokers["hq"].kill()
    networks.wait_for_state(levels.at["second"], "cut off")
    end = business_status(levels.at["second"]).next_offset
    time.sleep(5.0)
    assert business_status(levels.at["second"]).next_offset == end
    levels.start("hq")
    levels.level()


def _reads_at(levels: BrokerLevels, target: str, name: str) -> bool:
    try:
        groups = business_status(levels.at[name]).consumers
    except (VenusError, StopIteration):
        return False
    return any(group.group == f"main/{target}" and group.connected for group in groups)


# -- figures -----------------------------------------------------------------------------------------------------------


def _hops(levels: BrokerLevels, seconds: float) -> list[str]:
    """Measure the delay of each hop without faults, when each set pulls from the nearest set above."""
    with hops.reading(levels.at) as readers:
        time.sleep(seconds)
        levels.level()
    found = []
    for name, (_, _, above) in SETS.items():
        if above:
            found.append(hops.format_times(f"{above[0]} to {name}", hops.hop_ms(readers[above[0]], readers[name])))
    return found


# -- what must hold afterwards -----------------------------------------------------------------------------------------


def _check_everything(levels: BrokerLevels) -> None:
    levels.level()
    for target, url in levels.targets.items():
        assert levels.rows(url) == levels.rows(levels.source), target
        assert query(url, TWICE) == [], target
        assert read_progress(levels.settings(target), target).unaccounted == 0
    home = business_status(levels.at["hq"])
    first = max(levels.began_at.values())
    wanted = _queue(levels.at["hq"], first, home.next_offset)
    for name, address in levels.at.items():
        if name != "hq":
            networks.has(address, home.next_offset)
        assert _queue(address, first, home.next_offset) == wanted, name
        assert business_status(address).log_start == levels.began_at[name], f"{name} took the full data again"


def _queue(address: str, first: int, end: int) -> list[tuple[int, int, bytes]]:
    """Return offsets, epochs and bytes of the set's readable queue up to `end`; heartbeats continue after it."""
    with Subscriber(address, BUSINESS, "look", credit_bytes=8 << 20, transient=True) as subscriber:
        subscriber.open(first, 0)
        return [(i.base_offset, i.epoch, i.body) for i in take(subscriber, end) if i.base_offset < end]
