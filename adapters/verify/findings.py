"""Findings of a comparison: differences with their fault, undecided rows, the verdict; and the reports of them.

A report is either one self-contained HTML file, which can be archived, mailed or attached to a change request, or, for
large results, Parquet files with one row for each differing column.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

import pyarrow as pa
import pyarrow.parquet as pq

from venus.adapters.verify.slice_tasks import ComparisonSide
from venus.codec.columns import Value
from venus.errors import VenusError
from venus.model import count_phrase


class Fault(Enum):
    """The component that caused a difference."""

    CAPTURE = "capture"  # only the source has the row: a trigger was off, or a write bypassed it
    APPLY = "apply"  # full data and target differ: the target was written to
    BOTH = "both"


class DifferenceKind(Enum):
    """How a row differs, as seen from the side from which it should have come."""

    MISSING = "missing"
    EXTRA = "extra"
    DIFFERENT = "different"
    REPEATED = "repeated"  # several rows have the same key: no unique index prevents that


class ComparisonVerdict(Enum):
    """Outcome of a comparison; the value is the exit code."""

    SAME = 0
    DIFFERENT = 1
    UNDECIDED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnDifference:
    """Values of one column on the sides where they are known; output shows bytes in hexadecimal."""

    column: str
    values: dict[str, Value]  # by place


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDifference:
    """A wrong row."""

    table: str
    key: dict[str, str]
    kind: DifferenceKind
    fault: Fault
    columns: tuple[ColumnDifference, ...]
    #: The sides that have the row.
    present: tuple[str, ...] = ()
    note: str = ""
    forms: tuple[str, ...] = ()  # the key as the comparison names it


@dataclass(frozen=True, slots=True, kw_only=True)
class UndecidedRow:
    """A row that differs but may be on its way, or a table that could not be compared (empty key)."""

    table: str
    key: dict[str, str]
    reason: str


@dataclass(slots=True, kw_only=True)
class TableResult:
    """Result of one table."""

    table: str
    leg: str = ""
    rows: int = 0
    moved: int = 0
    seconds: float = 0.0
    method: str = ""
    differences: list[RowDifference] = field(default_factory=list)
    undecided: list[UndecidedRow] = field(default_factory=list)
    in_flight: int = 0  # rows that differed only because the two snapshots have different positions
    notes: list[str] = field(default_factory=list)
    #: The comparison stopped at the limit of differences; there may be more.
    cut_short: bool = False

    @property
    def verdict(self) -> ComparisonVerdict:
        """The verdict: differences outweigh undecided rows, and rows not compared are undecided."""
        if self.differences:
            return ComparisonVerdict.DIFFERENT
        return ComparisonVerdict.UNDECIDED if self.undecided or self.cut_short else ComparisonVerdict.SAME


@dataclass(slots=True, kw_only=True)
class VerifyResult:
    """Result of a comparison."""

    business: str
    target: str
    leg: str
    tables: list[TableResult] = field(default_factory=list)
    seconds: float = 0.0
    started_at: str = ""
    version: str = ""
    sample: float = 1.0
    where: str = ""
    notes: list[str] = field(default_factory=list)
    #: Tables that the patterns choose but that are not captured, each with the reason.
    not_compared: dict[str, str] = field(default_factory=dict)
    #: Tables whose columns are masked, dropped or renamed at the target.
    projected: frozenset[str] = frozenset()

    @property
    def verdict(self) -> ComparisonVerdict:
        """The worst verdict of a table."""
        verdicts = {t.verdict for t in self.tables}
        return next(
            (v for v in (ComparisonVerdict.DIFFERENT, ComparisonVerdict.UNDECIDED) if v in verdicts),
            ComparisonVerdict.SAME,
        )

    @property
    def differences(self) -> list[RowDifference]:
        """The differences of all tables."""
        return [d for t in self.tables for d in t.differences]

    @property
    def shippable(self) -> list[RowDifference]:
        """The differences that shipping rows again repairs: all except several rows with the same key."""
        return [d for d in self.differences if d.kind is not DifferenceKind.REPEATED]

    @property
    def undecided_rows(self) -> list[UndecidedRow]:
        """The undecided rows of all tables."""
        return [u for t in self.tables for u in t.undecided]

    @property
    def cut_short(self) -> bool:
        """Whether a table was not compared to its end."""
        return any(t.cut_short for t in self.tables)

    @property
    def rows(self) -> int:
        """The number of rows compared."""
        return sum(t.rows for t in self.tables)

    @property
    def moved_rows(self) -> int:
        """The number of rows, or of keys with checksums, that databases or broker sent to the comparison."""
        return sum(t.moved for t in self.tables)


#: Placeholder for a value that is masked or dropped at the target, which a report must not show.
HIDDEN = "(masked at the target)"


def hide_values(result: TableResult, masked: Collection[str]) -> None:
    """Hide the values of masked columns, also in keys: source and full data have them in plain text."""
    for n, difference in enumerate(result.differences):
        columns = tuple(
            replace(c, values=dict.fromkeys(c.values, HIDDEN)) if c.column in masked else c for c in difference.columns
        )
        key = _hide_key(difference.key, masked)
        result.differences[n] = replace(difference, columns=columns, key=key)
    result.undecided = [replace(u, key=_hide_key(u.key, masked)) for u in result.undecided]


def _hide_key(key: dict[str, str], masked: Collection[str]) -> dict[str, str]:
    return {name: HIDDEN if name in masked else value for name, value in key.items()}


def value_text(value: Value) -> str | None:
    """Format a value for output."""
    return value.hex() if isinstance(value, bytes) else value


#: Browsers cannot open pages with more findings; the others are counted here, and listed by --json and --parquet.
SHOWN_MAX = 2_000
VALUE_CHARACTERS = 400
_PLACES = {place.value: place.name.lower() for place in ComparisonSide}


def write_html(result: VerifyResult, file: Path) -> None:
    """Write the report, replacing the file."""
    try:
        file.write_text(render_page(result), encoding="utf-8")
    except OSError as error:
        raise VenusError(f"--html {file}: {error.strerror or error}") from error


def render_page(result: VerifyResult) -> str:
    """Return the report as HTML."""
    template = Template((files(__package__) / "report.html").read_text(encoding="utf-8"))
    found, open_ = len(result.differences), len(result.undecided_rows)
    circumstances = [
        f"target {result.target}",
        f"leg {result.leg}",
        result.started_at,
        f"{result.seconds:,.1f} s",
        f"VENUS {result.version}",
    ]
    if result.where:
        circumstances.append(f"where {result.where}")
    if result.sample < 1:
        circumstances.append(f"a sample of {result.sample:.1%}")
    if result.not_compared:
        circumstances.append(f"not compared: {', '.join(result.not_compared)}")
    return template.substitute(
        business=escape(result.business),
        verdict=result.verdict.name.lower(),
        summary=f"{result.rows:,} rows compared, {result.moved_rows:,} of them moved; "
        f"{count_phrase(found, 'row')} different, {open_:,} undecided.",
        circumstances=escape(" · ".join(circumstances)),
        notes=f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in result.notes)}</ul>" if result.notes else "",
        tables=_html_table(
            ("table", "compared", "rows", "moved", "on their way", "different", "undecided", "notes"),
            map(_summary_html, result.tables),
        ),
        differences=_html_section(
            "Differences",
            ("table", "key", "what", "column", *_PLACES),
            found,
            (line for d in result.differences[:SHOWN_MAX] for line in _difference_html(d)),
        ),
        undecided=_html_section(
            "Undecided", ("table", "key", "reason"), open_, map(_undecided_row_html, result.undecided_rows[:SHOWN_MAX])
        ),
    )


def _html_section(title: str, columns: tuple[str, ...], count: int, lines: Iterable[str]) -> str:
    """Return a section with an HTML table; `count`: how many lines there are in total. Empty if there are no lines."""
    if not count:
        return ""
    more = f"<p>{count - SHOWN_MAX:,} more are not shown here.</p>" if count > SHOWN_MAX else ""
    return f'<h2>{title}</h2><div class="scroll">{_html_table(columns, lines)}</div>{more}'


def _html_table(columns: tuple[str, ...], lines: Iterable[str]) -> str:
    """Return an HTML table of these columns; each line is the HTML of a row."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _summary_html(table: TableResult) -> str:
    """Return the row of a table's result in the HTML report."""
    numbers = (table.rows, table.moved, table.in_flight, len(table.differences), len(table.undecided))
    notes = [table.method, *table.notes, *(["stopped at the limit of differences"] if table.cut_short else [])]
    cells = "".join(f'<td class="number">{number:,}</td>' for number in numbers)
    return (
        f"<tr><td>{escape(table.table)}</td><td>{escape(table.leg)}</td>{cells}<td>{escape('; '.join(notes))}</td></tr>"
    )


