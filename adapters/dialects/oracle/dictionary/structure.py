"""The structure of an Oracle table: checks, indexes, foreign keys, defaults, identities, comments (VENUS 3.4).

The structure is expressed in SQL that means the same in PostgreSQL; an object without an equivalent is listed with the
reason. One pass reads a whole schema, because Oracle's dictionary answers slowly. The result is assembled without
further queries.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from venus.adapters.dialects.contract import Numbering, OtherObject
from venus.adapters.dialects.oracle.session.connection import OracleSession, Row
from venus.adapters.dialects.oracle.session.options import Version
from venus.adapters.dialects.oracle.sql import statement
from venus.adapters.dialects.portable_sql import ColumnFact, Grammar, NotPortableError, add_check, to_postgresql_term
from venus.model import Check, Column, ForeignKey, Index, Kind, LeftOut, TableSchema

GRAMMAR = Grammar(name="oracle", empty_is_null=True)
_NOT_NULL = re.compile(r'\s*"[^"]+"\s+IS\s+NOT\s+NULL\s*', re.IGNORECASE)
_NEXT_VALUE = re.compile(r'\s*(?:"?[\w$#]+"?\.)?"?([\w$#]+)"?\."?NEXTVAL"?\s*', re.IGNORECASE)
#: The index that VENUS creates on a table with inline capture: it is not part of the application's table.
_OWN_INDEX = re.compile(r"VENUS_X_\d{5,}")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
_TEXT = re.compile(r"'(?:[^']|'')+'")
_CLOCK = re.compile(
    r"SYSDATE|SYSTIMESTAMP(\(\d\))?|CURRENT_TIMESTAMP(\(\d\))?|CURRENT_DATE|LOCALTIMESTAMP", re.IGNORECASE
)
_NOT_VALIDATED = "NOT VALIDATED"
_NOT_UNIQUE = "older rows may violate it (ENABLE NOVALIDATE), and PostgreSQL has no such constraint"
_ROWS_LOST = "PostgreSQL has no certain equivalent"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRows:
    """The dictionary's rows about one schema, by table: see structure.sql for the columns of each block."""

    columns: Mapping[str, list[Row]] = field(default_factory=dict)
    identities: Mapping[str, list[Row]] = field(default_factory=dict)
    table_comments: Mapping[str, list[Row]] = field(default_factory=dict)
    constraints: Mapping[str, list[Row]] = field(default_factory=dict)
    constraint_columns: Mapping[str, list[Row]] = field(default_factory=dict)
    referred_columns: Mapping[str, list[Row]] = field(default_factory=dict)
    indexes: Mapping[str, list[Row]] = field(default_factory=dict)


_BLOCKS = (
    "columns",
    "identities",
    "table_comments",
    "constraints",
    "constraint_columns",
    "referred_columns",
    "indexes",
)


def read_structure(session: OracleSession, version: Version, owner: str) -> SchemaRows:
    """Read the dictionary's rows about the structure of all tables of a schema."""
    blocks = [b for b in _BLOCKS if b != "identities" or version.invisible_identity]
    return SchemaRows(
        **{b: group_by_table(session.fetch_rows(statement("structure", b), {"owner": owner})) for b in blocks}
    )


def group_by_table(rows: Sequence[Row]) -> Mapping[str, list[Row]]:
    """Return rows by table; the table's name is the first value of each row and is left out."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row[0]].append(tuple(row[1:]))
    return found


def add_structure(schema: TableSchema, rows: SchemaRows) -> TableSchema:
    """Return a table's schema with its constraints, indexes, defaults and comments added. Pure."""
    name = schema.name
    columns, left = _build_columns(schema, rows.columns.get(name, []), {r[0]: r for r in rows.identities.get(name, [])})
    facts = {c.name.lower(): ColumnFact(name=c.name, type=c.type) for c in columns}
    found = _build_constraints(name, rows, facts, left)
    indexes = _build_indexes(rows.indexes.get(name, []), facts, found.unique, schema.key, left)
    (comment,) = next(iter(rows.table_comments.get(name, [])), ("",))
    return replace(
        schema,
        columns=columns,
        checks=tuple(found.checks),
        foreign_keys=tuple(found.keys),
        indexes=tuple(indexes),
        comment=comment,
        left_out=tuple(left),
    )


