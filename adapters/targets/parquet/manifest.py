"""A lake as a target of the configuration, and its manifest: its offset, its tables and the files of their states.

`[targets.NAME] url = "parquet:///folder"`. A lake has a broker and a consumer group like any other target. Writing a
lake needs neither a database nor Spark. A lake has a lock, a recovery, commits and operators' requests.

Everything that must change together is in the manifest, one small file. The files that the manifest lists become
durable before the manifest itself. Renaming the manifest into place is the commit. A reader, or the next process after
kill -9, therefore sees whole cuts of the source and nothing else.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from venus.adapters.targets.parquet.files import (
    LakePaths,
    point_link,
    publish,
    remove_hidden,
    remove_versions,
    replace_text,
    root_folder,
)
from venus.adapters.targets.registry import ConfiguredTarget
from venus.codec import schema as schemas_codec
from venus.codec.arrow_rows import ArrowShape
from venus.config import Settings
from venus.errors import ConfigError, Corruption, Refused, TargetError
from venus.masking.projection import columns_of
from venus.model import TableSchema
from venus.network import row_filters
from venus.network.row_filters import RowsIdentity
from venus.rpc.conditions import ACTIVE, RESYNCING
from venus.wire import change_pb2

FORMAT = "venus-lake/1"
_WAY_OUT = "run the VENUS that wrote it, or load this target into an empty folder"


@dataclass(slots=True, kw_only=True)
class LakeState:
    """The newest state of a table: a folder of files, and the offset after the last change in them."""

    folder: str = ""
    offset: int = 0
    rows: int = 0
    shape: int = 1


@dataclass(slots=True, kw_only=True)
class ChangeFile:
    """A file of changes that the newest state does not contain yet."""

    path: str
    shape: int
    rows: int
    end: int  # the offset after its last change


@dataclass(slots=True, kw_only=True)
class LakeTable:
    """A table of a lake. A shape is a schema version plus the columns stored as text; shapes are numbered from 1."""

    table_id: int
    name: str  # at the source
    folder: str
    schema_version: int
    text_columns: list[str] = field(default_factory=list)
    shapes: list[tuple[int, list[str]]] = field(default_factory=list)
    base: LakeState = field(default_factory=LakeState)
    previous: str = ""  # the previous state: readers may still have it open
    changes: list[ChangeFile] = field(default_factory=list)
    rows_applied: int = 0
    #: Changes that wait because the table is halted; its next state, from the full data, contains them.
    rows_held: int = 0
    note: str = ""

    def shape_number(self, version: int) -> int:
        """Return the number of the shape that a schema version has now; add the shape if it is new."""
        wanted = (version, self.text_columns)
        if wanted not in self.shapes:
            self.shapes.append((version, list(self.text_columns)))
        return self.shapes.index(wanted) + 1

    @property
    def waiting(self) -> int:
        """How many changes wait for the next state of the table."""
        return sum(file.rows for file in self.changes)


@dataclass(slots=True, kw_only=True)
class LakeManifest:
    """The content of manifest.json, one committed state of a lake. Times are Unix microseconds, 0 = never."""

    group: str
    offset: int
    epoch: int
    sequence: int
    counted_from: int
    rows_other: int = 0
    paused: bool = False
    captured_at_us: int = 0
    committed_at_us: int = 0
    applied_at_us: int = 0
    heartbeat_us: int = 0
    tables: dict[int, LakeTable] = field(default_factory=dict)
    schemas: dict[tuple[int, int], TableSchema] = field(default_factory=dict)
    #: Committed files that may not have their final names yet.
    publish: list[str] = field(default_factory=list)
    #: Rows identity of the broker set that was read up to the offset; None = unknown.
    rows: RowsIdentity | None = None

    def schema(self, table_id: int, version: int) -> TableSchema:
        """Return a table version that this lake has received."""
        try:
            return self.schemas[table_id, version]
        except KeyError:
            raise Corruption(f"table {table_id} version {version} was never described to this lake") from None

    def newest_versions(self) -> list[TableSchema]:
        """Return the current version of each table."""
        return [self.schema(table.table_id, table.schema_version) for table in self.tables.values()]

    def shape(self, table: LakeTable, number: int) -> ArrowShape:
        """Return the columns and types of a shape."""
        version, text_columns = table.shapes[number - 1]
        return shape_of(self.schema(table.table_id, version), text_columns)

    def is_halted(self, table: LakeTable) -> bool:
        """Return whether a table's changes are held because the rules for columns do not fit it (see its note)."""
        return columns_of(self.schema(table.table_id, table.schema_version)).misfit != ""

    def find_version(self, table_id: int) -> int | None:
        """Return the current version of a table; None if the table is halted."""
        table = self.tables[table_id]
        return None if self.is_halted(table) else table.schema_version

    @property
    def unaccounted_changes(self) -> int:
        """How many changes below the offset are in none of the lake's counters: normally 0."""
        counted = sum(t.rows_applied + t.rows_held for t in self.tables.values())
        return self.offset - self.counted_from - self.rows_other - counted

    def save(self, path: Path) -> None:
        """Write the manifest, which commits this state."""
        tree = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("tables", "schemas", "rows")}
        if self.rows is not None:
            tree["rows"] = row_filters.encode_identity(self.rows)
        tree |= {
            "format": FORMAT,
            "tables": [_table_entry(t) for t in self.tables.values()],
            "schemas": schemas_to_text(self.schemas),
        }
        replace_text(path, json.dumps(tree, indent=1))

    @classmethod
    def read(cls, path: Path) -> LakeManifest | None:
        """Read the manifest; None if there is no file. Raises Corruption."""
        try:
            tree = json.loads(path.read_text(encoding="utf-8"))
            _check_format(path, str(tree.pop("format")), tree.keys() - {f.name for f in fields(cls)})
            tables = [_parse_table(entry) for entry in tree.pop("tables")]
            schemas = schemas_from_text(tree.pop("schemas"))
            rows = row_filters.decode_identity(tree.pop("rows", None))
            return cls(**tree, tables={t.table_id: t for t in tables}, schemas=schemas, rows=rows)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise Corruption(f"{path} cannot be read: {error}", hint=_WAY_OUT) from error


