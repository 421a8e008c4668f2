"""Cut-over of the application to its former MariaDB or MySQL database, in one session (`venus fallback`).

Rows are read as capture reads them, in bounded memory. Counters continue after the numbers in the rows *and* after the
numbers that the other database has generated. The application's foreign keys stay as they are. A query over the rows
checks each foreign key, because VENUS's sessions did not enforce foreign keys.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from contextlib import closing

from venus.adapters.dialects.contract import Numbering
from venus.adapters.dialects.mysql.connection import MysqlConnection, parse_address
from venus.adapters.dialects.mysql.dictionary.structure import read_numberings
from venus.adapters.dialects.mysql.dictionary.tables import is_mariadb
from venus.adapters.dialects.mysql.installation.handover import run_statements
from venus.adapters.dialects.mysql.rows import MysqlAccess
from venus.adapters.targets.cutover_contract import (
    CounterSetting,
    ReferenceCheck,
    RowSink,
    SideOpening,
)
from venus.adapters.targets.mysql import tables
from venus.adapters.targets.mysql.cutover.side import open_side, side_sql
from venus.adapters.targets.mysql.database import MysqlDatabase, cutover_sql
from venus.adapters.targets.mysql.naming import MysqlPlacedTable, quote
from venus.adapters.targets.mysql.rowsql import MysqlRowSql, insert_rows
from venus.adapters.targets.mysql.session import MysqlSession
from venus.adapters.targets.relational.cutover_session import NumberedFollowerCutover
from venus.adapters.targets.relational.sides import TIDY_TIMEOUT_MS
from venus.codec.batch import TableChanges
from venus.model import TableSchema

_PIECE_ROWS = 5_000
_SECTION_BYTES = 1 << 30


class MysqlRowConverter:
    """Converter of rows to the values that the database would store, by a temporary table with the same types."""

    def __init__(self, session: MysqlSession, sql: MysqlRowSql, access: MysqlAccess) -> None:
        self._session = session
        self._sql = sql
        self._sql.is_exact = False
        self._access = access

    def __enter__(self) -> MysqlRowConverter:
        self._session.run(self._sql.text("create_stage"))
        return self

    def __exit__(self, *_: object) -> None:
        self._session.rollback()
        self._session.run(f"DROP TEMPORARY TABLE IF EXISTS {self._sql.stage}")

    def convert_rows(self, section: TableChanges, schema: TableSchema) -> TableChanges:
        """Return rows of version `schema` as the database stores them, in the newest version."""
        session, sql = self._session, self._sql
        insert_rows(session, sql, schema, section.record_ids, section.rows, block="put_staged")
        rows = session.text_rows(cutover_sql("rows", columns=self._access.columns_sql, table=sql.stage))
        session.run(f"DELETE FROM {sql.stage}")
        (found,) = self._access.build_sections(rows, bytes_max=_SECTION_BYTES)
        return found


class MysqlCutover(NumberedFollowerCutover):
    """Session that cuts the application over to its former MariaDB or MySQL database."""

    DIALECT = "mysql"

    _target: MysqlDatabase
    _session: MysqlSession
    _placed: dict[int, MysqlPlacedTable]

    def __init__(self, target: MysqlDatabase, session: MysqlSession) -> None:
        assert target.application is not None
        super().__init__(target, session, target.application)
        self._application = target.application

    def sql(self, block: str, **parts: str) -> str:
        return cutover_sql(block, **parts)

    def try_lock_switch(self) -> bool:
        return self._session.row(side_sql("lock_switch")) == (1,)

    def run_preparation(self, statements: Seq[str]) -> None:
        with closing(MysqlConnection(parse_address(self._target.url), "READ COMMITTED")) as connection:
            run_statements(connection, statements)

    def open_side(self, opening: SideOpening) -> None:
        open_side(self._session, opening)

    # -- checks ----------------------------------------------------------------------------------------------------

    def read_rows(self, table_id: int, take: RowSink) -> None:
        placed = self._placed[table_id]
        access = self._application.access(placed, placed.schema)
        query = cutover_sql("rows", columns=access.columns_sql, table=placed.sql)
        with self._session.read_texts():
            for rows in self._session.stream(query, _PIECE_ROWS):
                for section in access.build_sections(rows, bytes_max=_SECTION_BYTES):
                    take(section.record_ids, section.rows)

    def open_row_converter(self, table_id: int) -> MysqlRowConverter:
        placed = self._placed[table_id]
        access = self._application.access(placed, placed.schema)
        return MysqlRowConverter(self._session, self._target.row_sql(placed.schema), access)

    def check_references(self) -> list[ReferenceCheck]:
        found = []
        for key in tables.read_foreign_keys(self._session, list(self._placed.values())):
            orphans, example = tables.count_orphans(self._session, key)
            found.append(ReferenceCheck(name=key.name, shown=key.text, orphans=orphans, example=example))
        return found

    # -- counters --------------------------------------------------------------------------------------------------

    def set_counters(self, numberings: Seq[Numbering]) -> list[CounterSetting]:
        # the application's readers queue behind ALTER TABLE
        self._session.run(side_sql("lock_timeout", seconds=str(TIDY_TIMEOUT_MS // 1000)))
        return super().set_counters(numberings)

    def read_numberings(self) -> list[Numbering]:
        with closing(MysqlConnection(parse_address(self._target.url), "READ COMMITTED")) as connection:
            return read_numberings(connection, self._session.database, mariadb=is_mariadb(connection))

    def move_counter(self, own: Numbering, value: int, placed: MysqlPlacedTable | None) -> None:
        if own.name:
            name = f"{quote(self._session.database)}.{quote(own.name)}"
            self._session.run(cutover_sql("set_sequence", sequence=name, value=str(value)))
        elif placed is not None:
            self._session.run(cutover_sql("set_counter", table=placed.sql, value=str(value)))
