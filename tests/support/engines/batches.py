"""Half messages with real batches of one small table, for tests of the broker's wire protocol."""

from __future__ import annotations

import numpy as np

from venus.codec.batch import Batch, TableChanges, digest, encode
from venus.codec.columns import from_columns
from venus.codec.row_bytes import Layout
from venus.model import BatchNo, Column, Kind, LogicalType, Sequence, TableSchema
from venus.wire import broker_pb2

ITEMS = TableSchema(
    table_id=1,
    version=1,
    namespace="shop",
    name="items",
    columns=(
        Column(name="id", number=1, type=LogicalType(kind=Kind.INT, length=8), nullable=False),
        Column(name="payload", number=2, type=LogicalType(kind=Kind.TEXT)),
    ),
    key=("id",),
)


def other_table(table_id: int) -> TableSchema:
    """Return a second table with the same columns."""
    return TableSchema(
        table_id=table_id,
        version=1,
        namespace="shop",
        name=f"others{table_id}",
        columns=ITEMS.columns,
        key=ITEMS.key,
    )


def half(
    batch_no: int, *, rows: int = 1, payload: str = "x" * 20, table: TableSchema = ITEMS, cut_end: bool = True
) -> broker_pb2.Half:
    """Return batch `batch_no` of a business; each batch inserts `rows` new rows."""
    first = 1 + (batch_no - 1) * rows
    ids = [str(first + i) for i in range(rows)]
    record_ids, packed = from_columns([ids, [f"{payload}{i}" for i in ids]], Layout.of(table))
    section = TableChanges(
        table_id=table.table_id,
        schema_version=table.version,
        record_ids=record_ids,
        rows=packed,
        is_deleted=np.zeros(rows, dtype=np.bool_),
        inserts_only=True,
    )
    body = encode(
        Batch(
            batch_no=BatchNo(batch_no),
            first_sequence=Sequence(first),
            count=rows,
            cut=BatchNo(batch_no),
            cut_end=cut_end,
            captured_at_us=1_700_000_000_000_000 + batch_no,
            schemas=(table,),
            sections=(section,),
        )
    )
    return broker_pb2.Half(batch_no=batch_no, digest=digest(body), body=body)
