"""Cut-over of the application to its former Oracle database, in one session (`venus fallback`).

Rows are read as capture reads them. Counters continue after the numbers in the rows *and* after the numbers that the
other database has generated. Foreign keys and triggers of the application were switched off while the database
followed. Both are switched on again before the database accepts writes (side.py), and the foreign keys are validated
afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from collections.abc import Sequence as Seq
from contextlib import closing, contextmanager
from dataclasses import dataclass

from venus.adapters.dialects.contract import Numbering
from venus.adapters.dialects.oracle.installation.handover import run_statements
from venus.adapters.dialects.oracle.session.options import Version
from venus.adapters.dialects.oracle.source import open_source
from venus.adapters.targets.cutover_contract import ReferenceCheck, RowSink, SideOpening
from venus.adapters.targets.oracle.application import DIALECT, OracleFollowerAccess, OracleFollowerPlace
from venus.adapters.targets.oracle.cutover.side import check_switched_on, open_side
from venus.adapters.targets.oracle.database import OracleTargetDatabase, cutover_sql, side_sql
from venus.adapters.targets.oracle.ddl import quote
from venus.adapters.targets.oracle.rowsql import OracleTableStatements, insert_rows
from venus.adapters.targets.oracle.session import OracleTargetSession
from venus.adapters.targets.relational.cutover_session import NumberedFollowerCutover
from venus.adapters.targets.relational.names import PostgresNames
from venus.adapters.targets.relational.row_target import build_section
from venus.codec.batch import TableChanges
from venus.errors import Refused
from venus.model import TableSchema

#: The form of the names of identity columns' sequences.
_SYSTEM_SEQUENCE = "ISEQ$$_"
#: The most numbers that are drawn to move a counter of an older Oracle, and how many at a time.
_DRAWN_MAX, _DRAWN_AT_ONCE = 10_000_000, 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleForeignKey:
    """A foreign key of the application."""

    name: str
    child: str
    parent: str
    #: Each column, with the column to which it refers.
    columns: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """The foreign key as text for messages."""
        return f"{self.child} ({', '.join(column for column, _ in self.columns)}) -> {self.parent}"


class OracleRowConverter:
    """Converter of rows to the values that the database would store, by a temporary table with the same types."""

    def __init__(self, session: OracleTargetSession, sql: OracleTableStatements, access: OracleFollowerAccess) -> None:
        self._session = session
        self._sql = sql
        self._sql.is_exact = False
        self._access = access

    def __enter__(self) -> OracleRowConverter:
        self._session.run(self._sql.text("create_stage"))
        self._session.run("BEGIN")
        return self

    def __exit__(self, *_: object) -> None:
        self._session.rollback()

    def convert_rows(self, section: TableChanges, schema: TableSchema) -> TableChanges:
        """Return rows of version `schema` as the database stores them, in the newest version."""
        session, sql = self._session, self._sql
        insert_rows(session, sql, schema, section.record_ids, section.rows, block="put_staged")
        pieces = list(self._access.read_columns(session, sql.stage, "1 = 1", []))
        session.run(f"DELETE FROM {sql.stage}")
        columns = [[value for piece in pieces for value in piece[n]] for n in range(len(pieces[0]))]
        return build_section(self._access.layout.schema, columns)


class OracleCutover(NumberedFollowerCutover):
    """Session that cuts the application over to its former Oracle database."""

    DIALECT = DIALECT

    _target: OracleTargetDatabase
    _session: OracleTargetSession
    _placed: dict[int, OracleFollowerPlace]

    def __init__(self, target: OracleTargetDatabase, session: OracleTargetSession) -> None:
        assert target.application is not None
        super().__init__(target, session, target.application)
        #: The server's version, as of the last `read_numberings`; None before it.
        self._version: Version | None = None

    def sql(self, block: str, **parts: str) -> str:
        return cutover_sql(block, **parts)

    def try_lock_switch(self) -> bool:
        return self._session.try_lock(side_sql("make_lock"), side_sql("try_lock"), {})

    @contextmanager
    def open_snapshot(self) -> Iterator[None]:
        self._session.begin_snapshot()
        try:
            yield
        finally:
            self._session.rollback()

    def run_preparation(self, statements: Seq[str]) -> None:
        with closing(open_source(self._target.source_settings)) as source:
            run_statements(source.database.writer, statements)

    def open_side(self, opening: SideOpening) -> None:
        open_side(self._session, opening)

    def enforce(self, invalid: Collection[str], numberings: Seq[Numbering]) -> list[str]:
        """Validate the foreign keys that were enabled again; return those that the database rejects."""
        return check_switched_on(self._session)

    # -- checks ----------------------------------------------------------------------------------------------------

    def read_rows(self, table_id: int, take: RowSink) -> None:
        placed = self._placed[table_id]
        for columns in placed.access(placed.schema).read_columns(self._session, placed.sql, "1 = 1", []):
            section = build_section(placed.schema, columns)
            take(section.record_ids, section.rows)

    def open_row_converter(self, table_id: int) -> OracleRowConverter:
        placed = self._placed[table_id]
        return OracleRowConverter(self._session, self._target.row_sql(placed.schema), placed.access(placed.schema))

    def check_references(self) -> list[ReferenceCheck]:
        names = {one.name for one in self._placed.values()}
        found = []
        for key in self._read_foreign_keys():
            if key.child in names:
                orphans, example = self._count_orphans(key)
                found.append(ReferenceCheck(name=key.name, shown=key.text, orphans=orphans, example=example))
        return found

    def _read_foreign_keys(self) -> list[OracleForeignKey]:
        """Read the foreign keys of all tables of the user."""
        columns: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
        for child, name, owner, parent, *pair in self._session.rows(
            self.sql("references"), {"owner": self._session.schema}
        ):
            columns.setdefault((child, name, f"{quote(owner)}.{quote(parent)}"), []).append((pair[0], pair[1]))
        return [
            OracleForeignKey(name=name, child=child, parent=parent, columns=tuple(pairs))
            for (child, name, parent), pairs in columns.items()
        ]

    def _count_orphans(self, key: OracleForeignKey) -> tuple[int, str]:
        """Return how many rows have no parent, and the values of one such row."""
        mine = [f"C.{quote(column)}" for column, _ in key.columns]
        parts = {
            "child": quote(key.child),
            "parent": key.parent,
            "filled": " AND ".join(f"{column} IS NOT NULL" for column in mine),
            "match": " AND ".join(f"P.{quote(referred)} = C.{quote(column)}" for column, referred in key.columns),
        }
        ((orphans,),) = self._session.rows(self.sql("count_orphans", **parts))
        example = self._session.row(self.sql("an_orphan", columns=", ".join(mine), **parts)) if orphans else ()
        return int(orphans), ", ".join(map(str, example or ()))

    # -- counters --------------------------------------------------------------------------------------------------

    def read_numberings(self) -> list[Numbering]:
        with closing(open_source(self._target.source_settings)) as source:
            self._version = source.database.version
            return source.dictionary.read_numberings()

    @property
    def other_names(self) -> PostgresNames:
        return self._target.other_names

    def move_counter(self, own: Numbering, value: int, placed: OracleFollowerPlace | None) -> None:
        """Let a sequence continue at `value`. The sequence of an identity column is set by an ALTER of its column."""
        if value == own.next_value:
            return
        if own.name.startswith(_SYSTEM_SEQUENCE):
            names = {"owner": self._session.schema, "table": own.table, "column": own.column}
            ((on_null,),) = self._session.rows(self.sql("is_on_null"), names)
            parts = {"table": quote(own.table), "column": quote(own.column), "value": str(value)}
            self._session.run(self.sql("set_identity", on_null=" ON NULL" if on_null else "", **parts))
        elif self._version is not None and self._version.restarts_sequences:
            self._session.run(self.sql("set_sequence", sequence=quote(own.name), value=str(value)))
        else:
            self._draw_numbers(own, value)

    def _draw_numbers(self, own: Numbering, value: int) -> None:
        """Draw numbers of a sequence until it has reached or passed `value`: old servers cannot set it."""
        left = (value - own.next_value) // own.increment
        if left > _DRAWN_MAX:
            raise Refused(
                f"{own.name} is {left:,} numbers behind {value:,}",
                hint=f"let it continue there, at {self._target.description}, and run the command again",
            )
        while left > 0:
            numbers = min(left, _DRAWN_AT_ONCE)
            self._session.rows(self.sql("draw", sequence=quote(own.name), numbers=str(numbers)))
            left -= numbers
