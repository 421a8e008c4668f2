"""`venus verify`: compares source, full data and target row by row while everything is in use.

Its exit codes are made for scripts: 0 same, 1 different, 3 undecided, 2 could not be compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from venus.cli.findings import (
    SHOWN_MAX,
    document,
    format_findings,
    format_key,
    format_tables,
    verdict_line,
    verdict_word,
)
from venus.cli.invocation import ConfigOption, Invocation, JsonOption, TargetOption, choose_target
from venus.cli.output import require_writable
from venus.cli.spark import EngineOption, require_engine
from venus.errors import ConfigError, Unavailable, VenusError
from venus.model import count_phrase
from venus.text.formatting import format_duration

if TYPE_CHECKING:
    from rich.console import RenderableType

    from venus.adapters.verify.findings import VerifyResult
    from venus.adapters.verify.repair import LossWindows, RepairResult, WindowClosing
    from venus.adapters.verify.table_comparison import RunnerFor, VerifyOptions, VerifyProgress
    from venus.config import Settings
    from venus.process.runners import Runner

Tables = Annotated[
    list[str] | None, typer.Option("--table", metavar="TABLE", help="Only this table; shell patterns; repeatable.")
]
Leg = Annotated[
    str, typer.Option("--leg", metavar="auto|ends|target|source|all", help="The sides to compare; see above.")
]
Where = Annotated[
    str, typer.Option("--where", metavar="SQL", help="Only rows that meet this condition, in both databases.")
]
Mode = Annotated[str, typer.Option("--mode", metavar="auto|hash|scan", help="Checksums by the databases, or all rows.")]
Sample = Annotated[
    float, typer.Option("--sample", metavar="PERCENT", min=0.0, max=100.0, help="Compare only a random sample.")
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Seed; the same number draws the same sample.")]
Rate = Annotated[float, typer.Option("--rows-per-s", metavar="N", min=0.0, help="Speed limit; 0 = no limit.")]
Wait = Annotated[
    float,
    typer.Option("--wait-s", metavar="S", min=0.0, help="How long to wait for changes in flight, or for a repair."),
]
Digest = Annotated[str, typer.Option("--hash", metavar="md5|sha256", help="sha256 where the server forbids md5.")]
Most = Annotated[
    int, typer.Option("--max-differences", metavar="N", min=1, help="Stop comparing a table after this many.")
]
HtmlFile = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also write a report as one HTML file.")]
Folder = Annotated[Path | None, typer.Option("--parquet", metavar="DIR", help="Also write the findings as Parquet.")]
Repair = Annotated[bool, typer.Option("--repair", help="Ship the wrong rows again, from the source as it is then.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="With --repair: list the rows and change nothing.")]


def verify(
    ctx: typer.Context,
    target: TargetOption = None,
    tables: Tables = None,
    leg: Leg = "auto",
    where: Where = "",
    mode: Mode = "auto",
    engine: EngineOption = "auto",
    sample: Sample = 100.0,
    seed: Seed = 0,
    rows_per_s: Rate = 0.0,
    wait_s: Wait = 30.0,
    digest: Digest = "md5",
    differences_max: Most = 100_000,
    html: HtmlFile = None,
    parquet: Folder = None,
    repair: Repair = False,
    dry_run: DryRun = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Compare source and target row by row while both are in use, and say which side is at fault.

    Legs: `ends` compares source and target (few rows move), `target` the broker's full data and the target (the source
    may be off), `source` the source and the full data, `all` does the last two; `auto` is `ends` while the source can
    be reached, else `target`. Exit codes: 0 same, 1 different, 3 undecided, 2 could not be compared.
    """
    from venus.adapters.verify.run import VerifyOptions

    run = Invocation.from_options(ctx, config, as_json)
    settings = run.directed_settings
    options = VerifyOptions(
        target=choose_target(settings, target),
        leg=leg,
        tables=tuple(tables or ()),
        where=where,
        mode=mode,
        sample=sample / 100.0,
        seed=seed,
        rows_per_s=rows_per_s,
        wait_s=wait_s,
        digest=digest,
        differences_max=differences_max,
    )
    check_options(options, repair=repair, dry_run=dry_run, engine=engine)
    require_engine(settings, engine)
    prepare_reports(html, parquet)
    with exit_with_2_on_error():
        windows = read_loss_windows(run, settings)
        if windows and options.leg == "auto":
            options = replace(options, leg="all")
        result = compare(run, settings, options, engine)
        repaired = repair_rows(run, settings, options, result) if repair and not dry_run else None
        closing = close_windows(run, settings, options, result, repaired, windows)
        record_comparison(settings, options, result, repaired, run.out.say)
        write_reports(result, html, parquet)
    return print_result(run, result, repaired, closing, would=repair and dry_run)


