"""The producer's side of the broker: its interface, the review of half messages, the versions sent to it. Pure.

`venus.rpc.producer.Producer` implements the interface over gRPC. `report_committed` is for a broker that was elected or
promoted without all data. Batches that the source has committed and the broker lacks cannot be sent again: their log
rows are gone, and the rows may have changed since. So the broker continues after the source's position; `venus verify
--repair` ships the rows that differ (VENUS 3.1, `availability`).

The broker asks about undecided halves when a producer connects (`InitAck.undecided`) and later (`Review`). The
source's batch table decides: if a batch is not in the table, its local transaction never happened (VENUS 3.3, figure
4).

`SentSchemas` sends every registered table version once per connection, in the first batch, and each new version in the
first batch after it was found. A version counts as sent only when the cut that carried it is in the source's batch
table: the broker drops the schemas of a half message that is rolled back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from typing import Protocol

from venus.adapters.dialects.contract import SourceState
from venus.config import Settings
from venus.errors import Diverged, SourceError
from venus.model import BatchNo, BatchRecord, TableSchema, Verdict
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
        """Raise the producer epoch at the broker, durably. Raises Held while another owner's stream is open."""
        ...

    def send_half(self, half: Half, *, timeout_s: float) -> None:
        """Queue a half message; raises Overloaded, and queues nothing, if the window stays full."""
        ...

    def wait_until_persisted(self, batch_no: int, timeout_s: float) -> None:
        """Wait until every half up to `batch_no` is on the broker's disk; raise Unavailable after `timeout_s`."""
        ...

    @property
    def persisted_through(self) -> int:
        """The broker has every half up to this batch on its disk."""
        ...

    def decide(self, batch_no: int, digest: int, verdict: Verdict, *, can_wait: bool = False) -> None:
        """Queue a decision; it follows the halves queued before it. `can_wait`: no caller waits for the answer."""
        ...

    def report_committed(self, last_batch: int, next_sequence: int) -> None:
        """Queue the source's last committed batch for a broker that may have lost it; the broker continues after it."""
        ...

    def wait_until_decided(self, batch_no: int, timeout_s: float) -> Decided:
        """Wait until the broker has recorded the decision of this batch; return it."""
        ...

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


def skip_lost_batches(producer: IngestClient, state: SourceState, committed: int, *, timeout_s: float) -> None:
    """Send the source's position to a broker that lacks batches after `committed`; wait until it has skipped them."""
    if state.last_batch > committed:
        logger.error(
            "capture: the broker lacks batches %s to %s, after an unclean election or a promotion: "
            "`venus verify --repair` ships their rows again",
            committed + 1,
            state.last_batch,
        )
    producer.report_committed(state.last_batch, state.next_sequence)
    producer.wait_until_decided(max(state.last_batch, committed), timeout_s)


def judge_halves(
    halves: Seq[HalfRef],
    records: Mapping[BatchNo, BatchRecord],
    *,
    in_flight_from: BatchNo | None = None,
    in_doubt: bool = False,
) -> list[tuple[HalfRef, Verdict]]:
    """Decide undecided half messages by the batch table; return the decisions to send, in order.

    A decision covers more than the half that it names (COMMIT: all up to it, ROLLBACK: all from it on), so one
    decision of each kind is enough: local transactions happen in batch order, and the batches in the batch table come
    first.

    A broker `in_doubt` may have lost a ROLLBACK, and may hold an older half message whose batch number was used again.
    """
    committed: HalfRef | None = None
    for half in sorted(halves, key=lambda h: h.batch_no):
        if in_flight_from is not None and half.batch_no >= in_flight_from:
            return _build_decisions(committed, half, Verdict.UNKNOWN)
        record = records.get(BatchNo(half.batch_no))
        if record is None:
            return _build_decisions(committed, half, Verdict.ROLLBACK)
        if record.digest != half.digest and in_doubt:
            return _build_decisions(committed, half, Verdict.ROLLBACK)
        if record.digest != half.digest:
            raise Diverged(
                f"batch {half.batch_no} is {half.digest:016x} at the broker and {record.digest:016x} at the source",
                hint="the two sides do not belong together: check [business] name and [broker] address",
            )
        committed = half
    return _build_decisions(committed, None, Verdict.UNKNOWN)


def _build_decisions(
    committed: HalfRef | None, other: HalfRef | None, verdict: Verdict
) -> list[tuple[HalfRef, Verdict]]:
    """Return the COMMIT, if a half was committed, then the verdict on the other half, if there is one."""
    first = [(committed, Verdict.COMMIT)] if committed is not None else []
    return first + ([(other, verdict)] if other is not None else [])


class SentSchemas:
    """Table versions of one connection to the broker: those sent, and those to send."""

    def __init__(self) -> None:
        self._known: set[tuple[int, int]] = set()
        self._unsent: dict[tuple[int, int], TableSchema] = {}
        self._newest: dict[int, TableSchema] = {}

    def offer(self, schemas: Iterable[TableSchema]) -> None:
        """Add versions from the registry to those to send, unless this connection knows them already."""
        for schema in schemas:
            version = (schema.table_id, schema.version)
            if version in self._known:
                continue
            self._known.add(version)
            self._unsent[version] = schema
            newest = self._newest.get(schema.table_id)
            if newest is None or newest.version < schema.version:
                self._newest[schema.table_id] = schema

    def require(self, table_id: int, version: int) -> None:
        """Raise SourceError for a section in a version that the registry does not have."""
        if (table_id, version) not in self._known:
            raise SourceError(f"the registry has no version {version} of table {table_id}")

    def newest(self, table_id: int) -> TableSchema:
        """Return the current version of a registered table."""
        return self._newest[table_id]

    @property
    def unsent(self) -> tuple[TableSchema, ...]:
        """The versions that the next batch must carry."""
        return tuple(self._unsent.values())

    def record_sent(self, schemas: Iterable[TableSchema]) -> None:
        """Record that these versions are committed at the source, in a batch that the broker has on disk."""
        for schema in schemas:
            self._unsent.pop((schema.table_id, schema.version), None)
