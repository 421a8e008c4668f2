"""The list of commands, in the groups of `venus --help`, and the run of one command line with its audit record.

Operators' commands that act on databases leave a line in an audit log. The broker audits requests itself.
"""

from __future__ import annotations

import os
import pwd
import shlex
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from venus import __version__
from venus.cli import (
    alarms,
    assess,
    certs,
    cluster_members,
    cluster_promotion,
    halves,
    init,
    install,
    listen,
    load,
    quarantine,
    release,
    show,
    status,
    sync,
    tables,
    verify,
)
from venus.cli import broker as broker_command
from venus.cli import cluster as cluster_command
from venus.cli import cutover as cutover_command
from venus.cli import run as run_command
from venus.cli import spark as spark_command
from venus.cli import support_bundle as support_command
from venus.cli.demo import command as demo_command
from venus.cli.failure import INTERRUPTED, READER_GONE, UsageProblem, render
from venus.cli.invocation import CommandSet, ConfigOption, Invocation, JsonOption, LogFormatOption, help_width
from venus.cli.output import ReaderGone, detach_stdout
from venus.cli.prove import command as prove_command
from venus.process.system import state_folder
from venus.security.audit import NAME, AuditLog

#: Commands that change something in an operator's name; `verify` and `run` do so only with an option.
COMMANDS = frozenset(
    {
        "venus cluster accept-loss",
        "venus cluster add",
        "venus cluster dissolve",
        "venus cluster drain",
        "venus cluster move",
        "venus cluster policy",
        "venus cluster promote",
        "venus cluster remove",
        "venus cutover",
        "venus fallback",
        "venus forget",
        "venus half commit",
        "venus half rollback",
        "venus install-triggers",
        "venus migrate",
        "venus pause",
        "venus quarantine retry",
        "venus quarantine skip",
        "venus resume",
        "venus resync",
        "venus uninstall-triggers",
        "venus certs init",
        "venus certs issue",
        "venus certs token",
    }
)
REPAIRS = "venus verify"
INSTALLS = "venus run"


def write_audit_record(invocation: Invocation, arguments: list[str], code: int) -> None:
    """Write user, command line and outcome to the audit log, if the command is one of those to record."""
    command = invocation.command
    acts = (command == REPAIRS and "--repair" in arguments) or (command == INSTALLS and "--install" in arguments)
    if command not in COMMANDS and not acts:
        return
    host = socket.gethostname()
    audit = AuditLog(_audit_path(invocation), lambda: datetime.now(UTC))
    audit.write(
        who=user_name(),
        where=host,
        what=invocation.redactor(shlex.join(["venus", *arguments])),
        result="done" if code == 0 else f"exit code {code}",
    )


def user_name() -> str:
    """Return the name of the user, and of the user that ran sudo."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user may have no name
        user = f"user {os.getuid()}"
    caller = os.environ.get("SUDO_USER", "")
    return f"{caller} as {user}" if caller and caller != user else user


def _audit_path(invocation: Invocation) -> Path:
    """Return the path of the audit log: [security] audit_file, or else a file in the user's state folder."""
    if invocation.audit_file:
        return Path(invocation.audit_file)
    return state_folder() / NAME


TRY, PREPARE, RUN, WATCH, ACT = "Try", "Prepare", "Run", "Watch", "Act"

app = CommandSet(
    name="venus",
    help="Keeps a PostgreSQL database equal to a database of a different kind while both are in use, "
    "with triggers alone.",
    epilog="Exit codes: 0 ok, 1 differences or unhealthy, 2 usage or configuration, 3 refused by a safety rule, "
    "75 try again later, 12 anything else.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def print_version(asked: bool) -> None:
    """Print the version and exit, as every command line tool does for `--version`."""
    if asked:
        typer.echo(f"venus {__version__}")
        raise typer.Exit


@app.callback()
def venus(
    ctx: typer.Context,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log everything to stderr.")] = False,
    log_format: LogFormatOption = "text",
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Handle the options that every command has."""
    invocation = Invocation.from_options(ctx, config, as_json)
    invocation.verbose = verbose
    invocation.choose_log_format(log_format)
    if verbose:
        invocation.log_to_stderr(level=10)


app.command("demo", rich_help_panel=TRY)(demo_command.demo)
app.command("init", rich_help_panel=PREPARE)(init.init)
app.command("assess", rich_help_panel=PREPARE)(assess.assess)
app.command("prove", rich_help_panel=PREPARE)(prove_command.prove)
app.command("check", rich_help_panel=PREPARE)(install.check)
app.command("install-triggers", rich_help_panel=PREPARE)(install.install_triggers)
app.command("uninstall-triggers", rich_help_panel=PREPARE)(release.uninstall_triggers)
app.command("run", rich_help_panel=RUN)(run_command.run)
app.command("broker", rich_help_panel=RUN)(broker_command.broker)
app.command("migrate", rich_help_panel=RUN)(load.migrate)
app.command("sync", rich_help_panel=RUN)(sync.sync)
app.command("status", rich_help_panel=WATCH)(status.status)
app.command("verify", rich_help_panel=WATCH)(verify.verify)
app.command("listen", rich_help_panel=WATCH)(listen.listen)
app.command("config", rich_help_panel=WATCH)(show.config)
app.command("version", rich_help_panel=WATCH)(show.version)
app.command("support", rich_help_panel=WATCH)(support_command.support)
app.command("pause", rich_help_panel=ACT)(tables.pause)
app.command("resume", rich_help_panel=ACT)(tables.resume)
app.command("resync", rich_help_panel=ACT)(tables.resync)
app.command("forget", rich_help_panel=ACT)(tables.forget)
app.command("cutover", rich_help_panel=ACT)(cutover_command.cutover)
app.command("fallback", rich_help_panel=ACT)(cutover_command.fallback)
for change in (
    cluster_members.move,
    cluster_members.balance,
    cluster_members.drain,
    cluster_members.add,
    cluster_members.remove,
    cluster_promotion.dissolve,
    cluster_promotion.promote,
):
    cluster_command.app.command()(change)
cluster_command.app.command("accept-loss")(cluster_promotion.accept_loss)
app.add_typer(spark_command.app, name="spark", rich_help_panel=RUN)
app.add_typer(cluster_command.app, name="cluster", rich_help_panel=WATCH)
app.add_typer(alarms.app, name="alarms", rich_help_panel=WATCH)
app.add_typer(certs.app, name="certs", rich_help_panel=PREPARE)
app.add_typer(quarantine.app, name="quarantine", rich_help_panel=ACT)
app.add_typer(halves.app, name="half", rich_help_panel=ACT)


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    invocation = Invocation(json="--json" in arguments)
    try:
        code = _run(arguments, invocation)
    except BrokenPipeError:
        detach_stdout()
        code = READER_GONE
    except ReaderGone:
        code = READER_GONE
    write_audit_record(invocation, arguments, code)
    return code


def _run(arguments: list[str], invocation: Invocation) -> int:
    """Run a command line, print the error that it raises, and return its exit code."""
    try:
        outcome = app(
            args=arguments, prog_name="venus", standalone_mode=False, obj=invocation, terminal_width=help_width()
        )
    except UsageProblem as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message(), file=sys.stderr)  # type: ignore[attr-defined]  # noqa: T201
            return 2
        return render(error, invocation)
    except ReaderGone:
        raise
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 12
    except (Exception, KeyboardInterrupt) as error:
        return render(error, invocation)
    if outcome == INTERRUPTED:  # the outcome of Ctrl-C in typer
        return render(KeyboardInterrupt(), invocation)
    return outcome if isinstance(outcome, int) else 0
