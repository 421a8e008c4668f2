"""The statements that change one table of an Oracle target, and the functions that run them (VENUS 3.4).

A statement runs for many rows at once, with array binds (types.py). Rows are deleted by their keys and then inserted,
without a search for existing rows. An empty LOB cannot be bound, so rows with empty LOBs in the same columns share a
statement whose text contains the empty LOBs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

from venus.adapters.dialects.statements import Statements
from venus.adapters.targets.oracle.application import OracleFollowerPlace, require_exact
from venus.adapters.targets.oracle.ddl import OraclePlacedTable, side_definitions
from venus.adapters.targets.oracle.session import OracleTargetSession
from venus.adapters.targets.oracle.types import ColumnBinding, is_lob
from venus.adapters.targets.relational.own_tables import OwnSession
from venus.adapters.targets.relational.place import OWN, UnfitValue, name_columns
from venus.adapters.targets.relational.row_statements import TableStatements
from venus.adapters.targets.relational.session import DdlNeeded, Refusal
from venus.codec.columns import Value, keys_to_columns, to_columns
from venus.codec.packed import PackedBytes
from venus.codec.row_bytes import Layout
from venus.model import Column, LogicalType, TableSchema

#: Microseconds since 1970 by the server's clock, from its Julian day, the second of the day, and the fraction.
_CLOCK = "SYS_EXTRACT_UTC(SYSTIMESTAMP)"
NOW_US = (
    f"((TO_NUMBER(TO_CHAR({_CLOCK}, 'J')) - 2440588) * 86400 + TO_NUMBER(TO_CHAR({_CLOCK}, 'SSSSS'))) * 1000000"
    f" + TO_NUMBER(TO_CHAR({_CLOCK}, 'FF6'))"
)


class _OracleStatements(Statements):
    """The .sql files of this package; in their statements `now` stands for the server's time in microseconds."""

    def __call__(self, file: str, block: str, /, **parts: str) -> str:
        return super().__call__(file, block, **({"now": NOW_US} | parts))


statement = _OracleStatements(__name__.rpartition(".")[0])

#: The most rows of a statement, and the most bytes of its binds: each column needs its longest value's size for every
#: row.
ROWS_MAX = 5_000
BIND_BYTES_MAX = 16 << 20
_EMPTY = {"CLOB": "EMPTY_CLOB()", "NCLOB": "EMPTY_CLOB()", "BLOB": "EMPTY_BLOB()"}


class OracleTableStatements(TableStatements):
    """Statements that write to one target table; `columns` are those of `schema`, which may be an older version."""

    placed: OraclePlacedTable

    def __init__(self, placed: OraclePlacedTable, group: str) -> None:
        super().__init__(placed, group, "")
        #: Whether to refuse rows that a table of the application would store with a different value.
        self.is_exact = True
        quote, key = placed.quote, placed.schema.key
        definitions = side_definitions(placed, (c.name for c in placed.schema.wire_columns))
        # temporary tables are permanent objects of the schema: each target and each set of column rules has its own
        suffix = f"{placed.schema.table_id}_{crc32(f'{group} {placed.key} {definitions}'.encode()):08x}"
        self.stage, self.key_stage = quote(f"{OWN}s_{suffix}"), quote(f"{OWN}d_{suffix}")
        self.names |= {
            "stage": self.stage,
            "touched_name": f"{OWN}touched_{self.suffix}",
            "definitions": definitions,
            "key_definitions": side_definitions(placed, key),
            "keys_equal": self._keys_equal(),
        }
        if self.names["same"] == "TRUE":
            self.names["same"] = "1 = 1"

    def _keys_equal(self) -> str:
        """Return the condition that a row has the key in the first bind variables."""
        placed = self.placed
        columns = placed.schema.wire_columns[: len(placed.schema.key)]
        return " AND ".join(
            f"{placed.column(c.name)} = {_bind_sql(placed.binding_of(c.name, c.type), n)}"
            for n, c in enumerate(columns, 1)
        )

    def same(self, column: Column) -> str:
        left, right = (f"{row}.{self.placed.column(column.name)}" for row in "ts")
        if is_lob(self.placed.types[column.name]):
            equal = f"WHEN {left} IS NULL AND {right} IS NULL OR DBMS_LOB.COMPARE({left}, {right}) = 0 THEN 1"
            return f"CASE {equal} ELSE 0 END = 1"
        return f"DECODE({left}, {right}, 1, 0) = 1"

    def text(self, block: str, **more: str) -> str:
        return statement("apply", block, **(self.names | more))

    def make_stage(self, session: OwnSession, stage: str, **names: str) -> None:
        """Check that a staging table exists. Raises DdlNeeded, with the function that creates the table."""
        found = session.row(self.text("find_stage", name=stage.strip('"')))
        if found is None:
            definitions = "key_definitions" if stage == self.key_stage else "definitions"
            text = self.text("create_stage", stage=stage, definitions=self.names[definitions])
            raise DdlNeeded(f"a temporary table for {self.placed.qualified_name}", lambda: session.run(text))


