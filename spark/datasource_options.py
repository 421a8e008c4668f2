"""The options of `format("venus")`, checked, and the columns of the table that they name.

Spark passes options as text, with names in any letter case; an unknown one is an error. As in the configuration, names
of options include units. Columns pass between Spark and Arrow in exactly the types that Spark has planned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from venus.codec import schema as schemas_codec
from venus.codec.arrow_rows import ArrowShape, parse_values
from venus.codec.packed import PackedBytes
from venus.errors import ConfigError, VenusError
from venus.model import Column, Kind, TableSchema, is_address
from venus.rpc.address import from_options
from venus.rpc.admin import AdminClient
from venus.rpc.snapshots import SnapshotClient
from venus.text.formatting import suggest_nearest
from venus.wire import broker_pb2, change_pb2

#: Options that Spark itself adds.
_FOREIGN = frozenset({"path", "header"})
_STREAM_ONLY = frozenset({"group", "max_rows", "max_bytes", "whole_cuts", "idle_s"})
_FULL_ONLY = frozenset({"low", "high"})
STARTING_MISSING = 'say .option("starting", "latest"), "earliest", "full" or an offset'


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSourceOptions:
    """Options of `format("venus")` in one job. Empty means not given."""

    #: The address of the broker, HOST:PORT; the addresses of a cluster, separated by commas.
    address: str = "127.0.0.1:7400"
    #: Instead of `address`: brokers of any set, which return the addresses of the nearest set for a site.
    directory: str = ""
    site: str = ""
    #: TLS: files at the driver and at every executor (docs/how-to/tls.md). No secret is an option: plans show options.
    ca: str = ""
    certificate: str = ""
    key: str = ""
    token_file: str = ""
    business: str = "main"
    #: NAMESPACE.TABLE as at the source, or TABLE if that is unambiguous.
    table: str = ""
    #: Columns, separated by commas; empty means all. `.schema("id bigint, note string")` chooses columns and types.
    columns: tuple[str, ...] = ()
    #: Columns to return as the canonical text of their values.
    text_columns: tuple[str, ...] = ()
    #: Full data: bounds of the first key column, low inclusive, high exclusive. For integers from 0 on, only the
    #: matching key ranges are read; otherwise everything is read and filtered. Text compares by its bytes, including
    #: blanks; NaN is above every number; a prefix of a UUID is enough.
    low: str = ""
    high: str = ""
    #: Number of partitions: the minimum, if there is enough data; for a stream, the maximum.
    splits: int = 8
    #: Full data: how long the snapshot is kept without a reader; at most 3600, and the broker's `snapshot_lease_s`. The
    #: broker keeps four snapshots at a time; jobs that begin within half a minute share one.
    lease_s: int = 300
    #: How long to wait for an unreachable broker before a task fails.
    patience_s: int = 60
    #: Streams (required): where a query without a checkpoint starts: earliest, latest, full (the full data first) or an
    #: offset. A `group` that the broker knows continues from its position.
    starting: str = ""
    #: Streams: the consumer group for which the broker keeps increments until Spark has committed them. Without a
    #: group, a query that was stopped for too long fails with `OffsetTrimmed`. `venus forget` ends a group.
    group: str = ""
    #: Streams: limits of one micro-batch; 0 means no limit. A cut above the limits is one micro-batch.
    max_rows: int = 200_000
    max_bytes: int = 64 << 20
    #: Streams: whether micro-batches end at the ends of the source's cuts.
    whole_cuts: bool = True
    #: Streams: after this time, in which only other tables have changed, an empty micro-batch advances the offset.
    idle_s: int = 60

    @classmethod
    def of(cls, given: Mapping[str, str]) -> DataSourceOptions:
        """Check and convert options. Raises ConfigError."""
        known = {f.name: f for f in fields(cls)}
        values: dict[str, object] = {}
        for key, text in given.items():
            name = key.lower()
            if name in _FOREIGN:
                continue
            if name not in known:
                meant = suggest_nearest(name, known)
                raise ConfigError(f"format venus has no option {key!r}{meant}", hint=f"it has: {', '.join(known)}")
            # a key may begin with a blank, or end with one
            given_text = str(text) if name in _FULL_ONLY else str(text).strip()
            values[name] = _convert(name, given_text, known[name].default)
        for name in ("address", "directory"):
            if isinstance(address := values.get(name), str):
                values[name] = re.sub(r"\s*([,;])\s*", r"\1", address)
        made = cls(**values)  # type: ignore[arg-type]
        made._check()
        if not made.starting and (only := sorted(_STREAM_ONLY & values.keys())):
            raise ConfigError(f"option {only[0]} is for streams, and option starting is missing", hint=STARTING_MISSING)
        if made.starting and (only := sorted(_FULL_ONLY & values.keys())):
            raise ConfigError(
                f"option {only[0]} is for full data, and option starting makes this a stream",
                hint="choose among the changes with filter()",
            )
        return replace(made, address=from_options({f.name: getattr(made, f.name) for f in fields(made)}))

    def _check(self) -> None:
        """Raise ConfigError for an option with an impossible value."""
        if self.directory and not all(map(is_address, self.directory.split(","))):
            raise ConfigError(
                f"option directory: {self.directory!r} should be HOST:PORT, or several with commas between"
            )
        if not all(map(is_address, re.split("[,;]", self.address))):
            raise ConfigError(f"option address: {self.address!r} should be HOST:PORT, or several with commas between")
        if not self.table:
            raise ConfigError("option table is missing", hint='say .option("table", "NAMESPACE.TABLE")')
        if self.starting and self.starting not in ("earliest", "latest", "full") and not self.starting.isdecimal():
            raise ConfigError(f"option starting: {self.starting!r} is none of earliest, latest, full or an offset")
        if self.splits < 1 or self.lease_s < 1:
            raise ConfigError("options splits and lease_s must be 1 or more")


def _convert(name: str, text: str, default: object) -> object:
    """Convert the text of an option to the type of its default. Raises ConfigError."""
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"option {name}: {text!r} should be true or false")
        return text.lower() == "true"
    if isinstance(default, int):
        if not text.isdecimal():
            raise ConfigError(f"option {name}: {text!r} should be an integer")
        return int(text)
    if isinstance(default, tuple):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text


@contextmanager
def raise_in_spark() -> Iterator[None]:
    """Append an error's hint to its text, because Spark passes only the text from a worker to the user."""
    try:
        yield
    except VenusError as error:
        if error.hint and error.hint not in str(error):
            error.args = (f"{error}; {error.hint}",)
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerTable:
    """Table as the broker knows it; picklable, for executors."""

    table_id: int
    newest: TableSchema
    #: Every version that rows may still have, in wire form.
    versions: dict[int, bytes]

    def schemas(self) -> dict[int, TableSchema]:
        """Return the versions by number."""
        return {v: schemas_codec.from_wire(change_pb2.TableSchema.FromString(w)) for v, w in self.versions.items()}


