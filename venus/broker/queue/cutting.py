"""Batches cut down to what a reader wants, each under a digest of its own.

Offsets and Sequences stay what they are. Changes of other tables are replaced by how many there were; changes that a
predicate does not want travel on as the deletion of their key, because nobody knows here whether that row is below.
A batch in which every change is wanted goes out as it is. The verdict depends on the change alone, so whoever asks
again gets the same bytes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

import xxhash

from venus.broker.machine.business import Business
from venus.broker.machine.queue_index import Placed
from venus.broker.queue.only import Part
from venus.codec.filtering import OpenRows
from venus.codec.sections import changes_from_wire
from venus.errors import ProtocolError
from venus.model import TableSchema
from venus.network.row_filters import RowFilter
from venus.wire import change_pb2

#: What is kept for others who want the same.
CACHE_BYTES_MAX = 8 << 20
#: Batches that are kept open for others who judge them by other predicates, and what one takes for each of its bytes.
OPEN_BYTES_MAX = 32 << 20
OPEN_PRICE = 3

Body = tuple[int, bytes]  # digest, body
#: Business, index in its log, offset, epoch, digest: an unclean election may give an index to another batch.
_Batch = tuple[int, int, int, int, int]
_PartKey = tuple[frozenset[int], tuple[RowFilter, ...]]

_CHANGES, _LEFT_OUT = change_pb2.TableChanges.CHANGES, change_pb2.TableChanges.LEFT_OUT


class OpenBatch:
    """A batch that is decoded once, whoever judges it; nobody changes it."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.message = change_pb2.BatchBody.FromString(body)
        self._rows: dict[int, OpenRows] = {}
        #: All of it but tables and their versions.
        self.header = change_pb2.BatchBody()
        self.header.CopyFrom(self.message)
        self.header.ClearField("tables")
        self.header.ClearField("schemas")

    def rows(self, place: int, schema: TableSchema) -> OpenRows:
        """Return the changes of a section, open; a version of a table is the same for everybody."""
        found = self._rows.get(place)
        if found is None:
            changes = changes_from_wire(self.message.tables[place])
            found = OpenRows(changes.record_ids, changes.rows, changes.is_deleted, schema)
            self._rows[place] = found
        return found


class Cut:
    """Batches cut down to a part; thread-safe. The newest are kept: many sets may want the same.

    Where several parts of a business are judged by different predicates, the newest batches are kept open as well.
    """

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX, open_bytes_max: int = OPEN_BYTES_MAX) -> None:
        self._bytes_max, self._open_bytes_max = bytes_max, open_bytes_max
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[_Batch, _PartKey], Body] = OrderedDict()
        self._nbytes = 0
        self._open: OrderedDict[_Batch, OpenBatch] = OrderedDict()
        self._open_nbytes = 0
        self._only: dict[int, _PartKey | None] = {}  # the part that is cut of a business; None = there are several

    @property
    def open_nbytes(self) -> int:
        """What the batches take that are kept open, about."""
        return self._open_nbytes

    def body(self, business: Business, place: Placed, whole: bytes, part: Part) -> Body:
        """Return digest and body of a batch with what is wanted only."""
        batch = (business.number, place.index, place.base_offset, place.epoch, place.digest)
        key = (batch, part.key)
        with self._lock:
            found = self._kept.get(key)
        if found is None:
            body, keys_only = cut_down(self._opened(batch, whole, part), part)
            found = (place.digest if body is whole else xxhash.xxh3_64_intdigest(body)), body
            if keys_only:
                business.count("key_only_changes", keys_only)
            self._keep(key, found)
        return found

    def _opened(self, batch: _Batch, whole: bytes, part: Part) -> OpenBatch:
        """Return a batch to judge, the one that another part was cut from if it is kept."""
        number, price = batch[0], OPEN_PRICE * len(whole)
        with self._lock:
            if self._only.setdefault(number, part.key) != part.key:
                self._only[number] = None
            has_several = self._only[number] is None
            found = self._open.get(batch)
            if found is not None and found.body == whole:
                return found
        made = OpenBatch(whole)
        if not has_several or price > self._open_bytes_max:
            return made
        with self._lock:
            if batch not in self._open:
                self._open[batch] = made
                self._open_nbytes += price
            while self._open_nbytes > self._open_bytes_max:
                _, gone = self._open.popitem(last=False)
                self._open_nbytes -= OPEN_PRICE * len(gone.body)
        return made

    def _keep(self, key: tuple[_Batch, _PartKey], found: Body) -> None:
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = found
            self._nbytes += len(found[1])
            while self._nbytes > self._bytes_max:
                _, (_, gone) = self._kept.popitem(last=False)
                self._nbytes -= len(gone)


def cut_down(batch: OpenBatch, part: Part) -> tuple[bytes, int]:
    """Return a batch with what is wanted alone, the same object if that is all of it; and how many became keys."""
    message = batch.message
    judged = {n: found for n in range(len(message.tables)) if (found := _judge(batch, n, part)) is not None}
    has_others = any(t.kind != _LEFT_OUT and not _is_wanted(t, part) for t in message.tables)
    schemas = [schema for schema in message.schemas if _is_in(schema.table_id, part)]
    if not judged and not has_others and len(schemas) == len(message.schemas):
        return batch.body, 0
    cut = change_pb2.BatchBody()
    cut.CopyFrom(batch.header)
    cut.schemas.extend(schemas)
    for n, table in enumerate(message.tables):
        if has_others and (table.kind == _LEFT_OUT or not _is_wanted(table, part)):
            _leave_out(cut, table.count)
        elif n in judged:
            cut.tables.append(judged[n][0])
        else:
            cut.tables.append(table)
    return cut.SerializeToString(), sum(keys for _, keys in judged.values())


def _is_in(table_id: int, part: Part) -> bool:
    return not part.ids or table_id in part.ids


def _is_wanted(table: change_pb2.TableChanges, part: Part) -> bool:
    fitted = part.rows.get(table.table_id)
    return _is_in(table.table_id, part) and (fitted is None or fitted.takes(table.schema_version))


def _leave_out(cut: change_pb2.BatchBody, count: int) -> None:
    """Say how many changes were left out here."""
    if cut.tables and cut.tables[-1].kind == _LEFT_OUT:
        cut.tables[-1].count += count
    else:
        cut.tables.add(kind=_LEFT_OUT, count=count)


def _judge(batch: OpenBatch, place: int, part: Part) -> tuple[change_pb2.TableChanges, int] | None:
    """Return a section with deletions of the changes that a predicate does not want, and how many these are.

    None = it stays as it is.
    """
    table = batch.message.tables[place]
    fitted = part.rows.get(table.table_id)
    if fitted is None or table.kind != _CHANGES or not _is_wanted(table, part):
        return None
    schema = part.versions.get((table.table_id, table.schema_version))
    if schema is None:
        where = f"batch {batch.message.batch_no}: {fitted.name}"
        raise ProtocolError(f"{where} has changes of version {table.schema_version}, which nothing describes")
    predicate = fitted.at(table.schema_version)
    if predicate is None:
        return None
    opened = batch.rows(place, schema)
    found = opened.as_keys(predicate)
    if found is None:
        return None
    rows, is_deleted = found
    cut = change_pb2.TableChanges()
    cut.CopyFrom(table)
    cut.rows, cut.row_sizes, cut.is_deleted = rows.data, rows.wire_sizes(), is_deleted.tobytes()
    cut.inserts_only = False  # what is deleted was no insertion for whoever has it
    return cut, int(is_deleted.sum() - opened.is_deleted.sum())
