"""`venus init`: writes a first configuration after checking both databases, and changes nothing else."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from venus.cli.install import open_configured_source
from venus.cli.invocation import ConfigOption, Invocation, JsonOption
from venus.cli.output import build_table
from venus.errors import ConfigError, DatabaseUnavailable
from venus.model import count_phrase

if TYPE_CHECKING:
    from venus.config import Settings
    from venus.model import Finding

TARGET = "main"
#: Maximum number of tables to name; `venus check` lists all of them.
NAMED_MAX = 5
FILE = """\
# Written by `venus init`. `venus config --example` prints every option with its default and what it does.

[source]
{source}

[targets.{target}]
{goal}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedDatabase:
    """The source or the target of a new configuration, with the findings about it."""

    option: str
    #: The URL without its password.
    url: str
    #: The environment variable for the whole URL; empty if the URL has no password.
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
    """Check both databases and write a first venus.toml. The command overwrites no file and changes nothing else.

    The file contains no passwords; it names the environment variables to set. A URL is sqlite:///FILE,
    postgresql://USER@HOST/NAME, mysql+pymysql://USER@HOST/NAME or oracle+oracledb://USER@HOST/NAME (NAME of a SID, or
    ?service_name=NAME). A target's URL can also be parquet:///FOLDER.
    """
    from venus.config import DEFAULT_FILE

    run = Invocation.from_options(ctx, config, as_json)
    file = run.config or DEFAULT_FILE
    refuse_existing(file)
    settings = build_settings(source, target)
    run.settings = settings  # for the position in messages, and for masking passwords
    run.redactor.learn(settings)
    names, found_source = check_source(settings)
    found_target = check_target(settings)
    write_configuration(file, build_text(found_source, found_target))
    print_result(run, file, names, (found_source, found_target))
    return 0


def refuse_existing(file: Path) -> None:
    """Raise ConfigError if the file exists: it may be the only configuration of the user."""
    if file.exists() or file.is_symlink():
        raise ConfigError(f"{file} exists, and is not overwritten", hint="name a new file with -c FILE")


def build_settings(source: str, target: str) -> Settings:
    """Return settings with the two URLs and defaults for everything else. Raises ConfigError."""
    from pydantic import SecretStr

    from venus.adapters.dialects.registry import dialect_of
    from venus.adapters.targets.registry import target_kind
    from venus.config import Settings, SourceSettings, TargetSettings

    dialect_of(source)
    target_kind(target, f"targets.{TARGET}.url")
    update = {
        "source": SourceSettings(url=SecretStr(source)),
        "targets": {TARGET: TargetSettings(url=SecretStr(target))},
    }
    return Settings().model_copy(update=update)


def check_source(settings: Settings) -> tuple[list[str], CheckedDatabase]:
    """Return the names of the source's tables, and the source with the findings of `venus check`."""
    with open_configured_source(settings) as source:
        names = [schema.qualified_name for schema in source.dictionary.read_tables(["*"], [])]
        findings = tuple(source.installer.check(["*"], []))
        kind = source.name
    return names, build_database("source.url", settings.source.url.get_secret_value(), kind, findings)


def check_target(settings: Settings) -> CheckedDatabase:
    """Return the target with its findings. Raises ConfigError or DatabaseUnavailable."""
    from venus.adapters.targets.registry import open_target

    target = open_target(settings, TARGET)
    findings = tuple(target.check([]))
    if error := target.read_view().error:
        blocks = any(finding.blocks for finding in findings)
        hint = next((finding.remedy for finding in findings if finding.message == error), "")
        raise (ConfigError if blocks else DatabaseUnavailable)(error, hint=hint)
    kind = target.capabilities.kind
    return build_database(f"targets.{TARGET}.url", settings.targets[TARGET].url.get_secret_value(), kind, findings)


def build_database(option: str, url: str, kind: str, findings: tuple[Finding, ...]) -> CheckedDatabase:
    """Return a checked database with its URL, from which the password is removed."""
    bare = without_password(url)
    variable = "" if bare == url else f"VENUS_{option.replace('.', '__').upper()}"
    return CheckedDatabase(option=option, url=bare, variable=variable, kind=kind, findings=findings)


def without_password(url: str) -> str:
    """Return the URL without its secrets."""
    from sqlalchemy import make_url

    from venus.text.formatting import mask_url

    parsed = make_url(url)
    secrets = [name for name in parsed.query if mask_url(f"?{name}=x") != f"?{name}=x"]
    if parsed.password is None and not secrets:
        return url
    return parsed._replace(password=None).difference_update_query(secrets).render_as_string(hide_password=False)


def build_text(source: CheckedDatabase, target: CheckedDatabase) -> str:
    """Return the text of the new configuration file."""
    return FILE.format(source=url_option(source), goal=url_option(target), target=TARGET)


def url_option(database: CheckedDatabase) -> str:
    """Return the line `url = ...` of a database, below a comment on where to set its password."""
    line = f"url = {json.dumps(database.url, ensure_ascii=False)}"
    if not database.variable:
        return line
    return f"# With its password in {database.variable}, which overrides this; or set password_file (0600).\n{line}"


def write_configuration(file: Path, text: str) -> None:
    """Write the configuration file. Raises ConfigError if the file exists by now."""
    try:
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        refuse_existing(file)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}", hint="name another with -c FILE") from error


def print_result(
    run: Invocation, file: Path, names: list[str], databases: tuple[CheckedDatabase, CheckedDatabase]
) -> None:
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
        f"source: {databases[0].kind}, {count_phrase(len(names), 'table')}: {', '.join(names[:NAMED_MAX])}{more}",
        f"target: {databases[1].kind}",
        *([build_table("", "where", "what", "what to do", rows=rows)] if rows else []),
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
        (f"venus run --install{option}", "installs, loads and follows until SIGTERM"),
    ]
