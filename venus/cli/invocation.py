"""One run of one command: its help, its configuration, its form of output and its log, with all passwords redacted.

Every command takes `-c FILE` and `--json`, before or after its name; `Invocation` holds both. The log has lines for
people, or one JSON object per line for machines.

Help is plain text in the terminal's width, with commands under headings (`CommandSet`). Typer's own help treats
`[broker]` in a text as markup and drops it, and displays a flag as `<bool>`. Typer's help needs Rich, which takes
longer to import than everything else that help needs.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from venus.cli.output import Output, Redactor
from venus.errors import ConfigError

if TYPE_CHECKING:
    from venus.config import Settings

#: Help is not wider than this: longer lines are hard to read.
COLUMNS_MAX = 100
#: Maximum length of the first sentence of a command's help, which is its line in a list of commands.
SUMMARY_MAX = 200
#: Below this width, a column for explanations would be only a word wide.
COLUMNS_TWO_MIN = 60

#: Typer's word for an argument's type, in Python's terms.
_TYPE = re.compile(r" <[^<>]*>$")

_Context: type[Any] = TyperCommand.context_class
_Formatter: type[Any] = _Context.formatter_class


class HelpFormatter(_Formatter):  # type: ignore[misc]
    """Formatter of help: names and explanations side by side, on a narrow terminal one below the other."""

    def write_dl(self, rows: Any, col_max: int = 30, col_spacing: int = 2) -> None:
        rows = [(_TYPE.sub("", name), explanation) for name, explanation in rows]
        if self.width >= COLUMNS_TWO_MIN:
            super().write_dl(rows, col_max, col_spacing)
            return
        for name, explanation in rows:
            self.write(f"{'':>{self.current_indent}}{name.rstrip()}\n")
            with self.indentation(), self.indentation():
                self.write_text(explanation)


class PlainContext(_Context):  # type: ignore[misc]
    """Typer's context of a command, with help that fits a narrow terminal."""

    formatter_class = HelpFormatter


class PlainCommand(TyperCommand):
    """A command with plain-text help, whose errors hint at that help."""

    context_class = PlainContext

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; add the command to an error that lacks it, so that its hint names the right help."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "ctx", ctx) is None:
                error.ctx = ctx  # type: ignore[attr-defined]
            raise


class PlainGroup(TyperGroup):
    """A command with subcommands, which its help lists under their headings."""

    context_class = PlainContext

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands under their headings."""
        headings: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                heading = getattr(command, "rich_help_panel", None)
                heading = heading if isinstance(heading, str) else "Commands"
                headings.setdefault(heading, []).append((name, command.get_short_help_str(limit=SUMMARY_MAX)))
        widest = max((len(name) for rows in headings.values() for name, _ in rows), default=0)
        for heading, rows in headings.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(widest), explanation) for name, explanation in rows])


class CommandSet(typer.Typer):
    """A set of commands with plain-text help."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            cls=PlainGroup, rich_markup_mode=None, no_args_is_help=True, pretty_exceptions_enable=False, **settings
        )

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        """Register a command; as in Typer."""
        return super().command(name, **({"cls": PlainCommand} | settings))


def help_width() -> int:
    """Return the width of help in characters."""
    return max(20, min(shutil.get_terminal_size().columns, COLUMNS_MAX))


FORMATS = ("text", "json")
Format = Literal["text", "json"]
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
#: Libraries that log too much.
CHATTY = ("sqlalchemy", "alembic", "asyncio", "grpc", "uvicorn", "aiosmtpd")
#: The attributes that every record has; any other attribute was added on purpose.
_ORDINARY = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

LogFormatOption = Annotated[
    str, typer.Option("--log-format", metavar="text|json", help="How the log on stderr is written.")
]
Redact = Callable[[str], str]


class RedactingFormatter(logging.Formatter):
    """Formatter of lines for people, without passwords in messages and tracebacks."""

    def __init__(self, redact: Redact) -> None:
        super().__init__(TEXT)
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line, or several with a traceback."""
        return self._redact(super().format(record))


class JsonFormatter(RedactingFormatter):
    """Formatter of JSON, one object on each line: time (UTC), level, logger, process, message, extras like the cut."""

    def __init__(self, redact: Redact, role: str) -> None:
        super().__init__(redact)
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, object] = {
            "time": at,
            "level": record.levelname,
            "logger": record.name,
            "role": self._role,
            "pid": record.process,
            "thread": record.threadName,
            "message": self._redact(record.getMessage()),
        }
        if record.exc_info:
            line["traceback"] = self._redact(self.formatException(record.exc_info))
        for name, value in vars(record).items():
            if name not in _ORDINARY and name not in line:
                line[name] = value if isinstance(value, int | float) else self._redact(str(value))
        return json.dumps(line, ensure_ascii=False)


def start_logging(level: int, log_format: str, role: str, redact: Redact) -> None:
    """Start logging to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(redact, role) if log_format == "json" else RedactingFormatter(redact))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for chatty in CHATTY:
        logging.getLogger(chatty).setLevel(logging.WARNING)


