"""One step of the full data: batches of the queue become rows (VENUS 3.3, table 3; rules in folding.py).

The rows of a step and the offset they reach are one write batch, so a crash repeats nothing and skips nothing.

The rows of a first fill come in the order of their keys: they become files of the store, without the write-ahead log
and without merges, and their offset follows in a batch of its own. After a crash between files and offset, the step is
repeated and writes the same rows again; until then, rows are ahead of the offset (`Business.rows_may_reach`).

A mirror's full data is taken from the log instead (`fill_step`); the log index that it reaches is in the batch too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import lt

import numpy as np
import xxhash

from venus.broker.log.entry import EntryKind
from venus.broker.machine import envelope, folding
from venus.broker.machine.business import Business, MaterialisedPosition
from venus.broker.machine.mirror import Mirror
from venus.broker.machine.queue_index import QueuedBatch
from venus.broker.machine.records import encode_materialised_position, read_body
from venus.broker.queue import reader
from venus.broker.queue.buffer import BodyBuffer
from venus.broker.snapshot import checksums
from venus.broker.snapshot.scavenger import Scavenger
from venus.broker.snapshot.scrub import Scrub
from venus.broker.snapshot.watched_rows import (
    FoldedBatch,
    FoldedSection,
    FoldObserver,
    WatchedRowLookup,
    WatchedStep,
    fold_watched,
)
from venus.broker.store import keys
from venus.broker.store.rocks import SortedFile, Store, StoreBatch
from venus.codec.packed import join_items
from venus.codec.stored_rows import decode_chunk
from venus.errors import Corruption
from venus.model import ChangeKind

#: A step of a mirror's full data ends after this many bytes of rows, or one chunk.
FILL_BYTES_MAX = 1 << 20
#: A step that writes files has at least the first number of bytes, to be worth its fsyncs, and ends after the second.
FILES_BYTES_MIN, FILES_BYTES_MAX = 1 << 20, 16 << 20
#: Each table needs its own file in a step. A step has at most this many, and only if they average FILES_BYTES_MIN. A
#: file takes about 4 ms of the interpreter's lock and a descriptor, and nothing merges small ones.
FILES_MAX = 8

#: A table, and rows of it in the order of their keys.
TableRows = tuple[int, Sequence[bytes], Sequence[bytes]]


def fill_step(store: Store, business: Business, *, on_refill: Callable[[Business], None]) -> bool:
    """Write the next rows of a mirror's full data; return False if there were none. Raises Corruption.

    If the full data begins again, `on_refill` is called before the old rows are removed.
    """
    mirror, to = business.committed.mirror, business.filled_to
    assert mirror is not None, "only a mirror is filled from above"
    reached = business.materialised
    batch = store.batch()
    if reached.filled < mirror.begin:
        on_refill(business)
        reached = _begin_fill(business, mirror, batch)
    else:
        index = _put_rows(store, business, reached.filled + 1, to, batch)
        reached = replace(reached, filled=index)
    if reached.filled == business.materialised.filled:
        return False
    batch.put(keys.STATE, keys.materialised_key(business.number), encode_materialised_position(reached))
    store.write(batch, durable=False)
    business.materialised = reached
    return True


def _begin_fill(business: Business, mirror: Mirror, batch: StoreBatch) -> MaterialisedPosition:
    """Remove the old rows of a mirror, and return the position at which its full data begins."""
    number = business.number
    prefix = keys.number_prefix(number)
    batch.delete_range(keys.ROW, prefix, keys.after_prefix(prefix))
    for start in (keys.SCAVENGED + prefix, keys.SUM + prefix, keys.UNDESCRIBED + prefix):
        batch.delete_range(keys.STATE, start, keys.after_prefix(start))
    business.scavenged, business.forgotten_below, business.undescribed = {}, {}, {}
    return MaterialisedPosition(
        offset=mirror.offset, sequence=mirror.sequence, nbytes=business.nbytes_trimmed, filled=mirror.begin
    )


def _put_rows(store: Store, business: Business, first: int, to: int, batch: StoreBatch) -> int:
    """Put the rows of log entries `first` to `to` into a write batch; return the last entry that is done."""
    done, nbytes = first - 1, 0
    for index, entry in business.log.read_entries(store, first, to + 1):
        if entry.kind is EntryKind.FULL_ROWS:
            chunk = decode_chunk(entry.body)
            prefix = np.frombuffer(keys.row_prefix(business.number, chunk.table_id), dtype=np.uint8)
            ids = chunk.rows.record_ids
            row_keys = join_items(np.broadcast_to(prefix, (len(chunk.rows), len(prefix))), ids)
            batch.put_many(keys.ROW, row_keys, chunk.rows.packed.split())
            nbytes += len(entry.body)
        done = index
        if nbytes >= FILL_BYTES_MAX:
            break
    return done


class MaterialiserStep:
    """Turns the next batches of a queue into rows, one step at a time. Used in the materialiser's thread."""

    def __init__(self, store: Store, buffer: BodyBuffer, *, scavenger: Scavenger, scrub: Scrub) -> None:
        self._store = store
        self._buffer = buffer
        self._scavenger = scavenger
        self._scrub = scrub
        self._watched_rows = WatchedRowLookup(store)
        self.observer: FoldObserver | None = None
        #: The offsets, by number of the business, below which rows are too few per table for files.
        self._rows_below: dict[int, int] = {}

    def is_watched(self, business: Business) -> bool:
        """Return whether the observer watches a table of this business."""
        return self.observer is not None and business.number in self.observer.watched_tables

    def drop_view(self) -> None:
        """Release the view of the store that looks up watched rows."""
        self._watched_rows.drop()

    def take(self, business: Business, *, most: int, one_batch: bool = False) -> bool:
        """Materialise the next batches of a business, up to `most` bytes; return False if there were none."""
        if not business.is_filled:
            return fill_step(self._store, business, on_refill=self._on_refill)
        if self._is_for_files(business, most, one_batch=one_batch) and self._take_as_files(business):
            return True
        return self._take_as_rows(business, most, one_batch=one_batch)

    def _take_as_rows(self, business: Business, most: int, *, one_batch: bool) -> bool:
        """Materialise the next batches as single rows, in one write batch."""
        reached = business.materialised
        batch = self._store.batch()
        nbytes = stale = 0
        watch: WatchedStep | None = None
        for place in self._next_batches(business):
            blind = place.first_sequence > reached.sequence
            # read once the batch is visible: a subscription that is older than that misses nothing
            watched = self.observer.watched_tables if self.observer is not None else {}
            if nbytes and (not blind or one_batch or nbytes + place.nbytes > most):
                break
            if nbytes and watched.get(business.number) != (watch.tables if watch is not None else None):
                break  # the rows that this step writes cannot be looked up yet
            if watch is None and business.number in watched:
                watch = WatchedStep(watched[business.number], self._watched_rows.begin(watched))
            floors, ignored = self._fold_batch(business, place, reached.floors, batch, watch, blind=blind)
            stale += ignored
            nbytes += place.nbytes
            reached = _position_after(place, reached, floors)
            if not blind:
                break  # the next look-up must see these rows
        if reached is business.materialised:
            return False
        self._write(business, batch, reached)
        if watch is not None and self.observer is not None:
            self.observer.on_folded(business, watch.folded)
        if stale:
            business.add_to_counter("stale_rows", stale)
        return True

    def _write(self, business: Business, batch: StoreBatch, reached: MaterialisedPosition) -> None:
        """Write a batch of rows together with the position that it reaches."""
        batch.put(keys.STATE, keys.materialised_key(business.number), encode_materialised_position(reached))
        self._store.write(batch, durable=False)
        business.materialised = reached

    def _is_for_files(self, business: Business, most: int, *, one_batch: bool) -> bool:
        """Return whether rows may become files: in a fill, while neither small commits nor a checkpoint wait."""
        return (
            business.is_filling
            and not one_batch
            and business.materialised.offset >= self._rows_below.get(business.number, 0)
            and most >= FILES_BYTES_MIN
            and business.unmaterialised_bytes() >= FILES_BYTES_MIN
        )

    def _take_as_files(self, business: Business) -> bool:
        """Materialise the next batches as new files of the store.

        Return False if the next batch has rows that are not new or not ascending, or too few rows for its tables.
        """
        reached = ahead = business.materialised
        nbytes, files, last, waiting = 0, dict[int, SortedFile](), dict[int, bytes](), list[TableRows]()
        try:
            for place in self._next_batches(business):
                if nbytes >= FILES_BYTES_MAX or place.first_sequence <= ahead.sequence or self.is_watched(business):
                    break
                if not self._fold_for_files(business, place, last, waiting) or len(last) > FILES_MAX:
                    break
                nbytes += place.nbytes
                ahead = _position_after(place, ahead, ahead.floors)
                if nbytes >= len(last) * FILES_BYTES_MIN:
                    self._put_in_files(waiting, files)
                    reached = ahead
            if files:
                self._store.add_files(keys.ROW, list(files.values()))
        finally:
            self._store.drop_files(files.values())
        if not files:
            self._rows_below[business.number] = ahead.offset
            return False
        self._write(business, self._store.batch(), reached)
        return True

    def _fold_for_files(
        self, business: Business, place: QueuedBatch, last: dict[int, bytes], waiting: list[TableRows]
    ) -> bool:
        """Append a batch's rows to `waiting`; return False for a deletion, a marker, or a key not above `last`."""
        for section in envelope.build_sections(envelope.parse_body(self._read_body(business, place))):
            if section.kind is not ChangeKind.CHANGES or b"\1" in section.is_deleted:
                return False
            prefix = keys.row_prefix(business.number, section.table_id)
            effect = folding.fold_section(section, prefix, 0, None)
            row_keys = [last.get(section.table_id, b""), *effect.keys]
            if not all(map(lt, row_keys, row_keys[1:])):
                return False
            last[section.table_id] = row_keys[-1]
            waiting.append((section.table_id, effect.keys, effect.values))
        return True

    def _put_in_files(self, waiting: list[TableRows], files: dict[int, SortedFile]) -> None:
        """Add waiting rows to the files of their tables."""
        for table_id, row_keys, values in waiting:
            if table_id not in files:
                files[table_id] = self._store.new_file(keys.ROW)
            files[table_id].put_many(row_keys, values)
        waiting.clear()

    def _on_refill(self, business: Business) -> None:
        """Forget what is known of a mirror's rows, because its full data begins again."""
        self.drop_view()
        if self.observer is not None:
            self.observer.on_refill(business)
        self._scavenger.forget(business)
        self._scrub.forget(business)

    def _next_batches(self, business: Business) -> Iterator[QueuedBatch]:
        """Yield the visible batches that are not in the full data yet."""
        offset = business.materialised.offset
        if offset >= business.visible_offset:
            return
        for place in reader.walk_batches(self._store, business, offset):
            if place.base_offset >= business.visible_offset:
                return
            yield place

    def _read_body(self, business: Business, place: QueuedBatch) -> bytes:
        body = self._buffer.get((business.number, place.index))
        if body is None:
            body = read_body(self._store, business, place.index)
            if xxhash.xxh3_64_intdigest(body) != place.digest:
                raise Corruption(f"{self._store.path}: batch {place.batch_no} of {business.name} is damaged")
        return body

    def _fold_batch(
        self,
        business: Business,
        place: QueuedBatch,
        floors: dict[int, int],
        batch: StoreBatch,
        watch: WatchedStep | None,
        *,
        blind: bool,
    ) -> tuple[dict[int, int], int]:
        """Put a batch's rows into a write batch; return the tables' new floors, and how many changes were stale."""
        overlay: dict[bytes, bytes] = {}
        stale = 0
        message = envelope.parse_body(self._read_body(business, place))
        sections: list[FoldedSection] = []
        for section in envelope.build_sections(message):
            prefix = keys.row_prefix(business.number, section.table_id)
            floor = floors.get(section.table_id, 0)
            effect = folding.fold_section(
                section, prefix, floor, None if blind else _make_look_up(self._store, overlay)
            )
            if watch is not None and section.table_id in watch.tables:
                sections.append(fold_watched(watch.rows, section, effect, floor, blind=blind))
            if effect.clear:
                batch.delete_range(keys.ROW, prefix, keys.after_prefix(prefix))
                checksums.remove_segments(batch, business, section.table_id)
            batch.put_many(keys.ROW, effect.keys, effect.values)
            if not blind:
                overlay.update(zip(effect.keys, effect.values, strict=True))
            if effect.floor != floor:
                floors = {**floors, section.table_id: effect.floor}
            if effect.floor != floor or section.is_deleted:
                self._scavenger.record_table(business, section.table_id, batch)
            stale += effect.stale
        if watch is not None:
            schemas = [schema for schema in message.schemas if schema.table_id in watch.tables]
            watch.folded.append(FoldedBatch(place=place, sections=sections, schemas=schemas))
        return floors, stale


def _position_after(place: QueuedBatch, reached: MaterialisedPosition, floors: dict[int, int]) -> MaterialisedPosition:
    """Return the position of the full data after a batch."""
    return MaterialisedPosition(
        offset=place.next_offset,
        sequence=max(reached.sequence, place.last_sequence),
        nbytes=place.after,
        at_cut_end=place.cut_end,
        floors=floors,
        filled=reached.filled,
    )


def _make_look_up(store: Store, overlay: dict[bytes, bytes]) -> folding.Stored:
    """Return a function that looks up stored values, first among those of the present step."""

    def look_up(row_keys: Sequence[bytes]) -> dict[bytes, bytes]:
        found = store.look_up(keys.ROW, row_keys)
        found.update({key: overlay[key] for key in row_keys if key in overlay})
        return found

    return look_up
