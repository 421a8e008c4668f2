"""VENUS with three replicas as a system of bench/rounds.py: a change is answered once two disks have it."""

from __future__ import annotations

import contextlib
import time
from functools import partial

from bench.rounds import Round
from bench.venus_cluster import Brokers, run_brokers
from bench.venus_transmission import VenusReceiver, VenusSender


class VenusReplicated:
    """VENUS with three brokers. A round ends when the leader has all rows in its full data too."""

    name = "VENUS, 3 replicas"
    rows_max = 500_000

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._brokers: Brokers | None = None
        self._leader = ""

    @property
    def brokers(self) -> Brokers:
        """The cluster."""
        assert self._brokers is not None, "started"
        return self._brokers

    def missing(self) -> str:
        """Return an empty text: no program is missing."""
        return ""

    def start(self) -> None:
        """Start the brokers, and wait until all three are in sync."""
        self._brokers = self._stack.enter_context(run_brokers())
        first = VenusSender(self.brokers.reach, one_at_a_time=True)
        first.prepare(Round(number=0, rows=1, batches=1))
        first.send(Round(number=0, rows=1, batches=1))
        first.close()
        self.brokers.wait_in_sync()
        self._leader = self.brokers.leader()

    def stop(self) -> None:
        """Stop the brokers and remove their data."""
        self._stack.close()

    def sender(self) -> partial[VenusSender]:
        """Return a factory of the producer."""
        return partial(VenusSender, self.brokers.reach, one_at_a_time=False)

    def receiver(self) -> partial[VenusReceiver]:
        """Return a factory of the consumer."""
        return partial(VenusReceiver, self.brokers.reach)

    def pids(self) -> list[int]:
        """Return the brokers' processes."""
        return self.brokers.pids()

    def finish(self, wanted: Round) -> None:
        """Wait until the leader has all rows of the round in its full data."""
        while True:
            status = self.brokers.status(self._leader)
            if status is not None and status.materialised_offset >= status.next_offset:
                return
            time.sleep(0.002)
