"""`venus check` and `install-triggers`: check source and targets, and install the triggers at the source.

The dialects (adapters/dialects/) build the statements; these commands count and print them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from venus.cli.invocation import ConfigOption, Invocation, JsonOption
from venus.cli.output import build_table
from venus.errors import ConfigError, Refused, VenusError
from venus.model import Finding, count_phrase
from venus.rpc.conditions import MATCHES
from venus.text.formatting import suggest_nearest

if TYPE_CHECKING:
    from collections.abc import Collection

    from venus.adapters.dialects.contract import InstallStep, RegisteredTable, Source
    from venus.config import Settings
    from venus.model import TableSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """The tables that the configuration chooses, and findings about what is missing or cannot be carried."""

    tables: tuple[str, ...]
    findings: tuple[Finding, ...]
    #: Whether the source runs DDL in transactions.
    transactional_ddl: bool

    @property
    def blocking(self) -> list[Finding]:
        """The findings with which VENUS would refuse to install, or to migrate to one of the targets."""
        return [finding for finding in self.findings if finding.blocks]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallReport:
    """Result of an installation of triggers."""

    created: tuple[InstallStep, ...]
    #: How many objects existed before.
    unchanged: int
    #: Tables that cannot be captured, each with a line that gives the reason.
    refused: Mapping[str, str]
    #: All captured tables.
    tables: tuple[RegisteredTable, ...]


def check_targets(settings: Settings, schemas: list[TableSchema]) -> list[Finding]:
    """Check every target for these tables; an unreachable target is a finding, not a failure."""
    from venus.adapters.targets.registry import open_target

    found = []
    for name in settings.targets:
        try:
            found += open_target(settings, name).check(schemas)
        except VenusError as error:
            found.append(
                Finding(where=f"target {name}", message=str(error), remedy=error.hint, blocks=not error.retryable)
            )
    return found


Mode = Literal["log", "inline"]
ModeOption = Annotated[
    Mode | None,
    typer.Option(help="inline: the paper's own columns in the application's tables, Oracle only. [default: log]"),
]
TypeMapOption = Annotated[
    list[str] | None,
    typer.Option(
        "--type-map",
        metavar="TABLE.COLUMN=TYPE",
        help="Carry a column as another type, or all of a type ('RAW(16)=uuid'), Oracle only; repeatable. Recorded"
        " at the source when the triggers are installed, and overrides type_map of the configuration; `usual`"
        " removes it. Types: docs/reference/oracle-types.md",
    ),
]
#: The remedy for a table that was created after the installation.
CAPTURES = "`venus install-triggers` captures it, or exclude the table in [source] exclude"
#: The place of findings that matter only to the user that creates objects.
PRIVILEGES = "privileges"
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the SQL and change nothing.")]


@contextmanager
def open_configured_source(settings: Settings, type_map: list[str] | None = None) -> Iterator[Source]:
    """Open the configured source, and close it at the end; `type_map` has the values of `--type-map`."""
    from venus.adapters.dialects.registry import open_source
    from venus.config import require_source

    require_source(settings)
    source = open_source(settings, dict(map(_parse_type_map, type_map or ())))
    try:
        yield source
    finally:
        source.close()


def _parse_type_map(asked: str) -> tuple[str, str]:
    """Split a value of --type-map, TABLE.COLUMN=TYPE or SOURCE_TYPE=TYPE, at its last equals sign."""
    name, _, to = asked.rpartition("=")
    is_type = "." not in name  # all columns of a type: RAW(16)
    if not to.strip() or not (is_type or all(name.strip().rpartition(".")[::2])):
        hint = "write TABLE.COLUMN=TYPE, as in --type-map APP.STUDENT.ACTIVE=boolean"
        raise ConfigError(f"--type-map {asked}: a column and a type are needed", hint=hint)
    return name.strip(), to.strip()


def check(
    ctx: typer.Context,
    type_map: TypeMapOption = None,
    key_script: Annotated[
        bool,
        typer.Option("--key-script", help="Print the SQL that gives a key to every table without one; change nothing."),
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Report what is missing or cannot be carried, at the source and at every target. Reads only.

    Exit code 3 if VENUS would refuse to install, or to migrate to one of the targets.
    """
    run = Invocation.from_options(ctx, config, as_json)
    report = check_both_ends(run.directed_settings, type_map, with_targets=not key_script)
    names, findings, blocked = report.tables, list(report.findings), report.blocking
    if key_script:
        return show_key_script(run, findings, transactional=report.transactional_ddl)
    document = {"tables": names, "findings": findings, "blocks": len(blocked)}
    verdict = (
        f"{count_phrase(len(names), 'table')}, {count_phrase(len(findings), 'finding')}, {len(blocked)} "
        "of them blocking"
    )
    if refused := dict.fromkeys(finding.table for finding in blocked if finding.table):
        verdict += f"; `venus install-triggers` refuses {', '.join(refused)} and installs the others"
    rows: list[tuple[object, ...]] = [
        ("blocks" if f.blocks else "note", f.where, "\n".join((f.message, *f.details)), f.remedy) for f in findings
    ]
    run.out.answer(document, *([build_table("", "where", "what", "what to do", rows=rows)] if rows else []), verdict)
    return Refused.exit_code if blocked else 0