def prepare_reports(html: Path | None, parquet: Path | None) -> None:
    """Create the folder of --parquet. Raises ConfigError if a requested file cannot be written."""
    require_writable("--html", html)
    if parquet is not None:
        from venus.adapters.verify.findings import DIFFERENCES

        try:
            parquet.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--parquet {parquet}: {error.strerror}", hint="name another folder") from error
        require_writable("--parquet", parquet / DIFFERENCES)


def write_reports(result: VerifyResult, html: Path | None, parquet: Path | None) -> None:
    """Write the result to the requested files."""
    if html is not None:
        from venus.adapters.verify.findings import write_html

        write_html(result, html)
    if parquet is not None:
        from venus.adapters.verify.findings import write_parquet

        write_parquet(result, parquet)


def check_options(options: VerifyOptions, *, repair: bool, dry_run: bool, engine: str) -> None:
    """Raise ConfigError for misspelt or contradictory options."""
    from venus.adapters.verify.table_comparison import DIGESTS, LEG_NAMES, MODES

    for name, value, known in (
        ("--leg", options.leg, LEG_NAMES),
        ("--mode", options.mode, MODES),
        ("--hash", options.digest, DIGESTS),
    ):
        if value not in known:
            raise ConfigError(f"{name} {value}: invalid value", hint=f"one of {', '.join(known)}")
    if options.sample <= 0:
        raise ConfigError("--sample 0 compares nothing", hint="give a percentage above 0")
    if options.rows_per_s and engine == "spark":
        raise ConfigError("--rows-per-s compares one slice at a time, but --engine spark several", hint="leave one out")
    if dry_run and not repair:
        raise ConfigError("--dry-run requires --repair", hint="without --repair nothing is changed anyway")


@contextmanager
def exit_with_2_on_error() -> Iterator[None]:
    """Turn errors into VerificationFailed, whose exit code differs from those of different and undecided rows."""
    from venus.adapters.verify.run import VerificationFailed

    try:
        yield
    except (VerificationFailed, ConfigError):
        raise
    except VenusError as error:
        raise VerificationFailed(str(error), hint=error.hint) from error


def compare(run: Invocation, settings: Settings, options: VerifyOptions, engine: str) -> VerifyResult:
    """Run the comparison with a progress bar."""
    from venus.adapters.verify.run import run_verify as compare_all

    with run.out.progress("comparing") as steps, ExitStack() as stack:

        def report(found: VerifyProgress) -> None:
            steps.update(found.table, found.rows, found.rows_estimate)

        result = compare_all(settings, options, runner_for=build_runner_choice(settings, engine, stack), report=report)
    for note in result.notes:
        run.out.say(note)
    return result


def build_runner_choice(settings: Settings, engine: str, stack: ExitStack) -> RunnerFor:
    """Return the function that chooses the runner for a table; once started, Spark compares all further tables."""
    from venus.cli.spark import choose_runner

    spark: list[Runner] = []

    def runner_for(rows: int) -> Runner:
        """Return the runner for a table of about this many rows."""
        if not spark:
            chosen = stack.enter_context(choose_runner(settings, engine, rows))
            if chosen.name != "spark":
                return chosen.runner
            spark.append(chosen.runner)
        return spark[0]

    return runner_for


def repair_rows(run: Invocation, settings: Settings, options: VerifyOptions, result: VerifyResult) -> RepairResult:
    """Ship the wrong rows again, and wait until the target has them."""
    from venus.adapters.verify.repair import run_repair

    count = len(result.shippable)
    if count:
        rows = f"{count_phrase(count, 'row')} {'is' if count == 1 else 'are'}"
        run.out.say(f"{rows} shipped again; waiting up to {format_duration(options.wait_s)}")
    return run_repair(settings, options.target, result, wait_s=options.wait_s)


