"""Who writes a broker's log: one order after the other, then a sync; the replica hears of both a little later."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from venus.replication.messages import LogChanged

if TYPE_CHECKING:
    from tests.simulation.host import Host


class LogQueue:
    """The log of one process."""

    def __init__(self, host: Host) -> None:
        self._host, self._disk, self._loop = host, host.disk, host.loop
        self._orders: deque[tuple[Any, ...]] = deque()
        self._done = 0
        self._syncing = False
        self._telling = False

    def order(self, order: tuple[Any, ...]) -> None:
        """Have something done to the log, after what was ordered before."""
        self._orders.append(order)
        if len(self._orders) == 1:
            self._host.soon(self._pace(), self._work)

    def changed(self) -> None:
        """Say what the log is now, and have it on disk."""
        if not self._telling:
            self._telling = True
            self._host.soon(0.001, self._tell)
        if not self._syncing and self._disk.unsynced:
            self._syncing = True
            self._host.soon(self._pace() + self._disk.lag_s, self._sync, len(self._disk.unsynced))

    def now(self) -> LogChanged:
        """Return what the log is."""
        content = self._disk.content
        return LogChanged(
            start=content.start,
            end=content.end,
            durable_end=self._disk.durable_end,
            terms=content.terms,
            done=self._done,
        )

    def _pace(self) -> float:
        return 0.003 * self._loop.random.random() + (0.05 * self._disk.lag_s)

    def _tell(self) -> None:
        self._telling = False
        self._host.step(self.now())

    def _sync(self, changes: int) -> None:
        self._syncing = False
        self._disk.sync(changes)
        self.changed()

    def _work(self) -> None:
        order = self._orders.popleft()
        if self._orders:
            self._host.soon(self._pace(), self._work)
        match order:
            case ("append", number, first, entries):
                self._done = number
                if first == self._disk.content.end:
                    for entry in entries:
                        self._disk.change(("append", entry))
            case ("truncate", number, end):
                self._done = number
                self._truncate(end)
            case ("lead", term):
                if self._host.acknowledges_in == term:
                    self._disk.change(("append", (term, 0)))
            case ("propose", term, value):
                self._propose(term, value)
            case ("trim", start):
                self._trim(start)
        self.changed()

    def _truncate(self, end: int) -> None:
        content = self._disk.content
        if end < content.end:
            self._loop.counts["log truncated"] += 1
            self._host.world.judge.truncates(self._host, end)
            self._disk.change(("truncate", end))

    def _propose(self, term: int, value: int) -> None:
        host, content = self._host, self._disk.content
        if host.acknowledges_in == term:
            host.pending[content.end] = (term, value)
            self._disk.change(("append", (term, value)))

    def _trim(self, start: int) -> None:
        content = self._disk.content
        if content.start < start <= min(len(content.applied) + 1, self._disk.durable_end):
            self._disk.change(("trim", start))
