"""A process with threads: one of them may wait for the world, and is gone when the process is killed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.simulation.brokers.core import ProcessKilled
from tests.simulation.process import Process


class ThreadedProcess(Process):
    """What a host runs when the product's code waits in it."""

    def run(self, life: int, what: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """Do something in a process, if it still runs; what waits there when it is killed does not come back."""
        try:
            super().run(life, what, arguments)
        except ProcessKilled:
            return

    def wait(self, done: Callable[[], bool], seconds: float) -> None:
        """Let the world continue until something is done, in a thread of this process. Raises ProcessKilled."""
        life, loop = self.life, self.loop
        loop.run_until(loop.now + seconds, lambda: done() or self.life != life)
        if self.life == life and self.paused_until > loop.now:
            loop.run_until(self.paused_until, lambda: self.life != life)
        if self.life != life:
            raise ProcessKilled
