"""kill -9 of the process that writes a lake, around every durable step: no change is lost, none is applied twice."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import Feed, deletion, items, put
from tests.support.pipelines import lakes
from tests.support.processes.forks import ForkedModule

pytestmark = [pytest.mark.fault, pytest.mark.integration]


class LakeVictim(ForkedModule):
    """A process that loads a lake and follows the queue until it kills itself."""

    def __init__(self, broker: FakeDelivery, root: Path) -> None:
        self._broker = broker
        super().__init__("tests.support.faults.killed_lake", broker.address, str(root))

    def run(self, *words: object) -> bool:
        """Run until every change that the broker has is applied."""
        return super().run(*words, self._broker.next_offset)


def check_complete(root: Path, ends: list[int]) -> None:
    """Check that the visible history has every offset once up to the end of a cut, and nothing else."""
    offsets = sorted(lakes.history(root, "shop.items")["_offset"].to_pylist())
    assert ends[0] + len(offsets) in ends
    assert offsets == list(range(ends[0], ends[0] + len(offsets)))


#: Steps around the renaming of the manifest (files written, manifest written, renamed, files named), then those within
#: the first refresh; `slow` tests every step, before and after.
FEW = [(1, "after"), (3, "after"), (4, "after"), (5, "before"), (5, "after"), (9, "after"), (13, "before")]
ALL = [(step, moment) for step in range(1, 30) for moment in ("before", "after")]


@pytest.mark.parametrize("steps", [pytest.param(FEW, id="few"), pytest.param(ALL, id="all", marks=pytest.mark.slow)])
def test_kill_around_each_step_of_the_loop(
    steps: list[tuple[int, str]], broker: FakeDelivery, feed: Feed, tmp_path: Path
) -> None:
    root, rng = tmp_path / "lake", random.Random(3)
    settings = lakes.settings_of(broker.address, root)
    feed.describe(items())
    feed.cut(*(put(i, f"label {i}", i) for i in range(1, 101)))
    lakes.load(settings)
    kills, ends = 0, [broker.next_offset]
    with LakeVictim(broker, root) as victim:
        for step, moment in steps:
            keys = rng.sample(range(1, 150), 15)
            feed.cut(
                *(deletion(k) if rng.random() < 0.3 else put(k, f"{rng.random()}", step) for k in keys), batch_rows=4
            )
            ends.append(broker.next_offset)
            kills += victim.run("follow", step, moment)
            check_complete(root, ends)
    with lakes.follow_in_thread(settings):
        feed.cut(put(1, "the end", 1))
        lakes.check_state(settings, broker.next_offset)
        lakes.wait_until_fresh(settings)

    assert kills >= len(FEW) - 2
    assert sorted(lakes.history(root, "shop.items")["_offset"].to_pylist()) == list(range(100, broker.next_offset))
    assert lakes.current_rows(root, items()) == lakes.newest_rows(settings, items()) == feed.model[1]
    assert lakes.manifest_of(settings).unaccounted_changes == 0
    assert not list(root.rglob("*.tmp"))


@pytest.mark.parametrize(
    "steps", [pytest.param(FEW[1::2], id="few"), pytest.param(ALL, id="all", marks=pytest.mark.slow)]
)
def test_kill_around_each_step_of_the_load(
    steps: list[tuple[int, str]], broker: FakeDelivery, feed: Feed, tmp_path: Path
) -> None:
    root = tmp_path / "lake"
    feed.describe(items())
    feed.cut(*(put(i, f"label {i}", i) for i in range(1, 1501)))
    with LakeVictim(broker, root) as victim:
        kills = sum(victim.run("load", step, moment) for step, moment in steps)
    opened, read = broker.snapshots_opened, broker.splits_read
    feed.cut(put(3, "behind", 1))
    settings = lakes.settings_of(broker.address, root)
    lakes.load(settings)
    with lakes.follow_in_thread(settings):
        lakes.check_state(settings, broker.next_offset)
        lakes.wait_until_fresh(settings)

    assert kills >= 3
    assert broker.snapshots_opened == opened, "an interrupted load continues with its snapshot"
    assert broker.splits_read - read <= 4, "what was loaded is not loaded again"
    assert lakes.current_rows(root, items()) == feed.model[1]
