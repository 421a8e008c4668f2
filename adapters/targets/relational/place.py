"""Places and names of source tables at a target that writes rows by its own statements. Pure (VENUS 3.4).

Each kind of target adds its rules for quoting, its maximum length of names and its types. `[targets.X] names` decides
how names are folded. A name that is too long is shortened deterministically.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from venus.errors import Refused
from venus.model import Column, TableSchema

#: The prefix of the names of VENUS's own tables.
OWN = "venus_"


@dataclass(frozen=True, kw_only=True)
class RelationalPlace(ABC):
    """A source table and its names at the target."""

    schema: TableSchema
    namespace: str
    name: str
    #: The target's rule for names.
    names: str = "auto"

    @abstractmethod
    def quote(self, name: str) -> str:
        """Quote an identifier."""

    @abstractmethod
    def fold(self, name: str) -> str:
        """Return the target's name for a name at the source, without quotes."""

    @property
    @abstractmethod
    def types(self) -> dict[str, str]:
        """The declared type of every column, by its name at the source."""

    @property
    def sql(self) -> str:
        """The quoted table for a statement."""
        return f"{self.quote(self.namespace)}.{self.quote(self.name)}"

    @property
    def qualified_name(self) -> str:
        """The table's name in messages to people: that of the source, because the target has no schemas."""
        return self.schema.qualified_name

    def column(self, name: str) -> str:
        """Return a column's name at the target, quoted."""
        return self.quote(self.fold(name))

    def columns(self, names: Iterable[str]) -> str:
        """Return a list of quoted columns for a statement."""
        return ", ".join(self.column(name) for name in names)

    @property
    def key(self) -> str:
        """The key's columns in key order, as a quoted list for a statement."""
        return self.columns(self.schema.key)

    @property
    def wire_columns(self) -> str:
        """Every column in wire order, as a quoted list for a statement."""
        return self.columns(c.name for c in self.schema.wire_columns)


class UnfitValue(ValueError):
    """A value that no column of the target can hold unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionStep:
    """Step of a table to another version: statements, remarks. `refused`: why it is impossible; empty = possible."""

    statements: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    refused: str = ""


def name_columns(placed: RelationalPlace, columns: Iterable[Column]) -> list[Column]:
    """Return columns of any version with the names that the version of `placed` gives them."""
    names = {c.number: c.name for c in placed.schema.columns}
    return [replace(c, name=names.get(c.number, c.name)) for c in columns]


def is_other_key(before: TableSchema, after: TableSchema, *, rekeying: bool) -> bool:
    """Return whether a step would change a table's key; a resync (`rekeying`) may rename the key's columns."""
    if rekeying:
        return [number for _, number in before.identity] != [number for _, number in after.identity]
    return not before.has_same_key(after)


def find_refused_change(old: RelationalPlace, new: RelationalPlace, target: str, *, rekeying: bool) -> str:
    """Return why a change of a table's name or key cannot be followed; empty = it can."""
    if old.name != new.name:
        return f"the table was renamed from {old.schema.qualified_name} to {new.schema.qualified_name}"
    if is_other_key(old.schema, new.schema, rekeying=rekeying):
        return (
            f"the key has changed to ({', '.join(new.schema.key)}), which a target of this kind does not "
            f"follow: empty it with `venus migrate --target {target} --empty-meanwhile`"
        )
    return ""


def join_steps(parts: Iterable[VersionStep]) -> VersionStep:
    """Return the steps of single columns as one; the first refusal refuses all of them."""
    parts = list(parts)
    if refused := next((part.refused for part in parts if part.refused), ""):
        return VersionStep(refused=refused)
    return VersionStep(
        statements=tuple(text for part in parts for text in part.statements),
        remarks=tuple(text for part in parts for text in part.remarks),
    )


def only_new_columns(step: VersionStep, adds: str) -> VersionStep:
    """Return the step, or a refusal if it does more than add columns: VENUS alters no table of the application.

    `adds`: the text by which a statement that adds a column is recognised.
    """
    altering = [text for text in step.statements if adds not in text]
    return (
        VersionStep(refused=f"only new columns follow to the old database: {'; '.join(altering)}") if altering else step
    )


Placed = TypeVar("Placed", bound=RelationalPlace)


def refuse_clashes(
    placed: Sequence[Placed], find_problems: Callable[[Placed], Iterable[str]], target: str, product: str
) -> list[Placed]:
    """Return the tables. Raises Refused with a line for each impossible name or column.

    `product` is the database's name in messages. Names that differ only in case clash, because the database ignores
    case, or may be moved to a server that ignores it.
    """
    problems = [problem for one in placed for problem in (*_name_problems(one, product), *find_problems(one))]
    seen: dict[str, Placed] = {}
    for one in placed:
        other = seen.setdefault(one.name.lower(), one)
        if other is not one:
            problems.append(
                f"{one.schema.qualified_name} and {other.schema.qualified_name} would both become {one.name.lower()}"
            )
    if problems:
        raise Refused("\n".join(problems), hint=f"exclude one, or give it a target of its own beside {target}")
    return list(placed)


def _name_problems(placed: RelationalPlace, product: str) -> list[str]:
    """Return a line for each reason why a table's names are impossible at the target."""
    columns = [placed.fold(c.name).lower() for c in placed.schema.columns]
    problems = [
        f"{placed.schema.qualified_name}: two columns would be called {c}: {product} ignore their case"
        for c in sorted(set(columns))
        if columns.count(c) > 1
    ]
    if placed.name.lower().startswith(OWN):
        problems.append(f"{placed.schema.qualified_name}: names that begin with {OWN} belong to VENUS")
    return problems
