"""How a fill goes on behind a key: one statement for each column of the key, each a single range of the key's index.

Oracle compares no rows, and `K1 > :p1 OR K1 = :p1 AND K2 > :p2` is one range that begins at the first row: every chunk
would read again what was read before. So the rest of the last group is read first (`K1 = :p1 AND K2 > :p2`), then what
lies behind it (`K1 > :p1`). In this order the statements give the rows in key order.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from venus.adapters.dialects.fillplace import Place
from venus.adapters.dialects.oracle.statements import statement
from venus.adapters.dialects.oracle.tables import Reading

#: A statement and what to bind in it.
Bound = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FillSql:
    """The statements of a table's fill; those behind a key by how many of its columns they bind, all of them first."""

    first: str
    behind: tuple[str, ...]
    up_to_end: tuple[str, ...]
    last: str  # the greatest key
    counted: bool  # whether the statements bind the number of rows
    key: tuple[Reading, ...]

    def reads(self, cursor: bytes, rows: int) -> list[Bound]:
        """Return the statements that give the next rows when they run one after the other."""
        lines = {"lines": rows} if self.counted else {}
        if not cursor:
            return [(self.first, lines)]
        place = Place.read(cursor)
        end = {} if place.end is None else self._bound("e", place.end)
        texts = self.behind if place.end is None else self.up_to_end
        keys = len(texts)
        return [(text, lines | end | self._bound("p", place.after[: keys - n])) for n, text in enumerate(texts)]

    def _bound(self, name: str, key: Seq[Any]) -> dict[str, Any]:
        pairs = zip(self.key, key, strict=False)
        return {f"{name}{n}": r.bindable(_untagged(tag, value)) for n, (r, (tag, value)) in enumerate(pairs, 1)}


def fill_sql(file: str, parts: dict[str, str], key: Seq[tuple[str, Reading]], keys_read: str, *, long: bool) -> FillSql:
    """Write a table's statements. `key`: its columns in SQL with their readings; `keys_read`: what reads them.

    `long`: it has a LONG, which may stand in no subquery ("SQL Language Reference", Data Types): its statements have
    no ROWNUM, whoever reads them stops.
    """
    block = "fill_long" if long else "fill"
    after = " AND {}" if file == "inline" else "WHERE {} "
    at = [column for column, _ in key]
    ranges = _ranges(key)
    ends = f"{at[0]} <= {_place(key[0][1], 'e1')} AND NOT ({' OR '.join(f'({r})' for r in _ranges(key, 'e'))})"
    order = {"order": ", ".join(at)}
    last = {"columns": keys_read, "lobs": "", "order": ", ".join(f"{column} DESC" for column in at)}
    return FillSql(
        first=statement(file, block, **parts, **order, after=""),
        behind=tuple(statement(file, block, **parts, **order, after=after.format(r)) for r in ranges),
        up_to_end=tuple(
            statement(file, block, **parts, **order, after=after.format(f"{r} AND {ends}")) for r in ranges
        ),
        last=statement(file, "fill", **(parts | last), after=""),
        counted=not long,
        key=tuple(reading for _, reading in key),
    )


def _ranges(key: Seq[tuple[str, Reading]], bound: str = "p") -> list[str]:
    """Return the ranges that together are everything behind the key bound as p1, p2, ...; the nearest first."""
    places = [_place(reading, f"{bound}{n}") for n, (_, reading) in enumerate(key, 1)]
    found = []
    for last in reversed(range(len(key))):
        equal = [f"{column} = {place}" for (column, _), place in zip(key[:last], places, strict=False)]
        found.append(" AND ".join([*equal, f"{key[last][0]} > {places[last]}"]))
    return found


def _place(reading: Reading, name: str) -> str:
    return reading.bind(name)


def key_of(row: Seq[Any], key_count: int) -> list[Any]:
    """Return the key of a row as it was fetched, for a cursor."""
    return [_tagged(value) for value in row[:key_count]]


def _tagged(value: Any) -> list[Any]:
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    return ["number", str(value)] if isinstance(value, int | Decimal) else ["text", value]


def _untagged(tag: str, value: str) -> Any:
    if tag == "bytes":
        return bytes.fromhex(value)
    return Decimal(value) if tag == "number" else value
