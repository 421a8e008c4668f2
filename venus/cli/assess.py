"""`venus assess`: an inventory of a source, the parts that VENUS carries, and a forecast, before an installation."""

from __future__ import annotations

import csv
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from venus.cli.install import check_patterns, open_configured_source
from venus.cli.invocation import ConfigOption, Invocation, JsonOption
from venus.cli.output import build_table, require_writable
from venus.errors import ConfigError, VenusError
from venus.model import count_phrase
from venus.text.formatting import format_bytes, format_duration, format_figure

if TYPE_CHECKING:
    from rich.console import RenderableType

    from venus.adapters.assess.report import AssessedTable, Assessment
    from venus.config import Settings

#: Maximum number of table lines on a terminal; the others are counted. --json and --html are complete.
SHOWN_MAX = 40
NAMES_MAX = 6
FLEET_BYTES_MAX = 1 << 20
TIME_UNITS = {"s": 1, "m": 60, "h": 3600}
TIME_MAX = 10_000
FLEET_HINT = "write the columns name,url, a database a line"


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
    watch: Annotated[
        str,
        typer.Option(
            "--watch", metavar="TIME", help="Also watch the changes for this long (90s, 10m, 2h), and show the peak."
        ),
    ] = "",
    suggest_masks: Annotated[
        bool, typer.Option("--suggest-masks", help="Also suggest rules for columns whose names look personal.")
    ] = False,
    fleet: Annotated[
        Path | None,
        typer.Option(
            "--fleet", metavar="FILE", help="Assess a list of databases: a CSV file with the columns name,url."
        ),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Report what the source contains, what VENUS carries of it, and how long fill and cut-over will take. Reads only.

    The command needs only [source] of the configuration, and no installation. It reads the dictionary, the statistics
    and up to 2,000 rows of each table. Run it where the broker and the adapters will run, because the forecast measures
    this machine. With --fleet, [source] gives only the patterns; exit code 1 if a database could not be assessed.
    """
    from venus.adapters.assess.html import write_html
    from venus.adapters.assess.report import to_document

    run = Invocation.from_options(ctx, config, as_json)
    if fleet is not None:
        if html is not None or script is not None:
            raise ConfigError("--html and --script are for one database", hint="leave them out, or --fleet")
        return assess_fleet(run, fleet, count_rows=count_rows, watch_s=parse_time_s(watch))
    require_writable("--html", html)
    require_writable("--script", script)
    found = assess_source(run.settings, count_rows=count_rows, watch_s=parse_time_s(watch))
    if html is not None:
        write_html(found, html)
    if script is not None:
        write_script(found, script)
    run.out.answer(to_document(found), *format_report(found), *(format_masks(found) if suggest_masks else ()))
    return 0


def parse_time_s(text: str) -> float:
    """Return the seconds of a time like 90s, 10m or 2h; 0 for an empty text."""
    number, unit = text[:-1], text[-1:]
    if not text:
        return 0.0
    if unit not in TIME_UNITS or not number.isascii() or not number.isdecimal() or not 0 < int(number) <= TIME_MAX:
        raise ConfigError(f"--watch {text}: not a time", hint="write 90s, 10m or 2h")
    return float(int(number) * TIME_UNITS[unit])


def assess_source(settings: Settings, *, count_rows: bool, watch_s: float) -> Assessment:
    """Assess the source of these settings."""
    import venus
    from venus.adapters.assess.report import assess as run_assessment
    from venus.adapters.assess.report import watch_changes

    with open_configured_source(settings) as source:
        check_patterns(settings, source)
        taken_at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        found = run_assessment(settings, source, count_rows=count_rows, version=venus.__version__, taken_at=taken_at)
    return watch_changes(settings, found, watch_s, time.sleep) if watch_s else found


def assess_fleet(run: Invocation, file: Path, *, count_rows: bool, watch_s: float) -> int:
    """Assess each database of a list; a failure is reported, and does not stop the assessment of the others."""
    from pydantic import SecretStr

    from venus.adapters.assess.report import to_document

    documents: list[dict[str, object]] = []
    rows: list[tuple[object, ...]] = []
    for name, url in read_fleet(file):
        source = run.settings.source.model_copy(update={"url": SecretStr(url), "password_command": ""})
        settings = run.settings.model_copy(update={"source": source})
        run.redactor.learn(settings)
        run.out.say(f"assessing {name}")
        try:
            found = assess_source(settings, count_rows=count_rows, watch_s=watch_s)
        except VenusError as error:
            documents.append({"name": name, "error": str(error)})
            rows.append((name, None, None, None, None, None, str(error)))
        else:
            documents.append({"name": name, "error": "", **to_document(found)})
            rows.append(_fleet_row(name, found))
    columns = ("database", "server", "carried", "rows", "data", "fill", "")
    run.out.answer({"databases": documents}, build_table(*columns, rows=rows))
    return 1 if any(found["error"] for found in documents) else 0


def _fleet_row(name: str, found: Assessment) -> tuple[object, ...]:
    """Return the line about one assessed database in the table of the fleet."""
    from venus.adapters.assess.html import verdict

    sizes = [t.size.data_bytes for t in found.tables]
    data = None if None in sizes or not sizes else format_bytes(sum(size or 0 for size in sizes))
    carried = f"{len(found.carried_tables):,} of {len(found.tables):,}"
    fill = format_duration(found.forecast.fill_s)
    return name, found.server, carried, f"{found.forecast.rows:,}", data, fill, verdict(found)


def read_fleet(file: Path) -> list[tuple[str, str]]:
    """Return name and URL of each database of a list. Raises ConfigError if the file has another form."""
    try:
        if file.stat().st_size > FLEET_BYTES_MAX:
            raise ConfigError(f"--fleet {file}: larger than {format_bytes(FLEET_BYTES_MAX)}", hint="split it")
        rows = list(csv.reader(file.read_text(encoding="utf-8-sig").splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"--fleet {file}: {getattr(error, 'strerror', None) or error}", hint=FLEET_HINT) from error
    found: dict[str, str] = {}
    for number, row in enumerate(rows, 1):
        values = [value.strip() for value in row]
        if not any(values) or values == ["name", "url"]:
            continue
        if len(values) != 2 or not all(values):
            raise ConfigError(f"--fleet {file}, line {number}: not a name and a URL", hint=FLEET_HINT)
        if values[0] in found:
            raise ConfigError(f"--fleet {file}, line {number}: {values[0]} appears twice", hint="give it another name")
        found[values[0]] = values[1]
    if not found:
        raise ConfigError(f"--fleet {file}: names no database", hint=FLEET_HINT)
    return list(found.items())


def write_script(found: Assessment, file: Path) -> None:
    """Write the SQL that fixes blocking findings to a file, replacing it."""
    try:
        file.write_text(found.script or "-- nothing blocks\n", encoding="utf-8")
    except OSError as error:
        raise VenusError(f"--script {file}: {error.strerror or error}") from error


def format_report(found: Assessment) -> list[RenderableType]:
    """Format an assessment for the terminal: tables, objects, forecast and verdict."""
    from venus.adapters.assess.html import verdict
    from venus.adapters.assess.report import format_way_back

    lines: list[RenderableType] = [f"{found.title}, assessed on {found.taken_at}"]
    lines += [*(f"{fact.what}: {fact.value}" for fact in found.facts), ""]
    ordered = sorted(found.tables, key=lambda t: (not t.refused, -(t.size.rows or 0), t.size.qualified_name))
    if ordered:
        columns = ("table", "", "rows", "data", "indexes", "largest", "changes", "triggers", "fill", "refused because")
        lines.append(build_table(*columns, rows=[_table_row(t) for t in ordered[:SHOWN_MAX]]))
    if len(ordered) > SHOWN_MAX:
        lines.append(f"... and {len(ordered) - SHOWN_MAX:,} more: --json, --html FILE")
    lines += ["", *_format_attached_objects(found), *_format_not_carried_objects(found), *_format_advice(found)]
    lines += [*(f"not known: {text}" for text in found.unknown), ""]
    lines.append(
        build_table(
            "forecast", "", rows=[(line.what, format_figure(line.value, line.unit)) for line in found.forecast.lines]
        )
    )
    if way_back := format_way_back(found.way_back):
        lines += ["", *way_back]
    lines += ["", verdict(found)]
    if any(finding.blocks for finding in found.findings):
        lines.append("`venus check` lists the findings, `venus assess --script FILE` writes the fixes for a DBA")
    return lines


def format_masks(found: Assessment) -> list[str]:
    """Format the suggested masking rules as a section of the configuration."""
    if not found.masks:
        return ["", "no column's name looks personal"]
    return [
        "",
        "columns whose names look personal (no value was read); check each:",
        "[targets.NAME.columns]",
        *found.masks,
    ]


def _table_row(t: AssessedTable) -> tuple[object, ...]:
    """Return the line about one assessed table in the report."""
    f, size = t.forecast, t.size
    return (
        size.qualified_name,
        "refused" if t.refused else "carried",
        None if size.rows is None else f"{'' if size.counted else '~'}{size.rows:,}",
        None if size.data_bytes is None else format_bytes(size.data_bytes),
        None if size.index_bytes is None else format_bytes(size.index_bytes),
        None if size.largest_bytes is None else format_bytes(size.largest_bytes),
        None if f is None or f.changes_per_s is None else format_figure(f.changes_per_s, "/s"),
        None if f is None or f.trigger_ms_per_s is None else format_figure(f.trigger_ms_per_s, "ms/s"),
        format_duration(f.read_s + f.load_s) if f else None,
        "; ".join(t.refused),
    )


def _format_attached_objects(found: Assessment) -> list[str]:
    """Format the objects that run at each change of a table, for the tables with the most such objects."""
    attached = sorted(
        (t.size for t in found.tables if t.size.attached), key=lambda s: (-len(s.attached), s.qualified_name)
    )
    lines = [f"{size.qualified_name} has {_join_names(list(size.attached))}" for size in attached[:SHOWN_MAX]]
    return lines + ([f"... and {len(attached) - SHOWN_MAX:,} more: --json"] if len(attached) > SHOWN_MAX else [])


def _format_advice(found: Assessment) -> list[str]:
    """Format the findings that do not block and have a remedy."""
    advice = [finding for finding in found.findings if finding.remedy and not finding.blocks]
    lines = [f"{finding.where}: {finding.message}: {finding.remedy}" for finding in advice[:SHOWN_MAX]]
    return lines + ([f"... and {len(advice) - SHOWN_MAX:,} more: `venus check`"] if len(advice) > SHOWN_MAX else [])


def _format_not_carried_objects(found: Assessment) -> list[str]:
    """Format the objects that VENUS does not carry over, such as views, by kind."""
    kinds = dict(found.kinds)
    lines = [f"not carried: {count_phrase(len(names), kind)} ({_join_names(names)})" for kind, names in kinds.items()]
    if found.numberings:
        names = [n.name or f"{n.table}.{n.column}" for n in found.numberings]
        gaps = f"not carried: gaps of {count_phrase(len(names), 'sequence')} ({_join_names(names)})"
        lines.append(f"{gaps}; a cut-over sets each past its rows")
    return lines


def _join_names(names: list[str]) -> str:
    """Join names with commas; all but the first few become `...`."""
    return ", ".join(names[:NAMES_MAX]) + (" ..." if len(names) > NAMES_MAX else "")
