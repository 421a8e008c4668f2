"""Many short histories with many faults; after each step the invariants hold (docs/explanation/replication.md).

A seed that fails is replayed exactly by `python -m tests.simulation SEED`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.simulation.judge import Violation
from tests.simulation.states import RARE
from tests.simulation.world import World
from venus.replication import following
from venus.replication.messages import Answer

ROOT = Path(__file__).parents[2]


def run_histories(seeds: Iterable[int]) -> Counter[str]:
    """Run histories; return how often each rare state was reached."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        world = World(seed)
        try:
            world.run()
        except (Violation, AssertionError, ValueError) as error:
            pytest.fail(f"seed {seed}: {error}\nreplay it: python -m tests.simulation {seed}")
        counts.update(world.loop.counts)
    return counts


def check_reached(counts: Counter[str], least: int) -> None:
    """Assert that each rare state was reached at least this often."""
    assert {name: counts[name] for name in RARE if counts[name] < least} == {}


def test_three_hundred_histories_hold_and_reach_every_rare_state() -> None:
    check_reached(run_histories(range(300)), 1)


@pytest.mark.parametrize("seeds", [range(150), pytest.param(range(150, 5000), marks=pytest.mark.slow)])
def test_histories_hold_while_followers_prefetch(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefetching needs larger replies than those of the other histories."""
    kept = Counter[str]()
    take_reply = following.Following._on_reply_ahead

    def count_reply(self: following.Following, answer: Answer | None) -> bool:
        is_ahead = take_reply(self, answer)
        kept["kept" if self._ahead is not None else "used at once" if is_ahead else "another reply"] += 1
        return is_ahead

    monkeypatch.setattr(following, "AHEAD_BYTES", 0)
    monkeypatch.setattr(following.Following, "_on_reply_ahead", count_reply)
    run_histories(seeds)
    assert min(kept["kept"], kept["used at once"], kept["another reply"]) > len(seeds) // 10


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_histories_hold_and_reach_every_rare_state() -> None:
    check_reached(run_histories(range(10_000)), 100)


def test_a_seed_is_replayed_byte_for_byte() -> None:
    def replay(hash_seed: str) -> bytes:
        return subprocess.run(
            [sys.executable, "-m", "tests.simulation", "7"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        ).stdout

    first = replay("1")
    assert first.count(b"\n") > 300
    assert replay("2") == first
