"""The application's tables in its former Oracle database, which is now a target (`@source`).

The application has chosen the columns' types. The server rounds fractions, stores NULL for an empty text, and replaces
characters that its character set lacks, all silently. So VENUS reads rows back as capture does, in the same
transaction, and refuses a value that differs from the one sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from venus.adapters.dialects.oracle import registry
from venus.adapters.dialects.oracle.dictionary import ownership
from venus.adapters.dialects.oracle.dictionary.reader import open_dictionary
from venus.adapters.dialects.oracle.dictionary.tables import OracleReading, OracleTable, application_tables
from venus.adapters.dialects.oracle.rows import PIECE_ROWS, canonical_texts
from venus.adapters.dialects.oracle.session.connection import OracleSession
from venus.adapters.dialects.oracle.session.driver import parse_driver_url
from venus.adapters.dialects.oracle.session.options import OracleColumnChoice
from venus.adapters.dialects.oracle.sql import statement as dialect_statement
from venus.adapters.dialects.oracle.verify import KEYS_AT_ONCE
from venus.adapters.dialects.rows import WIDE_PIECE_ROWS
from venus.adapters.targets.oracle.application_types import bind, compared_value, declare
from venus.adapters.targets.oracle.ddl import OraclePlacedTable
from venus.adapters.targets.oracle.types import ColumnBinding, declared_columns
from venus.adapters.targets.relational.names import PostgresNames
from venus.adapters.targets.relational.place import UnfitValue
from venus.adapters.targets.relational.session import Refusal
from venus.codec.columns import Value, to_columns
from venus.codec.packed import PackedBytes
from venus.codec.row_bytes import Layout
from venus.errors import Refused, SourceError, TargetError
from venus.model import Column, Kind, LogicalType, TableSchema

if TYPE_CHECKING:
    from venus.adapters.targets.oracle.session import OracleTargetSession

_OTHER_VALUE = "the old database would store another value in column"
#: The dialect that describes the tables of an Oracle database.
DIALECT = "oracle"
#: Error code of a refused row in quarantine.
_CODE = "ORA-12899"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnNames:
    """Names of a table and its columns in this database; `columns` has them by the names in the stream of changes."""

    table: str
    columns: Mapping[str, str]
    #: Names of the stream that would not survive the way back, each with the name that it would become.
    lost: tuple[tuple[str, str], ...] = ()


def find_own_names(schema: TableSchema, captured: TableSchema | None, user: str, rule: PostgresNames) -> OwnNames:
    """Return the names in this database of a table that arrives in the stream of changes. Pure.

    The registry of this database recorded the names: `captured` is the table with this number, and its columns have the
    same numbers as in the stream. The rule must convert each recorded name to the name in the stream. For a new column,
    VENUS chooses a name that the rule converts to the name in the stream. If the rule gives another name, the name was
    changed in the other database. `user` is the schema that contains the tables in this database.
    """
    if schema.source_dialect == DIALECT:
        own = {c.number: c.name for c in captured.columns} if captured is not None else {}
        table = captured.name if captured is not None else schema.name
        return OwnNames(table=table, columns={c.name: own.get(c.number, c.name) for c in schema.columns})
    recorded = {c.number: c.name for c in captured.columns} if captured is not None else {}
    columns = {c.name: _find_own_name(c.name, recorded.get(c.number), rule) for c in schema.columns}
    table = _find_own_name(schema.name, captured.name if captured is not None else None, rule)
    again = f"{rule.namespace(user, DIALECT)}.{rule.fold(table, DIALECT)}"
    lost = [(schema.qualified_name, again)] if again != schema.qualified_name else []
    lost += [(name, now) for name, own in columns.items() if (now := rule.fold(own, DIALECT)) != name]
    return OwnNames(table=table, columns=columns, lost=tuple(lost))


def _find_own_name(name: str, recorded: str | None, rule: PostgresNames) -> str:
    """Return the name in this database; the recorded one if the rule converts it to `name`."""
    if recorded is not None and rule.fold(recorded, DIALECT) == name:
        return recorded
    return name.upper() if rule.names != "keep" and name == name.lower() else name


class OracleApplicationTables:
    """The tables of the user's schema as the dictionary describes them; the dictionary is read at the first use."""

    def __init__(self, url: Callable[[], str], type_map: Mapping[str, str]) -> None:
        self._url = url
        self._type_map = type_map
        self._tables: dict[str, OracleTable] = {}
        #: The registered tables by their numbers.
        self._captured: dict[int, TableSchema] = {}
        self._user = ""
        self._has_read = False

    def forget(self) -> None:
        """Forget the tables, so that the next use reads the dictionary again."""
        self._tables, self._captured, self._has_read = {}, {}, False

    @property
    def user(self) -> str:
        """The name of the user, whose schema has the tables."""
        if not self._has_read:
            self.read_all()
        return self._user

    def find_last_captured_version(self, table_id: int) -> TableSchema | None:
        """Return the last version of a table that was captured here; None if it never was."""
        if not self._has_read:
            self.read_all()
        return self._captured.get(table_id)

    def find(self, name: str) -> OracleTable | None:
        """Return a table; None if it does not exist."""
        if not self._has_read:
            self.read_all()
        return self._tables.get(name)

    def read_all(self) -> list[OracleTable]:
        """Return the application's tables as they are now."""
        driver, _ = parse_driver_url(self._url())
        with closing(OracleSession(driver)) as session:
            _, dictionary = open_dictionary(session, (), self._type_map, OracleColumnChoice())
            listed = [at for at in application_tables(dictionary.list_tables()) if not at.kind.left_out]
            self._tables = {at.name: dictionary.read_table(at) for at in listed}
            self._user = dictionary.user
            is_installed = dictionary.owned_objects.has(ownership.REGISTRY)
            found = [registry.read_tables(session, released=r) for r in (True, False)] if is_installed else []
            self._captured = {number: one.schema for some in found for number, one in some.items()}
            session.rollback()
        self._has_read = True
        return list(self._tables.values())


