"""Certificate of a cut-over: counts and hashes of every table on all sides. Pure.

The document is plain data, so that it can be stored at the target and written as JSON or text. A table's hash is one
number for all of its rows. The hash does not depend on where or in which order the rows are read. Tables that the
patterns choose but that are not captured are listed, because a cut-over would silently omit them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import xxhash

from venus.adapters.dialects.contract import UncapturedTable
from venus.adapters.targets.cutover_contract import CounterSetting, CutoverObstacle, ReferenceCheck, SchemaDifference
from venus.adapters.targets.way_back import WayBackLoss, format_losses
from venus.codec.batch import TableChanges
from venus.codec.columns import from_columns, to_columns
from venus.codec.packed import PackedBytes
from venus.codec.row_bytes import Layout
from venus.errors import ConfigError
from venus.model import TableSchema, count_phrase
from venus.rpc.conditions import MATCHES, LastComparison
from venus.text.formatting import suggest_nearest

_MODULUS = 1 << 128


@dataclass(slots=True)
class TableHash:
    """Order-independent hash of a table, built from sections of rows."""

    rows: int = 0
    total: int = 0

    def add(self, record_ids: PackedBytes, rows: PackedBytes) -> None:
        """Add the rows of a section; each is hashed as record_id and row together."""
        pairs = zip(record_ids.split(), rows.split(), strict=True)
        digests = map(xxhash.xxh3_128_intdigest, (record_id + row for record_id, row in pairs))
        self.total = (self.total + sum(digests)) % _MODULUS
        self.rows += len(record_ids)

    @property
    def text(self) -> str:
        """The hash in hexadecimal."""
        return f"{self.total:032x}"


def align_section(section: TableChanges, version: TableSchema, newest: TableSchema) -> tuple[PackedBytes, PackedBytes]:
    """Return the rows of a section in the layout of the newest version.

    A column that the older rows lack becomes NULL; a column that the newest version has dropped is left out.
    """
    have, wanted = Layout.of(version), Layout.of(newest)
    if have.numbers == wanted.numbers and have.key_count == wanted.key_count:
        return section.record_ids, section.rows
    values = dict(zip(have.numbers, to_columns(section.record_ids, section.rows, have), strict=True))
    nothing = [None] * section.count
    return from_columns([values.get(number, nothing) for number in wanted.numbers], wanted)


HASH = "sum of xxh3-128 over the row messages, modulo 2^128"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTable:
    """Comparison of one table on the three sides. `converted`: values were compared in the form the target stores."""

    table: str
    target_table: str
    source: TableHash
    full: TableHash
    target: TableHash
    converted: bool

    @property
    def is_equal(self) -> bool:
        """Whether source, full data and target hold the same rows."""
        return self.source == self.full == self.target

    @property
    def difference(self) -> str:
        """What differs if `is_equal` is false: the row counts, or else which side has other rows."""
        sides = {"source": self.source, "full data": self.full, "target": self.target}
        if len({found.rows for found in sides.values()}) > 1:
            return ", ".join(f"{side} {found.rows:,} rows" for side, found in sides.items())
        odd = [side for side, found in sides.items() if list(sides.values()).count(found) == 1]
        if len(odd) == 1:
            both = " and ".join(side for side in sides if side not in odd)
            return f"each side has {self.source.rows:,} rows, but the rows of the {odd[0]} differ from those of {both}"
        return f"each side has {self.source.rows:,} rows, and all three differ"

    @property
    def document(self) -> dict[str, Any]:
        """The JSON document of this table."""
        sides = {"source": self.source, "full_data": self.full, "target": self.target}
        return {
            "table": self.table,
            "target_table": self.target_table,
            "equal": self.is_equal,
            "rows": {side: found.rows for side, found in sides.items()},
            "hash": {side: found.text for side, found in sides.items()},
            "form": "as the target spells it" if self.converted else "as it travels",
        }


def to_document(
    *,
    head: dict[str, Any],
    tables: Sequence[ComparedTable],
    foreign_keys: Sequence[ReferenceCheck],
    counters: Sequence[CounterSetting],
    left_out: Sequence[str],
    tables_left_out: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """Build the certificate."""
    return head | {
        "hash": HASH,
        "equal": bool(tables) and all(t.is_equal for t in tables),
        "tables": [t.document for t in tables],
        "foreign_keys": [
            {"name": f.name, "reference": f.shown, "orphans": f.orphans, "example": f.example, "not_valid": f.not_valid}
            for f in foreign_keys
        ],
        **counters_document(counters),
        "tables_left_out": list(tables_left_out),
        "left_out": list(left_out),
        "warnings": [],
    }


def counters_document(counters: Sequence[CounterSetting]) -> dict[str, Any]:
    """Return the certificate's part about counters."""
    return {
        "counters": [
            {"sequence": c.sequence, "table": c.table, "column": c.column, "next": c.next_value, "step": c.step}
            for c in counters
        ]
    }


def certified_comparison(found: Mapping[str, Any], ended_at: datetime) -> LastComparison:
    """Return the comparison that a certificate proves: every row of every table was the same on all sides."""
    rows = sum(table["rows"]["target"] for table in found["tables"])
    ended_at_us = round(ended_at.timestamp() * 1e6)
    return LastComparison(ended_at_us=ended_at_us, verdict="same", leg="all", tables=len(found["tables"]), rows=rows)