def _difference_html(found: RowDifference) -> Iterable[str]:
    """Yield the rows about a difference in the HTML report: one for each differing column, or a single one."""
    what = f"{found.kind.value}, {found.fault.value} fault" + (f": {found.note}" if found.note else "")
    head = f"<td>{escape(found.table)}</td><td>{_key_html(found.key)}</td><td>{escape(what)}</td>"
    blank = "<td></td><td></td><td></td>"
    if not found.columns:
        there = "".join(f"<td>{'there' if place in found.present else ''}</td>" for place in _PLACES)
        yield f"<tr>{head}<td></td>{there}</tr>"
    for number, column in enumerate(found.columns):
        values = "".join(f"<td>{_value_html(column.values, place)}</td>" for place in _PLACES)
        yield f"<tr>{blank if number else head}<td>{escape(column.column)}</td>{values}</tr>"


def _value_html(values: dict[str, str | bytes | None], place: str) -> str:
    """Return a value of one side as HTML, shortened if it is long; a dash if it is not known."""
    if place not in values:
        return '<span class="absent">&ndash;</span>'
    value = value_text(values[place])
    if value is None:
        return '<span class="null">NULL</span>'
    cut = value if len(value) <= VALUE_CHARACTERS else f"{value[:VALUE_CHARACTERS]}… ({len(value):,} characters)"
    return f"<code>{escape(cut)}</code>"


