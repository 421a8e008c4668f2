"""The origin of a business, as its log records it: its home, and the full data of a mirror. Pure.

A promotion moves the home; a business whose home has never moved has no record of a home. The home term counts the
promotions. Of two homes, the one with the higher home term prevails, and the sets that follow it accept nothing from
the other home.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from venus.model import MASKED
from venus.network.row_filters import Levels, RowFilter, decode_filters
from venus.wire import broker_pb2, change_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """The upstream of a mirrored business, and the progress of its full data, whose cut is at `offset`.

    `begin` and `end` are the log indexes of the entries that begin and end the full data; `end` 0 = it is incomplete.
    """

    set: str
    network: str
    only: tuple[str, ...] = ()  # the tables, by name; empty = all
    where: tuple[RowFilter, ...] = ()  # which rows of a table; other tables are complete here
    #: The filters of the sets above; None = one of these sets has an older version, which does not report them.
    above: Levels | None = None
    begin: int = 0
    end: int = 0
    offset: int = 0
    sequence: int = 0  # of the last change below the cut
    rows: int = 0  # of the full data, approximately
    reason: str = ""  # why the full data was loaded again
    snapshot: str = ""  # the snapshot above that is read; empty = none can be resumed
    #: How far it is read: chunks and rows in total, complete splits, and what has arrived of the next split.
    chunks: int = 0
    rows_done: int = 0
    split: int = 0
    after: str = ""  # the last record_id, in hex
    split_rows: int = 0
    split_digest: int = 0

    def is_complete(self, index: int) -> bool:
        """Whether the full data is complete when the entries up to log index `index` are stored as rows."""
        return 0 < self.end <= index


def encode_mirror(mirror: Mirror | None) -> dict[str, Any] | None:
    """Encode a mirror's upstream and progress for the stored record of its business."""
    if mirror is None:
        return None
    stored = asdict(mirror)
    if not mirror.where:
        del stored["where"]  # so that an older broker can read it
    if mirror.above is None:
        del stored["above"]
    return stored


def decode_mirror(stored: Mapping[str, Any] | None) -> Mirror | None:
    """Decode a record of `encode_mirror`."""
    if stored is None:
        return None
    where, above = decode_filters(stored.get("where", ())), stored.get("above")
    levels = None if above is None else tuple(decode_filters(level) for level in above)
    return Mirror(**{**stored, "only": tuple(stored["only"]), "where": where, "above": levels})


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """The home (primary site) of a business since a promotion: its broker set, and the known broker addresses.

    `here` is True if this set is the home.
    """

    set: str
    term: int
    addresses: tuple[str, ...] = ()
    here: bool = False

    def __str__(self) -> str:
        where = f" at {', '.join(self.addresses)}" if self.addresses else ""
        return f"set {self.set}{where}"


def home_term_of(home: Home | None) -> int:
    """Return the home term, which counts promotions; 0 = the home was never moved."""
    return home.term if home is not None else 0


def encode_home(home: Home | None) -> dict[str, Any] | None:
    """Encode the home as a record for the log and the store."""
    return asdict(home) if home is not None else None


def decode_home(stored: Mapping[str, Any] | None) -> Home | None:
    """Decode a record of `encode_home`."""
    return Home(**{**stored, "addresses": tuple(stored["addresses"])}) if stored is not None else None


def home_to_wire(home: Home | None) -> broker_pb2.Home | None:
    """Encode the home as a protobuf message for other brokers and commands."""
    return None if home is None else broker_pb2.Home(set=home.set, home_term=home.term, addresses=home.addresses)


def home_from_wire(message: broker_pb2.Home) -> Home | None:
    """Decode the home from another broker's message; None = the home was never moved."""
    if not message.home_term:
        return None
    return Home(set=message.set, term=message.home_term, addresses=tuple(message.addresses))


def filters_from_wire(filters: Iterable[broker_pb2.RowFilter]) -> tuple[RowFilter, ...]:
    """Decode row filters; their predicates are checked when they are fitted to a table."""
    return tuple(
        RowFilter(
            table=one.table,
            predicate=one.predicate,
            tables=tuple((table.table_id, table.version) for table in one.tables),
        )
        for one in filters
    )


def filters_to_wire(filters: Iterable[RowFilter]) -> list[broker_pb2.RowFilter]:
    """Encode row filters as protobuf messages."""
    return [
        broker_pb2.RowFilter(
            table=one.table,
            predicate=one.predicate,
            tables=[broker_pb2.TableVersion(table_id=n, version=version) for n, version in one.tables],
        )
        for one in filters
    ]


def levels_from_wire(levels: broker_pb2.RowLevels) -> Levels:
    """Decode the row filters of several broker sets, one level for each set."""
    return tuple(filters_from_wire(level.where) for level in levels.levels)


def find_partial_tables(levels: Levels, schemas: Iterable[change_pb2.TableSchema]) -> frozenset[int]:
    """Return the tables that may lack rows or columns: all if there are filters, else those masked by a set above."""
    return frozenset(s.table_id for s in schemas if levels or any(one.what == MASKED for one in s.left_out))


def levels_to_wire(levels: Levels) -> broker_pb2.RowLevels:
    """Encode the row filters of several broker sets, one level for each set."""
    return broker_pb2.RowLevels(levels=[broker_pb2.RowLevel(where=filters_to_wire(level)) for level in levels])
