"""Core, tandem and two access sets as processes, with a target below: each process is killed, each line cut.

Afterwards the target equals the model row by row and has applied every change once, and every set has the bytes of the
home at the offsets of the home.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.brokers import networks
from tests.support.brokers.feed import Feed, applied_offset, deletion, following, items, put, rows_at, settings_for
from tests.support.brokers.real_broker import KillableBroker
from tests.support.brokers.servers import BrokerProcess, business_status, take
from tests.support.faults.proxy import Proxy
from tests.support.ports import free_port
from tests.support.waiting import eventually
from venus.adapters.targets.relational.control import read_progress, read_table_states
from venus.adapters.targets.relational.full_sync import full_sync
from venus.config import Settings
from venus.rpc.subscriber import Subscriber

pytestmark = [pytest.mark.fault, pytest.mark.integration, pytest.mark.timeout(580)]

ROUNDS = 8


class Sets:
    """The sets below the home, each behind a connection that can be cut."""

    def __init__(self, folder: Path, home: str) -> None:
        self._folder = folder
        self.lines = {"tandem": Proxy(home)}
        self._chosen = {"tandem": self._settings("tandem", "tandem", 1)}
        self.brokers: dict[str, BrokerProcess] = {}
        self.start("tandem")
        for name in ("north", "south"):
            self.lines[name] = Proxy(self.brokers["tandem"].address)
            self._chosen[name] = self._settings(name, "access", 2)
            self.start(name)

    def _settings(self, name: str, tier: str, level: int) -> Settings:
        return networks.settings_of(
            self._folder / name,
            [self.lines[name].address],
            tier=tier,
            level=level,
            listen=f"127.0.0.1:{free_port()}",
            http="",
        )

    def start(self, name: str) -> None:
        self.brokers[name] = BrokerProcess(self._chosen[name])

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.kill()
        for line in self.lines.values():
            line.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[KillableBroker]:
    made = KillableBroker(tmp_path / "home")
    yield made
    made.kill()


@pytest.fixture
def sets(tmp_path: Path, home: KillableBroker) -> Iterator[Sets]:
    made = Sets(tmp_path, home.address)
    yield made
    made.close()


def bytes_at(address: str, first: int, end: int) -> list[tuple[int, int, bytes]]:
    with Subscriber(address, "main", "look", credit_bytes=8 << 20, transient=True) as subscriber:
        subscriber.open(first, 0)
        return [(i.base_offset, i.epoch, i.body) for i in take(subscriber, end)]


def test_a_target_below_three_levels_survives_every_kill_and_cut(
    database: str, tmp_path: Path, home: KillableBroker, sets: Sets
) -> None:
    rng = random.Random(11)
    feed = Feed(home)
    feed.describe(items())
    feed.cut(*(put(i, f"label {i}", i) for i in range(1, 201)))
    for name in ("tandem", "north", "south"):
        networks.has(sets.brokers[name].address, 200)
    reach = [sets.brokers[name].address for name in ("north", "south")]
    settings = settings_for(reach[0], {"a": database})
    settings = settings.model_copy(update={"broker": settings.broker.model_copy(update={"addresses": tuple(reach)})})
    full_sync(settings, "a")
    since = feed.committed[1]

    def write(cuts: int) -> None:
        for _ in range(cuts):
            keys = rng.sample(range(1, 300), 12)
            feed.cut(*(deletion(k) if rng.random() < 0.3 else put(k, f"{rng.random()}", k) for k in keys), batch_rows=5)

    with following(settings, "a"):
        for round_ in range(ROUNDS):
            write(5)
            _kill_or_cut(rng, sets, home, round_, lambda: write(5))
            write(5)
            eventually(lambda: applied_offset(database) == home.next_offset, timeout_s=120.0)

    assert rows_at(database, items()) == feed.model[1]
    assert read_table_states(settings, "a")[0].rows_applied == feed.committed[1] - since
    assert read_progress(settings, "a").unaccounted == 0
    wanted = bytes_at(home.address, 200, home.next_offset)
    for name, broker in sets.brokers.items():
        networks.has(broker.address, home.next_offset)
        assert bytes_at(broker.address, 200, home.next_offset) == wanted, name
        assert business_status(broker.address).log_start == 200, f"{name} took the full data again"


def _kill_or_cut(rng: random.Random, sets: Sets, home: KillableBroker, round_: int, write: object) -> None:
    """Kill one process, or cut one connection, while changes are written."""
    assert callable(write)
    victims = ["north", "tandem", "south", "home"]
    name = victims[round_ % len(victims)]
    if round_ % 8 >= 4 and name != "home":
        sets.lines[name].silence()
        write()
        sets.lines[name].cut()
        sets.lines[name].resume()
    elif name == "home":
        home.kill()
        home.start()
    else:
        sets.brokers[name].kill()
        write()
        sets.start(name)
