"""The assessment as one self-contained HTML file, to be mailed, printed or attached to a change request."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from venus.adapters.assess.report import AssessedTable, Assessment, format_way_back
from venus.errors import VenusError
from venus.model import Finding, count_phrase
from venus.text.formatting import format_bytes, format_duration, format_figure

#: The most entries of a page that browsers can open. The page counts the others, and --json lists them.
SHOWN_MAX = 3_000
_NONE = '<span class="soft">?</span>'
_CODE = re.compile(r"`([^`]+)`")


def write_html(found: Assessment, file: Path) -> None:
    """Write the report, replacing the file."""
    try:
        file.write_text(render_page(found), encoding="utf-8")
    except OSError as error:
        raise VenusError(f"--html {file}: {error.strerror or error}") from error


def render_page(found: Assessment) -> str:
    """Return the report as HTML."""
    template = Template((files(__package__) / "assess.html").read_text(encoding="utf-8"))
    blocking = [finding for finding in found.findings if finding.blocks]
    return template.substitute(
        style=page_style(),
        title=escape(found.title),
        version=escape(found.version),
        taken_at=escape(found.taken_at),
        tone="bad" if blocking else "good",
        verdict=escape(verdict(found)),
        cards=_figure_cards(found),
        facts=_facts_section(found),
        tables=_tables_section(found),
        blocking=_blocking_section(found, blocking),
        not_carried=_refused_section(found) + _list_section("Fall-back", map(escape, format_way_back(found.way_back))),
        formulas=_html_table(
            ("figure", "value", "formula"),
            [],
            (
                f'<tr><td>{mark_code(line.what)}</td><td class="number">{format_figure(line.value, line.unit)}</td>'
                f'<td class="soft">{escape(line.formula)}</td></tr>'
                for line in found.forecast.lines
            ),
            words=True,
        ),
        unknown=_list_section("What could not be known", map(escape, found.unknown)),
        notes=_list_section("Worth knowing", (_format_finding(f) for f in found.findings if not f.blocks)),
    )


def page_style() -> str:
    """Return the style sheet of a report."""
    return (files(__package__) / "report.css").read_text(encoding="utf-8")


def verdict(found: Assessment) -> str:
    """Return the sentence that sums up how many tables can be carried, and how many findings block."""
    carried, all_, blocking = len(found.carried_tables), len(found.tables), sum(f.blocks for f in found.findings)
    if not all_:
        return "No table matches the patterns of the configuration."
    tables = f"{carried:,} of {count_phrase(all_, 'table')} can be carried as they are"
    return (
        f"{tables}; {count_phrase(blocking, 'finding')} to be settled first."
        if blocking
        else f"{tables}: nothing blocks."
    )


def _figure_cards(found: Assessment) -> str:
    """Return the main figures of the forecast as HTML cards."""
    f = found.forecast
    figures = [
        (f"{f.rows:,}", "rows to carry"),
        (format_duration(f.fill_s), "first fill and load of one target, while the application runs"),
        (format_duration(f.cutover_s), "cut-over with the application at rest"),
        (format_bytes(f.broker_bytes), "disk of the broker"),
        (_or_unknown(f.changes_per_s, "/s"), "changed rows"),
        (_or_unknown(f.trigger_ms_per_s, "ms/s"), "cost of the triggers, spread over the application"),
        (_or_unknown(f.log_bytes_per_hour, "bytes/h"), "growth of the logs while VENUS is away"),
    ]
    return "".join(f'<div class="card"><b>{value}</b><span>{escape(what)}</span></div>' for value, what in figures)


def _facts_section(found: Assessment) -> str:
    """Return the section with facts about the server and the code in the database."""
    if not found.facts:
        return ""
    rows = (f'<tr><td class="name">{escape(fact.what)}</td><td>{escape(fact.value)}</td></tr>' for fact in found.facts)
    return f"<section><h2>The server and its code</h2>{_html_table(('what', 'value'), [], rows)}</section>"


def _or_unknown(value: float | None, unit: str) -> str:
    return "unknown" if value is None else format_figure(value, unit)


def _tables_section(found: Assessment) -> str:
    """Return the section with a row for each table of the source."""
    largest = max((t.size.rows or 0 for t in found.tables), default=0) or 1
    columns = ("table", "", "rows", "data", "indexes", "largest value", "columns", "changes", "triggers", "fill")
    ordered = sorted(found.tables, key=lambda t: (not t.refused, -(t.size.rows or 0), t.size.qualified_name))
    grid = _html_table(columns, columns[2:], (_table_row(t, largest) for t in ordered[:SHOWN_MAX]))
    more = len(ordered) - SHOWN_MAX
    return grid + (f"<p>{more:,} more are not shown here; --json has them.</p>" if more > 0 else "")


def _table_row(t: AssessedTable, largest: int) -> str:
    """Return the row of a table in the report; a bar shows its share of the `largest` number of rows."""
    f, size = t.forecast, t.size
    rows = _NONE if size.rows is None else f"{'' if size.counted else '≈ '}{size.rows:,}"
    numbers = (
        rows,
        _bytes_or_question_mark(size.data_bytes),
        _bytes_or_question_mark(size.index_bytes),
        _bytes_or_question_mark(size.largest_bytes),
        f"{t.columns:,}" if t.columns else _NONE,
        _figure_or_question_mark(f.changes_per_s if f else None, "/s"),
        _figure_or_question_mark(f.trigger_ms_per_s if f else None, "ms/s"),
        format_duration(f.read_s + f.load_s) if f else _NONE,
    )
    types = ", ".join(f"{name}{f' x{count}' if count > 1 else ''}" for name, count in t.types.items())
    described = (types, *t.refused, *t.left_out, *size.attached)
    details = "".join(f'<div class="soft">{escape(text)}</div>' for text in described if text)
    share = f'<div class="share" style="width:{100 * (size.rows or 0) / largest:.1f}%"></div>'
    pill = '<span class="pill bad">refused</span>' if t.refused else '<span class="pill good">carried</span>'
    cells = "".join(f'<td class="number">{number}</td>' for number in numbers)
    return f'<tr><td class="name">{escape(size.qualified_name)}{share}{details}</td><td>{pill}</td>{cells}</tr>'


def _bytes_or_question_mark(count: int | None) -> str:
    return _NONE if count is None else format_bytes(count)


def _figure_or_question_mark(value: float | None, unit: str) -> str:
    return _NONE if value is None else format_figure(value, unit)


def _blocking_section(found: Assessment, blocking: list[Finding]) -> str:
    if not blocking:
        return ""
    rows = (
        f'<tr><td class="name">{escape(f.where)}</td><td>{mark_code(f.message)}</td>'
        f'<td class="soft">{mark_code(f.remedy)}</td></tr>'
        for f in blocking[:SHOWN_MAX]
    )
    scripts = f"<h3>As a script for the DBA (--script FILE)</h3><pre>{escape(found.script)}</pre>"
    if found.exclusion:
        scripts += f"<h3>Or without these tables: venus.toml</h3><pre>{escape(found.exclusion)}</pre>"
    grid = _html_table(("where", "what", "what to do"), [], rows, words=True)
    return f'<section><h2>What blocks</h2><div class="scroll">{grid}</div>{scripts}</section>'


def _refused_section(found: Assessment) -> str:
    """Return the section with the objects that VENUS does not carry, by kind."""
    kinds = {f"{kind}": names for kind, names in found.kinds.items()}
    chips = "".join(
        f"<details><summary>{count_phrase(len(names), escape(kind))}</summary>{_bullets(map(escape, names))}</details>"
        for kind, names in kinds.items()
    )
    sequences = [n.name or f"{n.table}.{n.column}" for n in found.numberings]
    if sequences:
        chips += (
            f"<details><summary>{count_phrase(len(sequences), 'sequence')}</summary>{_bullets(map(escape, sequences))}"
            '<p class="soft">Values travel with their rows. A cut-over sets each counter past the highest number used'
            " and past what the source has handed out; numbers that were drawn and never used stay gaps.</p></details>"
        )
    if not chips:
        return ""
    intro = "VENUS carries tables and their rows. Other objects must be created at the target separately:"
    return f'<section><h2>Not carried</h2><p>{intro}</p><div class="kinds">{chips}</div></section>'


def _format_finding(finding: Finding) -> str:
    way = f' <span class="soft">{mark_code(finding.remedy)}</span>' if finding.remedy else ""
    return f"<b>{escape(finding.where)}</b>: {mark_code(finding.message)}{way}"


def _list_section(title: str, items: Iterable[str]) -> str:
    """Return a section of HTML sentences; "" without sentences."""
    made = list(items)
    return f"<section><h2>{title}</h2>{_bullets(made)}</section>" if made else ""


def _bullets(items: Iterable[str]) -> str:
    """Return an HTML list of the first items, with the number of the others."""
    made = list(items)
    more = f"<li>... and {len(made) - SHOWN_MAX:,} more</li>" if len(made) > SHOWN_MAX else ""
    return f"<ul>{''.join(f'<li>{item}</li>' for item in made[:SHOWN_MAX])}{more}</ul>"


def mark_code(text: str) -> str:
    """Return a text as HTML, in which text between backticks is code."""
    return _CODE.sub(r"<code>\1</code>", escape(text))


def _html_table(columns: tuple[str, ...], numeric: Iterable[str], rows: Iterable[str], *, words: bool = False) -> str:
    """Return an HTML table. With `words` its cells are sentences, which a narrow screen shows one below the other."""
    right, kind = set(numeric), ' class="words"' if words else ""
    head = "".join(f"<th{' class=number' if name in right else ''}>{escape(name)}</th>" for name in columns)
    return f"<table{kind}><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
