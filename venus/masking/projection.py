"""A table version as a target gets it: the rules of its columns applied to its description. Pure.

`ProjectedSchema` is the description that everything after the projection uses; `source` describes the rows as the
broker has them. The projection changes neither column numbers nor the order of columns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace

from venus.masking.functions import mask_literal
from venus.masking.rules import TableColumns
from venus.masking.syntax import DROP, HMAC, NULL, ColumnRule
from venus.model import Check, Column, ForeignKey, Index, LeftOut, TableSchema

#: A constant and a quoted name, as PostgreSQL writes them.
_TOKEN = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*\"""")
_REASON = "it is about a column that is masked or dropped here"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectedSchema(TableSchema):
    """One version of one table as a target gets it."""

    source: TableSchema
    rules: TableColumns

    @property
    def masks(self) -> dict[str, str]:
        """Descriptions of the rules other than `keep`, by the column's name at the source."""
        names = {c.number: c.name for c in self.source.columns}
        found = [(number, rule) for number, rule in self.rules.rules if number in names]
        return {names[n]: rule.describe() for n, rule in found if rule.describe() != "keep"}

    @property
    def hidden_columns(self) -> frozenset[str]:
        """The columns, by their names at the source, whose plain values the target does not get."""
        if self.rules.misfit:
            return frozenset(c.name for c in self.source.columns)
        by_number = self.rules.by_number
        found = {c.name: by_number.get(c.number, ColumnRule()) for c in self.source.columns}
        return frozenset(name for name, rule in found.items() if rule.is_masked or rule.mask == DROP)

    @property
    def undecided_columns(self) -> tuple[str, ...]:
        """The columns that the source has added and that are left out because no rule names them."""
        names = {c.number: c.name for c in self.source.columns}
        return tuple(names[n] for n, rule in self.rules.rules if rule.is_undecided and n in names)

    @property
    def masks_key(self) -> bool:
        """Whether a column of the key is masked."""
        numbers = {number for _, number in self.identity}
        return any(rule.is_masked and number in numbers for number, rule in self.rules.rules)


def describe_columns(schema: TableSchema) -> str:
    """Describe the rules for the columns of a table, with the id of the masking key."""
    return describe_masks(schema) or "every column as at the source"


def describe_masks(schema: TableSchema) -> str:
    """Describe the rules for the columns of a table; empty = every column is as at the source."""
    masked = schema.masks if isinstance(schema, ProjectedSchema) else {}
    found = ", ".join(f"{name} ({what})" for name, what in masked.items())
    key_id = columns_of(schema).key_id
    found = f"{found}; masking key {key_id}" if key_id else found
    return "; ".join(filter(None, (found, schema.masked_above)))


def source_of(schema: TableSchema) -> TableSchema:
    """Return the description of the rows as the broker has them."""
    return schema.source if isinstance(schema, ProjectedSchema) else schema


def columns_of(schema: TableSchema) -> TableColumns:
    """Return the rules by which this description was made."""
    return schema.rules if isinstance(schema, ProjectedSchema) else TableColumns()


def project_schema(source: TableSchema, columns: TableColumns) -> TableSchema:
    """Return a version as a target gets it by these rules; the same version if there are none."""
    numbers = {c.number for c in source.columns}
    rules = {n: rule for n, rule in columns.rules if n in numbers}
    if not rules and not columns.referred and not columns.misfit:
        return source
    names = {c.name: rules.get(c.number, ColumnRule()) for c in source.columns}
    left_out = list(source.left_out)
    kept = {f.name: getattr(source, f.name) for f in fields(TableSchema)}
    kept |= {
        "columns": tuple(
            _project_column(c, names[c.name], source) for c in source.columns if names[c.name].mask != DROP
        ),
        "key": tuple(_new_name(name, names) for name in source.key),
        "indexes": tuple(_project_indexes(source, names, left_out)),
        "foreign_keys": tuple(_project_foreign_keys(source, names, columns, left_out)),
        "checks": tuple(_project_checks(source, names, left_out)),
        "left_out": tuple(left_out),
    }
    return ProjectedSchema(**kept, source=source, rules=columns)


