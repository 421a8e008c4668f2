"""Tables of an Oracle target: the existing ones, and the obstacles to a load (VENUS 3.4)."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from venus.adapters.dialects.oracle.session.options import VERSIONS, Version, version_of
from venus.adapters.targets.oracle import ddl
from venus.adapters.targets.oracle.ddl import OraclePlacedTable, OracleTargetColumn
from venus.adapters.targets.oracle.rowsql import statement
from venus.adapters.targets.oracle.session import OracleTargetSession
from venus.adapters.targets.relational.row_database import TargetFitness
from venus.adapters.targets.relational.stepped_database import SteppedDatabase
from venus.model import Finding, TableSchema

CONSTRAINTS = "foreign keys of its tables are disabled"
_UNICODE = ("AL32UTF8", "UTF8")


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleTargetServer:
    """Version and character set of a server, with the reasons why it cannot be a target."""

    text: str
    version: Version
    problems: tuple[tuple[str, str], ...] = ()  # message, remedy


def read_server(session: OracleTargetSession) -> OracleTargetServer:
    """Read version and character set of the server, and the user's privileges, with the reasons against this target."""
    (version,) = session.row(statement("dictionary", "version")) or ("",)
    (charset,) = session.row(statement("dictionary", "character_set")) or ("",)
    granted = {name for (name,) in session.rows(statement("dictionary", "privileges"))}
    found, problems = version_of(str(version)), []
    if found is None:
        problems.append((f"Oracle {version} is too old: {VERSIONS[0].name} or later is needed", "use another server"))
    if charset not in _UNICODE:
        problems.append((f"its character set is {charset}, which lacks characters", "use a database with AL32UTF8"))
    missing = [name for name in ("CREATE TABLE", "CREATE SEQUENCE") if name not in granted]
    problems += [(f"the user lacks {name}", f'GRANT {name} TO "{session.schema}";') for name in missing]
    (is_source,) = session.row(statement("dictionary", "is_source"), {"owner": session.schema}) or (0,)
    if is_source:
        problems.append((f"schema {session.schema} is a source of VENUS", "let the url name another user"))
    return OracleTargetServer(text=f"Oracle {version}", version=found or VERSIONS[0], problems=tuple(problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleTableFacts:
    """A table in the target's dictionary."""

    kind: str
    columns: tuple[OracleTargetColumn, ...]
    unique_keys: tuple[frozenset[str], ...]
    triggers: tuple[str, ...] = ()
    #: Its enabled foreign keys.
    foreign_keys: tuple[str, ...] = ()


def _names(session: OracleTargetSession, placed: OraclePlacedTable) -> dict[str, str]:
    """Return owner and name of a table as parameters of a query."""
    return {"owner": session.schema, "name": placed.name}


def has_table(session: OracleTargetSession, placed: OraclePlacedTable) -> bool:
    """Return whether a table, or another object of this name, exists."""
    return session.row(statement("dictionary", "object"), _names(session, placed)) is not None


def read_columns(session: OracleTargetSession, name: str) -> tuple[OracleTargetColumn, ...]:
    """Read the columns of a table; empty if it does not exist."""
    rows = session.rows(statement("dictionary", "columns"), {"owner": session.schema, "name": name})
    return tuple(
        OracleTargetColumn(
            name=name,
            declared=format_type(*described),
            not_null=nullable == "N",
            has_default=default is not None,
            is_virtual=virtual == "YES",
        )
        for name, *described, nullable, virtual, default in rows
    )


def format_type(
    data_type: str, data_length: Any, char_length: Any, char_used: str | None, precision: Any, scale: Any
) -> str:
    """Return a type, given by the columns of the dictionary, as the DDL of this target writes it. Pure."""
    if data_type == "NUMBER":
        if precision is None:
            return "NUMBER" if scale is None else f"NUMBER(38,{int(scale)})"
        return f"NUMBER({int(precision)},{int(scale)})" if scale else f"NUMBER({int(precision)})"
    if data_type in ("VARCHAR2", "CHAR"):
        by_chars = char_used == "C"
        return f"{data_type}({int(char_length if by_chars else data_length)} {'CHAR' if by_chars else 'BYTE'})"
    return f"RAW({int(data_length)})" if data_type == "RAW" else data_type


def read_table(session: OracleTargetSession, placed: OraclePlacedTable) -> OracleTableFacts | None:
    """Read a table from the dictionary; None if it does not exist."""
    names = _names(session, placed)
    found = session.row(statement("dictionary", "object"), names)
    if found is None:
        return None
    keys: dict[str, set[str]] = {}
    for index, column in session.rows(statement("dictionary", "unique_keys"), names):
        keys.setdefault(index, set()).add(column)
    enabled = session.rows(statement("dictionary", "foreign_keys"), names)
    return OracleTableFacts(
        kind=found[0],
        columns=read_columns(session, placed.name),
        unique_keys=tuple(map(frozenset, keys.values())),
        triggers=tuple(name for (name,) in session.rows(statement("dictionary", "triggers"), names)),
        foreign_keys=tuple(name for name, status in enabled if status == "ENABLED"),
    )


def table_differences(placed: OraclePlacedTable, there: OracleTableFacts) -> list[str]:
    """Return the reasons why this table cannot be used, one line each. Pure."""
    name = placed.name
    if there.kind != "TABLE":
        return [f"{name} exists already and is a {there.kind.lower()}"]
    found = [f"{name} has trigger {t}, which would repeat what the source's triggers have done" for t in there.triggers]
    disable = f"ALTER TABLE {placed.sql} DISABLE CONSTRAINT"
    found += [
        f"{name} has the foreign key {k}, which acts while VENUS applies: {disable} {k}" for k in there.foreign_keys
    ]
    columns = {c.name: c for c in there.columns}
    key_columns = frozenset(placed.fold(k) for k in placed.schema.key)
    for column in placed.schema.columns:
        folded = placed.fold(column.name)
        have = columns.pop(folded, None)
        if have is None:
            found.append(f"{name}: column {folded} is missing")
            continue
        found += _column_differences(f"{name}.{folded}", placed.types[column.name], have)
        if have.not_null and column.nullable and folded not in key_columns:
            found.append(f"{name}.{folded} is NOT NULL, the source allows NULL")
    found += [
        f"{name}.{c.name} is NOT NULL without a default, and the source does not have it"
        for c in columns.values()
        if c.not_null and not c.has_default and not c.is_virtual
    ]
    if key_columns not in there.unique_keys:
        found.append(f"{name} has no primary key or unique index on ({', '.join(sorted(key_columns))})")
    return found


def _column_differences(where: str, wanted: str, have: OracleTargetColumn) -> Iterator[str]:
    """Yield the reasons why an existing column cannot hold the source's values, one line each."""
    if have.is_virtual:
        yield f"{where} is virtual and cannot be written"
    elif not ddl.can_widen(wanted, have.declared):
        yield f"{where} is {have.declared}, the source needs {wanted}"


def find_missing_indexes(session: OracleTargetSession, placed: OraclePlacedTable) -> list[str]:
    """Return the statements that create the indexes which the table does not have."""
    there = {name for (name,) in session.rows(statement("dictionary", "indexes"), _names(session, placed))}
    return ddl.index_statements(placed, there)


def find_missing_foreign_keys(
    session: OracleTargetSession, placed: OraclePlacedTable, others: Seq[OraclePlacedTable]
) -> list[str]:
    """Return the statements that add the foreign keys which the table does not have."""
    there = {name for name, _ in session.rows(statement("dictionary", "foreign_keys"), _names(session, placed))}
    return ddl.foreign_key_statements(placed, others, there)


# -- before a load -----------------------------------------------------------------------------------------------------


def examine(target: SteppedDatabase, session: OracleTargetSession, schemas: Seq[TableSchema]) -> TargetFitness:
    """Return facts about the server, and what prevents a load. Raises Refused if names or keys do not fit."""
    where = f"target {target.name}"
    server = read_server(session)
    found = [(where, message, remedy) for message, remedy in server.problems]
    placed = target.place_all(schemas)
    most = server.version.identifier_bytes
    for one in placed:
        for name in ddl.find_long_names(one, most):
            message = f"{name} is longer than {most} bytes, the names of Oracle {server.version.name}"
            found.append((one.schema.qualified_name, message, "rename it at the source, or use Oracle 12.2 or later"))
    found += target.find_obstacles(session, placed)
    remarks = [
        Finding(where=where, message=f"{len(details)} {message}", details=tuple(details))
        for message, details in (
            ("columns become text: Oracle has no type that holds their values exactly", _list_text_columns(placed)),
            (
                "columns refuse an empty value, for which Oracle stores NULL: such a row waits",
                _list_without_empty(placed),
            ),
        )
        if details
    ]
    return TargetFitness(text=f"{server.text}; {CONSTRAINTS}", obstacles=found, remarks=remarks)


def _list_text_columns(placed: Seq[OraclePlacedTable]) -> list[str]:
    """Return the columns that become text because no type holds their values exactly."""
    return [line for one in placed for line in ddl.text_columns(one.schema)]


def _list_without_empty(placed: Seq[OraclePlacedTable]) -> list[str]:
    """Return the columns that refuse an empty text or binary value."""
    return [line for one in placed for line in ddl.columns_without_empty_text(one)]
