"""A process with threads: a thread may wait for simulated events, and ends with the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.simulation.brokers.core import ProcessKilled
from tests.simulation.process import ProcessHost


class ThreadedProcess(ProcessHost):
    """The process of a host whose product code waits inside calls."""

    def run(self, life: int, what: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """Run a function in process number `life`, if that still runs; a kill ends a wait in it with ProcessKilled."""
        try:
            super().run(life, what, arguments)
        except ProcessKilled:
            return

    def wait(self, done: Callable[[], bool], seconds: float) -> None:
        """Let the simulation continue until `done`, in a thread of this process. Raises ProcessKilled."""
        life, loop = self.life, self.loop
        loop.run_until(loop.now + seconds, lambda: done() or self.life != life)
        if self.life == life and self.paused_until > loop.now:
            loop.run_until(self.paused_until, lambda: self.life != life)
        if self.life != life:
            raise ProcessKilled
