"""One key range of a snapshot, a chunk at a time, ordered by record_id.

Nothing is held open between two chunks, so a reader may take as long as it likes, stop for good, or resume behind
any record_id it has seen. Rows go out as they are stored; only what is no row any more, or was not asked for, is left
out.
"""

from __future__ import annotations

from collections.abc import Callable

from venus.broker.store import keys
from venus.broker.store.rocks import Store
from venus.codec.chunk import Chunk, Sealed, Totals, encode_chunk
from venus.codec.packed import pack
from venus.codec.stored import StoredRows
from venus.wire import broker_pb2

_ROWS_MAX = 50_000
_NONE = StoredRows(pack([]))


class Chunks:
    """Where the reading of one split stands; `counted` is what it has before `after`, `choose` picks wanted rows."""

    def __init__(
        self,
        business: int,
        split: broker_pb2.Split,
        after: bytes,
        nbytes: int,
        floor: int,
        counted: Totals | None = None,
        choose: Callable[[StoredRows], StoredRows] | None = None,
    ) -> None:
        self._table_id = split.table_id
        self._prefix = keys.row_prefix(business, split.table_id)
        low = after + b"\x00" if after else split.low
        self._at = self._prefix + max(low, split.low)
        self._stop = self._prefix + split.high if split.high else keys.after_prefix(self._prefix)
        self._end: tuple[bytes, bytes] | None = None  # the last key and value of the split
        self._last = after
        self._nbytes = nbytes
        self._floor = floor
        self._choose = choose
        self._number = 0
        self.totals = counted or Totals()
        self.done = False

    def next(self, store: Store) -> Sealed:
        """Read the next chunk; the last one says so, and sums up."""
        if self._end is None:
            self._find_end(store)
        rows = _NONE
        while not len(rows) and not self.done:
            rows = self._read(store)
        self.totals.add(rows)
        body = encode_chunk(
            Chunk(
                chunk_no=self._number,
                table_id=self._table_id,
                rows=rows,
                last=self._last,
                end=self.done,
                totals=self.totals if self.done else None,
            )
        )
        self._number += 1
        return Sealed.of(body)

    def _find_end(self, store: Store) -> None:
        self._end = store.before(keys.ROW, self._stop)
        self.done = self._end is None or self._end[0] < self._at

    def _read(self, store: Store) -> StoredRows:
        """Read what fits into a chunk, and drop what is no row."""
        assert self._end is not None
        values, self.done = store.values(keys.ROW, self._at, self._end, rows_max=_ROWS_MAX, bytes_max=self._nbytes)
        stored = StoredRows(pack(values))
        self._last = stored.record_id(-1)
        self._at = self._prefix + self._last + b"\x00"
        alive = stored.where(stored.alive(self._floor))
        return self._choose(alive) if self._choose is not None and len(alive) else alive