def error_line(role: str, message: str, fields: dict[str, object]) -> str:
    """Format an error, already redacted, as a log line in JSON."""
    record = logging.makeLogRecord(
        {"name": "venus", "levelname": "ERROR", "levelno": logging.ERROR, "msg": message} | fields
    )
    return JsonFormatter(str, role).format(record)


ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="The configuration file; default ./venus.toml.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON to stdout.")]
TargetOption = Annotated[
    str | None,
    typer.Option("--target", metavar="NAME", help="A [targets.NAME]; needed only if there are several."),
]


@dataclass(slots=False, kw_only=True)
class Invocation:
    """One run of a command: its options, configuration, output and log."""

    config: Path | None = None
    json: bool = False
    verbose: bool = False
    log_format: str = "text"
    #: The role of this process in its log: "venus broker", "capture", the name of a target.
    role: str = "venus"
    #: Whether `venus sync` has started this process and reports its errors on stderr.
    supervised: bool = False
    redactor: Redactor = field(default_factory=Redactor)
    #: Whether this command connects to databases: only then does it read their passwords.
    needs_passwords: bool = True
    #: The whole name of the command, such as `venus half commit`.
    command: str = ""
    #: [security] audit_file, once the configuration has been read.
    audit_file: str = ""

    @classmethod
    def from_options(cls, ctx: typer.Context, config: Path | None, as_json: bool) -> Invocation:
        """Merge the options before and after the name of the command."""
        self = ctx.ensure_object(cls)
        self.config = config or self.config
        self.json = as_json or self.json
        self.command = self.role = ctx.command_path
        return self

    @cached_property
    def out(self) -> Output:
        """The output of this command."""
        return Output(json=self.json, redactor=self.redactor)

    @cached_property
    def settings(self) -> Settings:
        """The configuration, read once. From then on its passwords are redacted in all output."""
        from venus.config import DEFAULT_FILE, load

        settings = load(self.file)
        self.audit_file = settings.security.audit_file
        if self.needs_passwords:
            from venus.security.secrets import resolve_passwords

            settings = resolve_passwords(settings)
        self.redactor.learn(settings)
        configured = bool(settings.source.url.get_secret_value() or settings.targets)
        if not self.needs_passwords:  # a broker in a container may be configured by the environment alone
            configured = configured or bool(settings.model_fields_set)
        if self.file is None and not configured:
            self.config = DEFAULT_FILE  # so that the error names the missing file
            load(self.file)
        return settings

    @cached_property
    def directed_settings(self) -> Settings:
        """The configuration in the present direction: after a cut-over with a way back, the target is the source."""
        if not may_fall_back(self.settings):
            return self.settings
        from venus.adapters.cutover.direction import directed_settings

        return directed_settings(self.settings)

    def forget_direction(self) -> None:
        """Forget in which direction changes flow, so that the next use reads that again."""
        self.__dict__.pop("directed_settings", None)

    @property
    def file(self) -> Path | None:
        """The configuration file; None if none is named and ./venus.toml does not exist."""
        from venus.config import DEFAULT_FILE

        return self.config or (DEFAULT_FILE if DEFAULT_FILE.exists() else None)

    def log_to_stderr(self, level: int) -> None:
        """Start the log of a long-running command; passwords are redacted."""
        start_logging(logging.DEBUG if self.verbose else level, self.log_format, self.role, self.redactor)

    def choose_log_format(self, log_format: str) -> None:
        """Set --log-format, given before or after the name of the command. Raises ConfigError."""
        if log_format not in FORMATS:
            raise ConfigError(f"--log-format {log_format}: invalid format", hint="one of text, json")
        if log_format != FORMATS[0]:
            self.log_format = log_format


def may_fall_back(settings: Settings) -> bool:
    """Return whether the kinds of source and target allow a fall-back, by their URLs alone, in either direction."""
    source = settings.source.url.get_secret_value()
    urls = [target.url.get_secret_value() for target in settings.targets.values()]
    others = ("mariadb", "mysql", "oracle", "sqlite")
    if source.startswith("postgres"):
        return any(url.startswith(("postgres", *others)) for url in urls)
    return source.startswith(others) and any(url.startswith("postgres") for url in urls)


def choose_target(settings: Settings, name: str | None) -> str:
    """Return the named target, or the only one if none is named. Raises ConfigError if the target does not exist."""
    from venus.config import require_target

    if name is None and len(settings.targets) > 1:
        raise ConfigError(
            "there are several targets: choose one with --target", hint=f"there are {', '.join(settings.targets)}"
        )
    chosen = name if name is not None else next(iter(settings.targets), "main")
    require_target(settings, chosen)
    return chosen
