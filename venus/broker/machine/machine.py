"""The state machine of a business: what each kind of log entry changes. No other code changes a business.

An entry is applied once the high watermark has reached it, and by the same steps when it is replayed after a crash.
All effects of an entry go into one write batch together with the new `applied` index, so the store never holds half of
them. The state machine only counts the rows of a mirror's full data; the materialiser writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from venus.broker.log.entry import WITH_ENVELOPE, EntryKind, LogEntry
from venus.broker.machine import consumers, loss, queue_index, records, steps
from venus.broker.machine.business import Business, PendingEntry, TableFigures
from venus.broker.machine.consumers import ConsumerState, QueueMark
from venus.broker.machine.envelope import Envelope, build_envelope, parse_body
from venus.broker.machine.half_messages import HalfMessage, HalfState
from venus.broker.machine.steps import EntryStep
from venus.broker.store import keys
from venus.broker.store.rocks import Store, StoreBatch
from venus.codec.stored_rows import decode_chunk
from venus.wire import change_pb2, mirror_pb2


@dataclass(slots=True)
class EntryEffects:
    """What applied entries have changed for other threads: new batches, and half messages that are new or decided."""

    placed: list[queue_index.QueuedBatch] = field(default_factory=list)
    settled: list[int] = field(default_factory=list)
    expected: list[int] = field(default_factory=list)
    has_restarted: bool = False  # only of a mirror: everything that was visible before is removed
    filled_to: int = 0  # only of a mirror: its full data is in the log up to this index


def take_step(state: HalfState, index: int, entry: LogEntry, content: Envelope | None) -> EntryStep:
    """Return how an entry changes the half-message state; `content` is the envelope if the body is a batch."""
    return RULES[entry.kind].step(state, index, entry, content)


def apply_pending(business: Business, through: int, batch: StoreBatch) -> EntryEffects:
    """Apply the entries appended in this process, up to the high watermark `through`."""
    business.log.committed = max(business.log.committed, through)
    applied = EntryEffects()
    while business.pending and business.pending[0].index <= through:
        apply(business, business.pending.popleft(), batch, applied)
    return applied


def reload(store: Store, business: Business) -> None:
    """Read a business from disk again, and so discard changes in memory that are not on disk."""
    records.restore(store, business)
    business.log.find_end(store)
    propose_rest(store, business)


def stop_applying(store: Store, business: Business) -> None:
    """Return to the state on disk and drop the later entries, because one of them cannot be applied here."""
    records.restore(store, business)
    business.log.find_end(store)
    business.pending.clear()


def propose_rest(store: Store, business: Business) -> None:
    """Add all log entries that are not applied yet to the proposed state."""
    business.pending.clear()
    business.proposed = business.applying
    for index, entry in business.log.read_entries(store, business.log.applied + 1, business.log.end):
        propose(business, index, entry)


def propose(business: Business, index: int, entry: LogEntry) -> None:
    """Add an entry of the log to the proposed state and to the pending entries."""
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


def apply(business: Business, pending: PendingEntry, batch: StoreBatch, effects: EntryEffects) -> None:
    """Apply the next pending entry: add its writes to `batch`, and what other threads must know to `effects`."""
    log = business.log
    assert pending.index == log.applied + 1, "entries are applied in order"
    step = pending.step
    if step.before is not business.applying:  # proposed on a tail that was truncated since
        step = take_step(business.applying, pending.index, pending.entry, pending.content)
    business.applying = step.after
    RULES[pending.entry.kind].effect(EntryApplication(business, pending, step, batch, effects))
    log.applied = pending.index


@dataclass(frozen=True, slots=True)
class EntryApplication:
    """Application of one entry to store, queue and tables, after its step on the half-message state."""

    business: Business
    pending: PendingEntry
    step: EntryStep
    batch: StoreBatch
    effects: EntryEffects

    def do_nothing(self) -> None:
        """Do nothing: this kind of entry changes only the half-message state."""

    def store_half(self) -> None:
        """Store an undecided half message."""
        business, found = self.business, self.step.persisted
        assert found is not None
        assert self.pending.content is not None
        business.envelopes[found.batch_no] = self.pending.content
        self.batch.put(keys.STATE, keys.half_key(business.number, found.batch_no), records.encode_half(found))
        business.add_to_counter("received_rows", found.count)
        business.add_to_counter("received_batches")
        self.effects.expected.append(found.batch_no)

    def decide(self) -> None:
        """Move committed half messages to the queue; remove the stored records of all decided ones."""
        business, step = self.business, self.step
        if step.removed:
            business.add_to_counter("rollbacks")
            business.add_to_counter("rolled_back_rows", sum(h.count for h in step.removed))
        else:
            for offset, found in step.placed:
                if not loss.has_unmeasured(step.before.losses):
                    self._begin_epoch(offset)
                self._add_to_queue(offset, found, business.envelopes[found.batch_no])
                business.add_to_counter("committed_rows", found.count)
                business.add_to_counter("committed_batches")
            business.add_to_counter("commits")
            self._add_mark()
        for gone in (*step.removed, *(found for _, found in step.placed)):
            business.envelopes.pop(gone.batch_no, None)
            self.batch.delete(keys.STATE, keys.half_key(business.number, gone.batch_no))
            self.effects.settled.append(gone.batch_no)

    def skip_loss(self) -> None:
        """Add the lost offsets to the queue, so that readers pass over them."""
        before, after = self.step.before, self.step.after
        for offset, found in self.step.placed:
            self._add_to_queue(offset, found, self.pending.content)
            self.business.add_to_counter("lost_rows", after.last_sequence - before.last_sequence)

    def add_mirrored_batch(self) -> None:
        """Add a batch from the set above to the queue, at the offsets that it has at the home."""
        for offset, found in self.step.placed:
            self._begin_epoch(offset)
            self._add_to_queue(offset, found, self.pending.content)
            self.business.add_to_counter("mirrored_rows", found.count)
            self.business.add_to_counter("mirrored_batches")
        self._add_mark()

    def _add_mark(self) -> None:
        """Record the queue's end with the time of the entry."""
        business, after = self.business, self.step.after
        mark = QueueMark(at_us=self.pending.entry.at_us, sequence=after.last_sequence, next_offset=after.next_offset)
        business.marks = consumers.add_mark(business.marks, mark)

    def _begin_epoch(self, offset: int) -> None:
        """Record the first offset of a new producer epoch: consumers of older epochs must have stopped there.

        Do not call it while a loss is not measured, nor for lost offsets, which a consumer may have applied in older
        epochs.
        """
        business, epoch = self.business, self.pending.entry.epoch
        if epoch > business.epoch_at_end:
            business.epochs = queue_index.add_epoch(business.epochs, epoch, offset, business.log_start)

    def _add_to_queue(self, offset: int, found: HalfMessage, content: Envelope | None) -> None:
        """Add a batch to the queue at an offset, and update the statistics of its tables."""
        assert content is not None
        business, at_us = self.business, self.pending.entry.at_us
        place = queue_index.QueuedBatch(
            base_offset=offset,
            index=found.index,
            count=found.offsets,
            epoch=business.epoch_at_end,
            batch_no=found.batch_no,
            cut=content.cut,
            first_sequence=found.first_sequence,
            last_sequence=found.last_sequence,
            committed_at_us=at_us,
            captured_at_us=content.captured_at_us,
            digest=found.digest,
            nbytes=found.nbytes,
            before=business.nbytes,
            cut_end=content.cut_end,
            tables=content.tables,
        )
        self.batch.put(keys.QUEUE, keys.queue_key(business.number, place.base_offset), place.encode())
        business.nbytes += found.nbytes
        business.committed_at_us = at_us
        business.captured_at_us = content.captured_at_us
        self._update_tables(offset, content)
        self.effects.placed.append(place)

    def _update_tables(self, offset: int, content: Envelope) -> None:
        """Update the names, versions and statistics of the tables in a committed batch."""
        business = self.business
        for schema in content.schemas:
            if (schema.table_id, schema.version) not in business.schemas:
                self._add_schema(offset, schema)
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
            records.save_table(self.batch, business.number, table_id, business.tables[table_id])

    def _add_schema(self, offset: int, schema: change_pb2.TableSchema) -> None:
        """Store a table version and the offset at which it was described."""
        number, identity = self.business.number, (schema.table_id, schema.version)
        self.business.schemas.add(identity)
        value = records.encode_schema(offset, schema.SerializeToString())
        self.batch.put(keys.STATE, keys.schema_key(number, *identity), value)

    def store_consumer(self) -> None:
        """Store the position of a group, or forget the group."""
        business, record = self.business, self.pending.entry.record
        group = record["group"]
        if record.get("forget"):
            self.batch.delete(keys.STATE, keys.consumer_key(business.number, group))
            found = None
        else:
            found = records.decode_consumer(record, self.pending.entry.at_us)
            records.save_consumer(self.batch, business.number, found)
        if not self.pending.is_new:
            _adopt_consumer(business, group, found)

    def begin_full_data(self) -> None:
        """Drop the queue, tables and versions of a mirror, and begin again at the cut of its full data."""
        business, batch = self.business, self.batch
        said, number = mirror_pb2.MirrorBegin.FromString(self.pending.entry.body), business.number
        batch.delete_range(keys.QUEUE, keys.queue_key(number, 0), keys.queue_key(number + 1, 0))
        business.envelopes.clear()  # of an old home: the new one decides these half messages
        for prefix in (keys.table_prefix(number), keys.schema_prefix(number), keys.half_prefix(number)):
            batch.delete_range(keys.STATE, prefix, keys.after_prefix(prefix))
        business.tables, business.schemas = {}, set()
        for schema in said.schemas:
            self._add_schema(0, schema)
            business.tables[schema.table_id] = TableFigures(namespace=schema.namespace, name=schema.name)
        for table_id, figures in business.tables.items():
            records.save_table(batch, number, table_id, figures)
        business.log_start = said.offset
        business.nbytes_trimmed = business.nbytes
        # the last change below the cut is of this epoch: a consumer at the cut in an older one has another history
        business.epochs = ((said.epoch, max(said.offset, 1) - 1),) if said.epoch else ()
        business.marks = []
        self.effects.settled.extend(found.batch_no for found in self.step.before.halves)
        self.effects.placed.clear()
        self.effects.has_restarted, self.effects.filled_to = True, self.pending.index

    def count_full_rows(self) -> None:
        """Count the rows in one chunk of a mirror's full data; the materialiser writes them."""
        self.effects.filled_to = self.pending.index
        business, chunk = self.business, decode_chunk(self.pending.entry.body)
        rows = len(chunk.rows)
        business.add_to_counter("filled_rows", rows)
        if rows:
            figures = business.tables.get(chunk.table_id, TableFigures())
            newest = max(figures.last_sequence, int(chunk.rows.sequences.max()))
            figures = replace(figures, rows=figures.rows + rows, last_sequence=newest)
            business.tables[chunk.table_id] = figures
            records.save_table(self.batch, business.number, chunk.table_id, figures)

    def end_full_data(self) -> None:
        """Let the materialiser write the last rows of a mirror's full data."""
        self.effects.filled_to = self.pending.index


