"""What a committed entry does to a business: the only place that changes one.

An entry is applied once the high watermark has reached it, and by the same steps when it is replayed after a crash.
All effects go into one write batch together with the new `applied` index, so the store never holds half of them. Rows
of a mirror's full data are counted here; the materialiser writes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from venus.broker.log.entry import WITH_ENVELOPE, EntryKind, LogEntry
from venus.broker.machine import consumers, loss, queue_index, records
from venus.broker.machine.business import Business, PendingEntry, TableFigures
from venus.broker.machine.consumers import ConsumerState, QueueMark
from venus.broker.machine.envelope import Envelope, build_envelope, parse_body
from venus.broker.machine.half_messages import HalfMessage
from venus.broker.machine.steps import EntryStep, take_step
from venus.broker.store import keys
from venus.broker.store.rocks import Store, StoreBatch
from venus.codec.chunk import decode_chunk
from venus.wire import mirror_pb2


@dataclass(slots=True)
class EntryEffects:
    """The effects of entries: batches that became visible, half messages that are decided or new."""

    placed: list[queue_index.QueuedBatch] = field(default_factory=list)
    settled: list[int] = field(default_factory=list)
    expected: list[int] = field(default_factory=list)
    has_restarted: bool = False  # a mirror's: what was visible before is gone
    filled_to: int = 0  # a mirror's: its full data is in the log up to this index


def apply_pending(business: Business, through: int, batch: StoreBatch) -> EntryEffects:
    """Apply what was appended in this process, up to the high watermark `through`."""
    business.log.committed = max(business.log.committed, through)
    applied = EntryEffects()
    while business.pending and business.pending[0].index <= through:
        apply(business, business.pending.popleft(), batch, applied)
    return applied


def reload(store: Store, business: Business) -> None:
    """Discard changes in memory that are not on disk."""
    records.restore(store, business)
    business.log.find_end(store)
    propose_rest(store, business)


def stop_applying(store: Store, business: Business) -> None:
    """Return to what is applied on disk, and propose nothing beyond it: an entry there cannot be applied here."""
    records.restore(store, business)
    business.log.find_end(store)
    business.pending.clear()


def propose_rest(store: Store, business: Business) -> None:
    """Propose the entries of the log that are not applied."""
    business.pending.clear()
    business.proposed = business.applying
    for index, entry in business.log.read_entries(store, business.log.applied + 1, business.log.end):
        propose(business, index, entry)


def propose(business: Business, index: int, entry: LogEntry) -> None:
    """Propose an entry of the log."""
    content = build_envelope(parse_body(entry.body)) if entry.kind in WITH_ENVELOPE else None
    taken = take_step(business.proposed, index, entry, content)
    business.proposed = taken.after
    business.log.terms = business.log.terms.append(entry.term, index)
    business.pending.append(PendingEntry(index=index, entry=entry, content=content, step=taken, is_new=False))


def replay(store: Store, business: Business) -> int:
    """Apply the entries of the log above `applied`, up to the high watermark; return their number."""
    entries = 0
    log = business.log
    for index, entry in log.read_entries(store, log.applied + 1, log.committed + 1):
        propose(business, index, entry)
        batch = store.batch()
        apply_pending(business, index, batch)
        records.save(business, batch)
        store.write(batch, durable=False)
        entries += 1
    return entries


def apply(business: Business, pending: PendingEntry, batch: StoreBatch, applied: EntryEffects) -> None:
    """Apply one entry; it must be the next one."""
    log, entry = business.log, pending.entry
    assert pending.index == log.applied + 1, "entries are applied in order"
    taken = pending.step
    if taken.before is not business.applying:  # proposed on a tail that was taken back since
        taken = take_step(business.applying, pending.index, entry, pending.content)
    business.applying = taken.after
    match entry.kind:
        case EntryKind.PREPARE:
            assert taken.persisted is not None
            assert pending.content is not None
            _apply_half(business, taken.persisted, pending.content, batch)
            applied.expected.append(taken.persisted.batch_no)
        case EntryKind.DECIDE:
            _apply_decision(business, entry, taken, batch, applied)
        case EntryKind.CONSUMER:
            _apply_consumer(business, pending, batch)
        case EntryKind.LOST:
            _apply_loss(business, pending, taken, batch, applied)
        case EntryKind.EPOCH | EntryKind.TERM | EntryKind.HOME | EntryKind.CLOSED:
            pass  # the step does everything
        case _:
            _apply_mirror_entry(business, pending, taken, batch, applied)
    log.applied = pending.index


def _apply_half(business: Business, found: HalfMessage, content: Envelope, batch: StoreBatch) -> None:
    business.envelopes[found.batch_no] = content
    batch.put(keys.STATE, keys.half_key(business.number, found.batch_no), records.encode_half(found))
    business.add_to_counter("received_rows", found.count)
    business.add_to_counter("received_batches")


def _apply_decision(
    business: Business, entry: LogEntry, taken: EntryStep, batch: StoreBatch, applied: EntryEffects
) -> None:
    if taken.removed:
        business.add_to_counter("rollbacks")
        business.add_to_counter("rolled_back_rows", sum(h.count for h in taken.removed))
    else:
        for offset, found in taken.placed:
            content = business.envelopes[found.batch_no]
            if not loss.has_unmeasured(taken.before.losses):
                _begin_epoch(business, entry.epoch, offset)
            applied.placed.append(_add_to_queue(business, offset, found, entry, content, batch))
            business.add_to_counter("committed_rows", found.count)
            business.add_to_counter("committed_batches")
        business.add_to_counter("commits")
        after = taken.after
        mark = QueueMark(at_us=entry.at_us, sequence=after.last_sequence, next_offset=after.next_offset)
        business.marks = consumers.add_mark(business.marks, mark)
    for gone in (*taken.removed, *(found for _, found in taken.placed)):
        business.envelopes.pop(gone.batch_no, None)
        batch.delete(keys.STATE, keys.half_key(business.number, gone.batch_no))
        applied.settled.append(gone.batch_no)


def _apply_loss(
    business: Business, pending: PendingEntry, taken: EntryStep, batch: StoreBatch, applied: EntryEffects
) -> None:
    """Add the lost offsets to the queue, so that readers pass over them."""
    assert pending.content is not None
    for offset, found in taken.placed:
        applied.placed.append(_add_to_queue(business, offset, found, pending.entry, pending.content, batch))
        business.add_to_counter("lost_rows", taken.after.last_sequence - taken.before.last_sequence)


def _apply_mirror_entry(
    business: Business, pending: PendingEntry, taken: EntryStep, batch: StoreBatch, applied: EntryEffects
) -> None:
    """Apply an entry that only mirrors have."""
    body = pending.entry.body
    match pending.entry.kind:
        case EntryKind.MIRRORED:
            _apply_mirrored_batch(business, pending, taken, batch, applied)
        case EntryKind.FULL_BEGIN:
            begin_full_data(business, body, batch)
            applied.settled.extend(found.batch_no for found in taken.before.halves)
            applied.placed.clear()
            applied.has_restarted, applied.filled_to = True, pending.index
        case EntryKind.FULL_ROWS:
            count_full_rows(business, body, batch)
            applied.filled_to = pending.index
        case EntryKind.FULL_END:
            applied.filled_to = pending.index


def _apply_mirrored_batch(
    business: Business, pending: PendingEntry, taken: EntryStep, batch: StoreBatch, applied: EntryEffects
) -> None:
    """Add a batch at the offsets that it has at the home."""
    assert pending.content is not None
    for offset, found in taken.placed:
        _begin_epoch(business, pending.entry.epoch, offset)
        applied.placed.append(_add_to_queue(business, offset, found, pending.entry, pending.content, batch))
        business.add_to_counter("mirrored_rows", found.count)
        business.add_to_counter("mirrored_batches")
    after = taken.after
    mark = QueueMark(at_us=pending.entry.at_us, sequence=after.last_sequence, next_offset=after.next_offset)
    business.marks = consumers.add_mark(business.marks, mark)


def _begin_epoch(business: Business, epoch: int, offset: int) -> None:
    """Record where an epoch begins: consumers of older epochs must have stopped there.

    Not called while a loss is not measured, nor for the lost offsets: a consumer may have applied them in older epochs.
    """
    if epoch > business.epoch_at_end:
        business.epochs = queue_index.add_epoch(business.epochs, epoch, offset, business.log_start)


def _add_to_queue(
    business: Business, offset: int, found: HalfMessage, entry: LogEntry, content: Envelope, batch: StoreBatch
) -> queue_index.QueuedBatch:
    place = queue_index.QueuedBatch(
        base_offset=offset,
        index=found.index,
        count=found.offsets,
        epoch=business.epoch_at_end,
        batch_no=found.batch_no,
        cut=content.cut,
        first_sequence=found.first_sequence,
        last_sequence=found.last_sequence,
        committed_at_us=entry.at_us,
        captured_at_us=content.captured_at_us,
        digest=found.digest,
        nbytes=found.nbytes,
        before=business.nbytes,
        cut_end=content.cut_end,
        tables=content.tables,
    )
    batch.put(keys.QUEUE, keys.queue_key(business.number, place.base_offset), place.encode())
    business.nbytes += found.nbytes
    business.committed_at_us = entry.at_us
    business.captured_at_us = content.captured_at_us
    _update_tables(business, offset, content, batch)
    return place


def _update_tables(business: Business, offset: int, content: Envelope, batch: StoreBatch) -> None:
    for schema in content.schemas:
        identity = (schema.table_id, schema.version)
        if identity not in business.schemas:
            business.schemas.add(identity)
            value = records.encode_schema(offset, schema.SerializeToString())
            batch.put(keys.STATE, keys.schema_key(business.number, *identity), value)
        figures = business.tables.get(schema.table_id, TableFigures())
        business.tables[schema.table_id] = replace(figures, namespace=schema.namespace, name=schema.name)
    for section in content.changes:
        figures = business.tables.get(section.table_id, TableFigures())
        before = 0 if section.truncates else figures.rows
        business.tables[section.table_id] = replace(
            figures,
            changes=figures.changes + section.changes,
            last_sequence=max(figures.last_sequence, section.last_sequence),
            rows=max(0, before + section.inserted - section.deleted),
        )
    for table_id in content.tables:
        records.save_table(batch, business.number, table_id, business.tables[table_id])


def _apply_consumer(business: Business, pending: PendingEntry, batch: StoreBatch) -> None:
    record = pending.entry.record
    group = record["group"]
    if record.get("forget"):
        batch.delete(keys.STATE, keys.consumer_key(business.number, group))
        found = None
    else:
        found = records.decode_consumer(record, pending.entry.at_us)
        records.save_consumer(batch, business.number, found)
    if not pending.is_new:
        _adopt_consumer(business, group, found)


def _adopt_consumer(business: Business, group: str, found: ConsumerState | None) -> None:
    """Adopt what another process logged of a group, unless it is attached here."""
    with business.lock:
        known = business.consumers.get(group)
        if known is not None and known.is_connected:
            return
        if found is not None:
            business.consumers[group] = found
        else:
            business.consumers.pop(group, None)


def begin_full_data(business: Business, body: bytes, batch: StoreBatch) -> None:
    """Drop queue, tables and versions, and begin at the cut."""
    said = mirror_pb2.MirrorBegin.FromString(body)
    number = business.number
    batch.delete_range(keys.QUEUE, keys.queue_key(number, 0), keys.queue_key(number + 1, 0))
    business.envelopes.clear()  # of an old home: the new one decides these half messages
    for prefix in (keys.table_prefix(number), keys.schema_prefix(number), keys.half_prefix(number)):
        batch.delete_range(keys.STATE, prefix, keys.after_prefix(prefix))
    business.tables, business.schemas = {}, set()
    for schema in said.schemas:
        business.schemas.add((schema.table_id, schema.version))
        value = records.encode_schema(0, schema.SerializeToString())
        batch.put(keys.STATE, keys.schema_key(number, schema.table_id, schema.version), value)
        business.tables[schema.table_id] = TableFigures(namespace=schema.namespace, name=schema.name)
    for table_id, figures in business.tables.items():
        records.save_table(batch, number, table_id, figures)
    business.log_start = said.offset
    business.nbytes_trimmed = business.nbytes
    # the last change below the cut is of this epoch: a consumer at the cut in an older one has another history
    business.epochs = ((said.epoch, max(said.offset, 1) - 1),) if said.epoch else ()
    business.marks = []


def count_full_rows(business: Business, body: bytes, batch: StoreBatch) -> None:
    """Count the rows of a chunk."""
    chunk = decode_chunk(body)
    rows = len(chunk.rows)
    business.add_to_counter("filled_rows", rows)
    if not rows:
        return
    figures = business.tables.get(chunk.table_id, TableFigures())
    newest = max(figures.last_sequence, int(chunk.rows.sequences.max()))
    figures = replace(figures, rows=figures.rows + rows, last_sequence=newest)
    business.tables[chunk.table_id] = figures
    records.save_table(batch, business.number, chunk.table_id, figures)