def _key_html(key: dict[str, str]) -> str:
    return ", ".join(f"{escape(name)}=<code>{escape(value)}</code>" for name, value in key.items())


def _undecided_row_html(found: UndecidedRow) -> str:
    return f"<tr><td>{escape(found.table)}</td><td>{_key_html(found.key)}</td><td>{escape(found.reason)}</td></tr>"


DIFFERENCES, UNDECIDED, TABLES = "differences.parquet", "undecided.parquet", "tables.parquet"


def write_parquet(result: VerifyResult, folder: Path) -> list[Path]:
    """Write the three files into a folder, replacing existing ones; return them."""
    tables = {
        DIFFERENCES: _differences_table(result),
        UNDECIDED: _undecided_table(result),
        TABLES: _results_table(result),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in tables.items():
            pq.write_table(content, folder / name)
    except OSError as error:
        raise VenusError(f"--parquet {folder}: {error.strerror or error}") from error
    return [folder / name for name in tables]


def _differences_table(result: VerifyResult) -> pa.Table:
    """Return all differences as an Arrow table, with a row for each differing column, or a single row."""
    names = ("table", "key", "kind", "fault", "note", "column", *_PLACES.values(), "present")
    lines = []
    for d in result.differences:
        head = (d.table, json.dumps(d.key, ensure_ascii=False), d.kind.value, d.fault.value, d.note)
        for c in d.columns or (None,):  # a row whose only columns are its key
            values = tuple(value_text(c.values.get(place)) if c else None for place in _PLACES)
            lines.append((*head, c.column if c else None, *values, ", ".join(d.present)))
    return _text_table(names, lines)


def _undecided_table(result: VerifyResult) -> pa.Table:
    lines: list[tuple[str | None, ...]] = [
        (u.table, json.dumps(u.key, ensure_ascii=False) if u.key else None, u.reason) for u in result.undecided_rows
    ]
    return _text_table(("table", "key", "reason"), lines)


def _results_table(result: VerifyResult) -> pa.Table:
    """Return the results of all tables as an Arrow table, with a row for each table."""
    columns: dict[str, pa.Array] = {
        "table": pa.array([t.table for t in result.tables], pa.string()),
        "leg": pa.array([t.leg for t in result.tables], pa.string()),
        "rows": pa.array([t.rows for t in result.tables], pa.int64()),
        "moved": pa.array([t.moved for t in result.tables], pa.int64()),
        "differences": pa.array([len(t.differences) for t in result.tables], pa.int64()),
        "undecided": pa.array([len(t.undecided) for t in result.tables], pa.int64()),
        "verdict": pa.array([t.verdict.name.lower() for t in result.tables], pa.string()),
    }
    return pa.table(columns)


def _text_table(names: tuple[str, ...], lines: list[tuple[str | None, ...]]) -> pa.Table:
    columns = list(zip(*lines, strict=True)) if lines else [()] * len(names)
    return pa.table({name: pa.array(list(column), pa.string()) for name, column in zip(names, columns, strict=True)})
