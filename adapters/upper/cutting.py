"""One cut, a group of source transactions, from its snapshot to COMMIT (VENUS 3.3, figure 4).

The order is the guarantee: every half is on the broker's disk before the source's local transaction, and COMMIT is
sent only after it. A failure before the local transaction rolls the whole cut back. A failure during the local
transaction leaves its outcome open; the next session reads the outcome from the source's batch table.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator
from collections.abc import Sequence as Seq
from contextlib import suppress
from enum import Enum

from venus.adapters.dialects.contract import Cut, FillState, SnapshotLost, TableHalted
from venus.adapters.upper.batching import Batcher
from venus.adapters.upper.fills import FillChunk
from venus.adapters.upper.ingest import IngestClient
from venus.adapters.upper.periodic import Reporter
from venus.adapters.upper.session import CaptureSession
from venus.codec.batch import Batch, TableChanges, digest, encode
from venus.config import CaptureSettings as Limits
from venus.errors import SourceError, Unavailable, VenusError
from venus.model import BatchNo, BatchRecord, Epoch, Sequence, Verdict
from venus.process import tracing
from venus.wire.broker_pb2 import Half

logger = logging.getLogger(__name__)

#: How many times a cut is read again after DDL intervened, before the source's own error is raised.
REREADS_MAX = 3
#: How many tables may have fill chunks in one cut, so that small tables do not need a cut each.
FILLS_MAX = 64


class CutResult(Enum):
    """What a poll found and shipped."""

    NOTHING = "nothing, or a cut that had to be taken back"
    #: The cut has nothing but VENUS's own heartbeat row: the source counts as idle.
    HEARTBEAT = "the heartbeat"
    CHANGES = "changes of the application, or rows of a fill"


class Cutter:
    """Ships the cuts of one session."""

    def __init__(self, session: CaptureSession, limits: Limits, stop: threading.Event, reporter: Reporter) -> None:
        self._session = session
        self._limits = limits
        self._stop = stop
        self._reporter = reporter
        self._rereads = 0
        self._found = CutResult.NOTHING

    def cut(self) -> CutResult:
        """Ship one cut, if the source has changes or rows to fill; return what the cut contained.

        A table with a row that cannot be carried halts, and the cut is read again without it at once: any step in
        between could resume the table, and the cut would never end.
        """
        while True:
            try:
                return self._ship_one_cut()
            except TableHalted as why:
                self._halt_table(why)

    def _ship_one_cut(self) -> CutResult:
        """Open a cut, send it, and commit it at the source and the broker."""
        session = self._session
        fills = session.fills.next_states(FILLS_MAX)
        try:
            cut = session.source.capture.open_cut(fills)
        except SourceError as e:
            self._read_again(e)
            return CutResult.NOTHING
        except SnapshotLost as e:
            return self._report_lost_snapshot(e)
        if cut is None:
            return CutResult.NOTHING
        steps = {"opened": tracing.step_time_us()}
        shipment = Shipment(session.producer, self._stop, timeout_s=self._limits.cut_timeout_s)
        try:
            chunks, forget_below = self._persist(cut, fills, shipment, steps)
        except CaptureStopped:
            return CutResult.NOTHING
        except TableHalted:
            raise
        except SourceError as e:
            self._read_again(e)
            return CutResult.NOTHING
        except SnapshotLost as e:
            return self._report_lost_snapshot(e)
        cut.commit(session.epoch, shipment.records, [chunk.after for chunk in chunks], forget_below)
        steps["ended"] = tracing.step_time_us()
        try:
            shipment.confirm()  # before all else: the targets wait for it
        finally:
            self._on_commit(cut, shipment, chunks, steps)
        return self._found

    def _persist(
        self, cut: Cut, fills: Seq[FillState], shipment: Shipment, steps: dict[str, int]
    ) -> tuple[list[FillChunk], BatchNo]:
        """Bring a whole cut to the broker's disk, or roll it back after any failure.

        Return the cut's fill chunks, and the batch up to which the broker will not ask for outcomes again.
        """
        try:
            chunks = self._ship(cut, fills, shipment)
            steps["sent"] = tracing.step_time_us()
            shipment.wait_persisted()
            steps["persisted"] = tracing.step_time_us()
            return chunks, BatchNo(self._session.producer.decided_through)
        except BaseException:
            self._take_back(cut, shipment)
            raise

    def _ship(self, cut: Cut, fills: Seq[FillState], shipment: Shipment) -> list[FillChunk]:
        """Send the content of the snapshot: the changes, then the next chunk of a fill, or several small tables."""
        session, limits = self._session, self._limits
        batcher = self._create_batcher(cut)
        for batch in batcher.schema_batches():
            self._send_batch(batch, shipment)
        self._found = CutResult.HEARTBEAT

        def add_section(section: TableChanges) -> None:
            session.schemas.require(section.table_id, section.schema_version)
            if not session.schemas.newest(section.table_id).is_heartbeat:
                self._found = CutResult.CHANGES
            if (batch := batcher.add(section)) is not None:
                self._send_batch(batch, shipment)

        sections = cut.read_sections(rows_max=limits.batch_rows_max, bytes_max=limits.batch_bytes_max)
        try:
            for section in sections:
                add_section(section)
        finally:
            # an unfinished generator still holds the source's connection, and the cut could not be closed
            if isinstance(sections, Generator):
                sections.close()
        chunks: list[FillChunk] = []
        rows_left = limits.fill_chunk_rows
        bytes_left = limits.batch_bytes_max
        for fill in fills:
            if rows_left <= 0 or bytes_left <= 0 or (chunks and not chunks[-1].after.done):
                break  # the next cut continues here
            chunk = FillChunk(cut, fill, session.schemas.newest(fill.table_id))
            chunks.append(chunk)
            self._found = CutResult.CHANGES
            for section in chunk.read_sections(batcher, rows_max=rows_left, bytes_max=limits.batch_bytes_max):
                bytes_left -= section.nbytes
                add_section(section)
            rows_left -= chunk.after.rows_done - fill.rows_done
        self._send_batch(batcher.end(), shipment)
        return chunks

    def _create_batcher(self, cut: Cut) -> Batcher:
        """Return the builder of this cut's batches, which continues the session's numbers."""
        session, limits = self._session, self._limits
        return Batcher(
            first_batch=session.next_batch,
            first_sequence=session.next_sequence,
            captured_at_us=cut.captured_at_us,
            schemas=session.schemas.unsent,
            rows_max=limits.batch_rows_max,
            bytes_max=limits.batch_bytes_max,
        )

    def _send_batch(self, batch: Batch, shipment: Shipment) -> None:
        """Send a batch as a half message; answer the reviews that the broker has requested meanwhile."""
        shipment.send(batch, self._session.epoch)
        self._reporter.count(reviews_answered=self._session.answer_unknown(shipment.records[0].batch_no))
        self._reporter.tick()

    def _take_back(self, cut: Cut, shipment: Shipment) -> None:
        """Roll back the snapshot and the half messages. If a rollback fails, the next session repeats it."""
        with suppress(VenusError):
            cut.rollback()
        with suppress(VenusError):
            shipment.retract()
        self._reporter.count(retracted_cuts=1)

    def _halt_table(self, why: TableHalted) -> None:
        """Halt a table until it is written to again; its changes stay at the source."""
        session, table = self._session, why.table
        session.source.registry.halt(session.epoch, table.table_id, why.why)
        logger.warning("%s halts, the other tables continue: %s; %s", table.qualified_name, why.why, why.hint)
        session.read_registry()

    def _read_again(self, error: SourceError) -> None:
        """Refresh the dictionary after a refused read: most likely DDL ran between two cuts."""
        self._rereads += 1
        if self._rereads > REREADS_MAX:
            raise error
        self._reporter.set_state("reading the dictionary again", error=error)
        self._session.refresh_schemas()

    def _report_lost_snapshot(self, error: SnapshotLost) -> CutResult:
        """Report that the snapshot was lost; the source makes the next cut smaller."""
        logger.warning("%s; the next cut is smaller; %s", error, error.hint)
        self._reporter.set_state("taking a smaller cut", error=error)
        return CutResult.NOTHING

    def _on_commit(self, cut: Cut, shipment: Shipment, chunks: Seq[FillChunk], steps: dict[str, int]) -> None:
        """Advance fills, versions and numbers after a cut was committed, and report its figures."""
        records, session = shipment.records, self._session
        self._rereads = 0
        session.schemas.record_sent(session.schemas.unsent)
        for chunk in chunks:
            session.fills.advance(chunk.after)
        if chunks:
            self._reporter.update(fills=session.fills.progress)
        session.advance(records[-1])
        report = self._reporter.current
        self._reporter.update(
            cuts=report.cuts + 1,
            batches=report.batches + len(records),
            rows=report.rows + records[-1].last_sequence - records[0].first_sequence + 1,
            lag_s=max(0.0, time.time() - cut.captured_at_us / 1e6),
            last_captured_at_us=cut.captured_at_us,
        )
        if tracing.has_listener():
            rows = records[-1].last_sequence - records[0].first_sequence + 1
            tracing.report_stage(
                tracing.CutStage(
                    name="captured",
                    business=session.business,
                    cut=records[0].batch_no,
                    captured_at_us=cut.captured_at_us,
                    began_us=cut.captured_at_us,
                    ended_us=steps.pop("ended"),
                    facts={"batches": len(records), "rows": rows},
                    steps=steps,
                )
            )


#: A stop is noticed at least this often while the broker is slow.
SLICE_S = 0.25


class CaptureStopped(Exception):
    """Capture was stopped in the middle of a cut."""


class Shipment:
    """The half messages of one cut on their way to the broker."""

    def __init__(self, producer: IngestClient, stop: threading.Event, *, timeout_s: float) -> None:
        self._producer = producer
        self._stop = stop
        self._timeout_s = timeout_s
        self._offered = False
        self.records: list[BatchRecord] = []

    def send(self, batch: Batch, epoch: Epoch) -> None:
        """Encode and queue one batch; block while the window is full."""
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
        self._retry_unavailable(lambda timeout_s: self._producer.send_half(half, timeout_s=timeout_s))
        self._offered = True

    def wait_persisted(self) -> None:
        """Wait until all halves are on the broker's disk; only then may the local transaction happen."""
        last = self.records[-1].batch_no
        self._retry_unavailable(lambda timeout_s: self._producer.wait_until_persisted(last, timeout_s))

    def confirm(self) -> None:
        """Send COMMIT: the local transaction is durable. Does not wait for an answer: the next cut follows."""
        last = self.records[-1]
        self._producer.decide(last.batch_no, last.digest, Verdict.COMMIT, can_wait=True)

    def retract(self) -> None:
        """Send ROLLBACK: the local transaction did not happen, and never will."""
        if self._offered:
            first = self.records[0]
            self._producer.decide(first.batch_no, first.digest, Verdict.ROLLBACK)

    def _retry_unavailable(self, attempt: Callable[[float], None]) -> None:
        """Repeat an attempt until it succeeds. Raises Unavailable after the timeout, CaptureStopped on a stop."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            if self._stop.is_set():
                raise CaptureStopped
            try:
                return attempt(SLICE_S)
            except Unavailable:
                # either this slice is over, or the stream broke: then any access raises the error that broke it
                _ = self._producer.persisted_through
                if time.monotonic() >= deadline:
                    raise Unavailable(f"the broker took no half message for {self._timeout_s:g} s") from None