def check_both_ends(settings: Settings, type_map: list[str] | None = None, *, with_targets: bool = True) -> CheckReport:
    """Check the source, and check every target for the source's tables. Reads only."""
    with open_configured_source(settings, type_map) as source:
        check_patterns(settings, source)
        schemas = source.dictionary.read_tables(settings.source.tables, settings.source.exclude)
        findings = [
            *source.installer.check(settings.source.tables, settings.source.exclude),
            *source.installer.find_large_rows(settings.source.tables, settings.source.exclude),
            *find_excluded_tables(source, settings),
            *find_tables_without_capture(source, settings),
            *find_copy(source),
        ]
        transactional = source.capabilities.transactional_ddl
    return CheckReport(
        tables=tuple(schema.qualified_name for schema in schemas),
        findings=(*findings, *(check_targets(settings, schemas) if with_targets else ())),
        transactional_ddl=transactional,
    )


def show_key_script(run: Invocation, findings: list[Finding], *, transactional: bool) -> int:
    """Print the statements that add missing keys; other blocking findings become comments."""
    if run.json:
        offered = [{"table": f.where, "statements": f.script} for f in findings if f.script]
        run.out.answer({"tables": offered, "others": [f for f in findings if f.blocks and not f.script]})
    else:
        sys.stdout.write(run.redactor(build_key_script(findings, transactional=transactional)))
    return 0


def install_triggers(
    ctx: typer.Context,
    dry_run: DryRun = False,
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt", help="Create nothing: check that the script of --dry-run was run, and continue. Oracle only."
        ),
    ] = False,
    moved: Annotated[
        bool,
        typer.Option("--moved", help="Only accept this database as the captured one, moved or restored."),
    ] = False,
    mode: ModeOption = None,
    type_map: TypeMapOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Create log tables and triggers for the tables that match; run it again at any time.

    Exit code 3 if a table is refused; the others are installed, unless all are refused or something else is missing.
    """
    run = Invocation.from_options(ctx, config, as_json)
    settings = run.directed_settings
    if adopt and dry_run:
        raise ConfigError("--adopt and --dry-run cannot be combined", hint="print the script, run it, then adopt it")
    if moved:
        return accept_database(run, alone=not (adopt or dry_run or mode or type_map))
    if mode is not None:
        settings = settings.model_copy(update={"source": settings.source.model_copy(update={"mode": mode})})
    with open_configured_source(settings, type_map) as source:
        check_patterns(settings, source)
        # the script's user had the privileges; the present user may lack them
        refused = find_refused_tables(source, settings, but=PRIVILEGES if adopt else "")
        if dry_run:
            for line in refused.values():
                run.out.say(line)
            show_sql(run, source, source.installer.plan_install(*choose_tables(settings, refused)), removal=False)
            return Refused.exit_code if refused else 0
        report = install_chosen_tables(source, settings, refused, adopt=adopt)
        left_in = find_excluded_tables(source, settings)
    how = "run after the script" if adopt else "created"
    verdict = f"{len(report.created)} {how}, {report.unchanged} unchanged; {_capture_summary(report.tables, refused)}"
    document = {
        "created": [{"table": s.table, "what": s.what} for s in report.created],
        "refused": list(refused),
        "unchanged": report.unchanged,
        "tables": [
            {"table": t.schema.qualified_name, "table_id": t.schema.table_id, "state": t.state} for t in report.tables
        ],
    }
    remarks = [*(f"! {f.where}: {f.message}" for f in left_in), *refused.values()]
    run.out.answer(document, *format_per_table("+", report.created), *remarks, verdict)
    return Refused.exit_code if refused else 0


def install_chosen_tables(
    source: Source, settings: Settings, refused: Mapping[str, str], *, adopt: bool = False
) -> InstallReport:
    """Install the triggers of all tables that are not refused; `adopt`: a DBA has run the script already."""
    include, exclude = choose_tables(settings, refused)
    steps = run_installation(source, include, exclude, adopt=adopt)
    created = tuple(step for step in steps if not step.exists)
    return InstallReport(
        created=created,
        unchanged=len(steps) - len(created),
        refused=refused,
        tables=tuple(t for t in source.registry.read_registered_tables() if not t.schema.is_heartbeat),
    )


def choose_tables(settings: Settings, refused: Collection[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the patterns of the tables to install, and those of the tables to exclude, the refused ones too."""
    from venus.adapters.dialects.column_choice import exact_pattern

    return settings.source.tables, (*settings.source.exclude, *map(exact_pattern, refused))


