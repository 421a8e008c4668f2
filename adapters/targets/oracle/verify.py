"""An Oracle target as one side of a comparison (dialects/verify_contract.py): VENUS computes the checksums.

Oracle's own hashes accept no LOB, and the server cannot format a float as canonical text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from collections.abc import Sequence as Seq
from contextlib import suppress
from typing import Any

from venus.adapters.dialects.oracle.rows import PIECE_ROWS, canonical_texts
from venus.adapters.dialects.oracle.sql import statement as dialect_statement
from venus.adapters.dialects.oracle.verify import KEYS_AT_ONCE
from venus.adapters.dialects.rows import WIDE_PIECE_ROWS
from venus.adapters.dialects.verify_contract import (
    FormStyle,
    Key,
    RowReader,
    Slice,
    Subject,
    range_condition,
    row_condition,
    style_of,
)
from venus.adapters.targets.oracle.application import OracleFollowerPlace
from venus.adapters.targets.oracle.types import ColumnBinding, is_lob, read_rule, read_sql
from venus.adapters.targets.relational.place import UnfitValue
from venus.adapters.targets.relational.row_target import SessionReader, build_section
from venus.codec.batch import TableChanges
from venus.codec.columns import Value
from venus.model import Column, Kind


class OracleTargetReader(SessionReader, RowReader):
    """A session that reads a target for a comparison."""

    def estimate_rows(self, subject: Subject) -> int:
        """Return the number of rows, by counting them."""
        found = self._session.row(dialect_statement("verify", "estimate", table=self._place(subject).sql))
        return int(found[0])

    def read_split_points(self, subject: Subject, rows: int) -> list[int]:
        parts = {"table": self._place(subject).sql, "key": self._leading_key(subject)}
        text = dialect_statement("verify", "cuts", where=row_condition(subject), rows=str(rows), **parts)
        return sorted({int(k) for (k,) in self._session.rows(text)})

    def scan(
        self, subject: Subject, part: Slice, buckets: Collection[int] | None, *, rows_max: int = 0
    ) -> Iterator[TableChanges]:
        key = self._leading_key(subject)
        where = range_condition(subject, key, part, buckets) if part.step else row_condition(subject)
        if rows_max:
            where = f"{where} AND ROWNUM <= {rows_max}"
        yield from self._read_rows(subject, where, [])

    def find_rows(self, subject: Subject, keys: Seq[Key]) -> Iterator[TableChanges]:
        for first in range(0, len(keys), KEYS_AT_ONCE):
            where, values = self._key_condition(subject, keys[first : first + KEYS_AT_ONCE])
            yield from self._read_rows(subject, where, values)

    def _leading_key(self, subject: Subject) -> str:
        """Return the SQL of the first key column."""
        return f"T.{self._place(subject).column(subject.schema.key[0])}"

    def _key_condition(self, subject: Subject, keys: Seq[Key]) -> tuple[str, list[Any]]:
        """Return the condition that a row has one of these keys, and the values of its bind variables."""
        placed, schema = self._place(subject), subject.schema
        columns = schema.wire_columns[: len(schema.key)]
        bindings = [placed.binding_of(c.name, c.type) for c in columns]
        names = [f"T.{placed.column(c.name)}" for c in columns]
        values: list[Any] = []
        cases = ["1 = 0"]
        for key in keys:
            terms: list[str] = []
            bound: list[Any] = []
            with suppress(UnfitValue):  # no row here has this key
                for column, bind, name, form in zip(columns, bindings, names, key, strict=True):
                    term, found = _key_term(column, bind, name, form, len(values) + len(bound) + 1)
                    terms.append(term)
                    bound += found
                cases.append(f"({' AND '.join(terms)})")
                values += bound
        return f"({' OR '.join(cases)})", values

    def _read_rows(self, subject: Subject, where: str, values: list[Any]) -> Iterator[TableChanges]:
        """Yield the rows that meet the condition `where`, as sections; `values`: its bind variables."""
        placed, schema = self._place(subject), subject.schema
        columns = [(c, placed.types[c.name], f"T.{placed.column(c.name)}") for c in schema.wire_columns]
        read = ", ".join(f"{read_sql(declared, name)} AS V{n}" for n, (_, declared, name) in enumerate(columns, 1))
        lobs = [n for n, (_, declared, _) in enumerate(columns) if is_lob(declared)]
        lengths = "".join(f", DBMS_LOB.GETLENGTH({columns[n][2]}) AS VENUS_LENGTH_{n}" for n in lobs)
        parts = {"columns": read, "lobs": lengths, "table": placed.sql, "where": where}
        piece_rows = WIDE_PIECE_ROWS if lobs else PIECE_ROWS
        for rows in self._session.stream(dialect_statement("verify", "rows", **parts), values, piece_rows):
            found = list(zip(*rows, strict=True))
            sizes = dict(zip(lobs, found[len(columns) + 2 :], strict=True))
            canonical = [
                _canonical_values(column, declared, found[n], sizes.get(n))
                for n, (column, declared, _) in enumerate(columns)
            ]
            yield build_section(schema, canonical)


class OracleFollowerReader(OracleTargetReader):
    """Session that reads the application's tables in its former database, as capture reads them, for a comparison."""

    def _read_rows(self, subject: Subject, where: str, values: list[Any]) -> Iterator[TableChanges]:
        placed = self._place(subject)
        assert isinstance(placed, OracleFollowerPlace)
        access = placed.access(subject.schema)
        for columns in access.read_columns(self._session, placed.sql, where, values):
            yield build_section(subject.schema, columns)


def _canonical_values(column: Column, declared: str, values: Seq[Any], sizes: Seq[Any] | None) -> Seq[Value]:
    """Return the canonical values of a column. An empty LOB is read as NULL; only its size shows the difference."""
    if sizes is not None:
        empty: Any = b"" if column.type.kind is Kind.BYTES else ""
        values = [empty if v is None and size == 0 else v for v, size in zip(values, sizes, strict=True)]
    scale = column.type.scale if column.type.kind is Kind.DECIMAL else 0
    return canonical_texts(read_rule(column.type, declared), values, scale)


def _key_value(column: Column, form: str) -> Any:
    """Return the value of a key column by its compared text."""
    return bytes.fromhex(form) if column.type.kind is Kind.BYTES else form


def _key_term(column: Column, bound: ColumnBinding, name: str, form: str, number: int) -> tuple[str, list[Any]]:
    """Return the condition that a key column has this compared text, and its bind variables. Raises UnfitValue.

    The compared text of a blank-padded column has no trailing blanks, so a text of blanks alone becomes NULL.
    """
    is_padded = style_of(column.type) is FormStyle.PADDED
    if is_padded and not form:
        return f"RTRIM({name}) IS NULL", []
    value = bound.convert(_key_value(column, form))
    return f"{f'RTRIM({name})' if is_padded else name} = {bound.sql.replace('{b}', f':{number}')}", [value]
