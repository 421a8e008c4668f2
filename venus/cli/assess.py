"""`venus assess`: an inventory of a source, what VENUS carries of it, and a forecast; before anything is installed."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from venus.cli.install import check_patterns, open_configured_source
from venus.cli.invocation import ConfigOption, Invocation, JsonOption
from venus.cli.output import build_table
from venus.errors import VenusError
from venus.model import count_phrase
from venus.text.formatting import format_bytes, format_duration, format_figure

if TYPE_CHECKING:
    from rich.console import RenderableType

    from venus.adapters.assess.report import AssessedTable, Assessment

#: Maximum of table lines on a terminal; the rest is counted. --json and --html are complete.
SHOWN_MAX = 40
NAMES_MAX = 6


def assess(
    ctx: typer.Context,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write a report as one HTML file.")
    ] = None,
    script: Annotated[
        Path | None,
        typer.Option("--script", metavar="FILE", help="Also write the SQL that fixes what blocks, for a DBA."),
    ] = None,
    count_rows: Annotated[
        bool, typer.Option("--count-rows", help="Count the rows of every table instead of relying on statistics.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Report what the source contains, what VENUS carries of it, and how long fill and cut-over will take. Reads only.

    Needs only [source] of the configuration, and nothing installed anywhere. Besides the dictionary and the statistics
    it reads up to 2,000 rows of each table. Run it where the broker and the adapters will run: the forecast measures
    this machine.
    """
    import venus
    from venus.adapters.assess.html import write_html
    from venus.adapters.assess.report import assess as run_assessment
    from venus.adapters.assess.report import to_document

    run = Invocation.from_options(ctx, config, as_json)
    settings = run.settings
    with open_configured_source(settings) as source:
        check_patterns(settings, source)
        taken_at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        found = run_assessment(settings, source, count_rows=count_rows, version=venus.__version__, taken_at=taken_at)
    if html is not None:
        write_html(found, html)
    if script is not None:
        write_script(found, script)
    run.out.answer(to_document(found), *format_report(found))
    return 0


def write_script(found: Assessment, file: Path) -> None:
    """Write the statements to a file, replacing it."""
    try:
        file.write_text(found.script or "-- nothing blocks\n", encoding="utf-8")
    except OSError as error:
        raise VenusError(f"--script {file}: {error.strerror or error}") from error


def format_report(found: Assessment) -> list[RenderableType]:
    """Format the report for a terminal."""
    from venus.adapters.assess.html import verdict

    lines: list[RenderableType] = [f"{found.title}, assessed on {found.taken_at}", ""]
    ordered = sorted(found.tables, key=lambda t: (not t.refused, -(t.size.rows or 0), t.size.qualified))
    if ordered:
        columns = ("table", "", "rows", "data", "indexes", "changes", "triggers", "fill", "refused because")
        lines.append(build_table(*columns, rows=[_table_row(t) for t in ordered[:SHOWN_MAX]]))
    if len(ordered) > SHOWN_MAX:
        lines.append(f"... and {len(ordered) - SHOWN_MAX:,} more: --json, --html FILE")
    lines += ["", *_format_not_carried_objects(found), *(f"not known: {text}" for text in found.unknown), ""]
    lines.append(
        build_table(
            "forecast", "", rows=[(line.what, format_figure(line.value, line.unit)) for line in found.forecast.lines]
        )
    )
    lines += ["", verdict(found)]
    if any(finding.blocks for finding in found.findings):
        lines.append("`venus check` lists the findings, `venus assess --script FILE` writes the fixes for a DBA")
    return lines


def _table_row(t: AssessedTable) -> tuple[object, ...]:
    f, size = t.forecast, t.size
    return (
        size.qualified,
        "refused" if t.refused else "carried",
        None if size.rows is None else f"{'' if size.counted else '~'}{size.rows:,}",
        None if size.data_bytes is None else format_bytes(size.data_bytes),
        None if size.index_bytes is None else format_bytes(size.index_bytes),
        None if f is None or f.changes_per_s is None else format_figure(f.changes_per_s, "/s"),
        None if f is None or f.trigger_ms_per_s is None else format_figure(f.trigger_ms_per_s, "ms/s"),
        format_duration(f.read_s + f.load_s) if f else None,
        "; ".join(t.refused),
    )


def _format_not_carried_objects(found: Assessment) -> list[str]:
    kinds = dict(found.kinds)
    lines = [f"not carried: {count_phrase(len(names), kind)} ({_join_names(names)})" for kind, names in kinds.items()]
    if found.numberings:
        names = [n.name or f"{n.table}.{n.column}" for n in found.numberings]
        gaps = f"not carried: gaps of {count_phrase(len(names), 'sequence')} ({_join_names(names)})"
        lines.append(f"{gaps}; a cut-over sets each past its rows")
    return lines


def _join_names(names: list[str]) -> str:
    return ", ".join(names[:NAMES_MAX]) + (" ..." if len(names) > NAMES_MAX else "")
