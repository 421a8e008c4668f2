"""One key range of a snapshot, a chunk at a time, ordered by record_id.

Nothing is held open between two chunks, so a reader may take as long as it likes, stop for good, or resume behind
any record_id it has seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash

from venus.broker import full, keys
from venus.broker.store import Store
from venus.codec.chunk import add_digests, rows_digest
from venus.codec.headed import take_apart
from venus.codec.packed import Packed
from venus.wire import broker_pb2, change_pb2

_ROWS_MAX = 50_000


class Chunks:
    """Where the reading of one split stands."""

    def __init__(self, business: int, split: broker_pb2.Split, after: bytes, nbytes: int, floor: int) -> None:
        self._table_id = split.table_id
        self._prefix = keys.row_prefix(business, split.table_id)
        low = after + b"\x00" if after else split.low
        self._at = self._prefix + max(low, split.low)
        self._stop = self._prefix + split.high if split.high else keys.after_prefix(self._prefix)
        self._last = after
        self._nbytes = nbytes
        self._floor = floor
        self._number = 0
        self._rows = 0
        self._digest = 0
        self.done = False

    def next(self, store: Store) -> broker_pb2.SnapshotChunk:
        """Read the next chunk; the last one says so, and sums up."""
        tables: list[change_pb2.TableChanges] = []
        sequences: list[bytes] = []
        while not tables and not self.done:
            found, values, self.done = store.range(
                keys.ROW, self._at, self._stop, rows_max=_ROWS_MAX, bytes_max=self._nbytes
            )
            if found:
                self._last = found[-1][len(self._prefix) :]
                self._at = found[-1] + b"\x00"
                tables, sequences = self._pack(found, values)
        body = broker_pb2.ChunkBody(
            chunk_no=self._number,
            tables=tables,
            sequences=sequences,
            last=self._last,
            end=self.done,
            rows=self._rows if self.done else 0,
            rows_digest=self._digest if self.done else 0,
        ).SerializeToString()
        self._number += 1
        return broker_pb2.SnapshotChunk(digest=xxhash.xxh3_64_intdigest(body), body=body)

    def _pack(
        self, found: Sequence[bytes], values: Sequence[bytes]
    ) -> tuple[list[change_pb2.TableChanges], list[bytes]]:
        heads, rows = take_apart(values, full.HEADER_BYTES)
        headers = full.read_heads(heads, self._floor)
        versions = np.unique(headers.versions[headers.alive]).tolist()
        tables, sequences = [], []
        for version in versions:
            chosen = headers.alive & (headers.versions == version)
            if chosen.all():
                section = self._section(version, found, rows)
            else:
                where = np.flatnonzero(chosen).tolist()
                _, some_rows = take_apart([values[i] for i in where], full.HEADER_BYTES)
                section = self._section(version, [found[i] for i in where], some_rows)
            tables.append(section)
            numbers = headers.sequences[chosen]
            self._rows += len(numbers)
            self._digest = add_digests(self._digest, rows_digest(numbers))
            sequences.append(numbers.astype("<u8", copy=False).tobytes())
        return tables, sequences

    def _section(self, version: int, found: Sequence[bytes], rows: Packed) -> change_pb2.TableChanges:
        _, record_ids = take_apart(found, keys.ROW_PREFIX_BYTES)
        return change_pb2.TableChanges(
            table_id=self._table_id,
            schema_version=version,
            count=len(found),
            record_ids=record_ids.data,
            record_id_sizes=record_ids.wire_sizes(),
            rows=rows.data,
            row_sizes=rows.wire_sizes(),
            inserts_only=True,
        )
