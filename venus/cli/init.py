"""`venus init`: writes a first configuration after checking both databases, and changes nothing else."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from venus.cli.install import opened_source
from venus.cli.invocation import ConfigOption, Invocation, JsonOption
from venus.cli.output import table
from venus.errors import ConfigError, DatabaseUnavailable
from venus.model import counted

if TYPE_CHECKING:
    from venus.config import Settings
    from venus.model import Finding

TARGET = "main"
#: Maximum number of tables that are named; `venus check` lists all of them.
NAMED_MAX = 5
FILE = """\
# Written by `venus init`. `venus config --example` prints every option with its default and what it does.

[source]
{source}

[targets.{target}]
{goal}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """The source or the target, as checked."""

    option: str
    #: The URL without its password.
    url: str
    #: The environment variable for the whole URL; empty if it has no password.
    variable: str
    kind: str
    findings: tuple[Finding, ...]


def init(
    ctx: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SOURCE_URL", help="The database whose changes are captured.")],
    target: Annotated[str, typer.Argument(metavar="TARGET_URL", help="The database that is kept equal to it.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Check both databases and write a first venus.toml. It overwrites no file and changes nothing else.

    Passwords do not go into the file: it says which variables of the environment to set. A URL is sqlite:///FILE,
    postgresql://USER@HOST/NAME, mysql+pymysql://USER@HOST/NAME or oracle+oracledb://USER@HOST/NAME (NAME of a SID, or
    ?service_name=NAME); that of a target postgresql://... or parquet:///FOLDER.
    """
    from venus.config import DEFAULT_FILE

    run = Invocation.of(ctx, config, as_json)
    file = run.config or DEFAULT_FILE
    refuse_existing(file)
    settings = settings_of(source, target)
    run.settings = settings  # for the place of a message, and for masking its passwords
    run.redactor.learn(settings)
    names, found_source = look_at_source(settings)
    found_target = look_at_target(settings)
    write(file, text_of(found_source, found_target))
    show(run, file, names, (found_source, found_target))
    return 0


def refuse_existing(file: Path) -> None:
    """Raise ConfigError if the file exists: it may be the only configuration of the user."""
    if file.exists() or file.is_symlink():
        raise ConfigError(f"{file} exists, and is not overwritten", hint="name a new file with -c FILE")


def settings_of(source: str, target: str) -> Settings:
    """Return settings with the two URLs and defaults for everything else. Raises ConfigError."""
    from pydantic import SecretStr

    from venus.adapters.dialects.registry import dialect_of
    from venus.adapters.targets.registry import kind_of
    from venus.config import Settings, Source, Target

    dialect_of(source)
    kind_of(target, f"targets.{TARGET}.url")
    update = {"source": Source(url=SecretStr(source)), "targets": {TARGET: Target(url=SecretStr(target))}}
    return Settings().model_copy(update=update)


def look_at_source(settings: Settings) -> tuple[list[str], Database]:
    """Read the names of the source's tables, and its findings of `venus check`."""
    with opened_source(settings) as source:
        names = [schema.qualified for schema in source.tables(["*"], [])]
        findings = tuple(source.check(["*"], []))
        kind = source.name
    return names, found("source.url", settings.source.url.get_secret_value(), kind, findings)


def look_at_target(settings: Settings) -> Database:
    """Read the target and its findings. Raises ConfigError or DatabaseUnavailable."""
    from venus.adapters.targets.registry import open_target

    target = open_target(settings, TARGET)
    findings = tuple(target.check([]))
    if error := target.look().error:
        blocks = any(finding.blocks for finding in findings)
        hint = next((finding.remedy for finding in findings if finding.message == error), "")
        raise (ConfigError if blocks else DatabaseUnavailable)(error, hint=hint)
    kind = target.capabilities.kind
    return found(f"targets.{TARGET}.url", settings.targets[TARGET].url.get_secret_value(), kind, findings)


def found(option: str, url: str, kind: str, findings: tuple[Finding, ...]) -> Database:
    """Build a database without the password of its URL."""
    bare = without_password(url)
    variable = "" if bare == url else f"VENUS_{option.replace('.', '__').upper()}"
    return Database(option=option, url=bare, variable=variable, kind=kind, findings=findings)


def without_password(url: str) -> str:
    """Return the URL without its secrets."""
    from sqlalchemy import make_url

    from venus.figures import masked

    parsed = make_url(url)
    secrets = [name for name in parsed.query if masked(f"?{name}=x") != f"?{name}=x"]
    if parsed.password is None and not secrets:
        return url
    return parsed._replace(password=None).difference_update_query(secrets).render_as_string(hide_password=False)


def text_of(source: Database, target: Database) -> str:
    """Return the text of the file."""
    return FILE.format(source=option_of(source), goal=option_of(target), target=TARGET)


def option_of(database: Database) -> str:
    """Return the line with the URL, and a comment on the source of its password."""
    line = f"url = {json.dumps(database.url, ensure_ascii=False)}"
    if not database.variable:
        return line
    return f"# With its password in {database.variable}, which overrides this; or set password_file (0600).\n{line}"


def write(file: Path, text: str) -> None:
    """Write the file. Raises ConfigError if it exists by now."""
    try:
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        refuse_existing(file)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}", hint="name another with -c FILE") from error


def show(run: Invocation, file: Path, names: list[str], databases: tuple[Database, Database]) -> None:
    """Print the findings and the next commands."""
    findings = [finding for database in databases for finding in database.findings]
    variables = {
        database.variable: database.url.replace("@", ":PASSWORD@", 1) for database in databases if database.variable
    }
    following = next_commands(file, run.config is not None)
    more = ", ..." if len(names) > NAMED_MAX else ""
    rows: list[tuple[object, ...]] = [
        ("blocks" if f.blocks else "note", f.where, "\n".join((f.message, *f.details)), f.remedy) for f in findings
    ]
    run.out.answer(
        {
            "file": str(file),
            "tables": names,
            "findings": findings,
            "variables": sorted(variables),
            "next": [command for command, _ in following],
            **{database.option: {"url": database.url, "kind": database.kind} for database in databases},
        },
        f"source: {databases[0].kind}, {counted(len(names), 'table')}: {', '.join(names[:NAMED_MAX])}{more}",
        f"target: {databases[1].kind}",
        *([table("", "where", "what", "what to do", rows=rows)] if rows else []),
        f"written: {file}",
        *(f"Set its password: export {name}={shlex.quote(url)}" for name, url in variables.items()),
        "Next:",
        *(f"  {command:<40} # {why}" for command, why in following),
    )


def next_commands(file: Path, is_named: bool) -> list[tuple[str, str]]:
    """Return the next commands, each with its purpose."""
    option = f" -c {shlex.quote(str(file))}" if is_named else ""
    return [
        (f"venus check{option}", "all findings, with what to do about them"),
        (f"venus install-triggers --dry-run{option}", "the SQL, to read before it runs"),
        (f"venus install-triggers{option}", "from here on changes are captured"),
        (f"venus broker{option} &", "stores and passes on the changes"),
        (f"venus migrate{option}", "loads all rows, while the source is in use"),
        (f"venus sync{option}", "keeps the target equal, until SIGTERM"),
    ]
