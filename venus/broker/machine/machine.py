"""What a log entry does to a business: the same steps when it is appended and when it is replayed.

All effects go into the write batch that carries the entry (or, in a replay, the new `applied` index), so the store
never holds half of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from venus.broker.log.entry import Entry, EntryKind, decode
from venus.broker.machine import half, state
from venus.broker.machine.envelope import Envelope, envelope, parse
from venus.broker.machine.state import Business, TableFigures
from venus.broker.queue import queue_index, retention
from venus.broker.queue.retention import Consumer, Mark
from venus.broker.store import keys
from venus.broker.store.rocks import Batch, Store
from venus.model import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What an entry did: batches that became visible, half messages that are settled or new."""

    placed: tuple[queue_index.Placed, ...] = ()
    settled: tuple[int, ...] = ()
    expected: tuple[int, ...] = ()


def apply(business: Business, index: int, entry: Entry, batch: Batch, known: Envelope | None = None) -> Applied:
    """Apply one entry."""
    match entry.kind:
        case EntryKind.PREPARE:
            return _prepare(business, index, entry, batch, known or envelope(parse(entry.body)))
        case EntryKind.DECIDE:
            return _decide(business, entry, batch)
        case EntryKind.EPOCH:
            record = entry.record
            business.half = half.raise_epoch(business.half, record["epoch"], record["producer"])
            return Applied()
        case EntryKind.CONSUMER:
            return _consumer(business, entry, batch)


def replay(store: Store, business: Business) -> int:
    """Apply what the log has beyond `applied`; return how many entries that were."""
    entries = 0
    first = keys.log_key(business.number, business.log_end)
    for key, value in store.scan(keys.RLOG, first, keys.log_key(business.number + 1, 0)):
        index = keys.log_index(key)
        batch = store.batch()
        applied = apply(business, index, decode(value, where=f"{store.path}, entry {index}"), batch)
        for place in applied.placed:
            batch.put(keys.QUEUE, keys.queue_key(business.number, place.base_offset), place.encode())
        business.log_end = index + 1
        state.save(business, batch)
        store.write(batch, durable=False)
        entries += 1
    return entries


def _prepare(business: Business, index: int, entry: Entry, batch: Batch, content: Envelope) -> Applied:
    found = half.Half(
        batch_no=content.batch_no,
        digest=entry.digest,
        first_sequence=content.first_sequence,
        count=content.count,
        nbytes=len(entry.body),
        received_at_us=entry.at_us,
        index=index,
    )
    business.half = half.persist(business.half, found)
    business.envelopes[found.batch_no] = content
    batch.put(keys.STATE, keys.half_key(business.number, found.batch_no), state.encode_half(found))
    business.count("received_rows", found.count)
    business.count("received_batches")
    return Applied(expected=(found.batch_no,))


def _decide(business: Business, entry: Entry, batch: Batch) -> Applied:
    record = entry.record
    if record["verdict"] == Verdict.ROLLBACK:
        business.half, removed = half.roll_back(business.half, record["batch_no"])
        business.count("rollbacks")
        business.count("rolled_back_rows", sum(h.count for h in removed))
        settled = tuple(h.batch_no for h in removed)
        placed: tuple[queue_index.Placed, ...] = ()
    else:
        business.half, decided = half.commit(business.half, record["batch_no"])
        placed = tuple(_place(business, offset, found, entry, batch) for offset, found in decided)
        settled = tuple(h.batch_no for _, h in decided)
        business.count("commits")
        mark = Mark(at_us=entry.at_us, sequence=business.half.last_sequence, next_offset=business.half.next_offset)
        business.marks = retention.thin(business.marks, mark)
    for batch_no in settled:
        business.envelopes.pop(batch_no, None)
        batch.delete(keys.STATE, keys.half_key(business.number, batch_no))
    return Applied(placed=placed, settled=settled)


def _place(business: Business, offset: int, found: half.Half, entry: Entry, batch: Batch) -> queue_index.Placed:
    content = business.envelopes[found.batch_no]
    if entry.epoch > business.epoch_at_end:
        kept = [e for i, e in enumerate(business.epochs) if _still_needed(business, i)]
        business.epochs = (*kept, (entry.epoch, offset))
    place = queue_index.Placed(
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
    business.nbytes += found.nbytes
    business.committed_at_us = entry.at_us
    business.captured_at_us = content.captured_at_us
    business.count("committed_rows", found.count)
    business.count("committed_batches")
    _describe(business, offset, content, batch)
    return place


def _still_needed(business: Business, i: int) -> bool:
    following = business.epochs[i + 1][1] if i + 1 < len(business.epochs) else None
    return following is None or following > business.log_start


def _describe(business: Business, offset: int, content: Envelope, batch: Batch) -> None:
    for schema in content.schemas:
        identity = (schema.table_id, schema.version)
        if identity not in business.schemas:
            business.schemas.add(identity)
            value = state.encode_schema(offset, schema.SerializeToString())
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
        state.save_table(batch, business.number, table_id, business.tables[table_id])


def _consumer(business: Business, entry: Entry, batch: Batch) -> Applied:
    record = entry.record
    group = record["group"]
    if record.get("forget"):
        batch.delete(keys.STATE, keys.consumer_key(business.number, group))
        return Applied()
    consumer = Consumer(group=group, acknowledged=record["acknowledged"], updated_at_us=entry.at_us)
    state.save_consumer(batch, business.number, consumer)
    return Applied()
