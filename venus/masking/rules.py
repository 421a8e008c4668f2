"""The rules of `[targets.NAME.columns]`: which column of which table each of them means. Pure.

A rule masks, drops or renames a column. `RuleSet.resolve` assigns rules to column numbers, which never change: a column
that is renamed at the source stays masked. A rule that could show plain text, merge rows or break a join is refused by
`resolve`, with its place in the configuration.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Sequence as Seq
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType

from venus.errors import ConfigError
from venus.masking.fit import find_misfit, find_unequal_ends
from venus.masking.syntax import DROP, HMAC, ColumnRule
from venus.model import Column, TableSchema
from venus.text.formatting import suggest_nearest

_EVERY_TABLE = "*"
NONE_DROPPED: Mapping[int, Collection[str]] = MappingProxyType({})
MAKE_KEY = "make one with (umask 077; head -c 32 /dev/urandom | base64 > masking.key), and keep a copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumns:
    """The rules of one table by column number, and the other inputs of its projection."""

    rules: tuple[tuple[int, ColumnRule], ...] = ()
    #: The id of the key of its hmac columns; empty = it has none.
    key_id: str = ""
    #: New names of columns of other tables, to which its foreign keys refer: table -> (old, new).
    referred: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    #: Why the rules do not fit the table, which then gets no row; empty = they do.
    misfit: str = ""

    @property
    def by_number(self) -> dict[int, ColumnRule]:
        """The rules by column number."""
        return dict(self.rules)

    def to_text(self) -> str:
        """Return the rules as the text that is stored with a table version."""
        rules = {
            str(number): {k: v for k in ("mask", "argument", "rename", "is_undecided") if (v := getattr(rule, k))}
            for number, rule in self.rules
        }
        renamed = {table: dict(names) for table, names in self.referred}
        found = {"rules": rules, "key": self.key_id, "referred": renamed}
        return json.dumps(found | ({"misfit": self.misfit} if self.misfit else {}))

    @classmethod
    def from_text(cls, text: str) -> TableColumns:
        """Parse a stored text."""
        found = json.loads(text)
        return cls(
            rules=tuple((int(number), ColumnRule(**rule)) for number, rule in found["rules"].items()),
            key_id=found["key"],
            referred=tuple((table, tuple(names.items())) for table, names in found["referred"].items()),
            misfit=found.get("misfit", ""),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSet:
    """The rules of one target or border, as the configuration has them."""

    place: str  # its place in the configuration
    rules: Mapping[str, ColumnRule]
    new_columns: str = "carry"
    #: The id of the masking key; empty = none is configured.
    key_id: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether every table stays as it is, also with columns that are added later."""
        return not self.rules and self.new_columns == "carry"

    def resolve(
        self,
        schemas: Iterable[TableSchema],
        *,
        elsewhere: Seq[str] | None = (),
        dropped: Mapping[int, Collection[str]] = NONE_DROPPED,
    ) -> dict[int, TableColumns]:
        """Return the rules of each of these tables that has one. Raises ConfigError with the place of a wrong rule.

        A rule about a table that only `elsewhere` contains is ignored (None = any table), and so is a rule about a
        column that its table no longer has (`dropped` = the names of these columns by table).
        """
        known = [s for s in schemas if not s.is_heartbeat]
        found: dict[int, dict[int, tuple[str, ColumnRule]]] = {}
        for name, rule in self.rules.items():
            place = f"{self.place}.{name}"
            for schema, column in _find_columns(name, known, place, elsewhere, dropped):
                before = found.setdefault(schema.table_id, {}).setdefault(column.number, (place, rule))
                if before[0] != place:
                    also = before[0].removeprefix(f"{self.place}.")
                    raise ConfigError(f"{place}: {schema.qualified_name}.{column.name} has a rule already, by {also}")
        tables = {s.table_id: s for s in known}
        for table_id, rules in found.items():
            self.check_table(tables[table_id], rules)
        self._check_ends(known, found)
        return {
            table_id: self._columns_of(tables[table_id], {n: rule for n, (_, rule) in rules.items()}, known, found)
            for table_id in tables
            if (rules := found.get(table_id, {})) or _refers_to_renamed(tables[table_id], known, found)
        }

    def resolve_new(
        self,
        settled: Seq[TableSchema],
        new: Seq[TableSchema],
        *,
        elsewhere: Seq[str] | None = (),
        dropped: Mapping[int, Collection[str]] = NONE_DROPPED,
    ) -> dict[int, TableColumns]:
        """Return the rules like `resolve`; a new table that they do not fit gets a `misfit`, a settled one raises."""
        with suppress(ConfigError):
            return self.resolve([*settled, *new], elsewhere=elsewhere, dropped=dropped)
        fitting, misfits = list(settled), {}
        for schema in new:
            try:
                self.resolve([*fitting, schema], elsewhere=None, dropped=dropped)
            except ConfigError as error:
                misfits[schema.table_id] = TableColumns(misfit="; ".join(filter(None, (str(error), error.hint))))
            else:
                fitting.append(schema)
        names = [schema.qualified_name for schema in new if schema.table_id in misfits]
        others = None if elsewhere is None else [*elsewhere, *names]
        return self.resolve(fitting, elsewhere=others, dropped=dropped) | misfits

    def follow(self, before: TableSchema, columns: TableColumns, after: TableSchema) -> TableColumns:
        """Return the rules for a later version of a table: columns keep theirs, new ones get the configured ones."""
        if columns.misfit:
            return columns
        old = {c.number for c in before.columns}
        rules = columns.by_number
        for column in after.columns if after.version > before.version else ():
            if column.number in old or column.number in rules:
                continue
            named = [rule for name, rule in self.rules.items() if _names_column(name, after, column)]
            if named and named[0] != ColumnRule():
                rules[column.number] = named[0]
            elif not named and self.new_columns != "carry":
                rules[column.number] = ColumnRule(mask=DROP, is_undecided=True)
        return self.add(TableColumns(referred=columns.referred), rules)

    def add(self, columns: TableColumns, more: Mapping[int, ColumnRule]) -> TableColumns:
        """Return the rules of a table with some more."""
        rules = columns.by_number | dict(more)
        return replace(columns, rules=tuple(sorted(rules.items())), key_id=self._key_id_for(rules.values()))

    def named_columns(self, schema: TableSchema) -> set[int]:
        """Return the numbers of the columns that a rule names."""
        return {c.number for c in schema.columns if any(_names_column(name, schema, c) for name in self.rules)}

    def _key_id_for(self, rules: Iterable[ColumnRule]) -> str:
        """Return the id of the masking key if one of the rules needs it, else ""."""
        return self.key_id if any(rule.mask == HMAC for rule in rules) else ""

    def _columns_of(
        self,
        schema: TableSchema,
        rules: dict[int, ColumnRule],
        known: Seq[TableSchema],
        found: Mapping[int, Mapping[int, tuple[str, ColumnRule]]],
    ) -> TableColumns:
        """Return one table's rules, the masking key's id, and the new column names of tables that it refers to."""
        referred = {
            f"{other.namespace}.{other.name}": names
            for other in known
            if any(
                (k.referred_namespace, k.referred_table) == (other.namespace, other.name) for k in schema.foreign_keys
            )
            and (names := _new_names(other, found.get(other.table_id, {})))
        }
        return TableColumns(
            rules=tuple(sorted((n, rule) for n, rule in rules.items() if rule != ColumnRule())),
            key_id=self._key_id_for(rules.values()),
            referred=tuple(sorted(referred.items())),
        )

    def check_table(self, schema: TableSchema, rules: Mapping[int, tuple[str, ColumnRule]]) -> None:
        """Raise ConfigError if a rule does not fit its column; `rules` are those of the table, with their places."""
        columns = {c.number: c for c in schema.columns}
        for number, (place, rule) in rules.items():
            column = columns[number]
            if misfit := find_misfit(rule, column, schema):
                raise ConfigError(f"{place}: {schema.qualified_name}.{column.name} {misfit}")
            if rule.mask == HMAC and not self.key_id:
                raise ConfigError(
                    f"{place}: hmac needs a key, and {self.place.removesuffix('.columns')}.masking_key_file is not set",
                    hint=MAKE_KEY,
                )
        taken: dict[str, str] = {}
        for number, column in columns.items():
            place, rule = rules.get(number, ("", ColumnRule()))
            if rule.mask == DROP:
                continue
            name = rule.rename or column.name
            other = taken.setdefault(name.casefold(), column.name)
            renamed = next(
                (p for n, (p, r) in rules.items() if r.rename and r.rename.casefold() == name.casefold()), ""
            )
            if other != column.name and renamed:
                raise ConfigError(f"{renamed}: {schema.qualified_name} would have two columns called {name}")

    def _check_ends(self, known: Seq[TableSchema], found: Mapping[int, Mapping[int, tuple[str, ColumnRule]]]) -> None:
        """Refuse foreign keys whose two ends are masked differently."""
        for schema in known:
            for key, ours, other, theirs in find_unequal_ends(schema, known, found):
                place = (ours or theirs or ("", None))[0]
                raise ConfigError(
                    f"{place}: foreign key {key.name} of {schema.qualified_name} refers to {other.qualified_name}, and "
                    "the columns at its two ends have different rules: its rows would no longer fit together",
                    hint="give both ends the same rule",
                )


