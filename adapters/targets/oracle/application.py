"""Tables of the application in an Oracle database that follows (`@source`), beside VENUS's own tables.

Their columns have types of the application's choice. The server rounds fractions, stores NULL for an empty text, and
replaces characters that its character set lacks, all silently. So rows are read back as capture reads them, in the same
transaction, and a value that differs from the one that was sent is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

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
from venus.adapters.targets.relational.place import UnfitValue
from venus.adapters.targets.relational.session import Refusal
from venus.codec.columns import Value, to_columns
from venus.codec.packed import PackedBytes
from venus.codec.row_bytes import Layout
from venus.errors import SourceError, TargetError
from venus.model import Column, Kind, LogicalType, TableSchema

if TYPE_CHECKING:
    from venus.adapters.targets.oracle.session import OracleTargetSession

_OTHER_VALUE = "the old database would store another value in column"
#: The state of such a row in quarantine.
_CODE = "ORA-12899"


class OracleApplicationTables:
    """The tables of the user's schema as its dictionary describes them, read when they are first needed."""

    def __init__(self, url: Callable[[], str], type_map: Mapping[str, str]) -> None:
        self._url = url
        self._type_map = type_map
        self._tables: dict[str, OracleTable] = {}
        self._has_read = False

    def forget(self) -> None:
        """Read the dictionary again at the next use."""
        self._tables, self._has_read = {}, False

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
            session.rollback()
        self._has_read = True
        return list(self._tables.values())


@dataclass(frozen=True, kw_only=True)
class OracleFollowerPlace(OraclePlacedTable):
    """A table of the stream, and the table of the application that has its name; None = there is none yet."""

    application: OracleTable | None

    def fold(self, name: str) -> str:
        return name

    @cached_property
    def types(self) -> dict[str, str]:
        own = {name: declare(reading.declared) for name, reading in self._readings.items()}
        return declared_columns(self.schema) | {name: own[name] for name in own if self._has(name)}

    def binding_of(self, name: str, kind: LogicalType) -> ColumnBinding:
        reading = self._readings.get(name)
        return bind(reading) if reading is not None else super().binding_of(name, kind)

    @property
    def _readings(self) -> Mapping[str, OracleReading]:
        return self.application.readings if self.application is not None else {}

    def _has(self, name: str) -> bool:
        return any(c.name == name for c in self.schema.columns)

    def access(self, schema: TableSchema) -> OracleFollowerAccess:
        """Return how the rows of the table are read as canonical text, with these columns."""
        missing = [c.name for c in schema.columns if c.name not in self._readings]
        if missing:
            raise TargetError(f"{self.name} has no column {', '.join(missing)} in the old database")
        return OracleFollowerAccess(placed=self, layout=Layout.of(schema), readings=self._readings)


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleFollowerAccess:
    """How the rows of a table of the application are read and found."""

    placed: OracleFollowerPlace
    layout: Layout
    readings: Mapping[str, OracleReading]

    def read_columns(
        self, session: OracleTargetSession, relation: str, where: str, values: Seq[Any]
    ) -> Iterator[list[Seq[Value]]]:
        """Yield the canonical values of rows in pieces, column by column in wire order."""
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
            yield [self._canonical(c, found[n], sizes.get(n)) for n, c in enumerate(columns)]

    def _canonical(self, column: Column, values: Seq[Any], sizes: Seq[Any] | None) -> Seq[Value]:
        """Return the canonical values of a column; an empty LOB comes as NULL, and only its size tells it from none."""
        if sizes is not None:
            empty: Any = b"" if column.type.kind is Kind.BYTES else ""
            values = [empty if v is None and size == 0 else v for v, size in zip(values, sizes, strict=True)]
        return canonical_texts(self.readings[column.name].rule, values, column.type.scale)

    def plain_row(self, row: tuple[Value, ...]) -> tuple[Value, ...]:
        """Return the canonical values of a row as they are compared with those that were sent."""
        columns = self.layout.columns
        return tuple(compared_value(self.readings[c.name], v) for c, v in zip(columns, row, strict=True))

    def key_condition(self, keys: Seq[tuple[Value, ...]]) -> tuple[str, list[Any]]:
        """Return the condition that a row has one of these canonical keys, and its binds."""
        columns = self.layout.columns[: self.layout.key_count]
        binds: list[Any] = []
        cases = ["1 = 0"]
        for key in keys:
            terms, bound = [], []
            with suppress(UnfitValue):  # no row here has it
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
    """Raise Refusal for a row of version `schema` that `relation` holds with another value than was sent."""
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
    if wanted != found:
        name = next(c.name for c, w, f in zip(columns, wanted, found, strict=True) if w != f)
        said = f"{_OTHER_VALUE} {name}"
        raise Refusal(said, _CODE, summary=said)
