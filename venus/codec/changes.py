"""The in-memory form of a batch's sections, between capture, transport and apply."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from venus.codec.packed import Packed
from venus.model import ChangeKind, Sequence

_NEVER = Sequence(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChanges:
    """Changes of one table in one schema version, or a marker (then the packed fields are empty).

    `rows` has the columns that are not in the key; `record_ids[i] + rows[i]` is the whole row message. A deleted
    row has size 0 in `rows`.
    """

    table_id: int
    schema_version: int
    kind: ChangeKind = ChangeKind.CHANGES
    record_ids: Packed
    rows: Packed
    is_deleted: npt.NDArray[np.bool_]
    inserts_only: bool = False
    sweep_before: Sequence = _NEVER
    left_out: int = 0  # changes of other tables that a tier has left out here

    @property
    def count(self) -> int:
        """How many Sequences this takes."""
        return len(self.record_ids) if self.kind is ChangeKind.CHANGES else self.left_out or 1

    @property
    def nbytes(self) -> int:
        """Roughly what this weighs on the wire."""
        return len(self.record_ids.data) + len(self.rows.data) + 9 * len(self.record_ids) + 32


EMPTY = Packed(b"", np.zeros(0, dtype=np.uint32))


def marker(table_id: int, schema_version: int, kind: ChangeKind, sweep_before: int = 0) -> TableChanges:
    """Return a section that says something about the whole table."""
    return TableChanges(
        table_id=table_id,
        schema_version=schema_version,
        kind=kind,
        record_ids=EMPTY,
        rows=EMPTY,
        is_deleted=np.zeros(0, dtype=np.bool_),
        sweep_before=Sequence(sweep_before),
    )
