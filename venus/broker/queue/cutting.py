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
from venus.codec.filtering import as_keys
from venus.codec.sections import changes_from_wire
from venus.errors import ProtocolError
from venus.network.row_filters import RowFilter
from venus.wire import change_pb2

#: What is kept for others who want the same.
CACHE_BYTES_MAX = 8 << 20

Body = tuple[int, bytes]  # digest, body
#: Business, index in its log, digest: an unclean election may give an index to another batch.
_Key = tuple[int, int, int, tuple[frozenset[int], tuple[RowFilter, ...]]]

_CHANGES, _LEFT_OUT = change_pb2.TableChanges.CHANGES, change_pb2.TableChanges.LEFT_OUT


class Cut:
    """Batches cut down to a part; thread-safe. The newest are kept: many sets may want the same."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._kept: OrderedDict[_Key, Body] = OrderedDict()
        self._nbytes = 0

    def body(self, business: Business, place: Placed, whole: bytes, part: Part) -> Body:
        """Return digest and body of a batch with what is wanted only."""
        key = (business.number, place.index, place.digest, part.key)
        with self._lock:
            found = self._kept.get(key)
        if found is None:
            body, keys_only = cut_down(whole, part)
            found = (place.digest if body is whole else xxhash.xxh3_64_intdigest(body)), body
            if keys_only:
                business.count("key_only_changes", keys_only)
            self._keep(key, found)
        return found

    def _keep(self, key: _Key, found: Body) -> None:
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = found
            self._nbytes += len(found[1])
            while self._nbytes > self._bytes_max:
                _, (_, gone) = self._kept.popitem(last=False)
                self._nbytes -= len(gone)


def cut_down(body: bytes, part: Part) -> tuple[bytes, int]:
    """Return a batch with what is wanted alone, the same object if that is all of it; and how many became keys."""
    message = change_pb2.BatchBody.FromString(body)
    tables = [table for table in message.tables if table.kind != _LEFT_OUT]
    keys_only = 0
    for table in tables:
        keys_only += _judge(message.batch_no, table, part)
    has_others = any(not _is_wanted(table, part) for table in tables)
    if not has_others and not keys_only and all(_is_in(schema.table_id, part) for schema in message.schemas):
        return body, 0
    if has_others:
        _leave_out(message, part)
    schemas = [schema for schema in message.schemas if _is_in(schema.table_id, part)]
    if len(schemas) < len(message.schemas):
        message.ClearField("schemas")
        message.schemas.extend(schemas)
    return message.SerializeToString(), keys_only


def _is_in(table_id: int, part: Part) -> bool:
    return not part.ids or table_id in part.ids


def _is_wanted(table: change_pb2.TableChanges, part: Part) -> bool:
    fitted = part.rows.get(table.table_id)
    return _is_in(table.table_id, part) and (fitted is None or fitted.takes(table.schema_version))


def _leave_out(message: change_pb2.BatchBody, part: Part) -> None:
    """Replace the changes of tables that are not wanted by how many they are."""
    kept = change_pb2.BatchBody()
    for table in message.tables:
        if table.kind != _LEFT_OUT and _is_wanted(table, part):
            kept.tables.add().CopyFrom(table)
        elif kept.tables and kept.tables[-1].kind == _LEFT_OUT:
            kept.tables[-1].count += table.count
        else:
            kept.tables.add(kind=_LEFT_OUT, count=table.count)
    message.ClearField("tables")
    message.tables.extend(kept.tables)


def _judge(batch_no: int, table: change_pb2.TableChanges, part: Part) -> int:
    """Make deletions of the changes that a predicate does not want, in place; return how many."""
    fitted = part.rows.get(table.table_id)
    if fitted is None or table.kind != _CHANGES or not _is_wanted(table, part):
        return 0
    schema = part.versions.get((table.table_id, table.schema_version))
    if schema is None:
        where = f"batch {batch_no}: {fitted.name}"
        raise ProtocolError(f"{where} has changes of version {table.schema_version}, which nothing describes")
    predicate = fitted.at(table.schema_version)
    if predicate is None:
        return 0
    changes = changes_from_wire(table)
    found = as_keys(predicate, changes.record_ids, changes.rows, changes.is_deleted, schema)
    if found is None:
        return 0
    rows, is_deleted = found
    table.rows, table.row_sizes, table.is_deleted = rows.data, rows.wire_sizes(), is_deleted.tobytes()
    table.inserts_only = False  # what is deleted was no insertion for whoever has it
    return int(is_deleted.sum() - changes.is_deleted.sum())
