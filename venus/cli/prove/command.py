"""`venus prove`: try everything that VENUS relies on, on the user's own server, and write a report to send in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from venus.cli.invocation import Invocation, JsonOption
from venus.cli.output import build_table, require_writable
from venus.errors import ConfigError, VenusError
from venus.text.formatting import format_figure

if TYPE_CHECKING:
    from rich.console import RenderableType

    from venus.cli.prove.results import Details, ProofReport
    from venus.cli.prove.run import ProofRequest

#: How many failures a terminal shows; the report has all of them.
SHOWN_MAX = 20


def prove(
    ctx: typer.Context,
    source: Annotated[
        str,
        typer.Option(
            "--source",
            metavar="URL",
            envvar="VENUS_PROVE_URL",
            help="An empty database (Oracle: an empty schema, SQLite: an empty file) for this run alone. Where it is"
            " not empty, the command prints the statements that make one.",
        ),
    ],
    minutes: Annotated[float, typer.Option("--minutes", help="How long six writers work; 0 leaves them out.")] = 1.0,
    rows: Annotated[
        int, typer.Option("--rows", help="Rows to insert with and without triggers; 0 leaves it out.")
    ] = 100_000,
    seed: Annotated[int, typer.Option("--seed", help="The seed of the writers.")] = 1,
    cases: Annotated[
        str, typer.Option("--cases", metavar="WORDS", help="Only cases with these words, as 'truncate or rename'.")
    ] = "",
    report: Annotated[Path, typer.Option("--report", metavar="STEM", help="Write STEM.html and STEM.json.")] = Path(
        "venus-prove"
    ),
    as_json: JsonOption = False,
) -> int:
    """Prove on your own server, in a scratch schema, every behaviour that VENUS relies on.

    Checks statements with the database's own parser, plans, about 200 cases, writers, and the cost of triggers. Nothing
    outside the scratch schema is touched, and the schema is empty afterwards. The report has no rows and no names:
    please send it in. Needs `pip install 'venus-cdc[prove]'`.
    """
    import venus

    run = Invocation.from_options(ctx, None, as_json)
    if find_spec("pytest") is None:
        raise ConfigError("`venus prove` needs pytest, which is not installed", hint="pip install 'venus-cdc[prove]'")
    from venus.cli.prove.html import write_reports
    from venus.cli.prove.results import Details, ProofReport
    from venus.cli.prove.run import ProofRequest, check_request

    request = ProofRequest(minutes=minutes, rows=rows, seed=seed, only=cases)
    check_request(request)
    for suffix in ("html", "json"):
        require_writable("--report", report.with_name(f"{report.name}.{suffix}"))
    taken_at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    details = Details(report.with_name(f"{report.name}.log"))
    with name_option():
        found = ProofReport(version=venus.__version__, taken_at=taken_at, dialect="", seed=seed)
        found.left_out += ["most cases"] if cases else []
        run_proof(run, source, request, found, details)
    written = write_reports(found, report)
    has_details = details.write()
    run.out.answer(found.to_document(), *format_report(found))
    run.out.say(f"written: {', '.join(map(str, written))}; please send them in")
    if has_details:
        run.out.say(f"complete error texts, which may contain names: {details.path}; keep this file to yourself")
    return 1 if found.failures else 0


def run_proof(run: Invocation, url: str, request: ProofRequest, found: ProofReport, details: Details) -> None:
    """Run all parts of `venus prove` in the scratch schema that a URL names."""
    from venus.adapters.dialects.proving_contract import open_scratch
    from venus.cli.prove.run import ProofRun, ScratchMarker, ScratchNotEmpty
    from venus.config import Settings

    settings = Settings.model_validate({"source": {"url": url}})
    run.redactor.learn(settings)
    scratch = open_scratch(settings)
    found.dialect = scratch.dialect
    try:
        with run.out.progress("proving") as progress:
            ProofRun(scratch, request, found, details).run(ScratchMarker(url), run.out.say, progress.update)
    except ScratchNotEmpty as error:
        if not error.hint:  # the objects do not come from an earlier run
            run.out.say(f"{scratch.script()}\n")
            error.hint = f"make an empty one: {scratch.script()}" if run.json else "the lines above make an empty one"
        raise


@contextmanager
def name_option() -> Iterator[None]:
    """Name the option in errors about the URL, which does not come from a configuration."""
    try:
        yield
    except VenusError as error:
        message = str(error).replace("[source] url", "--source")
        error.args = (f"--source: {message[7:]}" if message.startswith("source ") else message,)
        error.hint = error.hint.replace("[source] url", "--source")
        raise


def format_report(found: ProofReport) -> list[RenderableType]:
    """Format the report of `venus prove` for a terminal."""
    from venus.cli.prove.results import FAILED, PASSED, SKIPPED

    columns = ("subject", "passed", "failed", "does not apply")
    sections = [(s.title, s.count(PASSED), s.count(FAILED), s.count(SKIPPED)) for s in found.sections]
    lines: list[RenderableType] = [build_table("the server", "", rows=list(found.facts)), ""]
    lines += [build_table(*columns, rows=list(sections)), ""]
    if found.figures:
        figures = [(what, format_figure(value, unit)) for what, value, unit in found.figures]
        lines += [build_table("figure", "", rows=list(figures)), ""]
    failures = [f"failed: {title}: {case.name}: {case.why}" for title, case in found.failures]
    lines += failures[:SHOWN_MAX]
    if len(failures) > SHOWN_MAX:
        lines.append(f"... and {len(failures) - SHOWN_MAX:,} more in the report")
    lines.append(found.verdict())
    return lines
