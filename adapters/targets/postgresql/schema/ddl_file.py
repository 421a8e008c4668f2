"""The DDL of a target as a file that a DBA can read and psql can run (VENUS 3.4). Pure.

`migrate` runs the same statements in the same order, with the rows between the first part and the second. The file
starts with a list of all that it does *not* create, so no object of the source is dropped silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from venus.adapters.dialects.contract import Numbering, OtherObject
from venus.adapters.targets.postgresql.naming import PlacedTable, place_all
from venus.adapters.targets.postgresql.schema.constraints import (
    ConstraintNames,
    add_key,
    check_statements,
    foreign_key_statements,
    index_statements,
    placed_foreign_keys,
)
from venus.adapters.targets.postgresql.schema.ddl import (
    create_schemas,
    create_table,
    create_type,
    later_checks,
    list_own_types,
)
from venus.config import Settings
from venus.model import TableSchema

Section = tuple[str, list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """An object that is not created, or differs. `table` is empty if it belongs to no table."""

    table: str
    what: str
    name: str
    definition: str
    reason: str

    @property
    def line(self) -> str:
        """The remark as one line of text."""
        where = f"{self.table}: " if self.table else ""
        shown = " ".join([self.what, self.name, *self.definition.split()])
        return f"{where}{shown.strip()}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DdlFile:
    """The DDL of a target for a source's tables."""

    target: str
    sections: tuple[Section, ...]
    remarks: tuple[Remark, ...]
    #: Statements of the cut-over, which the file contains as comments.
    later: tuple[str, ...]

    @property
    def statements(self) -> list[str]:
        """Every statement, in order."""
        return [statement for _, statements in self.sections for statement in statements]

    @property
    def text(self) -> str:
        """The content of the file."""
        lines = [
            f"-- What `venus migrate --target {self.target}` creates, in its order.",
            "-- By hand: psql -v ON_ERROR_STOP=1 -1 -f FILE",
        ]
        if self.remarks:
            lines += ["--", f"-- Not in here, or not as at the source ({len(self.remarks)}):"]
            lines += [f"--   {remark.line}" for remark in self.remarks]
        for title, statements in self.sections:
            lines += ["", f"-- {title}", *(f"{statement};" for statement in statements)]
        if self.later:
            lines += ["", f"-- `venus cutover --target {self.target}` does these, when the source is at rest:"]
            lines += [f"-- {statement};" for statement in self.later]
        return "\n".join(lines) + "\n"


def build_ddl_file(
    schemas: Iterable[TableSchema],
    settings: Settings,
    target: str,
    numberings: Sequence[Numbering] = (),
    others: Sequence[OtherObject] = (),
) -> DdlFile:
    """Return the DDL of target `target` for these tables. Raises Refused if names collide."""
    placed = place_all(schemas, settings, target)
    names = ConstraintNames(placed)
    for one in placed:  # allocate names in the order of `sections`
        index_statements(one, names)
        check_statements(one, names)
    keys = [r for one in placed for r in placed_foreign_keys(one, placed, names)]
    acting = [r for r in keys if r.key.on_delete or r.key.on_update]
    return DdlFile(
        target=target,
        sections=tuple(build_sections(placed)),
        remarks=(*collect_remarks(placed), *_other_objects(others)),
        later=(
            *(s for r in acting for s in (r.drop, r.add(acting=True), r.validate) if s),
            *(add for _, add in later_checks(placed)),
            *_free_sequences(numberings),
        ),
    )


def build_sections(placed: Sequence[PlacedTable]) -> list[tuple[str, list[str]]]:
    """Return (title, statements) of each part in execution order; no part is empty."""
    names = ConstraintNames(placed)
    parts = [
        ("Schemas", create_schemas(placed)),
        ("Types", [create_type(one, own) for one, own in list_own_types(placed)]),
        ("Tables", [s for one in placed for s in create_table(one)]),
        ("Keys", [add_key(one) for one in placed]),
        ("Indexes and unique constraints", [s for one in placed for s in index_statements(one, names)]),
        ("Checks", [s for one in placed for pair in check_statements(one, names) for s in pair if s]),
        ("Foreign keys; their actions run at the source as long as VENUS applies",
         [s for one in placed for pair in foreign_key_statements(one, placed, names) for s in pair if s]),
    ]  # fmt: skip
    return [part for part in parts if part[1]]


def collect_remarks(placed: Sequence[PlacedTable]) -> list[Remark]:
    """Return the objects of these tables that the target does not get, or gets under another name."""
    found = [
        Remark(table=one.schema.qualified, what=o.what, name=o.name, definition=o.definition, reason=o.reason)
        for one in placed
        for o in one.schema.left_out
    ]
    for one in placed:
        found += [
            Remark(table=one.schema.qualified, what="name", name=long, definition="",
                   reason=f"it is too long for PostgreSQL and becomes {short}")
            for long, short in one.shortened
        ]  # fmt: skip
    return [*found, *_missing_parents(placed)]


def _missing_parents(placed: Sequence[PlacedTable]) -> list[Remark]:
    """Return the foreign keys that refer to a table that is not captured."""
    there = {(one.schema.namespace, one.schema.name) for one in placed}
    return [
        Remark(
            table=one.schema.qualified, what="foreign key", name=key.name, definition=f"({', '.join(key.columns)})",
            reason=f"{key.referred_namespace}.{key.referred_table} is not captured",
        )
        for one in placed
        for key in one.schema.foreign_keys
        if (key.referred_namespace, key.referred_table) not in there
    ]  # fmt: skip


def _other_objects(others: Sequence[OtherObject]) -> list[Remark]:
    return [
        Remark(table="", what=o.kind, name=o.name, definition="", reason="code and views are for you to carry over")
        for o in others
    ]


def _free_sequences(numberings: Sequence[Numbering]) -> list[str]:
    """Return the sequences that belong to no column; the cut-over creates them at the source's number."""
    return [
        f"CREATE SEQUENCE {n.namespace}.{n.name} INCREMENT BY {n.increment}"
        for n in numberings
        if n.name and not n.table
    ]
