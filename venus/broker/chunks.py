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
        headers = full.read_headers(values, self._floor)
        tables, sequences = [], []
        for version in np.unique(headers.versions[headers.alive]).tolist():
            chosen = np.flatnonzero(headers.alive & (headers.versions == version))
            if len(chosen) < len(found):
                where = chosen.tolist()
                section = _section(self._table_id, version, [found[i] for i in where], [values[i] for i in where])
            else:
                section = _section(self._table_id, version, found, values)
            tables.append(section)
            numbers = headers.sequences[chosen]
            self._rows += len(numbers)
            self._digest = add_digests(self._digest, rows_digest(numbers))
            sequences.append(numbers.astype("<u8", copy=False).tobytes())
        return tables, sequences


def _section(table_id: int, version: int, found: Sequence[bytes], values: Sequence[bytes]) -> change_pb2.TableChanges:
    record_ids = Packed.of([key[keys.ROW_PREFIX_BYTES :] for key in found])
    rows = Packed.of([value[full.HEADER_BYTES :] for value in values])
    return change_pb2.TableChanges(
        table_id=table_id,
        schema_version=version,
        count=len(found),
        record_ids=record_ids.data,
        record_id_sizes=record_ids.wire_sizes(),
        rows=rows.data,
        row_sizes=rows.wire_sizes(),
        inserts_only=True,
    )