def _adopt_consumer(business: Business, group: str, found: ConsumerState | None) -> None:
    """Take over the record of a group that another process logged, unless the group is attached here."""
    with business.lock:
        known = business.consumers.get(group)
        if known is not None and known.is_connected:
            return
        if found is not None:
            business.consumers[group] = found
        else:
            business.consumers.pop(group, None)


@dataclass(frozen=True, slots=True)
class EntryRule:
    """How one kind of entry is applied: its step on the half-message state, its effect on store, queue and tables."""

    step: Callable[[HalfState, int, LogEntry, Envelope | None], EntryStep]
    effect: Callable[[EntryApplication], None] = EntryApplication.do_nothing


RULES = {
    EntryKind.PREPARE: EntryRule(steps.prepare, EntryApplication.store_half),
    EntryKind.DECIDE: EntryRule(steps.decide, EntryApplication.decide),
    EntryKind.EPOCH: EntryRule(steps.raise_epoch),
    EntryKind.CONSUMER: EntryRule(steps.keep, EntryApplication.store_consumer),
    EntryKind.TERM: EntryRule(steps.begin_term),
    EntryKind.LOST: EntryRule(steps.skip_loss, EntryApplication.skip_loss),
    EntryKind.CLOSED: EntryRule(steps.close_losses),
    EntryKind.HOME: EntryRule(steps.set_home),
    # only a mirror has these
    EntryKind.FULL_BEGIN: EntryRule(steps.begin_full_data, EntryApplication.begin_full_data),
    EntryKind.FULL_ROWS: EntryRule(steps.add_full_rows, EntryApplication.count_full_rows),
    EntryKind.FULL_END: EntryRule(steps.end_full_data, EntryApplication.end_full_data),
    EntryKind.MIRRORED: EntryRule(steps.add_mirrored_batch, EntryApplication.add_mirrored_batch),
}
