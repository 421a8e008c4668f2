"""Writer of a simulated broker's log. Like the commit thread it writes a group, syncs it, then takes the next.

The replica is notified when a group is written, and again when it is synced. Orders that arrive during this wait, so a
leader's order may be executed long after another broker has taken over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from venus.replication.position import LogChanged

if TYPE_CHECKING:
    from tests.simulation.host import Host


class LogQueue:
    """The log of one broker process."""

    def __init__(self, host: Host) -> None:
        self._host, self._disk, self._loop = host, host.disk, host.loop
        self._orders: list[tuple[Any, ...]] = []
        self._done = 0
        self._busy = False  # a group is about to be written or synced
        self._telling = False

    def order(self, order: tuple[Any, ...]) -> None:
        """Queue an order for the log, after all earlier ones."""
        self._orders.append(order)
        self._schedule_work()

    def notify(self) -> None:
        """Notify the replica of the log's current bounds."""
        if not self._telling:
            self._telling = True
            self._host.soon(0.001, self._tell)

    def now(self) -> LogChanged:
        """Return the log's current bounds."""
        content = self._disk.content
        return LogChanged(
            start=content.start,
            end=content.end,
            durable_end=self._disk.durable_end,
            terms=content.terms,
            done=self._done,
        )

    def _pace(self) -> float:
        """Return the duration of a write."""
        return 0.003 * self._loop.random.random()

    def _tell(self) -> None:
        """Pass the log's bounds to the replica."""
        self._telling = False
        self._host.step(self.now())

    def _schedule_work(self) -> None:
        if not self._busy and self._orders:
            self._busy = True
            self._host.soon(self._pace(), self._work)

    def _work(self) -> None:
        """Execute all queued orders as a group, and sync it."""
        orders, self._orders = self._orders, []
        for order in orders:
            self._carry_out(order)
        self.notify()
        self._host.soon(self._pace() + self._disk.lag_s, self._on_synced, len(self._disk.unsynced))

    def _on_synced(self, changes: int) -> None:
        self._disk.sync(changes)
        self._busy = False
        self.notify()
        self._schedule_work()

    def _carry_out(self, order: tuple[Any, ...]) -> None:
        """Execute an order."""
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

    def _truncate(self, end: int) -> None:
        content = self._disk.content
        if end < content.end:
            self._loop.counts["log truncated"] += 1
            self._host.world.judge.on_truncate(self._host, end)
            self._disk.change(("truncate", end))

    def _propose(self, term: int, value: int) -> None:
        """Append a client's value, if this process may still acknowledge in that term."""
        host, content = self._host, self._disk.content
        if host.acknowledges_in == term:
            host.pending[content.end] = (term, value)
            self._disk.change(("append", (term, value)))

    def _trim(self, start: int) -> None:
        content = self._disk.content
        if content.start < start <= min(len(content.applied) + 1, self._disk.durable_end):
            self._disk.change(("trim", start))
