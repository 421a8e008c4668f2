"""The relational targets without a COPY as a `Target`, and as a side of a comparison (VENUS 3.4)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from venus.adapters.dialects.verify_contract import Subject
from venus.adapters.targets.contract import ReachedOffset, TargetCapabilities, TargetDdl
from venus.adapters.targets.relational.row_database import RowDatabase, build_target_ddl, list_left_out
from venus.adapters.targets.relational.target import RelationalTarget, read_parked_rows, read_reached_offset
from venus.adapters.targets.switching import OLD
from venus.codec.batch import TableChanges
from venus.codec.columns import Value, from_columns
from venus.codec.row_bytes import Layout
from venus.config import Settings
from venus.model import Finding, TableSchema

if TYPE_CHECKING:
    from venus.adapters.dialects.contract import Numbering, OtherObject


def row_capabilities(kind: str, *, loads_by_runner: bool) -> TargetCapabilities:
    """Return the capabilities of a relational target without a COPY."""
    return TargetCapabilities(
        kind=kind,
        pauses_tables=True,
        quarantines=True,
        prints_ddl=True,
        loads_by_runner=loads_by_runner,
        loads_while_read=True,
        verifies=True,
        filters=True,
        masks=True,
    )


class RowTarget(RelationalTarget):
    """A database without a COPY that is target `name` of the configuration."""

    def __init__(self, settings: Settings, name: str, target: RowDatabase) -> None:
        super().__init__(settings, name)
        self._target: Any = target
        if name == OLD:  # a database that was the application's can become the application's again
            self.capabilities = replace(self.capabilities, cuts_over=True, falls_back=True)

    @abstractmethod
    def file_heads(self) -> list[str]:
        """Return the comments at the beginning of the file with the DDL."""

    @abstractmethod
    def ddl_statements(self, placed: Seq[Any]) -> list[str]:
        """Return the statements that a load runs for these tables, in order."""

    def check(self, schemas: Seq[TableSchema]) -> list[Finding]:
        return self.check_projected(schemas, self._target.check)

    def require_fit(self, schemas: Seq[TableSchema]) -> None:
        self._target.refuse_unfit(self.project(schemas))

    def build_ddl(self, schemas: Seq[TableSchema], numberings: Seq[Numbering], others: Seq[OtherObject]) -> TargetDdl:
        if self._target.application is not None:  # its tables still exist
            return TargetDdl(text="", statements=(), later=(), left_out=())
        placed = self._target.place_all(self.project(schemas))
        left_out = list_left_out(placed)
        left_out += [f"{o.kind} {o.name}: code and views are for you to carry over" for o in others]
        return build_target_ddl(self.file_heads(), self.ddl_statements(placed), left_out)


class SessionReader:
    """A session that reads a target for a comparison; VENUS's own tables are in the same snapshot as the rows."""

    def __init__(self, target: RowDatabase) -> None:
        self._target: Any = target
        self._session: Any = target.connect("verify")

    def close(self) -> None:
        """Close the session."""
        self._session.close()

    def begin(self, subject: Subject) -> None:
        """Open a snapshot."""
        self.end()
        self._session.begin_snapshot()

    def end(self) -> None:
        """Close the snapshot."""
        self._session.rollback()

    def read_reached_offset(self, subject: Subject) -> ReachedOffset:
        """Return the offset that this table has reached in the snapshot of `begin`."""
        return read_reached_offset(self._target, self._session, subject)

    def read_parked_rows(self, subject: Subject) -> dict[bytes, str]:
        """Return the reasons why changes of single rows were not applied, by record id."""
        return read_parked_rows(self._target, self._session, subject)

    def _place(self, subject: Subject) -> Any:
        """Return the compared table with its names at the target."""
        return self._target.place(subject.schema)


def build_section(schema: TableSchema, columns: Seq[Seq[Value]]) -> TableChanges:
    """Return rows as a section, from the canonical values of their columns in wire order."""
    record_ids, packed = from_columns(columns, Layout.of(schema))
    return TableChanges(
        table_id=schema.table_id,
        schema_version=schema.version,
        record_ids=record_ids,
        rows=packed,
        is_deleted=np.zeros(len(record_ids), dtype=np.bool_),
    )