@dataclass(slots=True)
class _Constraints:
    """The constraints of one table."""

    checks: list[Check] = field(default_factory=list)
    keys: list[ForeignKey] = field(default_factory=list)
    #: Unique constraints by name.
    unique: set[str] = field(default_factory=set)


def _build_constraints(
    name: str, rows: SchemaRows, facts: Mapping[str, ColumnFact], left: list[LeftOut]
) -> _Constraints:
    """Return the enforced constraints of a table; ENABLE NOVALIDATE guarantees nothing about older rows.

    A foreign key without columns was dropped between two queries.
    """
    made = _Constraints()
    listed = _columns_by_name(rows.constraint_columns.get(name, []))
    referred = _columns_by_name(rows.referred_columns.get(name, []))
    for row in rows.constraints.get(name, []):
        constraint, sort, condition, delete_rule, owner, table, status, deferrable, validated = row
        not_valid = validated == _NOT_VALIDATED
        if status != "ENABLED":
            left.append(_left_out("constraint", constraint, str(condition or ""), "it is disabled at the source"))
        elif sort == "C":
            _add_check(made, constraint, str(condition or ""), facts, left, not_valid=not_valid)
        elif sort == "R" and any(c.lower() not in facts for c in listed[constraint]):
            left.append(_left_out("foreign key", constraint, "", "it has a column that is not carried"))
        elif sort == "R" and table is not None and listed[constraint] and referred[constraint]:
            made.keys.append(
                ForeignKey(
                    name=constraint,
                    columns=listed[constraint],
                    referred_namespace=owner,
                    referred_table=table,
                    referred_columns=referred[constraint],
                    not_valid=not_valid,
                    on_delete="" if delete_rule in (None, "NO ACTION") else str(delete_rule),
                )
            )
        elif sort == "U" and not_valid:
            left.append(_left_out("unique constraint", constraint, f"({', '.join(listed[constraint])})", _NOT_UNIQUE))
        elif sort == "U":
            made.unique.add(constraint)
            if deferrable == "DEFERRABLE":
                left.append(
                    _left_out("unique constraint", constraint, "", "DEFERRABLE is left out: it becomes immediate")
                )
    return made


def _add_check(
    made: _Constraints,
    name: str,
    condition: str,
    facts: Mapping[str, ColumnFact],
    left: list[LeftOut],
    *,
    not_valid: bool,
) -> None:
    """Add a check constraint. A NOT NULL that older rows may violate counts as one: the column itself allows NULL."""
    if _NOT_NULL.fullmatch(condition) and not not_valid:
        return
    before = len(made.checks)
    why = add_check(name, condition, GRAMMAR, facts, made.checks)
    left += [why] if why else []
    made.checks[before:] = [replace(check, not_valid=not_valid) for check in made.checks[before:]]


def _left_out(what: str, name: str, definition: str, reason: str) -> LeftOut:
    return LeftOut(what=what, name=name, definition=definition, reason=reason)


