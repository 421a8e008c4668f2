"""One run of one command: which configuration, which form of output, and what must never be printed.

Every command takes `-c FILE` and `--json`, before or behind its name; `Invocation` is where both end up.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from venus.cli.output import Output, Redactor
from venus.errors import ConfigError

if TYPE_CHECKING:
    from venus.config import Settings
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

FORMATS = ("text", "json")
Format = Literal["text", "json"]
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
#: These say too much.
CHATTY = ("sqlalchemy", "alembic", "asyncio", "grpc", "uvicorn", "aiosmtpd")
#: What every record has; anything else was said on purpose.
_ORDINARY = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

LogFormatOption = Annotated[
    str, typer.Option("--log-format", metavar="text|json", help="How the log on stderr is written.")
]
Redact = Callable[[str], str]


class Redacting(logging.Formatter):
    """Lines for people, without passwords, in messages and tracebacks alike."""

    def __init__(self, redact: Redact) -> None:
        super().__init__(TEXT)
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line, or several with a traceback."""
        return self._redact(super().format(record))


class JsonLines(Redacting):
    """One object a line: time (UTC), level, logger, process, message, and what was said besides, such as the cut."""

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


def begin(level: int, log_format: str, role: str, redact: Redact) -> None:
    """Log to stderr from here on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(redact, role) if log_format == "json" else Redacting(redact))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for chatty in CHATTY:
        logging.getLogger(chatty).setLevel(logging.WARNING)


def line(role: str, message: str, fields: dict[str, object]) -> str:
    """Return an error that has been redacted already as a line for machines."""
    record = logging.makeLogRecord(
        {"name": "venus", "levelname": "ERROR", "levelno": logging.ERROR, "msg": message} | fields
    )
    return JsonLines(str, role).format(record)


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
    """What the options say, shared by everything that a command starts."""

    config: Path | None = None
    json: bool = False
    verbose: bool = False
    log_format: str = "text"
    #: What this process does, in its log: "venus broker", "capture", the name of a target.
    role: str = "venus"
    #: Whether `venus sync` has started this process: then that says on stderr what its loops fail of.
    supervised: bool = False
    redactor: Redactor = field(default_factory=Redactor)
    #: Whether this command speaks with databases: only then is it told their passwords.
    needs_passwords: bool = True
    #: The whole name of the command, as `venus half commit`.
    command: str = ""
    #: [security] audit_file, once the configuration has been read.
    audit_file: str = ""

    @classmethod
    def of(cls, ctx: typer.Context, config: Path | None, as_json: bool) -> Invocation:
        """Join the options in front of the command's name with those behind it."""
        self = ctx.ensure_object(cls)
        self.config = config or self.config
        self.json = as_json or self.json
        self.command = self.role = ctx.command_path
        return self

    @cached_property
    def out(self) -> Output:
        """Where this command writes."""
        return Output(json=self.json, redactor=self.redactor)

    @cached_property
    def settings(self) -> Settings:
        """Read the configuration; from here on its passwords are struck out of everything written."""
        from venus.config import DEFAULT_FILE, load

        settings = load(self.file)
        self.audit_file = settings.security.audit_file
        if self.needs_passwords:
            from venus.security.passwords import resolved

            settings = resolved(settings)
        self.redactor.learn(settings)
        configured = bool(settings.source.url.get_secret_value() or settings.targets)
        if not self.needs_passwords:  # a broker in a container: everything that it needs comes from the environment
            configured = configured or bool(settings.model_fields_set)
        if self.file is None and not configured:
            self.config = DEFAULT_FILE  # say that the file is missing
            load(self.file)
        return settings

    @property
    def file(self) -> Path | None:
        """The configuration file, None if it is not named and ./venus.toml is not there."""
        from venus.config import DEFAULT_FILE

        return self.config or (DEFAULT_FILE if DEFAULT_FILE.exists() else None)

    def log_to_stderr(self, level: int) -> None:
        """Let the long-running commands say what they do; passwords are struck out."""
        begin(logging.DEBUG if self.verbose else level, self.log_format, self.role, self.redactor)

    def choose_log_format(self, log_format: str) -> None:
        """Take --log-format, in front of the command's name or behind it. Raises ConfigError."""
        if log_format not in FORMATS:
            raise ConfigError(f"--log-format {log_format}: invalid format", hint="one of text, json")
        if log_format != FORMATS[0]:
            self.log_format = log_format


def only_target(settings: Settings, name: str | None) -> str:
    """Return the target meant: the one there is, if none is named.

    Raises ConfigError if there are several, none, or none of that name.
    """
    from venus.config import require_target

    if name is None and len(settings.targets) > 1:
        raise ConfigError(
            "there are several targets: choose one with --target", hint=f"there are {', '.join(settings.targets)}"
        )
    chosen = name if name is not None else next(iter(settings.targets), "main")
    require_target(settings, chosen)
    return chosen