def read_business_status(options: DataSourceOptions, *named: str) -> broker_pb2.BusinessStatus:
    """Return the business's status, only of the `named` tables if given. Raises ConfigError for an unknown business."""
    with AdminClient(options.address) as admin:
        found = admin.status(named=named).businesses
    for entry in found:
        if entry.business == options.business:
            return entry
    known = ", ".join(sorted(entry.business for entry in found)) or "none yet"
    raise ConfigError(f"the broker at {options.address} has no business {options.business!r}", hint=f"it has: {known}")


def find_table(options: DataSourceOptions) -> BrokerTable:
    """Return the table that the option `table` names. Raises ConfigError, which lists the tables."""
    wanted = options.table
    found = [t for t in read_business_status(options, wanted).tables if wanted in (f"{t.namespace}.{t.name}", t.name)]
    if len(found) != 1:
        known = ", ".join(sorted(f"{t.namespace}.{t.name}" for t in read_business_status(options).tables)[:12])
        what = "no table is" if not found else "more than one table is"
        raise ConfigError(f"{what} called {wanted!r} in business {options.business}", hint=f"there are: {known}")
    with SnapshotClient(options.address) as snapshots:
        opened = snapshots.open(options.business, table_ids=[found[0].table_id], holder="Spark: the schema")
        snapshots.close(opened.snapshot_id)
    return table_of_snapshot(opened, found[0].table_id)


def table_of_snapshot(snapshot: broker_pb2.Snapshot, table_id: int) -> BrokerTable:
    """Return a table from the schemas of a snapshot."""
    wires = {wire.version: wire.SerializeToString() for wire in snapshot.schemas if wire.table_id == table_id}
    if not wires:
        raise ConfigError(f"the broker has no description of table {table_id}")
    newest = schemas_codec.from_wire(change_pb2.TableSchema.FromString(wires[max(wires)]))
    return BrokerTable(table_id=table_id, newest=newest, versions=wires)


