"""What verification asks of a target beside what it asks of every database: how far it is (capability `verifies`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from venus.adapters.dialects.verifying import Reader, Subject
from venus.model import TableSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTable:
    """A table as a target has it: its version and its rows there, and what keeps it from being compared."""

    schema: TableSchema
    obstacle: str = ""
    predicate: str = ""  # which of its rows it gets; empty = every row


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """Up to which offset changes are in a table's rows; `held` says why that is less than the target's."""

    offset: int
    held: str = ""


class TargetReader(Reader, Protocol):
    """A session that is compared."""

    def reached(self, subject: Subject) -> Reached:
        """Return how far this table is, in the snapshot of `begin`. Raises TargetError if it was never loaded."""
        ...

    def parked(self, subject: Subject) -> dict[bytes, str]:
        """Return why changes of single rows were not applied, by record id."""
        ...
