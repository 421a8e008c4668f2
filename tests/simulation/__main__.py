"""Replay one history: `python -m tests.simulation SEED`; many: `python -m tests.simulation FIRST LAST`."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from tests.simulation.judge import Violation
from tests.simulation.loop import Loop
from tests.simulation.world import World


class History(Protocol):
    """A world of some kind, made from a seed."""

    loop: Loop
    slowest_s: float

    def run(self) -> None:
        """Run it. Raises Violation."""


Kind = Callable[..., History]


def _say(line: object) -> None:
    sys.stdout.write(f"{line}\n")


def _replay(world: Kind, seed: int) -> int:
    try:
        world(seed, _say).run()
    except Violation as violation:
        _say(violation)
        return 1
    return 0


def _all(kind: Kind, first: int, last: int) -> int:
    counts: Counter[str] = Counter()
    seeds: Counter[str] = Counter()
    found: dict[str, list[int]] = {}
    steps = 0
    began = time.process_time()
    slowest = 0.0
    for seed in range(first, last):
        world = kind(seed)
        try:
            world.run()
        except Violation as violation:
            found.setdefault(violation.invariant, []).append(seed)
        except Exception as error:
            found.setdefault(repr(error), []).append(seed)
        counts += world.loop.counts
        seeds.update(world.loop.counts.keys())
        steps += world.loop.steps
        slowest = max(slowest, world.slowest_s)
    for name, count in sorted(counts.items()):
        _say(f"{count:8d} in {seeds[name]:6d} seeds  {name}")
    for name, failing in found.items():
        _say(f"{len(failing)} x {name}: {failing[:10]}")
    seeds_run = last - first
    pace = (time.process_time() - began) / seeds_run * 1000
    _say(f"{pace:.1f} ms of CPU and {steps / seeds_run:.0f} steps a seed; the slowest fail-over took {slowest:.2f} s")
    return int(bool(found))


def main(kind: Kind, numbers: list[int]) -> int:
    """Replay one history of a kind of world, or run many; return the exit status."""
    return _replay(kind, numbers[0]) if len(numbers) == 1 else _all(kind, *numbers)


if __name__ == "__main__":
    sys.exit(main(World, [int(argument) for argument in sys.argv[1:]]))