def accept_database(run: Invocation, *, alone: bool) -> int:
    """Record the source as the database that is captured; `alone`: no other option is given. Installs nothing."""
    from venus.adapters.dialects.registry_rules import confirm_identity

    if not alone:
        raise ConfigError("--moved installs nothing and has no other options", hint="run the other options without it")
    with open_configured_source(run.directed_settings) as source:
        if not source.registry.read_registered_tables():
            raise ConfigError(
                "nothing is captured in this database", hint="run `venus install-triggers` without --moved"
            )
        confirm_identity(source.registry, moved=True)
    run.out.answer({"moved": True}, "this database is now the captured one: start `venus sync`")
    return 0


def _capture_summary(registered: Sequence[RegisteredTable], refused: Collection[str]) -> str:
    """Return the last line of an installation: the captured tables, and those with a problem."""
    summary = f"capturing {count_phrase(len(registered), 'table')}"
    if again := [t.schema.qualified_name for t in registered if t.state == "RESYNC"]:
        summary += f"; changes may be missing, run `venus resync`: {', '.join(again)}"
    if refused:
        summary += f"; {count_phrase(len(refused), 'table')} refused: {', '.join(refused)}"
    return summary


def find_excluded_tables(source: Source, settings: Settings) -> list[Finding]:
    """Return a finding for each captured table that the configuration excludes: its capture continues."""
    chosen = {t.table_id for t in source.dictionary.read_tables(settings.source.tables, settings.source.exclude)}
    try:
        others = [
            t.schema
            for t in source.registry.read_registered_tables()
            if t.schema.table_id not in chosen and not t.schema.is_heartbeat
        ]
    except VenusError:
        return []  # nothing is installed
    # the configuration does not exclude a table that no longer exists or cannot be captured
    there = source.dictionary.read_tables([t.qualified_name for t in others], []) if others else []
    message = "is captured, although the configuration excludes it: `venus uninstall-triggers {}` ends that"
    return [Finding(where=t.qualified_name, message=message.format(t.qualified_name)) for t in there]


def find_copy(source: Source) -> list[Finding]:
    """Return a finding if the source may be a copy of the database that was captured; it blocks if it certainly is."""
    from venus.adapters.dialects.registry_rules import MOVED, find_other_database, find_other_server

    identity = source.registry.read_identity()
    other = find_other_database(identity)
    message = other or find_other_server(identity)
    return [Finding(where="source", message=message, remedy=MOVED, blocks=bool(other))] if message else []


def find_tables_without_capture(source: Source, settings: Settings) -> list[Finding]:
    """Return a finding for each released table, and for each table created after the installation."""
    try:
        out = source.registry.read_released_tables()
    except VenusError:
        return []  # nothing is installed
    since = source.dictionary.find_uncaptured_tables(settings.source.tables, settings.source.exclude)
    again = "`venus install-triggers` captures it again, unless the configuration excludes it"
    return [
        *(
            Finding(where=t.schema.qualified_name, message=f"is not captured any more ({t.reason})", remedy=again)
            for t in out
        ),
        *(
            Finding(where=t.name, message=f"{MATCHES} is not captured", remedy=CAPTURES)
            for t in since
            if not t.obstacle  # a table with an obstacle has a finding with the reason already
        ),
    ]


def format_per_table(sign: str, steps: Iterable[InstallStep]) -> list[str]:
    """Format the steps of an installation, one line for each table."""
    made: dict[str, dict[str, None]] = {}
    for step in steps:
        made.setdefault(step.table, {})[step.what] = None
    return [f"{sign} {f'{name}: ' if name else ''}{', '.join(parts)}" for name, parts in made.items()]


