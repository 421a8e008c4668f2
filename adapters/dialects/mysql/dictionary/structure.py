"""Structure of a MariaDB or MySQL table: checks, indexes, defaults (VENUS 3.4).

The structure is expressed in SQL that means the same in PostgreSQL. Any part without an equivalent in PostgreSQL is
listed with the reason. MariaDB and MySQL compare most texts regardless of case while PostgreSQL compares exactly, so
VENUS only proposes checks that compare texts regardless of case.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from venus.adapters.dialects.contract import Numbering, OtherObject
from venus.adapters.dialects.mysql.connection import MysqlConnection, Row
from venus.adapters.dialects.mysql.dictionary.types import MysqlDeclaredType
from venus.adapters.dialects.mysql.sql import literal, quote, statement
from venus.adapters.dialects.portable_sql import ColumnFact, Grammar, NotPortableError, add_check, to_postgresql_term
from venus.errors import DatabaseUnavailable, SourceError
from venus.model import Check, Column, Index, LeftOut

GRAMMAR = Grammar(name="mysql", length_in_bytes=True)
_FULLTEXT = "PostgreSQL finds words by other means (tsvector and GIN)"
_WEAKER = "the source also refuses texts that differ only in case, accents or blanks at the end; here they are two"
_NOT_ENFORCED = "the source does not enforce it, so rows may violate it"
#: DEFAULT (NEXT VALUE FOR sequence) as MariaDB's dictionary has it.
_NEXT_VALUE = re.compile(r"nextval\((?:`(?:[^`]|``)+`\.)?`((?:[^`]|``)+)`\)")
_BEGINNING = "it covers only the beginning of a value; the whole one may be too long for an index"


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlStructureRows:
    """The rows of information_schema about the indexes and checks of one table."""

    indexes: list[Row] = field(default_factory=list)
    checks: list[Row] = field(default_factory=list)


@dataclass(slots=True)
class MysqlStructure:
    """The checks and indexes of one table that a target can have, and a record of everything left out."""

    checks: list[Check] = field(default_factory=list)
    indexes: list[Index] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)


def read_structure(
    connection: MysqlConnection, parts: Mapping[str, str], *, mariadb: bool
) -> Mapping[str, MysqlStructureRows]:
    """Read the dictionary's rows about indexes and checks of all tables of a database, by table name."""
    found: dict[str, MysqlStructureRows] = defaultdict(MysqlStructureRows)
    expression = "NULL" if mariadb else "s.expression"
    for row in connection.rows(statement("structure", "indexes", expression=expression, **parts)):
        found[row[0]].indexes.append(row[1:])
    for row in connection.rows(statement("structure", f"checks_{'mariadb' if mariadb else 'mysql'}", **parts)):
        # MySQL escapes the whole condition, so its constants begin with \'
        found[row[0]].checks.append((row[1], row[2] if mariadb else row[2].replace("\\'", "'"), *row[3:]))
    return found


def build_structure(
    name: str,
    rows: MysqlStructureRows,
    columns: Sequence[Column],
    declared: Mapping[str, MysqlDeclaredType],
    key: tuple[str, ...],
    column_rows: Iterable[Row],
) -> MysqlStructure:
    """Translate the checks and indexes of one table into those that a target can have. Pure."""
    found = MysqlStructure()
    facts = {c.name.lower(): ColumnFact(name=c.name, type=c.type, exact=_is_exact(declared[c.name])) for c in columns}
    for constraint, text, of_column, is_enforced in rows.checks:
        shown = f"{name}_{constraint}_check" if of_column == "1" else constraint
        if is_enforced != "1":
            found.left_out.append(LeftOut(what="check constraint", name=shown, definition=text, reason=_NOT_ENFORCED))
            continue
        why = add_check(shown, text, GRAMMAR, facts, found.checks)
        found.left_out += [why] if why else []
    for column in columns:
        _add_type_checks(name, column, declared[column.name], found)
    _add_left_out_properties(column_rows, {c.name: c for c in columns}, found)
    by_name: dict[str, list[Row]] = defaultdict(list)
    for row in rows.indexes:
        by_name[row[0]].append(row[1:])
    for index, terms in by_name.items():
        if tuple(t[1] for t in terms) != key or terms[0][0] != "1":
            _add_index(index, terms, facts, found)
    return found


def _is_exact(declared: MysqlDeclaredType) -> bool:
    """Return whether only identical values are equal in this type's collation."""
    return not declared.collation or declared.collation.endswith("_bin") or declared.collation == "binary"


def _add_type_checks(table: str, column: Column, declared: MysqlDeclaredType, found: MysqlStructure) -> None:
    """Record the constraints of a MySQL type that its logical type does not express."""
    quoted_name = '"' + column.name.replace('"', '""') + '"'
    if declared.is_unsigned:
        found.checks.append(Check(name=f"{table}_{column.name}_unsigned", sql=f"{quoted_name} >= 0"))
    elif declared.data_type in ("enum", "set"):
        proposal = f"; CHECK ({quoted_name} IN {declared.column_type[4:]})" if declared.data_type == "enum" else ""
        why = f"its values travel as text, and the target takes any text{proposal}"
        found.left_out.append(
            LeftOut(what="values of column", name=column.name, definition=declared.column_type, reason=why)
        )


