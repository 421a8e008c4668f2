"""One random history of a first load, and its judge.

Writers, capture, the broker's materialiser, `venus migrate` and a `venus sync` that is started too early run in turn.
Each process can be killed before and after every transaction. `python -m tests.simulation.first_load SEED` replays one.
"""

from __future__ import annotations

import random
from collections import Counter

from tests.simulation.first_load.source import Row, Source, decode_row, width_of
from tests.simulation.first_load.target import (
    ASK_FOR_RESYNC,
    CONTINUE,
    FROM_THE_CUT,
    KEY_DECIDES,
    NOT_LOADED,
    OVERLAP_IN_PLAN,
    ROWS_AND_MANIFEST,
    ROWS_AND_POSITION,
    Broker,
    ProcessKilled,
    Target,
    Violation,
    fold,
)
from venus.cli.overlap import decided_end
from venus.codec.batch import Batch
from venus.wire.broker_pb2 import BusinessStatus

AFTER_THE_DECISION = "the end is read after the decision of the last batch"
AFTER_THE_READ = "the end is read after the last row was read"
#: Every rule that a history can disable.
RULES = (
    ROWS_AND_POSITION,
    ROWS_AND_MANIFEST,
    FROM_THE_CUT,
    KEY_DECIDES,
    ASK_FOR_RESYNC,
    CONTINUE,
    NOT_LOADED,
    OVERLAP_IN_PLAN,
    AFTER_THE_DECISION,
    AFTER_THE_READ,
)
STEPS = 400


class World:
    """One history; `without` names the disabled rule."""

    def __init__(self, seed: int, without: str = "") -> None:
        self._random = random.Random(seed)
        self._without = without
        self._source = Source(self._random)
        self._broker = Broker()
        self._target = Target(self._broker, self._random, without)
        self._target.kills = self._random.choice((0.0, 0.05, 0.3))
        self._undecided: list[Batch] = []  # batches committed at the source, and not yet at the broker
        self._end: int | None = None
        self._seen_last_batch: int | None = None
        self._writes = self._random.choice((0.1, 0.4))
        self._begins = self._random.choice((0, 0, 30, 60))
        #: How often each rare event has happened.
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        """Run until the load has ended, then until everything is applied. Raises Violation."""
        for step in range(STEPS * 3):
            if step > STEPS:
                self._writes = self._target.kills = 0.0
            self._step(can_load=step >= self._begins)
            if self._target.durable.job == "done":
                break
        else:
            raise Violation("a load ends")
        self._judge_load()
        self._judge_following()

    # -- steps -------------------------------------------------------------------------------------------------------

    def _step(self, *, can_load: bool) -> None:
        """Take a random step of a writer, capture, the materialiser or the load."""
        chance = self._random.random()
        if chance < self._writes:
            self._source.write()
        elif chance < 0.65:
            self._capture()
        elif chance < 0.75:
            self._broker.materialise(self._random.randint(1, 3))
        elif can_load:
            try:
                self._load()
            except ProcessKilled:
                self.counts["killed"] += 1
                self._target.restart()
                self._end = self._seen_last_batch = None

    def _capture(self) -> None:
        """Run a step of capture: decide the batches of the last cut, or ship the next cut."""
        if self._undecided:  # the next capture process, or the next frame, decides the half message
            self._broker.commit(self._undecided)
            self._undecided = []
        elif self._source.has_changes():
            found = self._source.capture(dies=self._random.random() < 0.1)
            if self._random.random() < 0.3:
                self._undecided = found
            else:
                self._broker.commit(found)

    def _load(self) -> None:
        """Run a step of `venus migrate`, or of a `venus sync` that was started too early."""
        durable = self._target.durable
        if durable.job != "following" or (self._without == CONTINUE and self._random.random() < 0.1):
            if self._without == CONTINUE and durable.job == "following":
                durable.manifest.clear()
                durable.job = "overlapping"
            self._target.load_step(overlaps=not self._source.is_read or bool(self._undecided))
            return
        if self._without == NOT_LOADED and self._random.random() < 0.1:
            self._target.follow_step(first_load=False)
            return
        self._find_end()
        assert durable.position is not None
        if self._end is not None and durable.position >= self._end:
            self._target.finish()
        else:
            self._target.follow_step(first_load=True)

    def _find_end(self) -> None:
        """Determine the end of the first read in two steps, as the command does."""
        if self._seen_last_batch is None:
            if self._source.is_read or self._without == AFTER_THE_READ:
                self._seen_last_batch = self._source.last_batch
        elif self._end is None:
            status = BusinessStatus(last_batch=self._broker.last_batch, next_offset=self._broker.next_offset)
            wanted = 0 if self._without == AFTER_THE_DECISION else self._seen_last_batch
            self._end = decided_end(status, wanted)

    # -- checks ------------------------------------------------------------------------------------------------------

    def _judge_load(self) -> None:
        """Compare every following table with an independent fold of the queue up to the applied offset."""
        found = self._target.durable
        assert found.position is not None
        if not self._source.is_read and self._source.first_read_ends is None:
            raise Violation("a load ends behind the first read")
        if found.applied != found.position - found.counted_from:
            raise Violation("every change is applied once")
        expected = self._fold_queue(found.position)
        for table_id, state in found.states.items():
            if state == "HALTED" or table_id in found.resyncs:
                self.counts["halted" if state == "HALTED" else "resync"] += 1
                continue
            if table_id in found.sweeps:
                self.counts["sweep at the end"] += 1
            if found.rows[table_id] != expected[table_id]:
                raise Violation("a loaded target is equal to one cut")
        last = max(self._source.first_read_ends or 0, 0)
        if any(p.start < found.position < p.end for p in self._broker.pieces) or self._offset_of(last) > found.position:
            raise Violation("a load ends behind the first read")

    def _offset_of(self, batch: int) -> int:
        """Return the offset after a batch."""
        return next((p.end for p in self._broker.pieces if p.batch.batch_no == batch), 1 << 60)

    def _fold_queue(self, end: int) -> dict[int, dict[bytes, Row]]:
        """Fold the queue up to an offset; return the rows of each table."""
        folded: dict[int, dict[bytes, tuple[int, int, bytes]]] = {1: {}, 2: {}}
        width = {1: 1, 2: 1}
        for piece in self._broker.pieces:
            if piece.start >= end:
                break
            for schema in piece.batch.schemas:
                width[schema.table_id] = width_of(schema)
            sequence = int(piece.batch.first_sequence)
            for section in piece.batch.sections:
                fold(folded[section.table_id], section, sequence)
                sequence += section.count
        return {t: {k: decode_row(row, width[t]) for k, (_, _, row) in rows.items()} for t, rows in folded.items()}

    def _judge_following(self) -> None:
        """Apply everything, repair halted tables as an operator does, and compare with the source."""
        self._target.kills = 0.0
        while self._undecided or self._source.has_changes():
            self._capture()
        self._broker.materialise(1 << 30)
        while self._target.durable.position != self._broker.next_offset:
            self._target.follow_step(first_load=False)
        self._target.resync()
        for table in self._source.tables.values():
            if self._target.durable.rows[table.table_id] != table.rows:
                raise Violation("a target that follows is equal to the source")