def spark_schema(
    schema: TableSchema, options: DataSourceOptions, own: tuple[pa.Field, ...], default_own: int
) -> StructType:
    """Return VENUS's own columns (the first `default_own` of `own`, and others that are named), then the table's."""
    named = [f for f in own if f.name in options.columns]
    names = [c for c in options.columns if c not in {f.name for f in own}]
    shape = ArrowShape.of(schema, names, frozenset(options.text_columns))
    _refuse_duplicates(schema, own[:default_own], names if options.columns else [c.name for c in shape.columns])
    chosen = list(own[:default_own]) + [f for f in named if f not in own[:default_own]]
    fields = shape.fields if names or not options.columns else []  # only VENUS's own columns were named
    return from_arrow_schema(pa.schema([*chosen, *fields]))


def _refuse_duplicates(schema: TableSchema, always: tuple[pa.Field, ...], names: list[str]) -> None:
    """Raise ConfigError if columns of the table have the names of VENUS's own: one of the two would be lost."""
    if taken := [field.name for field in always if field.name in names]:
        others = ",".join(name for name in names if name not in taken)
        raise ConfigError(
            f"{schema.qualified_name} has a column {taken[0]!r}, and so has every stream of VENUS",
            hint=f"choose columns without it: .option('columns', '{others}')",
        )


def _refuse_unreadable(schema: TableSchema, column: Column, wanted: pa.DataType) -> None:
    """Raise ConfigError for a type that no value of the column converts to; single values are checked later."""
    try:
        parse_values(pa.array([], pa.large_binary()), column, wanted)
    except pa.ArrowNotImplementedError:
        as_what = "BINARY" if column.type.kind is Kind.BYTES else "STRING"
        raise ConfigError(
            f"{schema.qualified_name}: column {column.name} cannot be read as {wanted}",
            hint=f"say {as_what} in the schema",
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedColumns:
    """The columns that Spark expects, in its order and types; created again in every worker."""

    schema: pa.Schema
    shape: ArrowShape

    @classmethod
    def of(cls, planned: StructType, table: TableSchema, own: tuple[pa.Field, ...]) -> PlannedColumns:
        """Match Spark's columns with the table's. Raises ConfigError for an unknown name."""
        arrow = to_arrow_schema(planned, timezone="UTC")
        own_types = {f.name: f.type for f in own}
        by_name = {c.name: c for c in table.columns}
        columns, types = [], []
        for field in arrow:
            if field.name in own_types:
                if field.type != own_types[field.name]:
                    raise ConfigError(f"column {field.name} is {own_types[field.name]}, not {field.type}")
                continue
            if field.name not in by_name:
                raise ConfigError(
                    f"{table.qualified_name} has no column {field.name!r}", hint=f"it has: {', '.join(by_name)}"
                )
            _refuse_unreadable(table, by_name[field.name], field.type)
            columns.append(by_name[field.name])
            types.append(field.type)
        return cls(schema=arrow, shape=ArrowShape(schema=table, columns=tuple(columns), types=tuple(types)))

    def batch(
        self, record_ids: PackedBytes, rows: PackedBytes, version: TableSchema, own: dict[str, pa.Array]
    ) -> pa.RecordBatch:
        """Return rows with VENUS's own columns beside them. Raises ValueMisfit."""
        values = dict(
            zip((c.name for c in self.shape.columns), self.shape.arrays(record_ids, rows, version), strict=True)
        )
        return self._arrange(own | values)

    def marker(self, own: dict[str, pa.Array]) -> pa.RecordBatch:
        """Return a marker, which concerns the whole table, as one row: the table's columns are NULL."""
        nothing = {c.name: pa.nulls(1, t) for c, t in zip(self.shape.columns, self.shape.types, strict=True)}
        return self._arrange(own | nothing)

    def _arrange(self, columns: dict[str, pa.Array]) -> pa.RecordBatch:
        """Return a batch with the columns in Spark's order. Raises ConfigError for NULL in a NOT NULL column."""
        for field in self.schema:
            if not field.nullable and columns[field.name].null_count:
                raise ConfigError(
                    f"column {field.name} has NULL, and the schema that was given says NOT NULL",
                    hint="leave NOT NULL out of it: deleted rows and markers of a stream have NULL in most columns",
                )
        return pa.RecordBatch.from_arrays([columns[f.name] for f in self.schema], schema=self.schema)
