"""Session of the upper adapter between two reconnects: epoch, undecided halves, positions (VENUS 3.3).

Opening a session is the start-up of the protocol. First, Init raises the producer epoch at the broker. Second, the
source's checkpoint row gets the same epoch, after the local transaction of an older instance has ended. Last, the
undecided halves are committed or rolled back, because the batch table is now final for them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from math import ceil

from venus.adapters.dialects.contract import RegisteredTable, Source, SourceState, UncapturedTable
from venus.adapters.dialects.registry_rules import confirm_identity
from venus.adapters.upper import ingest
from venus.adapters.upper.fills import ACTIVE, Fills
from venus.adapters.upper.ingest import IngestClient, SentSchemas, judge_halves
from venus.errors import Diverged, Fenced, Refused, VenusError
from venus.model import BatchNo, BatchRecord, Epoch, Sequence, Verdict
from venus.rpc.conditions import (
    NO_FIGURES,
    AdapterCondition,
    AdapterFigures,
    locked_condition,
    source_condition,
    switch_conditions,
    uncaptured_condition,
)
from venus.wire.broker_pb2 import HalfRef, InitAck

#: The reported interval of comparisons is rounded up to a multiple of this.
COMPARING_STEP_S = 5

logger = logging.getLogger(__name__)

#: The broker answers late while it checks whether a silent producer is alive: keepalive and a little more.
CONNECT_TIMEOUT_MIN_S = 45.0


@dataclass(slots=True, kw_only=True)
class CaptureSession:
    """Session with source and broker open, its epoch, and the next numbers to assign."""

    source: Source
    producer: IngestClient
    epoch: Epoch
    next_batch: BatchNo
    next_sequence: Sequence
    schemas: SentSchemas = field(default_factory=SentSchemas)
    fills: Fills = field(default_factory=Fills)
    #: For the log of cuts.
    business: str = ""
    #: The newest batch that this session has confirmed.
    confirmed: BatchNo | None = None
    #: Fingerprint of the registry when it was last read.
    sign: str = ""
    #: Tables that cuts wait for, each with the holder of the lock, as last reported.
    locked: dict[str, str] = field(default_factory=dict)
    #: Patterns that choose the tables, and those that exclude some.
    include: Seq[str] = ()
    exclude: Seq[str] = ()
    #: Tables that these patterns choose and the registry does not have, as last reported.
    uncaptured: list[UncapturedTable] = field(default_factory=list)
    #: Database and host of the source.
    place: str = ""
    condition: AdapterCondition = field(default_factory=AdapterCondition)
    #: What to do about an unfinished switch of the application, as text; empty = nothing.
    describe_switch: Callable[[], str] = lambda: ""
    figures: AdapterFigures = NO_FIGURES
    #: The last report to the broker.
    reported: AdapterCondition | None = None
    #: Tables with changes at the broker when the session was opened, with their newest versions.
    changed: Mapping[int, int] = field(default_factory=dict)

    def read_registry(self) -> None:
        """Load the registered tables with their fills and schemas, and report their condition to the broker."""
        # read first: a change in between is then read twice, but never missed
        self.sign = self.source.registry.read_registry_fingerprint()
        tables = self._read_registered()
        self.schemas.offer(t.schema for t in tables)
        self.fills.read(tables)
        self.locked = self.source.capture.find_blocking_locks()
        self.uncaptured = self.source.dictionary.find_uncaptured_tables(self.include, self.exclude)
        self.condition = build_condition(
            [*tables, *self.source.registry.read_released_tables()], self.locked, self.uncaptured
        )
        self.report_figures()

    def count_rows(self, now_us: int) -> None:
        """Read the approximate number of rows of each table. If the database refuses, capture continues."""
        try:
            if rows := self.source.registry.read_row_counts():
                self.figures = replace(self.figures, rows=rows, counted_at_us=now_us)
        except VenusError as error:
            if error.retryable:
                raise
            logger.info("capture: the rows of the tables are not known: %s", error)

    def report_figures(self) -> None:
        """Report the tables' condition and the database's figures to the broker, if they have changed."""
        condition = replace(
            self.condition,
            tables=(*switch_conditions(self.describe_switch()), *self.condition.tables),
            figures=replace(self.figures, place=self.place, fills=self.fills.running),
        )
        if condition != self.reported:
            self.producer.report(condition)
            self.reported = condition

    def record_comparing(self, every_s: float) -> None:
        """Record how often the dictionary is compared; small differences are not reported."""
        self.figures = replace(self.figures, compares_every_s=ceil(every_s / COMPARING_STEP_S) * COMPARING_STEP_S)

    def _read_registered(self) -> list[RegisteredTable]:
        """Return the registered tables; read all rows again of a new one whose changes the broker already has.

        Most likely the new table was captured after the backup from which the source was restored, and is now captured
        again.
        """
        tables = self.source.registry.read_registered_tables()
        foreign = [t.schema for t in tables if _is_untouched(t) and t.schema.table_id in self.changed]
        for schema in foreign:
            self.source.capture.restart_with_sweep(schema.table_id, self.changed[schema.table_id] + 1)
        return self.source.registry.read_registered_tables() if foreign else tables

    def refresh_schemas(self) -> None:
        """Compare dictionary and registry: tables that changed get a new version, new ones join."""
        self.schemas.offer(self.source.capture.refresh_schemas())
        # a fill without progress waits until the registry is read again, even if its fingerprint is unchanged
        if (
            self.source.registry.read_registry_fingerprint() != self.sign
            or not self.fills.is_complete
            or self._has_changed()
        ):
            self.read_registry()

    def _has_changed(self) -> bool:
        """Return whether locks or uncaptured tables differ from the last report."""
        if self.source.capture.find_blocking_locks() != self.locked:
            return True
        return self.source.dictionary.find_uncaptured_tables(self.include, self.exclude) != self.uncaptured

    def answer_reviews(self) -> int:
        """Answer the broker's reviews from the batch table; return the number of halves.

        A review may be outdated: its half message may be decided already, or its batch number reused.
        """
        halves = self.producer.take_reviews()
        if not halves:
            return 0
        decided_through = self.producer.decided_through
        halves = [h for h in halves if h.batch_no > decided_through]
        records = self.source.registry.read_batches([BatchNo(h.batch_no) for h in halves])
        return self._send_decisions(
            judge_halves(
                [h for h in halves if (r := records.get(BatchNo(h.batch_no))) is None or r.digest == h.digest], records
            )
        )

    def answer_unknown(self, in_flight_from: BatchNo) -> int:
        """Answer reviews in the middle of a cut: UNKNOWN for its own halves.

        The source's connection is busy with the cut; the broker asks again later about earlier halves.
        """
        halves = [h for h in self.producer.take_reviews() if h.batch_no >= in_flight_from]
        return self._send_decisions(judge_halves(halves, {}, in_flight_from=in_flight_from))

    def _send_decisions(self, decisions: list[tuple[HalfRef, Verdict]]) -> int:
        """Send these decisions to the broker; return their number."""
        for half, verdict in decisions:
            self.producer.decide(half.batch_no, half.digest, verdict)
        return len(decisions)

    def advance(self, last: BatchRecord) -> None:
        """Set the next batch number and Sequence after a cut whose local transaction is durable."""
        self.next_batch = BatchNo(last.batch_no + 1)
        self.next_sequence = Sequence(last.last_sequence + 1)
        self.confirmed = last.batch_no


def _is_untouched(table: RegisteredTable) -> bool:
    """Return whether an active table waits for a fill without a sweep, and nothing of it has been read yet."""
    fill = table.fill
    return table.state == ACTIVE and not (fill.done or fill.sweep_from or fill.cursor or fill.rows_done)


def build_condition(
    tables: Iterable[RegisteredTable], locked: Mapping[str, str], uncaptured: Iterable[UncapturedTable] = ()
) -> AdapterCondition:
    """Return the condition to report: tables that are not captured, and why; `locked` tables, and the holder."""
    found = [source_condition(t.schema.table_id, t.schema.qualified_name, t.state, t.reason) for t in tables]
    found += [locked_condition(table, holder) for table, holder in locked.items()]
    return AdapterCondition.of([*found, *(uncaptured_condition(t.name, t.obstacle) for t in uncaptured)])


@dataclass(slots=True, kw_only=True)
class SourceClaim:
    """Claim of one process to be the producer of the business, for the lifetime of the process."""

    #: Unique identifier of the process, across machines.
    owner: str
    #: Fence the active producer; once, so that two processes with this option do not fence each other in turn.
    take_over: bool = False
    #: Yield to the next producer that connects.
    gives_way: bool = False
    #: The newest epoch that this process has requested; None at its start.
    epoch: Epoch | None = None
    #: Whether a source that was restored from a backup may be read again, which overwrites later changes.
    may_read_again: Callable[[], bool] = lambda: True


def open_session(
    source: Source,
    producer: IngestClient,
    claim: SourceClaim,
    *,
    timeout_s: float,
    include: Seq[str] = (),
    exclude: Seq[str] = (),
) -> CaptureSession:
    """Run the start-up; `include` and `exclude` are the patterns of the configuration.

    Raises Diverged if the source is a copy of the database that was captured. Raises Fenced if another process has
    taken over since this process' last session: a process that lost its connection must not take the stream back from
    its successor. Raises Held if another process captures this business.
    """
    state = source.registry.read_state()
    if state.is_sealed:
        raise Fenced(
            "capture of this database has ended, because another one is the application's",
            hint="`venus status` says which; `venus sync` captures that one",
        )
    if claim.epoch is not None and state.epoch > claim.epoch:
        raise Fenced(
            f"another capture holds epoch {state.epoch} at the source, this one had {claim.epoch}",
            hint="only one `venus sync` may capture a business",
        )
    if warning := confirm_identity(source.registry):
        logger.warning("capture: %s", warning)
    ack = producer.connect(
        state.epoch,
        state.last_batch,
        timeout_s=max(timeout_s, CONNECT_TIMEOUT_MIN_S),
        owner=claim.owner,
        take_over=claim.take_over,
        gives_way=claim.gives_way,
    )
    claim.epoch, claim.take_over = Epoch(ack.epoch), False
    state = source.registry.raise_epoch(Epoch(ack.epoch))
    committed = _decide_halves(source, producer, ack)
    if ack.in_doubt:
        ingest.skip_lost_batches(producer, state, committed, timeout_s=timeout_s)
    committed = max(committed, state.last_batch if ack.in_doubt else 0)
    if state.last_batch < committed and not claim.may_read_again() and not _is_resynced(source):
        raise Refused(
            f"the application's database was restored from a backup: it ends at batch {state.last_batch}, and its "
            f"follower has batch {committed}; nothing is overwritten there",
            hint="restore a newer backup; or `venus resync --all` makes its follower equal to it. "
            "`venus verify` lists the rows that differ",
        )
    session = _build_session(source, producer, state, ack, committed)
    session.include, session.exclude = include, exclude
    session.read_registry()
    return session


def _decide_halves(source: Source, producer: IngestClient, ack: InitAck) -> int:
    """Decide the broker's undecided half messages by the batch table; return its last committed batch after that."""
    halves = list(ack.undecided)
    committed = int(ack.last_batch)
    records = source.registry.read_batches([BatchNo(h.batch_no) for h in halves]) if halves else {}
    for half, verdict in judge_halves(halves, records, in_doubt=ack.in_doubt):
        logger.info("capture: half message %s left undecided by an earlier run: %s", half.batch_no, verdict.name)
        producer.decide(half.batch_no, half.digest, verdict)
        if verdict is Verdict.COMMIT:
            committed = half.batch_no
    return committed


