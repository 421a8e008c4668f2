"""What a cut-over has proved, for machines and for the file of the change: per table, counts and hashes of all sides.

The document is plain data, so that it can be kept at the target, written as JSON and read by people. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from venus.adapters.cutover.hashing import TableHash
from venus.adapters.cutover.leftout import left_out_lines
from venus.adapters.targets.cutting import Counter, Reference, SchemaDifference
from venus.model import counted

HASH = "sum of xxh3-128 over the row messages, modulo 2^128"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One table on the three sides. `spelled` = compared as the target spells its values."""

    table: str
    target_table: str
    source: TableHash
    full: TableHash
    target: TableHash
    spelled: bool

    @property
    def equal(self) -> bool:
        """Whether all three hold the same rows."""
        return self.source == self.full == self.target

    @property
    def difference(self) -> str:
        """Say what differs, where `equal` is false: the counts, or behind equal counts which side's rows."""
        sides = {"source": self.source, "full data": self.full, "target": self.target}
        if len({found.rows for found in sides.values()}) > 1:
            return ", ".join(f"{side} {found.rows:,} rows" for side, found in sides.items())
        odd = [side for side, found in sides.items() if list(sides.values()).count(found) == 1]
        if len(odd) == 1:
            both = " and ".join(side for side in sides if side not in odd)
            return f"each side has {self.source.rows:,} rows, but those of the {odd[0]} are other ones than {both} have"
        return f"each side has {self.source.rows:,} rows, and each has other ones"

    @property
    def document(self) -> dict[str, Any]:
        """For machines."""
        sides = {"source": self.source, "full_data": self.full, "target": self.target}
        return {
            "table": self.table,
            "target_table": self.target_table,
            "equal": self.equal,
            "rows": {side: found.rows for side, found in sides.items()},
            "hash": {side: found.text for side, found in sides.items()},
            "form": "as the target spells it" if self.spelled else "as it travels",
        }


def document(
    *,
    head: dict[str, Any],
    tables: Sequence[Compared],
    foreign_keys: Sequence[Reference],
    counters: Sequence[Counter],
    left_out: Sequence[str],
    tables_left_out: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """Put the certificate together."""
    return head | {
        "hash": HASH,
        "equal": bool(tables) and all(t.equal for t in tables),
        "tables": [t.document for t in tables],
        "foreign_keys": [
            {
                "name": f.name,
                "reference": f.shown,
                "orphans": f.orphans,
                "example": f.example,
                "not_valid": f.not_valid,
            }
            for f in foreign_keys
        ],
        "counters": [
            {"sequence": c.sequence, "table": c.table, "column": c.column, "next": c.next_value, "step": c.step}
            for c in counters
        ],
        "tables_left_out": list(tables_left_out),
        "left_out": list(left_out),
        "warnings": [],
    }


def schema(differences: Sequence[SchemaDifference]) -> dict[str, Any]:
    """Return the certificate's part about what is not at the target as it is at the source."""
    return {
        "schema_differences": [
            {"table": d.table, "what": d.what, "statement": d.statement, "blocks": d.blocks} for d in differences
        ]
    }


def text(found: dict[str, Any]) -> str:
    """Return the certificate for people."""
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
        f"  ! {f['name']} {f['reference']}: {dangling(f['orphans'])}, for example {f['example']}"
        for f in found["foreign_keys"]
        if f["orphans"]
    ]
    lines += ["", f"counters: {len(found['counters'])} set"]
    lines += [f"  {c['sequence']} goes on at {c['next']:,}" for c in found["counters"]]
    if differences := found.get("schema_differences"):
        lines += ["", f"not as at the source: {len(differences)}"]
        lines += [f"  {'! ' if d['blocks'] else ''}{d['table']}: {d['what']}: {d['statement']}" for d in differences]
    for title, key in (("not carried over by VENUS", "left_out"), ("warnings", "warnings")):
        if found[key]:
            lines += ["", f"{title}: {len(found[key])}", *(f"  {line}" for line in found[key])]
    return "\n".join(lines) + "\n"


def _table_line(table: dict[str, Any]) -> str:
    if table["equal"]:
        return f"{table['table']:<40} {table['rows']['target']:>14,}  {table['hash']['target']}"
    sides = ", ".join(f"{side} {table['rows'][side]:,} {table['hash'][side]}" for side in table["rows"])
    return f"{table['table']:<40} DIFFERENT: {sides}"


def dangling(rows: int) -> str:
    """Say how many rows violate a foreign key."""
    return f"{counted(rows, 'row')} {'refers' if rows == 1 else 'refer'} to nothing"
