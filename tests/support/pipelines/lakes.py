"""Reads a lake as any reader would, and runs its loop."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tests.support.brokers.feed import Key, Row
from tests.support.pipelines.loops import run_loop
from tests.support.waiting import eventually
from venus.adapters.targets.parquet.files import state_schema
from venus.adapters.targets.parquet.lake_stream import LakeReport, run_lake
from venus.adapters.targets.parquet.load import load_lake
from venus.adapters.targets.parquet.manifest import LakeManifest, LakeTable, ParquetFolder
from venus.adapters.targets.parquet.refresh import change_rows, live_rows, read_net_changes, state_rows, untouched_rows
from venus.config import BrokerSettings, LakeSettings, Settings, TargetSettings
from venus.model import TableSchema

#: Short intervals, so that a test need not wait.
QUICK: dict[str, Any] = {"commit_s": 0.05, "refresh_s": 0.05}


def settings_of(broker: str, root: Path, **lake: Any) -> Settings:
    return Settings(
        broker=BrokerSettings(listen=broker),
        targets={"lake": TargetSettings.model_validate({"url": f"parquet://{root}"})},
        lake=LakeSettings(**(QUICK | lake)),
    )


def load(settings: Settings) -> dict[str, int]:
    """Load the lake from the full data; return the number of rows of each table."""
    return load_lake(ParquetFolder(settings, "lake"), lambda *_: None).rows


def manifest_of(settings: Settings) -> LakeManifest:
    """Return the lake's manifest, which must exist."""
    found = ParquetFolder(settings, "lake").read_manifest()
    assert found is not None
    return found


def _as_model(rows: pa.Table, schema: TableSchema) -> dict[Key, Row]:
    """Return rows as text, in the form of a Feed's model."""
    names, width = [c.name for c in schema.wire_columns], len(schema.key)
    columns = [rows.column(n).cast(pa.string()).to_pylist() for n in names]
    found = {tuple(r[:width]): tuple(r[width:]) for r in zip(*columns, strict=True)}
    assert len(found) == rows.num_rows, "a key is there twice"
    return found


def read_newest_rows(target: ParquetFolder, manifest: LakeManifest, table: LakeTable) -> pa.Table:
    """Return a table's rows as of the lake's offset: its state with the later changes applied."""
    shape = manifest.shape(table, table.shape_number(table.schema_version))
    found = read_net_changes(manifest, table, shape, target.layout.root)
    changes = change_rows(manifest, table, shape, target.layout.root)
    parts = [state_schema(shape).empty_table(), *live_rows(changes, found, shape)]
    if table.base.folder:
        folder = target.layout.version(table.folder, table.base.folder)
        for path in sorted(folder.glob("*.parquet")):
            parts += [untouched_rows(rows, found) for rows in state_rows(manifest, table, shape, path)]
    return pa.concat_tables(parts)


def newest_rows(settings: Settings, schema: TableSchema) -> dict[Key, Row]:
    """Return the rows as of the lake's offset."""
    target, manifest = ParquetFolder(settings, "lake"), manifest_of(settings)
    return _as_model(read_newest_rows(target, manifest, manifest.tables[schema.table_id]), schema)


def current_rows(root: Path, schema: TableSchema) -> dict[Key, Row]:
    """Return the rows of the newest state, as a reader without VENUS sees them."""
    return _as_model(pq.read_table(root / "current" / f"{schema.namespace}.{schema.name}"), schema)


def history(root: Path, name: str) -> pa.Table:
    """Return every change in the history, with the union of all columns."""
    parts = [pa.table({"_offset": pa.array([], pa.int64())})]
    parts += [ds.dataset(p).to_table() for p in sorted((root / "history" / name).glob("version=*"))]
    return pa.concat_tables(parts, promote_options="default")


def follow_in_thread(settings: Settings) -> AbstractContextManager[list[LakeReport]]:
    """Run the loop in a thread; raise its errors in the test."""
    return run_loop(lambda stop, report: run_lake(settings, "lake", stop, report))


def check_state(settings: Settings, offset: int) -> None:
    """Wait until the lake's history has everything below an offset."""
    eventually(lambda: manifest_of(settings).offset >= offset, f"offset {offset}")


def wait_until_fresh(settings: Settings) -> None:
    """Wait until every state contains every change."""
    eventually(lambda: not any(t.waiting for t in manifest_of(settings).tables.values()), "fresh states")
