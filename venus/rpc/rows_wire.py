"""Which rows somebody has, between the wire and what the rules know."""

from __future__ import annotations

from venus.errors import Unavailable
from venus.network.rows_identity import RowsIdentity, TableRows, differing, told
from venus.wire import broker_pb2


def to_wire(identity: RowsIdentity) -> broker_pb2.RowsIdentity:
    """Return the message."""
    return broker_pb2.RowsIdentity(
        set=identity.set,
        tables=[
            broker_pb2.TableRows(table_id=one.table_id, name=one.name, rows=one.rows, digest=one.digest)
            for one in identity.tables
        ],
    )


def from_wire(message: broker_pb2.RowsIdentity) -> RowsIdentity:
    """Read the message."""
    return RowsIdentity(
        set=message.set,
        tables=tuple(
            TableRows(table_id=one.table_id, name=one.name, rows=one.rows, digest=one.digest) for one in message.tables
        ),
    )


def said_in(message: broker_pb2.Opened | broker_pb2.Snapshot | broker_pb2.Increment) -> RowsIdentity | None:
    """Return what a broker says with a position; None = nothing, which an older one never does."""
    return from_wire(message.rows) if message.HasField("rows") else None


def check_table(snapshot: broker_pb2.Snapshot, rows: RowsIdentity | None, table_id: int) -> None:
    """Take no full data of a table from a set with other rows than the one whose changes are followed.

    `rows` None = that one has not said which it has. Raises Unavailable.
    """
    found = said_in(snapshot)
    if rows is not None and found is not None and differing(rows, found, (table_id,)):
        raise Unavailable(f"set {found.set} has other rows: {told((table_id,), rows, found)}")
