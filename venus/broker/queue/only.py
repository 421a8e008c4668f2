"""What a reader gets that wants some tables by name: each batch with these alone, under a digest of its own.

Offsets and Sequences stay what they are: changes of other tables are replaced by how many there were. A batch in which
every change is wanted goes out as it is.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable

import xxhash

from venus.broker.machine.business import Business
from venus.broker.machine.queue_index import Placed
from venus.network.labels import is_wanted
from venus.wire import change_pb2

#: No table has this id: nothing of a business is wanted, which is something else than everything.
NOTHING = frozenset({-1})
#: What is kept for others who want the same.
CACHE_BYTES_MAX = 8 << 20

Body = tuple[int, bytes]  # digest, body
#: Business, index in its log, digest: an unclean election may give an index to another batch.
_Key = tuple[int, int, int, frozenset[int]]


class Choice:
    """The tables of one business that a reader wants, by name; what has such a name later counts too."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)
        self._known = -1
        self._ids = NOTHING

    def ids(self, business: Business) -> frozenset[int]:
        """Return the ids of the tables that there are; the empty set stands for all."""
        if not self._names:
            return frozenset()
        if self._known != len(business.schemas):  # it grows with every version, and each name comes with one
            self._known = len(business.schemas)
            tables = list(business.tables.items())
            found = frozenset(n for n, t in tables if is_wanted(self._names, t.namespace, t.name))
            self._ids = found or NOTHING
        return self._ids


class Cut:
    """Batches cut down to some tables; thread-safe. The newest are kept: many sets may want the same."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._kept: OrderedDict[_Key, Body] = OrderedDict()
        self._nbytes = 0

    def body(self, business: Business, place: Placed, whole: bytes, ids: frozenset[int]) -> Body:
        """Return digest and body of a batch with these tables only."""
        key = (business.number, place.index, place.digest, ids)
        with self._lock:
            found = self._kept.get(key)
        if found is None:
            body = cut_down(whole, ids)
            found = (place.digest if body is whole else xxhash.xxh3_64_intdigest(body)), body
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


def cut_down(body: bytes, ids: frozenset[int]) -> bytes:
    """Return a batch with the changes of some tables alone; the same object if that is all of it."""
    message = change_pb2.BatchBody.FromString(body)
    left_out = change_pb2.TableChanges.LEFT_OUT
    others = [t for t in message.tables if t.table_id not in ids and t.kind != left_out]
    if not others and all(schema.table_id in ids for schema in message.schemas):
        return body
    kept = change_pb2.BatchBody()
    for table in message.tables:
        if table.table_id in ids and table.kind != left_out:
            kept.tables.add().CopyFrom(table)
        elif kept.tables and kept.tables[-1].kind == left_out:
            kept.tables[-1].count += table.count
        else:
            kept.tables.add(kind=left_out, count=table.count)
    schemas = [schema for schema in message.schemas if schema.table_id in ids]
    message.ClearField("tables")
    message.ClearField("schemas")
    message.schemas.extend(schemas)
    message.tables.extend(kept.tables)
    return message.SerializeToString()
