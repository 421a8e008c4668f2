"""The paths of a lake, a target that is a folder of Parquet files.

    manifest.json                                 the commit point: offset, tables, which files belong to it
    current/shop.items -> ../versions/...         the state as of the last refresh; a link, which changes atomically
    versions/shop.items/00000000000000000123/     one state: immutable Parquet files
    history/shop.items/version=1/*.parquet        every change, in files that never change

An unfinished file has a hidden name: Spark and pyarrow ignore names that begin with a dot. A file gets its final name
after the manifest that lists it has been renamed into place.

Writers hide a file until it is committed, and make it durable before the manifest lists it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from venus.codec.arrow_rows import CHANGE_FIELDS, SEQUENCE, ArrowShape, deletion_floor
from venus.codec.batch import TableChanges
from venus.errors import ConfigError, Refused
from venus.model import ChangeKind, TableSchema

SCHEME = "parquet"
MANIFEST = "manifest.json"
LOAD = "load.json"
LOCK = "lock"


def root_folder(url: str, place: str = "url") -> Path:
    """Return the folder of a URL: parquet:///absolute/path or parquet:relative/path. Raises ConfigError."""
    parts = urlsplit(url)
    if parts.scheme != SCHEME or parts.netloc or not parts.path.strip("/"):
        raise ConfigError(
            f"{place}: {url} is not the URL of a folder for Parquet files",
            hint="write parquet:///absolute/path or parquet:path",
        )
    return Path(unquote(parts.path))


def folder_name(namespace: str, name: str) -> str:
    """Return the folder of a table; characters that a path or a reader does not accept are percent-encoded."""
    return ".".join(quote(part, safe=" $#@").replace(".", "%2E") for part in (namespace, name))


class LakePaths:
    """The paths of the files and folders of one lake."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.manifest = root / MANIFEST
        self.load = root / LOAD
        self.lock = root / f".{LOCK}"

    def current(self, folder: str) -> Path:
        """Return the path of the link to a table's newest state."""
        return self.root / "current" / folder

    def version(self, folder: str, name: str) -> Path:
        """Return the folder with the files of one state of a table."""
        return self.root / "versions" / folder / name

    def history(self, folder: str, shape: int) -> Path:
        """Return the folder of a table's changes of one shape, which all have the same columns and types."""
        return self.root / "history" / folder / f"version={shape}"

    def request_file(self, what: str) -> Path:
        """Return the empty file whose existence is an operator's request, such as "pause"."""
        return self.root / f".asked-{what}"

    def relative_path(self, path: Path) -> str:
        """Return a path as the manifest names it, relative to the root."""
        return path.relative_to(self.root).as_posix()


def hidden_path(path: Path) -> Path:
    """Return the hidden path that a file has until it is committed."""
    return path.with_name(f".{path.name}.tmp")


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_text(path: Path, text: str) -> None:
    """Replace a file atomically."""
    new = hidden_path(path)
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync(path.parent)


def publish(paths: Iterable[Path]) -> None:
    """Rename committed files from their hidden to their final names; may be repeated."""
    folders = set()
    for path in paths:
        with suppress(FileNotFoundError):  # the file has its final name already
            hidden_path(path).rename(path)
            folders.add(path.parent)
    for folder in folders:
        sync(folder)


def point_link(link: Path, to: Path) -> None:
    """Make a symbolic link point to a folder; a change is atomic."""
    wanted = os.path.relpath(to, link.parent)
    if link.is_symlink() and os.readlink(link) == wanted:
        return
    link.parent.mkdir(parents=True, exist_ok=True)
    new = link.with_name(f".{link.name}.link")
    new.unlink(missing_ok=True)
    new.symlink_to(wanted)
    new.replace(link)
    sync(link.parent)


def remove_hidden(folder: Path) -> None:
    """Remove the hidden files that an interrupted writer has left in a folder."""
    for path in folder.rglob(".*.tmp") if folder.exists() else ():
        path.unlink()


def remove_versions(folder: Path, keep: set[str]) -> None:
    """Remove the folders of a table's states, except those to keep."""
    for path in folder.iterdir() if folder.exists() else ():
        if path.name not in keep:
            shutil.rmtree(path)


STATE_FIELDS = (pa.field(SEQUENCE, pa.int64()),)

#: How many rows and bytes wait in memory for a row group, and how many rows a file of a state has at most.
GROUP_ROWS = 65_536
GROUP_BYTES = 32 << 20
FILE_ROWS = 1_000_000


def change_schema(shape: ArrowShape) -> pa.Schema:
    """Return the columns of a file of changes: VENUS's own columns, then the table's."""
    return pa.schema([*CHANGE_FIELDS, *shape.fields])


def state_schema(shape: ArrowShape) -> pa.Schema:
    """Return the columns of a file of a table's state: the table's columns, then VENUS's own."""
    return pa.schema([*shape.fields, *STATE_FIELDS])


def refuse_own_names(schema: TableSchema) -> None:
    """Raise Refused if a column of the table has the name of one of VENUS's own columns."""
    own = {f.name for f in CHANGE_FIELDS} & {c.name for c in schema.columns}
    if own:
        raise Refused(
            f"{schema.qualified_name}: column {min(own)} has the name of a column of VENUS", hint="exclude the table"
        )


def changes_batch(
    section: TableChanges, version: TableSchema, shape: ArrowShape, *, offset: int, sequence: int, committed_at_us: int
) -> pa.RecordBatch | None:
    """Return a section as rows for a file of changes; None for the start of a resync. Raises ValueMisfit."""
    count = section.count
    moments = pa.repeat(pa.scalar(committed_at_us, CHANGE_FIELDS[4].type), count)
    if section.kind is not ChangeKind.CHANGES:
        before = deletion_floor(section, sequence)
        if before is None:
            return None
        own = [pa.array([offset]), pa.array([sequence]), pa.array([True]), pa.array([before]), moments]
        return pa.RecordBatch.from_arrays(own + [pa.nulls(1, t) for t in shape.types], schema=change_schema(shape))
    deleted = np.asarray(section.is_deleted, dtype=np.bool_)
    own = [
        pa.array(np.arange(offset, offset + count, dtype=np.int64)),
        pa.array(np.arange(sequence, sequence + count, dtype=np.int64)),
        pa.array(deleted),
        pa.nulls(count, pa.int64()),
        moments,
    ]
    values = shape.arrays(section.record_ids, section.rows, version)
    return pa.RecordBatch.from_arrays(own + values, schema=change_schema(shape))


class LakeFileWriter:
    """Writer of one Parquet file; after `close` the file is complete, durable and still hidden."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.rows = 0
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._writer = pq.ParquetWriter(hidden_path(path), schema, compression="zstd")

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows; they are written to the file when they make a row group."""
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        self.rows += batch.num_rows
        if self._waiting_rows >= GROUP_ROWS or self._waiting_bytes >= GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the rows that wait in memory."""
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting), row_group_size=GROUP_ROWS)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def close(self) -> None:
        """Finish the file, which stays hidden."""
        self.flush()
        self._writer.close()
        sync(hidden_path(self.path))

    def discard(self) -> None:
        """Stop writing and delete the unfinished file."""
        self._writer.close()
        hidden_path(self.path).unlink(missing_ok=True)
