"""A relational target without a COPY: its rows are written by the statements of its module `rowsql` (VENUS 3.4).

A target without a COPY cannot replace a key in place, and reports obstacles to a load before anything is written.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from venus.adapters.targets.contract import TargetDdl
from venus.adapters.targets.predicates import check_predicates
from venus.adapters.targets.relational.catalogue import TargetCatalogue
from venus.adapters.targets.relational.database import RelationalDatabase
from venus.adapters.targets.relational.own_tables import OwnPlace, OwnSession, OwnSql
from venus.adapters.targets.relational.place import OWN, RelationalPlace, is_other_key
from venus.adapters.targets.relational.row_merger import StatementMerger
from venus.adapters.targets.relational.row_statements import RowStatements, require_all
from venus.adapters.targets.relational.states import TableState
from venus.adapters.under.row_changes import RowChanges
from venus.codec.packed import PackedBytes
from venus.codec.row_bytes import Layout
from venus.codec.stored_rows import FullRows
from venus.config import Settings
from venus.errors import ConfigError, LoginRefused, Refused, TargetError, VenusError
from venus.model import Finding, TableSchema

logger = logging.getLogger(__name__)

#: The remedy for an existing table that differs.
HINT = "alter the table, move it away, or give the target another database"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFitness:
    """Facts about a target, and the obstacles to a load: (where, message, remedy)."""

    text: str
    obstacles: list[tuple[str, str, str]]
    remarks: list[Finding] = field(default_factory=list)


class RowDatabase(RelationalDatabase):
    """A database that is target `name` of the configuration, and has no COPY."""

    def __init__(self, settings: Settings, name: str, statements: RowStatements, *, first_load: bool = False) -> None:
        super().__init__(settings, name, first_load=first_load)
        self._statements = statements

    # -- rows ----------------------------------------------------------------------------------------------------------

    def row_sql(self, schema: TableSchema) -> OwnSql:
        return self._statements.row_sql(self.place(schema), self.group)

    def open_merger(
        self, session: OwnSession, catalogue: TargetCatalogue, start: int, whole: frozenset[int] | None
    ) -> StatementMerger:
        return StatementMerger(session, catalogue, self._statements, quarantines=self.config.on_error == "quarantine")

    def apply_net(self, session: OwnSession, schema: TableSchema, rows: RowChanges) -> None:
        sql = self.row_sql(schema)
        self._statements.delete_keys(session, sql, Layout.of(schema), rows.record_ids)
        live = rows.where(~rows.is_deleted)
        if len(live):
            require_all(self._statements.insert_rows(session, sql, schema, live.record_ids, live.rows), len(live))

    def record_keys(
        self, session: OwnSession, sql: OwnSql, schema: TableSchema, record_ids: PackedBytes, offset: int
    ) -> None:
        self._statements.record_keys(session, sql, Layout.of(schema), record_ids, offset)

    # -- resync --------------------------------------------------------------------------------------------------------

    def copy_side(self, session: OwnSession, sql: OwnSql, rows: FullRows, version: TableSchema) -> None:
        changes = rows.changes
        self._statements.insert_rows(session, sql, version, changes.record_ids, changes.rows, table=sql.side)

    def replace_by_side(
        self, session: OwnSession, sql: OwnSql, cut: int, evolve: Callable[[], None]
    ) -> tuple[int, int]:
        evolve()
        return self._replace_rows(session, sql, cut)

    def _replace_rows(self, session: OwnSession, sql: OwnSql, cut: int) -> tuple[int, int]:
        """Make rows not changed after `cut` equal to the side table; return how many were removed and added."""
        removed, replaced = (session.run(sql.text(b, offset=str(cut))) for b in ("resync_delete", "resync_replace"))
        inserted = session.write_rows(sql.text("resync_insert", offset=str(cut)))
        return removed, inserted - replaced

    def replace_key_by_side(
        self, session: OwnSession, state: TableState, before: OwnPlace, sql: OwnSql, evolve: Callable[[], None]
    ) -> tuple[int, int]:
        """Replace all rows if only the names of the key have changed. The halted table has no recorded keys to keep."""
        if is_other_key(before.schema, sql.placed.schema, rekeying=True):
            raise TargetError(
                f"the key of {sql.placed.qualified_name} has changed, which a target of this kind does not follow: "
                f"`venus migrate --target {self.name} --empty-meanwhile` loads it again"
            )
        evolve()
        self.forget_recorded(session, sql)
        return self._replace_rows(session, sql, 0)

    def forget_recorded(self, session: OwnSession, sql: OwnSql) -> None:
        """Within a transaction, forget the recorded keys of a table, whose key columns may have had other names."""
        session.run(f"{sql.text('drop_touched')}; {sql.text('create_touched')}")

    # -- load ----------------------------------------------------------------------------------------------------------

    @abstractmethod
    def table_problems(self, session: OwnSession, placed: OwnPlace) -> list[str] | None:
        """Return the reasons why an existing table cannot be used; None if it does not exist."""

    def has_rows(self, session: OwnSession, placed: OwnPlace) -> bool:
        """Return whether the table has any row."""
        found = session.row(self._statements.statement("dictionary", "has_rows", table=placed.sql))
        return bool(found and found[0])

    def count_rows(self, session: OwnSession, placed: OwnPlace) -> int:
        return int(session.row(f"SELECT count(*) FROM {placed.sql}")[0])

    def check_existing(self, session: OwnSession, placed: OwnPlace) -> list[str]:
        """Return the reasons why an existing table, or its rows, cannot be used."""
        found = self.table_problems(session, placed)
        if found == [] and self.config.on_existing == "refuse" and self.has_rows(session, placed):
            remedy = f"empty it, or set targets.{self.name}.on_existing to truncate or append"
            return [f"{placed.name} has rows already: {remedy}"]
        return found or []

    def refuse_existing(self, session: OwnSession, placed: Sequence[OwnPlace]) -> None:
        """Raise Refused with a line for each reason why existing tables cannot be used."""
        if found := [line for one in placed for line in self.check_existing(session, one)]:
            raise Refused("\n".join(found), hint=HINT)

    def finish_table(self, session: OwnSession, placed: OwnPlace) -> None:
        """Do nothing, because the table was created with its key."""

    def list_left_out(self, placed: Sequence[OwnPlace]) -> list[str]:
        return list_left_out(placed)

    def read_load_progress(self, session: OwnSession, load_id: str) -> tuple[int, int, int]:
        """Return the rows of loaded splits, the number of these splits, and the rows of splits in progress."""
        ((rows, splits, under_way),) = self.read_own_rows(session, "load_progress", load_id=load_id)
        return int(rows), int(splits), int(under_way)

    # -- own tables ----------------------------------------------------------------------------------------------------

    def own_sql(self, name: str) -> str:
        return self._statements.statement("own", name, own=OWN)

    def own_execute_text(self, session: OwnSession, name: str, *numbers: int | Sequence[int] | None) -> str:
        if any(isinstance(n, Sequence) for n in numbers):
            rows = zip(*numbers, strict=True)
            return "; ".join(self.own_execute_text(session, name.removesuffix("_all"), *row) for row in rows)
        values = {f"n{i}": number for i, number in enumerate(numbers, 1)}
        return self.own_text(session, f"execute_{name}", **values)

    # -- before a load -------------------------------------------------------------------------------------------------

    @abstractmethod
    def examine(self, session: OwnSession, schemas: Sequence[TableSchema]) -> TargetFitness:
        """Return facts about the target, and the obstacles to a load. Raises Refused if names or keys do not fit."""

    def check(self, schemas: Sequence[TableSchema]) -> list[Finding]:
        """Check that the target is reachable and can have these tables; an unreachable one is a finding."""
        where = f"target {self.name}"
        try:
            predicates = check_predicates(self.config.where, schemas, self.name)
            with closing(self.connect("check")) as session:
                fitness = self.examine(session, schemas)
        except ConfigError as error:
            return [Finding(where=where, message=str(error), remedy=error.hint, blocks=True)]
        except Refused as refused:
            lines = str(refused).split("\n")
            return [Finding(where=where, message=line, remedy=refused.hint, blocks=True) for line in lines]
        except VenusError as error:
            blocks = isinstance(error, LoginRefused) or not error.retryable
            return [Finding(where=where, message=str(error), remedy=error.hint, blocks=blocks)]
        names = {s.table_id: s.qualified_name for s in schemas}
        rows = (f"{names[table_id]} gets the rows where {text}" for table_id, text in predicates.items())
        obstacles = [Finding(where=w, message=m, remedy=r, blocks=True) for w, m, r in fitness.obstacles]
        remarks = [Finding(where=where, message=text) for text in (*rows, f"reachable, {fitness.text}")]
        return [*remarks, *fitness.remarks, *obstacles]

    def refuse_unfit(self, schemas: Sequence[TableSchema]) -> None:
        """Raise Refused with one line for each obstacle to a load, or ConfigError for an unfit predicate."""
        check_predicates(self.config.where, schemas, self.name)
        with closing(self.connect("check")) as session:
            found = self.examine(session, schemas).obstacles
        if found:
            lines = "\n".join(f"{where} {message}: {remedy}" for where, message, remedy in found)
            raise Refused(lines, hint="`venus check` lists the same obstacles; no row was read")


def list_left_out(placed: Sequence[RelationalPlace]) -> list[str]:
    """Return the objects that the target does not get, one line each, with the reason."""
    there = {(one.schema.namespace, one.schema.name) for one in placed}
    found = []
    for one in placed:
        schema = one.schema
        found += [f"{schema.qualified_name}: {o.what} {o.name}: {o.reason}" for o in schema.left_out]
        found += [
            f"{schema.qualified_name}: index {i.name}: it is not one of plain columns"
            for i in schema.indexes
            if i.definition
        ]
        found += [
            f"{schema.qualified_name}: check {c.name}: its condition is in PostgreSQL's syntax" for c in schema.checks
        ]
        found += [
            f"{schema.qualified_name}: foreign key {k.name}: {k.referred_namespace}.{k.referred_table} is not captured"
            for k in schema.foreign_keys
            if (k.referred_namespace, k.referred_table) not in there
        ]
        found += [
            f"{schema.qualified_name}: numbering of {c.name}: the application has to number its own rows"
            for c in schema.columns
            if c.identity
        ]
    return found


def build_target_ddl(heads: Sequence[str], statements: Sequence[str], left_out: Sequence[str]) -> TargetDdl:
    """Return the DDL of a load, with a file that a DBA can read and run. `heads`: the file's first comments."""
    lines = [f"-- {line}" for line in heads]
    if left_out:
        lines += ["--", f"-- Not in here ({len(left_out)}):", *(f"--   {line}" for line in left_out)]
    text = "\n".join([*lines, "", *(f"{statement};" for statement in statements)]) + "\n"
    return TargetDdl(text=text, statements=tuple(statements), later=(), left_out=tuple(left_out))
