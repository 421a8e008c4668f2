"""Finds a table at the broker: its number by its name, its versions by its number (the registry is the full data's)."""

from __future__ import annotations

from dataclasses import dataclass

from venus.codec import schema as schemas_codec
from venus.errors import ConfigError
from venus.model import TableSchema
from venus.rpc.admin import Admin
from venus.rpc.snapshots import Snapshots
from venus.spark.datasource_options import Options
from venus.wire import broker_pb2, change_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A table as the broker knows it; can be pickled and sent to executors."""

    table_id: int
    newest: TableSchema
    #: Every version whose rows may still be met, as the wire has it.
    versions: dict[int, bytes]

    def schemas(self) -> dict[int, TableSchema]:
        """Return the versions."""
        return {v: schemas_codec.from_wire(change_pb2.TableSchema.FromString(w)) for v, w in self.versions.items()}


def business_status(options: Options, *named: str) -> broker_pb2.BusinessStatus:
    """Ask the broker, about these tables if any are named. Raises ConfigError if it does not know the business."""
    with Admin(options.address) as admin:
        found = admin.status(named=named).businesses
    for entry in found:
        if entry.business == options.business:
            return entry
    known = ", ".join(sorted(entry.business for entry in found)) or "none yet"
    raise ConfigError(f"the broker at {options.address} has no business {options.business!r}", hint=f"it has: {known}")


def find(options: Options) -> Registered:
    """Return the table that `table` names. Raises ConfigError, naming the tables that there are."""
    wanted = options.table
    found = [t for t in business_status(options, wanted).tables if wanted in (f"{t.namespace}.{t.name}", t.name)]
    if len(found) != 1:
        known = ", ".join(sorted(f"{t.namespace}.{t.name}" for t in business_status(options).tables)[:12])
        what = "no table is" if not found else "more than one table is"
        raise ConfigError(f"{what} called {wanted!r} in business {options.business}", hint=f"there are: {known}")
    with Snapshots(options.address) as snapshots:
        opened = snapshots.open(options.business, table_ids=[found[0].table_id], holder="Spark: the schema")
        snapshots.close(opened.snapshot_id)
    return registered(opened, found[0].table_id)


def registered(snapshot: broker_pb2.Snapshot, table_id: int) -> Registered:
    """Take a table out of a snapshot's description."""
    wires = {wire.version: wire.SerializeToString() for wire in snapshot.schemas if wire.table_id == table_id}
    if not wires:
        raise ConfigError(f"the broker has no description of table {table_id}")
    newest = schemas_codec.from_wire(change_pb2.TableSchema.FromString(wires[max(wires)]))
    return Registered(table_id=table_id, newest=newest, versions=wires)
