"""One piece of work in a thread of its own, while whoever gave it prepares the next one.

A connection is used by one thread at a time. The server's work on one piece of a large cut takes as long as making
text of the next one, so the two go side by side; whoever needs the connection first waits until the piece is done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress


class Behind:
    """Does one piece of work at a time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._executor: ThreadPoolExecutor | None = None
        self._job: Future[None] | None = None
        self._worker = 0

    def start(self, work: Callable[[], None]) -> None:
        """Begin once the piece before it is done. Raises what that one raised, and then begins nothing."""
        self.settle()
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, self._name, initializer=self._begun)
        self._job = self._executor.submit(work)

    def settle(self) -> None:
        """Wait until nothing is under way, and raise what the last piece raised; the piece itself need not wait."""
        if self._job is None or threading.get_ident() == self._worker:
            return
        job, self._job = self._job, None
        job.result()

    def drop(self) -> None:
        """Wait until nothing is under way, whatever comes of it."""
        with suppress(Exception):
            self.settle()

    def close(self) -> None:
        """Drop it, and end the thread."""
        self.drop()
        if self._executor is not None:
            self._executor.shutdown()

    def _begun(self) -> None:
        self._worker = threading.get_ident()
