"""Division of cuts into batches: dense batch numbers, dense Sequences, cut markers. Pure.

This stage is between the dialect's `Cut.read_sections` and the codec; it assigns the permanent Sequence of each row
(VENUS 3.2). It holds back one batch, because only the last batch of a cut has `cut_end`, and which batch is the last
is known only when the snapshot has been read to its end.

`PollInterval` is the interval between polls. Changes must be seen within milliseconds, but an idle source must not be
polled 500 times a second. So the interval stays at its minimum for a while after traffic, then doubles up to its
maximum.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq

from venus.codec import schema as schemas_codec
from venus.codec.batch import Batch, TableChanges
from venus.model import BatchNo, Sequence, TableSchema

#: Table versions beyond this size travel in batches of their own: each connection sends all of them, those of thousands
#: of tables take megabytes, and a single row may nearly fill a message.
SCHEMAS_BYTES_MAX = 512 << 10


class Batcher:
    """Builder of the batches of one cut; sections keep their order and are never divided.

    The dialect keeps each section within the limits; a larger one (a single huge row) travels alone.
    """

    def __init__(
        self,
        *,
        first_batch: BatchNo,
        first_sequence: Sequence,
        captured_at_us: int,
        schemas: Seq[TableSchema],
        rows_max: int,
        bytes_max: int,
    ) -> None:
        self._cut = first_batch
        self._batch_no = int(first_batch)
        self._first_sequence = int(first_sequence)
        self._captured_at_us = captured_at_us
        self._schemas = tuple(schemas)
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._sections: list[TableChanges] = []
        self._rows = 0
        self._bytes = 0

    @property
    def next_sequence(self) -> Sequence:
        """Sequence of the first change of the next section, which a sweep's begin marker must name."""
        return Sequence(self._first_sequence + self._rows)

    def schema_batches(self) -> Iterator[Batch]:
        """Yield leading batches with table versions only, if these are too large for the first batch of changes."""
        groups = _group_schemas(self._schemas)
        for self._schemas in groups[:-1]:
            yield self._close_batch(cut_end=False)
        self._schemas = groups[-1]

    def add(self, section: TableChanges) -> Batch | None:
        """Add the next section; return the batch before it if the section begins a new one."""
        full = self._rows + section.count > self._rows_max or self._bytes + section.nbytes > self._bytes_max
        ready = self._close_batch(cut_end=False) if self._sections and full else None
        self._sections.append(section)
        self._rows += section.count
        self._bytes += section.nbytes
        return ready

    def end(self) -> Batch:
        """Return the last batch of the cut; an empty cut has an empty batch."""
        return self._close_batch(cut_end=True)

    def _close_batch(self, *, cut_end: bool) -> Batch:
        """Return the batch of the sections added so far, and begin a new one."""
        batch = Batch(
            batch_no=BatchNo(self._batch_no),
            first_sequence=Sequence(self._first_sequence),
            count=self._rows,
            cut=self._cut,
            cut_end=cut_end,
            captured_at_us=self._captured_at_us,
            schemas=self._schemas,
            sections=tuple(self._sections),
        )
        self._batch_no += 1
        self._first_sequence += self._rows
        self._schemas = ()
        self._sections = []
        self._rows = self._bytes = 0
        return batch


def _group_schemas(schemas: Seq[TableSchema]) -> list[tuple[TableSchema, ...]]:
    """Divide table versions, in order, into groups of limited size; the last group may travel with changes."""
    groups: list[tuple[TableSchema, ...]] = [()]
    nbytes = 0
    for schema in schemas:
        size = schemas_codec.to_wire(schema).ByteSize()
        if groups[-1] and nbytes + size > SCHEMAS_BYTES_MAX:
            groups.append(())
            nbytes = 0
        groups[-1] = (*groups[-1], schema)
        nbytes += size
    return groups


#: Polls stay fast for this long after the last change: longer than the gaps of a slow trickle.
RECENT_S = 0.5


class PollInterval:
    """Interval between two polls of an idle source. The caller supplies the time."""

    def __init__(self, *, min_s: float, max_s: float) -> None:
        self._min_s = min_s
        self._max_s = max(min_s, max_s)
        self._delay_s = min_s
        self._last_traffic = float("-inf")

    def on_traffic(self, now: float) -> None:
        """Record that a poll found changes."""
        self._last_traffic = now
        self._delay_s = self._min_s

    def next_delay_s(self, now: float) -> float:
        """Return how long to wait after a poll that found nothing."""
        if now - self._last_traffic < RECENT_S:
            return self._min_s
        delay = self._delay_s
        self._delay_s = min(self._max_s, delay * 2)
        return delay
