"""Types of columns that only a PostgreSQL which happens to have them can take: what is missing, and the way out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from venus.adapters.targets.postgresql.naming import Placed
from venus.adapters.targets.postgresql.schema.ddl import type_sql
from venus.adapters.targets.postgresql.session import Session
from venus.adapters.targets.postgresql.statements import statement
from venus.model import Kind, LogicalType, TableSchema

#: How what is left out names it.
_TYPE = "type of column"


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """One reason why a load would be refused."""

    where: str
    message: str
    remedy: str

    @property
    def line(self) -> str:
        """One line for people."""
        return f"{self.where} {self.message}: {self.remedy}"


def missing_types(session: Session, placed: Sequence[Placed], target: str) -> list[Obstacle]:
    """Return a line for each column of a type that is neither here nor made by VENUS; one query for all tables."""
    wanted = [(one, column, name) for one in placed for column, name in _foreign_types(one)]
    spelled = sorted({name for _, _, name in wanted})
    if not spelled:
        return []
    missing = {name for (name,) in session.rows(statement("dictionary", "missing_types"), {"types": spelled})}
    return [
        Obstacle(
            where=f"{one.schema.qualified}.{column}",
            message=f"is of type {name}, which target {target} does not have",
            remedy=_remedy(one.schema, column),
        )
        for one, column, name in wanted
        if name in missing
    ]


def _foreign_types(placed: Placed) -> Iterator[tuple[str, str]]:
    """Yield (column, type) where only a PostgreSQL that happens to have the type can take the column."""
    made = placed.type_names
    for column in placed.schema.columns:
        innermost = _innermost(column.type)
        if innermost.kind is Kind.NATIVE and innermost.name not in made:
            yield column.name, type_sql(innermost, made)


def _innermost(kind: LogicalType) -> LogicalType:
    while kind.kind is Kind.ARRAY and kind.element is not None:
        kind = kind.element
    return kind


def _remedy(schema: TableSchema, column: str) -> str:
    told = [left.reason for left in schema.left_out if (left.what, left.name) == (_TYPE, column)]
    way = told[0] if told else "the target's PostgreSQL is older than the source's: upgrade it"
    return f"{way}; or exclude the table"