def schema_document(differences: Sequence[SchemaDifference]) -> dict[str, Any]:
    """Return the certificate's part about schema differences between source and target."""
    return {
        "schema_differences": [
            {"table": d.table, "what": d.what, "statement": d.statement, "blocks": d.blocks} for d in differences
        ]
    }


def losses_document(losses: Sequence[WayBackLoss]) -> dict[str, Any]:
    """Return the certificate's part about values and objects that could not come back to the old database."""
    return {"could_not_come_back": [loss.document for loss in losses]}


def to_text(found: dict[str, Any]) -> str:
    """Return the certificate as text."""
    lines = [
        f"VENUS {found['venus']}: {found['kind']} of target {found['target']} (business {found['business']})",
        f"made {found['made_at']} by {found['made_by']}",
        f"source {found['source_url']}",
        f"target {found['target_url']}",
        f"at Sequence {found['sequence']:,}, offset {found['offset']:,}",
        f"hash: {found['hash']}",
        "",
        f"{'table':<40} {'rows':>14}  {'hash (source = full data = target)':<34}",
    ]
    lines += [_table_line(t) for t in found["tables"]]
    lines += left_out_lines(found.get("tables_left_out", ()))
    lines += ["", f"foreign keys: {len(found['foreign_keys'])} checked row by row"]
    lines += [
        f"  ! {f['name']} {f['reference']}: {describe_dangling(f['orphans'])}, for example {f['example']}"
        for f in found["foreign_keys"]
        if f["orphans"]
    ]
    lines += ["", f"counters: {len(found['counters'])} set"]
    lines += [f"  {c['sequence']} continues at {c['next']:,}" for c in found["counters"]]
    if differences := found.get("schema_differences"):
        lines += ["", f"not as at the source: {len(differences)}"]
        lines += [f"  {'! ' if d['blocks'] else ''}{d['table']}: {d['what']}: {d['statement']}" for d in differences]
    if losses := format_losses(found.get("could_not_come_back", ())):
        lines += ["", *losses]
    for title, key in (("not carried over by VENUS", "left_out"), ("warnings", "warnings")):
        if found[key]:
            lines += ["", f"{title}: {len(found[key])}", *(f"  {line}" for line in found[key])]
    return "\n".join(lines) + "\n"


def _table_line(table: dict[str, Any]) -> str:
    if table["equal"]:
        return f"{table['table']:<40} {table['rows']['target']:>14,}  {table['hash']['target']}"
    sides = ", ".join(f"{side} {table['rows'][side]:,} {table['hash'][side]}" for side in table["rows"])
    return f"{table['table']:<40} DIFFERENT: {sides}"


def describe_dangling(rows: int) -> str:
    """Describe how many rows violate a foreign key."""
    return f"{count_phrase(rows, 'row')} {'refers' if rows == 1 else 'refer'} to nothing"


OPTION = "--leave-out"


def choose_left_out(uncaptured: Iterable[UncapturedTable], names: Sequence[str]) -> list[UncapturedTable]:
    """Return the uncaptured tables that the operator names, with or without their namespace.

    Raises ConfigError for a name that matches no uncaptured table or several; captured tables cannot be left out.
    """
    uncaptured = list(uncaptured)
    known = [table.name for table in uncaptured]
    found = {}
    for name in names:
        meant = [t for t in uncaptured if name in (t.name, t.name.rpartition(".")[2])]
        meant = [t for t in meant if t.name == name] or meant
        if len(meant) > 1:
            several = " or ".join(t.name for t in meant)
            raise ConfigError(f"{OPTION} {name}: it matches more than one table: write {several}")
        if not meant:
            hint = f"not captured: {', '.join(known[:12])}" if known else "every table that matches is captured"
            raise ConfigError(
                f"{OPTION} {name}: no such table is left to capture{suggest_nearest(name, known, in_full=True)}",
                hint=hint,
            )
        found[meant[0].name] = meant[0]
    return list(found.values())


def find_uncaptured_table_obstacles(
    uncaptured: Iterable[UncapturedTable], left_out: Iterable[UncapturedTable]
) -> list[CutoverObstacle]:
    """Return an obstacle for each table that is neither captured nor left out."""
    names = {table.name for table in left_out}
    return [_to_obstacle(table) for table in uncaptured if table.name not in names]


def _to_obstacle(table: UncapturedTable) -> CutoverObstacle:
    without = f"to go without it: {OPTION} {table.name}"
    if table.obstacle:
        what = f"{table.name} {MATCHES} cannot be captured: {table.obstacle}"
        return CutoverObstacle(what=what, remedy=f"venus check says what to do, then venus install-triggers; {without}")
    return CutoverObstacle(what=f"{table.name} {MATCHES} is not captured", remedy=f"venus install-triggers; {without}")


def left_out_document(left_out: Iterable[UncapturedTable], released: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the left-out tables for the certificate; `released`: tables taken out of capture, with the reason."""
    return [
        *({"table": t.name, "reason": t.obstacle or "not captured"} for t in left_out),
        *({"table": name, "reason": f"not captured any more ({why})"} for name, why in sorted(released.items())),
    ]


def left_out_lines(found: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines about left-out tables in the text of a certificate; [] without tables."""
    if not found:
        return []
    head = f"tables left out by the operator, neither captured nor compared: {len(found)}"
    return ["", head, *(f"  ! {table['table']}: {table['reason']}" for table in found)]