def _new_name(name: str, rules: dict[str, ColumnRule]) -> str:
    """Return the name of a column at the target."""
    return (rules[name].rename if name in rules else "") or name


def _project_column(column: Column, rule: ColumnRule, source: TableSchema) -> Column:
    """Return a column as the target gets it."""
    name = rule.rename or column.name
    if not rule.is_masked:
        return replace(column, name=name)
    # a domain has checks about the plain values
    is_domain = any(t.base is not None and column.source_type.removesuffix("[]") == t.sql_name for t in source.types)
    return replace(
        column,
        name=name,
        default_sql="" if rule.mask in (HMAC, NULL) else mask_literal(column, rule),
        identity=False,
        nullable=column.nullable or rule.mask == NULL or (rule.mask == HMAC and column.default_sql != ""),
        source_type="" if is_domain else column.source_type,
    )


def _quoted_names(sql: str) -> set[str]:
    """Return the quoted names in an SQL text."""
    return {t[1:-1].replace('""', '"') for t in _TOKEN.findall(sql) if t.startswith('"')}


def _rewrite(sql: str, rules: dict[str, ColumnRule]) -> str:
    """Rename the quoted columns in an SQL text by the rules."""

    def rename(found: re.Match[str]) -> str:
        """Return a quoted column's name at the target; other text stays."""
        text = found[0]
        name = text[1:-1].replace('""', '"')
        return '"' + _new_name(name, rules).replace('"', '""') + '"' if text[0] == '"' and name in rules else text

    return _TOKEN.sub(rename, sql)


def _is_changed(names: set[str], rules: dict[str, ColumnRule]) -> bool:
    """Return whether any of these columns is masked or dropped."""
    return any(name in rules and (rules[name].is_masked or rules[name].mask == DROP) for name in names)


def _project_indexes(source: TableSchema, rules: dict[str, ColumnRule], left_out: list[LeftOut]) -> list[Index]:
    """Return the indexes that the target can have; the others are added to `left_out`."""
    found = []
    for index in source.indexes:
        is_dropped = any(name in rules and rules[name].mask == DROP for name in index.columns)
        if is_dropped or (
            index.definition and _is_changed(set(index.columns) | _quoted_names(index.definition), rules)
        ):
            definition = index.definition or f"({', '.join(index.columns)})"
            left_out.append(LeftOut(what="index", name=index.name, definition=definition, reason=_REASON))
            continue
        columns = tuple(_new_name(name, rules) for name in index.columns)
        found.append(replace(index, columns=columns, definition=_rewrite(index.definition, rules)))
    return found


def _project_checks(source: TableSchema, rules: dict[str, ColumnRule], left_out: list[LeftOut]) -> list[Check]:
    """Return the check constraints that the target can have; the others are added to `left_out`."""
    found = []
    for check in source.checks:
        if _is_changed(_quoted_names(check.sql), rules):
            left_out.append(LeftOut(what="check constraint", name=check.name, definition=check.sql, reason=_REASON))
        else:
            found.append(replace(check, sql=_rewrite(check.sql, rules)))
    return found


def _project_foreign_keys(
    source: TableSchema, rules: dict[str, ColumnRule], columns: TableColumns, left_out: list[LeftOut]
) -> list[ForeignKey]:
    """Return the foreign keys that the target can have; the others are added to `left_out`."""
    found, referred = [], {table: dict(names) for table, names in columns.referred}
    for key in source.foreign_keys:
        if any(name in rules and rules[name].mask == DROP for name in key.columns):
            definition = f"({', '.join(key.columns)}) -> {key.referred_namespace}.{key.referred_table}"
            left_out.append(LeftOut(what="foreign key", name=key.name, definition=definition, reason=_REASON))
            continue
        theirs = referred.get(f"{key.referred_namespace}.{key.referred_table}", {})
        found.append(
            replace(
                key,
                columns=tuple(_new_name(name, rules) for name in key.columns),
                referred_columns=tuple(theirs.get(name, name) for name in key.referred_columns),
            )
        )
    return found
