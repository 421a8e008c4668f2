"""The dictionary of one database: its tables, what identifies a row, and which foreign keys change rows.

`MysqlTable` holds everything that capture needs of a table: the schema that travels, and what only this dialect
uses.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from venus.adapters.dialects.column_choice import Patterns, split_by_columns
from venus.adapters.dialects.mysql.connection import MysqlConnection, MysqlNotPermitted, Row
from venus.adapters.dialects.mysql.dictionary import structure as structures
from venus.adapters.dialects.mysql.dictionary.types import MysqlDeclaredType, key_problem, logical_type
from venus.adapters.dialects.mysql.sql import HEARTBEAT, is_own_table, literal, quote, statement
from venus.errors import UnsupportedType
from venus.model import Check, Column, ForeignKey, Index, Kind, LeftOut, TableSchema

_AUTO_INCREMENT = re.compile(r" AUTO_INCREMENT=\d+")
_QUOTED = re.compile(r"`(?:[^`]|``)*`")
_WORDS = re.compile(r"`(?:[^`]|``)*`|'(?:[^'\\]|''|\\.)*'")
#: A line of SHOW CREATE TABLE that declares a column.
_DEFINED = re.compile(r"^  `((?:[^`]|``)+)` ", re.MULTILINE)
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
_TEXT = re.compile(r"'(?:[^'\\]|'')*'")
_TEMPORAL = (Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ)
#: "DEFAULT CURRENT_TIMESTAMP" in the spellings of MariaDB and MySQL.
_NOW = re.compile(r"current_timestamp(\(\d*\))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlReference:
    """A foreign key with its referential actions."""

    name: str
    child: str
    columns: tuple[str, ...]
    parent_database: str
    parent: str
    referred: tuple[str, ...]
    on_delete: str
    on_update: str

    @property
    def foreign_key(self) -> ForeignKey:
        """The foreign key in the form of a table's schema, which the broker and the targets get."""
        return ForeignKey(
            name=self.name,
            columns=self.columns,
            referred_namespace=self.parent_database,
            referred_table=self.parent,
            referred_columns=self.referred,
            on_delete=_referential_action(self.on_delete),
            on_update=_referential_action(self.on_update),
        )


