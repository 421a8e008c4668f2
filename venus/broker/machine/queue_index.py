"""Index of the queue: each committed batch's offsets and its place in the log, and each epoch's first offset. Pure.

Epochs show whether a consumer follows another history than this queue (KIP-320). A consumer sends its offset and the
epoch of the newest batch that it has applied. If this epoch ended before the offset, the consumer has applied changes
that are not in the queue. A consumer may ask about any epoch that the queue still has, and about the one before the
queue's start. Every batch records its epoch, so few epochs are remembered here: the newest ones, and the one before
the queue's start, which has no batch left. queue/reader.py looks up the epochs in between.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

#: Maximum batches in memory, of one queue and of all queues together; a batch takes about 500 bytes.
TAIL_PLACES = 4096
TAILS_PLACES = 32_768
_FIXED = struct.Struct(">QIQQQQQqqQIQB")
_FLAG_CUT_END = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedBatch:
    """A committed batch in the queue; the body stays in the log, at `index`.

    `before` is the total size of all earlier bodies, trimmed ones included; the difference of two such values is a
    backlog.
    """

    base_offset: int
    index: int
    count: int  # offsets, so 1 for an empty batch
    epoch: int
    batch_no: int
    cut: int
    first_sequence: int
    last_sequence: int
    committed_at_us: int
    captured_at_us: int
    digest: int
    nbytes: int
    before: int
    cut_end: bool
    tables: tuple[int, ...]

    @property
    def next_offset(self) -> int:
        """The first offset after the batch."""
        return self.base_offset + self.count

    @property
    def after(self) -> int:
        """The total size of all bodies up to this batch, trimmed ones included."""
        return self.before + self.nbytes

    def concerns(self, table_ids: frozenset[int]) -> bool:
        """Whether readers of these tables need the batch; the last one of a longer cut always counts, to close it."""
        return not table_ids or not table_ids.isdisjoint(self.tables) or (self.cut_end and self.cut != self.batch_no)

    def encode(self) -> bytes:
        """Encode the batch as a record of the column family `queue`."""
        fixed = _FIXED.pack(
            self.index,
            self.count,
            self.epoch,
            self.batch_no,
            self.cut,
            self.first_sequence,
            self.last_sequence,
            self.committed_at_us,
            self.captured_at_us,
            self.digest,
            self.nbytes,
            self.before,
            _FLAG_CUT_END if self.cut_end else 0,
        )
        return fixed + struct.pack(f">{len(self.tables)}I", *self.tables)


def decode(base_offset: int, value: bytes) -> QueuedBatch:
    """Decode a batch from its record in the column family `queue`."""
    fields = _FIXED.unpack_from(value)
    tables = struct.unpack(f">{(len(value) - _FIXED.size) // 4}I", value[_FIXED.size :])
    names = ("index", "count", "epoch", "batch_no", "cut", "first_sequence", "last_sequence", "committed_at_us")
    more = ("captured_at_us", "digest", "nbytes", "before")
    known = dict(zip(names + more, fields[:-1], strict=True))
    return QueuedBatch(base_offset=base_offset, cut_end=bool(fields[-1] & _FLAG_CUT_END), tables=tables, **known)


@dataclass(slots=True)
class QueueTail:
    """The newest batches of a queue in memory, so that readers at its end need not read the store.

    One thread appends, any thread reads: a list only grows at its end, and is replaced when it is shortened.
    """

    places_max: int = TAIL_PLACES
    _places: list[QueuedBatch] = field(default_factory=list)

    def extend(self, places: Iterable[QueuedBatch]) -> None:
        """Add newly committed batches."""
        self._places.extend(places)
        if len(self._places) > 2 * self.places_max:
            self.shorten(self.places_max)

    def shorten(self, places: int) -> None:
        """Keep only the newest `places` batches, at least the last one."""
        if len(self._places) > places:
            self._places = self._places[-max(places, 1) :]

    def __len__(self) -> int:
        return len(self._places)

    @property
    def newest(self) -> QueuedBatch | None:
        """The newest batch of the queue, None if nothing was committed since the queue began."""
        places = self._places
        return places[-1] if places else None

    def walk(self, offset: int) -> Iterator[QueuedBatch] | None:
        """Return the batches from the one that contains `offset` on; None if that batch is not in memory."""
        places = self._places
        low = bisect_right(places, offset, key=lambda place: place.base_offset)
        if low == 0:
            return None
        return islice(places, low - 1, None)


def shorten_tails(tails: Iterable[QueueTail], places: int) -> None:
    """Shorten the longest tails until all together hold no more than `places` batches."""
    shortest_first = sorted(tails, key=len)
    for left, tail in zip(range(len(shortest_first), 0, -1), shortest_first, strict=True):
        tail.shorten(places // left)
        places = max(0, places - len(tail))


#: Epoch and its first offset, both rising.
Epochs = tuple[tuple[int, int], ...]

#: The maximum number kept. They are part of the business's record, which is written with every group.
EPOCHS_MAX = 64


def add_epoch(epochs: Epochs, epoch: int, offset: int, log_start: int) -> Epochs:
    """Add an epoch that begins at `offset`; drop epochs that no consumer can ask about; keep EPOCHS_MAX at most."""
    kept = [found for i, found in enumerate(epochs) if _is_needed(epochs, i, log_start)]
    found = (*kept, (epoch, offset))
    return found if len(found) <= EPOCHS_MAX else (found[0], *found[1 - EPOCHS_MAX :])


def _is_needed(epochs: Epochs, i: int, log_start: int) -> bool:
    """Return whether a consumer may still ask about the epoch at index `i`."""
    following = epochs[i + 1][1] if i + 1 < len(epochs) else None
    return following is None or following >= log_start  # a consumer exactly there may be of an older epoch


def trim_epochs(epochs: Epochs, epoch: int, offset: int, log_start: int) -> Epochs:
    """Return the epochs to remember after the queue is trimmed up to `log_start`.

    `epoch` and `offset` are those of the last removed batch, which cannot be looked up any more.
    """
    if len(epochs) < EPOCHS_MAX:
        return epochs  # nothing is missing between them
    gone, left = (found for found in epochs if found[1] < log_start), (f for f in epochs if f[1] >= log_start)
    newest = max(gone, default=(0, 0))
    return (newest if newest[0] >= epoch else (epoch, offset), *left)