def _check_format(path: Path, found: str, unknown: Set[str]) -> None:
    """Raise Corruption for the manifest of a newer version: this version would drop its unknown parts."""
    what = f"has format {found}" if found != FORMAT else f"has {', '.join(sorted(unknown))}" if unknown else ""
    if what:
        raise Corruption(f"{path} {what}, which this version does not know", hint=_WAY_OUT)


def row_counts(manifest: LakeManifest) -> dict[int, int]:
    """Return how many rows each table had when its state was last written, by table number."""
    return {t.table_id: t.base.rows for t in manifest.tables.values()}


def table_state(manifest: LakeManifest, table: LakeTable, resyncing: Set[int]) -> str:
    """Return the state of a table, for example HALTED, as `venus status` and the broker show it."""
    if manifest.is_halted(table):
        return "HALTED"
    return RESYNCING if table.table_id in resyncing else ACTIVE


def shape_of(schema: TableSchema, text_columns: list[str]) -> ArrowShape:
    """Return columns and types of a schema version; `text_columns` may name columns that it does not have yet."""
    return ArrowShape.of(schema, text_columns=frozenset(text_columns) & {c.name for c in schema.columns})


def schemas_to_text(schemas: dict[tuple[int, int], TableSchema]) -> list[str]:
    """Return table versions as texts that JSON can hold."""
    return [base64.b64encode(schemas_codec.to_wire(s).SerializeToString()).decode() for s in schemas.values()]


def schemas_from_text(texts: list[str]) -> dict[tuple[int, int], TableSchema]:
    """Return the table versions that `schemas_to_text` has encoded, by table number and version."""
    found = [schemas_codec.from_wire(change_pb2.TableSchema.FromString(base64.b64decode(text))) for text in texts]
    return {(s.table_id, s.version): s for s in found}


def _table_entry(table: LakeTable) -> dict[str, Any]:
    """Return a table as JSON for the manifest; older versions of VENUS can read it unless changes are held."""
    return {name: value for name, value in asdict(table).items() if name != "rows_held" or value}


def _parse_table(entry: dict[str, Any]) -> LakeTable:
    """Return the table that `_table_entry` has encoded."""
    shapes = [(version, list(text_columns)) for version, text_columns in entry.pop("shapes")]
    base, changes = LakeState(**entry.pop("base")), [ChangeFile(**file) for file in entry.pop("changes")]
    return LakeTable(**entry, shapes=shapes, base=base, changes=changes)


#: Permission bits of all users other than the owner.
_OTHERS = 0o077


