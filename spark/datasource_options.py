"""The options of `format("venus")`, checked: an option that nobody knows is an error, not a surprise.

Spark hands options over in any case and as text. Names are those of this house, with their units.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

from venus.codec import schema as schemas_codec
from venus.errors import ConfigError, VenusError
from venus.model import TableSchema, is_address
from venus.rpc.address import from_options
from venus.rpc.admin import Admin
from venus.rpc.snapshots import Snapshots
from venus.suggest import nearest
from venus.wire import broker_pb2, change_pb2

#: Options of Spark itself that come along.
_FOREIGN = frozenset({"path", "header"})
_STREAM_ONLY = frozenset({"group", "max_rows", "max_bytes", "whole_cuts", "idle_s"})
_FULL_ONLY = frozenset({"low", "high"})
STARTING_MISSING = 'say .option("starting", "latest"), "earliest", "full" or an offset'


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a job asks for. Empty = not given."""

    #: Where the broker is, HOST:PORT; several of a cluster with commas between.
    address: str = "127.0.0.1:7400"
    #: TLS: files at the driver and at every executor (docs/SECURITY.md). No secret is an option: plans show options.
    ca: str = ""
    certificate: str = ""
    key: str = ""
    token_file: str = ""
    business: str = "main"
    #: NAMESPACE.TABLE as the source calls it, or TABLE if that is clear.
    table: str = ""
    #: Which columns, separated by commas; empty = all.
    columns: tuple[str, ...] = ()
    #: Columns that are wanted as the canonical text of their values.
    text_columns: tuple[str, ...] = ()
    #: Full data: bounds of the first key column, low inclusive, high exclusive.
    low: str = ""
    high: str = ""
    #: Into how many partitions the data is cut, at least if there is enough, or for a stream at most.
    splits: int = 8
    #: Full data: how long the snapshot is kept without a sign of a reader.
    lease_s: int = 300
    #: How long a broker that is away is waited for before a task fails.
    patience_s: int = 60
    #: Streams, and what makes a read a stream: earliest, latest, full (the full data first) or an offset. Where a query
    #: begins that has no checkpoint; a `group` that the broker knows goes on where it is.
    starting: str = ""
    #: Streams: the consumer group that the broker keeps increments for; empty = none.
    group: str = ""
    #: Streams: how much one micro-batch has at most; 0 = no limit. A larger cut is taken whole.
    max_rows: int = 200_000
    max_bytes: int = 64 << 20
    #: Streams: whether a micro-batch ends where a cut of the source ends.
    whole_cuts: bool = True
    #: Streams: how long changes of other tables may pass before an empty micro-batch moves the offset on.
    idle_s: int = 60

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Options:
        """Check and convert. Raises ConfigError."""
        known = {f.name: f for f in fields(cls)}
        values: dict[str, object] = {}
        for key, text in given.items():
            name = key.lower()
            if name in _FOREIGN:
                continue
            if name not in known:
                meant = nearest(name, known)
                raise ConfigError(f"format venus has no option {key!r}{meant}", hint=f"it has: {', '.join(known)}")
            # a key may begin with a blank, or end with one
            given_text = str(text) if name in _FULL_ONLY else str(text).strip()
            values[name] = _converted(name, given_text, known[name].default)
        if isinstance(address := values.get("address"), str):
            values["address"] = re.sub(r"\s*([,;])\s*", r"\1", address)
        made = cls(**values)  # type: ignore[arg-type]
        made._check()
        if not made.starting and (only := sorted(_STREAM_ONLY & values.keys())):
            raise ConfigError(f"option {only[0]} is for streams, and option starting is missing", hint=STARTING_MISSING)
        if made.starting and (only := sorted(_FULL_ONLY & values.keys())):
            raise ConfigError(
                f"option {only[0]} is for full data, and option starting makes this a stream",
                hint="choose among the changes with filter()",
            )
        return replace(made, address=from_options({f.name: getattr(made, f.name) for f in fields(made)}))

    def _check(self) -> None:
        if not all(map(is_address, re.split("[,;]", self.address))):
            raise ConfigError(f"option address: {self.address!r} should be HOST:PORT, or several with commas between")
        if not self.table:
            raise ConfigError("option table is missing", hint='say .option("table", "NAMESPACE.TABLE")')
        if self.starting and self.starting not in ("earliest", "latest", "full") and not self.starting.isdecimal():
            raise ConfigError(f"option starting: {self.starting!r} is none of earliest, latest, full or an offset")
        if self.splits < 1 or self.lease_s < 1:
            raise ConfigError("options splits and lease_s must be 1 or more")


def _converted(name: str, text: str, default: object) -> object:
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"option {name}: {text!r} should be true or false")
        return text.lower() == "true"
    if isinstance(default, int):
        if not text.isdecimal():
            raise ConfigError(f"option {name}: {text!r} should be an integer")
        return int(text)
    if isinstance(default, tuple):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text


@contextmanager
def told() -> Iterator[None]:
    """Put an error's hint into its text: that is all that Spark carries from a worker to people."""
    try:
        yield
    except VenusError as error:
        if error.hint and error.hint not in str(error):
            error.args = (f"{error}; {error.hint}",)
        raise


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
