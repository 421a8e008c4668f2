"""Replay one history of the protocol exactly by its seed, or run all seeds from FIRST up to but not including LAST."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from tests.simulation.judge import Violation
from tests.simulation.loop import Loop
from tests.simulation.world import World


class History(Protocol):
    """Simulated history; its seed determines every step."""

    loop: Loop
    slowest_s: float

    def run(self) -> None:
        """Run the history. Raises Violation."""


Kind = Callable[..., History]


def _print(line: object) -> None:
    sys.stdout.write(f"{line}\n")


def _replay(world: Kind, seed: int) -> int:
    try:
        world(seed, _print).run()
    except Violation as violation:
        _print(violation)
        return 1
    return 0


def _run_range(kind: Kind, first: int, last: int) -> int:
    """Run a range of seeds; print the violations, and how often each rare state was reached."""
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
        _print(f"{count:8d} in {seeds[name]:6d} seeds  {name}")
    for name, failing in found.items():
        _print(f"{len(failing)} x {name}: {failing[:10]}")
    seeds_run = last - first
    pace = (time.process_time() - began) / seeds_run * 1000
    _print(f"{pace:.1f} ms of CPU and {steps / seeds_run:.0f} steps a seed; the slowest fail-over took {slowest:.2f} s")
    return int(bool(found))


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a seed is a number from 0, not {text!r}")
    return int(text)


def main(kind: Kind, says: str | None, arguments: Sequence[str] | None = None) -> int:
    """Replay one history of a kind of world, or run many; return the exit status."""
    parser = argparse.ArgumentParser(description=says)
    parser.add_argument("first", type=_seed, metavar="SEED|FIRST", help="replay this one, or begin with it")
    parser.add_argument("last", type=_seed, metavar="LAST", nargs="?", help="run all seeds below it")
    asked = parser.parse_args(arguments)
    if asked.last is None:
        return _replay(kind, asked.first)
    if asked.last <= asked.first:
        parser.error(f"there is no seed from {asked.first} to below {asked.last}")
    return _run_range(kind, asked.first, asked.last)


if __name__ == "__main__":
    sys.exit(main(World, __doc__))
