"""Cut-over of the application to its former SQLite file, in one session (`venus fallback`).

Rows are read as capture reads them, in bounded memory. Only AUTOINCREMENT keeps a counter, which continues after the
numbers in the rows *and* after the numbers that the other database has generated. The application's foreign keys stay
as they are. SQLite checks each foreign key row by row, because VENUS's sessions did not enforce foreign keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager

from venus.adapters.dialects.contract import Numbering
from venus.adapters.dialects.sqlite.connection import quote
from venus.adapters.targets.cutover_contract import (
    CounterSetting,
    ReferenceCheck,
    RowSink,
    SideOpening,
)
from venus.adapters.targets.relational.cutover_session import FollowerCutover
from venus.adapters.targets.relational.sides import next_number
from venus.adapters.targets.sqlite.application import FollowerAccess
from venus.adapters.targets.sqlite.cutover.side import open_side
from venus.adapters.targets.sqlite.database import SqliteDatabase, cutover_sql
from venus.adapters.targets.sqlite.ddl import SqlitePlacedTable
from venus.adapters.targets.sqlite.file import FileLock
from venus.adapters.targets.sqlite.rowsql import SqliteTableStatements, insert_rows
from venus.adapters.targets.sqlite.session import SqliteSession
from venus.codec.batch import TableChanges
from venus.errors import Refused
from venus.model import TableSchema

_PIECE_ROWS = 5_000
_SECTION_BYTES = 1 << 30
_CONVERTED = "venus_converted"
#: The greatest number that AUTOINCREMENT assigns.
_LAST_NUMBER = (1 << 63) - 1


class SqliteRowConverter:
    """Converter of rows to the values that the file would store, by a temporary table with the same types."""

    def __init__(self, session: SqliteSession, sql: SqliteTableStatements, access: FollowerAccess) -> None:
        self._session = session
        self._sql = sql
        self._sql.is_exact = False
        self._access = access

    def __enter__(self) -> SqliteRowConverter:
        definitions = self._sql.text("definitions")
        self._session.run(cutover_sql("create_converted", converted=_CONVERTED, definitions=definitions))
        return self

    def __exit__(self, *_: object) -> None:
        self._session.rollback()
        self._session.run(cutover_sql("drop_converted", converted=_CONVERTED))

    def convert_rows(self, section: TableChanges, schema: TableSchema) -> TableChanges:
        """Return rows of version `schema` as the file stores them, in the newest version."""
        insert_rows(self._session, self._sql, schema, section.record_ids, section.rows, table=_CONVERTED)
        rows = self._session.rows(cutover_sql("rows", columns=self._access.columns_sql, table=_CONVERTED))
        self._session.run(cutover_sql("empty_converted", converted=_CONVERTED))
        (found,) = self._access.build_sections(rows, bytes_max=_SECTION_BYTES)
        return found


class SqliteCutover(FollowerCutover):
    """Session that cuts the application over to its former SQLite file."""

    _target: SqliteDatabase
    _session: SqliteSession
    _placed: dict[int, SqlitePlacedTable]

    def __init__(self, target: SqliteDatabase, session: SqliteSession) -> None:
        assert target.application is not None
        super().__init__(target, session, target.application)
        self._application = target.application
        self._switch_lock = FileLock(session.file, "switch")

    def sql(self, block: str, **parts: str) -> str:
        return cutover_sql(block, **parts)

    def close(self) -> None:
        """Release the lock of the switch, roll back an open transaction and close the connection."""
        self._switch_lock.release()
        super().close()

    def try_lock_switch(self) -> bool:
        return self._switch_lock.try_acquire()

    @contextmanager
    def open_snapshot(self) -> Iterator[None]:
        self._session.begin_snapshot()
        try:
            yield
        finally:
            self._session.rollback()

    def open_side(self, opening: SideOpening) -> None:
        open_side(self._session, opening)

    # -- checks ----------------------------------------------------------------------------------------------------

    def read_rows(self, table_id: int, take: RowSink) -> None:
        placed = self._placed[table_id]
        access = self._application.access(placed, placed.schema)
        query = cutover_sql("rows", columns=access.columns_sql, table=placed.sql)
        for rows in self._session.stream(query, None, _PIECE_ROWS):
            for section in access.build_sections(rows, bytes_max=_SECTION_BYTES):
                take(section.record_ids, section.rows)

    def open_row_converter(self, table_id: int) -> SqliteRowConverter:
        placed = self._placed[table_id]
        access = self._application.access(placed, placed.schema)
        return SqliteRowConverter(self._session, self._target.row_sql(placed.schema), access)

    def check_references(self) -> list[ReferenceCheck]:
        found = []
        for placed in self._placed.values():
            keys = self._application.require(placed.name).table.schema.foreign_keys
            rows = self._session.rows(cutover_sql("orphans"), {"table": placed.name}) if keys else []
            orphans = {f"{placed.name}_fk{number}": (count, example) for number, count, example in rows}
            for key in keys:
                count, example = orphans.get(key.name, (0, ""))
                text = f"{placed.name} ({', '.join(key.columns)}) -> {key.referred_table}"
                found.append(ReferenceCheck(name=key.name, shown=text, orphans=count, example=example))
        return found

    def set_counters(self, numberings: Seq[Numbering]) -> list[CounterSetting]:
        of_column = {(n.table, n.column): n for n in numberings if n.table}
        found = []
        for placed in self._placed.values():
            table = self._application.require(placed.name)
            column = next((c.name for c in table.table.schema.columns if c.identity), "")
            if column and table.is_counted:
                found.append(self._set_counter(placed, column, of_column.get((placed.name, column))))
        return found

    def _set_counter(self, placed: SqlitePlacedTable, column: str, known: Numbering | None) -> CounterSetting:
        """Raise a counter above every value of its column and above the other database's counter; never lower it."""
        session, name = self._session, {"table": placed.name}
        (highest,) = session.row(cutover_sql("extremes", column=quote(column), table=placed.sql)) or (None,)
        (last,) = session.row(cutover_sql("counter"), name) or (0,)
        other = max(int(last) + 1, known.next_value if known is not None else 1)
        value = next_number(None, highest, other, 1)
        if value > _LAST_NUMBER:
            raise Refused(f"{placed.name}.{column}: no number is left behind {value - 1:,}")
        for block in ("set_counter", "add_counter"):
            session.run(cutover_sql(block), name | {"last": value - 1})
        return CounterSetting(
            sequence=f"sqlite_sequence of {placed.name}", next_value=value, step=1, table=placed.name, column=column
        )