@dataclass(frozen=True, slots=True)
class _TableRows:
    """The dictionary's rows about the columns, indexes, foreign keys and checks of one table."""

    columns: list[Row]
    indexes: list[Row]
    references: list[MysqlReference]
    json: set[tuple[str, str]]  # of all tables
    more: structures.MysqlStructureRows


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlTable:
    """A table as the dictionary describes it now. `key` is empty if nothing identifies its rows."""

    database: str
    name: str
    engine: str
    comment: str
    rows_estimate: int
    columns: tuple[Column, ...]
    declared: Mapping[str, MysqlDeclaredType]
    key: tuple[str, ...]
    key_problems: tuple[str, ...]
    indexes: tuple[Index, ...]
    foreign_keys: tuple[ForeignKey, ...]
    unsupported: tuple[tuple[str, str], ...]
    checks: tuple[Check, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    #: The expressions of generated columns, by column.
    expressions: Mapping[str, str] = field(default_factory=dict)
    #: Whether this user sees the checks of this table. MariaDB hides them from users with privileges on single tables.
    shows_checks: bool = False
    #: When the server last wrote the definition, and whether it may have written it again since without a trace.
    written: str = ""
    is_recent: bool = True

    @property
    def sql(self) -> str:
        """The qualified name in quotes, for statements."""
        return f"{quote(self.database)}.{quote(self.name)}"

    @property
    def where(self) -> str:
        """The qualified name without quotes, for messages."""
        return f"{self.database}.{self.name}"

    def to_schema(
        self, table_id: int, version: int, known: TableSchema | None = None, number_max: int = 0
    ) -> TableSchema:
        """Return the schema to send to the broker; columns of `known` keep their numbers, new columns get new ones."""
        numbers = {c.name: c.number for c in known.columns} if known else {}
        columns = []
        for column in self.columns:
            number_max += column.name not in numbers
            columns.append(replace(column, number=numbers.get(column.name, number_max)))
        return TableSchema(
            table_id=table_id,
            version=version,
            namespace=self.database,
            name=self.name,
            columns=tuple(columns),
            key=self.key,
            indexes=self.indexes,
            foreign_keys=self.foreign_keys,
            comment=self.comment,
            source_dialect="mysql",
            checks=self.checks,
            left_out=self.left_out,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlDictionary:
    """The tables and foreign keys of a database, as its dictionary describes them at one moment."""

    tables: Mapping[str, MysqlTable]
    references: tuple[MysqlReference, ...]

    def choose_tables(self, include: Seq[str], exclude: Seq[str]) -> list[MysqlTable]:
        """Return the application's tables that the patterns choose."""
        application = {t.name: t for t in self.tables.values() if not is_own_table(t.name, t.comment)}
        database = next((t.database for t in application.values()), "")
        return [application[name] for name in choose_names(database, application, include, exclude)]


def choose_names(database: str, names: Iterable[str], include: Seq[str], exclude: Seq[str]) -> list[str]:
    """Return the tables of a database that the patterns choose."""
    included, excluded = Patterns(include), Patterns(exclude)
    return [
        name
        for name in names
        if included.match(*(forms := pattern_names(database, name))) and not excluded.match(*forms)
    ]


def pattern_names(database: str, name: str) -> tuple[str, str]:
    """Return the names by which a pattern may match a table: with and without the database."""
    return name, f"{database}.{name}"


def read_table_names(connection: MysqlConnection) -> list[str]:
    """Return the application's tables, including those that cannot be captured."""
    parts = {"database": literal(connection.address.database)}
    return [r[0] for r in connection.rows(statement("dictionary", "tables", **parts)) if not is_own_table(r[0], r[3])]


def read_dictionary(connection: MysqlConnection, *, zero_dates_null: bool) -> MysqlDictionary:
    """Read the dictionary of the whole database."""
    database = connection.address.database
    parts = {"database": literal(database), "only": ""}
    json = _read_json_columns(connection, parts)
    columns, indexes = _read_by_table(connection, "columns", parts), _read_by_table(connection, "indexes", parts)
    keys = connection.rows(statement("dictionary", "foreign_keys", **parts))
    references = _build_references(_add_actions(connection, database, keys))
    more = structures.read_structure(connection, {"database": parts["database"]}, mariadb=is_mariadb(connection))
    tables = {}
    for row in connection.rows(statement("dictionary", "tables", **parts)):
        name, own = row[0], [r for r in references if r.child == row[0]]
        rows = _TableRows(columns[name], indexes[name], own, json, more[name])
        left = connection.address.columns.excluded_columns(database, name, ((r[0], r[2]) for r in rows.columns))
        tables[name] = _build_table(database, row, rows, left, null=zero_dates_null)
    return MysqlDictionary(tables=tables, references=tuple(references))


def _read_json_columns(connection: MysqlConnection, parts: Mapping[str, str]) -> set[tuple[str, str]]:
    """Return table and name of MariaDB's JSON columns, whose declared type is LONGTEXT; empty at MySQL."""
    if not is_mariadb(connection):
        return set()
    return {(r[0], r[1]) for r in connection.rows(statement("dictionary", "json_checks", **parts))}


def is_mariadb(connection: MysqlConnection) -> bool:
    """Return whether the server is MariaDB rather than MySQL."""
    if not connection.version:
        connection.version = str(connection.row("SELECT version()")[0]).lower()
    return "mariadb" in connection.version


def _read_by_table(connection: MysqlConnection, query: str, parts: Mapping[str, str]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in connection.rows(statement("dictionary", query, **parts)):
        found[row[0]].append(row[1:])
    return found


def _add_actions(connection: MysqlConnection, database: str, rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows of foreign keys with their referential actions, taken from the definition if hidden."""
    texts: dict[str, str] = {}
    for row in rows:
        name, _, table, _, _, on_delete, *_ = row
        if on_delete:
            yield row
            continue
        if table not in texts:
            try:
                texts[table] = read_definition(connection, f"{quote(database)}.{quote(table)}")
            except MysqlNotPermitted:
                texts[table] = ""
        yield (*row[:5], *parse_actions(texts[table], name), *row[7:])


def parse_actions(text: str, name: str) -> tuple[str, str]:
    """Return the actions of a foreign key on DELETE and on UPDATE, according to a definition."""
    for line in text.split("\n"):
        if line.startswith(f"  CONSTRAINT {quote(name)} FOREIGN KEY "):
            bare = _QUOTED.sub("", line)
            found = (re.search(rf" ON {event} ([A-Z]+(?: [A-Z]+)?)", bare) for event in ("DELETE", "UPDATE"))
            on_delete, on_update = (rule[1].removesuffix(" ON") if rule else "RESTRICT" for rule in found)
            return on_delete, on_update
    return "", ""


def _build_references(rows: Iterable[Row]) -> list[MysqlReference]:
    parts: dict[Row, list[tuple[str, str]]] = defaultdict(list)
    for row in rows:
        parts[row[:7]].append((row[7], row[8]))
    return [
        MysqlReference(
            name=name,
            child=child,
            columns=tuple(c for c, _ in pairs),
            parent_database=parent_database,
            parent=parent,
            referred=tuple(r for _, r in pairs),
            on_delete=on_delete,
            on_update=on_update,
        )
        for (name, _, child, parent_database, parent, on_delete, on_update), pairs in parts.items()
    ]


def _build_table(database: str, row: Row, rows: _TableRows, left: Seq[LeftOut], *, null: bool) -> MysqlTable:
    """Build a table from the dictionary's rows, without the columns `left`; `null`: zero dates become NULL."""
    name, _, engine, comment, estimate, written, recent = row
    found, declared, unsupported = [], {}, []
    columns, gone = rows.columns, frozenset(o.name for o in left)
    for column in columns:
        one = declared[column[0]] = _declared_type(column, is_json=(name, column[0]) in rows.json)
        if column[0] in gone:
            continue
        try:
            found.append(_build_column(column, one, null=null))
        except UnsupportedType as why:
            unsupported.append((column[0], str(why)))
    # every key of a system-versioned table includes the row's end time, which differs when a trigger sees a deletion
    indexes = [i for i in rows.indexes if i[2] not in {r[0] for r in columns if r[13].upper() == "ROW END"}]
    required = {c.name for c in found if not c.nullable} | {r[0] for r in columns if r[9] == "0"}
    key, problems = _choose_key(indexes, declared, required, gone)
    keys = tuple(r.foreign_key for r in rows.references)
    made = structures.build_structure(name, rows.more, found, declared, key, columns)
    return MysqlTable(
        database=database,
        name=name,
        engine=engine,
        comment=comment,
        rows_estimate=int(estimate),
        columns=tuple(found),
        declared=declared,
        key=key,
        key_problems=problems,
        indexes=tuple(made.indexes),
        checks=tuple(made.checks),
        left_out=(*made.left_out, *left, *split_by_columns(gone, (), (), keys)[3]),
        foreign_keys=split_by_columns(gone, (), (), keys)[2],
        unsupported=tuple(unsupported),
        expressions={r[0]: r[13] for r in columns if r[13]},
        shows_checks=bool(rows.more.checks),
        written=written,
        is_recent=recent != "0",
    )


def _declared_type(row: Row, *, is_json: bool) -> MysqlDeclaredType:
    _, data_type, column_type, charset, collation, length, precision, scale, fraction = row[:9]
    return MysqlDeclaredType(
        data_type=data_type,
        column_type=column_type,
        charset=charset,
        collation=collation,
        length=int(length),
        precision=int(precision),
        scale=int(scale),
        fraction=int(fraction),
        is_json=is_json,
    )


def _build_column(row: Row, declared: MysqlDeclaredType, *, null: bool) -> Column:
    name, nullable, extra, default, comment = row[0], row[9] == "1", row[10], row[11], row[12]
    kind = logical_type(declared)
    generated = "GENERATED" in extra.upper() and "DEFAULT_GENERATED" not in extra.upper()
    return Column(
        name=name,
        number=0,
        type=kind,
        nullable=nullable or (null and kind.kind in _TEMPORAL),
        source_type=declared.column_type,
        default_sql="" if generated else portable_default(default, kind.kind),
        identity="auto_increment" in extra.lower() or structures.parse_sequence(default) != "",
        comment=comment,
    )


def portable_default(default: str | None, kind: Kind) -> str:
    """Return the default as standard SQL, empty if it has no portable form: the rows bring their values anyway."""
    text = (default or "").strip()
    if kind in (Kind.INT, Kind.DECIMAL, Kind.FLOAT):
        return text if _NUMBER.fullmatch(text) else ""
    if kind is Kind.TEXT:
        return text if _TEXT.fullmatch(text) else ""
    if kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        return "CURRENT_TIMESTAMP" if _NOW.fullmatch(text) else ""
    return ""


def _group_by_index(indexes: list[Row]) -> dict[str, list[Row]]:
    by_name: dict[str, list[Row]] = defaultdict(list)
    for row in indexes:
        by_name[row[0]].append(row[1:])
    return by_name


def _choose_key(
    indexes: list[Row], declared: Mapping[str, MysqlDeclaredType], required: set[str], gone: AbstractSet[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what identifies a row: the primary key, else the first unique index whose columns are NOT NULL.

    The second value lists the unique indexes that are unusable, with the reasons.
    """
    problems = []
    for name, rows in _group_by_index(indexes).items():
        columns = tuple(r[1] for r in rows)
        if rows[0][0] != "1":
            continue
        shown = f"{name} ({', '.join(str(c) for c in columns)})"
        if any(c is None for c in columns) or any(r[2] == "1" for r in rows):
            problems.append(f"{shown} covers an expression or only the beginning of a value")
        elif not gone.isdisjoint(columns):
            problems.append(f"{shown} has a column that is excluded in [source.columns]")
        elif not set(columns) <= required:
            problems.append(f"{shown} has columns that may be NULL")
        elif why := next((p for c in columns if (p := key_problem(declared[c]))), ""):
            problems.append(f"{shown}: {why}")
        else:
            return columns, ()
    return (), tuple(problems)


def _referential_action(rule: str) -> str:
    """Return the action of a foreign key for a table's schema: empty if it changes no row of the child."""
    return "" if rule in ("NO ACTION", "RESTRICT") else rule


def read_definition(connection: MysqlConnection, table: str) -> str:
    """Return the present definition of a table, without the AUTO_INCREMENT counter."""
    text = str(connection.row(statement("dictionary", "definition", table=table))[1])
    return _AUTO_INCREMENT.sub("", text)


def has_checks(definition: str) -> bool:
    """Return whether a definition has checks, including those that information_schema hides from this user."""
    return " CHECK (" in _WORDS.sub("", definition)


def parse_columns(definition: str) -> list[str]:
    """Return the columns of a definition, including those that information_schema hides from this user."""
    return [name.replace("``", "`") for name in _DEFINED.findall(definition)]


def heartbeat_table(database: str) -> MysqlTable:
    """Return VENUS's heartbeat table as it will be. A plan needs its description before the table exists."""
    declared = {
        "id": MysqlDeclaredType(data_type="int", column_type="int(11)", precision=10),
        "beat_at": MysqlDeclaredType(data_type="bigint", column_type="bigint(20)", precision=19),
    }
    return MysqlTable(
        database=database,
        name=HEARTBEAT,
        engine="InnoDB",
        comment="",
        rows_estimate=1,
        columns=tuple(
            Column(name=n, number=0, type=logical_type(d), nullable=False, source_type=d.column_type)
            for n, d in declared.items()
        ),
        declared=declared,
        key=("id",),
        key_problems=(),
        indexes=(),
        foreign_keys=(),
        unsupported=(),
    )
