"""Columns between Spark and Arrow, in exactly the types that Spark has planned with."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from venus.codec.arrow_rows import ArrowShape, parse_values
from venus.codec.packed import PackedBytes
from venus.errors import ConfigError
from venus.model import Column, Kind, TableSchema
from venus.spark.datasource_options import DataSourceOptions


def spark_schema(
    schema: TableSchema, options: DataSourceOptions, own: tuple[pa.Field, ...], default_own: int
) -> StructType:
    """Return the columns of a table with VENUS's own: of `own` the first `default_own`, others if they are named."""
    named = [f for f in own if f.name in options.columns]
    names = [c for c in options.columns if c not in {f.name for f in own}]
    shape = ArrowShape.of(schema, names, frozenset(options.text_columns))
    _refuse_duplicates(schema, own[:default_own], names if options.columns else [c.name for c in shape.columns])
    chosen = list(own[:default_own]) + [f for f in named if f not in own[:default_own]]
    fields = shape.fields if names or not options.columns else []  # only VENUS's own were named
    return from_arrow_schema(pa.schema([*chosen, *fields]))


def _refuse_duplicates(schema: TableSchema, always: tuple[pa.Field, ...], names: list[str]) -> None:
    """Raise ConfigError if columns of the table have the names of VENUS's own: one of the two would be lost."""
    if taken := [field.name for field in always if field.name in names]:
        others = ",".join(name for name in names if name not in taken)
        raise ConfigError(
            f"{schema.qualified} has a column {taken[0]!r}, and so has every stream of VENUS",
            hint=f"choose columns without it: .option('columns', '{others}')",
        )


def _refuse_unreadable(schema: TableSchema, column: Column, wanted: pa.DataType) -> None:
    """Raise ConfigError for a type that no value of the column converts to; single values are checked later."""
    try:
        parse_values(pa.array([], pa.large_binary()), column, wanted)
    except pa.ArrowNotImplementedError:
        as_what = "BINARY" if column.type.kind is Kind.BYTES else "STRING"
        raise ConfigError(
            f"{schema.qualified}: column {column.name} cannot be read as {wanted}", hint=f"say {as_what} in the schema"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedColumns:
    """The columns that Spark expects, in its order and types; created again in every worker."""

    schema: pa.Schema
    shape: ArrowShape

    @classmethod
    def of(cls, planned: StructType, table: TableSchema, own: tuple[pa.Field, ...]) -> PlannedColumns:
        """Match Spark's columns with the table's. Raises ConfigError for a name that neither has."""
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
                    f"{table.qualified} has no column {field.name!r}", hint=f"it has: {', '.join(by_name)}"
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
        """Return a row that is about the whole table."""
        nothing = {c.name: pa.nulls(1, t) for c, t in zip(self.shape.columns, self.shape.types, strict=True)}
        return self._arrange(own | nothing)

    def _arrange(self, columns: dict[str, pa.Array]) -> pa.RecordBatch:
        for field in self.schema:
            if not field.nullable and columns[field.name].null_count:
                raise ConfigError(
                    f"column {field.name} has NULL, and the schema that was given says NOT NULL",
                    hint="leave NOT NULL out of it: deleted rows and markers of a stream have NULL in most columns",
                )
        return pa.RecordBatch.from_arrays([columns[f.name] for f in self.schema], schema=self.schema)
