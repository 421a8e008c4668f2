"""Tables of a MariaDB or MySQL target: the existing ones, and the obstacles to a load (VENUS 3.4)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from venus.adapters.targets.mysql import ddl
from venus.adapters.targets.mysql.naming import MysqlPlacedTable, place_all, quote
from venus.adapters.targets.mysql.rowsql import statement
from venus.adapters.targets.mysql.session import MysqlSession
from venus.adapters.targets.mysql.types import is_text
from venus.adapters.targets.relational.row_database import TargetFitness
from venus.adapters.targets.relational.stepped_database import SteppedDatabase, try_all
from venus.model import Finding, TableSchema, count_phrase

MARIADB_MIN, MYSQL_MIN = (10, 6), (8, 0, 17)
CONSTRAINTS = "foreign keys are off while VENUS applies (foreign_key_checks = 0)"
#: Matches the display width that integers have in MariaDB and in old versions of MySQL.
_WIDTH = re.compile(r"^(smallint|int|bigint)\(\d+\)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Version and settings of a server, with the reasons why it cannot be a target."""

    is_mariadb: bool
    version: tuple[int, ...]
    text: str
    folds_names: bool = False  # lower_case_table_names
    problems: tuple[str, ...] = ()


def read_server(session: MysqlSession) -> ServerFacts:
    """Read version and settings of the server, with the reasons why it cannot be a target."""
    found = session.row(statement("dictionary", "server"))
    assert found is not None
    text, comment, folds, engine, log_bin, binlog_format, _, read_only = found
    is_mariadb = "mariadb" in f"{text} {comment}".lower()
    version = tuple(int(n) for n in re.findall(r"\d+", str(text))[:3])
    least = MARIADB_MIN if is_mariadb else MYSQL_MIN
    name = "MariaDB" if is_mariadb else "MySQL"
    problems = []
    if version < least:
        problems.append(f"{name} {text} is too old: {'.'.join(map(str, least))} or later is needed")
    if str(engine).lower() != "innodb":
        problems.append(f"its default storage engine is {engine}: transactions need InnoDB")
    if int(log_bin) and str(binlog_format).upper() == "STATEMENT":
        problems.append("binlog_format is STATEMENT, which refuses the isolation level of VENUS: set ROW or MIXED")
    if str(read_only).upper() not in ("0", "OFF", "FALSE"):
        problems.append("it is read-only: let the url name the server that accepts writes")
    return ServerFacts(
        is_mariadb=is_mariadb,
        version=version,
        text=f"{name} {text}",
        folds_names=bool(int(folds)),
        problems=tuple(problems),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlColumn:
    """A column in the target's dictionary."""

    name: str
    type: str
    not_null: bool
    charset: str
    collation: str
    filled: bool
    generated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlTableFacts:
    """A table in the target's dictionary."""

    kind: str
    engine: str
    columns: tuple[MysqlColumn, ...]
    unique_keys: tuple[frozenset[str], ...]
    triggers: tuple[str, ...] = ()


def read_columns(session: MysqlSession, placed: MysqlPlacedTable) -> tuple[MysqlColumn, ...]:
    """Read the columns of a table; empty if it does not exist."""
    rows = session.rows(statement("dictionary", "columns"), _names(placed))
    return tuple(
        MysqlColumn(
            name=name,
            type=_WIDTH.sub(r"\1", declared),
            not_null=bool(not_null),
            charset=charset,
            collation=collation,
            filled=bool(filled),
            generated=bool(generated),
        )
        for name, declared, not_null, charset, collation, filled, generated in rows
    )


def _names(placed: MysqlPlacedTable) -> dict[str, str]:
    """Return database and name of a table as parameters of a query."""
    return {"database": placed.namespace, "name": placed.name}


def read_table(session: MysqlSession, placed: MysqlPlacedTable) -> MysqlTableFacts | None:
    """Read a table from the dictionary; None if it does not exist."""
    found = session.row(statement("dictionary", "table"), _names(placed))
    if found is None:
        return None
    keys: dict[str, set[str]] = {}
    for index, column in session.rows(statement("dictionary", "unique_keys"), _names(placed)):
        keys.setdefault(index, set()).add(column.lower())
    triggers = session.rows(statement("dictionary", "triggers"), _names(placed))
    return MysqlTableFacts(
        kind=found[0],
        engine=found[1],
        columns=read_columns(session, placed),
        unique_keys=tuple(map(frozenset, keys.values())),
        triggers=tuple(name for (name,) in triggers),
    )


def table_differences(placed: MysqlPlacedTable, there: MysqlTableFacts) -> list[str]:
    """Return the reasons why this table cannot be used, one line each. Pure."""
    name = placed.name
    if there.kind != "BASE TABLE" or there.engine.lower() != "innodb":
        return [f"{name} exists already and is {there.engine or there.kind}: only InnoDB tables have transactions"]
    found = [
        f"{name} has trigger {trigger}, which would repeat what the source's triggers have done"
        for trigger in there.triggers
    ]
    columns = {c.name.lower(): c for c in there.columns}
    key = frozenset(placed.fold(k).lower() for k in placed.schema.key)
    for column in placed.schema.columns:
        folded = placed.fold(column.name)
        have = columns.pop(folded.lower(), None)
        if have is None:
            found.append(f"{name}: column {folded} is missing")
            continue
        found += _column_differences(f"{name}.{folded}", placed.types[column.name], have, in_key=folded.lower() in key)
        if have.not_null and column.nullable and folded.lower() not in key:
            found.append(f"{name}.{folded} is NOT NULL, the source allows NULL")
    found += [
        f"{name}.{c.name} is NOT NULL without a default, and the source does not have it"
        for c in columns.values()
        if c.not_null and not c.filled and not c.generated
    ]
    if key not in there.unique_keys:
        found.append(f"{name} has no primary key or unique index on ({', '.join(sorted(key))})")
    return found


def _column_differences(where: str, wanted: str, have: MysqlColumn, *, in_key: bool) -> Iterator[str]:
    """Yield the reasons why an existing column cannot hold the source's values, one line each."""
    if have.type.startswith("timestamp"):
        yield f"{where} is {have.type}, which ends in 2038: make it {wanted}"
    elif have.type != wanted and not ddl.can_widen(wanted, have.type):
        yield f"{where} is {have.type}, the source needs {wanted}"
    if is_text(wanted) and have.charset not in ("utf8mb4", ""):
        yield f"{where} has the character set {have.charset}, not utf8mb4: it lacks characters"
    if is_text(wanted) and in_key and not have.collation.endswith(("nopad_bin", "0900_bin")):
        yield f"{where} has the collation {have.collation}, in which keys that differ at the source are equal"
    if have.generated:
        yield f"{where} is generated and cannot be written"


# -- indexes and foreign keys ------------------------------------------------------------------------------------------


def find_missing_indexes(session: MysqlSession, placed: MysqlPlacedTable) -> list[str]:
    """Return the statements that create the indexes which the table does not have."""
    there = [name for (name,) in session.rows(statement("dictionary", "indexes"), _names(placed))]
    return ddl.index_statements(placed, there)


def add_foreign_keys(session: MysqlSession, placed: MysqlPlacedTable, others: Sequence[MysqlPlacedTable]) -> list[str]:
    """Create missing foreign keys; return the rejected ones. VENUS's sessions do not enforce foreign keys."""
    there = [key.name for key in read_foreign_keys(session, [placed])]
    return try_all(session, ddl.foreign_key_statements(placed, others, there))


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlForeignKey:
    """A foreign key in the target's dictionary."""

    name: str
    child: str
    parent_database: str
    parent: str
    #: The columns of the child, each with the parent's column.
    columns: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """The foreign key as text for messages."""
        return f"{self.child} ({', '.join(column for column, _ in self.columns)}) -> {self.parent}"


def read_foreign_keys(session: MysqlSession, placed: Sequence[MysqlPlacedTable]) -> list[MysqlForeignKey]:
    """Read the foreign keys of tables."""
    named = {"tables": [one.name for one in placed] or [""]}
    columns: dict[tuple[str, str, str, str], list[tuple[str, str]]] = {}
    for name, child, database, parent, *pair in session.rows(statement("dictionary", "foreign_keys"), named):
        columns.setdefault((name, child, database, parent), []).append((pair[0], pair[1]))
    return [
        MysqlForeignKey(name=name, child=child, parent_database=database, parent=parent, columns=tuple(pairs))
        for (name, child, database, parent), pairs in columns.items()
    ]


def count_orphans(session: MysqlSession, key: MysqlForeignKey) -> tuple[int, str]:
    """Return how many rows violate a foreign key, because they have no parent, and the values of one such row."""
    mine = [f"c.{quote(column)}" for column, _ in key.columns]
    query = statement(
        "dictionary",
        "orphans",
        child=f"{quote(session.database)}.{quote(key.child)}",
        parent=f"{quote(key.parent_database)}.{quote(key.parent)}",
        child_columns=", ".join(mine),
        all_set=" AND ".join(f"{column} IS NOT NULL" for column in mine),
        match=" AND ".join(f"p.{quote(referred)} = c.{quote(column)}" for column, referred in key.columns),
    )
    orphans, example = session.row(query) or (0, "")
    return int(orphans), str(example)


def find_violated_keys(session: MysqlSession, placed: Sequence[MysqlPlacedTable]) -> list[str]:
    """Return the foreign keys that rows violate, one line each: VENUS's session adds them without a check."""
    found = []
    for key in read_foreign_keys(session, placed):
        orphans, example = count_orphans(session, key)
        if orphans:
            rows = count_phrase(orphans, "row")
            found.append(f"foreign key {key.name} of {key.text}: {rows} without a parent, such as {example}")
    return found


# -- before a load -----------------------------------------------------------------------------------------------------


def examine(target: SteppedDatabase, session: MysqlSession, schemas: Sequence[TableSchema]) -> TargetFitness:
    """Return facts about the server, and what prevents a load. Raises Refused if names or keys do not fit."""
    where = f"target {target.name}"
    server = read_server(session)
    found = [(where, problem, "use another server") for problem in server.problems]
    placed = place_all(schemas, session.database, target.config.names, target.name)
    fold = f'names = "lower" in [targets.{target.name}]'
    found += [
        (one.schema.qualified_name, "has capitals, and lower_case_table_names folds them", fold)
        for one in placed
        if server.folds_names and one.name != one.name.lower()
    ]
    charset = session.row(statement("dictionary", "database"), {"database": session.database})
    if charset and charset[0] != "utf8mb4":
        remedy = f"ALTER DATABASE `{session.database}` CHARACTER SET utf8mb4;"
        found.append((where, f"database {session.database} has the character set {charset[0]}, not utf8mb4", remedy))
    found += target.find_obstacles(session, placed)
    texts = [line for schema in schemas if not schema.is_heartbeat for line in ddl.text_columns(schema)]
    message = f"{len(texts)} columns become text: MariaDB and MySQL have no type that holds their values exactly"
    remarks = [Finding(where=where, message=message, details=tuple(texts))] if texts else []
    return TargetFitness(text=f"{server.text}; {CONSTRAINTS}", obstacles=found, remarks=remarks)