def record_comparison(
    settings: Settings,
    options: VerifyOptions,
    result: VerifyResult,
    repaired: RepairResult | None,
    say: Callable[[str], None],
) -> None:
    """Store the outcome of a comparison at the target, for status and page. A failure does not change the verdict."""
    from venus.adapters.targets.registry import open_target
    from venus.rpc.conditions import VERDICTS, LastComparison

    code = exit_code_for(result, repaired)
    compared = LastComparison(
        ended_at_us=time.time_ns() // 1000,
        verdict=VERDICTS[{0: 0, 1: 1}.get(code, 2)],
        leg=result.leg,
        tables=len(count_rows(result)),
        rows=sum(count_rows(result).values()),
        different=len(result.differences) if repaired is None else len(repaired.left),
        undecided=len(result.undecided_rows),
        partial=bool(options.tables or options.where or options.sample < 1.0 or result.cut_short),
    )
    try:
        target = open_target(settings, options.target)
        before = target.read_view().compared
        if compared.partial and compared.verdict != "different" and before and before.verdict == "different":
            return  # a partial comparison does not cover the rows that differed
        target.record_comparison(compared)
    except VenusError as error:
        say(f"status and page will not show this comparison: {error}")


def count_rows(result: VerifyResult) -> dict[str, int]:
    """Return how many rows of each table were compared; several legs may have compared a table."""
    found: dict[str, int] = {}
    for one in result.tables:
        found[one.table] = max(found.get(one.table, 0), one.rows)
    return found


def exit_code_for(result: VerifyResult, repaired: RepairResult | None) -> int:
    """Return the verdict as an exit code; after a repair, the verdict on the remaining rows."""
    code = int(result.verdict.value)
    if repaired is not None and not repaired.left and code == 1:
        return 3 if result.undecided_rows or result.cut_short else 0
    return code


def read_loss_windows(run: Invocation, settings: Settings) -> LossWindows:
    """Read the unclean elections and promotions that may have lost changes."""
    from venus.adapters.verify.repair import LossWindows, read_loss_windows

    try:
        windows = read_loss_windows(settings)
    except Unavailable:
        return LossWindows()  # a comparison that needs the broker reports the error
    if windows:
        run.out.say(f"{windows} may have lost changes: all three sides are compared")
    return windows


def close_windows(
    run: Invocation,
    settings: Settings,
    options: VerifyOptions,
    result: VerifyResult,
    repaired: RepairResult | None,
    windows: LossWindows,
) -> WindowClosing | None:
    """Close the loss windows that were open before the comparison, if it proves that nothing is missing."""
    from venus.adapters.verify.repair import close_loss_windows

    if not windows or repaired is None:
        return None
    closing = close_loss_windows(settings, options, result, repaired, windows)
    what = "is closed: nothing is missing any more" if closing.closed else f"stays open: {closing.why}"
    run.out.say(f"the loss window of {windows} {what}")
    return closing


def print_result(
    run: Invocation, result: VerifyResult, repaired: RepairResult | None, closing: WindowClosing | None, *, would: bool
) -> int:
    """Print the result; return the exit code of the verdict, after a repair the verdict on the remaining rows."""
    shown: list[RenderableType] = [format_tables(result)]
    shown += [f"! {t.table}: {note}" for t in result.tables for note in t.notes]
    shown += [
        f"! {t.table}: stopped at the limit of differences, there may be more" for t in result.tables if t.cut_short
    ]
    if result.differences:
        shown += ["", format_findings(result.differences)]
        if len(result.differences) > SHOWN_MAX:
            shown.append(
                f"... and {len(result.differences) - SHOWN_MAX:,} more rows: --json, --html FILE or --parquet DIR"
            )
    for u in result.undecided_rows[:SHOWN_MAX]:
        shown.append(f"? {u.table} {format_key(u.key)}: {u.reason}".replace(" :", ":"))
    if len(result.undecided_rows) > SHOWN_MAX:
        shown.append(f"... and {len(result.undecided_rows) - SHOWN_MAX:,} more undecided")
    if would:
        shown.append(
            f"{count_phrase(len(result.shippable), 'row')} would be shipped again; nothing was changed (--dry-run)"
        )
    code = exit_code_for(result, repaired)
    if repaired is not None:
        shown += [f"! still wrong: {s.table} {format_key(s.key)}: {s.reason}" for s in repaired.left[:SHOWN_MAX]]
        shown.append(f"repaired: {repaired.repaired:,} of {sum(repaired.emitted.values()):,} rows")
    shown.append(verdict_line(result, verdict_word(result, repaired, code)))
    found = document(result, repaired, code)
    if closing is not None:
        found["losses"] = asdict(closing)
    run.out.answer(found, *shown)
    return code
