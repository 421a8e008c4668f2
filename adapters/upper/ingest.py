"""Interface of the broker that the upper adapter needs; `venus.rpc.producer.Producer` implements it over gRPC.

`pass_over` is for a broker that was elected or promoted without all data. Batches that the source has committed and
the broker lacks cannot be sent again: their log rows are gone, and the rows may have changed since. So the broker
continues after the source's position; `venus verify --repair` ships the rows that differ (VENUS 3.1, `availability`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from venus.adapters.dialects.contract import SourceState
from venus.config import Settings
from venus.model import Verdict
from venus.rpc.conditions import AdapterCondition
from venus.wire.broker_pb2 import Decided, Half, HalfRef, InitAck


class IngestClient(Protocol):
    """Stream of one producer. Once it has broken, every call raises the cause (Unavailable, Fenced, Diverged, ...)."""

    def connect(
        self,
        source_epoch: int,
        source_last_batch: int,
        *,
        timeout_s: float,
        owner: str,
        take_over: bool,
        gives_way: bool,
    ) -> InitAck:
        """Raise the producer epoch at the broker, durably. Raises Held while another owner's stream lives."""
        ...

    def send_half(self, half: Half, *, timeout_s: float) -> None:
        """Queue a half message; raises Overloaded, and queues nothing, if the window stays full."""
        ...

    def wait_until_persisted(self, batch_no: int, timeout_s: float) -> None:
        """Wait until every half up to `batch_no` is on the broker's disk; raise Unavailable after `timeout_s`."""
        ...

    @property
    def persisted_through(self) -> int: ...

    def decide(self, batch_no: int, digest: int, verdict: Verdict, *, can_wait: bool = False) -> None:
        """Queue a decision; it follows the halves queued before it. `can_wait`: no caller waits for the answer."""
        ...

    def pass_over(self, last_batch: int, next_sequence: int) -> None:
        """Queue what the source has committed, for a broker in doubt, which continues after it."""
        ...

    def wait_until_decided(self, batch_no: int, timeout_s: float) -> Decided: ...

    @property
    def decided_through(self) -> int:
        """The broker has recorded the COMMIT of every batch up to this one."""
        ...

    def take_reviews(self) -> list[HalfRef]:
        """Return the halves that the broker asked about since the last call; never blocks."""
        ...

    def report(self, condition: AdapterCondition) -> None:
        """Queue a report of the tables' condition at the source; never blocks."""
        ...

    def close(self) -> None: ...


Connect = Callable[[Settings], IngestClient]


logger = logging.getLogger(__name__)


def pass_over(producer: IngestClient, state: SourceState, committed: int, *, timeout_s: float) -> None:
    """Send the source's position to a broker without batches after `committed`, and wait until it has skipped there."""
    if state.last_batch > committed:
        logger.error(
            "capture: the broker lacks batches %s to %s, after an unclean election or a promotion: "
            "`venus verify --repair` ships their rows again",
            committed + 1,
            state.last_batch,
        )
    producer.pass_over(state.last_batch, state.next_sequence)
    producer.wait_until_decided(max(state.last_batch, committed), timeout_s)