def _find_columns(
    name: str,
    known: Seq[TableSchema],
    place: str,
    elsewhere: Seq[str] | None,
    dropped: Mapping[int, Collection[str]],
) -> list[tuple[TableSchema, Column]]:
    """Return the columns that a rule names. Raises ConfigError if no column matches."""
    table, dot, column = name.rpartition(".")
    if not dot or not table or not column:
        raise ConfigError(f'{place}: write "TABLE.COLUMN", or "*.COLUMN" for every table')
    if table == _EVERY_TABLE:
        found = [(schema, one) for schema in known if (one := _find_column(schema, column)) is not None]
        gone = {other.casefold() for others in dropped.values() for other in others}
        if not found and elsewhere is not None and column.casefold() not in gone:
            names = sorted({c.name for schema in known for c in schema.columns})
            raise ConfigError(f"{place}: no table has a column {column}{suggest_nearest(column, names)}")
        return found
    schema = _find_table(table, known, place, elsewhere)
    if schema is None:
        return []
    one = _find_column(schema, column)
    if one is None and column.casefold() in map(str.casefold, dropped.get(schema.table_id, ())):
        return []
    if one is None:
        names = [c.name for c in schema.columns]
        raise ConfigError(
            f"{place}: {schema.qualified_name} has no column {column}{suggest_nearest(column, names)}",
            hint=f"it has {', '.join(names[:20])}",
        )
    return [(schema, one)]