def _build_session(
    source: Source, producer: IngestClient, state: SourceState, ack: InitAck, committed: int
) -> CaptureSession:
    """Return a session whose numbers continue those of source and broker. Raises Diverged if the broker lost data."""
    if state.last_batch > committed:
        raise Diverged(
            f"the source has committed batch {state.last_batch}, the broker has nothing after batch {committed}",
            hint="the broker lost its data: restore it, or uninstall and install the triggers and migrate again",
        )
    versions = {table.table_id: table.version for table in ack.tables}
    if state.last_batch < committed:
        _read_everything_again(source, state.last_batch, committed, versions)
    return CaptureSession(
        source=source,
        producer=producer,
        epoch=Epoch(ack.epoch),
        next_batch=BatchNo(committed + 1),
        next_sequence=Sequence(max(state.next_sequence, ack.last_sequence + 1)),
        changed={table.table_id: table.version for table in ack.tables if table.last_sequence},
    )


def _is_resynced(source: Source) -> bool:
    """Return whether an operator has requested every table again."""
    tables = [t for t in source.registry.read_registered_tables() if not t.schema.is_heartbeat]
    return bool(tables) and not any(t.fill.done for t in tables)


def _read_everything_again(source: Source, last_batch: int, committed: int, versions: Mapping[int, int]) -> None:
    """Recover from a source behind the broker: restored from a backup, or an operator committed a half message.

    The broker's data beyond the source's position may differ from the source's content. So every table is read again,
    with a sweep, and in a version that the lost history did not have.
    """
    logger.warning(
        "capture: the broker has committed batch %s, the source remembers only %s: every table is read again",
        committed,
        last_batch,
    )
    for table in source.registry.read_registered_tables():
        table_id, version = table.schema.table_id, table.schema.version
        source.capture.restart_with_sweep(table_id, max(version, versions.get(table_id, 0) + 1))