def _add_left_out_properties(rows: Iterable[Row], made: Mapping[str, Column], found: MysqlStructure) -> None:
    """Record the properties of columns that a target lacks: generation, some defaults, ON UPDATE."""
    for row in rows:
        name, extra, default = row[0], str(row[10]), row[11]
        if name not in made:
            continue
        upper = extra.upper().replace("DEFAULT_GENERATED", "")
        if "GENERATED" in upper:
            why = "its values are carried; the target does not compute it for new rows"
            found.left_out.append(LeftOut(what="generated column", name=name, definition=extra, reason=why))
        elif default not in (None, "", "NULL") and not made[name].default_sql and not made[name].identity:
            why = "PostgreSQL has no certain equivalent"
            found.left_out.append(LeftOut(what="default of column", name=name, definition=str(default), reason=why))
        if "ON UPDATE" in upper:
            why = "PostgreSQL does that with a trigger"
            found.left_out.append(LeftOut(what="update of column", name=name, definition=extra, reason=why))


def _add_index(name: str, rows: Sequence[Row], facts: Mapping[str, ColumnFact], found: MysqlStructure) -> None:
    """Add one index in PostgreSQL's SQL, or record why it is left out."""
    unique = rows[0][0] == "1"
    spelled = ", ".join(r[1] if r[1] is not None else str(r[5]) for r in rows)
    try:
        terms = [_index_term(row, facts, unique=unique) for row in rows]
    except NotPortableError as why:
        found.left_out.append(LeftOut(what="index", name=name, definition=f"{rows[0][4]} ({spelled})", reason=str(why)))
        return
    columns = tuple(r[1] for r in rows if r[1] is not None)
    plain = all(r[1] is not None and r[2] == "0" and r[3] != "1" for r in rows)
    if unique and any(not facts[c.lower()].exact for c in columns):
        found.left_out.append(LeftOut(what="unique index", name=name, definition=f"({spelled})", reason=_WEAKER))
    found.indexes.append(
        Index(
            name=name,
            columns=columns,
            unique=unique,
            constraint=unique and plain,
            definition="" if plain else f"({', '.join(terms)})",
        )
    )


def _index_term(row: Row, facts: Mapping[str, ColumnFact], *, unique: bool) -> str:
    """Return a column or expression of an index in PostgreSQL's SQL. Raises NotPortableError."""
    _, column, prefix, descending, sort, expression = row[0], row[1], int(row[2]), row[3] == "1", row[4], row[5]
    if sort not in ("BTREE", "HASH"):
        raise NotPortableError(_FULLTEXT if sort == "FULLTEXT" else f"PostgreSQL has no {sort} index of these columns")
    if column is None:
        text = f"({to_postgresql_term(str(expression), GRAMMAR, facts)})"
    elif column.lower() not in facts:
        raise NotPortableError(f"{column} is not a column that is carried")
    else:
        text = '"' + column.replace('"', '""') + '"'
    if prefix:
        if not unique or not facts[str(column).lower()].exact:
            raise NotPortableError(_BEGINNING)
        text = f"(left({text}, {prefix}))"
    return text + (" DESC" if descending else "")


def parse_sequence(default: str | None) -> str:
    """Return the MariaDB sequence that a default uses; empty if it uses none."""
    drawn = _NEXT_VALUE.fullmatch((default or "").strip())
    return drawn[1].replace("``", "`") if drawn else ""


def read_numberings(connection: MysqlConnection, database: str, *, mariadb: bool) -> list[Numbering]:
    """Return the AUTO_INCREMENT counters of a database and, at MariaDB, its sequences."""
    parts = {"database": literal(database)}
    if not mariadb:
        connection.run(statement("structure", "fresh_statistics"))
    found = [
        Numbering(namespace=database, table=table, column=column, next_value=int(value))
        for table, column, value in connection.rows(statement("structure", "numberings", **parts))
    ]
    drawn: dict[str, tuple[str, str]] = {}
    for table, column, default in connection.rows(statement("structure", "drawn", **parts)) if mariadb else []:
        drawn.setdefault(parse_sequence(default), (table, column))
    for (name,) in connection.rows(statement("structure", "sequences", **parts)) if mariadb else []:
        table, column = drawn.get(name, ("", ""))
        row = connection.row(statement("structure", "sequence", sequence=f"{quote(database)}.{quote(name)}"))
        value, step, low, high, cycle = row
        found.append(
            Numbering(
                namespace=database,
                name=name,
                table=table,
                column=column,
                next_value=int(value),
                increment=int(step) or 1,
                minimum=int(low),
                maximum=int(high),
                cycle=str(cycle) == "1",
            )
        )
    return found


def read_other_objects(connection: MysqlConnection, database: str) -> list[OtherObject]:
    """Return the views, routines, triggers and events that this user may see."""
    try:
        rows = connection.rows(statement("structure", "others", database=literal(database)))
    except DatabaseUnavailable:
        raise
    except SourceError:  # the user may not see routines or events
        return []
    return [OtherObject(kind=kind, name=name) for kind, name in rows]
