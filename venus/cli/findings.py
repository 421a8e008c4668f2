"""The findings of `venus verify`, as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from venus.cli.output import build_table
from venus.model import count_phrase
from venus.text.formatting import format_duration

if TYPE_CHECKING:
    from rich.console import RenderableType

    from venus.adapters.verify.findings import RowDifference, TableResult, VerifyResult
    from venus.adapters.verify.repair import RepairResult

#: Maximum number of findings on a terminal; the others are counted. --json, --html and --parquet are complete.
SHOWN_MAX = 30
VALUE_CHARACTERS = 60
FORMAT = "venus-diff/1"


def format_tables(result: VerifyResult) -> RenderableType:
    """Build a table with a line for each compared table."""
    rows: list[tuple[object, ...]] = [
        (
            t.table,
            t.leg,
            t.rows,
            t.moved,
            t.in_flight,
            len(t.differences),
            len(t.undecided),
            t.method or None,
            t.seconds,
        )
        for t in result.tables
    ]
    columns = ("table", "compared", "rows", "moved", "on their way", "different", "undecided", "method", "seconds")
    return build_table(*columns, rows=rows)


def format_findings(differences: list[RowDifference]) -> RenderableType:
    """Build a table of the findings, with a line for each differing column."""
    rows: list[tuple[object, ...]] = []
    for d in differences[:SHOWN_MAX]:
        what = f"{d.kind.value}" + (f" ({d.note})" if d.note else "")
        head: tuple[object, ...] = (d.table, format_key(d.key), what, d.fault.value)
        if d.kind.value != "different" or not d.columns:
            rows.append((*head, "", f"there: {', '.join(d.present) or 'nowhere'}"))
            continue
        for c in d.columns:
            rows.append((*head, c.column, "; ".join(f"{place} {format_value(v)}" for place, v in c.values.items())))
            head = ("", "", "", "")
    return build_table("table", "key", "row is", "fault", "column", "values", rows=rows)


def format_key(key: dict[str, str]) -> str:
    """Format a key in one line."""
    return ", ".join(f"{name}={value[:VALUE_CHARACTERS]}" for name, value in key.items())


def format_value(value: str | bytes | None) -> str:
    """Format a value, cut to a maximum length."""
    from venus.adapters.verify.findings import value_text

    text = value_text(value)
    if text is None:
        return "NULL"
    return repr(text) if len(text) <= VALUE_CHARACTERS else f"{text[:VALUE_CHARACTERS]!r}..."


def verdict_word(result: VerifyResult, repaired: RepairResult | None, code: int) -> str:
    """Return the verdict as a word; after a repair, the word describes the repaired state."""
    if code == 0 and repaired is not None and result.differences:
        return "repaired"
    return "undecided" if code == 3 else result.verdict.name.lower()


def verdict_line(result: VerifyResult, word: str) -> str:
    """Return the last line, which summarises the result."""
    compared = (
        f"{count_phrase(result.rows, 'row')} compared in {format_duration(result.seconds)}, {result.moved_rows:,} moved"
    )
    part = f" (a sample of {result.sample:.1%})" if result.sample < 1 else ""
    faults = sorted({d.fault.value for d in result.differences})
    blame = f", fault of {' and '.join(faults)}" if faults else ""
    left = f"; {count_phrase(len(result.not_compared), 'table')} not compared" if result.not_compared else ""
    were = "were " if word == "repaired" else ""
    return (
        f"{word.upper()}: {compared}{part}; {len(result.differences):,} {were}different{blame}, "
        f"{len(result.undecided_rows):,} undecided{left}"
    )


def document(result: VerifyResult, repaired: RepairResult | None, code: int) -> dict[str, Any]:
    """Return the whole result of a comparison as a JSON document."""
    found = {
        "format": FORMAT,
        "verdict": verdict_word(result, repaired, code),
        "exit_code": code,
        "business": result.business,
        "target": result.target,
        "leg": result.leg,
        "started_at": result.started_at,
        "seconds": result.seconds,
        "version": result.version,
        "sample": result.sample,
        "where": result.where,
        "rows": result.rows,
        "moved": result.moved_rows,
        "notes": result.notes,
        "not_compared": [{"table": name, "reason": reason} for name, reason in result.not_compared.items()],
        "tables": [_table_document(t) for t in result.tables],
        "findings": [_finding_document(d) for d in result.differences],
        "undecided": [{"table": u.table, "key": u.key, "reason": u.reason} for u in result.undecided_rows],
    }
    if repaired is not None:
        found["repair"] = {
            "emitted": repaired.emitted,
            "repaired": repaired.repaired,
            "left": [{"table": s.table, "key": s.key, "reason": s.reason} for s in repaired.left],
        }
    return found


def _table_document(t: TableResult) -> dict[str, Any]:
    """Return the JSON object of one compared table."""
    return {
        "table": t.table,
        "compared": t.leg,
        "verdict": t.verdict.name.lower(),
        "rows": t.rows,
        "moved": t.moved,
        "in_flight": t.in_flight,
        "different": len(t.differences),
        "undecided": len(t.undecided),
        "method": t.method,
        "seconds": t.seconds,
        "notes": t.notes,
        "cut_short": t.cut_short,
    }


def _finding_document(d: RowDifference) -> dict[str, Any]:
    """Return the JSON object of one row that differs."""
    return {
        "table": d.table,
        "key": d.key,
        "kind": d.kind.value,
        "fault": d.fault.value,
        "present": list(d.present),
        "columns": {c.column: c.values for c in d.columns},
        "note": d.note,
    }