def run_installation(
    source: Source, include: Sequence[str], exclude: Sequence[str], *, adopt: bool
) -> list[InstallStep]:
    """Install triggers, or complete a DBA's script. Raises Diverged, before any change, if the source is a copy."""
    from venus.adapters.dialects import registry
    from venus.adapters.dialects.registry_rules import confirm_identity

    confirm_identity(source.registry)
    steps = registry.adopt(source, include, exclude) if adopt else source.installer.install(include, exclude)
    confirm_identity(source.registry)
    return steps


def show_sql(run: Invocation, source: Source, steps: list[InstallStep], *, removal: bool) -> int:
    """Print the statements as a script that a DBA can read and run."""
    if run.json:
        run.out.answer({"install": [] if removal else steps, "uninstall": steps if removal else []})
    else:  # unchanged: a script with folded lines or redacted names does not run
        sys.stdout.write(source.installer.as_script(steps, removal=removal))
    return 0


def find_refused_tables(source: Source, settings: Settings, *, but: str = "") -> dict[str, str]:
    """Return the tables that cannot be captured, each with a line that gives the reason; the others can be installed.

    Raises Refused if no table would be left, or if anything else blocks. A finding whose `where` is `but` does not
    block.
    """
    include, exclude = settings.source.tables, settings.source.exclude
    blocked = [f for f in source.installer.check(include, exclude) if f.blocks and not (but and f.where == but)]
    refused: dict[str, str] = {}
    for f in blocked:
        refused.setdefault(f.table, f"! {f.where}: refused: {f.message}; {f.remedy or 'see `venus check`'}")
    if "" in refused or (
        blocked and {t.qualified_name for t in source.dictionary.read_tables(include, exclude)} <= refused.keys()
    ):
        refuse_blocking_findings(sorted(blocked, key=lambda f: bool(f.table)))
    return refused


def refuse_blocking_findings(findings: list[Finding]) -> None:
    """Raise Refused if a finding blocks the installation; the message has the first one."""
    blocked = [f for f in findings if f.blocks]
    if blocked:
        first, more = blocked[0], len(blocked) - 1
        raise Refused(
            f"{first.where}: {first.message}" + (f" (and {more} more: `venus check` lists them)" if more else ""),
            hint=first.remedy or "see `venus check`",
        )


def check_patterns(settings: Settings, source: Source) -> None:
    """Raise ConfigError for a pattern that matches no table, nearly always a typing error. The dialect matches names.

    After a cut-over with a way back the patterns still describe the old database; the new one may have fewer tables.
    """
    from venus.adapters.targets.switching import OLD

    if OLD in settings.targets:
        return
    for option, patterns in (("tables", settings.source.tables), ("exclude", settings.source.exclude)):
        for pattern in source.dictionary.find_unmatched_patterns(patterns):
            present = source.dictionary.read_table_names()
            hint = ("tables: " + ", ".join(sorted(present)[:12])) if present else "the source has no tables"
            raise ConfigError(
                f"source.{option}: {pattern!r} matches no table{suggest_nearest(pattern, present)}", hint=hint
            )


def build_key_script(findings: Sequence[Finding], *, transactional: bool) -> str:
    """Build the script that adds missing keys: a transaction for each table if DDL is transactional."""
    offered = [f for f in findings if f.script]
    tables = count_phrase(len(offered), "table")
    parts = [f"-- keys for {tables}, by `venus check --key-script`; each is locked and rewritten in turn"]
    for finding in offered:
        statements = "".join(f"{statement};\n" for statement in finding.script)
        parts.append(
            f"-- {_to_one_line(finding.where)}\n"
            + (f"BEGIN;\n{statements}COMMIT;" if transactional else statements.rstrip())
        )
    others = [f for f in findings if f.blocks and not f.script]
    if others:
        remarks = (f"--   {_to_one_line(f.where)}: {_to_one_line(f.message)}; {_to_one_line(f.remedy)}" for f in others)
        parts.append("\n".join(["-- other findings that block, and that these statements do not fix:", *remarks]))
    return "\n\n".join(parts) + "\n"


def _to_one_line(text: str) -> str:
    """Return a remark as one line, because a line break in the name of a table would end the comment."""
    return " ".join(text.splitlines())