def _find_column(schema: TableSchema, name: str) -> Column | None:
    """Return the column with this name; without one, the only one whose name differs in case alone."""
    exact = next((c for c in schema.columns if c.name == name), None)
    folded = [c for c in schema.columns if c.name.casefold() == name.casefold()]
    return exact or (folded[0] if len(folded) == 1 else None)


def _find_table(table: str, known: Seq[TableSchema], place: str, elsewhere: Seq[str] | None) -> TableSchema | None:
    """Return the table that a rule names; None if only `elsewhere` has it (None = any table). Raises ConfigError."""
    for fold in (str, str.casefold):
        meant = [s for s in known if fold(table) in (fold(s.name), fold(s.qualified_name))]
        if len(meant) == 1:
            return meant[0]
        if meant:
            names = " or ".join(f'"{s.qualified_name}"' for s in meant)
            raise ConfigError(f"{place}: more than one table has this name: write {names}")
    if elsewhere is None or any(
        table.casefold() in (other.casefold(), other.partition(".")[2].casefold()) for other in elsewhere
    ):
        return None
    names_known = sorted({*(s.qualified_name for s in known), *elsewhere})
    raise ConfigError(
        f"{place}: there is no table {table}{suggest_nearest(table, names_known)}",
        hint=f"captured tables: {', '.join(names_known[:12]) or 'none'}",
    )


def _names_column(name: str, schema: TableSchema, column: Column) -> bool:
    """Return whether a rule's name, TABLE.COLUMN, means a column."""
    table, _, wanted = name.rpartition(".")
    names = (_EVERY_TABLE, schema.name.casefold(), schema.qualified_name.casefold())
    return wanted.casefold() == column.name.casefold() and table.casefold() in names


def _new_names(schema: TableSchema, rules: Mapping[int, tuple[str, ColumnRule]]) -> tuple[tuple[str, str], ...]:
    """Return the renamed columns of a table, old and new names."""
    return tuple(
        sorted(
            (c.name, rules[c.number][1].rename)
            for c in schema.columns
            if c.number in rules and rules[c.number][1].rename
        )
    )


def _refers_to_renamed(
    schema: TableSchema, known: Seq[TableSchema], found: Mapping[int, Mapping[int, tuple[str, ColumnRule]]]
) -> bool:
    """Return whether a foreign key refers to a table with renamed columns."""
    names = {(key.referred_namespace, key.referred_table) for key in schema.foreign_keys}
    others = [other for other in known if (other.namespace, other.name) in names]
    return any(_new_names(other, found.get(other.table_id, {})) for other in others)