def row_sql(placed: OraclePlacedTable, group: str) -> OracleTableStatements:
    """Return the statements that write to the target table of this version."""
    return OracleTableStatements(placed, group)


def _bind_sql(bound: ColumnBinding, number: int) -> str:
    """Return the SQL expression of a value that is bound as number `number`."""
    return bound.sql.replace("{b}", f":{number}")


# -- values ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundColumn:
    """The values of a column as the driver binds them."""

    name: str  # quoted
    declared: str
    binding: ColumnBinding
    values: list[Any]

    @property
    def has_empty(self) -> list[bool]:
        """Whether each value is an empty LOB; [] if the column is no LOB."""
        return [not v and v is not None for v in self.values] if is_lob(self.declared) else []


def bind_column(placed: OraclePlacedTable, name: str, kind: LogicalType, values: Sequence[Value]) -> BoundColumn:
    """Convert a column's values to those that the driver binds; `name` is its name at the source. Raises Refusal."""
    declared = placed.types[name]
    try:
        bound = placed.binding_of(name, kind)
        converted = [None if v is None else bound.convert(v) for v in values]
    except UnfitValue as unfit:
        said = f"column {placed.fold(name)} cannot hold a value of it: {unfit}"
        raise Refusal(said, "ORA-12899", summary=said) from unfit
    return BoundColumn(name=placed.column(name), declared=declared, binding=bound, values=converted)


def bind_keys(placed: OraclePlacedTable, layout: Layout, record_ids: PackedBytes) -> list[BoundColumn]:
    """Convert keys to bound columns. A key that no column can hold is left out, because no row can have it."""
    columns = name_columns(placed, layout.columns[: layout.key_count])
    keys = [keys_to_columns(record_ids, layout)]
    try:
        return [bind_column(placed, c.name, c.type, v) for c, v in zip(columns, keys[0], strict=True)]
    except Refusal:
        keys = [[[value] for value in row] for row in zip(*keys[0], strict=True)]
    fitting: list[list[BoundColumn]] = []
    for key in keys:
        with suppress(Refusal):
            fitting.append([bind_column(placed, c.name, c.type, v) for c, v in zip(columns, key, strict=True)])
    found = zip(*fitting, strict=True) if fitting else ()
    return [replace(same[0], values=[one.values[0] for one in same]) for same in found]


