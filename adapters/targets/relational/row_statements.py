"""Statements that write rows at a target without a COPY: the interface of a kind, and shared parts (VENUS 3.4).

Rows of the full data may have any version of the schema: rows from before an ADD COLUMN lack that column and get its
default, and rows from before a DROP COLUMN lose that column. Rows of a cut that are older than the table's version are
converted in the same way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol
from zlib import crc32

from venus.adapters.dialects.statements import Statements
from venus.adapters.targets.relational.own_tables import OwnSession, OwnSql
from venus.adapters.targets.relational.place import OWN, RelationalPlace
from venus.adapters.targets.relational.session import Refusal, RelationalSession
from venus.codec.packed import PackedBytes
from venus.codec.row_bytes import Layout
from venus.model import Column, TableSchema


class RowSession(RelationalSession, Protocol):
    """A session that writes rows."""

    #: The staging tables of this session.
    temporary: set[str]

    def write_rows(self, text: str) -> int:
        """Execute one statement that writes rows; return their number. Raises Refusal if the server changed a value."""
        ...


class TableStatements(ABC):
    """SQL statements for a table version; `columns` are those of its schema, which may be an older version.

    `home` is the quoted prefix of VENUS's own tables beside the table.
    """

    def __init__(self, placed: RelationalPlace, group: str, home: str) -> None:
        schema, quote = placed.schema, placed.quote
        self.placed = placed
        self.suffix = f"{schema.table_id}_{crc32(group.encode()):08x}"
        self.touched = f"{home}{quote(f'{OWN}touched_{self.suffix}')}"
        self.side = f"{home}{quote(f'{OWN}side_{self.suffix}')}"
        self.stage = quote(f"{OWN}s_{schema.table_id}_{schema.version}")
        self.key_stage = quote(f"{OWN}d_{schema.table_id}_{schema.version}")
        moved = "venus_offset"
        while moved in map(placed.fold, schema.key):
            moved += "_"
        keys = [placed.column(k) for k in schema.key]
        others = schema.wire_columns[len(keys) :]
        self.names = {
            "moved": quote(moved),
            "table": placed.sql,
            "columns": placed.wire_columns,
            "key": placed.key,
            "key_list": f"({placed.key})" if len(keys) > 1 else placed.key,
            "stage": self.stage,
            "touched": self.touched,
            "side": self.side,
            "match": " AND ".join(f"t.{k} = s.{k}" for k in keys),
            "same": " AND ".join(map(self.same, others)) or "TRUE",
        }

    @abstractmethod
    def same(self, column: Column) -> str:
        """Return the condition that the rows `t` and `s` have the same value, byte by byte, or both NULL."""

    @abstractmethod
    def text(self, block: str, **more: str) -> str:
        """Return a block of the kind's apply.sql for this table."""

    def make_stage(self, session: OwnSession, stage: str, **names: str) -> None:
        """Create a staging table, within a transaction. Raises DdlNeeded."""
        session.run(self.text("create_stage", stage=stage, **names))


class RowStatements(Protocol):
    """The functions that write and delete rows at one kind of database: the interface of its module `rowsql`."""

    @property
    def statement(self) -> Statements:
        """The kind's .sql files."""
        ...

    def row_sql(self, placed: Any, group: str) -> OwnSql:
        """Return the statements for a table version."""
        ...

    def delete_keys(self, session: OwnSession, sql: OwnSql, layout: Layout, record_ids: PackedBytes) -> None:
        """Delete rows by their keys."""
        ...

    def insert_rows(
        self,
        session: OwnSession,
        sql: OwnSql,
        schema: TableSchema,
        record_ids: PackedBytes,
        rows: PackedBytes,
        *,
        block: str = "insert",
        **names: str,
    ) -> int:
        """Insert rows of version `schema`, and return their number. Raises Refusal."""
        ...

    def stage_keys(self, session: OwnSession, sql: OwnSql, layout: Layout, record_ids: PackedBytes) -> None:
        """Add keys to the staging table of deleted rows."""
        ...

    def record_keys(
        self, session: OwnSession, sql: OwnSql, layout: Layout, record_ids: PackedBytes, offset: int
    ) -> None:
        """Add keys to the record of a table's changed keys."""
        ...


def require_all(written: int, rows: int) -> None:
    """Raise Refusal if a trigger or the server has discarded a row."""
    if written != rows:
        raise Refusal(f"the table has accepted {written} of {rows} rows", "HY000")
