"""The halves of one cut on their way to the broker (VENUS 3.3, figure 4).

They leave while the snapshot is still being read, so the window of the producer is the only place where rows wait.
Until the source's local transaction, the whole shipment can be taken back with one ROLLBACK of its first half.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from venus.adapters.upper.ingest import Ingest
from venus.codec.batch import Batch, digest, encode
from venus.errors import Unavailable
from venus.model import BatchRecord, Epoch, Sequence, Verdict
from venus.wire.broker_pb2 import Half

#: A stop is noticed at least this often while the broker is slow.
SLICE_S = 0.25


class Stopped(Exception):
    """Someone asked the adapter to stop in the middle of a cut."""


class Shipment:
    """What was sent of one cut."""

    def __init__(self, producer: Ingest, stop: threading.Event, *, timeout_s: float) -> None:
        self._producer = producer
        self._stop = stop
        self._timeout_s = timeout_s
        self._offered = False
        self.records: list[BatchRecord] = []

    def send(self, batch: Batch, epoch: Epoch) -> None:
        """Encode and queue one batch; blocks while the window is full."""
        body = encode(batch)
        record = BatchRecord(
            batch_no=batch.batch_no,
            epoch=epoch,
            first_sequence=batch.first_sequence,
            last_sequence=Sequence(batch.first_sequence + batch.count - 1),
            digest=digest(body),
        )
        self.records.append(record)
        half = Half(batch_no=record.batch_no, digest=record.digest, body=body)
        self._patiently(lambda timeout_s: self._producer.send_half(half, timeout_s=timeout_s))
        self._offered = True

    def wait_persisted(self) -> None:
        """Return when all of it is on the broker's disk; only then may the local transaction happen."""
        last = self.records[-1].batch_no
        self._patiently(lambda timeout_s: self._producer.wait_persisted(last, timeout_s))

    def confirm(self) -> None:
        """Say COMMIT: the local transaction is durable. Not waited for, the next cut's halves follow at once."""
        last = self.records[-1]
        self._producer.decide(last.batch_no, last.digest, Verdict.COMMIT, can_wait=True)

    def retract(self) -> None:
        """Say ROLLBACK: the local transaction never was, and never will be."""
        if self._offered:
            first = self.records[0]
            self._producer.decide(first.batch_no, first.digest, Verdict.ROLLBACK)

    def _patiently(self, attempt: Callable[[float], None]) -> None:
        deadline = time.monotonic() + self._timeout_s
        while True:
            if self._stop.is_set():
                raise Stopped
            try:
                return attempt(SLICE_S)
            except Unavailable:
                # either this slice is over, or the stream broke: then asking anything raises what broke it
                _ = self._producer.persisted_through
                if time.monotonic() >= deadline:
                    raise Unavailable(f"the broker took no half message for {self._timeout_s:g} s") from None
