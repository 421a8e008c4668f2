"""Batches reduced to the part that a reader requests: some tables by name, and of some the rows inside a predicate.

Offsets and Sequences stay as they are, and each reduced batch has its own digest. Changes of unwanted tables are
replaced by their count. A change outside the predicate is sent as the deletion of its key, because this broker does
not know whether the reader has that row. A batch is sent unchanged if every change in it is wanted. Whether a change
is wanted depends on that change alone, so a repeated request gets the same bytes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import xxhash

from venus.broker.machine.business import Business
from venus.broker.machine.envelope import Version
from venus.broker.machine.queue_index import QueuedBatch
from venus.broker.machine.records import load_schemas
from venus.broker.queue.border_masks import BorderMasks
from venus.broker.store.rocks import Store
from venus.codec.batch import changes_from_wire
from venus.codec.filtering import OpenRows
from venus.codec.packed import Bools
from venus.errors import ProtocolError
from venus.masking.border import Border
from venus.model import TableSchema
from venus.network.row_filters import FittedFilter, RowFilter, fit_filters
from venus.network.topology import is_labelled
from venus.wire import change_pb2

#: Ids of tables that select no table, because none has this id. The empty set stands for all tables.
NOTHING = frozenset({-1})


@dataclass(frozen=True, slots=True)
class WantedPart:
    """The part of a business that a reader wants, for the current tables. Parts with equal `key` are the same."""

    ids: frozenset[int]  # of the tables; empty = all
    where: tuple[RowFilter, ...] = ()
    rows: Mapping[int, FittedFilter] = field(default_factory=dict)
    versions: Mapping[Version, TableSchema] = field(default_factory=dict)
    masks: BorderMasks | None = None

    @property
    def key(self) -> _PartKey:
        """The key that distinguishes this part from other parts of the same business."""
        return self.ids, self.where, self.masks is not None


class TableChoice:
    """The tables of one business that one reader chooses, by name; tables that are created later are matched too.

    With a `border` the reader is a set below, and gets rows with their columns masked.
    """

    def __init__(self, names: Iterable[str], where: Iterable[RowFilter] = (), border: Border | None = None) -> None:
        self.names, self.where, self.border = tuple(names), tuple(where), border
        self._known = -1
        self._ids = NOTHING
        self._rows: Mapping[int, FittedFilter] = {}
        self._versions: Mapping[Version, TableSchema] = {}
        self._masks: BorderMasks | None = None

    @property
    def is_rewritten(self) -> bool:
        """Whether batches must be decoded for this reader, to filter their rows or mask their columns."""
        return bool(self.where) or self.border is not None

    def part(self, business: Business, store: Store) -> WantedPart:
        """Return what the reader wants of the current tables. Raises Refused for a filter by a masked column."""
        ids = self.ids(business)
        if not self.is_rewritten:
            return WantedPart(ids)
        if len(self._versions) != len(business.schemas):  # a version is on disk a moment after it is committed
            found = [schema for _, schema in load_schemas(store, business.number)]
            self._rows = fit_filters(self.where, found)
            if self.border is not None:
                self._masks = BorderMasks(self.border, found)
                self._masks.refuse_filters(self._rows)
            self._versions = {(schema.table_id, schema.version): schema for schema in found}
        return WantedPart(ids, self.where, self._rows, self._versions, self._masks)

    def ids(self, business: Business) -> frozenset[int]:
        """Return the ids of the chosen tables that exist now; the empty set stands for all tables."""
        if not self.names:
            return frozenset()
        if self._known != len(business.schemas):  # it grows with every version, and a new name needs a new version
            self._known = len(business.schemas)
            tables = list(business.tables.items())
            found = frozenset(n for n, t in tables if is_labelled(self.names, t.namespace, t.name))
            self._ids = found or NOTHING
        return self._ids


#: Limit of the bytes of reduced batches that are kept for other readers of the same part.
CACHE_BYTES_MAX = 8 << 20
#: Limit of the memory of batches kept open for readers with other predicates, and the memory that an open batch takes
#: for each of its bytes.
OPEN_BYTES_MAX = 32 << 20
OPEN_PRICE = 3
#: The overhead of each entry, which is most of a small batch.
ENTRY_BYTES, OPEN_BYTES = 512, 8 << 10

Body = tuple[int, bytes]  # digest, body
#: Business, index in its log, offset, epoch, digest: an unclean election may give an index to another batch.
_Batch = tuple[int, int, int, int, int]
_PartKey = tuple[frozenset[int], tuple[RowFilter, ...], bool]

_CHANGES, _LEFT_OUT = change_pb2.TableChanges.CHANGES, change_pb2.TableChanges.LEFT_OUT


#: The verdict on a section: it stays, it is reduced to its count, or a mask of the changes that stay.
_Verdict = bool | bytes
_STAYS, _OUT = True, False


class ReducedBatch(NamedTuple):
    """A batch reduced to the part that a reader wants."""

    digest: int | None  # None = the batch is unchanged
    body: bytes
    keys_only: int  # changes that are reduced to their keys


class OpenBatch:
    """A decoded batch. It is decoded once for all predicates, and reduced once for all readers of the same part."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.message = change_pb2.BatchBody.FromString(body)
        self._rows: dict[int, OpenRows] = {}
        self._made: dict[tuple[_Verdict, ...], ReducedBatch] = {}
        #: The batch without tables and their versions.
        self.header = change_pb2.BatchBody()
        self.header.CopyFrom(self.message)
        self.header.ClearField("tables")
        self.header.ClearField("schemas")

    @property
    def nbytes(self) -> int:
        """The approximate size of the batch and its reduced forms in memory."""
        made = self._made.copy().values()
        return OPEN_BYTES + OPEN_PRICE * len(self.body) + sum(len(one.body) + ENTRY_BYTES for one in made)

    def rows(self, place: int, schema: TableSchema) -> OpenRows:
        """Return the decoded changes of section `place`; all readers share them."""
        found = self._rows.get(place)
        if found is None:
            changes = changes_from_wire(self.message.tables[place])
            found = OpenRows(changes.record_ids, changes.rows, changes.is_deleted, schema)
            self._rows[place] = found
        return found

    def reduce(self, part: WantedPart) -> ReducedBatch:
        """Return the batch reduced to a part, or with its body unchanged if everything is wanted."""
        verdicts = _judge_sections(self, part)
        found = self._made.get(verdicts)
        if found is None:
            found = self._made[verdicts] = self._reduce(verdicts)
        return found

    def _reduce(self, verdicts: tuple[_Verdict, ...]) -> ReducedBatch:
        """Return the batch with its sections reduced by these verdicts."""
        if all(verdict is _STAYS for verdict in verdicts):
            return ReducedBatch(None, self.body, 0)
        cut = change_pb2.BatchBody()
        cut.CopyFrom(self.header)
        sections, schemas = verdicts[: len(self.message.tables)], verdicts[len(self.message.tables) :]
        cut.schemas.extend(one for one, is_in in zip(self.message.schemas, schemas, strict=True) if is_in)
        keys_only = 0
        for place, verdict in enumerate(sections):
            table = self.message.tables[place]
            if isinstance(verdict, bytes):
                keys_only += self._reduce_to_keys(place, np.frombuffer(verdict, dtype=np.bool_), cut.tables.add())
            elif verdict is _STAYS:
                cut.tables.append(table)
            else:
                _leave_out(cut, table.count)
        body = cut.SerializeToString()
        return ReducedBatch(xxhash.xxh3_64_intdigest(body), body, keys_only)

    def _reduce_to_keys(self, place: int, kept: Bools, into: change_pb2.TableChanges) -> int:
        """Copy a section into `into`, with a deletion in place of each change not kept; return how many these are."""
        opened = self._rows[place]
        rows, is_deleted = opened.as_keys(kept)
        into.CopyFrom(self.message.tables[place])
        into.rows, into.row_sizes, into.is_deleted = rows.data, rows.wire_sizes(), is_deleted.tobytes()
        into.inserts_only = False  # a deletion is no insertion for a reader that has the row
        return int(is_deleted.sum() - opened.is_deleted.sum())