class ParquetFolder(ConfiguredTarget):
    """A folder of Parquet files that is target `name` of the configuration."""

    def __init__(self, settings: Settings, name: str) -> None:
        super().__init__(settings, name)
        self.layout = LakePaths(root_folder(self.url, f"targets.{name}.url").absolute())

    @property
    def description(self) -> str:
        """The path of the folder, for messages."""
        return str(self.layout.root)

    @contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Hold the lock of the only writer in a `with` block. Raises Refused if another process holds it.

        New files get the permissions of the folder: only the owner can read them if VENUS created the folder.
        """
        root = self.layout.root
        try:
            self.check_folder()
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            denied = ~root.stat().st_mode & _OTHERS
            descriptor = os.open(self.layout.lock, os.O_RDWR | os.O_CREAT, 0o666 & ~denied)
        except OSError as error:
            raise TargetError(f"target {self.name}: {root}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise self.locked_error from None
        before = os.umask(denied)  # of the whole process, because PyArrow creates the files
        try:
            yield
        finally:
            os.umask(before)
            os.close(descriptor)

    def check_folder(self) -> None:
        """Raise an error if the folder contains files that VENUS did not write, or is not writable."""
        layout = self.layout
        there = next(path for path in (layout.root, *layout.root.parents) if path.exists())
        if not there.is_dir():
            raise ConfigError(f"targets.{self.name}.url: {there} is a file", hint="name a folder")
        if not os.access(there, os.W_OK | os.X_OK):
            raise TargetError(f"target {self.name}: {there} cannot be written", hint="let VENUS's user write there")
        ours = (layout.manifest, layout.load, layout.lock)
        if layout.root.exists() and not any(p.exists() for p in ours) and any(layout.root.iterdir()):
            raise Refused(f"{layout.root} contains files that VENUS did not write", hint="name an empty folder")

    def read_manifest(self) -> LakeManifest | None:
        """Return the manifest of the last commit; None if the lake was never loaded."""
        return LakeManifest.read(self.layout.manifest)

    def recover(self) -> LakeManifest | None:
        """Complete the last commit, remove uncommitted files, and return the manifest; None without any commit."""
        found = self.read_manifest()
        if found is None:
            return None
        self.publish_committed(found)
        self.finish_load(found)
        remove_hidden(self.layout.root / "history")
        for table in found.tables.values():
            if not self.layout.load.exists():  # an interrupted load resumes with the states that it has finished
                self.remove_old_states(table)
        return found

    def finish_load(self, found: LakeManifest | None = None) -> None:
        """Remove the states that a committed load has replaced; may be repeated."""
        try:
            plan = json.loads(self.layout.load.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return
        found = found or self.read_manifest()
        states = plan.get("states")
        if found is None or not states or not all(t.base.folder.startswith(states) for t in found.tables.values()):
            return
        layout, history = self.layout, self.layout.root / "history"
        if plan["history"] and history.exists():
            history.rename(layout.root / plan["history"])
        folders = {table.folder for table in found.tables.values()}
        for path in (layout.root / "versions").iterdir() if (layout.root / "versions").exists() else ():
            if path.name not in folders:
                layout.current(path.name).unlink(missing_ok=True)
                shutil.rmtree(path)
        for table in found.tables.values():
            self.remove_old_states(table)
        layout.load.unlink()

    def remove_old_states(self, table: LakeTable) -> None:
        """Remove states of a table that were never committed or are no longer in use."""
        remove_versions(self.layout.root / "versions" / table.folder, {table.base.folder, table.previous})

    def publish_committed(self, manifest: LakeManifest) -> None:
        """Rename the files and set the links that a committed manifest lists; may be repeated."""
        root = self.layout.root
        publish(root / path for path in manifest.publish)
        for table in manifest.tables.values():
            if table.base.folder:
                point_link(self.layout.current(table.folder), self.layout.version(table.folder, table.base.folder))

    def commit(self, manifest: LakeManifest, publish: list[Path]) -> None:
        """Commit a manifest whose files are durable, then give the files their final names and set the links."""
        manifest.publish = [self.layout.relative_path(path) for path in publish]
        manifest.save(self.layout.manifest)
        self.publish_committed(manifest)

    # -- operators' requests: one file each, because only the process that follows writes the manifest -----------------

    @property
    def is_paused(self) -> bool:
        """Whether an operator has paused the target."""
        return self.layout.request_file("pause").exists()

    def set_paused(self, *, paused: bool) -> None:
        """Pause or resume the target by creating or removing a file."""
        asked = self.layout.request_file("pause")
        if paused:
            asked.touch()
        else:
            asked.unlink(missing_ok=True)

    def request_resync(self, table_id: int) -> None:
        """Request that the apply loop read a table's state again from the broker."""
        self.layout.request_file(f"resync-{table_id}").touch()

    def requested_resyncs(self) -> list[int]:
        """Return the numbers of the tables for which a resync is requested."""
        return sorted(int(path.name.rpartition("-")[2]) for path in self.layout.root.glob(".asked-resync-*"))

    def clear_resync_request(self, table_id: int) -> None:
        """Remove the request for a resync of a table."""
        self.layout.request_file(f"resync-{table_id}").unlink(missing_ok=True)
