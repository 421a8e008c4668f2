"""The application's tables in its former MariaDB or MySQL database, which is now a target (`@source`).

The application has chosen the columns' types, character sets and collations. The server converts some values silently:
it pads values, trims blanks, or interprets a number as an enum label. So VENUS reads each row back as capture does, in
the same transaction, and refuses a value that differs from the one sent. Two keys that a collation treats as equal are
different rows in other databases, so keys are compared byte by byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from venus.adapters.dialects.mysql.connection import MysqlConnection, parse_address
from venus.adapters.dialects.mysql.dictionary.tables import MysqlTable, is_mariadb, read_dictionary
from venus.adapters.dialects.mysql.dictionary.types import MysqlDeclaredType, read_expression
from venus.adapters.dialects.mysql.rows import MysqlAccess, build_access
from venus.adapters.dialects.mysql.sql import is_own_table
from venus.adapters.dialects.mysql.sql import statement as dialect_statement
from venus.adapters.targets.mysql.ddl import collation
from venus.adapters.targets.mysql.naming import MysqlPlacedTable, quote
from venus.adapters.targets.mysql.types import KEY_BYTES_MAX, read_sql
from venus.adapters.targets.relational.session import Refusal
from venus.codec.columns import Value, to_columns
from venus.codec.packed import PackedBytes
from venus.codec.row_bytes import Layout
from venus.errors import TargetError
from venus.model import TableSchema

if TYPE_CHECKING:
    from venus.adapters.targets.mysql.session import MysqlSession

_KEY_CHARS_MAX = KEY_BYTES_MAX // 4


class ApplicationTables:
    """The application's tables as the dictionary describes them; the dictionary is read at the first use."""

    def __init__(self, url: Callable[[], str]) -> None:
        self._url = url
        self._tables: Mapping[str, MysqlTable] = {}
        self._collation = ""

    def forget(self) -> None:
        """Forget the tables, so that the next use reads the dictionary again."""
        self._tables = {}

    def find(self, name: str) -> MysqlTable | None:
        """Return a table; None if it does not exist."""
        if name not in self._tables:
            self._read_tables()
        return self._tables.get(name)

    def read_all(self) -> list[MysqlTable]:
        """Return the application's tables as they are now."""
        self._read_tables()
        return [table for table in self._tables.values() if not is_own_table(table.name, table.comment)]

    def _read_tables(self) -> None:
        """Read all tables from the dictionary, over a separate connection."""
        address = parse_address(self._url())
        with closing(MysqlConnection(address, "READ COMMITTED")) as connection:
            self._collation = collation(is_mariadb=is_mariadb(connection))
            self._tables = read_dictionary(connection, zero_dates_null=address.options.zero_dates_null).tables

    def access(self, placed: MysqlPlacedTable, schema: TableSchema) -> MysqlAccess:
        """Return the statements that read the columns of `schema` from a table as canonical text."""
        table = self.find(placed.name)
        lost = [c.name for c in schema.columns if table is None or placed.fold(c.name) not in table.declared]
        if table is None or lost:
            raise TargetError(f"{placed.name} has no column {', '.join(lost)} in the old database")
        own = {c.name: c.type for c in table.columns}
        columns = tuple(replace(c, type=own.get(c.name, c.type)) for c in schema.columns)
        access = build_access(table, replace(schema, columns=columns), zero_dates_null=False)
        # VENUS's own columns hold values as text that no type of the server can hold
        terms, rules = [], list(access.rules)
        for n, (column, sent) in enumerate(zip(access.layout.columns, Layout.of(schema).columns, strict=True)):
            name = f"t.{quote(column.name)}"
            if column.type.kind is sent.type.kind:
                terms.append(f"{read_expression(table.declared[column.name], name)}, ")
            else:
                terms.append(f"{read_sql(sent.type, name)}, ")
                rules[n] = None
        return replace(access, layout=Layout.of(schema), columns_sql="".join(terms), rules=tuple(rules))

    # -- keys --------------------------------------------------------------------------------------------------------

    def text_keys(self, placed: MysqlPlacedTable) -> dict[str, MysqlDeclaredType]:
        """Return the types of the key columns that have a collation, by their names at the source."""
        table = self.find(placed.name)
        declared = table.declared if table is not None else {}
        found = {name: declared[placed.fold(name)] for name in placed.schema.key if placed.fold(name) in declared}
        return {name: one for name, one in found.items() if one.is_text}

    def key_definitions(self, placed: MysqlPlacedTable) -> str:
        """Return definitions of the key's text columns for a table of VENUS, where different keys are never equal."""
        return "".join(
            f"{placed.column(name)} varchar({min(one.length, _KEY_CHARS_MAX)}) CHARACTER SET utf8mb4 "
            f"COLLATE {self._collation} NOT NULL, "
            for name, one in self.text_keys(placed).items()
        )

    def key_match(self, placed: MysqlPlacedTable) -> str:
        """Return the condition that row `t` of the application's table has the key of row `s` of a table of VENUS."""
        texts = self.text_keys(placed)
        return " AND ".join(_match_condition(placed.column(name), texts.get(name)) for name in placed.schema.key)

    # -- values ------------------------------------------------------------------------------------------------------

    def require_exact(
        self,
        session: MysqlSession,
        placed: MysqlPlacedTable,
        schema: TableSchema,
        rows: tuple[PackedBytes, PackedBytes],
        keys: Callable[[], list[str]],
        relation: str,
    ) -> None:
        """Raise Refusal if `relation` holds a row with a value that differs from the one sent.

        `keys`: conditions that select the rows.
        """
        sent = dict(
            zip((c.number for c in Layout.of(schema).columns), to_columns(*rows, Layout.of(schema)), strict=True)
        )
        columns = tuple(c for c in placed.schema.columns if c.number in sent)
        access = self.access(placed, replace(placed.schema, columns=columns))
        wire, count = access.layout.columns, access.layout.key_count
        expected = {row[:count]: row for row in zip(*(sent[c.number] for c in wire), strict=True)}
        for where in keys():
            query = dialect_statement(
                "verify", "rows", columns=access.columns_sql, table=relation, where=where, limit=""
            )
            found = list(zip(*session.text_rows(query), strict=True))
            texts = [access.canonical_texts(n, found[n]) for n in range(len(wire))] if found else []
            for row in zip(*texts, strict=True):
                wanted = expected.pop(row[:count], row)
                if wanted != row:
                    raise _other_value_error(access, wanted, row)
        if expected:
            raise Refusal("the old database would store another key", "22000")


def _match_condition(column: str, text: MysqlDeclaredType | None) -> str:
    """Return the condition that a key column is identical in the rows `t` and `s`."""
    if text is None:
        return f"t.{column} = s.{column}"
    same = " = ".join(f"CAST(CONVERT({side}.{column} USING utf8mb4) AS BINARY)" for side in ("t", "s"))
    return f"t.{column} = CONVERT(s.{column} USING {text.charset}) COLLATE {text.collation} AND {same}"


def _other_value_error(access: MysqlAccess, wanted: tuple[Value, ...], found: tuple[Value, ...]) -> Refusal:
    """Return the error for a row that was stored with another value than the one sent; it names the column."""
    name = next(c.name for c, w, f in zip(access.layout.columns, wanted, found, strict=True) if w != f)
    said = f"the old database would store another value in column {name}"
    return Refusal(said, "22000", summary=said)