def _mask_batch(made: ReducedBatch, masks: BorderMasks) -> ReducedBatch:
    """Return a reduced batch with its columns masked. Raises Unavailable for a version that nothing describes yet."""
    message = change_pb2.BatchBody.FromString(made.body)
    body = message.SerializeToString() if masks.mask_message(message) else made.body
    return made if body is made.body else ReducedBatch(xxhash.xxh3_64_intdigest(body), body, made.keys_only)


class ReducedBatchCache:
    """A cache of reduced batches; thread-safe. It keeps the newest batches, because many sets may want the same part.

    If readers of a business want several parts, its newest batches are also kept in decoded form.
    """

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX, open_bytes_max: int = OPEN_BYTES_MAX) -> None:
        self._bytes_max, self._open_bytes_max = bytes_max, open_bytes_max
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[_Batch, _PartKey], Body] = OrderedDict()
        self._nbytes = 0
        self._open: OrderedDict[_Batch, tuple[OpenBatch, int]] = OrderedDict()
        self._open_nbytes = 0
        self._only: dict[int, _PartKey | None] = {}  # by business: the only part in use; None = there are several

    @property
    def open_nbytes(self) -> int:
        """The approximate size of the cached decoded batches."""
        return self._open_nbytes

    def body(self, business: Business, place: QueuedBatch, whole: bytes, part: WantedPart) -> Body:
        """Return digest and body of a batch reduced to a part; `whole` is the complete body."""
        batch = (business.number, place.index, place.base_offset, place.epoch, place.digest)
        key = (batch, part.key)
        with self._lock:
            found = self._kept.get(key)
        if found is None:
            opened, is_kept = self._find_open(batch, whole, part)
            made = opened.reduce(part)
            if part.masks is not None:
                made = _mask_batch(made, part.masks)
            found = (place.digest if made.digest is None else made.digest), made.body
            if made.keys_only:
                business.add_to_counter("key_only_changes", made.keys_only)
            if is_kept:
                self._keep_open(batch, opened)
            else:
                self._keep(key, found)
        return found

    def _find_open(self, batch: _Batch, whole: bytes, part: WantedPart) -> tuple[OpenBatch, bool]:
        """Return the batch in decoded form, and whether it is to be cached in this form."""
        number = batch[0]
        with self._lock:
            if self._only.setdefault(number, part.key) != part.key:
                self._only[number] = None
            has_several = self._only[number] is None
            found = self._open.get(batch)
            if found is not None and found[0].body == whole:
                return found[0], True
        return OpenBatch(whole), has_several and OPEN_BYTES + OPEN_PRICE * len(whole) <= self._open_bytes_max

    def _keep_open(self, batch: _Batch, opened: OpenBatch) -> None:
        """Cache a decoded batch with its reduced forms, and drop the oldest ones beyond the limit."""
        nbytes = opened.nbytes
        with self._lock:
            known = self._open.get(batch)
            if known is not None and known[0] is not opened:
                return  # another thread opened it as well
            self._open_nbytes += nbytes - (known[1] if known is not None else 0)
            self._open[batch] = opened, nbytes
            while self._open_nbytes > self._open_bytes_max:
                _, (_, gone) = self._open.popitem(last=False)
                self._open_nbytes -= gone

    def _keep(self, key: tuple[_Batch, _PartKey], found: Body) -> None:
        """Cache a reduced batch, and drop the oldest ones beyond the limit."""
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = found
            self._nbytes += len(found[1]) + ENTRY_BYTES
            while self._nbytes > self._bytes_max:
                _, (_, gone) = self._kept.popitem(last=False)
                self._nbytes -= len(gone) + ENTRY_BYTES


