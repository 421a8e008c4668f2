"""A target's rules for columns (drop, rename, mask), applied to the table versions that it receives."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Sequence as Seq

from venus.adapters.targets.predicates import find_ambiguity
from venus.codec.masked_rows import Maskers
from venus.config import Settings, require_target
from venus.errors import Refused
from venus.masking.fit import find_misfit
from venus.masking.projection import ProjectedSchema, columns_of, project_schema, source_of
from venus.masking.rules import NONE_DROPPED, RuleSet, TableColumns
from venus.masking.syntax import KEEP, ColumnRule, parse_rule
from venus.model import TableSchema
from venus.security.secrets import read_masking_key
from venus.wire import broker_pb2

#: Why an interrupted load that `mask_splits` has changed cannot continue.
UNKNOWN_SPLITS = "a key is masked, so where its splits begin was not stored"


def masks_keys(schemas: Iterable[TableSchema]) -> bool:
    """Return whether a key of these tables is masked."""
    return any(isinstance(schema, ProjectedSchema) and schema.masks_key for schema in schemas)


def mask_splits(snapshot: broker_pb2.Snapshot, schemas: Iterable[TableSchema]) -> broker_pb2.Snapshot:
    """Return a snapshot as a target may store it: without its splits if a key is masked, as splits contain keys."""
    if not masks_keys(schemas):
        return snapshot
    kept = broker_pb2.Snapshot.FromString(snapshot.SerializeToString())
    del kept.splits[:]
    return kept


def dropped_columns(schemas: Iterable[TableSchema]) -> dict[int, set[str]]:
    """Return the names of columns that the newest version of a table lacks. A renamed column keeps its number."""
    versions = [source_of(s) for s in sorted(schemas, key=lambda s: s.version)]
    newest = {s.table_id: {c.number for c in s.columns} for s in versions}
    found: dict[int, set[str]] = {}
    for schema in versions:
        names = (c.name for c in schema.columns if c.number not in newest[schema.table_id])
        found.setdefault(schema.table_id, set()).update(names)
    return found


class TargetColumns:
    """Rules of a target for its columns: which columns it gets, and in which form."""

    def __init__(self, settings: Settings, name: str) -> None:
        config = require_target(settings, name)
        self._name, self._where = name, config.where
        self._place = f"targets.{name}"
        option = f"{self._place}.masking_key_file"
        self.key = read_masking_key(config.masking_key_file, option) if config.masking_key_file else None
        self.rules = RuleSet(
            place=f"{self._place}.columns",
            rules={column: parse_rule(value) for column, value in config.columns.items()},
            new_columns=config.new_columns,
            key_id=self.key.key_id if self.key is not None else "",
        )
        self.maskers = Maskers(self.key)

    def project_all(self, schemas: Iterable[TableSchema], *, elsewhere: Seq[str] | None = ()) -> list[TableSchema]:
        """Return these table versions as a new target gets them. Raises ConfigError for a rule that does not fit.

        A rule may also name a table that only `elsewhere` contains; with `elsewhere` = None it may name any table.
        """
        every = list(schemas)
        if self.rules.is_empty:
            return every
        newest = {s.table_id: s for s in sorted(every, key=lambda s: s.version)}
        found = self.rules.resolve(newest.values(), elsewhere=elsewhere)
        return [project_schema(s, found.get(s.table_id, TableColumns())) for s in every]

    def project_received(
        self, received: Iterable[TableSchema], schema: TableSchema, others: Iterable[TableSchema] = ()
    ) -> TableSchema:
        """Return a version from the broker as the target gets it; `received`: all versions that the target has.

        `others` are the versions that arrive together with `schema`. If a rule does not fit a new table, or its
        predicate may have been meant for another table, the returned version has a reason to halt (`reason_to_halt`)
        instead of rules.
        """
        if self.rules.is_empty and not self._where:
            return schema
        newest = {s.table_id: s for s in sorted(received, key=lambda s: s.version)}
        before = newest.pop(schema.table_id, None)
        if before is not None:
            return self.follow(before, schema)
        if schema.is_heartbeat:
            return schema
        settled = [source_of(s) for s in newest.values() if not columns_of(s).misfit]
        if misfit := find_ambiguity(self._where, schema, settled, self._name):
            return project_schema(schema, TableColumns(misfit=misfit))
        new = {s.table_id: s for s in sorted(others, key=lambda s: s.version) if s.table_id not in newest}
        new.setdefault(schema.table_id, schema)
        found = self.rules.resolve_new(settled, [*new.values()], elsewhere=None)
        return project_schema(schema, found.get(schema.table_id, TableColumns()))

    def follow(self, before: TableSchema, after: TableSchema) -> TableSchema:
        """Return `after`, another version of a table, as the target gets it; `before`: the newest version received."""
        columns = self.rules.follow(source_of(before), columns_of(before), after)
        return project_schema(after, columns)

    def project_as(self, before: TableSchema, columns: TableColumns, schema: TableSchema) -> TableSchema:
        """Return `schema` as the target gets it; `columns`: the rules for `before`, the newest version received."""
        return project_schema(schema, self.rules.follow(source_of(before), columns, schema))

    def configure(
        self,
        newest: Seq[TableSchema],
        *,
        elsewhere: Seq[str] | None = (),
        dropped: Mapping[int, Collection[str]] = NONE_DROPPED,
    ) -> dict[int, TableColumns]:
        """Return the configured rules of each table, for the newest versions that the target has received.

        A rule for a column that was `dropped` at the source is ignored. A column that was left out because no rule
        names it stays left out, unless the target now carries new columns. A dropped column also keeps its stored rule,
        because older rows have the column.
        """
        settled = [source_of(s) for s in newest if not columns_of(s).misfit]
        halted = [source_of(s) for s in newest if columns_of(s).misfit]
        found = self.rules.resolve_new(settled, halted, elsewhere=elsewhere, dropped=dropped)
        for schema in halted:
            if misfit := find_ambiguity(self._where, schema, settled, self._name):
                found[schema.table_id] = TableColumns(misfit=misfit)
        for schema in newest:
            columns = found.get(schema.table_id, TableColumns())
            found[schema.table_id] = self.rules.add(columns, self._find_unnamed(schema))
        return found

    def _find_unnamed(self, schema: TableSchema) -> dict[int, ColumnRule]:
        """Return the stored rules to keep: of dropped columns and, unless new columns are carried, of unnamed ones."""
        before, there = columns_of(schema).by_number, {c.number for c in source_of(schema).columns}
        kept = {n: rule for n, rule in before.items() if n not in there}
        if self.rules.new_columns == "carry":
            return kept
        named = self.rules.named_columns(source_of(schema))
        return kept | {n: rule for n, rule in before.items() if rule.is_undecided and n not in named}

    def refuse_changed(self, newest: Seq[TableSchema], dropped: Mapping[int, Collection[str]]) -> None:
        """Raise Refused if the rules have changed since these tables were stored; for targets that keep old values."""
        if self.rules.is_empty and not any(isinstance(schema, ProjectedSchema) for schema in newest):
            return
        wanted = self.configure(newest, elsewhere=None, dropped=dropped)
        for schema in newest:
            is_followed = not columns_of(schema).misfit
            if is_followed and project_schema(source_of(schema), wanted[schema.table_id]) != schema:
                raise Refused(
                    f"[{self._place}.columns] or the masking key has changed for {schema.qualified_name}, whose files "
                    "keep the former values",
                    hint=f"name an empty folder in [{self._place}], or take the change back",
                )

    def reason_to_halt(self, schema: TableSchema) -> str:
        """Return why a version cannot be followed (a column rule does not fit, or none decides); empty = it can."""
        if not isinstance(schema, ProjectedSchema):
            return ""
        way = f"change [{self._place}.columns] and start `venus sync` again"
        if misfit := schema.rules.misfit:
            is_predicate = misfit.startswith(f"{self._place}.where.")
            return f"{misfit}; {way.replace('columns', 'where', 1) if is_predicate else way}"
        for column in schema.source.columns:
            rule = schema.rules.by_number.get(column.number, ColumnRule())
            if misfit := find_misfit(rule, column, schema.source):
                return f"{column.name} ({rule.describe()}) {misfit}; {way}"
        if self.rules.new_columns != "halt" or not schema.undecided_columns:
            return ""
        names = ", ".join(schema.undecided_columns)
        option = f'"{schema.name}.{schema.undecided_columns[0]}"'
        return (
            f"the source has added {names}, and new_columns of [{self._place}] is halt: write a rule for it "
            f'({option} = "{KEEP}", "drop" or a mask) into [{self._place}.columns] and start `venus sync` again'
        )