def _columns_by_name(rows: Sequence[Row]) -> Mapping[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = defaultdict(tuple)
    for name, column in rows:
        found[name] = (*found[name], column)
    return found


def _build_columns(
    schema: TableSchema, rows: Sequence[Row], identities: Mapping[str, Row]
) -> tuple[tuple[Column, ...], list[LeftOut]]:
    """Return the columns with their defaults, identities and comments, and what is left out of them."""
    rows_by_column = {row[0]: row[1:] for row in rows}
    left = [
        _left_out("virtual column", name, str(default), "its values are computed at the source and are not carried")
        for name, (default, virtual, _) in rows_by_column.items()
        if virtual == "YES"
    ]
    made = []
    for column in schema.columns:
        default, _, comment = rows_by_column.get(column.name, (None, "NO", None))
        text = str(default or "").strip()
        numbered = column.name in identities or bool(_NEXT_VALUE.fullmatch(text))
        sql = "" if numbered else portable_default(text, column.type.kind)
        if text and not numbered and not sql and text.upper() != "NULL":
            left.append(_left_out("default of column", column.name, text, _ROWS_LOST))
        made.append(replace(column, default_sql=sql, identity=numbered, comment=comment or ""))
    return tuple(made), left


def portable_default(text: str, kind: Kind) -> str:
    """Return the default in PostgreSQL's SQL, or an empty text: rows are sent with their values anyway."""
    if kind in (Kind.INT, Kind.DECIMAL, Kind.FLOAT):
        return text if _NUMBER.fullmatch(text) else ""
    if kind in (Kind.TEXT, Kind.CHAR):
        return text if _TEXT.fullmatch(text) else ""
    if kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        return "CURRENT_TIMESTAMP" if _CLOCK.fullmatch(text) else ""
    return text.lower() if kind is Kind.BOOL and text.upper() in ("TRUE", "FALSE") else ""


def _build_indexes(
    rows: Sequence[Row], facts: Mapping[str, ColumnFact], unique: set[str], key: tuple[str, ...], left: list[LeftOut]
) -> list[Index]:
    """Return the indexes of a table that PostgreSQL can have; add the others to `left`."""
    by_name: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_name[row[0]].append(row[1:])
    found = []
    for name, terms in by_name.items():
        names = tuple(t[2] if t[4] is None else str(t[4]).strip('"') for t in terms)
        if (names == key and terms[0][0] == "UNIQUE") or _OWN_INDEX.fullmatch(name):
            continue
        try:
            found.append(_build_index(name, terms, facts, constraint=name in unique))
        except NotPortableError as why:
            left.append(_left_out("index", name, f"{terms[0][1]} ({', '.join(names)})", str(why)))
    return found


def _build_index(name: str, terms: Sequence[Row], facts: Mapping[str, ColumnFact], *, constraint: bool) -> Index:
    is_unique, sort = terms[0][0] == "UNIQUE", str(terms[0][1])
    if sort not in ("NORMAL", "FUNCTION-BASED NORMAL", "NORMAL/REV"):
        raise NotPortableError(f"PostgreSQL has no {sort} index")
    if is_unique and len(terms) > 1 and any(t[4] is not None for t in terms):
        raise NotPortableError("Oracle treats NULLs in it as equal, PostgreSQL does not")
    columns, parts, plain = [], [], True
    for _, _, column, descend, expression in terms:
        text = f'"{column}"' if expression is None else to_postgresql_term(str(expression), GRAMMAR, facts)
        if text.strip('"').lower() in facts:
            columns.append(facts[text.strip('"').lower()].name)
        elif expression is None:
            raise NotPortableError(f"{column} is not a column that is carried")
        else:
            text = f"({text})"
        descending = descend == "DESC"
        plain = plain and not descending and not text.startswith("(")
        parts.append(text + (" DESC" if descending else ""))
    return Index(
        name=name,
        columns=tuple(columns),
        unique=is_unique,
        constraint=constraint and plain,
        definition="" if plain else f"({', '.join(parts)})",
    )


#: Returns whether VENUS created an object, by schema, kind and name.
IsOwn = Callable[[str, str, str], bool]


def read_numberings(
    session: OracleSession, owners: Sequence[str], rows: Callable[[str], SchemaRows], is_own: IsOwn
) -> list[Numbering]:
    """Return the sequences of these schemas, with the columns that they number."""
    found = []
    for owner in owners:
        schema_rows = rows(owner)
        numbered: dict[str, tuple[str, str, bool]] = {}
        for table, columns in schema_rows.columns.items():
            for column, default, *_ in columns:
                if match := _NEXT_VALUE.fullmatch(str(default or "")):
                    numbered.setdefault(match[1], (table, column, False))
        for table, identities in schema_rows.identities.items():
            for column, generation, sequence in identities:
                numbered[sequence] = (table, column, generation == "ALWAYS")
        for name, value, step, low, high, cycle in session.fetch_rows(
            statement("structure", "sequences"), {"owner": owner}
        ):
            if is_own(owner, "SEQUENCE", str(name)):
                continue
            table, column, always = numbered.get(name, ("", "", False))
            found.append(
                Numbering(
                    namespace=owner,
                    name=name,
                    table=table,
                    column=column,
                    always=always,
                    next_value=int(value),
                    increment=int(step),
                    minimum=int(low),
                    maximum=int(high),
                    cycle=cycle == "Y",
                )
            )
    return found


def read_other_objects(session: OracleSession, owners: Sequence[str], is_own: IsOwn) -> list[OtherObject]:
    """Return the objects of these schemas that are neither tables nor sequences."""
    return [
        OtherObject(kind=str(kind).lower(), name=f"{owner}.{name}")
        for owner in owners
        for kind, name in session.fetch_rows(statement("structure", "others"), {"owner": owner})
        if not is_own(owner, str(kind), str(name))
    ]
