"""The state of a business that is mirrored from the broker set above, as its log has it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from venus.network import row_filters
from venus.network.row_filters import RowFilter
from venus.network.rows_identity import Levels


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """The source of a mirrored business, and its full data, whose cut is at `offset`.

    `begin` and `end` are the log indexes of the entries that begin and end the full data; `end` 0 = it is incomplete.
    """

    set: str
    network: str
    only: tuple[str, ...] = ()  # the tables, by name; empty = all
    where: tuple[RowFilter, ...] = ()  # which rows of a table; other tables are here whole
    #: The filters of the sets above; None = one of them is older and does not report them.
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
        """Whether the full data is complete, once its entries up to a log index are stored as rows."""
        return 0 < self.end <= index


def encode(mirror: Mirror | None) -> dict[str, Any] | None:
    """Return the record to store."""
    if mirror is None:
        return None
    stored = asdict(mirror)
    if not mirror.where:
        del stored["where"]  # an older broker can read it
    if mirror.above is None:
        del stored["above"]
    return stored


def decode(stored: Mapping[str, Any] | None) -> Mirror | None:
    """Read a record of `encode`."""
    if stored is None:
        return None
    where, above = row_filters.decode_filters(stored.get("where", ())), stored.get("above")
    levels = None if above is None else tuple(row_filters.decode_filters(level) for level in above)
    return Mirror(**{**stored, "only": tuple(stored["only"]), "where": where, "above": levels})
