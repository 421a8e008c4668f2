"""A source database: rows, the log of changes, the batch table; and the expected state of a target."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import xxhash

from venus.errors import Fenced
from venus.model import BatchNo, BatchRecord, Epoch, Sequence
from venus.wire import change_pb2

Rows = dict[bytes, bytes]
TABLE = 1
NAMES = {1: "items", 2: "others"}
KEYS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """One snapshot of the source: bodies with their records, and the position up to which the log was read."""

    bodies: tuple[bytes, ...]
    records: tuple[BatchRecord, ...]
    read_through: int


class Source:
    """The source database, which survives every adapter."""

    #: Ids of all tables.
    tables: tuple[int, ...] = (TABLE,)

    def __init__(self, random: Random) -> None:
        self._random = random
        self.rows: Rows = {}
        self.epoch = 0
        self.next_sequence = 1
        self.last_batch = 0
        self.batches: dict[BatchNo, BatchRecord] = {}
        #: Last Sequence of each committed batch -> digest of the batch, and the rows of a target that has applied it.
        self.history: dict[int, tuple[int, Rows]] = {}
        self._shipped: Rows = {}
        self._log: list[tuple[int, bytes | None]] = []  # one entry for each change; no key stands for TRUNCATE
        self._changes = 0
        self._values = 0

    # -- the application -------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Commit a transaction of the application."""
        if self._random.random() < 0.03:
            self.rows.clear()
            self._note(None)
        for _ in range(self._random.randint(1, 4)):
            key = self.key(self._random.randrange(KEYS))
            if self._random.random() < 0.3:
                self.rows.pop(key, None)
            else:
                self._values += 1
                self.rows[key] = self.value(self._values)
            self._note(key)

    def _note(self, key: bytes | None) -> None:
        """Log a changed key, or a TRUNCATE."""
        self._changes += 1
        self._log.append((self._changes, key))

    @property
    def is_drained(self) -> bool:
        """Return whether the source has committed every change in a batch."""
        return not self._log

    # -- the upper adapter -----------------------------------------------------------------------------------------

    def raise_epoch(self, epoch: int) -> None:
        """Make this epoch the only one that may commit. Raises Fenced if a newer one exists."""
        if self.epoch > epoch:
            raise Fenced(f"epoch {self.epoch} is at work")
        self.epoch = epoch

    def cut(self, epoch: int, first_batch: int, first_sequence: int, *, described: bool) -> Cut | None:
        """Read everything that the log lists, in one or more batches; return None if the log is empty."""
        if not self._log:
            return None
        truncated = max((i for i, (_, key) in enumerate(self._log) if key is None), default=-1)
        touched = sorted({key for _, key in self._log[truncated + 1 :] if key is not None})
        parts = [touched[i : i + 3] for i in range(0, len(touched), 3)] or [[]]
        bodies, records, sequence = [], [], first_sequence
        for i, part in enumerate(parts):
            markers = len(self.tables) if truncated >= 0 and i == 0 else 0
            message = change_pb2.BatchBody(
                batch_no=first_batch + i,
                first_sequence=sequence,
                count=len(part) + markers,
                cut=first_batch,
                cut_end=i + 1 == len(parts),
            )
            if described and i == 0:
                message.schemas.extend(self.table_schema(table) for table in self.tables)
            self._fill(message, part, truncates=bool(markers))
            bodies.append(message.SerializeToString())
            record = BatchRecord(
                batch_no=BatchNo(first_batch + i),
                epoch=Epoch(epoch),
                first_sequence=Sequence(sequence),
                last_sequence=Sequence(sequence + message.count - 1),
                digest=xxhash.xxh3_64_intdigest(bodies[-1]),
            )
            records.append(record)
            sequence += message.count
        return Cut(bodies=tuple(bodies), records=tuple(records), read_through=self._log[-1][0])

    def _fill(self, message: change_pb2.BatchBody, keys: list[bytes], *, truncates: bool) -> None:
        """Write the changes of these keys into a batch, perhaps after a TRUNCATE of all tables."""
        if truncates:
            for table in self.tables:
                message.tables.add(table_id=table, schema_version=1, kind=change_pb2.TableChanges.TRUNCATE, count=1)
        for table in self.tables:
            touched = [key for key in keys if self.table_of(key) == table]
            rows = [self.rows.get(key) for key in touched]
            if touched:
                message.tables.add(
                    table_id=table,
                    schema_version=1,
                    count=len(touched),
                    record_ids=b"".join(touched),
                    record_id_sizes=b"".join(len(key).to_bytes(4, "little") for key in touched),
                    rows=b"".join(row or b"" for row in rows),
                    row_sizes=b"".join(len(row or b"").to_bytes(4, "little") for row in rows),
                    is_deleted=bytes(row is None for row in rows),
                )

    def table_of(self, _key: bytes) -> int:
        """Return the id of a key's table."""
        return TABLE

    def key(self, number: int) -> bytes:
        """Return the record id of a key."""
        return b"k%d" % number

    def value(self, number: int) -> bytes:
        """Return the row that the application writes as value number `number`."""
        return b"v%d" % number

    def table_schema(self, table: int) -> change_pb2.TableSchema:
        """Return the description of a table for the broker."""
        return change_pb2.TableSchema(table_id=table, version=1, namespace="shop", name=NAMES[table])

    def commit(self, epoch: int, cut: Cut) -> None:
        """Run the local transaction. Raises Fenced."""
        if epoch != self.epoch:
            raise Fenced(f"epoch {self.epoch} is at work")
        for body, record in zip(cut.bodies, cut.records, strict=True):
            self.batches[record.batch_no] = record
            apply(self._shipped, change_pb2.BatchBody.FromString(body))
            self.history[record.last_sequence] = record.digest, dict(self._shipped)
        self.last_batch = cut.records[-1].batch_no
        self.next_sequence = cut.records[-1].last_sequence + 1
        self._log = [(number, key) for number, key in self._log if number > cut.read_through]


def apply(rows: Rows, body: change_pb2.BatchBody) -> None:
    """Apply a batch to a target's rows."""
    for table in body.tables:
        if table.kind == change_pb2.TableChanges.TRUNCATE:
            rows.clear()
            continue
        ids, packed = split_packed(table.record_ids, table.record_id_sizes), split_packed(table.rows, table.row_sizes)
        for i, (key, row) in enumerate(zip(ids, packed, strict=True)):
            if table.is_deleted[i]:
                rows.pop(key, None)
            else:
                rows[key] = row


def split_packed(data: bytes, sizes: bytes) -> list[bytes]:
    """Split packed bytes into items; `sizes` has four bytes for each."""
    found, at = [], 0
    for i in range(0, len(sizes), 4):
        size = int.from_bytes(sizes[i : i + 4], "little")
        found.append(data[at : at + size])
        at += size
    return found
