"""Structure of a SQLite table: checks, indexes, actions of foreign keys, defaults (VENUS 3.4).

The structure is expressed in SQL that means the same in PostgreSQL. Any part without an equivalent in PostgreSQL is
listed with the reason. SQLite keeps checks only in the text of CREATE TABLE, so they are parsed from it. Its pragmas
name the columns of an index, but they do not show its expressions or the condition of a partial index: both are parsed
from CREATE INDEX. The triggers need these expressions and conditions to find the rows that REPLACE would remove.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from collections.abc import Sequence as Seq
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from venus.adapters.dialects.contract import Numbering, OtherObject
from venus.adapters.dialects.portable_sql import (
    ColumnFact,
    Grammar,
    NotPortableError,
    add_check,
    to_postgresql,
    to_postgresql_term,
)
from venus.adapters.dialects.sqlite import registry
from venus.adapters.dialects.sqlite.connection import quote
from venus.adapters.dialects.sqlite.sql import statement
from venus.model import Check, Index, Kind, LeftOut, TableSchema

GRAMMAR = Grammar(name="sqlite", like_ignores_case=True, folds_ascii_only=True)
_NO_ACTION = ("NO ACTION", "RESTRICT")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRow:
    """A row of table_xinfo, with its default as standard SQL."""

    name: str
    default: str
    hidden: int
    default_sql: str


#: The dictionary's rows about a table or index, by the name of a query in dictionary.sql.
Fetch = Callable[[str, str], list[tuple[Any, ...]]]


def add_structure(fetch: Fetch, schema: TableSchema, rows: Seq[ColumnRow], sql: str) -> TableSchema:
    """Return the schema with its checks, indexes and actions; `sql` is the text of its CREATE TABLE."""
    left: list[LeftOut] = list(_columns_left_out(rows))
    checks: list[Check] = []
    texts = parse_checks(sql)
    collations = read_collations(schema.name, [row[1] for row in fetch("columns", schema.name)], sql) if texts else {}
    facts = {
        c.name.lower(): ColumnFact(name=c.name, type=c.type, exact=collations.get(c.name, "BINARY") == "BINARY")
        for c in schema.columns
    }
    for number, (name, text) in enumerate(texts, 1):
        why = add_check(name or f"{schema.name}_check{number}", text, GRAMMAR, facts, checks)
        left += [why] if why else []
    indexes = []
    for row in fetch("secondary_indexes", schema.name):
        text = "".join(found for (found,) in fetch("index_sql", row[0]))
        try:
            indexes.append(_build_index(fetch, row, text, facts))
        except NotPortableError as why_not:
            left.append(LeftOut(what="index", name=row[0], definition=text, reason=str(why_not)))
    actions = {row[0]: (row[4], row[5]) for row in fetch("foreign_keys", schema.name)}
    keys = tuple(
        replace(
            key, on_update=_referential_action(actions[number][0]), on_delete=_referential_action(actions[number][1])
        )
        for number, key in zip(sorted(actions), schema.foreign_keys, strict=True)
    )
    return replace(schema, checks=tuple(checks), indexes=tuple(indexes), foreign_keys=keys, left_out=tuple(left))


def _fetch_rows(connection: sqlite3.Connection, query: str) -> list[tuple[Any, ...]]:
    return connection.execute(statement("structure", query)).fetchall()


def _referential_action(word: str) -> str:
    """Return the action of a foreign key; empty for NO ACTION and RESTRICT, which only refuse."""
    return "" if word in _NO_ACTION else word


def read_collations(table: str, names: Seq[str], sql: str) -> dict[str, str]:
    """Return the collations of columns, which no pragma shows but an index on a scratch copy inherits."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as scratch:
        try:
            scratch.execute(sql)
            scratch.execute(f"CREATE INDEX venus_probe ON {quote(table)} ({', '.join(map(quote, names))})")
        except sqlite3.Error:  # uses a function or collation of the application: no column counts as exact
            return dict.fromkeys(names, "")
        return dict(scratch.execute(statement("dictionary", "probe_columns")).fetchall())


def _columns_left_out(rows: Seq[ColumnRow]) -> list[LeftOut]:
    """Return the generated columns and the defaults that a target cannot have, with the reasons."""
    found = []
    for row in rows:
        if row.hidden:
            found.append(
                LeftOut(
                    what="generated column",
                    name=row.name,
                    definition="",
                    reason="its values are carried; the target does not compute it for new rows",
                )
            )
        elif row.default and row.default.upper() != "NULL" and not row.default_sql:
            found.append(
                LeftOut(
                    what="default of column",
                    name=row.name,
                    definition=row.default,
                    reason="PostgreSQL has no certain equivalent",
                )
            )
    return found


def _build_index(fetch: Fetch, row: tuple[Any, ...], sql: str, facts: dict[str, ColumnFact]) -> Index:
    """Return an index as the target can create it. Raises NotPortableError if the index has no equivalent."""
    name, unique, origin = row
    texts = parse_index_terms(sql) if sql else ()
    where = parse_index_condition(sql) if sql else ""
    terms, columns, plain = [], [], not where
    for at, (_, column, collation, descending) in enumerate(fetch("index_columns", name)):
        term = _index_term(column, texts[at] if column is None else "", collation, facts, unique=bool(unique))
        columns += [column] if column is not None else []
        plain = plain and term == quote(column or "") and not descending
        terms.append(f"{term if term.startswith(chr(34)) else f'({term})'}{' DESC' if descending else ''}")
    definition = f"({', '.join(terms)})"
    if where:
        definition += f" WHERE {to_postgresql(where, GRAMMAR, facts)}"
    return Index(
        name=name,
        columns=tuple(columns),
        unique=bool(unique),
        constraint=origin == "u" and plain,
        definition="" if plain else definition,
    )


