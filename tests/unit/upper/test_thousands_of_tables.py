"""Each session sends all versions of all tables to the broker: they are megabytes, and a message has at most 16 MiB."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from tests.support.databases.scripted_database import ScriptedDatabase, schema_of
from tests.support.databases.scripted_source import Script, ScriptedSource
from tests.support.engines.scripted_broker import ScriptedBroker, ScriptedProducer
from venus.adapters.upper.batching import SCHEMAS_BYTES_MAX, Batcher
from venus.adapters.upper.cutting import Cutter
from venus.adapters.upper.periodic import Reporter
from venus.adapters.upper.session import SourceClaim, open_session
from venus.config import CaptureSettings
from venus.model import BatchNo, Column, Kind, LogicalType, Sequence, TableSchema

TABLES, COLUMNS = 1000, 100


def _wide_schema(table_id: int) -> TableSchema:
    schema = schema_of(table_id, f"t{table_id}")
    text = LogicalType(kind=Kind.TEXT)
    extra = (Column(name=f"a_column_of_{n:048}", number=n, type=text) for n in range(3, COLUMNS))
    return replace(schema, columns=(*schema.columns, *extra))


@pytest.mark.full
def test_capture_starts_with_a_thousand_wide_tables_and_a_very_large_row() -> None:
    database, broker, script = ScriptedDatabase("big"), ScriptedBroker(), Script()
    for _ in range(TABLES):
        table_id = database.add_table("t", filled=True)
        database.tables[table_id].schema = _wide_schema(table_id)
    database.put(2, "a", "x" * (12 << 20))
    session = open_session(
        ScriptedSource(database, script), ScriptedProducer(broker, script), SourceClaim(owner="this one"), timeout_s=1
    )

    assert Cutter(session, CaptureSettings(), threading.Event(), Reporter(None)).cut()

    assert max(len(half.body) for half in broker.committed) < 16 << 20
    batches = broker.batches
    assert len({schema.table_id for batch in batches for schema in batch.schemas}) == TABLES + 2
    assert {batch.cut for batch in batches} == {1}
    assert [batch.cut_end for batch in batches] == [False] * (len(batches) - 1) + [True]
    assert sum(batch.count for batch in batches) == 1
    assert not batches[-1].sections or batches[-1].sections[-1].count == 1


def test_a_few_versions_are_sent_with_the_changes() -> None:
    schemas = tuple(_wide_schema(n) for n in range(1, 10))
    batcher = Batcher(
        first_batch=BatchNo(1), first_sequence=Sequence(1), captured_at_us=0, schemas=schemas, rows_max=9, bytes_max=99
    )
    assert list(batcher.schema_batches()) == []
    assert batcher.end().schemas == schemas
    assert SCHEMAS_BYTES_MAX < 1 << 20
