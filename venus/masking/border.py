"""The rules at the border of a broker set: the columns of each table that the sets below get. Pure.

A mirror, its targets and the sets below it get each table as if the source had it in this form: columns are masked or
dropped, and an entry of `left_out` says so. Only this set has the plain values and the masking key. Key columns stay,
because deletions and the order of rows depend on them.

A rule applies to a column's number from the first version on in which it has the name, also after the column was
renamed at the source. Once a table has a version that the rules do not fit, no row of the table is sent from that
version on.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields, replace

from venus.errors import ConfigError
from venus.masking.fit import find_unequal_ends
from venus.masking.functions import MaskingKey
from venus.masking.projection import ProjectedSchema, project_schema
from venus.masking.rules import RuleSet, TableColumns
from venus.masking.syntax import ColumnRule
from venus.model import MASKED, LeftOut, TableSchema

_Placed = dict[int, tuple[str, ColumnRule]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BorderTable:
    """The rules for one table, and its versions as the sets below get them."""

    name: str
    columns: TableColumns
    #: The descriptions of the masked rows, by version.
    projected: Mapping[int, TableSchema]
    #: The first version that the rules do not fit; None = they fit every version.
    until: int | None = None
    misfit: str = ""

    def has_version(self, version: int) -> bool:
        """Return whether anything of this version is sent."""
        return self.until is None or version < self.until


class Border:
    """The rules of `[cluster.columns.BUSINESS]`."""

    def __init__(self, rules: RuleSet, key: MaskingKey | None) -> None:
        self.rules, self.key = rules, key
        text = json.dumps({name: repr(rule) for name, rule in sorted(rules.rules.items())})
        #: A digest that distinguishes it from other rules and keys.
        self.digest = hashlib.blake2b((text + rules.key_id).encode(), digest_size=8).hexdigest()

    def fit(self, schemas: Iterable[TableSchema]) -> dict[int, BorderTable]:
        """Fit the rules to each table; `schemas` are all known versions."""
        versions: defaultdict[int, list[TableSchema]] = defaultdict(list)
        for schema in sorted(schemas, key=lambda s: s.version):
            versions[schema.table_id].append(schema)
        placed = {table_id: self._place_rules(found) for table_id, found in versions.items()}
        newest = [found[-1] for found in versions.values()]
        ends = {schema.table_id: place for schema, place in self._unequal_ends(newest, placed)}
        return {
            table_id: self._fit_table(found, placed[table_id], ends.get(table_id, ""))
            for table_id, found in versions.items()
        }

    def find_absent(self, schemas: Iterable[TableSchema]) -> list[str]:
        """Return an alarm for each rule about a table that does not exist."""
        known = [schema for schema in schemas if not schema.is_heartbeat]
        tables = {name.casefold() for schema in known for name in (schema.name, schema.qualified_name)} | {"*"}
        return [
            f"[{self.rules.place}] is about {name}, a table that this set does not have: its values would be sent as "
            "they are"
            for name in self.rules.rules
            if name.rpartition(".")[0].casefold() not in tables
        ]

    def _named_columns(self, name: str, versions: Seq[TableSchema]) -> set[int]:
        """Return the numbers of the columns that have a rule's name in any version."""
        one = replace(self.rules, rules={name: self.rules.rules[name]})
        return set().union(*(one.named_columns(schema) for schema in versions if not schema.is_heartbeat))

    def _place_rules(self, versions: Seq[TableSchema]) -> _Placed:
        """Return the rules by column number with their places in the configuration; a column's first rule counts."""
        found: _Placed = {}
        for name, rule in self.rules.rules.items():
            for number in self._named_columns(name, versions):
                found.setdefault(number, (f"{self.rules.place}.{name}", rule))
        return found

    def _unequal_ends(self, newest: Seq[TableSchema], placed: Mapping[int, _Placed]) -> list[tuple[TableSchema, str]]:
        """Return the tables with a foreign key whose two ends have different rules, with the reason."""
        return [
            (schema, f"foreign key {key.name} refers to {other.qualified_name}, which has other rules at that end")
            for schema in newest
            for key, _, other, _ in find_unequal_ends(schema, newest, placed)
            if schema.table_id in placed
        ]

    def _fit_table(self, versions: Seq[TableSchema], placed: _Placed, unequal: str) -> BorderTable:
        """Fit the placed rules to the versions of one table."""
        rules = {number: rule for number, (_, rule) in placed.items() if rule != ColumnRule()}
        columns = self.rules.add(TableColumns(), rules)
        projected: dict[int, TableSchema] = {}
        misfit = self._find_wrong_name(versions, placed)
        until = 0 if misfit else None
        for schema in versions if not misfit else ():
            misfit = self._find_misfit(schema, placed) or (unequal if schema is versions[-1] else "")
            if misfit:
                until = schema.version if projected else 0
                break
            projected[schema.version] = project_schema(schema, columns)
        return BorderTable(
            name=versions[-1].qualified_name, columns=columns, projected=projected, until=until, misfit=misfit
        )

    def _find_misfit(self, schema: TableSchema, placed: _Placed) -> str:
        """Return why the rules do not fit a version; empty = they fit."""
        there = {c.number: c for c in schema.columns}
        found = {number: rule for number, rule in placed.items() if number in there}
        for number, (place, rule) in found.items():
            if there[number].name in schema.key and rule != ColumnRule():
                return (
                    f"{place}: {schema.qualified_name}.{there[number].name} is in the key of its table, which stays as "
                    "it is at a border; the targets can mask it"
                )
        try:
            self.rules.check_table(schema, found)
        except ConfigError as error:
            return str(error)
        return ""

    def _find_wrong_name(self, versions: Seq[TableSchema], placed: _Placed) -> str:
        """Return which rule for this table names no column, or one that has another rule; empty = none."""
        tables = {name.casefold() for schema in versions for name in (schema.name, schema.qualified_name)}
        for name, rule in self.rules.rules.items():
            numbers = self._named_columns(name, versions)
            place, table = f"{self.rules.place}.{name}", versions[-1].qualified_name
            is_about_it = name.rpartition(".")[0].casefold() in tables and not versions[-1].is_heartbeat
            if not numbers and is_about_it:
                return f"{place}: {table} never had such a column"
            if other := next((placed[n][0] for n in sorted(numbers) if placed[n][1] != rule), ""):
                return f"{place}: a column of {table} has another rule already, by {other.rpartition('.')[2]}"
        return ""


def _argument_mark(schema: ProjectedSchema, name: str) -> str:
    """Return a digest that distinguishes rules with different arguments, without showing the arguments."""
    number = next(c.number for c in schema.source.columns if c.name == name)
    argument = schema.rules.by_number[number].argument
    return f" {hashlib.blake2b(argument.encode(), digest_size=4).hexdigest()}" if argument else ""


def flatten(schema: TableSchema) -> TableSchema:
    """Return a projected version as if the source had this form, with an entry for each changed column."""
    if not isinstance(schema, ProjectedSchema):
        return schema
    kept = {f.name: getattr(schema, f.name) for f in fields(TableSchema)}
    key_id = schema.rules.key_id
    changed = [
        LeftOut(
            what=MASKED,
            name=name,
            definition=what + _argument_mark(schema, name),
            reason="a broker set above changes it" + (f", by the masking key {key_id}" if key_id else ""),
        )
        for name, what in schema.masks.items()
    ]
    return TableSchema(**kept | {"left_out": (*schema.left_out, *changed)})
