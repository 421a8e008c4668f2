"""Failure of a command: one line, one hint, one exit code; never a traceback, never a secret.

| code | meaning |
|---|---|
| 0 | ok |
| 1 | differences, or unhealthy |
| 2 | usage or configuration |
| 3 | refused by a safety rule |
| 12 | anything else |
| 75 | try again later |
| 130 | interrupted |
| 141 | the reader of its output has gone |
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path

import typer

from venus.cli.invocation import Invocation, error_line
from venus.errors import ConfigError, LoginRefused, VenusError
from venus.process.system import state_folder
from venus.text.formatting import find_option_line, mask_url, to_sentence

INTERRUPTED = 130
#: The code that a shell reports for a command ended by SIGPIPE.
READER_GONE = 141
UNEXPECTED = 12
#: The beginning of a message about the url of a target.
_URL_OF_TARGET = re.compile(r"targets\.[^.\s]+\.url\b")
#: Maximum number of reports to keep, because a loop that fails at once is restarted every half minute.
REPORTS_KEPT = 20
#: ClickException of the click that typer uses: some versions of typer contain a copy of click.
UsageProblem: type[Exception] = typer.BadParameter.__mro__[2]


def render(error: BaseException, invocation: Invocation) -> int:
    """Print an error and return the exit code."""
    message, hint, code = explain(error, invocation)
    hint = to_sentence(hint)
    if invocation.supervised:
        pass
    elif invocation.log_format == "json":
        fields = {"hint": hint, "kind": type(error).__name__, "exit_code": code}
        print(error_line(invocation.role, message, fields), file=sys.stderr)  # noqa: T201
    else:
        complaints = complaint_lines(error, invocation) or [message]
        lines = [*(f"venus: {complaint}" for complaint in complaints), *([f"  {hint}"] if hint else [])]
        print(*lines, sep="\n", file=sys.stderr)  # noqa: T201
    if invocation.json and (invocation.out.streaming or not invocation.out.written):
        error_document = {"kind": type(error).__name__, "message": message, "hint": hint, "exit_code": code}
        if complaints := complaint_lines(error, invocation):
            error_document["complaints"] = complaints
        invocation.out.write_error({"error": error_document})
    return code


def explain(error: BaseException, invocation: Invocation) -> tuple[str, str, int]:
    """Return the message and the hint of an error, each as one line, and the exit code."""
    redact = invocation.redactor
    if isinstance(error, LoginRefused | ConfigError):  # the database responds and refuses: the configuration is wrong
        return join_lines(redact(f"{find_url_place(str(error), invocation)}{error}")), join_lines(redact(error.hint)), 2
    if isinstance(error, VenusError):
        return join_lines(redact(str(error))), join_lines(redact(error.hint)), error.exit_code
    if isinstance(error, UsageProblem):
        return join_lines(redact(usage_message(error))), usage_hint(error), 2
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return "interrupted", "", INTERRUPTED
    report = write_report(error, invocation)
    return join_lines(redact(f"unexpected {type(error).__name__}: {error}")), f"details: {report}", UNEXPECTED


def complaint_lines(error: BaseException, invocation: Invocation) -> list[str]:
    """Return a line for each mistake of a configuration; empty if the message is complete."""
    found = error.complaints if isinstance(error, ConfigError) else ()
    return [join_lines(invocation.redactor(complaint)) for complaint in found]


def find_url_place(message: str, invocation: Invocation) -> str:
    """Return `venus.toml:3: source.url: ` for the database that a message concerns; empty if that is unclear.

    If the message already names the option, return only the file and line.
    """
    if message.startswith("[source] url"):
        return find_option_place("source.url", invocation).removesuffix("source.url: ")
    if named := _URL_OF_TARGET.match(message):  # the settings may be unreadable
        return find_option_place(named[0], invocation).removesuffix(f"{named[0]}: ")
    if message.startswith("source "):
        return find_option_place("source.url", invocation)
    if not message.startswith("target "):
        return ""  # the error may concern the configuration itself, which is then unreadable
    for name, target in invocation.settings.targets.items():
        bare = mask_url(target.url.get_secret_value()).partition("://")[2].partition("?")[0]
        if bare and bare in message:
            return find_option_place(f"targets.{name}.url", invocation)
    return ""


def find_option_place(key: str, invocation: Invocation) -> str:
    """Return where an option is set: `venus.toml:3: source.url: `, or the environment variable that overrides it."""
    from venus.config.settings import find_variable

    if variable := find_variable(key.split(".")):
        return f"environment: {variable}: "
    file = invocation.file
    line = find_option_line(file.read_text(encoding="utf-8-sig"), key.split(".")) if file is not None else 0
    return f"{file}:{line}: {key}: " if line else f"{key}: "


def join_lines(text: str) -> str:
    """Join the lines of a text with semicolons."""
    return "; ".join(part.strip() for part in text.splitlines() if part.strip())


def usage_message(error: Exception) -> str:
    """Return the message of a usage error; it suggests only options that the help lists."""
    message = str(getattr(error, "message", "") or getattr(error, "format_message", error.__str__)())
    proposed = getattr(error, "possibilities", None)
    if not proposed:
        return str(getattr(error, "format_message", error.__str__)())
    parameters = getattr(getattr(getattr(error, "ctx", None), "command", None), "params", ())
    hidden = {name for one in parameters if getattr(one, "hidden", False) for name in one.opts}
    near = [name for name in proposed if name not in hidden]
    return f"{message.rstrip('.')} (did you mean {' or '.join(near)}?)" if near else message


def usage_hint(error: Exception) -> str:
    """Return the help command to read."""
    context = getattr(error, "ctx", None)
    return f"see `{context.command_path} --help`" if context is not None else "see `venus --help`"


def write_report(error: BaseException, invocation: Invocation) -> Path:
    """Write the traceback to a new file that only its owner can read; return its path."""
    text = invocation.redactor("".join(traceback.format_exception(error)))
    state = state_folder()
    name = f"failure-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    for folder in (state, Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with open(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(text)
        except OSError:
            continue
        if folder == state:  # the temporary folder belongs to all users
            _remove_old_reports(state)
        return folder / name
    return Path("(nowhere: no folder is writable)")


def _remove_old_reports(state: Path) -> None:
    """Remove all but the newest reports of unexpected failures."""
    for old in sorted(state.glob("failure-*.log"))[:-REPORTS_KEPT]:
        with suppress(OSError):
            old.unlink()