def slice_rows(columns: Sequence[BoundColumn], count: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows whose binds need a limited amount of memory."""
    row_bytes = 1
    for column in columns:
        longest = max((len(v) for v in column.values if isinstance(v, (str, bytes))), default=8)
        row_bytes += 4 * longest if isinstance(next(filter(None, column.values), None), str) else longest
    step = max(1, min(ROWS_MAX, BIND_BYTES_MAX // row_bytes))
    for start in range(0, count, step):
        yield start, min(start + step, count)


def _write(session: OracleTargetSession, text: str, columns: Sequence[BoundColumn]) -> int:
    """Run a statement for all rows of these columns; return how many rows it has changed."""
    count = len(columns[0].values) if columns else 0
    written = 0
    for start, end in slice_rows(columns, count):
        rows = list(zip(*(c.values[start:end] for c in columns), strict=True))
        written += session.write_many(text, rows, [c.binding.db_type for c in columns])
    return written


# -- rows --------------------------------------------------------------------------------------------------------------


def delete_keys(
    session: OracleTargetSession, sql: OracleTableStatements, layout: Layout, record_ids: PackedBytes
) -> None:
    """Delete rows by their keys."""
    _write(session, sql.text("delete_keys"), bind_keys(sql.placed, layout, record_ids))


def insert_rows(
    session: OracleTargetSession,
    sql: OracleTableStatements,
    schema: TableSchema,
    record_ids: PackedBytes,
    rows: PackedBytes,
    *,
    block: str = "insert",
    **names: str,
) -> int:
    """Insert rows of version `schema` into the table, and return their number. Raises Refusal."""
    if not len(record_ids):
        return 0
    placed, layout = sql.placed, Layout.of(schema)
    here = {c.number: c for c in placed.schema.columns}
    kept = [n for n, c in enumerate(layout.columns) if c.number in here]
    values = to_columns(record_ids, rows, layout)
    columns = [
        bind_column(placed, here[layout.columns[n].number].name, layout.columns[n].type, values[n]) for n in kept
    ]
    relation = names.get("table", sql.stage if block == "put_staged" else placed.sql)
    if block == "put_staged":  # the later of two rows with one key wins
        _write(session, sql.text("delete_keys", table=relation), bind_keys(placed, layout, record_ids))
    written = sum(_insert(session, sql, relation, group) for group in _group_by_empty(columns))
    if sql.is_exact and isinstance(placed, OracleFollowerPlace):
        require_exact(session, placed, schema, record_ids, rows, relation)
    return written


def _group_by_empty(columns: list[BoundColumn]) -> Iterator[list[BoundColumn]]:
    """Yield groups of rows with empty LOBs in the same columns; these columns have no values in their group."""
    marks = [(n, c.has_empty) for n, c in enumerate(columns) if is_lob(c.declared)]
    if not any(any(flags) for _, flags in marks):
        yield columns
        return
    count = len(columns[0].values)
    patterns: dict[tuple[int, ...], list[int]] = {}
    for row in range(count):
        patterns.setdefault(tuple(n for n, flags in marks if flags[row]), []).append(row)
    for empty, members in patterns.items():
        yield [
            BoundColumn(
                name=c.name,
                declared=c.declared,
                binding=c.binding,
                values=[] if n in empty else [c.values[row] for row in members],
            )
            for n, c in enumerate(columns)
        ]


def _insert(session: OracleTargetSession, sql: OracleTableStatements, relation: str, columns: list[BoundColumn]) -> int:
    """Insert rows into `relation`; a column without values gets an empty LOB. Oracle requires LOBs to come last."""
    ordered = sorted(columns, key=lambda c: is_lob(c.declared))
    bound = [c for c in ordered if c.values]
    places = [_bind_sql(c.binding, bound.index(c) + 1) if c.values else _EMPTY[c.declared] for c in ordered]
    names = {"table": relation, "columns": ", ".join(c.name for c in ordered), "values": ", ".join(places)}
    return _write(session, sql.text("insert", **names), bound)


def stage_keys(
    session: OracleTargetSession, sql: OracleTableStatements, layout: Layout, record_ids: PackedBytes
) -> None:
    """Add keys of deleted rows to their staging table."""
    _replace_keys(session, sql, sql.key_stage, bind_keys(sql.placed, layout, record_ids))


def record_keys(
    session: OracleTargetSession, sql: OracleTableStatements, layout: Layout, record_ids: PackedBytes, offset: int
) -> None:
    """Record that changes at `offset` have touched these keys of the table."""
    keys = bind_keys(sql.placed, layout, record_ids)
    _replace_keys(session, sql, sql.touched, keys, {sql.names["moved"]: str(offset)})


def _replace_keys(
    session: OracleTargetSession,
    sql: OracleTableStatements,
    relation: str,
    keys: list[BoundColumn],
    more: dict[str, str] | None = None,
) -> None:
    """Write keys into a table of VENUS that may contain them already; `more`: further columns with their SQL."""
    if not keys:
        return
    more = more or {}
    _write(session, sql.text("delete_keys", table=relation), keys)
    names = ", ".join([*(c.name for c in keys), *more])
    values = ", ".join([*(_bind_sql(c.binding, n) for n, c in enumerate(keys, 1)), *more.values()])
    _write(session, sql.text("insert", table=relation, columns=names, values=values), keys)
