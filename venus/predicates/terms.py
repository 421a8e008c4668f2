"""What a predicate says, before anything is known of the table: terms, each a range of one column. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import Enum


class Form(Enum):
    """How a constant is written."""

    TEXT = "text"
    NUMBER = "number"
    BOOL = "boolean"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Constant:
    """A value in the predicate."""

    form: Form
    value: str | Decimal | bool | bytes
    at: int

    @property
    def sql(self) -> str:
        """The constant as it is written."""
        match self.value:
            case bool():
                return str(self.value).lower()
            case bytes():
                return f"x'{self.value.hex()}'"
            case Decimal():
                return f"{self.value:f}"
            case _:
                return "'" + self.value.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class Term:
    """A range of one column. `sign`: a comparison, "in", "null" or "not null"."""

    column: str
    quoted: bool  # then the name is meant exactly as it is written
    at: int
    sign: str
    values: tuple[Constant, ...] = ()

    @property
    def sql(self) -> str:
        """The term in one way of writing it."""
        name = quoted(self.column) if self.quoted else self.column.lower()
        if self.sign in ("null", "not null"):
            return f"{name} is {self.sign}"
        if self.sign == "in":
            return f"{name} in ({', '.join(v.sql for v in self.values)})"
        return f"{name} {self.sign} {self.values[0].sql}"


def quoted(name: str) -> str:
    """Return a column's name as SQL has it when it is meant exactly."""
    return '"' + name.replace('"', '""') + '"'


def written(terms: tuple[Term, ...]) -> str:
    """Return the terms as text; the same for texts that differ in blanks and in the case of keywords only."""
    return " and ".join(term.sql for term in terms)
