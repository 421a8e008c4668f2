"""What a mirror's full data does to its business, before any row is written: the materialiser writes those."""

from __future__ import annotations

from dataclasses import replace

from venus.broker.machine import records
from venus.broker.machine.business import Business, TableFigures
from venus.broker.store import keys
from venus.broker.store.rocks import Batch
from venus.codec.chunk import decode_chunk
from venus.wire import mirror_pb2


def begin(business: Business, body: bytes, batch: Batch) -> None:
    """Let go of queue, tables and versions, and begin at the cut."""
    said = mirror_pb2.MirrorBegin.FromString(body)
    number = business.number
    batch.delete_range(keys.QUEUE, keys.queue_key(number, 0), keys.queue_key(number + 1, 0))
    business.envelopes.clear()  # an old home's: what it has not decided is decided at the new one
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
    # the last change below the cut is of this epoch: who is at the cut in an older one had another history
    business.epochs = ((said.epoch, max(said.offset, 1) - 1),) if said.epoch else ()
    business.marks = []


def count(business: Business, body: bytes, batch: Batch) -> None:
    """Count rows that have come."""
    chunk = decode_chunk(body)
    rows = len(chunk.rows)
    business.count("filled_rows", rows)
    if not rows:
        return
    figures = business.tables.get(chunk.table_id, TableFigures())
    newest = max(figures.last_sequence, int(chunk.rows.sequences.max()))
    figures = replace(figures, rows=figures.rows + rows, last_sequence=newest)
    business.tables[chunk.table_id] = figures
    records.save_table(batch, business.number, chunk.table_id, figures)
