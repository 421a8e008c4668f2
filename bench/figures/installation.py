"""How fast an empty replica takes a leader's copy, beside a load of the same rows from the same leader.

The log is trimmed before, so that the replica cannot follow it from its begin: it takes the copy, full data and all.
The load is what the readers of `venus migrate` do, digests checked, without a target: the part that both have.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass

from bench.venus_cluster import Brokers, Writer, wait_for
from tests.support.stored import plain_rows
from venus.rpc.snapshots import Snapshots
from venus.wire import broker_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Seconds: `install_s` from when the broker serves until it has all rows, `in_sync_s` from then until it counts."""

    rows: int
    load_s: float
    install_s: float
    in_sync_s: float

    @property
    def percent(self) -> float:
        """How fast it is, of a load."""
        return 100 * self.load_s / self.install_s

    @property
    def said(self) -> str:
        """The rates, and how long it took to be in sync afterwards."""
        rates = f"{self.rows / self.install_s:,.0f} of {self.rows / self.load_s:,.0f} rows/s"
        return f"{rates}, in sync {self.in_sync_s:.2f} s later"


def installation(cluster: Brokers, batches: int, rows: int) -> Installation:
    """Fill the cluster, load from it, and give a follower an empty disk."""
    writer = Writer(cluster.reach)
    for _ in range(batches // 100):
        writer.stream(100, rows)
    writer.close()
    leader = cluster.leader()
    wait_for(lambda: _is_trimmed(cluster.status(leader)))
    load_s = min(_loaded(cluster), _loaded(cluster))  # the second one finds the files in memory, as the copy does
    name = cluster.followers()[0]
    cluster.kill(name)
    shutil.rmtree(cluster.data(name))
    cluster.start(name)
    began = time.monotonic()
    wait_for(lambda: _is_whole(cluster.status(name), batches * rows), every_s=0.05)  # asking costs the replica time
    whole = time.monotonic()
    cluster.wait_in_sync()
    return Installation(rows=batches * rows, load_s=load_s, install_s=whole - began, in_sync_s=time.monotonic() - whole)


def _loaded(cluster: Brokers) -> float:
    """Read everything from the leader; return the seconds."""
    rows, began = 0, time.monotonic()
    with Snapshots(cluster.reach) as snapshots:
        snapshot = snapshots.open("bench")
        for split in snapshot.splits:
            for chunk in snapshots.read_split(snapshot.snapshot_id, split):
                rows += len(plain_rows(chunk.rows))
        snapshots.close(snapshot.snapshot_id)
    assert rows, "the load found nothing"
    return time.monotonic() - began


def _is_trimmed(status: broker_pb2.BusinessStatus | None) -> bool:
    return status is not None and status.log_start >= status.next_offset - 1


def _is_whole(status: broker_pb2.BusinessStatus | None, rows: int) -> bool:
    """Whether a replica has all rows, in its full data too. Raises RuntimeError if it followed the log instead."""
    if status is None or status.materialised_offset < rows:
        return False
    if not status.log_start:
        raise RuntimeError("the replica has followed the log from its begin: nothing was installed")
    return True