def _judge_sections(batch: OpenBatch, part: WantedPart) -> tuple[_Verdict, ...]:
    """Return what a part gets of each section and schema of a batch; equal verdicts give equal reduced batches."""
    message = batch.message
    kept = [_judge_section(batch, place, part) for place in range(len(message.tables))]
    if all(verdict is not _OUT or t.kind == _LEFT_OUT for verdict, t in zip(kept, message.tables, strict=True)):
        kept = [_STAYS if verdict is _OUT else verdict for verdict in kept]  # changes left out before stay left out
    return (*kept, *(_is_in(schema.table_id, schema.version, part) for schema in message.schemas))


def _is_in(table_id: int, version: int, part: WantedPart) -> bool:
    """Return whether any change of a table version is sent to the readers of a part."""
    is_sent = part.masks is None or part.masks.has_version(table_id, version)
    return is_sent and (not part.ids or table_id in part.ids)


def _is_wanted(table: change_pb2.TableChanges, part: WantedPart) -> bool:
    """Return whether a section belongs to a part and its filter fits the version."""
    fitted = part.rows.get(table.table_id)
    is_in = _is_in(table.table_id, table.schema_version, part)
    return is_in and (fitted is None or fitted.has_version(table.schema_version))


def _leave_out(cut: change_pb2.BatchBody, count: int) -> None:
    """Add `count` left-out changes to a reduced batch, which has only their number."""
    if cut.tables and cut.tables[-1].kind == _LEFT_OUT:
        cut.tables[-1].count += count
    else:
        cut.tables.add(kind=_LEFT_OUT, count=count)


def _judge_section(batch: OpenBatch, place: int, part: WantedPart) -> _Verdict:
    """Return what a part gets of a section: all, nothing, or a mask of its changes. Raises ProtocolError."""
    table = batch.message.tables[place]
    if table.kind == _LEFT_OUT or not _is_wanted(table, part):
        return _OUT
    fitted = part.rows.get(table.table_id)
    if fitted is None or table.kind != _CHANGES:
        return _STAYS
    schema = part.versions.get((table.table_id, table.schema_version))
    if schema is None:
        where = f"batch {batch.message.batch_no}: {fitted.name}"
        raise ProtocolError(f"{where} has changes of version {table.schema_version}, which is not described")
    predicate = fitted.predicate_at(table.schema_version)
    kept = batch.rows(place, schema).find_kept(predicate) if predicate is not None else None
    return kept.tobytes() if kept is not None else _STAYS
