"""Report of a comparison as one self-contained HTML file, to be archived, mailed or attached to a change request."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from venus.adapters.verify.findings import RowDifference, TableResult, UndecidedRow, VerifyResult, value_text
from venus.adapters.verify.slice_tasks import ComparisonSide
from venus.errors import VenusError

#: Browsers cannot open pages with more findings; the others are counted here, and listed by --json and --parquet.
SHOWN_MAX = 2_000
VALUE_CHARACTERS = 400
_PLACES = [place.value for place in ComparisonSide]


def write_html(result: VerifyResult, file: Path) -> None:
    """Write the report, replacing the file."""
    try:
        file.write_text(render_page(result), encoding="utf-8")
    except OSError as error:
        raise VenusError(f"--html {file}: {error.strerror or error}") from error


def render_page(result: VerifyResult) -> str:
    """Return the report as HTML."""
    template = Template((files(__package__) / "report.html").read_text(encoding="utf-8"))
    found, open_ = len(result.differences), len(result.undecided)
    circumstances = [
        f"target {result.target}", f"leg {result.leg}", result.started_at, f"{result.seconds:,.1f} s",
        f"VENUS {result.version}",
    ]  # fmt: skip
    if result.where:
        circumstances.append(f"where {result.where}")
    if result.sample < 1:
        circumstances.append(f"a sample of {result.sample:.1%}")
    if result.not_compared:
        circumstances.append(f"not compared: {', '.join(result.not_compared)}")
    return template.substitute(
        business=escape(result.business),
        verdict=result.verdict.name.lower(),
        summary=f"{result.rows:,} rows compared, {result.moved:,} of them moved; {found:,} rows differ, "
        f"{open_:,} undecided.",
        circumstances=escape(" · ".join(circumstances)),
        tables=_table(
            ("table", "compared", "rows", "moved", "on their way", "different", "undecided", "notes"),
            map(_summary, result.tables),
        ),
        differences=_section(
            "Differences",
            ("table", "key", "what", "column", *_PLACES),
            found,
            (line for d in result.differences[:SHOWN_MAX] for line in _difference(d)),
        ),
        undecided=_section(
            "Undecided", ("table", "key", "reason"), open_, map(_undecided_row, result.undecided[:SHOWN_MAX])
        ),
    )


def _section(title: str, columns: tuple[str, ...], count: int, lines: Iterable[str]) -> str:
    if not count:
        return ""
    more = f"<p>{count - SHOWN_MAX:,} more are not shown here.</p>" if count > SHOWN_MAX else ""
    return f'<h2>{title}</h2><div class="scroll">{_table(columns, lines)}</div>{more}'


def _table(columns: tuple[str, ...], lines: Iterable[str]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _summary(table: TableResult) -> str:
    numbers = (table.rows, table.moved, table.in_flight, len(table.differences), len(table.undecided))
    notes = [table.method, *table.notes, *(["stopped at the limit of differences"] if table.cut_short else [])]
    cells = "".join(f'<td class="number">{number:,}</td>' for number in numbers)
    return (
        f"<tr><td>{escape(table.table)}</td><td>{escape(table.leg)}</td>{cells}<td>{escape('; '.join(notes))}</td></tr>"
    )


def _difference(found: RowDifference) -> Iterable[str]:
    what = f"{found.kind.value}, {found.fault.value} fault" + (f": {found.note}" if found.note else "")
    head = f"<td>{escape(found.table)}</td><td>{_key(found.key)}</td><td>{escape(what)}</td>"
    blank = "<td></td><td></td><td></td>"
    if not found.columns:
        there = "".join(f"<td>{'there' if place in found.present else ''}</td>" for place in _PLACES)
        yield f"<tr>{head}<td></td>{there}</tr>"
    for number, column in enumerate(found.columns):
        values = "".join(f"<td>{_value(column.values, place)}</td>" for place in _PLACES)
        yield f"<tr>{blank if number else head}<td>{escape(column.column)}</td>{values}</tr>"


def _value(values: dict[str, str | bytes | None], place: str) -> str:
    if place not in values:
        return '<span class="absent">&ndash;</span>'
    value = value_text(values[place])
    if value is None:
        return '<span class="null">NULL</span>'
    cut = value if len(value) <= VALUE_CHARACTERS else f"{value[:VALUE_CHARACTERS]}… ({len(value):,} characters)"
    return f"<code>{escape(cut)}</code>"


def _key(key: dict[str, str]) -> str:
    return ", ".join(f"{escape(name)}=<code>{escape(value)}</code>" for name, value in key.items())


def _undecided_row(found: UndecidedRow) -> str:
    return f"<tr><td>{escape(found.table)}</td><td>{_key(found.key)}</td><td>{escape(found.reason)}</td></tr>"
