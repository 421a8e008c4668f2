"""Which rows of a snapshot a reader with predicates gets; the verdict is that of the increments behind its cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from venus.broker.machine import filter_wire
from venus.codec import schema as schemas_codec
from venus.codec.filtering import stored_inside
from venus.codec.stored import StoredRows
from venus.errors import ProtocolError
from venus.model import TableSchema
from venus.network.row_filters import Fitted, RowFilter, fitted
from venus.network.rows_identity import Levels, RowsIdentity, tables_of
from venus.rpc import reports
from venus.wire import broker_pb2, change_pb2

Choose = Callable[[StoredRows], StoredRows]


def refused_tables(where: tuple[RowFilter, ...], schemas: Iterable[change_pb2.TableSchema]) -> set[int]:
    """Return the tables that a filter does not fit: nothing of them is read."""
    found = fitted(where, map(schemas_codec.from_wire, schemas)) if where else {}
    return {table_id for table_id, one in found.items() if one.refused}


def choosing(where: tuple[RowFilter, ...], table_id: int, schemas: Iterable[change_pb2.TableSchema]) -> Choose | None:
    """Return what picks the wanted rows of a table, None if all are; `schemas` are all versions below the cut."""
    known = {wire.version: schemas_codec.from_wire(wire) for wire in schemas if wire.table_id == table_id}
    found = fitted(where, known.values()).get(table_id)
    return partial(_chosen, found, known) if found is not None else None


def _chosen(found: Fitted, known: dict[int, TableSchema], rows: StoredRows) -> StoredRows:
    """Judge rows of every version by the predicate as it is at the cut."""
    predicate = found.at(max(known)) if not found.refused else None
    inside = np.zeros(len(rows), dtype=np.bool_)
    if predicate is None:
        return rows.where(inside)
    versions = rows.heads["version"]
    for version in np.unique(versions).tolist():
        if version not in known:
            raise ProtocolError(f"{found.name} has rows of version {version}, which nothing describes")
        of_it = versions == version
        inside[of_it] = stored_inside(predicate, rows.where(of_it), known[version])
    return rows.where(inside)


def say_rows(snapshot: broker_pb2.Snapshot, here: str, levels: Levels, where: tuple[RowFilter, ...]) -> None:
    """Say with a snapshot which rows it has, by the filters of all sets on the way and those of its reader."""
    every = (*levels, where) if where else levels
    rows = tables_of(every, map(schemas_codec.from_wire, snapshot.schemas)) if every else {}
    snapshot.levels.CopyFrom(filter_wire.levels_to_wire(levels))
    snapshot.rows.CopyFrom(reports.to_wire(RowsIdentity(set=here, tables=tuple(rows.values()))))