@dataclass(frozen=True, kw_only=True)
class OracleFollowerPlace(OraclePlacedTable):
    """A table of the stream of changes, with the application's table for it; `application` is None if none exists."""

    application: OracleTable | None
    own_names: OwnNames

    def fold(self, name: str) -> str:
        """Return the name in this database of a column of the stream."""
        return self.own_names.columns.get(name, name)

    @cached_property
    def types(self) -> dict[str, str]:
        """The type in which VENUS's own tables hold each column, by its name in the stream."""
        own = {name: declare(reading.declared) for name, reading in self._readings.items()}
        return declared_columns(self.schema) | own

    def binding_of(self, name: str, kind: LogicalType) -> ColumnBinding:
        reading = self._readings.get(name)
        return bind(reading) if reading is not None else super().binding_of(name, kind)

    @cached_property
    def _readings(self) -> Mapping[str, OracleReading]:
        """How capture reads each column, by its name in the stream."""
        there = self.application.readings if self.application is not None else {}
        return {c.name: there[own] for c in self.schema.columns if (own := self.fold(c.name)) in there}

    def access(self, schema: TableSchema) -> OracleFollowerAccess:
        """Return the statements that read the columns of `schema` from the table as canonical text."""
        missing = [c.name for c in schema.columns if c.name not in self._readings]
        if missing:
            raise TargetError(f"{self.name} has no column {', '.join(missing)} in the old database")
        return OracleFollowerAccess(placed=self, layout=Layout.of(schema), readings=self._readings)


