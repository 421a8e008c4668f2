"""Subscriber that reads increments from an in-sync replica, so that many targets do not load the leader.

The group's stream is at the leader and carries positions and reports. A transient stream at a replica carries the
increments. A replica serves only what is below its high watermark, and checks offset and epoch as a leader does. If a
replica fails, the next one is used; the leader is the last choice. The leader ends the group's stream when a replica
leaves the in-sync set, and the caller opens both again.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq
from contextlib import suppress
from typing import Any

from venus.errors import Unavailable, VenusError
from venus.model import FULL
from venus.network.scheduling import rank_brokers
from venus.rpc.address import BrokerAddress, proof_of
from venus.rpc.channel import CLUSTER_KEEPALIVE_S
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2

logger = logging.getLogger(__name__)

#: A failed replica is not tried again for this long, then for twice as long each time: a try delays the increments.
AVOID_S = 30.0
AVOID_MAX_S = 600.0


class NearestSubscriber(Subscriber):
    """Stream of a group at the leader, and a reader at a replica. `near` is the site of this process."""

    def __init__(self, address: str, business: str, group: str, *, near: str, credit_bytes: int, **more: Any) -> None:
        super().__init__(address, business, group, credit_bytes=credit_bytes, **more)
        self._proof, self._near = proof_of(address), near
        self._reader: Subscriber | None = None
        self._replicas: list[broker_pb2.ReadReplica] = []
        self._avoided: dict[str, float] = {}  # until when each failed replica is avoided
        self._failures = Counter[str]()  # by address
        self._monotonic: Callable[[], float] = time.monotonic
        self._epoch = 0  # of the newest increment

    def open(self, offset: int, epoch: int, table_ids: Seq[int] = (), **more: Any) -> broker_pb2.Opened:
        """Start at `offset`, as a `Subscriber`; full data comes from the leader."""
        self._open.elsewhere = offset != FULL
        opened = super().open(offset, epoch, table_ids, **more)
        self._epoch, self._replicas = epoch, list(opened.replicas)
        if self._replicas:
            self._reader = self._open_reader(offset)
            logger.info("%s is read from broker %s", self._business, self.reads_from)
        return opened

    @property
    def reads_from(self) -> str:
        """HOST:PORT of the broker that sends the increments."""
        return self._reader.address if self._reader is not None else self.address

    def increments(self, timeout_s: float) -> list[broker_pb2.Increment]:
        """Return the increments that have arrived. Raises the error of the group's stream."""
        if self._reader is None:
            return super().increments(timeout_s)
        with self._lock:
            self._check()
        if self._may_return():
            self._move_reader()
        try:
            taken = self._reader.increments(timeout_s)
        except VenusError as error:
            self._avoid(self._reader.address, error)
            self._move_reader()
            return []
        if taken:
            self._epoch = max(self._epoch, taken[-1].epoch)
        return taken

    @property
    def position(self) -> int:
        """Every increment below this offset was returned or is not for this subscriber."""
        return self._reader.position if self._reader is not None else super().position

    def acknowledge(self, offset: int, *, kept: int | None = None, unaccounted: int | None = None) -> None:
        """Queue an acknowledgement at the leader; the replica learns that its reader is not slow."""
        super().acknowledge(offset, kept=kept, unaccounted=unaccounted)
        if self._reader is not None:
            with suppress(VenusError):  # `increments` replaces a broken reader; the group's stream is unaffected
                self._reader.acknowledge(offset)

    def close(self) -> None:
        """End both streams."""
        if self._reader is not None:
            self._reader.close()
        super().close()

    def _may_return(self) -> bool:
        """Return whether a replica nearer than the broker in use may be tried again."""
        now = self._monotonic()
        if not any(until <= now for until in self._avoided.values()):
            return False
        self._avoided = {address: until for address, until in self._avoided.items() if until > now}
        return self._candidates()[:1] not in ([], [self.reads_from])

    def _move_reader(self) -> None:
        """Replace the reader by one at the best broker, from the same position on."""
        assert self._reader is not None
        position = self._reader.position
        self._reader.close()
        self._reader = self._open_reader(position)

    def _open_reader(self, offset: int) -> Subscriber:
        """Return a reader at the nearest replica that serves this offset; at the leader if none does."""
        for address in (*self._candidates(), self.address):
            try:
                return self._open_at(address, offset)
            except VenusError as error:
                if address == self.address:
                    raise
                self._avoid(address, error)
        raise Unavailable("no broker can be read")  # never reached: the leader is the last candidate

    def _candidates(self) -> list[str]:
        """Return replicas that did not fail recently, this site's first; groups spread over equally near ones."""
        sites = {one.address: one.site for one in self._replicas if one.address not in self._avoided}
        ranked = rank_brokers(self._open.group, sites)
        return sorted(ranked, key=lambda address: not self._near or sites[address] != self._near)

    def _open_at(self, address: str, offset: int) -> Subscriber:
        """Open a reader at one broker."""
        wanted = self._open
        reader = Subscriber(
            BrokerAddress(address, self._proof),
            self._business,
            wanted.group,
            credit_bytes=self._credit_bytes,
            transient=True,
            only=wanted.only,
            where=wanted.where,
            keepalive_s=CLUSTER_KEEPALIVE_S,
        )
        try:
            reader.open(offset, self._epoch, wanted.table_ids)
        except BaseException:
            reader.close()
            raise
        return reader

    def _avoid(self, address: str, error: VenusError) -> None:
        """Avoid a failed replica for a time that doubles with each failure."""
        logger.warning("%s is not read from broker %s any more: %s", self._business, address, error)
        self._failures[address] += 1
        wait_s = min(AVOID_MAX_S, AVOID_S * 2.0 ** min(self._failures[address] - 1, 16))
        self._avoided[address] = self._monotonic() + wait_s


def open_subscriber(address: str, business: str, group: str, *, credit_bytes: int, ahead: bool = False) -> Subscriber:
    """Return the subscriber of a target: with `[broker] read_from = "nearest"` one that reads from replicas."""
    near = address.near if isinstance(address, BrokerAddress) else None
    if near is None:
        return Subscriber(address, business, group, credit_bytes=credit_bytes, ahead=ahead)
    return NearestSubscriber(address, business, group, near=near, credit_bytes=credit_bytes)
