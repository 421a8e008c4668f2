"""The manifest of a lake: its offset, its tables and the files of their states. Renaming it into place is the commit.

Everything that must change together is in this one small file, and the files that it names are durable before it. A
reader, or the next process after kill -9, therefore sees whole cuts of the source and nothing else.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Set
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from venus.adapters.targets.parquet.files import replace_text
from venus.codec import schema as schemas_codec
from venus.codec.arrow_rows import ArrowShape
from venus.errors import Corruption
from venus.model import TableSchema
from venus.network import rows_identity
from venus.network.rows_identity import RowsIdentity
from venus.wire import change_pb2

FORMAT = "venus-lake/1"
_WAY_OUT = "run the VENUS that wrote it, or load this target into an empty folder"


@dataclass(slots=True, kw_only=True)
class LakeState:
    """The newest state of a table: a folder of files, and the offset behind the last change in them."""

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
    end: int  # the offset behind its last change


@dataclass(slots=True, kw_only=True)
class LakeTable:
    """A table. A shape is a schema version with the columns that are stored as text; shapes are numbered from 1."""

    table_id: int
    name: str  # at the source
    folder: str
    schema_version: int
    text_columns: list[str] = field(default_factory=list)
    shapes: list[tuple[int, list[str]]] = field(default_factory=list)
    base: LakeState = field(default_factory=LakeState)
    previous: str = ""  # the state before: readers may still have it open
    changes: list[ChangeFile] = field(default_factory=list)
    rows_applied: int = 0
    note: str = ""

    def shape_number(self, version: int) -> int:
        """Return the number of a schema version's shape; add the shape if it is new."""
        wanted = (version, self.text_columns)
        if wanted not in self.shapes:
            self.shapes.append((version, list(self.text_columns)))
        return self.shapes.index(wanted) + 1

    @property
    def waiting(self) -> int:
        """How many changes the newest state does not contain."""
        return sum(file.rows for file in self.changes)


@dataclass(slots=True, kw_only=True)
class LakeManifest:
    """One committed state of a lake. Times are Unix microseconds, 0 = never."""

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

    def shape(self, table: LakeTable, number: int) -> ArrowShape:
        """Return the columns and types of a shape."""
        version, text_columns = table.shapes[number - 1]
        return shape_of(self.schema(table.table_id, version), text_columns)

    @property
    def unaccounted(self) -> int:
        """The number of changes below the offset that are unaccounted for."""
        return self.offset - self.counted_from - self.rows_other - sum(t.rows_applied for t in self.tables.values())

    def save(self, path: Path) -> None:
        """Write the manifest, which commits this state."""
        tree = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("tables", "schemas", "rows")}
        if self.rows is not None:
            tree["rows"] = rows_identity.encode_identity(self.rows)
        tree |= {
            "format": FORMAT,
            "tables": [asdict(t) for t in self.tables.values()],
            "schemas": schemas_to_text(self.schemas),
        }
        replace_text(path, json.dumps(tree, indent=1))

    @classmethod
    def read(cls, path: Path) -> LakeManifest | None:
        """Read the committed state; None if there is none. Raises Corruption."""
        try:
            tree = json.loads(path.read_text(encoding="utf-8"))
            _check_format(path, str(tree.pop("format")), tree.keys() - {f.name for f in fields(cls)})
            tables = [_parse_table(entry) for entry in tree.pop("tables")]
            schemas = schemas_from_text(tree.pop("schemas"))
            rows = rows_identity.decode_identity(tree.pop("rows", None))
            return cls(**tree, tables={t.table_id: t for t in tables}, schemas=schemas, rows=rows)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise Corruption(f"{path} cannot be read: {error}", hint=_WAY_OUT) from error


def _check_format(path: Path, found: str, unknown: Set[str]) -> None:
    """Refuse a manifest of a newer version: what it does not know, this version would drop with its next commit."""
    what = f"has format {found}" if found != FORMAT else f"has {', '.join(sorted(unknown))}" if unknown else ""
    if what:
        raise Corruption(f"{path} {what}, which this version does not know", hint=_WAY_OUT)


def row_counts(manifest: LakeManifest) -> dict[int, int]:
    """Return how many rows each table had when its state was last written, by number."""
    return {t.table_id: t.base.rows for t in manifest.tables.values()}


def shape_of(schema: TableSchema, text_columns: list[str]) -> ArrowShape:
    """Return the shape of a schema version; a text column may be newer than this version."""
    return ArrowShape.of(schema, text_columns=frozenset(text_columns) & {c.name for c in schema.columns})


def schemas_to_text(schemas: dict[tuple[int, int], TableSchema]) -> list[str]:
    """Return table versions as JSON can hold them."""
    return [base64.b64encode(schemas_codec.to_wire(s).SerializeToString()).decode() for s in schemas.values()]


def schemas_from_text(texts: list[str]) -> dict[tuple[int, int], TableSchema]:
    """Return the table versions that `to_text` has encoded."""
    found = [schemas_codec.from_wire(change_pb2.TableSchema.FromString(base64.b64decode(text))) for text in texts]
    return {(s.table_id, s.version): s for s in found}


def _parse_table(entry: dict[str, Any]) -> LakeTable:
    shapes = [(version, list(text_columns)) for version, text_columns in entry.pop("shapes")]
    base, changes = LakeState(**entry.pop("base")), [ChangeFile(**file) for file in entry.pop("changes")]
    return LakeTable(**entry, shapes=shapes, base=base, changes=changes)