def refuse_lost_names(placed: Seq[OraclePlacedTable]) -> None:
    """Raise Refused with a line for each name that would change with the next switch. Pure."""
    lost = [
        f"{one.schema.qualified_name}: {name} would be {now} after the next switch to the other database"
        for one in placed
        if isinstance(one, OracleFollowerPlace)
        for name, now in one.own_names.lost
    ]
    if lost:
        raise Refused("\n".join(lost), hint="give it the name that it would get")


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleFollowerAccess:
    """Statements that read rows of a table of the application, all of them or those with given keys."""

    placed: OracleFollowerPlace
    layout: Layout
    readings: Mapping[str, OracleReading]

    def read_columns(
        self, session: OracleTargetSession, relation: str, where: str, values: Seq[Any]
    ) -> Iterator[list[Seq[Value]]]:
        """Read rows as canonical values; yield pieces, each a list of columns in wire order."""
        columns = self.layout.columns
        lobs = [n for n, c in enumerate(columns) if self.readings[c.name].mapping.located]
        names = [f"T.{self.placed.column(c.name)}" for c in columns]
        read = [
            name if n in lobs else self.readings[c.name].expression(name)
            for n, (name, c) in enumerate(zip(names, columns, strict=True))
        ]
        parts = {
            "columns": ", ".join(f"{text} AS V{n}" for n, text in enumerate(read, 1)),
            "lobs": "".join(f", DBMS_LOB.GETLENGTH({names[n]}) AS VENUS_LENGTH_{n}" for n in lobs),
            "table": relation,
            "where": where,
        }
        piece_rows = WIDE_PIECE_ROWS if lobs else PIECE_ROWS
        for rows in session.stream(dialect_statement("verify", "rows", **parts), values, piece_rows):
            found = list(zip(*rows, strict=True))
            sizes = dict(zip(lobs, found[len(columns) + 2 :], strict=True))
            yield [self._canonical_values(c, found[n], sizes.get(n)) for n, c in enumerate(columns)]

    def _canonical_values(self, column: Column, values: Seq[Any], sizes: Seq[Any] | None) -> Seq[Value]:
        """Return the canonical values of a column. An empty LOB is read as NULL; only its size shows the difference."""
        if sizes is not None:
            empty: Any = b"" if column.type.kind is Kind.BYTES else ""
            values = [empty if v is None and size == 0 else v for v, size in zip(values, sizes, strict=True)]
        return canonical_texts(self.readings[column.name].rule, values, column.type.scale)

    def plain_row(self, row: tuple[Value, ...]) -> tuple[Value, ...]:
        """Return a row in the form in which it is compared with the one sent: a NUMBER has no trailing zeros."""
        columns = self.layout.columns
        return tuple(compared_value(self.readings[c.name], v) for c, v in zip(columns, row, strict=True))

    def key_condition(self, keys: Seq[tuple[Value, ...]]) -> tuple[str, list[Any]]:
        """Return the condition that a row has one of these canonical keys, and the values of its bind variables."""
        columns = self.layout.columns[: self.layout.key_count]
        binds: list[Any] = []
        cases = ["1 = 0"]
        for key in keys:
            terms, bound = [], []
            with suppress(UnfitValue):  # no row here has this key
                for column, value in zip(columns, key, strict=True):
                    how = self.placed.binding_of(column.name, column.type)
                    bound.append(how.convert(value))
                    place = how.sql.replace("{b}", f":{len(binds) + len(bound)}")
                    terms.append(f"T.{self.placed.column(column.name)} = {place}")
                cases.append(f"({' AND '.join(terms)})")
                binds += bound
        return f"({' OR '.join(cases)})", binds


def require_exact(
    session: OracleTargetSession,
    placed: OracleFollowerPlace,
    schema: TableSchema,
    record_ids: PackedBytes,
    rows: PackedBytes,
    relation: str,
) -> None:
    """Raise Refusal if `relation` holds a row of version `schema` with a value that differs from the one sent."""
    layout = Layout.of(schema)
    sent = dict(zip((c.number for c in layout.columns), to_columns(record_ids, rows, layout), strict=True))
    kept = tuple(c for c in placed.schema.columns if c.number in sent)
    access = placed.access(replace(placed.schema, columns=kept))
    columns, count = access.layout.columns, access.layout.key_count
    wanted = list(zip(*(sent[c.number] for c in columns), strict=True))
    for start in range(0, len(wanted), KEYS_AT_ONCE):
        batch = wanted[start : start + KEYS_AT_ONCE]
        expected = {access.plain_row(row)[:count]: access.plain_row(row) for row in batch}
        where, binds = access.key_condition([row[:count] for row in batch])
        try:
            for piece in access.read_columns(session, relation, where, binds):
                for found in map(access.plain_row, zip(*piece, strict=True)):
                    _require_same(columns, expected.pop(found[:count], found), found)
        except SourceError as unfit:
            raise Refusal(f"the old database would store a value that cannot be read: {unfit}", _CODE) from unfit
        if expected:
            raise Refusal("the old database would store another key", _CODE)


def _require_same(columns: Seq[Column], wanted: tuple[Value, ...], found: tuple[Value, ...]) -> None:
    """Raise Refusal if the row found differs from the one wanted; the error names the column."""
    if wanted != found:
        name = next(c.name for c, w, f in zip(columns, wanted, found, strict=True) if w != f)
        said = f"{_OTHER_VALUE} {name}"
        raise Refusal(said, _CODE, summary=said)
