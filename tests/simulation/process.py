"""A process in simulated time: its scheduled calls wait while it is paused, and are dropped when it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.simulation.loop import Loop


class ProcessHost:
    """Base of a host, which runs one process after the other; no call of a former `life` runs in a later one."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.life = 0
        self.up = False
        self.paused_until = 0.0

    def begin(self) -> None:
        """Begin the next process."""
        self.life += 1
        self.up = True
        self.paused_until = 0.0

    def end(self) -> None:
        """End the process at once."""
        self.life += 1
        self.up = False

    def every(self, seconds: float, what: Callable[[], None]) -> None:
        """Repeat a call regularly in this process."""

        def run_and_repeat() -> None:
            what()
            self.soon(seconds, run_and_repeat)

        self.soon(seconds * self.loop.random.random(), run_and_repeat)

    def soon(self, delay: float, what: Callable[..., None], *arguments: Any) -> None:
        """Schedule a call in this process; it does not run if the process has ended."""
        self.loop.after(delay, self.run, self.life, what, arguments)

    def run(self, life: int, what: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """Run a call in process number `life`, if that still runs; while the process is paused, the call waits."""
        if life != self.life:
            return
        if self.loop.now < self.paused_until:
            self.loop.at(self.paused_until, self.run, life, what, arguments)
            return
        what(*arguments)