def _index_term(column: str | None, text: str, collation: str, facts: dict[str, ColumnFact], *, unique: bool) -> str:
    """Return one term of an index. Its collation matters for uniqueness, not for finding rows."""
    if column is None:
        return to_postgresql_term(text, GRAMMAR, facts)
    if column.lower() not in facts:
        raise NotPortableError(f"{column} is not a column that is carried")
    textual = facts[column.lower()].type.kind is Kind.TEXT
    match collation.upper() if unique and textual else "BINARY":
        case "BINARY":
            return quote(column)
        case "NOCASE":  # NOCASE folds only A to Z, like lower() under "C"
            return f'lower({quote(column)} COLLATE "C")'
        case "RTRIM":
            return f"rtrim({quote(column)})"
    raise NotPortableError(f"PostgreSQL does not know the collation {collation}")


def read_numberings(connection: sqlite3.Connection, schemas: Seq[TableSchema]) -> list[Numbering]:
    """Return the counters of AUTOINCREMENT."""
    if not connection.execute(statement("structure", "has_numberings")).fetchone()[0]:
        return []
    counted = {name: int(value) for name, value in _fetch_rows(connection, "numberings")}
    return [
        Numbering(namespace=s.namespace, table=s.name, column=c.name, next_value=counted[s.name] + 1)
        for s in schemas
        for c in s.columns
        if c.identity and s.name in counted
    ]


def read_other_objects(connection: sqlite3.Connection) -> list[OtherObject]:
    """Return the application's views and triggers."""
    own = registry.read_owned_objects(connection)
    return [
        OtherObject(kind=kind, name=name)
        for kind, name, _ in _fetch_rows(connection, "others")
        if not own.has_object(name)
    ]


_TOKEN = re.compile(
    r"""
      '(?:[^']|'')*' | "(?:[^"]|"")*" | `(?:[^`]|``)*` | \[[^\]]*\]   # strings and quoted names
    | --[^\n]*(?:\n|$) | /\*.*?(?:\*/|$)                                # comments
    | [A-Za-z_\x80-\U0010ffff][\w$\x80-\U0010ffff]*
    | .
    """,
    re.VERBOSE | re.DOTALL,
)


def _tokenise(sql: str) -> list[str]:
    return [t for t in _TOKEN.findall(sql) if not t.startswith(("--", "/*"))]


def _split_index(sql: str) -> tuple[list[list[str]], list[str]]:
    """Split CREATE INDEX: return the tokens of each indexed term, and the tokens after the parentheses."""
    tokens = _tokenise(sql)
    start = tokens.index("(")
    depth, terms, current = 0, [], []  # type: ignore[var-annotated]
    for at in range(start + 1, len(tokens)):
        token = tokens[at]
        if token == ")" and depth == 0:
            return [*terms, current], tokens[at + 1 :]
        depth += (token == "(") - (token == ")")
        if token == "," and depth == 0:
            terms.append(current)
            current = []
        else:
            current.append(token)
    return [*terms, current], []


def parse_index_terms(sql: str) -> tuple[str, ...]:
    """Return the indexed terms without ASC and DESC. COLLATE stays, because it is part of the expression."""
    return tuple(_strip_direction("".join(term).strip()) for term in _split_index(sql)[0])


def _strip_direction(term: str) -> str:
    return re.sub(r"\s(ASC|DESC)\s*$", "", term, flags=re.IGNORECASE).strip()


def parse_index_condition(sql: str) -> str:
    """Return the condition of a partial index, empty if it has none."""
    rest = "".join(_split_index(sql)[1]).strip()
    return rest[len("WHERE") :].strip() if rest.upper().startswith("WHERE") else ""


def parse_checks(sql: str) -> list[tuple[str, str]]:
    """Return (name, condition) of each CHECK in a CREATE TABLE; the name is empty where it has none."""
    tokens = _tokenise(sql)
    words = [at for at, token in enumerate(tokens) if not token.isspace()]
    found = []
    for n, at in enumerate(words):
        if tokens[at].upper() != "CHECK" or n + 1 == len(words) or tokens[words[n + 1]] != "(":
            continue
        named = n >= 2 and tokens[words[n - 2]].upper() == "CONSTRAINT"
        found.append((_unquote(tokens[words[n - 1]]) if named else "", _text_in_parentheses(tokens, words[n + 1])))
    return found


def _text_in_parentheses(tokens: list[str], opening: int) -> str:
    """Return the text between an opening parenthesis and the matching closing one."""
    depth = 0
    for at in range(opening, len(tokens)):
        depth += (tokens[at] == "(") - (tokens[at] == ")")
        if not depth:
            return "".join(tokens[opening + 1 : at]).strip()
    return "".join(tokens[opening + 1 :]).strip()


def find_names(*texts: str) -> set[str]:
    """Return every name in these expressions, unquoted and in lower case, function names included."""
    tokens = [token for text in texts for token in _tokenise(text)]
    return {_unquote(token).lower() for token in tokens if token[0].isalpha() or token[0] in '_"`[' or token[0] > "~"}


def _unquote(token: str) -> str:
    if token[0] == "[":
        return token[1:-1]
    return token[1:-1].replace(token[0] * 2, token[0]) if token[0] in '"`' else token
